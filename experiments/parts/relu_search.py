"""The search for bad critical points of ReLU residual nets: a variant of
experiments/relu.py.

The starts are random nets inside the ball. Every other one first descends on f; then
all solve ``grad f = 0``. Bad critical points are smooth, not optimal and inside the
ball. Candidates for a local minimum are proved in rational arithmetic. The same search
of linear residual nets is the control. At every bad point the gradient in the maps
themselves is compared with its bound (N15 of docs/theory/relu.md).

Expected: inside the ball, 780 to 790 critical points without biases and 450 to 490 with
biases. Of these, 175 to 200 and about 150 are bad; most of the latter have a dead unit.
Each seed gives 43 to 49 proofs of 34 to 42 distinct local minima; 23 or 24 of the
proofs are for nets of depth 2. Linear nets have no bad point. The gradient in the maps
never falls below its bound and is not 0 at any proved minimum.
"""

import collections

import jax
import numpy as np

from experiments.run.shared import (
    each,
    joined,
    largest,
    least,
    total,
    under_attack,
    where,
    without,
)
from identity_matters.relu import (
    critical_points,
    feature_bound,
    model,
    origin,
    problems,
)
from identity_matters.relu.certificate import NotCertifiedError, certify
from identity_matters.report.records import rows

# A point is optimal, in every variant, if f / f(0) is at most this: the targets are
# realizable.
OPTIMAL_SHARE = 1e-9
_NOT_INSIDE = ("not critical", "outside")
_BAD = ("saddle", "no negative curvature")
# A point has the risk of the origin up to this relative difference: five digits.
_AT_THE_ORIGINS_RISK = 1e-5
# Kinds of limits; the first that fits counts.
KINDS = (
    "not critical",
    "outside",
    "optimal",
    "all dead",
    "zero unit",
    "at a kink",
    *_BAD,
)
_OF_PROOFS = ("risk_share", "functional_gradient", "functional_ratio")
_DIGITS = 6  # significant digits that `short` keeps

PROBLEMS = {
    "width_in": 2,  # d_in, number of inputs and of outputs of the net
    "teacher_norm": 0.5,  # |||theta||| of the teacher, which has risk 0
    "teacher_width": 2,  # units per block of the teacher, at most the student's
}
SETTINGS = {
    **PROBLEMS,
    # (depth, width, lifted width d, bias, pairs); no input and output maps for d =
    # width_in.
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
    "gradient_tolerance": 1e-11,  # ||grad f|| up to which a point counts as critical
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
    # The same search of linear residual nets, with as many starts in all, half at each
    # depth.
    "control": {"depths": (2, 3), "problems": 88, "pairs": 8},
}


def each_net(settings: dict, names: str, measured: str) -> list[dict]:
    """A trial for each of "nets", tuples of `names`, with a teacher no wider than the
    student.
    """
    trials = each(settings, {"nets": names}, measured=measured)
    return [
        {**own, "teacher_width": min(own["teacher_width"], own["width"])}
        for own in trials
    ]


def trials(*, control: dict, **settings) -> list[dict]:
    """A search for each of "nets", and one of linear nets for each depth of
    `control`.
    """
    linear = without(settings, "nets", "teacher_width") | control
    searches = each_net(settings, "depth width lifted_width bias pairs", "search")
    return searches + each(linear, {"depths": "depth"}, measured="linear_control")


def short(values) -> list:
    """Numbers that only figures and counts use, rounded to `_DIGITS` digits."""
    return [float(f"{value:.{_DIGITS}g}") for value in np.asarray(values, np.float64)]


