"""Searches for bad critical points of ReLU residual nets, and proofs of minima."""

from typing import NamedTuple

import jax
import numpy as np

from experiments.measurements.relu_nets import random_blocks, rounded
from experiments.relu_search import BAD, KINDS, NO_NEGATIVE_CURVATURE
from experiments.run.measuring import generator
from identity_matters.relu import (
    critical_points,
    feature_bound,
    model,
    origin,
    problems,
)
from identity_matters.relu.certificate import NotCertifiedError, certify
from identity_matters.relu.problems import Setting


class SearchTrial(NamedTuple):
    """What `search` reads; `experiments.relu_search` has the values.

    Attributes:
      setting: how problems and their teachers are drawn; `depth`, `lifted_width` and
        `bias` of the nets are those of the teachers.
      width: units of each block, k.
      problems: how many are drawn.
      start_norms: of the starts.
      starts: for each problem and norm; every other one first descends on f.
      steps: most steps of each Levenberg-Marquardt solve.
      certified_at_most: most candidates for a proof.

    What `classify` reads, besides the width and the depth:
      gradient_tolerance: ||grad f|| up to which a limit counts as critical.
      radius: of the ball.
      optimal_share: f / f(0) up to which a limit counts as optimal.
      zero_unit_tolerance: length up to which a unit counts as zero.
      kink_tolerance: angle up to which a limit counts as being at a kink.
      curvature_tolerance: share of the largest Hessian eigenvalue that counts as 0.
    """

    setting: Setting
    width: int
    problems: int
    start_norms: list[float]
    starts: int
    steps: int
    certified_at_most: int
    gradient_tolerance: float
    radius: float
    optimal_share: float
    zero_unit_tolerance: float
    kink_tolerance: float
    curvature_tolerance: float

    @property
    def units(self) -> int:
        """Of a net: l k."""
        return self.setting.depth * self.width


class _Limits(NamedTuple):
    """Where the searches of one trial end, and the problems that they are for.

    The leading axis of every array is that of the searches, problem by problem.

    Attributes:
      points: the weights at the limits.
      teachers: a net of risk 0 for each.
      batch: the problem of each.
      numbers: what was measured at each, by name.
      kinds: one of `KINDS` for each.
    """

    points: model.Blocks
    teachers: model.Blocks
    batch: model.Problem
    numbers: dict[str, np.ndarray]
    kinds: np.ndarray


class _Proof(NamedTuple):
    """A proof that a bad local minimum lies near one of the limits.

    Attributes:
      summary: the bounds of `Certificate`, and what was measured at the limit.
      evidence: all that a check of the proof needs: the net, its teacher, its problem.
    """

    summary: dict
    evidence: dict


def search(trial: SearchTrial, key: jax.Array) -> dict:
    """Where the searches end, by kind, and certificates of bad local minima.

    Except for the certificates, lists have an entry for each search.
    """
    rng = generator(key)
    sample, teachers = problems.realizable(rng, trial.problems, trial.setting)
    norms = np.repeat(trial.start_norms, trial.starts)
    descends = _every_other(len(norms), trial.problems)
    blocks = random_blocks(
        rng, np.tile(norms, trial.problems), trial.setting, trial.width
    )
    batch, teachers = problems.repeat((sample, teachers), len(norms))
    points, measured = critical_points.find(
        blocks,
        batch,
        descends,
        steps=trial.steps,
        tolerance=trial.gradient_tolerance,
    )
    numbers = _numbers_at(points, batch, measured)
    kinds = classify(trial, numbers)
    limits = _Limits(points, teachers, batch, numbers, kinds)
    ratios_at_bad = numbers["functional_ratio"][np.isin(kinds, BAD)]
    return {
        "kinds": [KINDS.index(kind) for kind in kinds],
        "kind_names": list(KINDS),
        "descends": descends.tolist(),
        "dead_units": numbers["dead_units"].tolist(),
        "least_functional_ratio": (
            float(ratios_at_bad.min()) if len(ratios_at_bad) else None
        ),
        "certificates": _certificates(trial, limits),
        "gradient_norm": rounded(numbers["gradient_norm"]),
        "risk_share": rounded(numbers["risk_share"]),
        "max_norm": rounded(numbers["max_norm"]),
        "bound_coefficient": rounded(numbers["bound_coefficient"]),
    }


def _every_other(starts: int, problem_count: int) -> np.ndarray:
    """Which starts first descend on f: the first of each problem, the third, ..."""
    return np.tile(np.arange(starts) % 2 == 0, problem_count)


def _numbers_at(points: model.Blocks, batch: model.Problem, measured: dict) -> dict:
    """All that is measured at the limits, by name: arrays, an entry for each limit.

    Args:
      points: the limits.
      batch: the problem of each.
      measured: by `critical_points.find`, at each of them.
    """
    right, left = jax.vmap(feature_bound.functional_bound)(points, batch)
    # At a bad point no bound is 0.
    ratios = left / np.maximum(right, np.finfo(float).tiny)
    numbers = {
        **measured,
        **critical_points.kink_margins(points, batch),
        "risk_share": measured["risk"] / origin.risk_at_origin(batch),
        "bound_coefficient": jax.vmap(feature_bound.coefficient)(points, batch),
        "functional_gradient": np.sqrt(np.sum(left, axis=1)),
        "functional_ratio": np.min(ratios, axis=1),  # the least over the blocks
        "max_norm": model.max_norm(points),
    }
    return {name: np.asarray(value) for name, value in numbers.items()}


