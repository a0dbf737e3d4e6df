"""Operations and parameters of a net, and the peak performance of devices."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.extend

# By convention the backward pass takes two products for each one of the forward pass,
# for the gradients in weights and inputs. Recomputation and the optimizer do not count.
FORWARD_PASSES_PER_TRAINING_STEP = 3
_GIGA, _TERA = 1e9, 1e12
# Words that must all be in the device's name, "v5 lite" read as v5e; dense bfloat16 and
# float32 peaks in tera-operations per second; memory in GB, and its bandwidth in GB per
# second. The first match counts; None: not looked up, or no such units. TPUs:
# cloud.google.com/tpu/docs/v4, v5e, v5p and v6e; GPUs: NVIDIA's data sheets. "float32"
# is what JAX does by default: TF32 on GPUs from Ampere on, float32 on older ones, one
# bfloat16 pass on TPUs. A TPU v2 or v3 device is half a chip.
_LIMITS = (
    (("NVIDIA", "H200", "NVL"), 835.5, 417.5, 141, 4800),
    (("NVIDIA", "H200"), 989.5, 494.7, 141, 4800),
    (("NVIDIA", "H100", "PCIe"), 756.0, 378.0, 80, 2000),
    (("NVIDIA", "H100", "NVL"), 835.5, 417.5, 94, 3900),
    (("NVIDIA", "H100"), 989.5, 494.7, 80, 3350),
    (("NVIDIA", "A100"), 312.0, 156.0, None, None),
    (("NVIDIA", "L4"), 121.0, 60.5, 24, 300),
    (("V100", "PCIE"), None, 14.0, None, None),
    (("V100",), None, 15.7, None, None),
    (("T4",), None, 8.1, None, None),
    (("TPU", "v2"), 22.5, 22.5, None, None),
    (("TPU", "v3"), 61.5, 61.5, None, None),
    (("TPU", "v4"), 275.0, 275.0, 32, 1200),
    (("TPU", "v5e"), 197.0, 197.0, 16, 819),
    (("TPU", "v5"), 459.0, 459.0, 95, 2765),
    (("TPU", "v5p"), 459.0, 459.0, 95, 2765),
    (("TPU", "v6e"), 918.0, 918.0, 32, 1638),
)


def count_parameters(tree: Any) -> int:
    """The number of entries in a pytree of arrays or `jax.ShapeDtypeStruct`.

    >>> ones = jax.numpy.ones
    >>> count_parameters({"kernel": ones((3, 3, 16, 64)), "bias": ones(64)})
    9280
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def count_flops(function: Callable[..., Any], *args) -> int:
    """Floating-point operations of the convolutions and matrix products in
    `function(*args)`.

    A multiply-add counts as two, everything else is free, and the zeros of padding and
    dilation count as numbers. The body of a loop counts once per iteration; of the
    branches of a conditional, only the most expensive counts. JAX traces the function,
    without running it. `args` are pytrees of arrays or `jax.ShapeDtypeStruct`. A
    product in a while loop is a ValueError.

    >>> ones = jax.numpy.ones
    >>> # 4 x 2 sums of 8 products
    >>> count_flops(jax.numpy.matmul, ones((4, 8)), ones((8, 2)))
    128
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*args))


def _jaxpr_flops(jaxpr) -> int:
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation) -> int:
    name, params = equation.primitive.name, equation.params
    if name in ("conv_general_dilated", "dot_general"):
        if name == "dot_general":
            factor, ((contracted, _), _) = 0, params["dimension_numbers"]
        else:
            # All kernel axes but the output channels; its input channels are those of
            # one group.
            factor, (_, *contracted) = 1, params["dimension_numbers"].rhs_spec
        products = math.prod(
            equation.invars[factor].aval.shape[axis] for axis in contracted
        )
        return 2 * equation.outvars[0].aval.size * products
    kinds = (jax.extend.core.ClosedJaxpr, jax.extend.core.Jaxpr)
    leaves = jax.tree.leaves(list(params.values()))
    inner = [_jaxpr_flops(leaf) for leaf in leaves if isinstance(leaf, kinds)]
    if name == "cond":
        return max(inner)
    if name == "while" and sum(inner):
        raise ValueError("cannot count the products in a while loop; use jax.lax.scan")
    return sum(inner) * params.get("length", 1) if name == "scan" else sum(inner)


def peak_flops_per_second(device_kind: str, compute_dtype: str) -> float | None:
    """Dense peak of one device, in operations per second; None if unknown.

    `device_kind` is that of a `jax.Device`, for example "NVIDIA H200"; `compute_dtype`
    is "bfloat16" or "float32". V100 and T4 have no bfloat16 units, hence no peak.
    """
    bfloat16, float32, *_ = _limits(device_kind)
    peak = bfloat16 if compute_dtype == "bfloat16" else float32
    return None if peak is None else peak * _TERA


def memory_limits(device_kind: str) -> tuple[float | None, float | None]:
    """(bytes, bytes per second) of one device's memory; None if unknown.

    >>> memory_limits("TPU v5 lite")
    (16000000000.0, 819000000000.0)
    """
    *_, size, bandwidth = _limits(device_kind)
    return size and size * _GIGA, bandwidth and bandwidth * _GIGA


def _limits(device_kind: str) -> tuple:
    words = device_kind.replace("-", " ").replace(" lite", "e").split()
    for needed, *limits in _LIMITS:
        if set(needed) <= set(words):
            return tuple(limits)
    return (None,) * 4
