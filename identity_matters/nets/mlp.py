"""Multilayer perceptrons with and without the identity, of up to thousands of layers.

    h_1 = c x + W_1 x,
    h_j = c h_{j-1} + W_j phi(h_{j-1})    for j = 2 ... l - 1,
    logits = W_l phi(h_{l-1}).

* ``l``: the depth, the number of matrices; there are no biases.
* ``phi``: ReLU, or the identity map, which gives the linear net of the paper's
  section 2.
* ``c``: 1 with the identity, else 0; the first layer has this term only if its matrix
  is square.

The last matrix starts with standard deviation 1/m for m inputs, so that outputs are
small next to labels, and a first one that is not square with 1/sqrt(m). The others have
one of INITIALIZATIONS:

* ``near_zero``: entries of variance ``(initial_scale / (l sqrt(width)))^2``. Their
  spectral norm is about ``2 initial_scale / l``, the order of the optimum in Theorem
  2.1.
* ``standard``: entries of variance ``g^2 / width``, where g is `initial_scale` for
  linear nets and ``sqrt(2) initial_scale`` for ReLU (He et al. 2015, arXiv 1502.01852).
* ``orthogonal``: ``g Q``, Q uniformly random orthogonal (Saxe et al. 2013, arXiv
  1312.6120).

The middle layers are one stack, scanned by `lax.scan`, so 1200 layers compile as fast
as three. c and the slope of phi below zero are in "fixed", so nets of one size share a
compiled program.
"""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from identity_matters import scaling
from identity_matters.array_types import Array
from identity_matters.nets import base, initializers, layers

ACTIVATIONS = {"relu": 0.0, "linear": 1.0}  # the slope of phi below zero
INITIALIZATIONS = ("near_zero", "standard", "orthogonal")
# The share of a symmetric input's mean square that phi keeps.
_KEPT_SQUARE = {"relu": 0.5, "linear": 1.0}
LEAST_DEPTH = 2


class Mlp(base.Net):
    """The net above, for images of any shape, which it flattens."""

    num_classes: int
    depth: int  # l, at least 2
    width: int  # of every hidden layer
    identity: bool = True  # whether square layers add the identity
    activation: str = "relu"  # phi, "relu" or "linear"
    initialization: str = "near_zero"  # of the square layers, one of INITIALIZATIONS
    initial_scale: float = 1.0  # a factor on their initial matrices
    # of all layers but the last, which is computed in float32
    compute_dtype: str = "float32"

    def __post_init__(self):
        super().__post_init__()
        base.check(
            self,
            counts={"depth": LEAST_DEPTH, "width": 1},
            scales=("initial_scale",),
            switches=("identity",),
            choices={"activation": ACTIVATIONS, "initialization": INITIALIZATIONS},
        )

    @nn.compact
    def __call__(self, x, *, train: bool, keys=None):
        x = x.reshape(len(x), -1)
        params = {}
        for name, shape in self._kernel_shapes(x.shape[1]).items():
            params[name] = _Kernel(shape, self._kernel_init(name, shape), name=name)()
        fixed = {
            "identity": _FixedNumber(float(self.identity), name="identity")(),
            "slope": _FixedNumber(ACTIVATIONS[self.activation], name="slope")(),
        }
        variables = {"params": params, "fixed": fixed}
        logits, sizes = forward(variables, x, self.compute_dtype)
        return logits, sizes["ratio"]

    @nn.nowrap
    def _kernel_shapes(self, input_dimension: int) -> dict[str, tuple[int, ...]]:
        """The shapes of the first matrix, of the stack of hidden ones, of the last."""
        return {
            "first": (input_dimension, self.width),
            "hidden": (self.depth - 2, self.width, self.width),
            "last": (self.width, self.num_classes),
        }

    @nn.nowrap
    def _kernel_init(self, name: str, shape: tuple[int, ...]) -> Callable:
        """How the matrices `name` of this shape start; see the module."""
        root = math.sqrt(shape[-2])
        if name == "last":
            return initializers.normal(lambda _: 1 / root**2)
        if not is_square(shape):
            return initializers.normal(lambda _: 1 / root)
        if self.initialization == "near_zero":
            deviation = self.initial_scale / (self.depth * root)
            return initializers.normal(lambda _: deviation)
        gain = self.initial_scale / math.sqrt(_KEPT_SQUARE[self.activation])
        if self.initialization == "standard":
            return initializers.normal(lambda _: gain / root)
        return initializers.orthogonal(gain)


class _Kernel(nn.Module):
    """A trained kernel. Returns the part {"kernel": f32[...]} of "params"."""

    shape: tuple[int, ...]
    kernel_init: Callable

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        return {"kernel": self.param("kernel", self.kernel_init, self.shape)}


