"""Image classifiers: the paper's network (section 4, Table 1) and the other rows of Table 2.

A network is a flax Module, made from its settings. It is called as ``net(x, train=..., keys=None)``
with images x f32[n, h, w, c] and returns (logits f32[n, num_classes], the residual ratio f32[n] of
each block). Training uses `init_variables` and `apply_net`. A setting that is out of range raises
ValueError. All networks have `compute_dtype`, "float32" or "bfloat16", the type of convolutions and
hidden layers; parameters are float32.

* `all_conv_residual`: the paper's network.
* `rivals`: the networks that Table 2 compares it with: All-CNN-C, DenseNet, ResNet.
* `mlp`: multilayer perceptrons of up to 1200 layers, with and without the identity.
* `layers`: what they share, such as initializers.
"""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from identity_matters.array_types import Array
from identity_matters.nets import layers
from identity_matters.nets.all_conv_residual import AllConvResidual
from identity_matters.nets.mlp import Mlp
from identity_matters.nets.rivals import AllCnnC, DenseNet, ResNet, ResNetImageNet

NETS = {
    "all_conv_residual": AllConvResidual,
    "all_cnn_c": AllCnnC,
    "resnet": ResNet,
    "resnet_imagenet": ResNetImageNet,
    "densenet": DenseNet,
    "mlp": Mlp,
}
COLLECTIONS = ("params", "fixed", "batch_stats")
# Initial values, by name, of the leaves that are not `layers.Drawn`.
CONSTANTS = {"bias": 0.0, "scale": 1.0, "mean": 0.0, "var": 1.0}


def make_net(name: str, *, num_classes: int, axis_name: str | None = None, **settings) -> nn.Module:
    """The net `name` of NETS with these settings.

    In training, batch norm averages over the mapped axis `axis_name`; other nets ignore it.

    Raises:
      ValueError: an unknown name, or a value out of range.
      TypeError: an unknown setting.
    """
    if name not in NETS:
        raise ValueError(f"model.name must be one of {', '.join(NETS)}, got {name!r}")
    axis = {"axis_name": axis_name} if hasattr(NETS[name], "axis_name") else {}
    return NETS[name](num_classes=num_classes, **axis, **settings)


def init_variables(net: nn.Module, key: jax.Array, image_shape: tuple[int, int, int]) -> dict:
    """The initial variables of a net, f32 arrays in the structure of `variable_shapes`.

    They are drawn by NumPy from the bits of the typed `key`, which may not be a tracer.

    Raises:
      ValueError: the net cannot take images of `image_shape` (h, w, c).
    """
    seed = np.asarray(jax.random.key_data(key)).ravel()
    generator = np.random.Generator(np.random.Philox(np.random.SeedSequence(seed.tolist())))

    def draw(path, leaf):
        if isinstance(leaf, layers.Drawn):
            return jnp.asarray(leaf.draw(generator, leaf.value.shape), jnp.float32)
        return jnp.asarray(np.full(leaf.shape, CONSTANTS[path[-1].key], np.float32))

    return jax.tree_util.tree_map_with_path(
        draw, _created(net, image_shape), is_leaf=lambda leaf: isinstance(leaf, layers.Drawn)
    )


def variable_shapes(net: nn.Module, image_shape: tuple[int, int, int]) -> dict:
    """The variables of a net for images of `image_shape` (h, w, c), as `jax.ShapeDtypeStruct`.

    Returns:
      {"params": trained, "fixed": set once and never trained, "batch_stats": running means and
      variances of batch norm}; a collection that the net does not have is an empty dict. Kernels
      are called "kernel", and those of convolutions have four axes; other leaves are "bias",
      "scale", "mean" and "var".
    Raises:
      ValueError: the net cannot take images of this shape.
    """
    return nn.meta.unbox(_created(net, image_shape))


def _created(net, image_shape) -> dict:
    images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    created = jax.eval_shape(functools.partial(net.init, train=False), jax.random.key(0), images)
    return {name: created.get(name, {}) for name in COLLECTIONS}


def apply_net(
    net: nn.Module, variables: dict, x: Array, *, train: bool, keys: jax.Array | None = None
) -> tuple[jax.Array, dict]:
    """The net as a pure function.

    Args:
      variables: from `init_variables`.
      x: f32[n, h, w, c].
      train: batch norm uses the statistics of the batch, and dropout is on.
      keys: typed keys [n] for dropout in training; masks do not depend on how a batch is divided
        among devices.
    Returns:
      logits f32[n, num_classes], and {"residual_ratio": f32[blocks, n], `layers.residual_ratio`
      of each residual block, "batch_stats": the running statistics after this call, unchanged if
      not train}.
    Raises:
      ValueError: x or keys have the wrong shape or dtype.
    """
    if x.ndim != 4 or x.dtype != jnp.float32:
        raise ValueError(f"x must be float32[n, h, w, c], got {x.dtype}{list(x.shape)}")
    (logits, ratios), changed = net.apply(
        variables, x, train=train, keys=keys, mutable=["batch_stats"] if train else []
    )
    return logits, {
        "residual_ratio": jnp.asarray(ratios, jnp.float32).reshape(len(ratios), len(x)),
        "batch_stats": changed.get("batch_stats", {}) if train else variables["batch_stats"],
    }
