"""Momentum SGD with an L2 penalty, as TensorFlow's MomentumOptimizer writes it, and its rates."""

import itertools
import math
from collections.abc import Callable, Sequence

import jax
import optax

# What the penalty is on -> whether it is on the leaf of that name and number of dimensions.
DECAYED = {
    "convolutions": lambda name, ndim: name == "kernel" and ndim == 4,
    "kernels": lambda name, ndim: name == "kernel",
    "all": lambda name, ndim: True,
}


def learning_rate_schedule(
    *,
    schedule: str,
    learning_rate: float,
    steps: int,
    boundary_steps: Sequence[int] = (),
    decay_factor: float = 0.1,
    warmup_steps: int = 0,
) -> optax.Schedule:
    """The learning rate of each update, of optax's own schedules.

    The paper (section 4) divides 0.05 by 10 at steps 30,000 and 50,000; the other schedules and the
    warm-up are our additions.

    >>> rate = learning_rate_schedule(
    ...     schedule="step", learning_rate=0.05, steps=60_000, boundary_steps=(30_000, 50_000)
    ... )
    >>> [round(float(rate(step)), 6) for step in (0, 29_999, 30_000, 50_000)]
    [0.05, 0.05, 0.005, 0.0005]

    Args:
      schedule: "step" multiplies by `decay_factor` from each of `boundary_steps` on; "cosine" and
        "linear" fall from `learning_rate` after the warm-up to 0 after the last step, along half a
        cosine or a line; "constant" stays.
      learning_rate: the largest rate.
      steps: updates of the whole run.
      boundary_steps: ascending, after the warm-up, counted from the start of the run; those at or
        past `steps` are never reached, which is allowed so that a run can be cut short.
      warmup_steps: the first updates take 1/warmup_steps, 2/warmup_steps, ... of the rate.
    Returns:
      ``schedule(step: i32[]) -> f32[]``, where `step` counts the updates before this one.
    Raises:
      ValueError: an argument that will not do, with its value.
    """
    falling_steps = steps - warmup_steps
    schedules: dict[str, Callable[[], optax.Schedule]] = {
        # optax counts from where a joined schedule begins.
        "step": lambda: optax.piecewise_constant_schedule(
            learning_rate, {step - warmup_steps: decay_factor for step in boundary_steps}
        ),
        "cosine": lambda: optax.cosine_decay_schedule(learning_rate, falling_steps),
        "linear": lambda: optax.linear_schedule(learning_rate, 0.0, falling_steps),
        "constant": lambda: optax.constant_schedule(learning_rate),
    }
    if schedule not in schedules:
        raise ValueError(f"schedule must be one of {', '.join(schedules)}, got {schedule!r}")
    if not 0 < learning_rate < math.inf:
        raise ValueError(f"learning_rate must be above 0 and finite, got {learning_rate}")
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    if not 0 <= warmup_steps < steps:
        raise ValueError(f"warmup_steps must be from 0 to below steps={steps}, got {warmup_steps}")
    if not 0 < decay_factor <= 1:
        raise ValueError(f"decay_factor must be above 0 and at most 1, got {decay_factor}")
    ascend = all(a < b for a, b in itertools.pairwise((warmup_steps, *boundary_steps)))
    if boundary_steps and (schedule != "step" or not ascend):
        raise ValueError(
            "boundary_steps belong to the schedule 'step' and must ascend from above"
            f" warmup_steps={warmup_steps}, got {tuple(boundary_steps)} for {schedule!r}"
        )
    after = schedules[schedule]()
    if not warmup_steps:
        return after
    first = learning_rate / warmup_steps
    warmup = optax.linear_schedule(first, learning_rate, max(warmup_steps - 1, 1))
    return optax.join_schedules([warmup, after], [warmup_steps])


def momentum_sgd(
    schedule: Callable,
    *,
    momentum: float,
    nesterov: bool,
    weight_decay: float,
    decayed: str = "convolutions",
) -> optax.GradientTransformation:
    """The update ``g = gradient + weight_decay * w; v = momentum * v + g; w = w - rate * v``.

    The rate multiplies the velocity and is no part of it, so that a change of rate acts at once.
    With `nesterov` the step is along ``g + momentum * v``. The penalty, ``weight_decay/2 ||w||^2``,
    goes through the momentum (it is not decoupled).

    Args:
      schedule: ``schedule(step) -> rate``, see `learning_rate_schedule`.
      momentum: the paper's 0.9 (section 4).
      weight_decay: the paper's 1e-4, on convolution weights.
      decayed: the leaves with a penalty: "convolutions" (4-D leaves named kernel), "kernels" (all
        leaves named kernel) or "all".
    Raises:
      ValueError: an argument that will not do, with its value; when the optimizer meets parameters
        of which `decayed` names none although `weight_decay` is above 0.
    """
    for name, value in (("momentum", momentum), ("weight_decay", weight_decay)):
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be 0 or more and below 1, got {value}")
    if decayed not in DECAYED:
        raise ValueError(f"decayed must be one of {', '.join(DECAYED)}, got {decayed!r}")

    def is_decayed(params):
        mask = jax.tree_util.tree_map_with_path(
            lambda path, leaf: DECAYED[decayed](path[-1].key, leaf.ndim), params
        )
        if not any(jax.tree.leaves(mask)):
            raise ValueError(
                f"weight_decay is {weight_decay}, but decayed={decayed!r} names no parameter"
            )
        return mask

    velocity = optax.sgd(schedule, momentum, nesterov)
    if not weight_decay:
        return velocity
    return optax.chain(optax.add_decayed_weights(weight_decay, is_decayed), velocity)
