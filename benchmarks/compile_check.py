"""Training programs, compiled for accelerators that are not present.

Claim: training and evaluation of eight nets compile for TPU v5e-8, v4-32 and v6e-8
("tpu") and fit their memory; those of Table 2's rows also for one chip ("one_chip",
"one_chip_rivals") and one GPU ("gpu", "gpu_rivals"). So do the linear nets on samples,
eq. (2.3) at 10^9 points and the forward pass of Theorem 3.2's network at ImageNet's
size ("theory", "theory_gpu").

libtpu compiles for any slice without a TPU. It gets what `parallel.ParallelSteps` would
run, with zeros for images. Nothing is run, and only the compiler is timed: images per
second are an upper bound, the lesser of what peak arithmetic and the bandwidth of the
chip's memory allow. For GPUs the compiler of JAX's CUDA plugin is used. cuDNN picks
its algorithms on the GPU, so their workspace is not counted. The products of the linear
nets are exact to float32, which takes a TPU six passes: they are compared with the peak
of a single pass.

Command: make compile-check    # in an environment of its own, .venv-tpu
    make compile-check CHECK=one_chip    # another variant
    make compile-check PROGRAMS='("cifar:cifar10/all_conv_residual",)'    # some of them
    make compile-check-gpu     # in an environment of its own, .venv-cuda12
    make compile-check-gpu CHECK_GPU=gpu_rivals
    make cost                  # writes docs/cost.md
Hardware: 2 CPU cores, 12 GB of memory (for DenseNet). Time: 10 seconds to 16 minutes
for each program, two hours for "tpu", beside other work. Expected: all compile and fit
with Python 3.12 or newer. With Python 3.11 the lock has libtpu 0.0.42.1, which crashes
on two training programs for v6e-8.
"""

import functools
import time
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

import experiments
from benchmarks import absent_devices, hlo, shared, stand_ins
from experiments import linear_sampled, run
from experiments.images import train
from experiments.measurements import linear_sampled as measurements
from experiments.run.fitting import DeviceTraining
from experiments.run.settings import configs
from experiments.run.trials import grid, without
from experiments.run.verdicts import reproduced
from identity_matters import flops, runs
from identity_matters.memorize import descent, network

