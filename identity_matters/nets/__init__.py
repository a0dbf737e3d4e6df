"""Image classifiers: the paper's net, those that it is compared with, and perceptrons.

A network is a flax Module with its settings as fields; one that is out of range raises
ValueError. ``net(x, train=..., keys=None)`` takes images f32[n, h, w, c] and returns
(logits, the residual ratio f32[n] of each block). All networks have `compute_dtype`,
"float32" or "bfloat16", the type of convolutions and hidden layers; parameters are
float32.

The paper's net (section 4, Table 1) is in `all_conv_residual`, those of Table 2 are in
`baselines`, deep perceptrons in `mlp`. `starts` has the initial weights that the
paper's net can begin with. `base` has their common base class; they share
`initializers`, `layers` and `tiny_maps`.
"""

import flax.linen as nn
import jax
import jax.numpy as jnp

from identity_matters.array_types import Array
from identity_matters.checks import (
    check_array_type,
    check_array_types,
    check_choice,
    check_whole,
)
from identity_matters.net_variables import of_every_collection
from identity_matters.nets import base
from identity_matters.nets.all_conv_residual import AllConvResidual
from identity_matters.nets.baselines import AllCnnC, DenseNet, ResNet, ResNetImageNet
from identity_matters.nets.mlp import Mlp

NETS = {
    "all_conv_residual": AllConvResidual,
    "all_cnn_c": AllCnnC,
    "resnet": ResNet,
    "resnet_imagenet": ResNetImageNet,
    "densenet": DenseNet,
    "mlp": Mlp,
}


def make_net(
    name: str, *, num_classes: int, axis_name: str | None = None, **settings
) -> base.Net:
    """The net `name` of NETS with these settings.

    In training, batch norm averages over the mapped axis `axis_name`; other nets ignore
    it. Raises ValueError for an unknown name or a value out of range, TypeError for an
    unknown setting.
    """
    check_choice("the net", name, NETS)
    if hasattr(NETS[name], "axis_name"):
        settings["axis_name"] = axis_name
    return NETS[name](num_classes=num_classes, **settings)


def init_variables(
    net: base.Net, key: jax.Array, image_shape: tuple[int, int, int]
) -> dict:
    """The initial variables of a net, f32 arrays in the structure of `variable_shapes`.

    They are those of ``net.init(key, images)``, with an empty dict for each collection
    that the net lacks. Raises ValueError if the net cannot take images of `image_shape`
    (h, w, c), or for several keys, and TypeError if `key` is not a JAX key, or for a
    module that is not of this package, whose own `init` draws its variables.

    `jax.vmap` over keys draws an ensemble, each net as from its own key:

    >>> net = Mlp(num_classes=10, depth=3, width=8)
    >>> keys = jax.random.split(jax.random.key(0), 5)
    >>> nets = jax.vmap(lambda key: init_variables(net, key, (8, 8, 1)))(keys)
    >>> jax.tree.leaves(nets["params"])[0].shape[0]
    5

    """
    _check_is_of_this_package(net, "net.init")
    return of_every_collection(net.init(key, _images(image_shape)))


def variable_shapes(net: base.Net, image_shape: tuple[int, int, int]) -> dict:
    """The shapes of a net's variables for images of `image_shape` (h, w, c).

    Each is a `jax.ShapeDtypeStruct`. "params" are trained, "fixed" are set once,
    "batch_stats" are running means and variances; a collection that the net lacks is an
    empty dict. Kernels are called "kernel", and only those of convolutions have four
    axes; other leaves are "bias", "scale", "mean", "var" and "gate". Raises ValueError
    if the net cannot take such images, TypeError for a module that is not of this
    package.

    The paper's net for CIFAR-10, its trained parameters, and the operations of a
    forward pass for one image:

    >>> from identity_matters import flops
    >>> net = AllConvResidual(num_classes=10)
    >>> shapes = variable_shapes(net, (32, 32, 3))
    >>> flops.count_parameters(shapes["params"])
    13538736
    >>> image = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)
    >>> def forward(variables, images):
    ...     return apply_net(net, variables, images, train=False)
    >>> flops.count_flops(forward, shapes, image)
    3945632768
    """
    _check_is_of_this_package(net, "net.init")
    return nn.meta.unbox(of_every_collection(net.created(_images(image_shape))))


def _check_is_of_this_package(net: nn.Module, instead: str) -> None:
    """TypeError for other modules, which names what to call `instead`."""
    if not isinstance(net, base.Net):
        raise TypeError(
            f"net must be one of identity_matters.nets, got a {type(net).__name__}:"
            f" call {instead}"
        )


def _images(image_shape) -> jax.ShapeDtypeStruct:
    """One image of this shape, for functions that do not look at its values."""
    if not isinstance(image_shape, (tuple, list)) or len(image_shape) != 3:
        raise ValueError(f"image_shape must be (h, w, c), got {image_shape!r}")
    sides = [check_whole("image_shape", side) for side in image_shape]
    return jax.ShapeDtypeStruct((1, *sides), jnp.float32)


def apply_net(
    net: nn.Module,
    variables: dict,
    x: Array,
    *,
    train: bool,
    keys: jax.Array | None = None,
) -> tuple[jax.Array, dict]:
    """The net as a pure function of x f32[n, h, w, c].

    Args:
      net: of this package.
      variables: its collections by name; empty ones may be missing, as in those of
        ``net.init``.
      x: f32[n, h, w, c].
      train: whether batch norm uses the statistics of the batch, and dropout drops.
      keys: typed keys [n] for dropout. Its masks do not depend on how a batch is
        divided among devices.
    Returns:
      Logits f32[n, num_classes], and {"residual_ratio": f32[blocks, n], "batch_stats":
      the running statistics after this call}.
    Raises:
      TypeError: x is not a NumPy or JAX array, or the net is not of this package.
      ValueError: x has another dtype or rank, or no entries, or dropout lacks a key for
        each example.
      flax.errors.ScopeParamShapeError: x does not fit the variables.
    """
    _check_is_of_this_package(net, "net.apply")
    check_array_type("x", x)
    if x.ndim != 4 or x.dtype != jnp.float32 or 0 in x.shape:
        raise ValueError(
            f"x must be float32[n, h, w, c], each from 1, got {x.dtype}{list(x.shape)}"
        )
    check_array_types("variables", dict(variables))
    outputs, changed = net.apply(
        variables, x, train=train, keys=keys, mutable=["batch_stats"] if train else []
    )
    logits, ratios = outputs
    batch_stats = (changed if train else variables).get("batch_stats", {})
    ratios = jnp.asarray(ratios, jnp.float32).reshape(len(ratios), len(x))
    return logits, {"residual_ratio": ratios, "batch_stats": batch_stats}
