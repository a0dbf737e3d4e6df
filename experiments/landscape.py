"""Theorem 2.2: inside B_tau, tau < 1, every critical point of a linear residual net is
optimal.

Command: python -m experiments.landscape --config=:critical_points
Hardware and time: one CPU core; 3 s for critical_points, 1 s for hessian_at_origin and
2 s for negative_determinant, and up to 16 s more the first time, for compiling.

* critical_points: Levenberg-Marquardt, which finds saddles as readily as minima, solves
  grad f = 0 to ``||grad f|| <= 1e-11`` from random starts inside and outside the ball.
  Expected: about 700 such points with ``|||A||| <= 0.99``, all of them optimal, and as
  many that are not optimal, at norm 1 and beyond. Closer to the wall, say at norm
  0.9998, eq. (2.3) allows any excess at so small a gradient, and searches that approach
  a degenerate point do stop there.
* hessian_at_origin: at zero weights a standard net has gradient 0 from two layers on
  and a Hessian that is exactly 0 from three layers on (Kawaguchi 2016). A residual net
  has gradient ``2 (I - R) Sigma`` in every layer; Sigma is positive definite here, so
  it is 0 only if R = I.
* negative_determinant: with det R < 0 the ball holds no critical point at all. The
  least gradient found over B_tau stays above ``gradient_bound.squared_gradient_floor``,
  and for d = 1 reaches it.

Verdict: holds for all three. They are proved in docs/theory/gradient_bound.md; the
searches are attacks that could expose an error in the proof or the code.
"""

import jax.numpy as jnp
import numpy as np

from experiments import run
from experiments.run import shared
from identity_matters import random_matrices
from identity_matters.linear import critical_points, gradient_bound, model

_COMMON = {
    "max_condition_log10": 1.0,  # largest log10 of the condition number of Sigma
    "widths": (1, 2, 3),  # d
    "depths": (1, 2, 3),  # l
}
_SETTINGS = {
    "critical_points": {
        "depths": (1, 2, 3, 4),
        "target_sizes": (0.2, 0.6, 1.2),  # of R = exp(size * Gaussian / sqrt(d))
        "start_taus": (0.1, 0.5, 0.9, 0.99),  # norms of the starts inside the ball
        "outside_norms": (1.5, 3.0),  # norms of the starts outside, for contrast
        # per target size and norm, each with its own data; or per problem and ball
        "starts": 8,
        "steps": 100,  # most Levenberg-Marquardt steps, or updates of projected Adam
        "gradient_tolerance": 1e-11,  # critical means ||grad f||_F is at most this
        "wall_margin": 0.01,  # inside means |||A||| <= 1 - wall_margin
        # optimal means (f - C) / ||R Sigma^{1/2}||^2 is at most this
        "excess_tolerance": 1e-9,
        "least_inside": 100,  # number of critical points inside that the verdict needs
    },
    "hessian_at_origin": {
        "widths": (2,),
        "depths": (1, 2, 3, 4, 5, 6),
        "target_sizes": (0.0, 0.6),  # 0 gives R = I
    },
    "negative_determinant": {
        "taus": (0.1, 0.3, 0.5, 0.7, 0.9, 0.99),  # radii of the balls
        # pairs of R and Sigma for each width and depth, the same in every ball
        "problems": 4,
        "starts": 5,
        "steps": 300,
        "learning_rate": 0.05,  # of the first update; decays to 0
        "relative_tolerance": 1e-9,  # rounding alone costs about 2 l eps / (1 - tau)
    },
}
VARIANTS = tuple(_SETTINGS)
get_config = shared.configs(_SETTINGS, _COMMON)


def trials(*, variant: str, **settings) -> list[dict]:
    """One trial for each width and depth."""
    if variant == "critical_points":
        settings["start_norms"] = (
            *settings.pop("start_taus"),
            *settings.pop("outside_norms"),
        )
    if variant != "hessian_at_origin":
        # Zero layers are added up to this depth, so that all depths share one
        # compilation.
        settings["max_depth"] = max(settings["depths"])
    return shared.each(settings, {"widths": "width", "depths": "depth"}, kind=variant)


def build(**trial) -> dict:
    """The trial, with the ranges of its random data; ValueError for unusable
    settings.
    """
    # ||Sigma|| = 1 loses nothing: the scale of the data only rescales f.
    condition = trial["max_condition_log10"]
    data = {"scale_log10": (0.0, 0.0), "max_condition_log10": condition}
    random_matrices.second_moments(np.random.default_rng(0), 1, trial["width"], **data)
    shared.require_between(0, 1, taus=trial.get("taus", 0.5))
    sizes = trial.get("target_sizes", (0.0,))
    if not sizes or min(sizes) < 0 or max(sizes) > 100:  # exp of it must be finite
        raise ValueError(f"target_sizes must be from 0 to 100, got {sizes}")
    return {**trial, "data": data}


