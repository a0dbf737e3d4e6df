"""Images whose class is where they are bright, a net, and its training on them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from identity_matters import train

CLASSES = 3
SHAPE = (6, 6, 1)


class Own(nn.Module):
    """A module that is not of this package, with batch norm and dropout."""

    widths: tuple | list = (16,)
    normalized: bool = True

    @nn.compact
    def __call__(self, x, train):
        x = x.reshape(len(x), -1)
        x = nn.BatchNorm(use_running_average=not train)(x) if self.normalized else x
        for width in self.widths:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(CLASSES)(nn.Dropout(0.1, deterministic=not train)(x))


def made(examples, seed=0):
    """(images u8[n, h, w, c], labels): the class of an image is where it is bright."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, examples)
    x = rng.integers(0, 60, (examples, *SHAPE), np.uint8)
    for label in range(CLASSES):
        x[y == label, 2 * label : 2 * label + 2] += 90
    return x, y


X, Y = made(120)
NEW, NEW_Y = made(37, seed=1)


def start_of(net, x=X):
    return net.init(jax.random.key(0), jnp.zeros((1, *x.shape[1:])), train=False)


def trained_on(
    x=X, y=Y, x_test=NEW, y_test=NEW_Y, net=None, variables=None, **settings
):
    net = net or Own()
    variables = variables or start_of(net, np.asarray(x))
    common = {"steps": 3, "learning_rate": 0.1, "batch_examples": 40, "verbose": False}
    return train.train(net, variables, x, y, x_test, y_test, **{**common, **settings})
