"""The search for bad critical points of ReLU residual nets: a variant of relu.py.

The starts are random nets inside the ball. Every other one first descends on f; then
all solve ``grad f = 0``. Bad critical points are smooth, not optimal and inside the
ball. Candidates for a local minimum are proved in rational arithmetic. The same search
of linear residual nets is the control. At every bad point the gradient in the maps
themselves is compared with its bound (N15 of docs/theory/relu.md).

Expected: inside the ball, 775 to 790 critical points without biases and 450 to 490 with
biases. Of these, 175 to 200 and about 150 are bad; most of the latter have a dead unit.
Each seed gives 43 to 49 proofs of 34 to 42 distinct local minima; 23 or 24 of the
proofs are for nets of depth 2. Linear nets have no bad point. The gradient in the maps
never falls below its bound and is not 0 at any proved minimum.
"""

import collections

import numpy as np

from experiments import run
from experiments.run.trials import each, without
from experiments.run.verdicts import joined, largest, least, total, under_attack, where
from identity_matters.report.records import rows_of

# A point is optimal, in every variant,
# if f / f(0) is at most this: the targets are realizable.
OPTIMAL_SHARE = 1e-9
_NOT_INSIDE = ("not critical", "outside")
NO_NEGATIVE_CURVATURE = "no negative curvature"
BAD = ("saddle", NO_NEGATIVE_CURVATURE)
# A point has the risk of the origin up to this relative difference: five digits.
_AT_THE_ORIGINS_RISK = 1e-5
# Kinds of limits. The first whose condition holds counts; the last has no condition.
# `classify` in measurements/relu_search.py has the conditions, by name.
KINDS = (
    "not critical",
    "outside",
    "optimal",
    "all dead",
    "zero unit",
    "at a kink",
    *BAD,
)

PROBLEMS = {
    "width_in": 2,  # d_in, number of inputs and of outputs of the net
    "teacher_norm": 0.5,  # |||theta||| of the teacher, which has risk 0
    "teacher_width": 2,  # units per block of the teacher, at most the student's
}
SETTINGS = {
    "search": {
        **PROBLEMS,
        # (depth, width, lifted width d, bias, pairs);
        # no input and output maps for d = width_in.
        "nets": (
            (1, 1, 2, False, 8),
            (1, 2, 2, False, 8),
            (1, 4, 2, False, 8),
            (1, 8, 2, False, 8),
            (1, 8, 2, False, 2),
            (1, 2, 4, False, 8),
            (1, 2, 2, True, 8),
            (2, 2, 2, False, 8),
            (2, 2, 4, True, 8),
            (2, 2, 2, True, 8),
            (1, 4, 2, True, 16),
        ),
        "problems": 16,  # for each of nets
        "start_norms": (0.1, 0.4, 0.7),  # |||theta||| of the starts
        "starts": 4,  # for each problem and norm; every other one first descends on f
        "steps": 120,  # most steps of each Levenberg-Marquardt solve
        "radius": 0.99,  # of the ball
        # ||grad f|| up to which a point counts as critical
        "gradient_tolerance": 1e-11,
        "optimal_share": OPTIMAL_SHARE,
        # distance from a kink, as an angle, above which f counts as smooth
        "kink_tolerance": 1e-6,
        # a unit with weights no longer than this counts as zero
        "zero_unit_tolerance": 1e-4,
        # share of the largest Hessian eigenvalue that counts as zero
        "curvature_tolerance": 1e-9,
        "certified_at_most": 12,  # most candidates for a proof, for each of nets
        # features are independent if their bound's coefficient exceeds this
        "independent_from": 1e-9,
        "least_proved_minima": 1,  # distinct proved minima that the verdict needs
        # relative amount by which the gradient in the maps may fall below its bound
        "rounding": 1e-9,
        # The same search of linear residual nets,
        # with as many starts in all, half at each depth.
        "control": {
            "depths": (2, 3),
            "problems": 88,  # for each of depths
            # the sample is this many x and their negatives, so n is twice this
            "pairs": 8,
        },
    }
}


def each_net(settings: dict, names: str, measured: str) -> list[dict]:
    """A trial for each of "nets", with a teacher no wider than the student.

    Args:
      settings: with "nets", tuples.
      names: what the trial calls the parts of such a tuple.
      measured: the kind of the trials.
    """
    trials = each(settings, {"nets": names}, measured=measured)
    for trial in trials:
        trial["teacher_width"] = min(trial["teacher_width"], trial["width"])
    return trials


def trials(*, control: dict, **settings) -> list[dict]:
    """A search for each of "nets"; one of linear nets for each depth of `control`."""
    searches = each_net(settings, "depth width lifted_width bias pairs", "search")
    linear = {**without(settings, "nets", "teacher_width"), **control}
    return searches + each(linear, {"depths": "depth"}, measured="linear_control")


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """Metrics, and "counterexample" or "undecided"."""
    searches = where(records, measured="search")
    controls = where(records, measured="linear_control")
    points = _points(searches)
    proofs = _proofs(searches)
    metrics = {
        **_endings(searches[0]["kind_names"], points),
        **_metrics_of_nets("without_biases", points, proofs, bias=False),
        **_metrics_of_nets("with_biases", points, proofs, bias=True),
        "distinct_proved_minima": _count_distinct(proofs),
        "worst_proved_risk_share": largest(proofs, "risk_share"),
        "median_proved_risk_share": _median(proofs, "risk_share"),
        "least_proved_norm": least(proofs, "norm"),
        "largest_proved_norm": largest(proofs, "norm"),
        **_metrics_of_bounds(settings, searches, points, proofs),
        **_control_metrics(controls),
    }
    has_enough_minima = (
        metrics["distinct_proved_minima"] >= settings["least_proved_minima"]
    )
    all_proofs_have_a_gradient = metrics["proofs_with_a_functional_gradient"] == len(
        proofs
    )
    is_as_proved = _is_as_proved(settings, metrics) and all_proofs_have_a_gradient
    return run.Verdict(
        claim="nonlinear-away-from-origin",
        metrics=metrics,
        verdict=under_attack(has_enough_minima and is_as_proved),
    )


