"""Operations and parameters of a net, and the peak performance of devices."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.extend

# By convention the backward pass takes two products for each one of the forward pass,
# for the gradients in weights and inputs. Recomputation and the optimizer do not count.
FORWARD_PASSES_PER_TRAINING_STEP = 3
_GIGA = 1e9
_TERA = 1e12


class _Device(NamedTuple):
    """What a maker says about a device.

    Attributes:
      words: all in the name of the device, where "v5 lite" is read as v5e.
      bfloat16, float32: dense peaks in tera-operations per second; None if the device
        has no such units. "float32" is what JAX does by default: TF32 on GPUs from
        Ampere on, float32 on older ones, one bfloat16 pass on TPUs.
      memory_gb: size of the memory; None if not looked up.
      memory_gb_per_second: its bandwidth; None if not looked up.
      clock_ghz: of a TPU: the clock at which two operations for each multiplier of its
        matrix units and cycle make up its peak. None if not looked up.
    """

    words: tuple[str, ...]
    bfloat16: float | None
    float32: float | None
    memory_gb: float | None = None
    memory_gb_per_second: float | None = None
    clock_ghz: float | None = None


# The first match counts. TPUs: cloud.google.com/tpu/docs/v4, v5e, v5p and v6e; GPUs:
# NVIDIA's data sheets. A TPU v2 or v3 device is half a chip.
_DEVICES = (
    _Device(
        ("NVIDIA", "H200", "NVL"),
        bfloat16=835.5,
        float32=417.5,
        memory_gb=141,
        memory_gb_per_second=4800,
    ),
    _Device(
        ("NVIDIA", "H200"),
        bfloat16=989.5,
        float32=494.7,
        memory_gb=141,
        memory_gb_per_second=4800,
    ),
    _Device(
        ("NVIDIA", "H100", "PCIe"),
        bfloat16=756.0,
        float32=378.0,
        memory_gb=80,
        memory_gb_per_second=2000,
    ),
    _Device(
        ("NVIDIA", "H100", "NVL"),
        bfloat16=835.5,
        float32=417.5,
        memory_gb=94,
        memory_gb_per_second=3900,
    ),
    _Device(
        ("NVIDIA", "H100"),
        bfloat16=989.5,
        float32=494.7,
        memory_gb=80,
        memory_gb_per_second=3350,
    ),
    _Device(
        ("NVIDIA", "A100"),
        bfloat16=312.0,
        float32=156.0,
    ),
    _Device(
        ("NVIDIA", "L4"),
        bfloat16=121.0,
        float32=60.5,
        memory_gb=24,
        memory_gb_per_second=300,
    ),
    _Device(
        ("V100", "PCIE"),
        bfloat16=None,
        float32=14.0,
    ),
    _Device(
        ("V100",),
        bfloat16=None,
        float32=15.7,
    ),
    _Device(
        ("T4",),
        bfloat16=None,
        float32=8.1,
    ),
    _Device(
        ("TPU", "v2"),
        bfloat16=22.5,
        float32=22.5,
    ),
    _Device(
        ("TPU", "v3"),
        bfloat16=61.5,
        float32=61.5,
    ),
    _Device(
        ("TPU", "v4"),
        bfloat16=275.0,
        float32=275.0,
        memory_gb=32,
        memory_gb_per_second=1200,
        clock_ghz=1.05,
    ),
    _Device(
        ("TPU", "v5e"),
        bfloat16=197.0,
        float32=197.0,
        memory_gb=16,
        memory_gb_per_second=819,
        clock_ghz=1.5,
    ),
    # JAX names a v5p "TPU v5".
    _Device(
        ("TPU", "v5"),
        bfloat16=459.0,
        float32=459.0,
        memory_gb=95,
        memory_gb_per_second=2765,
        clock_ghz=1.75,
    ),
    _Device(
        ("TPU", "v5p"),
        bfloat16=459.0,
        float32=459.0,
        memory_gb=95,
        memory_gb_per_second=2765,
        clock_ghz=1.75,
    ),
    _Device(
        ("TPU", "v6e"),
        bfloat16=918.0,
        float32=918.0,
        memory_gb=32,
        memory_gb_per_second=1638,
        clock_ghz=1.75,
    ),
)


def count_parameters(tree: Any) -> int:
    """The number of entries in a pytree of arrays or `jax.ShapeDtypeStruct`.

    >>> ones = jax.numpy.ones
    >>> count_parameters({"kernel": ones((3, 3, 16, 64)), "bias": ones(64)})
    9280
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def count_flops(function: Callable[..., Any], *args) -> int:
    """Operations of the convolutions and matrix products in ``function(*args)``.

    A multiply-add counts as two, everything else is free, and the zeros of padding and
    dilation count as numbers. The body of a loop counts once per iteration; of the
    branches of a conditional, only the most expensive counts. JAX traces the function,
    without running it.

    Args:
      function: what would be run.
      args: pytrees of arrays or `jax.ShapeDtypeStruct`.
    Raises:
      ValueError: a product is in a while loop.

    >>> ones = jax.numpy.ones
    >>> # 4 x 2 sums of 8 products
    >>> count_flops(jax.numpy.matmul, ones((4, 8)), ones((8, 2)))
    128
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*args))


def _jaxpr_flops(jaxpr) -> int:
    return sum(_equation_flops(equation) for equation in jaxpr.eqns)


def _equation_flops(equation) -> int:
    name = equation.primitive.name
    params = equation.params
    if name == "dot_general":
        contracted, _batch = params["dimension_numbers"]
        contracted_axes, _axes_of_right = contracted
        return _product_flops(equation, equation.invars[0], contracted_axes)
    if name == "conv_general_dilated":
        # All axes of the kernel but the first named here, that of output channels; its
        # input channels are those of one group.
        contracted_axes = params["dimension_numbers"].rhs_spec[1:]
        return _product_flops(equation, equation.invars[1], contracted_axes)
    jaxpr_types = (jax.extend.core.ClosedJaxpr, jax.extend.core.Jaxpr)
    inner_flops = [
        _jaxpr_flops(leaf)
        for leaf in jax.tree.leaves(list(params.values()))
        if isinstance(leaf, jaxpr_types)
    ]
    if name == "cond":
        return max(inner_flops)
    if name == "while" and sum(inner_flops):
        raise ValueError("cannot count the products in a while loop; use jax.lax.scan")
    if name == "scan":
        return sum(inner_flops) * params.get("length", 1)
    return sum(inner_flops)


def _product_flops(equation, factor, contracted_axes) -> int:
    """Each output is a sum over the contracted axes of `factor`."""
    summands = math.prod(factor.aval.shape[axis] for axis in contracted_axes)
    return 2 * equation.outvars[0].aval.size * summands


def peak_flops_per_second(device_kind: str, compute_dtype: str) -> float | None:
    """Dense peak of one device, in operations per second; None if unknown.

    `device_kind` is that of a `jax.Device`, for example "NVIDIA H200"; `compute_dtype`
    is "bfloat16" or "float32", else a ValueError. V100 and T4 have no bfloat16 units,
    hence no peak.
    """
    if compute_dtype not in ("bfloat16", "float32"):
        raise ValueError(
            f"compute_dtype must be 'bfloat16' or 'float32', got {compute_dtype!r}"
        )
    device = _find(device_kind)
    if device is None:
        return None
    peak = device.bfloat16 if compute_dtype == "bfloat16" else device.float32
    return None if peak is None else peak * _TERA


def memory_limits(device_kind: str) -> tuple[float | None, float | None]:
    """(bytes, bytes per second) of one device's memory; None if unknown.

    >>> memory_limits("TPU v5 lite")
    (16000000000.0, 819000000000.0)
    """
    device = _find(device_kind)
    if device is None or device.memory_gb is None:
        return None, None
    assert device.memory_gb_per_second is not None  # both are known or neither
    return device.memory_gb * _GIGA, device.memory_gb_per_second * _GIGA


def clock_hertz(device_kind: str) -> float | None:
    """Cycles per second of a TPU; None if unknown, and for all other devices.

    >>> clock_hertz("TPU v5 lite")
    1500000000.0
    """
    device = _find(device_kind)
    if device is None or device.clock_ghz is None:
        return None
    return device.clock_ghz * _GIGA


def _find(device_kind: str) -> _Device | None:
    words = set(device_kind.replace("-", " ").replace(" lite", "e").split())
    for device in _DEVICES:
        if words.issuperset(device.words):
            return device
    return None