class _FixedNumber(nn.Module):
    """A number that is not trained. Returns the part {"scale": f32[1]} of "fixed"."""

    number: float

    @nn.compact
    def __call__(self) -> dict[str, jax.Array]:
        init = initializers.constant(self.number)
        scale = self.variable("fixed", "scale", init, None, (1,))
        return {"scale": scale.value}


def forward(
    variables: dict, x: Array, compute_dtype: str = "float32"
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The net with the variables of an `Mlp`, and the size of its signal.

    Args:
      variables: "params" and "fixed".
      x: f32[n, d].
      compute_dtype: of all layers but the last.
    Returns:
      The logits, f32[n, num_classes], and a dict: ``||h_j||`` as "norm", f32[depth - 1,
      n]; ``||W_j phi(h_{j-1})|| / ||h_{j-1}||`` as "ratio", f32[square layers, n];
      h_{l-1} as "last_hidden", f32[n, width].
    Raises:
      ValueError: x does not fit the first kernel.
    """
    params = variables["params"]
    first = params["first"]["kernel"]
    hidden = params["hidden"]["kernel"]
    last = params["last"]["kernel"]
    if x.ndim != 2 or x.shape[1] != len(first):
        raise ValueError(
            f"x must be [n, {len(first)}] for these weights, got {[*x.shape]}"
        )
    c = variables["fixed"]["identity"]["scale"][None]
    slope = variables["fixed"]["slope"]["scale"][None]

    def phi(h):
        return jnp.where(h > 0, h, slope.astype(h.dtype) * h)

    def add_to_identity(h, y):
        """c h + y, with its "norm" and the "ratio" of y to h."""
        output = c.astype(h.dtype) * h + y
        sizes = {
            "norm": layers.example_norms(output),
            "ratio": layers.residual_ratio(h, y),
        }
        return output, sizes

    def hidden_layer(h, kernel):
        return add_to_identity(h, _product(phi(h), kernel, compute_dtype))

    h = jnp.asarray(x).astype(compute_dtype)
    y = _product(h, first, compute_dtype)
    if is_square(first.shape):
        h, first_sizes = add_to_identity(h, y)
        first_norm = first_sizes["norm"]
        first_ratios = first_sizes["ratio"][None]
    else:
        h = y
        first_norm = layers.example_norms(h)
        first_ratios = jnp.zeros((0, len(x)))  # nothing is added to the identity
    h, hidden_sizes = jax.lax.scan(hidden_layer, h, hidden)
    h = h.astype(jnp.float32)
    logits = _product(phi(h), last, "float32")
    sizes = {
        "norm": jnp.concatenate([first_norm[None], hidden_sizes["norm"]]),
        "ratio": jnp.concatenate([first_ratios, hidden_sizes["ratio"]]),
        "last_hidden": h,
    }
    return logits, sizes


def effective_dimension(h: jax.Array) -> jax.Array:
    """The number of directions, from 1 to d, in which the rows of h point: f[].

    h is f[n, d]. The number is ``1 / ||M||_F^2``, M the mean of ``u u^T`` over
    the rows' directions u: 1 if all lie on one line, k if they are spread evenly over k
    orthogonal lines. It is NaN if a row is 0.
    """
    # Tiny vectors would vanish when their entries are squared.
    h, _ = scaling.unit_size(h, axes=(1,))
    u = h / jnp.linalg.norm(h, axis=1, keepdims=True)
    M = jnp.matmul(u.T, u, precision=jax.lax.Precision.HIGHEST) / len(u)
    return 1 / jnp.sum(jnp.square(M))


def is_square(shape: tuple[int, ...]) -> bool:
    """Whether a kernel of this shape maps vectors to vectors of the same dimension."""
    return shape[-2] == shape[-1]


def _product(h, kernel, dtype):
    return jnp.matmul(h, kernel.astype(dtype), precision=jax.lax.Precision.HIGHEST)


def kernels_in_order(params: dict) -> list[np.ndarray]:
    """The matrices of a net or a gradient, from first to last layer, f64[in, out]."""
    first = np.asarray(params["first"]["kernel"], np.float64)
    hidden = np.asarray(params["hidden"]["kernel"], np.float64)
    last = np.asarray(params["last"]["kernel"], np.float64)
    return [first, *hidden, last]


def square_kernels(params: dict) -> np.ndarray:
    """The matrices that the identity is added to, f64[layers, width, width]."""
    return np.stack([x for x in kernels_in_order(params)[:-1] if is_square(x.shape)])
