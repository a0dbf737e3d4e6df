"""Checks of eq. (2.3) in one of its forms: random, adversarial, on the tight family, under scaling.

Each check takes plain settings and a NumPy generator and returns JSON-able measurements.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters.linear import bound_search, landscape, risk, sampling

# The quantiles of log10(right/left) that are recorded.
QUANTILES = (0.01, 0.1, 0.5, 0.9, 0.99)
# Where the adversarial search starts: 0.1 <= ||Sigma|| <= 1 and condition numbers up to 100. Any
# feasible start will do.
_SEARCH_DATA = sampling.DataRange((-1.0, 0.0), 2.0)


def _ratios(form: str, points: sampling.Points) -> np.ndarray:
    return landscape.right_over_left(points.A, points.R, points.Sigma, points.depth, form)


def random_points(
    rng: np.random.Generator,
    *,
    form: str,
    width: int,
    min_depth: int,
    max_depth: int,
    max_tau: float,
    data: sampling.DataRange,
    batch_points: int,
    batches_per_sampler: int,
    relative_tolerance: float,
    histogram_log10: tuple[float, float],
    histogram_bins: int,
) -> dict:
    """How often ``right > left (1 + relative_tolerance)`` at random points of every sampler.

    The histogram of log10(right/left) covers `histogram_log10`; its end bins take what lies beyond.
    The tolerance is subtracted first, so that what lies right of 0 has failed.
    """
    batches = []
    for sampler in sampling.SAMPLERS:
        for _ in range(batches_per_sampler):
            points = sampling.sample_points(
                rng, sampler, batch_points, width, (min_depth, max_depth), max_tau, data
            )
            signs = np.linalg.slogdet(points.R)[0]
            batches.append((points.depth, _ratios(form, points), signs))
    depth, ratios, signs = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    failed = ratios > 1 + relative_tolerance
    by_sampler = failed.reshape(len(sampling.SAMPLERS), -1).sum(axis=1)
    log10_ratios = np.log10(ratios)
    counts, _ = np.histogram(
        np.clip(log10_ratios - np.log10(1 + relative_tolerance), *histogram_log10),
        bins=histogram_bins,
        range=histogram_log10,
    )
    return {
        "points": len(ratios),
        "negative_determinants": int(np.sum(signs < 0)),
        "failures": int(failed.sum()),
        "failures_by_sampler": dict(zip(sampling.SAMPLERS, by_sampler.tolist(), strict=True)),
        "failures_by_depth": {
            str(value): int(failed[depth == value].sum())
            for value in range(min_depth, max_depth + 1)
        },
        "largest_ratio": float(ratios.max()),
        "histogram_counts": counts.tolist(),
        "quantiles_log10": {str(q): float(np.quantile(log10_ratios, q)) for q in QUANTILES},
    }


def adversarial(
    rng: np.random.Generator,
    *,
    form: str,
    width: int,
    depth: int,
    taus: tuple[float, ...],
    starts: int,
    steps: int,
    learning_rate: float,
) -> dict:
    """The largest right/left that `bound_search.worst_case` finds with ``||Sigma|| <= 1``.

    "predicted_ratios" are the suprema that the corrected form implies. The printed ratios grow in
    proportion to Sigma, so a point fails from ``||Sigma|| / ratio`` on: the least of these is
    "least_failing_sigma_norm" (None for the corrected form, which does not change with Sigma).
    """
    radii = np.repeat(np.asarray(taus), starts)
    A = sampling.sample_layers(rng, "uniform", radii, depth, width)
    E = rng.standard_normal((len(radii), width, width))
    Sigma = sampling.sample_second_moments(rng, len(radii), width, _SEARCH_DATA)

    @jax.jit
    @jax.vmap
    def attack(layers, error, second_moment, tau):
        return bound_search.worst_case(
            layers, error, second_moment, tau, form, steps=steps, learning_rate=learning_rate
        )

    A, R, Sigma = (np.asarray(value) for value in attack(A, E, Sigma, radii))
    worst = sampling.Points(A, R, Sigma, np.full(len(radii), depth), radii)
    ratios = _ratios(form, worst)
    thresholds = landscape.spectral_norms(Sigma) / ratios
    by_tau = ratios.reshape(len(taus), starts)
    return {
        "largest_ratios": by_tau.max(axis=1).tolist(),
        "median_ratios": np.median(by_tau, axis=1).tolist(),
        "predicted_ratios": [largest_ratio(form, depth, tau) for tau in taus],
        "least_failing_sigma_norm": None if form == "corrected" else float(thresholds.min()),
    }


def largest_ratio(form: str, depth: int, tau: float) -> float:
    """The supremum of right/left over B_tau and ``||Sigma|| <= 1``, attained at ``A_i = -tau I``.

    Corrected: 1. iclr2017: ``(1-tau)^{-(l-1)}``. v3: 1, so that it needs ``||Sigma|| > 1`` to fail.
    """
    corrected = landscape.gradient_bound_corrected(depth, tau, 1.0, 1.0)
    return float(landscape.bound_function(form)(depth, tau, 1.0, 1.0) / corrected)


def tight_family(
    rng: np.random.Generator,
    *,
    form: str,
    widths: tuple[int, ...],
    depths: tuple[int, ...],
    taus: tuple[float, ...],
    scales: tuple[float, ...],
) -> dict:
    """right/left at ``A_i = -tau I``, ``Sigma = s I`` and a Gaussian R, for all combinations."""
    rows = []
    for width in widths:
        grid = [(d, t, s) for d in depths for t in taus for s in scales]
        A = np.zeros((len(grid), max(depths), width, width))
        for point, (layers, radius, _) in enumerate(grid):
            A[point, :layers] = landscape.minus_tau_identity(layers, width, radius)
        depth, tau, scale = (np.array(values) for values in zip(*grid, strict=True))
        R = rng.standard_normal((len(grid), width, width))
        Sigma = scale[:, None, None] * np.eye(width)
        ratios = _ratios(form, sampling.Points(A, R, Sigma, depth, tau))
        rows += [
            {"width": width, "depth": d, "tau": t, "scale": s, "ratio": float(ratio)}
            for (d, t, s), ratio in zip(grid, ratios, strict=True)
        ]
    return {"rows": rows, "largest_error": max(abs(row["ratio"] - 1) for row in rows)}


def scaled_data(
    rng: np.random.Generator,
    *,
    form: str,
    width: int,
    max_depth: int,
    points: int,
    max_tau: float,
    data: sampling.DataRange,
    scales_log10: tuple[float, ...],
    relative_tolerance: float,
) -> dict:
    """Share of the same random points that fail once Sigma is replaced by s Sigma, for each s.

    The slopes are those of log10(right/left) over log10 s between the first and the last s, over
    the points: 1 for the printed forms, 0 for the corrected one.
    """
    drawn = sampling.sample_points(rng, "uniform", points, width, (1, max_depth), max_tau, data)
    ratios = np.stack(
        [
            _ratios(form, dataclasses.replace(drawn, Sigma=10.0**exponent * drawn.Sigma))
            for exponent in scales_log10
        ]
    )
    rise = np.log10(ratios[-1] / ratios[0]) / (scales_log10[-1] - scales_log10[0])
    return {
        "failing_fractions": np.mean(ratios > 1 + relative_tolerance, axis=1).tolist(),
        "least_slope": float(rise.min()),
        "largest_slope": float(rise.max()),
    }


def exact_counterexamples(*, form: str, max_depth: int, max_integer: int) -> dict:
    """The smallest counterexamples with d = 1: of any Sigma, and with Sigma = 1."""
    largest_sigma = {"smallest": max_integer, "smallest_with_sigma_1": 1}
    return {
        name: _describe(
            bound_search.smallest_scalar_counterexample(
                form, max_depth=max_depth, max_integer=max_integer, max_sigma=max_sigma
            ),
            form,
        )
        for name, max_sigma in largest_sigma.items()
    }


def _describe(point: bound_search.ScalarPoint | None, form: str) -> dict | None:
    """The point in exact numbers, and both sides once more in float64 by the general code."""
    if point is None:
        return None
    A = jnp.array([float(value) for value in point.a]).reshape(-1, 1, 1)
    R, Sigma = (jnp.full((1, 1), float(value)) for value in (point.R, point.Sigma))
    excess, gradient = risk.excess_risk_and_gradient(A, R, Sigma)
    return {
        "depth": len(point.a),
        "A": [str(value) for value in point.a],
        "R": str(point.R),
        "Sigma": str(point.Sigma),
        "squared_gradient": str(point.squared_gradient),
        "right": str(point.right),
        "squared_gradient_float64": float(jnp.sum(gradient**2)),
        "right_float64": float(landscape.gradient_lower_bound(A, Sigma, excess, form)),
    }
