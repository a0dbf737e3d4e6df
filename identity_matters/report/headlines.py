"""The headline of each claim: what the paper says, in a few words, and which metric answers it.

To add a claim, add its entry here and its statement in `paper.formulas`; a test names what lacks.
"""

import dataclasses

from identity_matters import paper
from identity_matters.report.tables import Group
from identity_matters.report.values import MissingValueError, with_count

NOT_IN_PAPER = "not in the paper"
NOT_RUN = "not run"


@dataclasses.dataclass(frozen=True)
class Headline:
    """What stands in the table of claims.

    Attributes:
      paper: the published figure or bound.
      ours: sentences with values, see `values`; those that have runs are shown.
      command: what makes the runs, where it is not ``make reproduce-<experiment>``.
    """

    paper: str
    ours: tuple[str, ...]
    command: str = ""


def _table_2(method: str, *datasets: str) -> str:
    errors = paper.TABLE_2[method]
    return ", ".join(f"{errors[dataset].value:g} %" for dataset in datasets)


_TOP_5 = paper.NUMBERS["imagenet_top5_error_percent"].value
_HOURS = paper.NUMBERS["cifar_train_hours_k40"].value
_LAYERS = paper.NUMBERS["deepest_residual_net_layers"].value
_WIDTH = paper.NUMBERS["expressivity_width_constant"].value
_CIFAR_ROWS = ("cifar10", "cifar100")
_FAILURES = (
    "right over left up to {{{0}:largest_right_over_left}}; false at {{{0}:failures_percent}} % of"
    " {{{0}:points}} random points"
)
_TEST_ERRORS = (
    "{{{0}:test_error_percent/{1}}} % test error {2}, {{{0}:test_error_percent/{3}}} % {4}"
)