PAPERS_NET = "cifar:cifar10/all_conv_residual"
# The other rows of Table 2.
RIVALS = tuple(f"cifar:cifar10/{net}" for net in ("all_cnn_c", "resnet", "densenet"))
NETS = (
    PAPERS_NET,
    "cifar:cifar100/all_conv_residual",
    *RIVALS,
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

_PODS = ("v5e-8", "v4-32", "v6e-8")
_SETTINGS: dict[str, dict] = {
    "tpu": {"slices": _PODS, "programs": NETS},
    "one_chip": {"slices": ("v5e-1",), "programs": (PAPERS_NET,)},
    "one_chip_rivals": {"slices": ("v5e-1",), "programs": RIVALS},
    "gpu": {"slices": tuple(absent_devices.GPUS), "programs": (PAPERS_NET,)},
    "gpu_rivals": {"slices": ("h100",), "programs": RIVALS},
    "theory": {"slices": _PODS, "programs": (*LINEAR, MEMORIZE)},
    "theory_gpu": {"slices": ("h100",), "programs": (*LINEAR, MEMORIZE)},
}
VARIANTS = tuple(_SETTINGS)
get_config = configs(_SETTINGS)


def trials(*, variant: str, slices: tuple, programs: tuple) -> list[dict]:
    """One trial per slice, program and part.

    Raises:
      ValueError: there is no such program, or no compiler for a slice.
      run.SkippedError: there is no compiler for a GPU.
    """
    for name in slices:
        try:
            absent_devices.devices_of(name)
        except absent_devices.NoGpuCompilerError as error:
            raise run.SkippedError(str(error)) from None
    for program in programs:
        _require_program(program)
    return [
        {**cell, "part": part}
        for cell in grid(slice=slices, program=programs)
        for part in _PARTS.get(cell["program"], ("train", "evaluate"))
    ]


def _require_program(program: str) -> None:
    """Raises ValueError unless an experiment has this variant."""
    experiment, _, variant = program.partition(":")
    known = experiment in experiments.MODULES
    if not known or variant not in experiments.variants(experiment):
        raise ValueError(
            f"programs must be EXPERIMENT:VARIANT, got {experiment}:{variant}"
        )


def measure(trial: types.SimpleNamespace, key, log) -> dict:
    """Compiles in another process, which may crash, and whose memory is freed."""
    if log.stop_requested():
        raise run.Interrupted
    try:
        result = shared.alone(_measure_here, trial)
    except shared.CrashedError as error:
        result = {
            **_without_program(absent_devices.devices_of(trial.slice)),
            "problem": f"the compiler crashed ({error})",
        }
    if not result["fits"]:
        log.say(f"{trial.program} ({trial.part}) on {trial.slice}: {result['problem']}")
    return result


def _measure_here(trial: types.SimpleNamespace) -> dict:
    """Compiles the trial's program in this process."""
    # The compiler is timed, so nothing may come from a cache.
    jax.config.update("jax_enable_compilation_cache", False)
    devices = absent_devices.devices_of(trial.slice)
    experiment, _, variant = trial.program.partition(":")
    settings = experiments.find(experiment).settings_of(variant)
    lower = _how_to_lower(trial.program)
    return attempt(lambda: lower(settings, trial.part, devices), devices)


class LoweredProgram(NamedTuple):
    """A lowered program and what it computes.

    Attributes:
      lowered: for all devices.
      steps: training steps, or evaluations, in one run of the program.
      examples: of one step, over all devices.
      operations: floating-point operations for one example.
      compute_dtype: of the products, "float32" or "bfloat16".
    """

    lowered: jax.stages.Lowered
    steps: int
    examples: int
    operations: float
    compute_dtype: str


def _how_to_lower(program: str) -> Callable[[dict, str, list], LoweredProgram]:
    """The function that lowers a program: by its settings, part and devices."""
    if program == POINTS:  # one of LINEAR, but no training
        return lower_points
    if program in LINEAR:
        return lower_linear
    if program == MEMORIZE:
        return lower_memorize
    return lower_training


def _without_program(devices: list) -> dict:
    """What a result says of the devices alone: it fits only if a program shows so."""
    return {
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "fits": False,
    }


def attempt(lower: Callable[[], LoweredProgram], devices: list) -> dict:
    """Compiles a program; failing to compile or to fit is a result, not an error.

    Args:
      lower: makes the program.
      devices: those that it is for.
    Returns:
      What docs/metrics.md explains; it has a "problem" unless it "fits".
    """
    kind = devices[0].device_kind
    result = _without_program(devices)
    try:
        program = lower()
        started = time.perf_counter()
        compiled = program.lowered.compile()
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        return {**result, "problem": runs.first_line(error)}
    result["compiler_seconds"] = time.perf_counter() - started
    memory = _memory_fields(compiled)
    total_bytes = needed_bytes(memory)
    device_bytes, _ = flops.memory_limits(kind)
    result["fits"] = device_bytes is None or total_bytes <= device_bytes
    if not result["fits"]:
        result["problem"] = f"needs {total_bytes:.4g} of {device_bytes:.4g} bytes"
    return {
        **result,
        **memory,
        "device_memory_bytes": device_bytes,
        "steps": program.steps,
        "examples": program.examples,
        **_cost_of_a_step(program, compiled, devices),
        "accessed_bytes_by_xla": (compiled.cost_analysis() or {}).get("bytes accessed"),
    }


def needed_bytes(record: dict) -> int:
    """All bytes of one device's memory that a program takes, from its record."""
    return (
        record["argument_bytes"]
        + record["result_bytes"]
        + record["temporary_bytes"]
        + record["code_bytes"]
    )


def _memory_fields(compiled: jax.stages.Compiled) -> dict[str, int]:
    """The bytes of one device's memory that a program takes, by what takes them."""
    memory: Any = compiled.memory_analysis()
    return {
        "argument_bytes": memory.argument_size_in_bytes,
        "result_bytes": memory.output_size_in_bytes - memory.alias_size_in_bytes,
        "temporary_bytes": memory.temp_size_in_bytes,
        "code_bytes": memory.generated_code_size_in_bytes,
    }


def _cost_of_a_step(
    program: LoweredProgram, compiled: jax.stages.Compiled, devices: list
) -> dict:
    """What a step costs on one device; None for what depends on unknown facts."""
    kind = devices[0].device_kind
    cost = hlo.cost(compiled.as_text() or "")
    collectives = {
        opcode: count / program.steps for opcode, count in cost.collectives.items()
    }
    return {
        **_bound_of_a_step(program, cost, kind, len(devices)),
        "estimated_seconds": _estimated_seconds(cost, program.steps, kind),
        "collectives": collectives,
        "collective_bytes": cost.collective_bytes / program.steps,
    }


def _bound_of_a_step(
    program: LoweredProgram, cost: hlo.Cost, kind: str, devices: int
) -> dict:
    """The least time of a step: no device exceeds the rates of its data sheet.

    Args:
      program: our count of its operations.
      cost: the memory traffic of the compiled program.
      kind: of the devices; a rate that is not known leaves None.
      devices: how many share a step.
    """
    operations = program.operations * program.examples / devices
    peak = flops.peak_flops_per_second(kind, program.compute_dtype)
    arithmetic_seconds = operations / peak if peak else None
    moved_bytes = cost.memory_bytes / program.steps
    _, bandwidth = flops.memory_limits(kind)
    memory_seconds = moved_bytes / bandwidth if bandwidth else None
    images_per_second = None
    if arithmetic_seconds is not None and memory_seconds is not None:
        images_per_second = program.examples / max(arithmetic_seconds, memory_seconds)
    return {
        "operations_per_device": operations,
        "arithmetic_seconds": arithmetic_seconds,
        "moved_bytes": moved_bytes,
        "memory_seconds": memory_seconds,
        "images_per_second_at_most": images_per_second,
    }


def _estimated_seconds(cost: hlo.Cost, steps: int, kind: str) -> float | None:
    """A step by the compiler's own estimate; None where it makes none."""
    clock = flops.clock_hertz(kind)
    if clock is None or not cost.estimated_cycles:
        return None
    return cost.estimated_cycles / steps / clock


def lower_training(groups: dict, part: str, devices: list) -> LoweredProgram:
    """Lowers a training with these settings as a run would, with zeros for images."""
    training = train.Training(
        **groups, devices=devices, images=stand_ins.stand_in(groups["data"])
    )
    return _part_of_training(training, part, training.net.compute_dtype)


def lower_linear(settings: dict, part: str, devices: list) -> LoweredProgram:
    """Lowers a training of a linear net on samples."""
    training = measurements.Training(**_first_linear_trial(settings), devices=devices)
    return _part_of_training(training, part, "float32")


def lower_points(settings: dict, part: str, devices: list) -> LoweredProgram:
    """Lowers eq. (2.3) at one part of the points; `part` is "points".

    At a point, only the products of its 3 l - 2 pairs of matrices are counted.
    """
    trial = _first_linear_trial(settings)
    points = measurements.Points(**trial, devices=devices)
    return LoweredProgram(
        lowered=points.lower(),
        steps=1,
        examples=points.points,
        operations=2 * trial["width"] ** 3 * (3 * trial["depth"] - 2),
        compute_dtype="float32",
    )


def _first_linear_trial(settings: dict) -> dict:
    """The first trial of a variant of `linear_sampled`, which stands for all."""
    first, *_ = linear_sampled.trials(**without(settings, "scale"))
    return first


def _part_of_training(
    training: DeviceTraining, part: str, compute_dtype: str
) -> LoweredProgram:
    """The program of a dispatch ("train") or of a batch of evaluation ("evaluate")."""
    lowered, steps, examples = training.parallel.lower(
        part, training.intervals.steps_per_dispatch
    )
    operations = training.task.flops_per_example
    if part == "evaluate":
        operations /= flops.FORWARD_PASSES_PER_TRAINING_STEP
    return LoweredProgram(
        lowered=lowered,
        steps=steps,
        examples=examples,
        operations=operations,
        compute_dtype=compute_dtype,
    )


def lower_memorize(groups: dict, part: str, devices: list) -> LoweredProgram:
    """Lowers the network of Theorem 3.2 on one device, for one batch of points."""
    fit = groups["fit"]
    ((width, dtype),) = fit["networks"]
    features = fit["features"]
    here = jax.sharding.SingleDeviceSharding(devices[0])
    array_like = functools.partial(jax.ShapeDtypeStruct, dtype=dtype, sharding=here)
    drawn = jax.eval_shape(
        lambda key: descent.random_network(
            key, fit["examples"][0], features, fit["num_classes"], width
        ),
        jax.random.key(0),
    )
    net = jax.tree.map(lambda leaf: array_like(leaf.shape), drawn)
    points = array_like((fit["batch_examples"], features))
    return LoweredProgram(
        lowered=network.forward.lower(net, points),
        steps=1,
        # The other devices get other points.
        examples=len(devices) * len(points),
        operations=flops.count_flops(network.forward, net, points) / len(points),
        compute_dtype=dtype,
    )


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
