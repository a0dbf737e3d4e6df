"""The cost of dividing a training step over devices, without any link between them.

The step of a small all-convolutional residual net, with the same batch, is run on 1, 2, 4 and 8
virtual devices of the same CPU cores. There the whole arithmetic is always the same and nothing is
sent anywhere, so the time on N devices over that on one is what the partition itself costs:
smaller shares of the batch, N times the dispatches, the sums of gradients. Each number of devices
has a process of its own, since XLA fixes it when it starts; the two that are compared take turns,
round by round, and the median of the rounds' ratios counts. Both must come to the same loss in a
round before that.

Expected: at most 1.5 with 8 devices. Our choice: then two thirds of the speed of 8 real devices are
left to what the links cost, which docs/cost.md has a model for. On two cores two devices are faster
than one, whose arithmetic has to be shared among threads.

Command: python -m benchmarks.scaling
Hardware: any CPU. Time: about two minutes on 2 cores.
"""

import json
import os
import statistics
import subprocess
import sys

import jax
import numpy as np

from experiments import harness

CLAIM = "Section 4: scaling over devices"
# The same sums in another order, in float32.
LOSS_TOLERANCE = 1e-3


def plan(
    *,
    variant,
    device_counts,
    net,
    batch_examples,
    examples,
    image_pixels_per_side,
    num_classes,
    steps_per_round,
    rounds,
    largest_overhead,
) -> list[dict]:
    """One cell for each number of devices."""
    if variant != "virtual_devices":
        raise ValueError(f"variant must be virtual_devices, got {variant!r}")
    if not device_counts or min(device_counts) < 2:
        raise ValueError(f"device_counts must be numbers of 2 or more, got {device_counts}")
    for count in device_counts:
        if batch_examples % count:
            raise ValueError(
                f"batch_examples must be a multiple of device_counts, got {batch_examples} and"
                f" {count}"
            )
    size = {
        "batch_examples": batch_examples,
        "examples": examples,
        "image_pixels_per_side": image_pixels_per_side,
        "num_classes": num_classes,
        "steps_per_round": steps_per_round,
        "rounds": rounds,
    }
    for name, value in size.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if not largest_overhead > 0:
        raise ValueError(f"largest_overhead must be positive, got {largest_overhead}")
    return [{"devices": count, "net": net, **size} for count in device_counts]


def measure(cell: dict, key) -> dict:
    """Median seconds of a step on one device and on several, and the median of their ratios."""
    settings = {name: value for name, value in cell.items() if name not in ("devices", "rounds")}
    settings["key"] = np.asarray(jax.random.key_data(key)).tolist()
    with _Worker(1, settings) as one, _Worker(cell["devices"], settings) as several:
        if abs(several.loss / one.loss - 1) > LOSS_TOLERANCE:
            raise RuntimeError(
                f"the loss is {one.loss} on one device and {several.loss} on {cell['devices']}:"
                " these are not the same steps"
            )
        rounds = [(one.run(), several.run()) for _ in range(cell["rounds"])]
    steps = cell["steps_per_round"]
    return {
        "one_device_step_seconds": statistics.median(alone for alone, _ in rounds) / steps,
        "step_seconds": statistics.median(shared for _, shared in rounds) / steps,
        "overhead": statistics.median(shared / alone for alone, shared in rounds),
        "round_seconds": rounds,
        "loss": one.loss,
    }


class _Worker:
    """scaling_worker.py on so many virtual devices, in a process of its own."""

    def __init__(self, devices: int, settings: dict):
        count = f"--xla_force_host_platform_device_count={devices}"
        flags = f"{os.environ.get('XLA_FLAGS', '')} {count}".strip()
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        # It would win over the flag.
        environment.pop("JAX_NUM_CPU_DEVICES", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.scaling_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        described = self._ask(settings)
        if described["devices"] != devices:
            raise RuntimeError(f"asked for {devices} devices, got {described['devices']}")
        self.loss = described["loss"]

    def _ask(self, question) -> dict:
        self._process.stdin.write(f"{json.dumps(question)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("a worker ended; its error is above")
        return json.loads(answer)

    def run(self) -> float:
        """Seconds of one round."""
        return self._ask("run")["seconds"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def conclude(config: dict, records: list[dict]) -> harness.Conclusion:
    """Reproduced iff no number of devices costs more than the largest overhead asked for."""
    metrics = {"largest_overhead_asked": config["largest_overhead"]}
    for record in records:
        metrics[f"overhead/{record['devices']}_devices"] = record["overhead"]
    metrics["one_device_step_seconds"] = statistics.median(
        record["one_device_step_seconds"] for record in records
    )
    largest = max(record["overhead"] for record in records)
    holds = largest <= config["largest_overhead"]
    return harness.Conclusion(CLAIM, metrics, "reproduced" if holds else "not reproduced")


EXPERIMENT = harness.Experiment("benchmark_scaling", plan, measure, conclude)

if __name__ == "__main__":
    harness.run(EXPERIMENT)
