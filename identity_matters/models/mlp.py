"""Multilayer perceptrons with and without the identity, to thousands of layers.

    h_1 = c x + W_1 x;   h_j = c h_{j-1} + W_j phi(h_{j-1}), j = 2 ... l - 1;   W_l phi(h_{l-1})

l      depth, the number of matrices; there are no biases.
phi    ReLU, or the identity map: then all is the linear net of the paper's section 2.
c      1 with the identity, wherever a matrix is square: in layers 2 ... l - 1, and in the first
       where the width is the number of inputs (elsewhere there is no such term). Else 0.

Without the identity this is the ordinary net; with it and from the same weights, the same net plus
the identity, one matrix a layer. Square matrices start by one of INITIALIZATIONS; the others in all
nets alike, a first one with deviation 1/sqrt(m), m inputs, and the last with 1/m, so that outputs
start small next to labels:

near_zero    N(0, (initial_scale / (l sqrt(width)))^2): spectral norm about 2 initial_scale / l,
             the order that Theorem 2.1 gives an optimum.
standard     N(0, g^2 / width); g^2 = 2 for ReLU (He et al. 2015, arXiv 1502.01852), 1 for linear,
             times initial_scale^2.
orthogonal   g Q, Q uniformly random orthogonal (Saxe et al. 2013, arXiv 1312.6120), g as above.

The middle layers are one stack that `lax.scan` runs through, so that 1200 layers compile as fast as
three; c and the slope of phi below zero are numbers that are handed over ("fixed"), so that nets of
a size share one compiled program. Kernels are [in, out] and act from the right, as everywhere here.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters import diagnostics
from identity_matters.array_types import Array
from identity_matters.models import initializers, layers
from identity_matters.models.checks import check_at_least, check_choice
from identity_matters.models.interface import Model, check_images

# Slope of phi below zero.
ACTIVATIONS = {"relu": 0.0, "linear": 1.0}
INITIALIZATIONS = ("near_zero", "standard", "orthogonal")
# What phi leaves of the mean square of a symmetric argument.
_KEPT_SQUARE = {"relu": 0.5, "linear": 1.0}
LEAST_DEPTH = 2


def mlp(
    *,
    num_classes: int,
    depth: int,
    width: int,
    identity: bool = True,
    activation: str = "relu",
    initialization: str = "near_zero",
    initial_scale: float = 1.0,
    compute_dtype: str = "float32",
    axis_name: str | None = None,
) -> Model:
    """The net above, for images of any shape, which it takes as vectors.

    Args:
      num_classes: the number of logits.
      depth: l, at least 2.
      width: units of every hidden layer.
      identity: whether the identity is added where a layer is square.
      activation: "relu" or "linear".
      initialization: of the square layers, one of INITIALIZATIONS.
      initial_scale: multiplies the square matrices at first.
      compute_dtype: "float32" or "bfloat16"; the last layer is computed in float32.
      axis_name: taken because every factory takes it; nothing here depends on the batch.
    Raises:
      ValueError: an argument is out of range.
    """
    del axis_name
    check_at_least("num_classes", num_classes, 1)
    check_at_least("depth", depth, LEAST_DEPTH)
    check_at_least("width", width, 1)
    check_choice("identity", identity, (True, False))
    check_choice("activation", activation, tuple(ACTIVATIONS))
    check_choice("initialization", initialization, INITIALIZATIONS)
    check_at_least("initial_scale", initial_scale, 0)
    check_choice("compute_dtype", compute_dtype, layers.COMPUTE_DTYPES)
    net = _Net(num_classes, depth, width, identity, activation, initialization, initial_scale)
    return Model(net.init, functools.partial(_apply, compute_dtype))


@dataclasses.dataclass(frozen=True)
class _Net:
    num_classes: int
    depth: int
    width: int
    identity: bool
    activation: str
    initialization: str
    initial_scale: float

    def init(self, key, image_shape) -> dict:
        inputs = math.prod(image_shape)
        shapes = {
            "first": (inputs, self.width),
            "hidden": (self.depth - 2, self.width, self.width),
            "last": (self.width, self.num_classes),
        }
        leaves = {
            name: {"kernel": jax.ShapeDtypeStruct(shape, jnp.float32)}
            for name, shape in shapes.items()
        }
        params = initializers.draw(key, leaves, self._distribution)
        if self.initialization == "orthogonal":
            params = self._with_orthogonal_layers(params, jax.random.fold_in(key, 1), inputs)
        fixed = {
            "identity": {"scale": jnp.full((1,), float(self.identity), jnp.float32)},
            "slope": {"scale": jnp.full((1,), ACTIVATIONS[self.activation], jnp.float32)},
        }
        return {"params": params, "fixed": fixed, "batch_stats": {}}

    def _gain(self) -> float:
        return self.initial_scale / math.sqrt(_KEPT_SQUARE[self.activation])

    def _distribution(self, path, shape) -> initializers.Distribution:
        inputs = shape[-2]
        if path[0] == "last":
            scale = 1 / math.sqrt(inputs)
        elif not is_square(shape):
            scale = 1.0
        elif self.initialization == "near_zero":
            scale = self.initial_scale / self.depth
        else:
            scale = self._gain()
        return initializers.Distribution("normal", scale / math.sqrt(inputs))

    def _with_orthogonal_layers(self, params, key, inputs: int) -> dict:
        count = self.depth - 2 + (inputs == self.width)
        blocks = [
            _orthogonal_block(jax.random.fold_in(key, block), self.width)
            for block in range(-(-count // _BLOCK_LAYERS))
        ]
        drawn = np.float32(self._gain()) * jnp.concatenate(blocks)
        hidden = {"hidden": {"kernel": drawn[: self.depth - 2]}}
        first = {"first": {"kernel": drawn[count - 1]}} if inputs == self.width else {}
        return {**params, **hidden, **first}


# Compiling a QR decomposition takes a second, so one for all depths, and what is too much is cut.
_BLOCK_LAYERS = 64


@functools.partial(jax.jit, static_argnums=1)
def _orthogonal_block(key, width: int):
    return jax.random.orthogonal(key, width, (_BLOCK_LAYERS,), jnp.float32)


def _apply(compute_dtype, variables, x, *, train, keys=None):
    del train, keys
    check_images(x)
    logits, passed = forward(variables, x.reshape(len(x), -1), compute_dtype)
    return logits, {"residual_ratio": passed["ratio"], "batch_stats": {}}


def forward(
    variables: dict, x: Array, compute_dtype: str = "float32"
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The net on vectors, and how large the signal is on its way.

    Args:
      variables: as `mlp` draws them: params {"first", "hidden", "last"} of {"kernel": f32}, and
        fixed {"identity": c, "slope": that of phi below zero} of {"scale": f32[1]}.
      x: f32[n, d].
    Returns:
      (logits f32[n, num_classes], {
        "norm": f32[depth - 1, n], ``||h_j||``, j = 1 ... depth - 1,
        "ratio": f32[square layers, n], ``||W_j phi(h_{j-1})|| / ||h_{j-1}||``,
        "last_hidden": h_{depth-1} f32[n, width]}).
    Raises:
      ValueError: x does not fit the first kernel.
    """
    first, hidden, last = (variables["params"][n]["kernel"] for n in ("first", "hidden", "last"))
    if x.ndim != 2 or x.shape[1] != len(first):
        raise ValueError(f"x must be [n, {len(first)}] for these weights, got {[*x.shape]}")
    c, slope = (variables["fixed"][n]["scale"][None] for n in ("identity", "slope"))

    def phi(h):
        return jnp.where(h > 0, h, slope.astype(h.dtype) * h)

    def square_layer(h, y):
        after = c.astype(h.dtype) * h + y
        return after, {"norm": _norms(after), "ratio": diagnostics.residual_ratio(h, y)}

    h = jnp.asarray(x).astype(compute_dtype)
    y = _product(h, first, compute_dtype)
    if is_square(first.shape):
        h, entered = square_layer(h, y)
    else:
        h, entered = y, {"norm": _norms(y)}
    h, passed = jax.lax.scan(
        lambda h, kernel: square_layer(h, _product(phi(h), kernel, compute_dtype)), h, hidden
    )
    h = h.astype(jnp.float32)
    sizes = {
        name: jnp.concatenate([entered[name][None], rest]) if name in entered else rest
        for name, rest in passed.items()
    }
    return _product(phi(h), last, "float32"), {**sizes, "last_hidden": h}


def _norms(h):
    return jnp.linalg.norm(h.astype(jnp.float32), axis=1)


def is_square(shape: tuple[int, ...]) -> bool:
    """Whether a kernel of this shape maps vectors to vectors of their own length."""
    return shape[-2] == shape[-1]


def _product(h, kernel, dtype):
    # Accelerators would otherwise round float32 factors to TF32 or bfloat16, once in every layer.
    return jnp.matmul(h, kernel.astype(dtype), precision=jax.lax.Precision.HIGHEST)


def kernels_in_order(params: dict) -> list[np.ndarray]:
    """The matrices of a net, or of a gradient in its structure, from the first to the last layer.

    Returns:
      [f64[d, width], (depth - 2) x f64[width, width], f64[width, num_classes]].
    """
    first, hidden, last = (
        np.asarray(params[name]["kernel"], np.float64) for name in ("first", "hidden", "last")
    )
    return [first, *hidden, last]


def square_kernels(params: dict) -> np.ndarray:
    """The matrices that the identity is added to, f64[layers, width, width]."""
    first, hidden = (np.asarray(params[name]["kernel"]) for name in ("first", "hidden"))
    stack = np.concatenate([first[None], hidden]) if is_square(first.shape) else hidden
    return stack.astype(np.float64)