def _endings(kind_names: list[str], points: list[dict]) -> dict:
    """How many searches there were, and how many ended at points of each kind."""
    endings = {
        f"ended_{kind.replace(' ', '_')}": len(where(points, kind=kind))
        for kind in kind_names
    }
    return {"starts": len(points), **endings}


def _metrics_of_bounds(
    settings: dict, searches: list[dict], points: list[dict], proofs: list[dict]
) -> dict:
    """What bad points say of the bounds on the gradient in weights and in maps.

    No bad point has independent features (N12). At every bad point the gradient in the
    maps is at least its bound (N15), and at no proved minimum is it 0.
    """
    with_independent_features = [
        point
        for point in points
        if point["bound_coefficient"] > settings["independent_from"]
    ]
    ratios_at_bad = [record["least_functional_ratio"] for record in searches]
    # A gradient in the maps counts as 0 by the tolerance of that in the weights.
    with_a_gradient = [
        proof
        for proof in proofs
        if proof["functional_gradient"] > settings["gradient_tolerance"]
    ]
    return {
        "independent_features_bad": len(_bad(with_independent_features)),
        "least_functional_ratio_at_bad": min(
            (ratio for ratio in ratios_at_bad if ratio is not None), default=None
        ),
        "least_functional_ratio_at_proofs": least(proofs, "functional_ratio"),
        "proofs_with_a_functional_gradient": len(with_a_gradient),
    }


def _control_metrics(controls: list[dict]) -> dict:
    """The same search of linear nets."""
    return {
        "linear_starts": len(joined(controls, "risk_share")),
        "linear_critical_inside": total(controls, "critical_inside"),
        "linear_bad_inside": total(controls, "bad_inside"),
    }


def _is_as_proved(settings: dict, metrics: dict) -> bool:
    """Whether no number contradicts what is proved of all nets."""
    least_ratio = metrics["least_functional_ratio_at_bad"]
    return (
        (least_ratio is None or least_ratio >= 1 - settings["rounding"])
        and not metrics["linear_bad_inside"]
        and not metrics["independent_features_bad"]
    )


def _points(searches: list[dict]) -> list[dict]:
    """Where each search ended, with the name of its kind."""
    fields = "bias kind dead_units bound_coefficient risk_share"
    points = []
    for record in searches:
        kinds = [record["kind_names"][kind] for kind in record["kinds"]]
        points += rows_of([{**record, "kind": kinds}], fields)
    return points


def _proofs(searches: list[dict]) -> list[dict]:
    """All certificates, with the net that they are for."""
    return [
        {
            **certificate,
            "net": net,
            "bias": record["bias"],
            "examples": 2 * record["pairs"],
        }
        for net, record in enumerate(searches)
        for certificate in record["certificates"]
    ]


def _bad(points: list[dict]) -> list[dict]:
    return [point for point in points if point["kind"] in BAD]


def _metrics_of_nets(
    suffix: str, points: list[dict], proofs: list[dict], *, bias: bool
) -> dict:
    """Counts of points and proofs of nets with biases, or of those without.

    The names of all metrics end with `suffix`.
    """
    points = where(points, bias=bias)
    proofs = where(proofs, bias=bias)
    bad = _bad(points)
    inside = [point for point in points if point["kind"] not in _NOT_INSIDE]
    with_a_dead_unit = [point for point in bad if point["dead_units"] > 0]
    at_the_origins_risk = [
        point for point in bad if abs(point["risk_share"] - 1) <= _AT_THE_ORIGINS_RISK
    ]
    # Every live unit is active on all examples: the net is affine on the sample.
    affine = [
        proof
        for proof in proofs
        if set(proof["active_examples"]) == {proof["examples"]}
    ]
    return {
        f"critical_inside_{suffix}": len(inside),
        f"bad_{suffix}": len(bad),
        f"bad_with_a_dead_unit_{suffix}": len(with_a_dead_unit),
        f"bad_at_the_risk_of_the_origin_{suffix}": len(at_the_origins_risk),
        f"proofs_{suffix}": len(proofs),
        f"affine_proofs_{suffix}": len(affine),
        f"distinct_proved_{suffix}": _count_distinct(proofs),
    }


def _median(proofs: list[dict], name: str) -> float | None:
    """The median of a field, None without proofs."""
    values = joined(proofs, name)
    return float(np.median(values)) if len(values) else None


def _count_distinct(proofs: list[dict]) -> int:
    """A lower bound on the number of minima: those with risks proved to differ."""
    count = 0
    counted_up_to: dict[tuple, float] = collections.defaultdict(lambda: -np.inf)
    for proof in sorted(proofs, key=lambda proof: proof["risk_above"]):
        problem = (proof["net"], proof["problem"])
        if proof["risk"] > counted_up_to[problem]:
            counted_up_to[problem] = proof["risk_above"]
            count += 1
    return count
