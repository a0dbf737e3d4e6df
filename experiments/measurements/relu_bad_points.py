"""Critical points that are not optimal: zero weights (N1, N2), dead nets (N6 to N8)."""

from typing import NamedTuple

import jax
import numpy as np

from experiments.measurements.relu_nets import gaussian_blocks, random_blocks
from experiments.run.measuring import generator
from identity_matters.relu import critical_points, model, origin, problems
from identity_matters.relu.problems import Setting

LAWS = ("gaussian", "no bias", "s >= 0")


# At zero weights


class OriginTrial(NamedTuple):
    """What `at_origin` reads.

    Attributes:
      setting: how problems and their teachers are drawn.
      width: k of the nets.
      problems: how many are drawn.
      escape_starts: starts of the power iteration for a problem's steepest descent.
      step_size: of the difference quotients.
    """

    setting: Setting
    width: int
    problems: int
    escape_starts: int
    step_size: float


def at_origin(trial: OriginTrial, key: jax.Array) -> dict:
    """Gradient, second-order form and steepest descent at zero weights (N1, N2).

    Lists have an entry for each problem.
    """
    rng = generator(key)
    sample, _ = problems.realizable(rng, trial.problems, trial.setting)
    others = random_blocks(rng, np.ones(trial.problems), trial.setting, trial.width)
    steepest, curvatures = _steepest_descents(trial, rng, sample)
    zeros = jax.tree.map(np.zeros_like, others)
    risks, gradients = jax.vmap(model.risk_and_gradient)(zeros, sample)
    risks = np.asarray(risks)
    step = trial.step_size
    changes_along_steepest = _changes_along(steepest, sample, risks, step)
    changes_along_others = _changes_along(others, sample, risks, step)
    forms = [
        origin.second_order_form(*problems.member((others, sample), index))
        for index in range(trial.problems)
    ]
    return {
        "risk": risks.tolist(),
        "largest_gradient_entry": float(
            max(abs(part).max() for part in jax.tree.leaves(gradients))
        ),
        "largest_autodiff_hessian_entry": origin.largest_autodiff_hessian_entry(
            *problems.member((zeros, sample), 0)
        ),
        "escape_curvature": curvatures,
        "measured_curvature": (-changes_along_steepest).tolist(),
        "form_error": np.abs(changes_along_others - forms).tolist(),
    }


def _changes_along(
    directions: model.Blocks, sample: model.Problem, risks: np.ndarray, step: float
) -> np.ndarray:
    """``(f(step theta) - f(0)) / step^2`` for each problem, f64[problems].

    Args:
      directions: a theta for each problem.
      sample: the problems.
      risks: f(0), f64[problems].
      step: of the difference quotients.
    """
    nets = jax.tree.map(lambda part: step * part, directions)
    moved, _ = jax.vmap(model.risk_and_gradient)(nets, sample)
    return (np.asarray(moved) - risks) / step**2


def _steepest_descents(
    trial: OriginTrial, rng: np.random.Generator, sample: model.Problem
) -> tuple[model.Blocks, list[float]]:
    """Each problem's direction of steepest second-order descent, and its curvature."""
    directions = []
    curvatures = []
    for index in range(trial.problems):
        problem = problems.member(sample, index)
        curvature, w = origin.escape_curvature(
            problem, trial.setting.bias, rng, trial.escape_starts
        )
        direction = origin.escape_direction(
            w, problem, trial.setting.depth, trial.width
        )
        directions.append(direction)
        curvatures.append(curvature)
    return jax.tree.map(lambda *parts: np.stack(parts), *directions), curvatures


# Dead nets


class DeadTrial(NamedTuple):
    """What `dead` reads. Its nets read and write d = `width_in` coordinates.

    Attributes:
      depth, width: l and k of the nets.
      width_in: d, which is 1 or 2.
      law: of the biases, one of `LAWS`.
      samples: how many nets are drawn.
      scale_of_weights: their standard deviation.
      circle_points: examples for d = 2.
    """

    depth: int
    width: int
    width_in: int
    law: str
    samples: int
    scale_of_weights: float
    circle_points: int


def check_dead(*, law: str, width_in: int, **_) -> None:
    """ValueError for an unknown law of the biases, or d above 2."""
    if law not in LAWS:
        raise ValueError(f"laws must be among {LAWS}, got {law!r}")
    if width_in > 2:
        raise ValueError(f"d of nets must be 1 or 2, got {width_in}")


def dead(trial: DeadTrial, key: jax.Array) -> dict:
    """How many random nets are strictly dead, and bounds on the expected share."""
    rng = generator(key)
    x = _points_on_sphere(trial)
    problem = problems.plain_problem(x, rng.standard_normal(x.shape))
    blocks = gaussian_blocks(
        rng,
        trial.scale_of_weights,
        count=trial.samples,
        depth=trial.depth,
        width=trial.width,
        d=trial.width_in,
    )
    least_share = 0.0
    largest_share = 0.0
    match trial.law:
        case "no bias":
            blocks = blocks._replace(s=None)
        case "s >= 0":
            blocks = blocks._replace(s=np.abs(np.asarray(blocks.s)))
        case _:
            least_share, largest_share = _dead_shares(trial)
    is_dead = np.asarray(critical_points.strictly_dead(blocks, problem))
    return {
        "dead": int(is_dead.sum()),
        "least_expected_share": least_share,
        "largest_expected_share": largest_share,
    }


def _points_on_sphere(trial: DeadTrial) -> np.ndarray:
    """-1 and 1 for d = 1, evenly spaced points on the circle for d = 2: f64[n, d]."""
    if trial.width_in == 1:
        return np.array([[1.0], [-1.0]])
    angle = 2 * np.pi * np.arange(trial.circle_points) / trial.circle_points
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _dead_shares(trial: DeadTrial) -> tuple[float, float]:
    """Bounds on the share of Gaussian nets that are strictly dead: p^(l k) (N7).

    p, the share of dead units, is known for data that fill a ball. The ball around the
    examples and the ball inside their hull bound it. For d = 1 the two are the same.
    """
    d = trial.width_in
    inner_radius = 1.0 if d == 1 else float(np.cos(np.pi / trial.circle_points))
    units = trial.depth * trial.width
    least_share = critical_points.dead_share_on_ball(d, 1.0) ** units
    largest_share = critical_points.dead_share_on_ball(d, inner_radius) ** units
    return least_share, largest_share
