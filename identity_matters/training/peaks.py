"""What devices can do at most, in floating-point operations per second, without sparsity.

From the makers' data sheets. "float32" is what JAX does with float32 by default: TF32 on NVIDIA
GPUs from Ampere on, plain float32 on older ones, one bfloat16 pass on TPUs.
"""

_TERA = 1e12
# Words that all stand in the device's name -> (bfloat16, float32); the first match counts.
# TPU v2 and v3 show each core as a device, so theirs is half of a chip.
_PEAKS = (
    (("NVIDIA", "H200"), 989.5, 494.7),
    (("NVIDIA", "H100", "PCIe"), 756.0, 378.0),
    (("NVIDIA", "H100", "NVL"), 835.5, 417.5),
    (("NVIDIA", "H100"), 989.5, 494.7),
    (("NVIDIA", "A100"), 312.0, 156.0),
    (("NVIDIA", "L4"), 121.0, 60.5),
    (("V100", "PCIE"), None, 14.0),
    (("V100",), None, 15.7),
    (("T4",), None, 8.1),
    (("TPU", "v2"), 22.5, 22.5),
    (("TPU", "v3"), 61.5, 61.5),
    (("TPU", "v4"), 275.0, 275.0),
    (("TPU", "v5", "lite"), 197.0, 197.0),
    (("TPU", "v5e"), 197.0, 197.0),
    (("TPU", "v5"), 459.0, 459.0),
    (("TPU", "v5p"), 459.0, 459.0),
    (("TPU", "v6", "lite"), 918.0, 918.0),
    (("TPU", "v6e"), 918.0, 918.0),
)


def peak_flops_per_second(device_kind: str, compute_dtype: str) -> float | None:
    """The dense peak of one device, or None where it is not known.

    Args:
      device_kind: as ``jax.Device.device_kind`` names it, "NVIDIA H200" say.
      compute_dtype: "bfloat16" or "float32"; V100 and T4 have no bfloat16 units, hence no peak.
    Raises:
      ValueError: another `compute_dtype`.
    """
    if compute_dtype not in ("bfloat16", "float32"):
        raise ValueError(f"compute_dtype must be bfloat16 or float32, got {compute_dtype!r}")
    words = device_kind.replace("-", " ").split()
    for needed, bfloat16, float32 in _PEAKS:
        if set(needed) <= set(words):
            peak = bfloat16 if compute_dtype == "bfloat16" else float32
            return None if peak is None else peak * _TERA
    return None
