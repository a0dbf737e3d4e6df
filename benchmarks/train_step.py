"""Training speed: images per second of our step against plain PyTorch.

Our side is a whole step of this suite: gathering the batch on the device, augmentation,
forward and backward pass, weight decay and momentum, with its metrics read as in a
training. PyTorch's side, torch_worker.py, has its batch drawn beforehand and does not
augment. It uses channels_last: on a GPU with bf16 autocast and torch.compile; on a CPU
eagerly in float32, and also with bf16 autocast if the CPU multiplies bfloat16. All take
turns in every round. Their medians are compared, and on a CPU also the seconds that the
processor spent, which other load changes less. Both sides have random pixels. Goals: on
a CPU, to be at least level with PyTorch in float32, for Table 1's net, one of a quarter
of its width and `cifar10/small`; on a GPU, for Table 1's net alone, 1.2 times PyTorch's
images per second, and 33,000 on an H200.

Command: make bench-train, which installs PyTorch for it
Hardware: any. Time: two to three minutes on 2 CPU cores.
"""

import contextlib
import functools
import json
import pathlib
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Iterator

import jax
import numpy as np

from benchmarks import shared, stand_ins
from experiments import run
from experiments.images import train
from experiments.images.settings import make_settings
from experiments.run.settings import configs
from identity_matters import flops
from identity_matters.batches import Arrays
from identity_matters.images import datasets
from identity_matters.train import step as steps

_WORKER = pathlib.Path(__file__).resolve().parent / "torch_worker.py"
_ORDER_SEED = 0
_EXAMPLES = 10_000  # on our side, from which the steps take their batches

VARIANTS = ("cpu", "gpu")
_FULL = {"blocks_per_stage": (9, 9, 9), "widths": (64, 128, 256)}
_QUARTER = {"blocks_per_stage": (9, 9, 9), "widths": (16, 32, 64)}
_SMALL = {"blocks_per_stage": (3, 3, 3), "widths": (32, 64, 128)}
_SETTINGS = {
    "cpu": {
        "nets": {
            "table_1": {**_FULL, "batch_examples": 32},
            "quarter_width": {**_QUARTER, "batch_examples": 32},
            "cifar10_small": {**_SMALL, "batch_examples": 128},
        },
        "compute_dtype": "float32",
        "steps_per_round": 3,
        "steps_per_dispatch": 1,
        "least_speedup": 1.0,  # goal: our images per second over PyTorch's, at least
    },
    "gpu": {
        "nets": {"table_1": {**_FULL, "batch_examples": 128}},
        "compute_dtype": "bfloat16",
        "steps_per_round": 400,
        "steps_per_dispatch": 100,
        "least_speedup": 1.2,  # goal: our images per second over PyTorch's, at least
    },
}
_COMMON = {
    "rounds": 5,
    "learning_rate": 0.01,
    "images_per_second_goals": {"H200": 33_000},  # by a part of the device's name
    "torch_python": ".venv-torch/bin/python",  # Python of an environment with PyTorch
}
get_config = configs(_SETTINGS, _COMMON)


def trials(
    *, variant, nets, least_speedup, images_per_second_goals, **size
) -> list[dict]:
    """One trial for each net."""
    if size["steps_per_round"] % size["steps_per_dispatch"]:
        got = f"got {size['steps_per_round']} and {size['steps_per_dispatch']}"
        raise ValueError(
            f"steps_per_round must be a multiple of steps_per_dispatch, {got}"
        )
    if (jax.default_backend() == "cpu") != (variant == "cpu"):
        raise ValueError(
            f"variant {variant} does not fit this machine's {jax.default_backend()}"
        )
    if not pathlib.Path(size["torch_python"]).exists():
        raise ValueError(
            f"there is no {size['torch_python']} with PyTorch; run: make bench-train"
        )
    return [{"net": name, **net, **size} for name, net in nets.items()]


def measure(trial: types.SimpleNamespace, key, log) -> dict:
    """Median images per second of all sides, which take turns in every round."""
    load_per_core = _load_at_the_first_trial()
    training = _training(trial)
    with contextlib.ExitStack() as stack:
        described, peers = _start_peers(trial, stack)
        if training.parameters != described["parameters"]:
            raise RuntimeError(
                f"the nets differ: {training.parameters} parameters here and"
                f" {described['parameters']} in PyTorch"
            )
        sides = {"ours": _our_rounds(training, trial, key), **peers}
        seconds, cpu_seconds = _take_turns(sides, trial.rounds, log)
    # The first round of each side compiles or warms up.
    images = trial.steps_per_round * trial.batch_examples
    rates = {name: images / statistics.median(s[1:]) for name, s in seconds.items()}
    spent = {name: statistics.median(s[1:]) for name, s in cpu_seconds.items()}
    devices = training.parallel.devices
    flops_per_second = rates["ours"] * training.task.flops_per_example
    peak = flops.peak_flops_per_second(devices[0].device_kind, trial.compute_dtype)
    return {
        "parameters": training.parameters,
        "torch_described": described,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "images_per_second": rates["ours"],
        **{f"{name}_images_per_second": rates[name] for name in peers},
        "speedup": rates["ours"] / rates["torch"],
        "torch_cpu_seconds_over_ours": spent["torch"] / spent["ours"],
        "model_flops_per_second": flops_per_second,
        "utilization_percent": (
            None if peak is None else 100 * flops_per_second / peak
        ),
        "round_seconds": seconds,
        "round_cpu_seconds": cpu_seconds,
        "load_per_core": load_per_core,
    }


@functools.cache
def _load_at_the_first_trial() -> float:
    """The load per core before the benchmark's own threads and PyTorch's add to it."""
    return shared.load_per_core()


