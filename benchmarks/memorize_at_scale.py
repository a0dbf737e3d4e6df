"""Theorem 3.2 at ImageNet's size: time and memory from 10^4 to 1,281,167 points.

For each n a network for random points of R^64 is built, stored, and run on all n
points, batch by batch. What is done is kept: after an interruption, the same command
goes on with the next batch.

Command: python -m benchmarks.memorize_at_scale DIRECTORY [N ...]
Hardware: 2 CPU cores, 4 GB. Time: about half an hour for the largest n, growing as n^2.
"""

import json
import pathlib
import sys
import time

import jax
import numpy as np

from identity_matters.memorize import construct
from identity_matters.memorize.network import Network, forward

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 1_281_167)
FEATURES = 64  # d
NUM_CLASSES = 1000  # r
WIDTH = 16  # k
TILE_POINTS = 8192
BATCH_EXAMPLES = 16_384


def problem(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Random unit vectors, f32[n, 64], and random labels out of 1,000."""
    rng = np.random.default_rng(n)
    x = rng.standard_normal((n, FEATURES), np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x, rng.integers(0, NUM_CLASSES, n)


def peak_memory_gigabytes() -> float:
    """The largest resident memory of this process so far."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    kibibytes = next(
        line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")
    )
    return int(kibibytes) * 1024 / 1e9


def _append(path: pathlib.Path, record: dict) -> None:
    with path.open("a", encoding="ascii") as file:
        file.write(json.dumps(record) + "\n")
    print(record, flush=True)


def build(n: int, directory: pathlib.Path) -> Network:
    """The network for `problem(n)`, from the directory if it has been built before."""
    stored = directory / f"network_{n}.npz"
    if stored.exists():
        with np.load(stored) as arrays:
            return Network(**{name: arrays[name] for name in Network._fields})
    x, y = problem(n)
    started = time.perf_counter()
    cpu = time.process_time()
    memorized = construct.memorize(x, y, NUM_CLASSES, WIDTH, tile_points=TILE_POINTS)
    jax.block_until_ready(memorized.network)
    record = {
        "examples": n,
        "build_seconds": time.perf_counter() - started,
        "build_cpu_seconds": time.process_time() - cpu,
        "build_peak_memory_gigabytes": peak_memory_gigabytes(),
        "certificate": memorized.certificate._asdict(),
    }
    temporary = stored.with_suffix(".tmp.npz")
    numbers: dict = {
        name: np.asarray(a) for name, a in memorized.network._asdict().items()
    }
    np.savez(temporary, **numbers)
    temporary.replace(stored)
    _append(directory / "built.jsonl", record)
    return memorized.network


def run(n: int, network: Network, directory: pathlib.Path) -> None:
    """Runs the network on all n points, except batches that are done."""
    path = directory / f"batches_{n}.jsonl"
    lines = path.read_text(encoding="ascii").splitlines() if path.exists() else []
    done = {json.loads(line)["start"] for line in lines}
    x, y = problem(n)
    for start in range(0, n, BATCH_EXAMPLES):
        if start in done:
            continue
        started = time.perf_counter()
        cpu = time.process_time()
        labels = y[start : start + BATCH_EXAMPLES]
        outputs = np.asarray(forward(network, x[start : start + BATCH_EXAMPLES]))
        off = np.abs(outputs - np.eye(NUM_CLASSES, dtype=np.float32)[labels]).max(
            axis=1
        )
        record = {
            "start": start,
            "examples": len(labels),
            "errors": int((~(off < 1 / 2)).sum()),
            "max_abs_error": float(off.max()),
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu,
            "peak_memory_gigabytes": peak_memory_gigabytes(),
        }
        _append(path, record)


def summarize(n: int, directory: pathlib.Path) -> None:
    """Prints the sums over all batches of one n."""
    lines = (directory / f"batches_{n}.jsonl").read_text(encoding="ascii").splitlines()
    records = [json.loads(line) for line in lines]
    print(
        f"n = {n}: {sum(record['errors'] for record in records)} errors on"
        f" {sum(record['examples'] for record in records)} points, largest error"
        f" {max(record['max_abs_error'] for record in records):.3g},"
        f" {sum(record['seconds'] for record in records):.0f} s to run all",
        flush=True,
    )


def main(directory: str, sizes: list[str]) -> None:
    root = pathlib.Path(directory)
    root.mkdir(parents=True, exist_ok=True)
    for n in map(int, sizes or SIZES):
        run(n, build(n, root), root)
        summarize(n, root)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
