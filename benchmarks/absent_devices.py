"""Accelerators that are not present, as devices that JAX can compile for.

libtpu compiles for any slice without a TPU, the compiler of JAX's CUDA plugin for any
GPU of which gpu_target.txtpb says enough.
"""

import functools
import os
import pathlib
import string
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

from identity_matters import runs

# Cloud TPU's name of a slice -> libtpu's name, and the layout of its chips and hosts.
SLICES: dict[str, tuple[str, dict]] = {
    "v5e-1": ("v5e:1x1", {"chips_per_host_bounds": (1, 1, 1)}),
    "v5e-8": ("v5e:2x4", {"chips_per_host_bounds": (2, 4, 1)}),
    "v4-32": ("v4:2x2x4", {"chip_config_name": "megacore"}),
    "v6e-8": ("v6e:2x4", {"chips_per_host_bounds": (2, 4, 1)}),
}


class _Gpu(NamedTuple):
    """What the compiler must know of a GPU; its memory has a size and a bandwidth."""

    device_name: str
    memory_bytes: int
    bytes_per_second: int


# Facts from OpenXLA, h100_sxm.txtpb and h200.txtpb (xla/backends/gpu/target_config/
# specs); the JAX wheels do not contain them.
GPUS = {
    "h100": _Gpu(
        device_name="NVIDIA H100 80GB HBM3",
        memory_bytes=84_942_979_072,
        bytes_per_second=3_352_320_000_000,
    ),
    "h200": _Gpu(
        device_name="NVIDIA H200 141GB HBM3e",
        memory_bytes=151_397_597_184,
        bytes_per_second=4_800_000_000_000,
    ),
}
# What their compiler must know.
_GPU_TARGET = pathlib.Path(__file__).with_name("gpu_target.txtpb")


class NoGpuCompilerError(RuntimeError):
    """JAX has no compiler for GPUs here; the message is one line."""


@functools.cache
def devices_of(name: str) -> list[jax.Device]:
    """The devices of a slice, or one GPU, for compiling only.

    Args:
      name: one of SLICES or of GPUS.

    Raises:
      ValueError: there is no such name, or no compiler for TPUs.
      NoGpuCompilerError: there is no compiler for GPUs.
    """
    if name in GPUS:
        return _gpu_devices(name)
    return _slice_devices(name)


def _slice_devices(name: str) -> list[jax.Device]:
    """All devices of one of SLICES, for compiling only."""
    if name not in SLICES:
        raise ValueError(
            f"slices must be among {', '.join((*SLICES, *GPUS))}, got {name!r}"
        )
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    topology, layout = SLICES[name]
    try:
        return topologies.get_topology_desc(topology, "tpu", **layout).devices
    except RuntimeError as error:
        reason = runs.first_line(error)
        raise ValueError(
            f"no compiler for {name}: {reason}; run: make compile-check"
        ) from None


def _gpu_devices(name: str) -> list[jax.Device]:
    """One of GPUS, for compiling only."""
    try:
        devices = _described_gpu(name)
        _lower_for_cuda_without_a_gpu()
        _compile_something_for(devices[0])
    except Exception as error:  # private functions may fail in any way
        raise NoGpuCompilerError(
            f"no compiler for {name}: {runs.first_line(error)}"
        ) from None
    return devices


@functools.cache  # once is enough
def _lower_for_cuda_without_a_gpu() -> None:
    """From here on JAX in this process takes "gpu" for "cuda", though it found no GPU.

    There is no public way: this replaces a private function of JAX.
    """
    from jax._src import xla_bridge

    canonical = xla_bridge.canonicalize_platform
    xla_bridge.canonicalize_platform = lambda platform: (
        "cuda" if platform == "gpu" else canonical(platform)
    )


def _described_gpu(name: str) -> list[jax.Device]:
    """One of GPUS, from its description alone.

    `target_config` is an option of the CUDA plugin that JAX does not document.
    """
    gpu = GPUS[name]
    target = string.Template(_GPU_TARGET.read_text()).substitute(
        name=gpu.device_name,
        memory_bytes=gpu.memory_bytes,
        bandwidth=gpu.bytes_per_second,
    )
    topology = topologies.get_topology_desc(
        "", "cuda", target_config=target, topology="1x1x1"
    )
    return topology.devices


def _compile_something_for(device: jax.Device) -> None:
    """Raises an error if there is no compiler for the device."""
    here = jax.sharding.SingleDeviceSharding(device)
    array_like = jax.ShapeDtypeStruct((8,), np.float32, sharding=here)
    jax.jit(jnp.sin).lower(array_like).compile()
