"""Training programs, compiled for accelerators that are not present.

Claim: training and evaluation of eight nets, and the forward pass of Theorem 3.2's
network at ImageNet's size, compile for TPU v5e-8, v4-32 and v6e-8 and fit their memory.
libtpu compiles for any slice without a TPU. It gets what `parallel.ParallelSteps` would
run, with zeros for images. Nothing is run, and only the compiler is timed: images per
second are an upper bound, the lesser of what peak arithmetic and the bandwidth of the
chip's memory allow. The variant "gpu" compiles the paper's net for one H100 and for one
H200 with the compiler of JAX's CUDA plugin. cuDNN picks its algorithms on the GPU, so
their workspace is not counted. "linear" and "linear_gpu" compile the linear nets on
samples and eq. (2.3) at 10^9 points. Their products are exact to float32, which takes a
TPU six passes: the peak that they are compared with is that of one.

Command: make compile-check    # in an environment of its own, .venv-tpu
    make compile-check PROGRAMS='("cifar:cifar10/all_conv_residual",)'    # some of them
    make compile-check-gpu     # in an environment of its own, .venv-cuda12
    make cost                  # writes docs/cost.md
Hardware: 2 CPU cores, 12 GB of memory (for DenseNet). Time: 10 seconds to 16 minutes
for each of the 51 programs, two hours in all, beside other work. Expected: 49 compile
and fit; libtpu crashes on two training programs for v6e-8.
"""

import concurrent.futures.process
import functools
import os
import pathlib
import string
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies

import experiments
from benchmarks import hlo, shared
from experiments import linear_sampled, run
from experiments.images import train
from experiments.images.data import ImageData, classes_and_shape
from experiments.run.settings import configs
from experiments.run.trials import grid
from experiments.run.verdicts import reproduced
from identity_matters import flops, runs
from identity_matters.batches import Arrays, Streams
from identity_matters.images import datasets, imagenet
from identity_matters.memorize import descent, network
from identity_matters.preprocessing import Preprocessing

# Cloud TPU's name of a slice -> libtpu's name, and the layout of its chips and hosts.
SLICES: dict[str, tuple[str, dict]] = {
    "v5e-1": ("v5e:1x1", {"chips_per_host_bounds": (1, 1, 1)}),
    "v5e-8": ("v5e:2x4", {"chips_per_host_bounds": (2, 4, 1)}),
    "v4-32": ("v4:2x2x4", {"chip_config_name": "megacore"}),
    "v6e-8": ("v6e:2x4", {"chips_per_host_bounds": (2, 4, 1)}),
}
# GPU -> device name, bytes of memory, bytes per second: facts from OpenXLA,
# h100_sxm.txtpb and h200.txtpb (xla/backends/gpu/target_config/specs); the JAX wheels
# do not contain them.
GPUS = {
    "h100": ("NVIDIA H100 80GB HBM3", 84_942_979_072, 3_352_320_000_000),
    "h200": ("NVIDIA H200 141GB HBM3e", 151_397_597_184, 4_800_000_000_000),
}
# what its compiler must know
_GPU_TARGET = pathlib.Path(__file__).with_name("gpu_target.txtpb")
NETS = (
    "cifar:cifar10/all_conv_residual",
    "cifar:cifar100/all_conv_residual",
    *(f"cifar:cifar10/{net}" for net in ("all_cnn_c", "resnet", "densenet")),
    *(
        f"imagenet:{variant}"
        for variant in experiments.variants("imagenet", "OTHER_VARIANTS")
    ),
)
MEMORIZE = "memorize:synthetic_imagenet"
LINEAR = tuple(
    f"linear_sampled:{variant}"
    for variant in experiments.variants("linear_sampled", "ACCELERATOR_VARIANTS")
)
POINTS = "linear_sampled:points_large"
# Program -> its parts; of trainings "train" and "evaluate".
_PARTS = {MEMORIZE: ("forward",), POINTS: ("points",)}
# images that a normalisation is fitted to; programs contain its constants
_FITTED_EXAMPLES = 8

_SETTINGS = {
    "tpu": {"slices": ("v5e-8", "v4-32", "v6e-8"), "programs": (*NETS, MEMORIZE)},
    "one_chip": {"slices": ("v5e-1",), "programs": NETS[:1]},
    "gpu": {"slices": tuple(GPUS), "programs": NETS[:1]},
    "linear": {"slices": ("v5e-8", "v4-32", "v6e-8"), "programs": LINEAR},
    "linear_gpu": {"slices": ("h100",), "programs": LINEAR},
}
VARIANTS = tuple(_SETTINGS)
get_config = configs(_SETTINGS)


@functools.cache
def devices_of(name: str) -> list[jax.Device]:
    """The devices of a slice, or one GPU, for compiling only."""
    if name in GPUS:
        return gpu_devices(name)
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


