"""For contrast: a network of the same shape, trained by gradient descent."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from identity_matters.memorize import network


def random_network(key, n, features, num_classes, width) -> network.Network:
    """A float32 network of the shape that `memorize` builds, at the usual scale.

    `key` is a typed key, `features` is d, `num_classes` r and `width` k.
    """
    k, r, blocks = width, num_classes, -(-n // width)
    shapes = (
        (k, features),
        (blocks, k, k),
        (blocks, k),
        (blocks, k, k),
        (r, k),
        (r,),
        (r, r),
    )
    # V is N(0, 1/(k l)), so that the l blocks together change h by about its own size.
    variances = (1 / k, 1 / k, 0, 1 / (k * blocks), 1 / k, 0, 1 / r)
    draws = [
        jax.random.normal(key, shape, jnp.float32) * np.float32(variance) ** 0.5
        for key, shape, variance in zip(
            jax.random.split(key, 7), shapes, variances, strict=True
        )
    ]
    return network.Network(*draws)


def train(
    start,
    x,
    y,
    *,
    key,
    learning_rate,
    momentum,
    batch_examples,
    steps,
    steps_per_evaluation,
):
    """SGD with momentum on the cross-entropy; batches are drawn with replacement.

    x: f[n, d]; y: integer[n]. Returns {"step", "loss", "errors"} for each evaluation:
    the mean loss since the last one, and the number of wrong labels, n if the mean loss
    is not finite.
    """
    x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32)
    state, curve = (start, optax.sgd(learning_rate, momentum).init(start)), []
    for last in range(steps_per_evaluation, steps + 1, steps_per_evaluation):
        shape = steps_per_evaluation, batch_examples
        rows = jax.random.randint(jax.random.fold_in(key, last), shape, 0, len(x))
        state, losses = _run_steps(state, x, y, rows, learning_rate, momentum)
        wrong = jnp.argmax(network.forward(state[0], x), axis=1) != y
        mean = float(losses.mean())
        errors = int(wrong.sum()) if np.isfinite(mean) else len(x)
        curve.append({"step": last, "loss": mean, "errors": errors})
    return curve


@jax.jit  # with the rates as arguments, one program serves all of them
def _run_steps(state, x, y, batches, learning_rate, momentum):
    optimizer = optax.sgd(learning_rate, momentum)

    def loss(weights, rows):
        # A_0 x as one product: the weights of the map are trained, and have all their
        # bits.
        logits = network.outputs(weights, network.matmul(weights.input_map, x[rows].T))
        return optax.softmax_cross_entropy_with_integer_labels(logits, y[rows]).mean()

    def step(state, rows):
        weights, velocity = state
        value, gradient = jax.value_and_grad(loss)(weights, rows)
        updates, velocity = optimizer.update(gradient, velocity)
        return (optax.apply_updates(weights, updates), velocity), value

    return jax.lax.scan(step, state, batches)
