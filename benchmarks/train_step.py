"""Training speed: images per second of our step against plain PyTorch, on the same machine.

Our side is a whole step of this suite: gathering the batch from the device, augmentation, forward
and backward pass, weight decay and momentum, with its metrics read as a training reads them.
PyTorch's side (see torch_worker.py) has its batch drawn beforehand and augments nothing:
channels_last, bf16 autocast and torch.compile on a GPU; eager float32 on a CPU, and eager bf16
autocast beside it. They take turns, round by round; the medians are compared. PyTorch lives in an
environment of its own, .venv-torch.
Goals for Table 1's net: on a CPU at least level with PyTorch in float32; on a GPU 1.2 times its
images per second, and on an H200 33,000 images per second. On a CPU a net of a quarter of the width
is measured beside it, without a goal.

Command: python -m benchmarks.train_step    # needs PyTorch: make bench-train installs it
Hardware: any. Time: two to three minutes on 2 CPU cores.
"""

import contextlib
import json
import math
import pathlib
import statistics
import subprocess
import sys
import time

import jax

from benchmarks import compile_check, load
from experiments import run
from experiments.images import train
from experiments.run.shared import configs, reproduced, require_between, without
from identity_matters import flops as counts
from identity_matters.train import parallel
from identity_matters.train import step as steps

CLAIM = "training-speed"
# Table 1, whose speed is the claim; others are measured beside it.
JUDGED_NET = "table_1"
_WORKER = pathlib.Path(__file__).resolve().parent / "torch_worker.py"
_ORDER_SEED = 0
# Before it starts: its own threads and PyTorch's would count as load.
_LOAD_PER_CORE = load.per_core()


VARIANTS = ("cpu", "gpu")
_FULL = {"blocks_per_stage": (9, 9, 9), "widths": (64, 128, 256)}
_QUARTER = {"blocks_per_stage": (9, 9, 9), "widths": (16, 32, 64)}
_SETTINGS = {
    "cpu": {
        # Table 1, and on a CPU a quarter of its width as well.
        "nets": {"table_1": _FULL, "quarter_width": _QUARTER},
        "batch_examples": 32,
        "compute_dtype": "float32",
        "steps_per_round": 3,
        "steps_per_dispatch": 1,
        "least_speedup": 1.0,  # goal: our images per second over PyTorch's, at least
    },
    "gpu": {
        "nets": {"table_1": _FULL},
        "batch_examples": 128,
        "compute_dtype": "bfloat16",
        "steps_per_round": 400,
        "steps_per_dispatch": 100,
        "least_speedup": 1.2,
    },
}
_COMMON = {
    "rounds": 5,
    "learning_rate": 0.01,
    "images_per_second_goals": {"H200": 33_000},  # by a part of the device's name
    "torch_python": ".venv-torch/bin/python",  # of an environment with PyTorch
}
get_config = configs(_SETTINGS, _COMMON)


def trials(
    *, variant, nets, least_speedup, images_per_second_goals, torch_python, **size
) -> list[dict]:
    """One trial for each net."""
    goals = (least_speedup, *images_per_second_goals.values())
    require_between(0, math.inf, goals=goals, nets=nets, **size)
    if size["steps_per_round"] % size["steps_per_dispatch"]:
        raise ValueError(
            f"steps_per_round must be a multiple of steps_per_dispatch, got"
            f" {size['steps_per_round']} and {size['steps_per_dispatch']}"
        )
    on_cpu = jax.default_backend() == "cpu"
    if on_cpu != (variant == "cpu"):
        raise ValueError(f"variant {variant} does not fit this machine's {jax.default_backend()}")
    if not pathlib.Path(torch_python).exists():
        raise ValueError(f"there is no {torch_python} with PyTorch; run: make bench-train")
    return [
        {"net": name, **net, **size, "torch_python": torch_python} for name, net in nets.items()
    ]


