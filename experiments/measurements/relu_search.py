"""Searches for bad critical points of ReLU residual nets, and proofs of minima."""

import jax
import numpy as np

from experiments.relu_search import BAD, KINDS
from experiments.run.measuring import generator
from identity_matters.relu import (
    critical_points,
    feature_bound,
    model,
    origin,
    problems,
)
from identity_matters.relu.certificate import NotCertifiedError, certify

_DIGITS = 6  # significant digits that `short` keeps


def short(values) -> list:
    """Numbers that only figures and counts use, rounded to `_DIGITS` digits."""
    return [float(f"{value:.{_DIGITS}g}") for value in np.asarray(values, np.float64)]


def search(trial, key) -> dict:
    """Where the searches end, by kind, and certificates of bad local minima."""
    rng = generator(key)
    sample, teachers = problems.realizable(rng, trial.problems, trial.setting)
    norms = np.repeat(trial.start_norms, trial.starts)
    descends = _every_other(len(norms), trial.problems)
    depth, width, lifted_width = trial.shape
    blocks = model.random_blocks(
        rng, np.tile(norms, trial.problems), depth, width, lifted_width, trial.bias
    )
    batch, teachers = problems.repeat((sample, teachers), len(norms))
    limits, numbers = critical_points.find(
        blocks,
        batch,
        descends,
        steps=trial.steps,
        tolerance=trial.gradient_tolerance,
    )
    numbers = {**numbers, **_numbers_of(limits, batch)}
    numbers = {name: np.asarray(value) for name, value in numbers.items()}
    numbers["risk_share"] = numbers["risk"] / origin.risk_at_origin(batch)
    kinds = classify(trial, numbers)
    ratios_at_bad = numbers["functional_ratio"][np.isin(kinds, BAD)]
    return {
        "kinds": [KINDS.index(kind) for kind in kinds],
        "kind_names": list(KINDS),
        "descends": descends.tolist(),
        "dead_units": numbers["dead_units"].tolist(),
        "least_functional_ratio": (
            float(ratios_at_bad.min()) if len(ratios_at_bad) else None
        ),
        "certificates": _certificates(trial, kinds, numbers, limits, teachers, batch),
        "gradient_norm": short(numbers["gradient_norm"]),
        "risk_share": short(numbers["risk_share"]),
        "max_norm": short(numbers["max_norm"]),
        "bound_coefficient": short(numbers["bound_coefficient"]),
    }


def _every_other(starts: int, problem_count: int) -> np.ndarray:
    """Which starts first descend on f: the first of each problem, the third, ..."""
    return np.tile(np.arange(starts) % 2 == 0, problem_count)


def _numbers_of(limits: model.Blocks, batch: model.Problem) -> dict:
    """What is measured at the limits, besides what the solver returns."""
    right, left = jax.vmap(feature_bound.functional_bound)(limits, batch)
    # At a bad point no bound is 0.
    ratios = left / np.maximum(right, np.finfo(float).tiny)
    return {
        **critical_points.kink_margins(limits, batch),
        "bound_coefficient": jax.vmap(feature_bound.coefficient)(limits, batch),
        "functional_gradient": np.sqrt(np.sum(left, axis=1)),
        "functional_ratio": np.min(ratios, axis=1),  # the least over the blocks
        "max_norm": model.max_norm(limits),
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
    """Proofs for the most curved candidates, the one farthest from a kink first.

    That one comes with all that a check needs.
    """
    proofs = []
    for index in _most_curved(trial, kinds, numbers)[: trial.certified_at_most]:
        candidate, teacher, problem = problems.member((limits, teachers, batch), index)
        try:
            proof = certify(candidate, teacher, problem)
        except NotCertifiedError:
            continue
        summary = {
            **proof._asdict(),
            "problem": index // (len(kinds) // trial.problems),
            "risk_share": float(numbers["risk_share"][index]),
            "functional_gradient": float(numbers["functional_gradient"][index]),
            "functional_ratio": float(numbers["functional_ratio"][index]),
        }
        proofs.append((summary, _all_of(candidate, teacher, problem)))
    proofs.sort(key=lambda proof: -proof[0]["kink_distance"])
    certificates = [summary for summary, _ in proofs]
    if proofs:
        summary, everything = proofs[0]
        certificates[0] = {**summary, **everything}
    return certificates


def _most_curved(trial, kinds, numbers) -> list[int]:
    """Candidates for a proof, most curved first.

    The curvature is the least one, leaving out the zeros due to rescaling of units and
    to dead units. A candidate that is flat in any other direction cannot be proved.
    """
    eigenvalues = numbers["eigenvalues"]
    dead = numbers["dead_units"]
    units = trial.depth * trial.width
    zeros = units - dead + dead * (eigenvalues.shape[1] // units)
    zeros = np.minimum(zeros, eigenvalues.shape[1] - 1)
    curvature = np.take_along_axis(eigenvalues, zeros[:, None], axis=1)[:, 0]
    is_curved = curvature > trial.curvature_tolerance * eigenvalues[:, -1]
    is_candidate = is_curved & (kinds == KINDS[-1])
    return [int(index) for index in np.argsort(-curvature) if is_candidate[index]]


def _all_of(
    candidate: model.Blocks, teacher: model.Blocks, problem: model.Problem
) -> dict:
    """All numbers of a candidate and its problem, as lists."""
    return {
        "candidate": jax.tree.map(np.ndarray.tolist, candidate)._asdict(),
        "teacher": jax.tree.map(np.ndarray.tolist, teacher)._asdict(),
        "x": problem.x.tolist(),
        "input_map": problem.A.tolist(),
        "output_map": problem.B.tolist(),
    }


def linear_control(trial, key) -> dict:
    """The same search for linear residual nets, with as many starts per problem."""
    rng = generator(key)
    zero, y = _linear_problems(trial, rng)
    norms = np.repeat(trial.start_norms, trial.starts)
    batch = problems.repeat(zero._replace(y=y), len(norms))
    start = model.random_layers(
        rng,
        np.tile(norms, trial.problems),
        trial.depth,
        trial.width_in,
        trial.width_in,
    )
    layers, numbers = critical_points.find(
        start,
        batch,
        _every_other(len(norms), trial.problems),
        steps=trial.steps,
        tolerance=trial.gradient_tolerance,
        residuals=model.linear_residuals,
    )
    # Zero weights are the identity map, so f(0) is the mean of ||y - x||^2 here.
    share = numbers["risk"] / np.mean(np.sum((batch.y - batch.x) ** 2, axis=2), axis=1)
    norm = np.linalg.norm(layers, 2, axis=(2, 3)).max(axis=1)
    is_critical = numbers["gradient_norm"] <= trial.gradient_tolerance
    inside = is_critical & (norm < trial.radius)
    return {
        "risk_share": short(share),
        "max_norm": short(norm),
        "critical_inside": int(inside.sum()),
        "bad_inside": int((inside & (share > trial.optimal_share)).sum()),
    }


def _linear_problems(trial, rng) -> tuple[model.Problem, np.ndarray]:
    """Problems with labels 0, and the labels of random linear teachers."""
    count = trial.problems
    width = trial.width_in
    x = problems.paired_inputs(rng, count, trial.pairs, width)
    teachers = model.random_layers(
        rng, np.full(count, trial.teacher_norm), trial.depth, width, width
    )
    no_map = np.zeros((count, 0, 0))
    zero = model.Problem(x, np.zeros_like(x), no_map, no_map)
    scale = np.sqrt(x.shape[1])
    y = scale * np.asarray(jax.vmap(model.linear_residuals)(teachers, zero))
    return zero, y
