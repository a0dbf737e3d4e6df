"""Theorem 3.2 at ImageNet's size: time and memory from 10^4 to 1,281,167 points.

For each n a network is built for n random points of the unit sphere of R^64 with random
labels out of 1,000, and run on all of them. A trial is a slice of the points, so that
an interrupted run goes on with the next slice; only the network is built anew.
Expected: certified, no errors, and times that grow as n^2 at the larger n.

Command: python -m benchmarks.memorize_at_scale
Hardware: 2 CPU cores, 12 GB. Time: half an hour to an hour, nearly all of it for the
largest n.
"""

import functools
import time
import types
from typing import NamedTuple

import jax
import numpy as np

from benchmarks import shared
from experiments import run
from experiments.run.settings import configs
from experiments.run.trials import slice_of, slices
from experiments.run.verdicts import total, under_attack
from identity_matters.memorize import construct
from identity_matters.memorize.network import block_parameters
from identity_matters.report.records import totals_of_slices

VARIANTS = ()
OTHER_VARIANTS = {
    "imagenet": "up to as many points and classes as ImageNet; half an hour to an hour"
}
_SETTINGS = {
    "examples": (10_000, 30_000, 100_000, 300_000, 1_281_167),  # n
    "features": 64,  # d
    "num_classes": 1000,  # r
    "width": 16,  # k of the blocks
    # The seed of points, labels and networks. It is no part of the run's, because all
    # slices need the same network.
    "points_seed": 0,
    "slice_examples": 65_536,  # points that one trial runs through the network
    "tile_points": 8192,  # points whose inner products are computed at once
    "batch_examples": 16_384,  # points that pass through the network at once
}
get_config = configs({"imagenet": _SETTINGS})


def trials(*, variant: str, examples, slice_examples: int, **settings) -> list[dict]:
    """One trial for each slice of the points of each n."""
    return [
        {"examples": n, **of_slice, **settings}
        for n in sorted(examples)
        for of_slice in slices(n, slice_examples=slice_examples)
    ]


class _Built(NamedTuple):
    """A network in float32, its points, and what building it took.

    Attributes:
      x: f32[n, d].
      y: i64[n].
      memorized: a `construct.Memorized`.
      seconds: of the build.
      peak_memory_gigabytes: of this process, after the build.
    """

    x: np.ndarray
    y: np.ndarray
    memorized: construct.Memorized
    seconds: float
    peak_memory_gigabytes: float


@functools.lru_cache(maxsize=1)
def _build(
    *,
    examples: int,
    features: int,
    num_classes: int,
    width: int,
    points_seed: int,
    tile_points: int,
) -> _Built:
    """The network for one n, which all of its slices in this process share."""
    rng = np.random.default_rng([points_seed, examples])
    x = rng.standard_normal((examples, features), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rng.integers(0, num_classes, examples)
    started = time.perf_counter()
    memorized = construct.memorize(
        x,
        y,
        num_classes,
        width,
        key=jax.random.key(points_seed),
        tile_points=tile_points,
    )
    jax.block_until_ready(memorized.network)
    return _Built(
        x=x,
        y=y,
        memorized=memorized,
        seconds=time.perf_counter() - started,
        peak_memory_gigabytes=shared.peak_memory_gigabytes(),
    )


def measure(trial: types.SimpleNamespace, key) -> dict:
    """Runs the network on the slice; each slice also says what building took."""
    built = _build(
        examples=trial.examples,
        features=trial.features,
        num_classes=trial.num_classes,
        width=trial.width,
        points_seed=trial.points_seed,
        tile_points=trial.tile_points,
    )
    this_slice = slice_of(trial)
    started = time.perf_counter()
    verification = construct.verify(
        built.memorized.network,
        built.x[this_slice],
        built.y[this_slice],
        trial.batch_examples,
    )
    certificate = built.memorized.certificate
    return {
        "certified": bool(certificate.holds),
        "output_error_bound": float(certificate.output_error_bound),
        "errors": verification.errors,
        "max_abs_error": verification.max_abs_error,
        "block_parameters": block_parameters(trial.examples, trial.width),
        "build_seconds": built.seconds,
        "run_seconds": time.perf_counter() - started,
        "build_peak_memory_gigabytes": built.peak_memory_gigabytes,
        "peak_memory_gigabytes": shared.peak_memory_gigabytes(),
        "load_per_core": shared.load_per_core(),
    }


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """Whether every network is certified and errs on no point."""
    sums = totals_of_slices(records)
    largest_run = sums[-1]
    metrics = {
        **{name: largest_run[name] for name in largest_run if name != "certified"},
        "errors": total(sums, "errors"),
        "certified_networks": sum(size["certified"] for size in sums),
        "networks": len(sums),
        "block_parameters": block_parameters(
            largest_run["examples"], settings["width"]
        ),
    }
    if len(sums) > 1:
        for phase in ("build", "run"):
            metrics[f"{phase}_time_exponent"] = shared.exponent(
                sums, "examples", f"{phase}_seconds"
            )
    certified = all(size["certified"] for size in sums)
    refuted = any(size["certified"] and size["errors"] for size in sums)
    return run.Verdict("theorem-3-2", metrics, under_attack(refuted, certified))


EXPERIMENT = run.Experiment(
    name="benchmark_memorize_at_scale",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
    signed=("points_seed",),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
