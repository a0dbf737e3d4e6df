"""What every network of this package is: a pair of pure functions."""

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from identity_matters.array_types import Array
from identity_matters.models import initializers

COLLECTIONS = ("params", "fixed", "batch_stats")


@dataclasses.dataclass(frozen=True)
class Model:
    """A network as pure functions.

    Attributes:
      init: (key, image_shape (h, w, c)) -> variables, the dict
          {"params": trained, "fixed": drawn once and never trained, "batch_stats": running means
          and variances of batch norm}, float32 throughout. A collection that the network does not
          have is an empty dict. Kernels are called "kernel" and those of convolutions have four
          axes; other leaves are "bias", and "scale" of batch norm.
      apply: (variables, x, *, train, keys=None) -> (logits f32[n, num_classes], intermediates).
          x: f32[n, h, w, c].
          train: batch norm uses the batch and dropout is on.
          keys: typed keys [n], one for each example, for dropout in training. An example's masks
              depend on its own key alone, hence not on how a batch is divided among devices.
          intermediates: {"residual_ratio": f32[blocks, n], see `diagnostics.residual_ratio`, with
              no rows where there are no residual blocks;
              "batch_stats": the running statistics after this call, those given if not train}.
          Raises ValueError for x or keys of another shape or dtype.
    """

    init: Callable[[jax.Array, tuple[int, int, int]], dict]
    apply: Callable[..., tuple[jax.Array, dict]]


def from_module(module: nn.Module, rule: initializers.Rule) -> Model:
    """The Model of a flax module.

    Args:
      module: called as ``module(x, train=..., keys=...)``; returns the logits and a list of
        f32[n], one for each residual block.
      rule: how each kernel is drawn at first.
    """
    return Model(functools.partial(_init, module, rule), functools.partial(_apply, module))


def _init(module, rule, key, image_shape):
    images = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    # Only the shapes are asked of flax, so that neither its forward pass nor a random call for each
    # kernel has to be compiled.
    created = jax.eval_shape(functools.partial(module.init, train=False), key, images)
    return initializers.draw(key, {name: created.get(name, {}) for name in COLLECTIONS}, rule)


def _apply(module, variables, x, *, train, keys=None):
    check_images(x)
    (logits, ratios), changed = module.apply(
        variables, x, train=train, keys=keys, mutable=["batch_stats"] if train else []
    )
    intermediates = {
        "residual_ratio": jnp.stack(ratios) if ratios else jnp.zeros((0, len(x)), jnp.float32),
        "batch_stats": changed.get("batch_stats", {}) if train else variables["batch_stats"],
    }
    return logits, intermediates


def check_images(x: Array) -> None:
    """Raises ValueError unless x is f32[n, h, w, c]."""
    if x.ndim != 4 or x.dtype != jnp.float32:
        raise ValueError(f"x must be float32[n, h, w, c], got {x.dtype}{list(x.shape)}")