def from_many_starts(trial, rng) -> dict:
    """Where `critical_points.find_critical_points` ends from random starts of given
    |||A|||.
    """
    width, depth = trial.width, trial.depth
    repeated = np.repeat(trial.target_sizes, trial.starts)
    sizes, start_norm = map(np.ravel, np.meshgrid(repeated, trial.start_norms))
    A = random_matrices.layers(rng, "boundary", np.full(len(sizes), 0.5), depth, width)
    A *= (2 * start_norm)[:, None, None, None]
    R = random_matrices.exponential_targets(rng, sizes, width)
    Sigma = random_matrices.second_moments(rng, len(sizes), width, **trial.data)
    # The last start is A_i = -I, the zero map, where the search must stay unless depth
    # is 1.
    A = np.concatenate([A, -np.eye(width) * np.ones((1, depth, 1, 1))])
    R, Sigma = (np.concatenate([values, values[-1:]]) for values in (R, Sigma))
    A = np.pad(A, ((0, 0), (0, trial.max_depth - depth), (0, 0), (0, 0)))
    options = {"steps": trial.steps, "gradient_tolerance": trial.gradient_tolerance}
    found = critical_points.find_critical_points(A, R, Sigma, depth, **options)
    relative = np.asarray(found["excess"]) / np.einsum("nij,njk,nik->n", R, Sigma, R)
    return {
        "started_at_norms": [*start_norm.tolist(), 1.0],
        "norms": (
            random_matrices.spectral_norms(np.asarray(found["A"])).max(axis=1).tolist()
        ),
        "relative_excess": relative.tolist(),
        "gradient_norms": found["gradient_norm"].tolist(),
    }


def at_origin(trial, rng) -> dict:
    """Gradient and Hessian of the standard and of the residual net at zero weights."""
    width, depth, sizes = trial.width, trial.depth, trial.target_sizes
    R = random_matrices.exponential_targets(rng, sizes, width)
    Sigma = random_matrices.second_moments(rng, len(sizes), width, **trial.data)
    zero = np.zeros((depth, width, width))
    nets = []
    for size, target, second_moment in zip(sizes, R, Sigma, strict=True):
        # The standard net at W_i = 0 is the residual net at A_i = W_i - I = -I.
        for net, A in (("standard", zero - np.eye(width)), ("residual", zero)):
            excess, gradient = model.excess_risk_and_gradient(A, target, second_moment)
            hessian = critical_points.risk_hessian(A, target, second_moment)
            row = {
                "net": net,
                "target_size": float(size),
                "gradient_norm": float(jnp.linalg.norm(gradient)),
                "largest_hessian_entry": float(jnp.abs(hessian).max()),
                "hessian_eigenvalues": np.linalg.eigvalsh(np.asarray(hessian)).tolist(),
                "excess": float(excess),
            }
            nets.append(row)
    return {"nets": nets}


def negative_determinant(trial, rng) -> dict:
    """The least ||grad f||_F found over B_tau for targets with det R < 0, against its
    floor.
    """
    width, depth, taus = trial.width, trial.depth, trial.taus
    problems, starts = trial.problems, trial.starts
    tau = np.tile(np.repeat(taus, starts), problems)
    R = random_matrices.exponential_targets(rng, np.ones(problems), width)
    # Flipping the sign of one output makes the determinant negative and keeps the
    # singular values.
    R[:, 0] *= -1
    Sigma = random_matrices.second_moments(rng, problems, width, **trial.data)
    A = random_matrices.layers(rng, "uniform", tau, depth, width)
    A = np.pad(A, ((0, 0), (0, trial.max_depth - depth), (0, 0), (0, 0)))
    problem = np.repeat(np.arange(problems), len(taus) * starts)
    start = A, R[problem], Sigma[problem], tau, depth
    options = {"steps": trial.steps, "learning_rate": trial.learning_rate}
    best, gradient_norm = critical_points.least_gradients(*start, **options)
    least = np.asarray(gradient_norm).reshape(problems, len(taus), starts).min(axis=2)
    floor_of = gradient_bound.squared_gradient_floor
    pairs = zip(R, Sigma, strict=True)
    floor = np.sqrt(
        [[floor_of(*data, depth, radius) for radius in taus] for data in pairs]
    )
    norms = random_matrices.spectral_norms(np.asarray(best)).max(axis=1)
    return {
        "least_gradient_norms": least.tolist(),
        "floors": floor.tolist(),
        "least_over_floor": float((least / floor).min()),
        "largest_over_floor": float((least / floor).max()),
        "largest_norm_over_tau": float((norms / tau).max()),
    }