def classify(trial: SearchTrial, numbers: dict[str, np.ndarray]) -> np.ndarray:
    """One of `KINDS` for each limit, from the arrays that `search` collects.

    Where several conditions hold, the kind that comes first in `KINDS` counts.
    """
    eigenvalues = numbers["eigenvalues"]
    least_counted_as_0 = -trial.curvature_tolerance * eigenvalues[:, -1]
    conditions = {
        # A gradient that is NaN is not small, nor is a point inside whose norm is.
        "not critical": ~(numbers["gradient_norm"] <= trial.gradient_tolerance),
        "outside": ~(numbers["max_norm"] < trial.radius),
        "optimal": numbers["risk_share"] <= trial.optimal_share,
        "all dead": numbers["dead_units"] == trial.units,
        "zero unit": numbers["shortest_unit"] <= trial.zero_unit_tolerance,
        "at a kink": numbers["kink_margin"] <= trial.kink_tolerance,
        "saddle": eigenvalues[:, 0] < least_counted_as_0,
    }
    kinds = [kind for kind in KINDS if kind != NO_NEGATIVE_CURVATURE]
    return np.select(
        [conditions[kind] for kind in kinds], kinds, default=NO_NEGATIVE_CURVATURE
    )


def _certificates(trial: SearchTrial, limits: _Limits) -> list[dict]:
    """Proofs for the most curved candidates, the one farthest from a kink first.

    That one comes with all that a check needs.
    """
    candidates = _most_curved(trial, limits)[: trial.certified_at_most]
    attempts = [_prove_one(trial, limits, index) for index in candidates]
    proofs = sorted(
        [proof for proof in attempts if proof is not None],
        key=lambda proof: proof.summary["kink_distance"],
        reverse=True,
    )
    certificates = [proof.summary for proof in proofs]
    if proofs:
        certificates[0] = {**proofs[0].summary, **proofs[0].evidence}
    return certificates


def _prove_one(trial: SearchTrial, limits: _Limits, index: int) -> _Proof | None:
    """The proof for one of the limits, or None where an inequality of it fails."""
    candidate, teacher, problem = problems.member(
        (limits.points, limits.teachers, limits.batch), index
    )
    try:
        certificate = certify(candidate, teacher, problem)
    except NotCertifiedError:
        return None
    searches_per_problem = len(limits.kinds) // trial.problems
    summary = {
        **certificate._asdict(),
        "problem": index // searches_per_problem,
        "risk_share": float(limits.numbers["risk_share"][index]),
        "functional_gradient": float(limits.numbers["functional_gradient"][index]),
        "functional_ratio": float(limits.numbers["functional_ratio"][index]),
    }
    return _Proof(summary, evidence=_evidence(candidate, teacher, problem))


def _most_curved(trial: SearchTrial, limits: _Limits) -> list[int]:
    """Which limits are candidates for a proof, most curved first.

    The curvature is the least one, leaving out the zeros due to rescaling of units and
    to dead units. A candidate that is flat in any other direction cannot be proved.
    """
    eigenvalues = limits.numbers["eigenvalues"]
    dead = limits.numbers["dead_units"]
    weights_per_unit = eigenvalues.shape[1] // trial.units
    zeros = trial.units - dead + dead * weights_per_unit
    zeros = np.minimum(zeros, eigenvalues.shape[1] - 1)
    curvature = np.take_along_axis(eigenvalues, zeros[:, None], axis=1)[:, 0]
    is_curved = curvature > trial.curvature_tolerance * eigenvalues[:, -1]
    is_candidate = is_curved & (limits.kinds == NO_NEGATIVE_CURVATURE)
    return [int(index) for index in np.argsort(-curvature) if is_candidate[index]]


def _evidence(
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


class ControlTrial(NamedTuple):
    """What `linear_control` reads; see `SearchTrial` for the fields of the same names.

    Attributes:
      width_in: d of the linear nets.
      depth: their layers, l.
      pairs: inputs x of a problem; it also has their negatives, so n is twice this.
      teacher_norm: of the linear nets that give the labels.
    """

    width_in: int
    depth: int
    pairs: int
    teacher_norm: float
    problems: int
    start_norms: list[float]
    starts: int
    steps: int
    gradient_tolerance: float
    radius: float
    optimal_share: float


def linear_control(trial: ControlTrial, key: jax.Array) -> dict:
    """The same search for linear residual nets, with as many starts per problem."""
    rng = generator(key)
    norms = np.repeat(trial.start_norms, trial.starts)
    batch = problems.repeat(_linear_problems(trial, rng), len(norms))
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
        "risk_share": rounded(share),
        "max_norm": rounded(norm),
        "critical_inside": int(inside.sum()),
        "bad_inside": int((inside & (share > trial.optimal_share)).sum()),
    }


def _linear_problems(trial: ControlTrial, rng: np.random.Generator) -> model.Problem:
    """Problems with the labels of random linear teachers, without maps, stacked."""
    count = trial.problems
    width = trial.width_in
    x = problems.paired_inputs(rng, count, trial.pairs, width)
    teachers = model.random_layers(
        rng, np.full(count, trial.teacher_norm), trial.depth, width, width
    )
    y = np.asarray(jax.vmap(model.linear_outputs)(teachers, x))
    no_map = np.zeros((count, 0, 0))
    return model.Problem(x=x, y=y, A=no_map, B=no_map)
