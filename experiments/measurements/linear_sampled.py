"""Minibatch descent and random points, shared by all devices.

Each class here is what runs a trial, as `run.TrainingExperiment` wants it: it is made
of the trial's settings, `run(key, log)` returns the trial's record, and
`keeps_checkpoint` says whether a checkpoint stays.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import run
from experiments.run.fitting import DeviceTraining, make_intervals
from experiments.run.verdicts import where
from identity_matters import flops, random_matrices
from identity_matters.batches import Drawn
from identity_matters.linear import random_points, sampled, sampled_bound
from identity_matters.train import loop, parallel, step


def build(**trial) -> Any:
    """What runs a trial: a `Training`, `SeveralCounts` of devices, or `Points`."""
    if "part" in trial:
        return Points(**trial)
    if "device_counts" in trial:
        return SeveralCounts(**trial)
    return Training(**trial)


class Training(DeviceTraining):
    """Minibatch descent, by default on the devices that the settings ask for.

    Args:
      problem: "width", "gamma" and "noise_std"; see `_make_problem`.
      depth: l.
      train: the batch, the rate, the devices, and the steps between records.
      devices: those to use instead.
      settled_from_step: evaluations from here on are averaged.
      floor_tolerance, most_norm_times_depth: for the verdict alone.
    """

    keeps_checkpoint = False

    def __init__(
        self,
        *,
        problem: dict,
        depth: int,
        train: dict,
        devices: list | None = None,
        settled_from_step: int = 0,
        floor_tolerance: float | None = None,
        most_norm_times_depth: float | None = None,
    ):
        self.depth = depth
        self.problem, self.eigenvalues = _make_problem(**problem)
        self.learning_rate = train["rate_times_depth"] / depth
        self.batch_examples = train["batch_examples"]
        self.settled_from_step = settled_from_step
        self.settings_in_checkpoints = {
            "problem": problem,
            "depth": depth,
            "train": train,
        }
        task = _make_task(self.problem, depth, self.learning_rate, self.batch_examples)
        devices = devices or parallel.pick_devices(
            train["devices"], self.batch_examples
        )
        super().__init__(
            task,
            _steps_on(devices, task, self.batch_examples, problem["width"]),
            make_intervals(train),
        )

    def steps_on(self, devices: list) -> parallel.ParallelSteps:
        """The steps of the task on other devices."""
        return _steps_on(devices, self.task, self.batch_examples, len(self.eigenvalues))

    def predicted_risk(self) -> float:
        """S1, which uses that R is symmetric and Sigma = I."""
        return sampled_bound.noise_floor(
            self.eigenvalues,
            np.ones(len(self.eigenvalues)),
            depth=self.depth,
            learning_rate=self.learning_rate,
            batch_examples=self.batch_examples,
            noise_std=self.problem.noise_std,
        )

    def run(self, key, log) -> dict:
        """Trains; evaluations give the exact risk, and bounds on each ||A_i||."""
        result = self.fit(
            log,
            key=key,
            settings=self.settings_in_checkpoints,
            compute_dtype="float32",
        )
        evaluations = where(log.records, kind="evaluation")
        settled = [
            record["test_loss"]
            for record in evaluations
            if record["step"] >= self.settled_from_step
        ]
        return {
            **self.size(),
            **result,
            "learning_rate": self.learning_rate,
            "start_excess_risk": evaluations[0]["test_loss"],
            "excess_risk": float(np.mean(settled)),
            "predicted_excess_risk": self.predicted_risk(),
            # The bounds on ||A_i|| go by this name; see `apply`.
            "largest_norm": max(
                max(record["residual_ratio"]) for record in evaluations
            ),
        }


def _make_problem(
    *, width: int, gamma: float, noise_std: float
) -> tuple[sampled.Problem, np.ndarray]:
    """The problem, Sigma = I, and the eigenvalues of its symmetric R, f64[d].

    Args:
      width: d.
      gamma: the logarithms of the eigenvalues go from -gamma to gamma, evenly spaced.
      noise_std: of the labels.
    """
    eigenvalues = np.exp(np.linspace(-gamma, gamma, width))
    # R is part of the problem: --seed draws the samples.
    R = random_matrices.symmetric(np.random.default_rng(0), eigenvalues)
    return sampled.make_problem(R, np.eye(width), noise_std), eigenvalues


def _make_task(
    problem: sampled.Problem, depth: int, learning_rate: float, batch_examples: int
) -> step.Task:
    """Regression on samples that the devices draw, from zero weights, at a rate."""
    width = len(problem.R)

    def init(key) -> dict:
        """Zero weights; nothing is drawn."""
        weights = jnp.zeros((depth, width, width), jnp.float32)
        return {"params": {"A": weights}, "fixed": {}, "batch_stats": {}}

    # A product takes 2 d^2 operations for each example.
    forward_flops = 2.0 * depth * width**2
    return step.Task(
        init=init,
        apply=apply,
        train_input=lambda x, keys: x,
        eval_input=lambda x: x,
        data=Drawn(
            lambda keys: sampled.draw(problem, keys),
            batch_examples,
            *sampled.exact_split(problem),
        ),
        optimizer=optax.sgd(1.0),
        schedule=optax.constant_schedule(1.0),
        learning_rate=learning_rate,
        flops_per_example=flops.FORWARD_PASSES_PER_TRAINING_STEP * forward_flops,
        compare=step.regression,
        unrolled_on_cpu=False,
    )


def _steps_on(
    devices: list, task: step.Task, batch_examples: int, width: int
) -> parallel.ParallelSteps:
    """The steps of the task on these devices."""
    return parallel.ParallelSteps(
        task,
        devices=devices,
        batch_examples=batch_examples,
        # An evaluation takes all of its d examples at once.
        evaluation_batch_examples=width,
    )


def apply(variables: dict, x, *, train: bool, keys=None) -> tuple:
    """The net, as `step.Task` wants it.

    In evaluations "residual_ratio" bounds each ||A_i||, f32[l, n]. The name is the one
    that the loop knows, and it takes means over the n examples: each bound is repeated
    for each of them.
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
        if not device_counts:
            raise ValueError("device_counts must hold at least one value, but is empty")
        batch_examples = settings["train"]["batch_examples"]
        for count in device_counts:
            if count < 1 or batch_examples % count:
                raise ValueError(
                    f"device_counts must divide train.batch_examples, {batch_examples},"
                    f" got {count}"
                )
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
    """The largest relative difference of the risks from those of the first count."""
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

        self.attack = functools.partial(
            random_points.attack,
            chunks=self.share,
            points_per_chunk=points_per_chunk,
            depth=depth,
            d=width,
            max_tau=max_tau,
        )
        self.count: Any = parallel.over_devices(
            self._count_on_all_devices, self.devices, in_axes=(None, 0)
        )

    def _count_on_all_devices(self, key, first_chunk) -> dict:
        """On each device: the counts of its own chunks, joined with those of others."""
        counted = self.attack(key, first_chunk)
        sums = {name: counted[name] for name in ("violations", "unresolved", "tight")}
        return {
            **jax.lax.psum(sums, step.AXIS_NAME),
            "least_ratio": jax.lax.pmin(counted["least_ratio"], step.AXIS_NAME),
            "largest_margin": jax.lax.pmax(counted["largest_margin"], step.AXIS_NAME),
        }

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