def search(trial, rng) -> dict:
    """Where the searches end, by kind, and certificates of bad local minima."""
    sample, teachers = problems.realizable(rng, trial.problems, trial.setting)
    norms = np.repeat(trial.start_norms, trial.starts)
    descends = np.tile(np.arange(len(norms)) % 2 == 0, trial.problems)
    blocks = model.random_blocks(
        rng, np.tile(norms, trial.problems), *trial.shape, trial.bias
    )
    batch, teachers = problems.repeat((sample, teachers), len(norms))
    options = {"steps": trial.steps, "tolerance": trial.gradient_tolerance}
    limits, numbers = critical_points.find(blocks, batch, descends, **options)
    right, left = jax.vmap(feature_bound.functional_bound)(limits, batch)
    numbers |= {
        **critical_points.kink_margins(limits, batch),
        "bound_coefficient": jax.vmap(feature_bound.coefficient)(limits, batch),
        "functional_gradient": np.sqrt(np.sum(left, axis=1)),
        # The least ratio over the blocks. At a bad point no bound is 0.
        "functional_ratio": np.min(
            left / np.maximum(right, np.finfo(float).tiny), axis=1
        ),
        "max_norm": model.max_norm(limits),
    }
    numbers = {name: np.asarray(value) for name, value in numbers.items()}
    numbers["risk_share"] = numbers["risk"] / origin.risk_at_origin(batch)
    kinds = classify(trial, numbers)
    at_bad = numbers["functional_ratio"][np.isin(kinds, _BAD)]
    kept = ("gradient_norm", "risk_share", "max_norm", "bound_coefficient")
    return {
        "kinds": [KINDS.index(kind) for kind in kinds],
        "kind_names": list(KINDS),
        "descends": descends.tolist(),
        "dead_units": numbers["dead_units"].tolist(),
        "least_functional_ratio": float(at_bad.min()) if len(at_bad) else None,
        "certificates": _certificates(trial, kinds, numbers, limits, teachers, batch),
        **{name: short(numbers[name]) for name in kept},
    }


def classify(trial, limits: dict[str, np.ndarray]) -> np.ndarray:
    """One of `KINDS` for each limit, from the arrays that `search` collects."""
    eigenvalues = limits["eigenvalues"]
    conditions = [
        limits["gradient_norm"] > trial.gradient_tolerance,
        limits["max_norm"] >= trial.radius,
        limits["risk_share"] <= trial.optimal_share,
        limits["dead_units"] == trial.depth * trial.width,
        limits["shortest_unit"] <= trial.zero_unit_tolerance,
        limits["kink_margin"] <= trial.kink_tolerance,
        eigenvalues[:, 0] < -trial.curvature_tolerance * eigenvalues[:, -1],
    ]
    return np.select(conditions, KINDS[:-1], KINDS[-1])