def gpu_devices(name: str) -> list[jax.Device]:
    """One of GPUS, for compiling only; exits the command as skipped where it cannot.

    It relies on private parts of JAX, which a small program tries: the options of the
    CUDA plugin's topology, and `canonicalize_platform`, which must return "cuda"
    although no GPU was found.
    """
    facts = dict(zip(("name", "memory_bytes", "bandwidth"), GPUS[name], strict=True))
    target = string.Template(_GPU_TARGET.read_text()).substitute(facts)
    try:
        from jax._src import xla_bridge

        described = topologies.get_topology_desc(
            "", "cuda", target_config=target, topology="1x1x1"
        )
        canonical = xla_bridge.canonicalize_platform
        xla_bridge.canonicalize_platform = lambda platform: (
            "cuda" if platform == "gpu" else canonical(platform)
        )
        here = jax.sharding.SingleDeviceSharding(described.devices[0])
        jax.jit(jnp.sin).lower(
            jax.ShapeDtypeStruct((8,), np.float32, sharding=here)
        ).compile()
    except Exception as error:  # private functions may fail in any way
        reason = f"no compiler for {name}: {runs.first_line(error)}"
        print(f"{EXPERIMENT.name}: skipped: {reason}", file=sys.stderr)
        raise SystemExit(0) from None
    return described.devices


def trials(*, variant: str, slices: tuple, programs: tuple) -> list[dict]:
    """One trial per slice, program and part; needs the compilers of all slices."""
    for name in slices:
        devices_of(name)
    for name, _, variant in (program.partition(":") for program in programs):
        if name not in experiments.MODULES or variant not in experiments.variants(name):
            raise ValueError(
                f"programs must be EXPERIMENT:VARIANT, got {name}:{variant}"
            )
    return [
        {**cell, "part": part}
        for cell in grid(slice=slices, program=programs)
        for part in _PARTS.get(cell["program"], ("train", "evaluate"))
    ]


def measure(trial: types.SimpleNamespace, key, log) -> dict:
    """Runs `attempt` in another process, which may crash, and whose memory is freed."""
    if log.stop_requested():
        raise run.Interrupted
    try:
        found = shared.alone(_measure_here, trial)
    except concurrent.futures.process.BrokenProcessPool:
        found = {
            **_nothing(devices_of(trial.slice)),
            "problem": "the compiler crashed",
        }
    if not found["fits"]:
        log.say(f"{trial.program} ({trial.part}) on {trial.slice}: {found['problem']}")
    return found


def _measure_here(trial: types.SimpleNamespace) -> dict:
    jax.config.update("jax_enable_compilation_cache", False)  # the compiler is timed
    devices = devices_of(trial.slice)
    experiment, _, variant = trial.program.partition(":")
    settings = experiments.find(experiment).settings_of(variant)
    if trial.program in LINEAR:
        lower: Callable = lower_linear
    else:
        lower = lower_memorize if trial.program == MEMORIZE else lower_training
    return attempt(lambda: lower(settings, trial.part, devices), devices)


def _nothing(devices: list) -> dict:
    return {
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "fits": False,
    }