def measure(trial: dict, key, log) -> dict:
    """Median images per second of both, in rounds that take turns."""
    ours = Rounds(trial, key)
    image, *_ = ours.training.task.data.image_shape
    settings = {**trial, "stem_width": 16, "kernel_size": 3, "image_pixels_per_side": image}
    settings["num_classes"] = ours.training.num_classes
    devices, parameters = ours.parallel.devices, ours.training.parameters
    flops = ours.training.task.flops_per_example
    peers = {"torch": settings}
    if trial["compute_dtype"] == "float32":
        peers["torch_bfloat16"] = {**settings, "compute_dtype": "bfloat16"}
    with contextlib.ExitStack() as stack:
        theirs = {
            name: stack.enter_context(_Torch(trial["torch_python"], own))
            for name, own in peers.items()
        }
        described = theirs["torch"].described
        if parameters != described["parameters"]:
            raise RuntimeError(
                f"the nets differ: {parameters} parameters here and"
                f" {described['parameters']} in PyTorch"
            )
        seconds = {name: [] for name in ("ours", *theirs)}
        for _ in range(trial["rounds"] + 1):
            if log.stop_requested():
                raise run.Interrupted
            seconds["ours"].append(ours.run())
            for name, worker in theirs.items():
                seconds[name].append(worker.run(trial["steps_per_round"]))
    # The first round of each compiles or warms up.
    images = trial["steps_per_round"] * trial["batch_examples"]
    rates = {name: images / statistics.median(s[1:]) for name, s in seconds.items()}
    peak = counts.peak_flops_per_second(devices[0].device_kind, trial["compute_dtype"])
    return {
        "parameters": parameters,
        "torch_described": described,
        "devices": len(devices),
        "device_kind": devices[0].device_kind,
        "images_per_second": rates["ours"],
        **{f"{name}_images_per_second": rates[name] for name in theirs},
        "speedup": rates["ours"] / rates["torch"],
        "model_flops_per_second": rates["ours"] * flops,
        "utilization_percent": None if peak is None else 100 * rates["ours"] * flops / peak,
        "round_seconds": seconds,
        "load_per_core": _LOAD_PER_CORE,
    }


class Rounds:
    """Table 1's blocks and the paper's optimizer on images of CIFAR's shape, round by round.

    `sums` are those of the last dispatch.
    """

    def __init__(self, trial: dict, key):
        # A CPU as a training divides it, but one accelerator: PyTorch uses no more.
        on_cpu = jax.default_backend() == "cpu"
        batch_examples = trial["batch_examples"]
        model = {name: trial[name] for name in ("blocks_per_stage", "widths", "compute_dtype")}
        self.steps, self.per_dispatch = trial["steps_per_round"], trial["steps_per_dispatch"]
        groups = train.settings(
            "paper",
            {"dataset": "cifar10"},
            model,
            {
                "schedule": "constant",
                "boundary_steps": (),
                "learning_rate": trial["learning_rate"],
            },
            batch_examples=batch_examples,
            steps_per_dispatch=self.per_dispatch,
        )
        self.training = train.Training(
            **without(groups, "scale"),
            devices=None if on_cpu else parallel.pick_devices(1, batch_examples),
            images=compile_check.stand_in(groups["data"]),
        )
        self.parallel, task = self.training.parallel, self.training.task
        init_key, step_key = jax.random.split(key)
        # How many rounds there are is up to the clock.
        self.stream = self.parallel.open_train(_ORDER_SEED, 0, sys.maxsize)
        state = steps.initial_state(task.init(init_key), task.optimizer)
        self.state = self.parallel.start(step_key, jax.device_get(state))

    def run(self) -> float:
        """Seconds for one round of steps, the sums of the last dispatch read at its end."""
        started = time.perf_counter()
        for _ in range(0, self.steps, self.per_dispatch):
            batches = [next(self.stream) for _ in range(self.per_dispatch)]
            self.state, sums = self.parallel.train(self.state, self.parallel.place(batches))
            if self.parallel.on_cpu:
                self.parallel.read(sums)
        self.parallel.read(sums)
        self.sums = sums
        return time.perf_counter() - started


class _Torch:
    """torch_worker.py in a process of its own."""

    def __init__(self, python: str, settings: dict):
        self._process = subprocess.Popen(
            [python, str(_WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.described = self._ask(json.dumps(settings))

    def _ask(self, line: str) -> dict:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("PyTorch's process ended; its error is above")
        return json.loads(answer)

    def run(self, count: int) -> float:
        """Seconds for `count` steps."""
        return self._ask(str(count))["seconds"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    """Reproduced iff the paper's net reaches the goal over PyTorch, and the one of this device."""
    metrics = {"least_speedup_asked": config["least_speedup"]}
    judged = [record for record in records if record["net"] == JUDGED_NET]
    goals = [record["speedup"] >= config["least_speedup"] for record in judged]
    for record in records:
        for name in record:
            if name == "speedup" or name.endswith("images_per_second"):
                metrics[f"{name}/{record['net']}"] = record[name]
        if record["utilization_percent"] is not None:
            metrics[f"utilization_percent/{record['net']}"] = record["utilization_percent"]
        for kind, goal in config["images_per_second_goals"].items():
            if kind in record["device_kind"] and record in judged:
                metrics[f"images_per_second_goal/{record['net']}"] = goal
                goals.append(record["images_per_second"] >= goal)
    found = run.Verdict(CLAIM, metrics, reproduced(bool(goals) and all(goals)))
    return load.judged(found, records)


EXPERIMENT = run.Experiment(
    "benchmark_train_step", trials, measure, verdict, trains=True, logs_steps=False
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
