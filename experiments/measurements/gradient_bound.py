"""Attacks on eq. (2.3): exact, at random points, by search, and where it is tight."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.run.measuring import generator
from experiments.run.settings import require_between
from experiments.run.trials import Kind, grid
from identity_matters import random_matrices
from identity_matters.linear import gradient_attacks, gradient_bound, model, random_ball

# Where searches start: 0.1 <= ||Sigma|| <= 1,
# condition numbers up to 100. Any start will do.
SEARCH_DATA: dict[str, Any] = {"scale_log10": (-1.0, 0.0), "max_condition_log10": 2.0}


class ExactTrial(NamedTuple):
    """What `exact_counterexamples` reads; `experiments.gradient_bound` has the values.

    Attributes:
      form: of eq. (2.3), one of `gradient_bound.FORMS`, as in all trials.
      max_depth, max_integer: the limits of the search.
    """

    form: str
    max_depth: int
    max_integer: int


def exact_counterexamples(trial: ExactTrial, _key: jax.Array) -> dict:
    """The smallest counterexamples with d = 1, for any Sigma and for Sigma = 1.

    Both sides of eq. (2.3) are given in exact numbers, and again in float64; None where
    there is no counterexample.
    """
    return {
        "smallest": _smallest_counterexample(trial, max_sigma=trial.max_integer),
        "smallest_with_sigma_1": _smallest_counterexample(trial, max_sigma=1),
    }


def _smallest_counterexample(trial: ExactTrial, max_sigma: int) -> dict | None:
    """The first scalar point where the form fails, and both sides there in float64.

    None if there is none up to the trial's limits. Exact numbers are kept as text.
    """
    point = gradient_attacks.smallest_scalar_counterexample(
        trial.form,
        max_depth=trial.max_depth,
        max_integer=trial.max_integer,
        max_sigma=max_sigma,
    )
    if point is None:
        return None
    A = jnp.array([float(value) for value in point.a]).reshape(-1, 1, 1)
    R = jnp.full((1, 1), float(point.R))
    Sigma = jnp.full((1, 1), float(point.Sigma))
    gradient = model.risk_gradient(A, R, Sigma)
    right = gradient_bound.gradient_lower_bound(A, R, Sigma, trial.form)
    return {
        "depth": len(point.a),
        "A": [str(value) for value in point.a],
        "R": str(point.R),
        "Sigma": str(point.Sigma),
        "squared_gradient": str(point.squared_gradient),
        "right": str(point.right),
        "squared_gradient_float64": float(jnp.sum(gradient**2)),
        "right_float64": float(right),
    }


class TightTrial(NamedTuple):
    """What `tight_family` reads.

    Attributes:
      form: of eq. (2.3).
      widths, depths, taus, scales: d, l, tau and s, in every combination.
    """

    form: str
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    taus: tuple[float, ...]
    scales: tuple[float, ...]


def tight_family(trial: TightTrial, key: jax.Array) -> dict:
    """right/left at ``A_i = -tau I``, ``Sigma = s I`` and a Gaussian R.

    There is a row for each combination of width, depth, tau and s.
    """
    rng = generator(key)
    points = grid(depth=trial.depths, tau=trial.taus, scale=trial.scales)
    depths = np.array([point["depth"] for point in points])
    taus = np.array([point["tau"] for point in points])
    scales = np.array([point["scale"] for point in points])
    is_layer = np.arange(max(depths)) < depths[:, None]
    rows = []
    for width in trial.widths:
        A = -np.einsum("n,nl,ij->nlij", taus, is_layer, np.eye(width))
        R = rng.standard_normal((len(points), width, width))
        Sigma = scales[:, None, None] * np.eye(width)
        ratios = gradient_bound.right_over_left(
            A=A, R=R, Sigma=Sigma, depth=depths, form=trial.form
        )
        rows += [
            {"width": width, **point, "ratio": ratio}
            for point, ratio in zip(points, ratios.tolist(), strict=True)
        ]
    return {"rows": rows, "largest_error": max(abs(row["ratio"] - 1) for row in rows)}


class SearchTrial(NamedTuple):
    """What `search` reads.

    Attributes:
      form: of eq. (2.3).
      width, depth: d and l.
      taus: radii of the balls.
      starts: for each radius.
      steps: of projected Adam.
      learning_rate: of the first of them.
    """

    form: str
    width: int
    depth: int
    taus: tuple[float, ...]
    starts: int
    steps: int
    learning_rate: float


def search(trial: SearchTrial, key: jax.Array) -> dict:
    """The largest right/left that `worst_case` finds with ``||Sigma|| <= 1``."""
    rng = generator(key)
    radii = np.repeat(trial.taus, trial.starts)
    A = random_ball.layers(rng, "uniform", radii, trial.depth, trial.width)
    E = rng.standard_normal((len(radii), trial.width, trial.width))
    Sigma = random_matrices.second_moments(rng, len(radii), trial.width, **SEARCH_DATA)

    @jax.jit
    @jax.vmap
    def attack(A, E, Sigma, radius):
        return gradient_attacks.worst_case(
            A,
            E,
            Sigma,
            radius,
            trial.form,
            steps=trial.steps,
            learning_rate=trial.learning_rate,
        )

    worst_A, worst_R, worst_Sigma = attack(A, E, Sigma, radii)
    ratios = gradient_bound.right_over_left(
        A=np.asarray(worst_A),
        R=np.asarray(worst_R),
        Sigma=np.asarray(worst_Sigma),
        depth=np.full(len(radii), trial.depth),
        form=trial.form,
    )
    ratios_by_tau = ratios.reshape(len(trial.taus), -1)
    return {
        "largest_ratios": ratios_by_tau.max(axis=1).tolist(),
        "predicted_ratios": [
            largest_ratio(trial.form, trial.depth, tau) for tau in trial.taus
        ],
    }


def largest_ratio(form: str, depth: int, tau: float) -> float:
    """Supremum of right/left for ``||Sigma|| <= 1``, attained at ``A_i = -tau I``."""
    corrected = gradient_bound.gradient_bound_corrected(
        depth, tau, sigma=1.0, excess=1.0
    )
    return float(gradient_bound.BOUNDS[form](depth, tau, 1.0, 1.0) / corrected)


class RandomTrial(NamedTuple):
    """What `random_points` reads.

    Attributes:
      form: of eq. (2.3).
      width: d.
      min_depth, max_depth: l is uniform between them.
      max_tau: points are drawn in balls of smaller radii.
      data: how R and Sigma are drawn; see `random_ball.points`.
      batches_per_sampler: how many each of `random_ball.SAMPLERS` draws.
      batch_points: points of a batch.
      relative_tolerance: how much right may exceed left before the form fails.
      histogram_log10: the range of log10(right / (left (1 + relative_tolerance))).
      histogram_bins: how many there are.
    """

    form: str
    width: int
    min_depth: int
    max_depth: int
    max_tau: float
    data: dict
    batches_per_sampler: int
    batch_points: int
    relative_tolerance: float
    histogram_log10: tuple[float, float]
    histogram_bins: int


def random_points(trial: RandomTrial, key: jax.Array) -> dict:
    """How often ``right > left (1 + relative_tolerance)`` at random points."""
    rng = generator(key)
    ratios_of_batches = []
    for sampler in random_ball.SAMPLERS:
        for _ in range(trial.batches_per_sampler):
            points = random_ball.points(
                rng,
                sampler,
                count=trial.batch_points,
                width=trial.width,
                depths=(trial.min_depth, trial.max_depth),
                max_tau=trial.max_tau,
                **trial.data,
            )
            ratios = gradient_bound.right_over_left(
                A=points.A,
                R=points.R,
                Sigma=points.Sigma,
                depth=points.depth,
                form=trial.form,
            )
            ratios_of_batches.append(ratios)
    ratios = np.concatenate(ratios_of_batches)
    largest_allowed = 1 + trial.relative_tolerance
    # Every point above 0 has failed.
    excess_log10 = np.log10(ratios) - np.log10(largest_allowed)
    counts, _ = np.histogram(
        np.clip(excess_log10, *trial.histogram_log10),
        bins=trial.histogram_bins,
        range=trial.histogram_log10,
    )
    return {
        "points": len(ratios),
        "failures": int(np.sum(ratios > largest_allowed)),
        "largest_ratio": float(ratios.max()),
        "histogram_counts": counts.tolist(),
    }


_KINDS = {
    "exact": Kind(ExactTrial, exact_counterexamples),
    "tight": Kind(TightTrial, tight_family),
    "search": Kind(SearchTrial, search),
    "random": Kind(RandomTrial, random_points),
    "singular": Kind(RandomTrial, random_points),
}
MEASURES = {name: kind.measure for name, kind in _KINDS.items()}


def build(*, kind: str, **settings) -> tuple:
    """The trial of this kind, which has the settings that its measurement reads.

    Raises:
      ValueError: a setting cannot be used.
    """
    if "taus" in settings:
        require_between(0, 1, **{f"{kind}.taus": settings["taus"]})
    kind_of_trial = _KINDS[kind]
    if kind_of_trial.trial_type is RandomTrial:
        settings["data"] = _checked_data(kind, settings)
    return kind_of_trial.make_trial(settings)


def _checked_data(kind: str, settings: dict) -> dict:
    """The settings of random data, once they have been used.

    Raises ValueError if they, or others of random points, are out of range.
    """
    require_between(0, 1, max_tau=settings["max_tau"])
    data = {
        "scale_log10": settings["sigma_norm_log10"],
        "max_condition_log10": settings["max_condition_log10"],
        "singular": kind == "singular",
    }
    rng = np.random.default_rng(0)
    # Raises if one of `data` is out of range.
    random_matrices.second_moments(rng, 1, settings["width"], **data)
    bounds = settings["histogram_log10"]
    if len(bounds) != 2 or bounds[0] >= bounds[1]:
        raise ValueError(f"{kind}.histogram_log10 must be (low, high), got {bounds}")
    return data