def attempt(lower, devices: list) -> dict:
    """Compiles a program; failing to compile or to fit is a result, not an error.

    ``lower()`` returns (lowered, steps per program, examples per step, operations per
    example, compute_dtype). docs/metrics.md explains the result, which has a "problem"
    unless it "fits".
    """
    kind = devices[0].device_kind
    result = _nothing(devices)
    try:
        lowered, steps, examples, operations, dtype = lower()
        started = time.perf_counter()
        compiled = lowered.compile()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        return {**result, "problem": runs.first_line(error)}
    result["compiler_seconds"] = time.perf_counter() - started
    memory = compiled.memory_analysis()
    moved = hlo.traffic(compiled.as_text())
    needed = {
        "argument_bytes": memory.argument_size_in_bytes,
        "result_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }
    total = sum(needed.values())
    size, bandwidth = flops.memory_limits(kind)
    result["fits"] = size is None or total <= size
    if not result["fits"]:
        result["problem"] = f"needs {total:.4g} of {size:.4g} bytes"
    counts = {
        op: moved[op, "count"] / steps for op in hlo.COLLECTIVES if moved[op, "count"]
    }
    peak = flops.peak_flops_per_second(kind, dtype)
    share = operations * examples / len(devices)
    seconds: dict = {
        "arithmetic_seconds": peak and share / peak,
        "memory_seconds": bandwidth and moved["memory"] / steps / bandwidth,
    }
    result |= needed | seconds
    return {
        **result,
        "device_memory_bytes": size,
        "steps": steps,
        "examples": examples,
        "operations_per_device": share,
        "moved_bytes": moved["memory"] / steps,
        "accessed_bytes_by_xla": (compiled.cost_analysis() or {}).get("bytes accessed"),
        "collectives": counts,
        "collective_bytes": sum(moved[op, "bytes"] for op in hlo.COLLECTIVES) / steps,
        "images_per_second_at_most": (
            peak and bandwidth and examples / max(seconds.values())
        ),
    }


def lower_training(groups: dict, part: str, devices: list) -> tuple:
    """Lowers a training with these settings as a run would, with zeros for images."""
    training = train.Training(
        **groups, devices=devices, images=stand_in(groups["data"])
    )
    lowered = training.parallel.lower(part, training.intervals.steps_per_dispatch)
    operations = training.task.flops_per_example
    if part == "evaluate":
        operations /= flops.FORWARD_PASSES_PER_TRAINING_STEP
    return *lowered, operations, groups["model"]["compute_dtype"]


def lower_linear(settings: dict, part: str, devices: list) -> tuple:
    """Lowers a training of a linear net on samples, or a part of the points of (2.3).

    At a point, only the products of its 3 l - 2 pairs of matrices are counted.
    """
    settings.pop("scale")
    trial, *_ = linear_sampled.trials(**settings)
    if part == "points":
        points = linear_sampled.Points(**trial, devices=devices)
        operations = 2 * trial["width"] ** 3 * (3 * trial["depth"] - 2)
        return points.lower(), 1, points.points, operations, "float32"
    training = linear_sampled.Training(**trial, devices=devices)
    lowered = training.parallel.lower(part, training.intervals.steps_per_dispatch)
    operations = training.task.flops_per_example
    if part == "evaluate":
        operations /= flops.FORWARD_PASSES_PER_TRAINING_STEP
    return *lowered, operations, "float32"


def stand_in(data: dict) -> ImageData:
    """Data of the published size: zeros for CIFAR, empty streams for ImageNet."""
    _, shape = classes_and_shape(data)
    name = data["normalization"]
    if data["dataset"] == imagenet.NAME:
        preprocessing = Preprocessing(
            name, imagenet.CHANNEL_CONSTANTS, image_shape=shape
        )
        examples: Arrays | Streams = Streams(
            image_shape=shape,
            train_examples=imagenet.PUBLISHED_EXAMPLES["train"],
            test_examples=imagenet.PUBLISHED_EXAMPLES["validation"],
            read_train=_read_nothing,
            read_test=_read_nothing,
            stream=_read_nothing,
        )
    else:
        random = np.random.default_rng(0).integers(
            0, 256, (_FITTED_EXAMPLES, *shape), np.uint8
        )
        preprocessing = Preprocessing.fit(
            name,
            random,
            pad_pixels_per_side=data["pad_pixels_per_side"],
            flip=data["flip"],
        )
        splits = datasets.find_source(data["dataset"]).splits
        examples = Arrays(
            train_images=np.zeros((splits["train"], *shape), np.uint8),
            train_labels=np.zeros(splits["train"], np.int64),
            test_images=np.zeros((splits["test"], *shape), np.uint8),
            test_labels=np.zeros(splits["test"], np.int64),
        )
    return ImageData(examples, preprocessing, {})


def _read_nothing(*_: Any, **__: Any) -> Any:
    raise AssertionError("a program that is only compiled reads no images")


def lower_memorize(groups: dict, part: str, devices: list) -> tuple:
    """Lowers the network of Theorem 3.2 on one device, for one batch of points."""
    fit = groups["fit"]
    ((width, dtype),) = fit["networks"]
    features = fit["features"]
    here = jax.sharding.SingleDeviceSharding(devices[0])
    like = functools.partial(jax.ShapeDtypeStruct, dtype=dtype, sharding=here)
    drawn = jax.eval_shape(
        lambda key: descent.random_network(
            key, fit["examples"][0], features, fit["num_classes"], width
        ),
        jax.random.key(0),
    )
    net = jax.tree.map(lambda leaf: like(leaf.shape), drawn)
    x = like((fit["batch_examples"], features))
    operations = flops.count_flops(network.forward, net, x) / len(x)
    examples = len(devices) * len(x)  # the other devices get other points
    return network.forward.lower(net, x), 1, examples, operations, dtype


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    """Reproduced iff every program compiles and fits."""
    failed = [record for record in records if not record["fits"]]
    metrics: dict = {"programs": len(records), "programs_that_fail": len(failed)}
    for record in records:
        name = f"{record['program']}/{record['part']}/{record['slice']}"
        metrics[f"images_per_second_at_most/{name}"] = record.get(
            "images_per_second_at_most"
        )
    return run.Verdict("compiled-programs", metrics, reproduced(not failed))


EXPERIMENT = run.DeviceExperiment(
    name="benchmark_compile_check",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