def _certificates(trial, kinds, numbers, limits, teachers, batch) -> list[dict]:
    """Proofs for the most curved candidates; the best one comes with all that a check
    needs.
    """
    eigenvalues, dead = numbers["eigenvalues"], numbers["dead_units"]
    units = trial.depth * trial.width
    # The least curvature, leaving out the zeros due to rescaling of units and to dead
    # units.
    zeros = units - dead + dead * (eigenvalues.shape[1] // units)
    zeros = np.minimum(zeros, eigenvalues.shape[1] - 1)
    across = np.take_along_axis(eigenvalues, zeros[:, None], axis=1)[:, 0]
    # A candidate that is flat in any other direction cannot be proved.
    curved = across > trial.curvature_tolerance * eigenvalues[:, -1]
    curved &= kinds == KINDS[-1]
    order = [int(i) for i in np.argsort(-across) if curved[i]]
    proofs = []
    for index in order[: trial.certified_at_most]:
        candidate, teacher, problem = problems.member((limits, teachers, batch), index)
        try:
            proof = certify(candidate, teacher, problem)
        except NotCertifiedError:
            continue
        row = {
            **proof._asdict(),
            "problem": index // (len(kinds) // trial.problems),
            **{name: float(numbers[name][index]) for name in _OF_PROOFS},
        }
        whole = {
            "candidate": jax.tree.map(np.ndarray.tolist, candidate)._asdict(),
            "teacher": jax.tree.map(np.ndarray.tolist, teacher)._asdict(),
            "x": problem.x.tolist(),
            "input_map": problem.A.tolist(),
            "output_map": problem.B.tolist(),
        }
        proofs.append((row, whole))
    proofs.sort(key=lambda proof: -proof[0]["kink_distance"])
    return [row if place else row | whole for place, (row, whole) in enumerate(proofs)]


def linear_control(trial, rng) -> dict:
    """The same search for linear residual nets, with the same norms and starts per
    problem.
    """
    many, depth, width = trial.problems, trial.depth, trial.width_in
    x = problems.paired_inputs(rng, many, trial.pairs, width)
    teachers = model.random_layers(
        rng, np.full(many, trial.teacher_norm), depth, width, width
    )
    zero = model.Problem(x, np.zeros_like(x), *np.zeros((2, many, 0, 0)))
    scale = np.sqrt(x.shape[1])
    y = scale * np.asarray(jax.vmap(model.linear_residuals)(teachers, zero))
    norms = np.repeat(trial.start_norms, trial.starts)
    batch = problems.repeat(zero._replace(y=y), len(norms))
    start = model.random_layers(rng, np.tile(norms, many), depth, width, width)
    descends = np.tile(np.arange(len(norms)) % 2 == 0, many)
    options = {"steps": trial.steps, "tolerance": trial.gradient_tolerance}
    options["residuals"] = model.linear_residuals
    layers, numbers = critical_points.find(start, batch, descends, **options)
    # Zero weights are the identity map, so f(0) is the mean of ||y - x||^2 here.
    share = numbers["risk"] / np.mean(np.sum((batch.y - batch.x) ** 2, axis=2), axis=1)
    norm = np.linalg.norm(layers, 2, axis=(2, 3)).max(axis=1)
    inside = (numbers["gradient_norm"] <= trial.gradient_tolerance) & (
        norm < trial.radius
    )
    return {
        "risk_share": short(share),
        "max_norm": short(norm),
        "critical_inside": int(inside.sum()),
        "bad_inside": int((inside & (share > trial.optimal_share)).sum()),
    }


def verdict(settings: dict, records: list[dict]) -> tuple[dict, str]:
    """Metrics, and "counterexample" or "undecided"."""
    searches, controls = (
        where(records, measured=kind) for kind in ("search", "linear_control")
    )
    points, proofs = [], []
    for net, record in enumerate(searches):
        kinds = [record["kind_names"][kind] for kind in record["kinds"]]
        fields = "bias kind dead_units bound_coefficient risk_share"
        points += rows([{**record, "kind": kinds}], fields)
        of_net = {"net": net, "bias": record["bias"], "examples": 2 * record["pairs"]}
        proofs += [{**proof, **of_net} for proof in record["certificates"]]
    bad = [point for point in points if point["kind"] in _BAD]
    ratios = [record["least_functional_ratio"] for record in searches]
    least_ratio = min((ratio for ratio in ratios if ratio is not None), default=None)
    at_rest = [
        p for p in proofs if p["functional_gradient"] <= settings["gradient_tolerance"]
    ]
    metrics = {"starts": len(points)}
    for kind in searches[0]["kind_names"]:
        metrics[f"ended_{kind.replace(' ', '_')}"] = len(where(points, kind=kind))
    for suffix, bias in (("without_biases", False), ("with_biases", True)):
        own, own_bad, proved = (
            where(some, bias=bias) for some in (points, bad, proofs)
        )
        metrics |= {
            f"critical_inside_{suffix}": sum(p["kind"] not in _NOT_INSIDE for p in own),
            f"bad_{suffix}": len(own_bad),
            f"bad_with_a_dead_unit_{suffix}": sum(p["dead_units"] > 0 for p in own_bad),
            f"bad_at_the_risk_of_the_origin_{suffix}": sum(
                abs(p["risk_share"] - 1) <= _AT_THE_ORIGINS_RISK for p in own_bad
            ),
            f"proofs_{suffix}": len(proved),
            # Every live unit is active on all examples: the net is affine on the
            # sample.
            f"affine_proofs_{suffix}": sum(
                set(p["active_examples"]) == {p["examples"]} for p in proved
            ),
            f"distinct_proved_{suffix}": _distinct(proved),
        }
    independent = [
        p for p in points if p["bound_coefficient"] > settings["independent_from"]
    ]
    metrics |= {
        "distinct_proved_minima": _distinct(proofs),
        "worst_proved_risk_share": largest(proofs, "risk_share"),
        "independent_features_bad": sum(p["kind"] in _BAD for p in independent),
        # The gradient in the maps; it counts as 0 by the tolerance for the gradient in
        # the weights.
        "least_functional_ratio_at_bad": least_ratio,
        "least_functional_ratio_at_proofs": least(proofs, "functional_ratio"),
        "proofs_with_a_functional_gradient": len(proofs) - len(at_rest),
        "linear_starts": len(joined(controls, "risk_share")),
        "linear_critical_inside": total(controls, "critical_inside"),
        "linear_bad_inside": total(controls, "bad_inside"),
    }
    found = metrics["distinct_proved_minima"] >= settings["least_proved_minima"]
    against_proofs = metrics["linear_bad_inside"] + metrics["independent_features_bad"]
    bounded = least_ratio is None or least_ratio >= 1 - settings["rounding"]
    return metrics, under_attack(found and bounded and not (against_proofs or at_rest))


def _distinct(proofs: list[dict]) -> int:
    """A lower bound on the number of distinct minima: those whose risks are proved to
    differ.
    """
    count, above = 0, collections.defaultdict(lambda: -np.inf)
    for proof in sorted(proofs, key=lambda proof: proof["risk_above"]):
        problem = proof["net"], proof["problem"]
        if proof["risk"] > above[problem]:
            count, above[problem] = count + 1, proof["risk_above"]
    return count