HEADLINES: dict[str, Headline] = {
    "Theorem 2.1": Headline(
        "|||A||| ≤ (4π + 3γ)/l",
        (
            "at most {factorization/*:max_svd_norm_over_v3_bound} of the bound by the paper's"
            " construction, {factorization/*:max_norm_over_v3_bound} by the best",
        ),
    ),
    "Theorem 2.2": Headline(
        "only global minima inside B_τ",
        (
            "{landscape/critical_points:critical_points_inside_not_optimal} of"
            " {landscape/critical_points:critical_points_inside} critical points inside are not"
            " optimal",
        ),
    ),
    "Equation 2.3 [ICLR 2017]": Headline(
        "right over left ≤ 1", (_FAILURES.format("gradient_bound/iclr2017"),)
    ),
    "Equation 2.3 [v3]": Headline("right over left ≤ 1", (_FAILURES.format("gradient_bound/v3"),)),
    "Equation 2.3, corrected": Headline(
        NOT_IN_PAPER,
        (_FAILURES.format("gradient_bound/corrected"),),
    ),
    "Section 1.1: the origin": Headline(
        "no gradient, zero Hessian; residual nets have both",
        (
            "standard: largest Hessian entry"
            " {landscape/hessian_at_origin:standard_largest_hessian_entry_from_3_layers}; residual:"
            " ‖∇f‖ ≥ {landscape/hessian_at_origin:residual_least_gradient_norm}",
        ),
    ),
    "Section 1.1: training at depth": Headline(
        f"{_LAYERS:g} layers (He et al. 2015)",
        (
            "{linear_training/depth:deepest_trained_residual_layers} layers, at most"
            " {linear_training/depth:residual_most_updates} updates; of"
            " {linear_training/depth:standard_stuck_depth_runs} deep standard nets"
            " {linear_training/depth:standard_stuck_depth_moved_runs} move",
        ),
    ),
    "Theorem 2.2 without det R > 0": Headline(
        NOT_IN_PAPER,
        (
            "least gradient in B_τ"
            " {landscape/negative_determinant:least_gradient_over_floor} of its floor"
            " in {landscape/negative_determinant:balls} balls",
        ),
    ),
    "Landscape is not dynamics": Headline(
        f"{NOT_IN_PAPER}; Σ λ² over λ < 0 (Bartlett et al. 2018)",
        (
            "stalls at f − C = {linear_training/stuck_targets:plane_zero_excess_risk}, predicted"
            " {linear_training/stuck_targets:plane_zero_predicted_excess_risk};"
            " {linear_training/stuck_targets:cure_converged_runs} of"
            " {linear_training/stuck_targets:cure_runs} cures work",
        ),
    ),
    "Lemma 2.4: the cost of a gradient": Headline(
        NOT_IN_PAPER,
        (
            "at most {benchmark_linear/gradient_step:largest_step_over_chain_ratio} times a bare"
            " chain; time ~ depth^{benchmark_linear/gradient_step:step_time_exponent}",
        ),
    ),
    "Theorem 3.2": Headline(
        f"width k = {_WIDTH:g} log n / ρ²",
        (
            "{expressivity/cifar10:errors} errors on {expressivity/cifar10:examples} CIFAR-10"
            " images with random labels by {expressivity/cifar10:block_parameters_max} parameters"
            " in blocks of width 8; the printed width is"
            " {expressivity/cifar10:theorem_width_n50000}",
            "{expressivity/synthetic_large:errors} errors on"
            " {expressivity/synthetic_large:examples} random points",
        ),
        "make data && make reproduce-expressivity DATASET=cifar10",
    ),
    "Theorem 3.2: the cost of the construction": Headline(
        NOT_IN_PAPER,
        (
            "building {benchmark_expressivity/construction:build_over_bare_products_ratio},"
            " checking {benchmark_expressivity/construction:verify_over_bare_products_ratio} times"
            " the bare products at n = {benchmark_expressivity/construction:examples}",
        ),
    ),
    "Table 2, CIFAR-10": Headline(
        _table_2("this paper", "cifar10"),
        (
            "{cifar/cifar10/all_conv_residual:test_error_percent} %",
            "{cifar/cifar10/quarter_width:test_error_percent} % by a net of a quarter of the width"
            " after {cifar/cifar10/quarter_width:steps} steps",
        ),
        "make data && make reproduce-cifar10",
    ),
    "Table 2, CIFAR-100": Headline(
        _table_2("this paper", "cifar100"),
        ("{cifar/cifar100/all_conv_residual:test_error_percent} %",),
        "make data DATASETS=cifar100 && make reproduce-cifar100",
    ),
    "Table 2, other rows": Headline(
        "; ".join(
            f"{method} {_table_2(method, *_CIFAR_ROWS)}"
            for method in ("All-CNN", "ResNet", "DenseNet")
        ),
        tuple(
            f"{name} {{cifar/{dataset}/{net}:test_error_percent}} % on {shown}"
            for name, net in (
                ("All-CNN", "all_cnn_c"),
                ("ResNet", "resnet"),
                ("DenseNet", "densenet"),
            )
            for dataset, shown in (("cifar10", "CIFAR-10"), ("cifar100", "CIFAR-100"))
        ),
        'make data DATASETS="cifar10 cifar100" && make reproduce-table2',
    ),
    "Section 4: the net on digits": Headline(
        NOT_IN_PAPER,
        (
            "{cifar/digits/all_conv_residual:test_error_percent} % test error, a linear classifier"
            " {cifar/digits/all_conv_residual:linear_classifier_test_error_percent} %",
        ),
    ),
    "Section 4: the identity": Headline(
        "no number",
        (
            "31 convolutions: {ablations/digits/identity:train_error_percent/identity/5-5-5} %"
            " training error with the identity,"
            " {ablations/digits/identity:train_error_percent/no_identity/5-5-5} % without",
            "55 convolutions on CIFAR-10:"
            " {ablations/cifar10/identity:train_error_percent/identity/9-9-9} % training error with"
            " the identity,"
            " {ablations/cifar10/identity:train_error_percent/no_identity/9-9-9} % without",
        ),
    ),
    "Section 4: the initialisation": Headline(
        "“substantially helped”, no number",
        (
            "training loss {ablations/digits/initialisation:train_loss/paper} from the paper's"
            " deviation, {ablations/digits/initialisation:train_loss/standard} from the standard"
            " one where it did not diverge",
            "CIFAR-10: "
            + _TEST_ERRORS.format(
                "ablations/cifar10/initialisation",
                *("paper", "from the paper's deviation", "standard", "from the standard one"),
            ),
        ),
    ),
    "Section 4: the projection": Headline(
        "“slightly improved”, no number",
        (
            _TEST_ERRORS.format(
                "ablations/cifar10/projection",
                *("fixed", "with a fixed map", "trained", "with a trained one"),
            ),
        ),
        "make reproduce-ablations DATASET=cifar10",
    ),
    "Section 4: batch normalisation": Headline(
        "“overfits”, no number",
        (
            _TEST_ERRORS.format(
                "ablations/cifar10/batch_norm",
                *("with", "with batch norm", "without", "without"),
            ),
        ),
        "make reproduce-ablations DATASET=cifar10",
    ),
    "Section 4: the activation": Headline(
        "not said",
        (
            _TEST_ERRORS.format(
                "ablations/cifar10/activation", *("relu", "with ReLU", "leak", "with a leak")
            ),
        ),
        "make reproduce-ablations DATASET=cifar10",
    ),
    "Section 4: training speed": Headline(
        f"{_HOURS:g} h on one Tesla K40",
        (
            "{benchmark_train_step/cpu:speedup/table_1} times PyTorch's speed on a CPU",
            "{benchmark_train_step/gpu:speedup/table_1} times PyTorch's speed on a GPU",
        ),
        "make bench-train",
    ),
    "Table 2, ImageNet": Headline(
        f"{_table_2('this paper', 'imagenet')}; top-5 {_TOP_5:g} %",
        (),
    ),
}


def ours(claim: str, groups: list[Group]) -> str:
    """What the runs say of a claim in a few words, with the number of seeds.

    "not run" where there is no run of the claim; empty where there are some, but none with the
    metrics of its headline.
    """
    if not any(group.claim == claim for group in groups):
        return NOT_RUN
    found = []
    for sentence in HEADLINES[claim].ours if claim in HEADLINES else ():
        try:
            found.append(with_count(sentence, groups))
        except MissingValueError:
            continue
    return "; ".join(found)


def paper_says(claim: str) -> str:
    """The published figure or bound; empty for a claim without a headline."""
    return HEADLINES[claim].paper if claim in HEADLINES else ""
