"""The cost of an exact gradient-descent step: linear in depth, close to bare products.

Lemma 2.4 written out factor by factor takes O(depth^2) matrix products;
`model.risk_gradient` takes 3 x depth. Whole steps, A <- A - eta grad f(A) in float64 at
d = 64 and depths 64, 128, ..., 4096, are timed against a plain chain of as many
products: the faster of a jitted scan and a NumPy loop. All take turns in every round,
and medians are compared. Goal: exponent 1.0 within 0.15, and a step at most 2 times as
long as the chain, which keeps no activations. Expected: 1.3 to 1.6 times on an AMD
EPYC, but 2.1 to 2.7 times on an Intel Xeon, whose products are faster.

Command: python -m benchmarks.linear
Hardware: 2 CPU cores, 1 GB of memory. Time: about 40 s.
"""

import functools
import statistics
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import shared
from experiments import run
from experiments.run.measuring import generator
from experiments.run.settings import configs
from experiments.run.verdicts import largest
from identity_matters.linear import descent, model, random_targets

PRODUCTS_PER_LAYER = 3  # in a step: forward, backward and the gradient itself

VARIANTS = {
    "gradient_step": "steps at seven depths against plain chains of products; 40 s"
}
_SETTINGS = {
    # layers; depths and width are our goal's
    "depths": (64, 128, 256, 512, 1024, 2048, 4096),
    "width": 64,  # d
    # Steps per dispatch: enough to cover layers_per_run layers, as short runs are timed
    # badly, and at least least_updates_per_run, so that memory is not allocated for
    # each step.
    "layers_per_run": 2048,
    "least_updates_per_run": 5,
    "repeats": 3,  # timed rounds; each times the steps and both chains in turn
    "largest_ratio": 2.0,  # goal: time of a step over that of the faster chain, at most
    # goal: step time grows as depth^p with |p - 1| at most this
    "exponent_tolerance": 0.15,
}
get_config = configs({"gradient_step": _SETTINGS})


def trials(
    *, depths, width, layers_per_run, least_updates_per_run, repeats, **goals
) -> list[dict]:
    """One trial for each depth."""
    if len(set(depths)) < 2:
        raise ValueError(f"depths must be at least two different ones, got {depths}")
    size = {"width": width, "repeats": repeats}
    updates = {d: max(least_updates_per_run, layers_per_run // d) for d in depths}
    return [{"depth": d, "updates_per_run": updates[d], **size} for d in depths]


@jax.jit
def _steps(A, R, Sigma, rate, count):
    """``A <- A - rate grad f(A)``, `count` times."""
    return jax.lax.fori_loop(
        0, count, lambda _, A: A - rate * model.risk_gradient(A, R, Sigma), A
    )


@jax.jit
def _scanned_chain(A, M, passes):
    """``M <- A_i M`` over all layers, `passes` times."""

    def one_pass(_, M):
        return jax.lax.scan(lambda M, layer: (layer @ M, None), M, A)[0]

    return jax.lax.fori_loop(0, passes, one_pass, M)


def _looped_chain(A, M, passes):
    """The same chain in NumPy."""
    for _ in range(passes):
        for layer in A:
            M = layer @ M
    return M


def measure(trial: types.SimpleNamespace, key) -> dict:
    """Median seconds of a step and of both chains at one depth."""
    candidates = _candidates(trial, generator(key))
    for candidate in candidates.values():
        jax.block_until_ready(candidate())  # compiles, and warms the caches
    seconds_of_run = shared.seconds_in_turns(candidates, trial.repeats)
    seconds_of_step = {
        name: seconds / trial.updates_per_run
        for name, seconds in seconds_of_run.items()
    }
    faster_chain_seconds = min(
        seconds_of_step["scanned_chain_seconds"],
        seconds_of_step["looped_chain_seconds"],
    )
    return {
        **seconds_of_step,
        "products": PRODUCTS_PER_LAYER * trial.depth,
        "ratio": seconds_of_step["step_seconds"] / faster_chain_seconds,
        "load_per_core": shared.load_per_core(),
    }


def _candidates(
    trial: types.SimpleNamespace, rng: np.random.Generator
) -> dict[str, Callable[[], Any]]:
    """What is timed: a run of steps, and two chains of as many products.

    The net is near initialisation. The chains' layers are orthogonal, so that their
    numbers stay of order 1: products that underflow would run at another speed.
    """
    width = trial.width
    shape = (trial.depth, width, width)
    A = jnp.asarray(rng.standard_normal(shape) / (trial.depth * width))
    orthogonal = np.linalg.qr(rng.standard_normal(shape))[0]
    R = random_targets.polar_target(rng, width, (), 0.5) if width > 1 else np.eye(1)
    Sigma = np.eye(width)
    M = rng.standard_normal((width, width))
    rate = descent.largest_stable_learning_rate(R, Sigma, trial.depth)
    updates = trial.updates_per_run
    passes = PRODUCTS_PER_LAYER * updates
    return {
        "step": functools.partial(
            _steps, A, jnp.asarray(R), jnp.asarray(Sigma), rate, updates
        ),
        "scanned_chain": functools.partial(
            _scanned_chain, jnp.asarray(orthogonal), jnp.asarray(M), passes
        ),
        "looped_chain": functools.partial(_looped_chain, orthogonal, M, passes),
    }


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """Compares the growth with depth and the ratio to the chain with the goals."""
    exponent = shared.exponent(records, "depth", "step_seconds")
    largest_ratio = largest(records, "ratio")
    deepest = max(records, key=lambda record: record["depth"])
    metrics = {
        "step_time_exponent": exponent,
        "largest_step_over_chain_ratio": largest_ratio,
        "median_step_over_chain_ratio": statistics.median(r["ratio"] for r in records),
        "deepest_layers": deepest["depth"],
        "deepest_step_seconds": deepest["step_seconds"],
        "deepest_microseconds_per_layer": 1e6
        * deepest["step_seconds"]
        / deepest["depth"],
    }
    linear = abs(exponent - 1) <= settings["exponent_tolerance"]
    reached = linear and largest_ratio <= settings["largest_ratio"]
    return shared.judged("gradient-cost", metrics, reached, records)


EXPERIMENT = run.Experiment(
    name="benchmark_linear",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
