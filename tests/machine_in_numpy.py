"""The network of `memorize_by_retrieval`, written again in NumPy.

Once in float64, as anybody would run it, and once in whole numbers without rounding.

Command: python -m tests.machine_in_numpy DATA_DIR
(all training images of CIFAR-10; minutes)
"""

import sys
import time

import jax
import numpy as np

from identity_matters.images import datasets
from identity_matters.memorize import memorize_by_retrieval, retrieval
from identity_matters.memorize.machine import Block, Repeated, Sweep


def blocks(part):
    """U, V and s of all blocks of a part, one after the other, as NumPy arrays."""
    if isinstance(part, Block):
        yield tuple(map(np.asarray, part))
    elif isinstance(part, Sweep):
        U, V, s = map(np.asarray, part.block)
        for number in np.asarray(part.numbers):
            scaled = V.copy()
            scaled[:, 0] *= number
            yield U, scaled, s
    else:
        assert isinstance(part, Repeated)
        for _ in range(int(part.repeats)):
            for inner in part.parts:
                yield from blocks(inner)


def run_in_float64(network, x: np.ndarray, columns: int = 4096) -> np.ndarray:
    """The outputs f64[n, r], by NumPy's matrix products; `columns` inputs at a time."""
    a = np.asarray(network.input_map)
    output_U, output_V, output_s = map(np.asarray, network.output)
    starts = range(0, len(x), columns)
    batches = []
    for start in starts:
        h = np.zeros((retrieval.WIDTH, len(x[start : start + columns])))
        h[retrieval.HASH] = (
            x[start : start + columns].astype(np.float64) @ a[0] + network.start
        )
        batches.append(h)
    for U, V, s in blocks(network.passes):
        batches = [h + V @ np.maximum(U @ h + s[:, None], 0) for h in batches]
    outputs = [
        output_V @ np.maximum(output_U @ h + output_s[:, None], 0) for h in batches
    ]
    return np.concatenate(outputs, axis=1).T


def whole(array) -> np.ndarray:
    """The same whole numbers as Python's integers; fails if one is not whole."""
    array = np.asarray(array)
    assert (array == np.rint(array)).all()
    return np.vectorize(int, otypes="O")(array)


def run_exactly(network, x: np.ndarray) -> tuple[np.ndarray, int]:
    """The outputs in Python's integers, and the largest of all terms and partial sums.

    Partial sums, in any order, lie between the sums of the terms of one sign.
    """
    largest = 0

    def product(A, b, added):
        nonlocal largest
        sums = []
        for sign in (1, -1):
            positive = np.maximum(sign * A, 0) @ np.maximum(b, 0)
            negative = np.maximum(-sign * A, 0) @ np.maximum(-b, 0)
            sums.append(positive + negative + np.maximum(sign * added, 0))
        largest = max(largest, sums[0].max(), sums[1].max())
        return sums[0] - sums[1]

    a = whole(network.input_map)
    h = np.zeros((retrieval.WIDTH, len(x)), object)
    h[:1] = product(a, whole(x).T, whole(network.start)[None, None] + 0 * h[:1])
    zero = np.zeros((1, 1), object)
    for U, V, s in blocks(network.passes):
        U = whole(U)
        V = whole(V)
        s = whole(s)
        h = h + product(V, np.maximum(product(U, h, s[:, None]), 0), zero)
        largest = max(largest, abs(h).max())
    U, V, s = map(whole, network.output)
    return product(V, np.maximum(product(U, h, s[:, None]), 0), zero).T, largest


def main(data_dir: str) -> None:
    """Memorizes CIFAR-10 with random labels, and counts outputs that are not exact."""
    jax.config.update("jax_enable_x64", True)
    images, _ = datasets.load("cifar10", "train", data_dir)
    x = images.reshape(len(images), -1)
    y = np.random.default_rng(0).integers(0, 10, len(x))
    for factored in (False, True):
        network, certificate = memorize_by_retrieval(
            x, y, 10, factored_input_map=factored
        )
        numbers = retrieval.stored_numbers(network)
        started = time.perf_counter()
        outputs = run_in_float64(network, x)
        seconds = time.perf_counter() - started
        wrong = int((outputs != np.eye(10)[y]).any(axis=1).sum())
        print(
            f"{numbers} stored numbers, certificate {certificate}, {len(x)} images in"
            f" plain NumPy: {wrong} not exact, {seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1])
