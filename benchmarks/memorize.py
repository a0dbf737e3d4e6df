"""The cost of memorising n points: n x n x k products, close to the speed of bare ones.

Building a network needs, for every point, its largest inner product with any later
point: half of one n x n x k product. Verifying it needs U h and V relu(...) for all
points: two such products. Each is timed as a whole against bare, blocked and jitted
products, whose results are written to memory and not used: building against the whole
n x n x k product, and verifying against its two. Expected at n = 131,072: at most 2
times the bare products, and less than 2 GB in a process that builds and verifies, JAX
included; time growing as n^2.

Command: python -m benchmarks.memorize
Hardware: 2 CPU cores. Time: about two minutes.
"""

import functools
import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import shared
from experiments import run
from experiments.run.settings import configs
from experiments.run.verdicts import largest, total
from identity_matters.memorize import construct
from identity_matters.memorize.network import matmul
from identity_matters.memorize.plan import in_blocks

VARIANTS = {
    "construction": "building and verifying, against bare products; two minutes"
}
_SETTINGS = {
    "examples": (16_384, 32_768, 65_536, 131_072),  # n
    "features": 64,  # d; small, so that products of n x n x k dominate
    "num_classes": 10,  # r
    "width": 8,  # k
    "tile_points": 2048,  # points whose inner products are computed at once
    "batch_examples": 4096,  # inputs that pass through the network at once
    "repeats": 1,  # timed rounds; each times all candidates in turn
    "largest_ratio": 2.0,  # goal: time over that of the bare products, at most
    "largest_exponent": 2.2,  # goal: time grows as n^p with p at most this
    # Goal: peak memory of a process that builds and verifies.
    "largest_memory_gigabytes": 2.0,
    # above it, a missed goal proves nothing
    "largest_load_per_core": shared.MOST_LOAD_PER_CORE,
}
get_config = configs({"construction": _SETTINGS})
_product_of_tiles = jax.jit(
    lambda tiles, row, column: matmul(tiles[column], tiles[row].T)
)


def trials(*, examples, variant, **settings) -> list[dict]:
    """One trial for each n."""
    sizes = {k: v for k, v in settings.items() if not k.startswith("largest_")}
    return [{"examples": n, **sizes} for n in examples]


def _bare_inner_products(tiles) -> None:
    """All inner products of n points, tile by tile."""
    for row in range(len(tiles)):
        for column in range(len(tiles)):
            product = _product_of_tiles(tiles, row, column)
        product.block_until_ready()


@jax.jit
def _bare_blocks(U, V, h):
    """Two k x k products per block and nothing else."""

    def block(h, layers):
        return matmul(layers[1], matmul(layers[0], h)), None

    return jax.lax.scan(block, h, (U, V))[0]


def _bare_block_products(U, V, batches: list[jax.Array]) -> None:
    """`_bare_blocks` of all points, batch by batch."""
    for batch in batches:
        _bare_blocks(U, V, batch).block_until_ready()


def _points_and_labels(
    rng: np.random.Generator, trial: types.SimpleNamespace
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian points, f32[n, d], and random labels, i64[n]."""
    x = rng.standard_normal((trial.examples, trial.features), np.float32)
    return x, rng.integers(0, trial.num_classes, trial.examples)


def measure(trial: types.SimpleNamespace, key) -> dict:
    """Seconds for building and verifying, and for the bare products of each."""
    seed = np.asarray(jax.random.key_data(key)).tolist()
    rng = np.random.default_rng(seed)
    x, y = _points_and_labels(rng, trial)
    network, _ = _build(x, y, trial, key)
    bare = _bare_products(trial, rng, blocks=len(network.U))
    candidates: dict[str, Callable[[], Any]] = {
        "build": lambda: _build(x, y, trial, key),
        "inner_products": bare["inner_products"],
        "verify": lambda: construct.verify(network, x, y, trial.batch_examples),
        "block_products": bare["block_products"],
    }
    # All that is timed has run once before: building above, the rest here.
    for product in bare.values():
        product()
    errors = candidates["verify"]().errors
    medians = shared.seconds_in_turns(candidates, trial.repeats)
    return {
        **medians,
        "build_ratio": medians["build_seconds"] / medians["inner_products_seconds"],
        "verify_ratio": medians["verify_seconds"] / medians["block_products_seconds"],
        "errors": errors,
        "load_per_core": shared.load_per_core(),
        "peak_memory_gigabytes": shared.alone(_peak_memory_gigabytes, seed, trial),
    }


def _bare_products(
    trial: types.SimpleNamespace, rng: np.random.Generator, *, blocks: int
) -> dict[str, Callable[[], None]]:
    """What building and verifying are compared with, by name.

    The layers are orthogonal, so that numbers stay of order one: products that overflow
    run at another speed.
    """
    n = trial.examples
    width = trial.width
    h = rng.standard_normal((n, width)).astype(np.float32)
    tiles = jnp.asarray(in_blocks(h, min(trial.tile_points, n)))
    rotations = np.linalg.qr(rng.standard_normal((2, blocks, width, width)))[0]
    U, V = jnp.asarray(rotations, jnp.float32)
    batches = [
        jnp.asarray(h[first : first + trial.batch_examples].T)
        for first in range(0, n, trial.batch_examples)
    ]
    return {
        "inner_products": functools.partial(_bare_inner_products, tiles),
        "block_products": functools.partial(_bare_block_products, U, V, batches),
    }


def _build(x, y, trial: types.SimpleNamespace, key):
    return construct.memorize(
        x, y, trial.num_classes, trial.width, key=key, tile_points=trial.tile_points
    )


def _peak_memory_gigabytes(seed: list[int], trial: types.SimpleNamespace) -> float:
    """Peak resident memory of this process after building and verifying a network."""
    x, y = _points_and_labels(np.random.default_rng(seed), trial)
    network, _ = _build(x, y, trial, jax.random.key(0))
    construct.verify(network, x, y, trial.batch_examples)
    return shared.peak_memory_gigabytes()


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """Compares ratios, growth and memory with the goals.

    Undecided on a loaded machine.
    """
    largest_run = max(records, key=lambda record: record["examples"])
    memory = largest_run["peak_memory_gigabytes"]
    errors = total(records, "errors")
    metrics = {
        "examples": largest_run["examples"],
        "errors": errors,
        "peak_memory_gigabytes": memory,
    }
    reached = [errors == 0, memory <= settings["largest_memory_gigabytes"]]
    for phase in ("build", "verify"):
        ratio = largest_run[f"{phase}_ratio"]
        exponent = shared.exponent(records, "examples", f"{phase}_seconds")
        metrics[f"{phase}_seconds"] = largest_run[f"{phase}_seconds"]
        metrics[f"{phase}_time_exponent"] = exponent
        metrics[f"{phase}_over_bare_products_ratio"] = ratio
        reached += [
            ratio <= settings["largest_ratio"],
            exponent <= settings["largest_exponent"],
        ]
    metrics["load_per_core"] = largest(records, "load_per_core")
    # load explains no error
    most_load = math.inf if errors else settings["largest_load_per_core"]
    return shared.judged("construction-cost", metrics, all(reached), records, most_load)


EXPERIMENT = run.Experiment(
    name="benchmark_memorize",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
