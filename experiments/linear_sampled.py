"""Linear residual nets on samples: minibatches shared by all devices, in float32.

* noise_floor, noise_floor_large: minibatch descent from zero weights on ``y = R x +
  noise``, R symmetric, Sigma = I. The risk comes to rest where S1
  (docs/theory/sampled.md) says, and |||A||| stays O(1/l). The gradients are averaged
  over all devices; a killed run resumes bit for bit.
* devices: the same training on 1, 2, 4 and 8 devices; a CPU has as many virtual ones.
* points, points_large: corrected eq. (2.3) at random points of the ball, on all
  devices, with a bound of the rounding error at each point (G11 of
  docs/theory/gradient_bound.md).

Command: python -m experiments.linear_sampled --config=:noise_floor
    (or :devices, :points)
Hardware: 2 CPU cores; noise_floor_large (1,024 dimensions, 256 layers) and points_large
(10^9 points) need an accelerator. Time: 12, 6 and 24 s of processor time. The criteria
were written before the first run. Expected: risk within 10 % of S1 at every depth, l
|||A||| at most 1, devices agree to 1e-4, and no point violates eq. (2.3).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import run
from experiments.run import RESULT
from experiments.run.fitting import DeviceTraining, make_intervals
from experiments.run.settings import configs
from experiments.run.trials import each
from experiments.run.verdicts import (
    largest,
    least,
    reproduced,
    total,
    under_attack,
    where,
)
from identity_matters import random_matrices
from identity_matters.batches import Drawn
from identity_matters.linear import random_points, sampled, sampled_bound
from identity_matters.train import loop, parallel, step

VARIANTS = {
    "noise_floor": "the risk that minibatch descent reaches, three depths",
    "devices": "the same training on 1, 2, 4 and 8 devices",
    "points": "eq. (2.3), corrected, at 10^7 random points",
}
ACCELERATOR_VARIANTS = {
    "noise_floor_large": "1,024 dimensions, 256 layers",
    "points_large": "10^9 points",
}
_PROBLEM = {
    "width": 64,  # d
    "gamma": 0.5,  # the eigenvalues of R are e^t, t evenly spaced from -gamma to gamma
    "noise_std": 1.0,  # of the labels; 1 in the paper
}
_TRAIN = {
    "rate_times_depth": 0.02,  # the learning rate times l
    "steps": 500,
    "batch_examples": 256,
    "devices": 0,  # 0: as many devices as divide the batch
    "steps_per_dispatch": 20,
    "steps_per_log": 100,
    "steps_per_evaluation": 20,
    "steps_per_checkpoint": 100,
}
_FLOOR = {
    # Our choices, from before the first run.
    "settled_from_step": 300,  # evaluations from here on are averaged
    "floor_tolerance": 0.1,  # largest relative difference from the predicted risk
    "most_norm_times_depth": 1.0,  # largest l |||A||| at any evaluation
}
_SETTINGS = {
    "noise_floor": {
        "problem": _PROBLEM,
        "depths": (4, 8, 32),
        "train": _TRAIN,
        **_FLOOR,
    },
    "devices": {
        "problem": {**_PROBLEM, "width": 16},
        "depth": 8,  # layers
        "train": {**_TRAIN, "steps": 200, "batch_examples": 64},
        "device_counts": (1, 2, 4, 8),
        # Largest relative difference of a risk or weight from that on the first number
        # of devices: 500 times the rounding error of a sum of 64 terms. Our choice,
        # from before the first run.
        "agreement_tolerance": 1e-4,
    },
    "points": {
        "shapes": ((3, 3), (4, 2)),  # (layers, d)
        "parts": 5,  # trials for each shape
        "chunks": 512,  # of each trial, shared by the devices
        "points_per_chunk": 2000,
        "max_tau": 0.75,  # greatest tau
    },
    "noise_floor_large": {
        "problem": {**_PROBLEM, "width": 1024},
        "depths": (256,),
        "train": {**_TRAIN, "batch_examples": 8192},
        **_FLOOR,
    },
    "points_large": {
        "shapes": ((3, 3), (4, 2)),
        "parts": 50,
        "chunks": 1024,
        "points_per_chunk": 10_000,
        "max_tau": 0.75,
    },
}
get_config = configs(_SETTINGS)


def trials(*, variant: str, **settings) -> list[dict]:
    """A training for each depth, all trainings of `devices`, or a part of points."""
    if "shapes" in settings:
        parts = {**settings, "parts": range(settings["parts"])}
        return each(parts, {"shapes": "depth width", "parts": "part"})
    return each(settings, {"depths": "depth"})


def build(**trial) -> Any:
    """What runs a trial: a `Training`, `SeveralCounts` of devices, or `Points`."""
    if "part" in trial:
        return Points(**trial)
    if "device_counts" in trial:
        return SeveralCounts(**trial)
    return Training(**trial)


class Training(DeviceTraining):
    """Minibatch descent, by default on the devices that the settings ask for."""

    keeps_checkpoint = False

    def __init__(
        self, *, problem: dict, depth: int, train: dict, devices=None, **settings
    ):
        self.depth = depth
        self.width = problem["width"]
        exponents = np.linspace(-problem["gamma"], problem["gamma"], self.width)
        self.eigenvalues = np.exp(exponents)
        # R is part of the problem: --seed draws the samples.
        R = random_matrices.symmetric(np.random.default_rng(0), self.eigenvalues)
        self.problem = sampled.make_problem(R, np.eye(self.width), problem["noise_std"])
        self.learning_rate = train["rate_times_depth"] / depth
        self.batch_examples = train["batch_examples"]
        self.settled_from_step = settings.get("settled_from_step", 0)
        self.settings = {"problem": problem, "depth": depth, "train": train}
        examples = Drawn(
            lambda keys: sampled.draw(self.problem, keys),
            self.batch_examples,
            *sampled.exact_split(self.problem),
        )
        task = step.Task(
            init=self.init,
            apply=apply,
            train_input=lambda x, keys: x,
            eval_input=lambda x: x,
            data=examples,
            optimizer=optax.sgd(self.learning_rate),
            schedule=optax.constant_schedule(self.learning_rate),
            # A product takes 2 d^2 operations for each example, a backward pass two of
            # them.
            flops_per_example=3 * 2.0 * depth * self.width**2,
            compare=step.regression,
            unrolled_on_cpu=False,
        )
        devices = devices or parallel.pick_devices(
            train["devices"], self.batch_examples
        )
        super().__init__(task, self._steps_on(task, devices), make_intervals(train))

    def steps_on(self, devices: list) -> parallel.ParallelSteps:
        """The steps of the task on other devices."""
        return self._steps_on(self.task, devices)

    def _steps_on(self, task: step.Task, devices: list) -> parallel.ParallelSteps:
        return parallel.ParallelSteps(
            task,
            devices=devices,
            batch_examples=self.batch_examples,
            # An evaluation takes all of its d examples at once.
            evaluation_batch_examples=self.width,
        )

    def init(self, key) -> dict:
        """Zero weights; nothing is drawn."""
        weights = jnp.zeros((self.depth, self.width, self.width), jnp.float32)
        return {"params": {"A": weights}, "fixed": {}, "batch_stats": {}}

    def predicted_risk(self) -> float:
        """S1, which uses that R is symmetric and Sigma = I."""
        return sampled_bound.noise_floor(
            self.eigenvalues,
            np.ones(self.width),
            depth=self.depth,
            learning_rate=self.learning_rate,
            batch_examples=self.batch_examples,
            noise_std=self.problem.noise_std,
        )

    def run(self, key, log) -> dict:
        """Trains; evaluations give the exact risk, and bounds on each ||A_i||."""
        result = self.fit(log, key=key, settings=self.settings, compute_dtype="float32")
        evaluations = where(log.records, kind="evaluation")
        settled = [
            r["test_loss"] for r in evaluations if r["step"] >= self.settled_from_step
        ]
        return {
            **self.size(),
            **result,
            "learning_rate": self.learning_rate,
            "start_excess_risk": evaluations[0]["test_loss"],
            "excess_risk": float(np.mean(settled)),
            "predicted_excess_risk": self.predicted_risk(),
            "largest_norm": max(max(r["residual_ratio"]) for r in evaluations),
        }


def apply(variables: dict, x, *, train: bool, keys=None) -> tuple:
    """The net, as `step.Task` wants it.

    In evaluations "residual_ratio" bounds each ||A_i||.
    """
    A = variables["params"]["A"]
    intermediates: dict = {"batch_stats": {}}
    if not train:
        bounds = sampled.spectral_norm_bounds(A)
        intermediates["residual_ratio"] = jnp.broadcast_to(
            bounds[:, None], (len(A), len(x))
        )
    return sampled.forward(A, x), intermediates


class SeveralCounts:
    """The same training on several numbers of devices, without checkpoints."""

    keeps_checkpoint = False

    def __init__(self, *, device_counts: tuple, agreement_tolerance: float, **settings):
        most = max(device_counts)
        devices = parallel.pick_devices(0, most)
        self.devices = devices if len(devices) >= most else jax.devices("cpu")
        if len(self.devices) < most:
            raise ValueError(
                f"device_counts must be at most {len(self.devices)} here, got {most}"
            )
        self.counts = device_counts
        self.training = Training(**settings, devices=self.devices[: device_counts[0]])

    def run(self, key, log) -> dict:
        """The largest relative differences from the first number of devices."""
        training = self.training
        risks = []
        weights = []
        seconds = []
        for count in self.counts:
            if log.stop_requested():
                raise run.Interrupted
            steps = training.steps_on(self.devices[:count])
            records_kept = loop.Log()
            result, state = loop.fit(
                training.task, steps, training.intervals, records_kept, key=key
            )
            evaluations = where(records_kept.records, kind="evaluation")
            risks.append([record["test_loss"] for record in evaluations])
            weights.append(state["params"]["A"])
            seconds.append(result["train_seconds"])
        return {
            "devices": list(self.counts),
            "device_kind": self.devices[0].device_kind,
            "excess_risks": risks[0],
            "train_seconds": seconds,
            "risk_differences": [_difference(risk, risks[0]) for risk in risks],
            "weight_differences": [
                float(np.max(np.abs(A - weights[0])) / np.max(np.abs(weights[0])))
                for A in weights
            ],
        }


def _difference(risks: list[float], first: list[float]) -> float:
    return float(np.max(np.abs(np.divide(risks, first) - 1)))


class Points:
    """One part of the points of one shape, `chunks` chunks shared by the devices."""

    keeps_checkpoint = False

    def __init__(
        self,
        *,
        depth: int,
        width: int,
        part: int,
        chunks: int,
        points_per_chunk: int,
        max_tau: float,
        devices=None,
    ):
        if not 0 < max_tau < 1:
            raise ValueError(f"max_tau must be between 0 and 1, got {max_tau}")
        self.devices = devices or parallel.pick_devices(0, chunks)
        self.share = chunks // len(self.devices)
        self.points = chunks * points_per_chunk

        def count(key, first_chunk):
            counted = random_points.attack(
                key,
                first_chunk,
                chunks=self.share,
                points_per_chunk=points_per_chunk,
                depth=depth,
                d=width,
                max_tau=max_tau,
            )
            sums = {
                name: counted[name] for name in ("violations", "unresolved", "tight")
            }
            return {
                **jax.lax.psum(sums, step.AXIS_NAME),
                "least_ratio": jax.lax.pmin(counted["least_ratio"], step.AXIS_NAME),
                "largest_margin": jax.lax.pmax(
                    counted["largest_margin"], step.AXIS_NAME
                ),
            }

        self.count: Any = parallel.over_devices(count, self.devices, in_axes=(None, 0))

    def lower(self) -> jax.stages.Lowered:
        """The program from shapes alone: the devices may be absent."""
        key = jax.random.key(0)
        like = jax.ShapeDtypeStruct
        chunks = self.first_chunks()
        return self.count.lower(
            like(key.shape, key.dtype), like(chunks.shape, chunks.dtype)
        )

    def first_chunks(self) -> np.ndarray:
        """The first chunk of each device of this process, i32[devices]."""
        is_ours = [
            device.process_index == jax.process_index() for device in self.devices
        ]
        return np.arange(len(self.devices), dtype=np.int32)[is_ours] * self.share

    def run(self, key, log) -> dict:
        """Counts violations; each device takes its own chunks."""
        if log.stop_requested():
            raise run.Interrupted
        counted = parallel.ParallelSteps.read(self.count(key, self.first_chunks()))
        return {
            "points": self.points,
            "devices": len(self.devices),
            "device_kind": self.devices[0].device_kind,
            **{name: value.item() for name, value in counted.items()},
        }


def measure(subject: Any, key, log) -> dict:
    return subject.run(key, log)


def judge_floor(settings: dict, records: list[dict]) -> run.Verdict:
    """The risk is as predicted at every depth, and l |||A||| at most a constant."""
    results = where(records, kind=RESULT)
    ratios = {
        result["depth"]: result["excess_risk"] / result["predicted_excess_risk"]
        for result in results
    }
    norms_times_depth = {
        result["depth"]: result["depth"] * result["largest_norm"] for result in results
    }
    metrics: dict = {"trainings": len(results)}
    for depth, ratio in ratios.items():
        metrics[f"excess_risk_over_predicted/layers={depth}"] = ratio
        metrics[f"norm_times_depth/layers={depth}"] = norms_times_depth[depth]
    largest_error = max(abs(ratio - 1) for ratio in ratios.values())
    largest_norm_times_depth = max(norms_times_depth.values())
    metrics |= {
        "width": settings["problem"]["width"],
        "most_layers": largest(results, "depth"),
        "largest_start_excess_risk": largest(results, "start_excess_risk"),
        "largest_excess_risk": largest(results, "excess_risk"),
        "largest_relative_error_of_risk": largest_error,
        "largest_norm_times_depth": largest_norm_times_depth,
        "images_per_second": least(results, "images_per_second"),
    }
    holds = (
        largest_error <= settings["floor_tolerance"]
        and largest_norm_times_depth <= settings["most_norm_times_depth"]
    )
    return run.Verdict("sampled-noise-floor", metrics, reproduced(holds))


def judge_devices(settings: dict, records: list[dict]) -> run.Verdict:
    """The trajectories agree to rounding."""
    (result,) = where(records, kind=RESULT)
    metrics = {
        "most_devices": max(result["devices"]),
        "largest_risk_difference": max(result["risk_differences"]),
        "largest_weight_difference": max(result["weight_differences"]),
    }
    differences = (
        metrics["largest_risk_difference"],
        metrics["largest_weight_difference"],
    )
    # Identical runs would mean that the number of devices had no effect.
    several = len(set(result["devices"])) > 1 and max(differences) > 0
    agree = max(differences) <= settings["agreement_tolerance"]
    return run.Verdict(
        "sampled-devices", metrics, reproduced(agree) if several else "undecided"
    )


def judge_points(settings: dict, records: list[dict]) -> run.Verdict:
    """No point violates (G3) beyond rounding, and some come close to equality."""
    results = where(records, kind=RESULT)
    metrics = {
        "points": total(results, "points"),
        "violations": total(results, "violations"),
        "unresolved": total(results, "unresolved"),
        "tight": total(results, "tight"),
        "least_left_over_right": least(results, "least_ratio"),
        "largest_margin": largest(results, "largest_margin"),
    }
    is_finite = math.isfinite(metrics["least_left_over_right"])
    attacked = metrics["tight"] > 0 and is_finite
    verdict = under_attack(metrics["violations"] > 0, attacked)
    return run.Verdict("gradient-bound-points", metrics, verdict)


VERDICTS = {
    "noise_floor": judge_floor,
    "devices": judge_devices,
    "points": judge_points,
    "noise_floor_large": judge_floor,
    "points_large": judge_points,
}
EXPERIMENT = run.TrainingExperiment(
    name="linear_sampled",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=VERDICTS,
    build=build,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
