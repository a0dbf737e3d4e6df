"""For contrast: a network of the same shape, trained by gradient descent."""

from typing import Any, NamedTuple, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpy.typing import ArrayLike

from identity_matters.checks import label_array
from identity_matters.memorize import gaussian, network


class Evaluation(TypedDict):
    """A point of the training curve.

    Keys:
      step: after so many steps.
      loss: the mean loss since the evaluation before.
      errors: the number of wrong labels, n if that loss is not finite.
    """

    step: int
    loss: float
    errors: int


class _Gaussian(NamedTuple):
    """A random array: its shape, and the variance of its entries."""

    shape: tuple[int, ...]
    variance: float


def random_network(
    key: jax.Array, n: int, features: int, num_classes: int, width: int
) -> network.Network:
    """A float32 network of the shape that `memorize` builds, at the usual scale.

    Args:
      key: typed PRNG key.
      n: the number of points, which sets the number of blocks, l = ceil(n / k).
      features: d.
      num_classes: r.
      width: k.
    """
    k = width
    r = num_classes
    num_blocks = -(-n // width)
    # Each part is drawn from a key of its own; the keys are dealt out in this order.
    parts = {
        "input_map": _Gaussian((k, features), 1 / k),
        "U": _Gaussian((num_blocks, k, k), 1 / k),
        "s": _Gaussian((num_blocks, k), 0),
        # The l blocks together change h by about its own size.
        "V": _Gaussian((num_blocks, k, k), 1 / (k * num_blocks)),
        "output_U": _Gaussian((r, k), 1 / k),
        "output_s": _Gaussian((r,), 0),
        "output_V": _Gaussian((r, r), 1 / r),
    }
    keys = jax.random.split(key, len(parts))
    arrays = {}
    for part_key, (name, part) in zip(keys, parts.items(), strict=True):
        deviation = np.float32(part.variance) ** 0.5
        numbers = gaussian.normal(part_key, part.shape, np.float32)
        arrays[name] = jnp.asarray(numbers * deviation)
    return network.Network(**arrays)


def train(
    start: network.Network,
    x: ArrayLike,
    y: ArrayLike,
    *,
    key: jax.Array,
    learning_rate: float,
    momentum: float,
    batch_examples: int,
    steps: int,
    steps_per_evaluation: int,
) -> list[Evaluation]:
    """SGD with momentum on the cross-entropy; batches are drawn with replacement.

    Args:
      start: the first weights.
      x: f[n, d].
      y: integer[n].
      key: typed PRNG key for the batches.
      learning_rate, momentum: of optax.sgd.
      batch_examples: of a step.
      steps: of the training; no step is taken after the last evaluation.
      steps_per_evaluation: steps from one evaluation to the next.
    Returns:
      The curve, an entry for each evaluation.
    Raises:
      ValueError: y is not one integer for each row of x.
    """
    x = jnp.asarray(x, jnp.float32)
    y = jnp.asarray(label_array("y", y, len(x)), jnp.int32)
    state = start, optax.sgd(learning_rate, momentum).init(start)
    curve: list[Evaluation] = []
    for step in range(steps_per_evaluation, steps + 1, steps_per_evaluation):
        batches = jax.random.randint(
            jax.random.fold_in(key, step),
            shape=(steps_per_evaluation, batch_examples),
            minval=0,
            maxval=len(x),
        )
        state, losses = _run_steps(
            state, x, y, batches, learning_rate=learning_rate, momentum=momentum
        )
        weights, _ = state
        wrong = jnp.argmax(network.forward(weights, x), axis=1) != y
        mean_loss = float(losses.mean())
        errors = int(wrong.sum()) if np.isfinite(mean_loss) else len(x)
        curve.append({"step": step, "loss": mean_loss, "errors": errors})
    return curve


@jax.jit  # with the rates as arguments, one program serves all of them
def _run_steps(
    state: tuple[network.Network, Any],
    x: jax.Array,
    y: jax.Array,
    batches: jax.Array,
    learning_rate: float,
    momentum: float,
) -> tuple[tuple[network.Network, Any], jax.Array]:
    """A step for each row of indices, i[steps, batch]: (weights, velocity), losses."""
    optimizer = optax.sgd(learning_rate, momentum)

    def loss(weights, rows):
        # A_0 x as one product:
        # the weights of the map are trained, and have all their bits.
        h = network.matmul(weights.input_map, x[rows].T)
        logits = network.outputs(weights, h)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y[rows]).mean()

    def step(state, rows):
        weights, velocity = state
        value, gradient = jax.value_and_grad(loss)(weights, rows)
        updates, velocity = optimizer.update(gradient, velocity)
        return (optax.apply_updates(weights, updates), velocity), value

    return jax.lax.scan(step, state, batches)
