"""Momentum SGD with an L2 penalty, as TensorFlow's MomentumOptimizer writes it."""

from collections.abc import Callable

import jax
import optax

# What the penalty is on -> whether it is on the leaf of that name and number of dimensions.
DECAYED = {
    "convolutions": lambda name, ndim: name == "kernel" and ndim == 4,
    "kernels": lambda name, ndim: name == "kernel",
    "all": lambda name, ndim: True,
}


def make_optimizer(
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
      schedule: ``schedule(step) -> rate``, see `schedule`.
      momentum: the paper's 0.9 (section 4).
      weight_decay: the paper's 1e-4, on convolution weights.
      decayed: the leaves with a penalty: "convolutions" (4-D leaves named kernel), "kernels" (all
        leaves named kernel) or "all".
    Raises:
      ValueError: an argument that will not do, with its value; when the optimizer meets parameters
        of which `decayed` names none although `weight_decay` is above 0.
    """
    if not 0 <= momentum < 1:
        raise ValueError(f"momentum must be 0 or more and below 1, got {momentum}")
    if not 0 <= weight_decay < 1:
        raise ValueError(f"weight_decay must be 0 or more and below 1, got {weight_decay}")
    if decayed not in DECAYED:
        raise ValueError(f"decayed must be one of {', '.join(DECAYED)}, got {decayed!r}")

    def is_decayed(params):
        mask = jax.tree_util.tree_map_with_path(
            lambda path, leaf: DECAYED[decayed](_name(path), leaf.ndim), params
        )
        if not any(jax.tree.leaves(mask)):
            raise ValueError(
                f"weight_decay is {weight_decay}, but decayed={decayed!r} names no parameter"
            )
        return mask

    penalty = optax.add_decayed_weights(weight_decay, is_decayed) if weight_decay else None
    velocity = optax.trace(decay=momentum, nesterov=nesterov)
    descent = optax.scale_by_learning_rate(schedule)
    return optax.chain(*([penalty] if penalty else []), velocity, descent)


def _name(path) -> str:
    """The last key of a tree path: "kernel" of ['stem']['kernel']."""
    return jax.tree_util.keystr(path[-1:], simple=True) if path else ""
