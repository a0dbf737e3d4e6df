"""Checks of Theorem 2.2: critical points from many starts, Hessians at the origin, det R < 0.

Each check takes plain settings and a NumPy generator and returns JSON-able measurements.
"""

import jax.numpy as jnp
import numpy as np
import scipy.linalg

from identity_matters.linear import critical_points, landscape, risk, sampling


def random_targets(rng: np.random.Generator, sizes: np.ndarray, width: int) -> np.ndarray:
    """``R = exp(size * Gaussian / sqrt(d))``: det R > 0; f64[n] -> f64[n, width, width]."""
    gaussian = rng.standard_normal((len(sizes), width, width)) / np.sqrt(width)
    return scipy.linalg.expm(sizes[:, None, None] * gaussian)


def _second_moments(rng, count: int, width: int, max_condition_log10: float) -> np.ndarray:
    """Random Sigma with ||Sigma|| = 1: the scale of the data only rescales f."""
    data = sampling.DataRange((0.0, 0.0), max_condition_log10)
    return sampling.sample_second_moments(rng, count, width, data)


def _padded(A: np.ndarray, max_depth: int) -> np.ndarray:
    """A, f64[n, depth, d, d], with zero layers up to f64[n, max_depth, d, d]."""
    return np.pad(A, ((0, 0), (0, max_depth - A.shape[1]), (0, 0), (0, 0)))


def _risk_of_zero_map(R, Sigma) -> np.ndarray:
    """``||R Sigma^{1/2}||_F^2``, the excess risk of the map 0, as the unit of excess risks."""
    return np.einsum("nij,njk,nik->n", R, Sigma, R)


def from_many_starts(
    rng: np.random.Generator,
    *,
    width: int,
    depth: int,
    max_depth: int,
    target_sizes: tuple[float, ...],
    start_norms: tuple[float, ...],
    starts: int,
    steps: int,
    gradient_tolerance: float,
    max_condition_log10: float,
) -> dict:
    """Where `critical_points.find_critical_points` ends from random starts of given |||A|||.

    `starts` of them for every combination of target size and norm, each with its own R and Sigma.
    Arrays are padded to `max_depth` layers, so that all depths share one compilation.

    Returns:
      Lists over the starts, and as their last entry ``A_i = -I``, where the search must stay
      unless depth is 1: "started_at_norms", "norms" (|||A||| at the end), "relative_excess" (f - C
      over the risk of the map 0), "gradient_norms"; and "largest_right_over_left", of corrected
      eq. (2.3) over the starts inside the ball.
    """
    norms = np.asarray(start_norms)
    shape = (len(target_sizes), len(norms), starts)
    start_norm = np.broadcast_to(norms[None, :, None], shape).ravel()
    sizes = np.broadcast_to(np.asarray(target_sizes)[:, None, None], shape).ravel()
    half = np.full(len(start_norm), 0.5)
    A = sampling.sample_layers(rng, "boundary", half, depth, width)
    A *= (2 * start_norm)[:, None, None, None]
    R = random_targets(rng, sizes, width)
    Sigma = _second_moments(rng, len(sizes), width, max_condition_log10)
    # The last point is no start but the critical point A_i = -I itself (for depth 1 the map 0).
    A = np.concatenate([A, -np.eye(width) * np.ones((1, depth, 1, 1))])
    R, Sigma = (np.concatenate([values, values[-1:]]) for values in (R, Sigma))
    A = _padded(A, max_depth)
    found = critical_points.find_critical_points(
        A, R, Sigma, depth, steps=steps, gradient_tolerance=gradient_tolerance
    )
    found = {name: np.asarray(value) for name, value in found.items()}
    final_norm = landscape.spectral_norms(found["A"]).max(axis=1)
    relative = found["excess"] / _risk_of_zero_map(R, Sigma)
    start_ratios = landscape.right_over_left(A, R, Sigma, np.full(len(A), depth), "corrected")
    return {
        "started_at_norms": [*start_norm.tolist(), 1.0],
        "norms": final_norm.tolist(),
        "relative_excess": relative.tolist(),
        "gradient_norms": found["gradient_norm"].tolist(),
        "largest_right_over_left": float(start_ratios[:-1][start_norm < 1].max()),
    }


def at_origin(
    rng: np.random.Generator,
    *,
    width: int,
    depth: int,
    target_sizes: tuple[float, ...],
    max_condition_log10: float,
) -> dict:
    """Gradient and Hessian at zero weights, of the standard and of the residual net."""
    sizes = np.asarray(target_sizes)
    R = random_targets(rng, sizes, width)
    Sigma = _second_moments(rng, len(sizes), width, max_condition_log10)
    nets = []
    for size, target, second_moment in zip(sizes, R, Sigma, strict=True):
        # The standard net at W_i = 0 is the residual net at A_i = W_i - I = -I.
        for net, A in (
            ("standard", -np.eye(width) * np.ones((depth, 1, 1))),
            ("residual", np.zeros((depth, width, width))),
        ):
            excess, gradient = risk.excess_risk_and_gradient(A, target, second_moment)
            hessian = critical_points.risk_hessian(A, target, second_moment)
            nets.append(
                {
                    "net": net,
                    "target_size": float(size),
                    "gradient_norm": float(jnp.linalg.norm(gradient)),
                    "largest_hessian_entry": float(jnp.abs(hessian).max()),
                    "hessian_eigenvalues": np.linalg.eigvalsh(np.asarray(hessian)).tolist(),
                    "excess": float(excess),
                }
            )
    return {"nets": nets}


def negative_determinant(
    rng: np.random.Generator,
    *,
    width: int,
    depth: int,
    max_depth: int,
    taus: tuple[float, ...],
    problems: int,
    starts: int,
    steps: int,
    learning_rate: float,
    max_condition_log10: float,
) -> dict:
    """The least ||grad f||_F found over B_tau for targets with det R < 0, against its floor.

    `problems` random pairs of R and Sigma, the same for every tau; for each of them and every tau
    `starts` runs of `critical_points.least_gradients`.

    Returns:
      "least_gradient_norms" and "floors", lists [problem][tau]; "least_over_floor", the least of
      their ratios; "largest_norm_over_tau", which tells that the searches stayed in their balls.
    """
    shape = (problems, len(taus), starts)
    tau = np.broadcast_to(np.asarray(taus)[None, :, None], shape).ravel()
    R = random_targets(rng, np.ones(problems), width)
    # Turning one output round makes the determinant negative and keeps the singular values.
    R[:, 0] *= -1
    Sigma = _second_moments(rng, problems, width, max_condition_log10)
    A = sampling.sample_layers(rng, "uniform", tau, depth, width)
    problem = np.repeat(np.arange(problems), len(taus) * starts)
    best, gradient_norm = critical_points.least_gradients(
        _padded(A, max_depth),
        R[problem],
        Sigma[problem],
        tau,
        depth,
        steps=steps,
        learning_rate=learning_rate,
    )
    least = np.asarray(gradient_norm).reshape(shape).min(axis=2)
    floor = np.sqrt(
        [
            [landscape.squared_gradient_floor(R[k], Sigma[k], depth, radius) for radius in taus]
            for k in range(problems)
        ]
    )
    norms = landscape.spectral_norms(np.asarray(best)).max(axis=1)
    return {
        "least_gradient_norms": least.tolist(),
        "floors": floor.tolist(),
        "least_over_floor": float((least / floor).min()),
        "largest_over_floor": float((least / floor).max()),
        "largest_norm_over_tau": float((norms / tau).max()),
    }