def _start_peers(
    trial: types.SimpleNamespace, stack: contextlib.ExitStack
) -> tuple[dict, dict[str, Iterator]]:
    """What PyTorch's process says of itself, and name -> rounds of each of its sides.

    The processes end with the stack.
    """
    described, rounds = stack.enter_context(_torch_worker(trial))
    peers = {"torch": rounds}
    # Without instructions for bfloat16 it is ten times slower, and nobody would use it.
    if trial.compute_dtype == "float32" and described["multiplies_bfloat16"]:
        settings = {**vars(trial), "compute_dtype": "bfloat16"}
        in_bfloat16 = _torch_worker(types.SimpleNamespace(**settings))
        _, peers["torch_bfloat16"] = stack.enter_context(in_bfloat16)
    return described, peers


def _take_turns(
    sides: dict[str, Iterator], rounds: int, log
) -> tuple[dict[str, list], dict[str, list]]:
    """Seconds and CPU seconds of each side's rounds, one more than `rounds`."""
    seconds: dict[str, list] = {name: [] for name in sides}
    cpu_seconds: dict[str, list] = {name: [] for name in sides}
    for _ in range(rounds + 1):
        if log.stop_requested():
            raise run.Interrupted
        for name, side in sides.items():
            wall, cpu = next(side)
            seconds[name].append(wall)
            cpu_seconds[name].append(cpu)
    return seconds, cpu_seconds


def _training(trial: types.SimpleNamespace) -> train.Training:
    """Table 1's blocks and the paper's optimizer, on random pixels as PyTorch's side.

    On zeros a GPU is faster than on images: fewer bits change.
    """
    model = {
        "blocks_per_stage": trial.blocks_per_stage,
        "widths": trial.widths,
        "compute_dtype": trial.compute_dtype,
    }
    optim = {
        "schedule": "constant",
        "boundary_steps": (),
        "learning_rate": trial.learning_rate,
    }
    # On a CPU the devices that a training uses, else one accelerator, as PyTorch uses
    # one.
    devices = 0 if jax.default_backend() == "cpu" else 1
    groups = make_settings(
        scale="paper",
        data={"dataset": "cifar10"},
        model=model,
        optim=optim,
        batch_examples=trial.batch_examples,
        steps_per_dispatch=trial.steps_per_dispatch,
        devices=devices,
    )
    rng = np.random.default_rng(_ORDER_SEED)
    source = datasets.find_source("cifar10")
    pixels = rng.integers(0, 256, (_EXAMPLES, *source.image_shape), np.uint8)
    labels = rng.integers(0, source.num_classes, _EXAMPLES)
    stand_in = stand_ins.stand_in(groups["data"])
    images = stand_in._replace(examples=Arrays(pixels, labels, pixels, labels))
    return train.Training(**groups, images=images)


def _our_rounds(
    training: train.Training, trial: types.SimpleNamespace, key
) -> Iterator[tuple[float, float]]:
    """Yields (seconds, CPU seconds) of one round of steps with its metrics read."""
    steps_on_devices = training.parallel
    task = training.task
    per_dispatch = trial.steps_per_dispatch
    init_key, step_key = jax.random.split(key)
    without_end = sys.maxsize  # the caller stops
    stream = steps_on_devices.open_train(_ORDER_SEED, 0, without_end)
    state = steps.initial_state(task.init(init_key), task.optimizer)
    state = steps_on_devices.start(step_key, jax.device_get(state))
    while True:
        started = time.perf_counter()
        cpu_started = time.process_time()
        for _ in range(0, trial.steps_per_round, per_dispatch):
            batches = [next(stream) for _ in range(per_dispatch)]
            state, sums = steps_on_devices.train(state, steps_on_devices.place(batches))
            if steps_on_devices.on_cpu:
                steps_on_devices.read(sums)
        steps_on_devices.read(sums)
        yield time.perf_counter() - started, time.process_time() - cpu_started


@contextlib.contextmanager
def _torch_worker(
    trial: types.SimpleNamespace,
) -> Iterator[tuple[dict, Iterator[tuple[float, float]]]]:
    """What torch_worker.py says of itself, and its rounds; the process ends then."""
    with subprocess.Popen(
        [trial.torch_python, str(_WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        described = _ask(process, json.dumps(vars(trial)))
        yield described, _torch_rounds(process, trial.steps_per_round)


def _torch_rounds(
    process: subprocess.Popen, steps: int
) -> Iterator[tuple[float, float]]:
    """Yields (seconds, CPU seconds) of one round of steps after the other."""
    while True:
        answer = _ask(process, str(steps))
        yield answer["seconds"], answer["cpu_seconds"]


def _ask(process: subprocess.Popen, line: str) -> dict:
    """The worker's answer to one line."""
    print(line, file=process.stdin, flush=True)
    answer = process.stdout.readline() if process.stdout else ""
    if not answer:
        raise RuntimeError("PyTorch's process ended; its error is above")
    return json.loads(answer)


SHOWN = ("speedup", "torch_cpu_seconds_over_ours", "utilization_percent")


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    """Reproduced iff every net reaches the speedup and the device's own goal."""
    metrics = {"least_speedup_asked": config["least_speedup"]}
    goals = [record["speedup"] >= config["least_speedup"] for record in records]
    for record in records:
        for name in record:
            is_speed = name in SHOWN or name.endswith("images_per_second")
            if is_speed and record[name] is not None:
                metrics[f"{name}/{record['net']}"] = record[name]
        for kind, goal in config["images_per_second_goals"].items():
            if kind in record["device_kind"]:
                metrics[f"images_per_second_goal/{record['net']}"] = goal
                goals.append(record["images_per_second"] >= goal)
    return shared.judged("training-speed", metrics, bool(goals) and all(goals), records)


EXPERIMENT = run.DeviceExperiment(
    name="benchmark_train_step",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