def _critical_points(settings: dict, records: list[dict]) -> tuple[dict, str]:
    # The last point of each trial is A_i = -I.
    names = ("norms", "relative_excess", "gradient_norms")
    found = [{name: record[name][:-1] for name in names} for record in records]
    at_minus_identity = [r["gradient_norms"][-1] for r in records if r["depth"] >= 2]
    norm, excess = (
        shared.joined(found, "norms"),
        shared.joined(found, "relative_excess"),
    )
    critical = shared.joined(found, "gradient_norms") <= settings["gradient_tolerance"]
    inside = norm <= 1 - settings["wall_margin"]
    bad = critical & (excess > settings["excess_tolerance"])
    metrics = {
        "starts": len(norm),
        "critical_points": int(critical.sum()),
        "largest_norm_called_inside": 1 - settings["wall_margin"],
        "critical_points_inside": int((critical & inside).sum()),
        "critical_points_inside_not_optimal": int((bad & inside).sum()),
        "critical_points_not_optimal": int(bad.sum()),
        "least_norm_of_critical_points_not_optimal": min(
            norm[bad].tolist(), default=None
        ),
        "minus_identity_largest_gradient_norm": max(at_minus_identity, default=0.0),
    }
    enough = metrics["critical_points_inside"] >= settings["least_inside"]
    stayed = metrics["minus_identity_largest_gradient_norm"] == 0
    refuted = metrics["critical_points_inside_not_optimal"] > 0
    return metrics, shared.under_attack(refuted, enough and stayed)


def _hessian(settings: dict, records: list[dict]) -> tuple[dict, str]:
    rows = [
        {**net, "depth": record["depth"]}
        for record in records
        for net in record["nets"]
    ]
    standard, residual = (
        shared.where(rows, net=net) for net in ("standard", "residual")
    )
    elsewhere = [row for row in residual if row["target_size"] > 0]
    at_identity = shared.where(residual, target_size=0)
    from_2, from_3 = (
        [row for row in standard if row["depth"] >= layers] for layers in (2, 3)
    )
    claimed_to_be_0 = {
        "standard_largest_gradient_norm_from_2_layers": (from_2, "gradient_norm"),
        "standard_largest_hessian_entry_from_3_layers": (
            from_3,
            "largest_hessian_entry",
        ),
        "residual_largest_gradient_norm_at_identity_target": (
            at_identity,
            "gradient_norm",
        ),
    }
    zeros = {
        name: shared.largest(*where, 0.0) for name, where in claimed_to_be_0.items()
    }
    others = {
        "standard_least_excess": shared.least(standard, "excess"),
        "residual_least_gradient_norm": shared.least(elsewhere, "gradient_norm"),
    }
    attacked = bool(from_3 and elsewhere)
    refuted = any(zeros.values()) or not all(others.values())
    return zeros | others, shared.under_attack(attacked and refuted, attacked)


def _negative_determinant(settings: dict, records: list[dict]) -> tuple[dict, str]:
    balls = sum(len(record["taus"]) * record["problems"] for record in records)
    scalar = shared.where(records, width=1)
    metrics = {
        "balls": balls,
        "starts": balls * settings["starts"],
        "least_gradient_over_floor": shared.least(records, "least_over_floor"),
        "largest_gradient_over_floor_width_1": shared.largest(
            scalar, "largest_over_floor"
        ),
        "least_gradient_norm": float(
            shared.joined(records, "least_gradient_norms").min()
        ),
        "largest_norm_over_tau": shared.largest(records, "largest_norm_over_tau"),
    }
    inside = metrics["largest_norm_over_tau"] <= 1 + settings["relative_tolerance"]
    below = metrics["least_gradient_over_floor"] < 1 - settings["relative_tolerance"]
    return metrics, shared.under_attack(inside and below, inside)


MEASURES = {
    "critical_points": from_many_starts,
    "hessian_at_origin": at_origin,
    "negative_determinant": negative_determinant,
}
VERDICTS = {
    "critical_points": ("theorem-2-2", _critical_points),
    "hessian_at_origin": ("origin", _hessian),
    "negative_determinant": ("negative-determinant", _negative_determinant),
}
_ANY_SIGN = ("max_condition_log10", "target_sizes")
EXPERIMENT = run.Experiment("landscape", trials, MEASURES, VERDICTS, build, _ANY_SIGN)

if __name__ == "__main__":
    run.main(EXPERIMENT)
