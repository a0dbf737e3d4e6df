"""Attacks `will_converge`: what it certifies is integrated, from zero weights.

The second moments have conditions of 1 to 1e20 and any eigenvectors; R is near the
thresholds of the certificates, a reflection, or of any size, with both signs of det R.
The flow of a certified problem must converge, and stay within the certified norm.

Command: python -m tests.hostile_problems 20000 --seed 0
(minutes)
"""

import argparse
import collections
import functools
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters import random_matrices
from identity_matters.linear.convergence import Convergence, will_converge


class Shape(NamedTuple):
    """Sizes of a linear net; each new one is compiled."""

    depth: int
    width: int


# Of the problems, the share with this shape.
SHARES = {Shape(1, 1): 0.1, Shape(2, 2): 0.3, Shape(4, 2): 0.3, Shape(3, 3): 0.3}
BATCH = 50  # problems that are integrated at a time
STEPS = 120
FINE_STEPS = 1200
NEWTON_STEPS = 4
END = 40  # the end time, in units of 1 / rate: the risk falls by e^-40, if certified
CONVERGED = 1e-6  # of the first risk, left at the end: implicit Euler is slower
NORM_TOLERANCE = 1e-6  # relative


class SecondMoment(NamedTuple):
    """``Sigma = basis diag(eigenvalues) basis^T``, with a largest eigenvalue of 1."""

    basis: np.ndarray  # f64[d, d], orthogonal
    eigenvalues: np.ndarray  # f64[d]
    rank: int | None  # None if there is no need to tell it

    @property
    def Sigma(self) -> np.ndarray:
        """f64[d, d], symmetric."""
        product = (self.basis * self.eigenvalues) @ self.basis.T
        return (product + product.T) / 2

    @property
    def root(self) -> np.ndarray:
        """A matrix M with ``Sigma = M M^T``, accurate for small eigenvalues, too."""
        return self.basis * np.sqrt(self.eigenvalues)

    def s0(self, direction: np.ndarray, sigma: float) -> float:
        """s_0 of ``R = I - direction`` if the least eigenvalue that counts is sigma."""
        return float(np.linalg.norm(direction @ self.root) / np.sqrt(sigma))


def second_moment(rng: np.random.Generator, width: int) -> SecondMoment:
    """Of condition 1 to 1e20; one in ten has features that are zero."""
    digits = rng.uniform(0, 20)
    eigenvalues = 10.0 ** -rng.uniform(0, digits, width)
    eigenvalues[0] = 1.0
    rank = None
    if width > 1:
        eigenvalues[-1] = 10.0**-digits
        if rng.random() < 0.1:
            eigenvalues[rng.integers(1, width)] = 0.0
            rank = int(np.count_nonzero(eigenvalues))
    is_rotated = rng.random() < 0.5
    basis = random_matrices.orthogonal(rng, (), width) if is_rotated else np.eye(width)
    return SecondMoment(basis, eigenvalues, rank if rng.random() < 0.8 else None)


def near_the_threshold(rng: np.random.Generator, moment: SecondMoment) -> np.ndarray:
    """R with an s_0 of 0.02 to 0.7; the path theorem allows 0.3167."""
    direction = rng.standard_normal(moment.basis.shape)
    sigma = moment.eigenvalues[moment.eigenvalues > 0].min()
    scale = rng.uniform(0.02, 0.7) / moment.s0(direction, sigma)
    return np.eye(len(direction)) - scale * direction


def near_it_without_the_least(
    rng: np.random.Generator, moment: SecondMoment
) -> np.ndarray:
    """The same, if the least eigenvalue were taken for rounding."""
    direction = rng.standard_normal(moment.basis.shape)
    positive = np.sort(moment.eigenvalues[moment.eigenvalues > 0])
    scale = rng.uniform(0.02, 0.5) / moment.s0(direction, positive[:2][-1])
    return np.eye(len(direction)) - scale * direction


def reflection(rng: np.random.Generator, moment: SecondMoment) -> np.ndarray:
    """R reflects, and stretches, the direction that the data hardly show."""
    hidden = moment.basis[:, np.argmin(moment.eigenvalues)]
    stretch = 1 + 10.0 ** rng.uniform(-1, 6)
    direction = rng.standard_normal(moment.basis.shape)
    sigma = moment.eigenvalues[moment.eigenvalues > 0].min()
    scale = rng.uniform(0, 0.2) / moment.s0(direction, sigma)
    return (
        np.eye(len(direction)) - stretch * np.outer(hidden, hidden) - scale * direction
    )


def any_size(rng: np.random.Generator, moment: SecondMoment) -> np.ndarray:
    """Entries of 1e-2 to 1e8; some R are multiples of -I."""
    R = rng.standard_normal(moment.basis.shape) * 10.0 ** rng.uniform(-2, 8)
    return -abs(R[0, 0]) * np.eye(len(R)) if rng.random() < 0.3 else R


FAMILIES: tuple[Callable[[np.random.Generator, SecondMoment], np.ndarray], ...] = (
    near_the_threshold,
    near_the_threshold,
    near_it_without_the_least,
    reflection,
    any_size,
)


class Problem(NamedTuple):
    """R, Sigma, and what `will_converge` says of them."""

    R: np.ndarray
    moment: SecondMoment
    answer: Convergence

    @property
    def end_time(self) -> float:
        """When the risk must have fallen by e^-40, by every certificate."""
        return END / min(flow.rate for flow in self.answer.flow)


def problems(rng: np.random.Generator, shape: Shape, tries: int) -> Iterator[Problem]:
    """Hostile problems, and what is certified of them."""
    for _ in range(tries):
        moment = second_moment(rng, shape.width)
        R = FAMILIES[rng.integers(len(FAMILIES))](rng, moment)
        answer = will_converge(R, moment.Sigma, shape.depth, rank=moment.rank)
        yield Problem(R, moment, answer)


def _excess_risk(flat_A, target, root, depth: int, width: int):
    """``||(product - R) Sigma^{1/2}||^2``; `target` is R - I, so that small A count."""
    product = jnp.zeros((width, width))  # minus I
    for layer in flat_A.reshape(depth, width, width):
        product = product + layer + layer @ product
    return jnp.sum(((product - target) @ root) ** 2)


@functools.partial(jax.jit, static_argnums=(4, 5, 6))
@functools.partial(jax.vmap, in_axes=(0, 0, 0, 0, None, None, None))
def _flow(target, root, first_time, last_time, depth: int, width: int, steps: int):
    """Gradient flow from zero weights, by implicit Euler at growing times.

    Each time is the one before times a factor. The method is L-stable: it needs no
    step that resolves the largest eigenvalue. Each of its steps is `NEWTON_STEPS` of
    Newton's method.

    Returns:
        The risk at the start and at the end, and the largest |||A||| on the way.
    """
    arguments = (target, root, depth, width)
    gradient = jax.grad(_excess_risk)
    hessian = jax.hessian(_excess_risk)
    times = jnp.exp(jnp.linspace(jnp.log(first_time), jnp.log(last_time), steps))

    def step(A, seconds):
        def newton(_, guess):
            residual = guess - A + seconds * gradient(guess, *arguments)
            slope = jnp.eye(A.size) + seconds * hessian(guess, *arguments)
            return guess - jnp.linalg.solve(slope, residual)

        A = jax.lax.fori_loop(0, NEWTON_STEPS, newton, A)
        layers = A.reshape(depth, width, width)
        return A, jnp.linalg.svd(layers, compute_uv=False).max()

    zero = jnp.zeros(depth * width * width)
    last, norms = jax.lax.scan(step, zero, jnp.diff(times, prepend=0.0))
    return _excess_risk(zero, *arguments), _excess_risk(last, *arguments), norms.max()


class Flow(NamedTuple):
    """How the gradient flow of a certified problem ended."""

    risk_left: float  # of the risk at the start
    norm_share: float  # the largest |||A||| on the way over the certified norm

    @property
    def is_as_certified(self) -> bool:
        return self.risk_left < CONVERGED and self.norm_share <= 1 + NORM_TOLERANCE


def _integrate(certified: list[Problem], shape: Shape, steps: int) -> list[Flow]:
    """The flows of at most `BATCH` problems; there is one compilation for a shape."""
    padded = certified + certified[-1:] * (BATCH - len(certified))
    targets = np.array([problem.R - np.eye(shape.width) for problem in padded])
    roots = np.array([problem.moment.root for problem in padded])
    largest = np.linalg.norm(roots, 2, axis=(1, 2)) ** 2
    first_times = 1e-3 / (8 * shape.depth * largest)
    last_times = np.array([problem.end_time for problem in padded])
    outcome = _flow(targets, roots, first_times, last_times, *shape, steps)
    first, last, norms = (np.asarray(values)[: len(certified)] for values in outcome)
    bounds = np.array([problem.answer.flow[0].norm for problem in certified])
    risk_left = np.divide(last, first, out=np.zeros_like(last), where=first > 0)
    return [Flow(*values) for values in zip(risk_left, norms / bounds, strict=True)]


def integrate(certified: list[Problem], shape: Shape) -> tuple[list[Flow], int]:
    """The flows, and how many were integrated again, in ten times as many steps.

    These are the ones that were not as certified in `STEPS` steps; what the many steps
    give is what counts.
    """
    flows = []
    for start in range(0, len(certified), BATCH):
        flows += _integrate(certified[start : start + BATCH], shape, STEPS)
    doubtful = [i for i, flow in enumerate(flows) if not flow.is_as_certified]
    for start in range(0, len(doubtful), BATCH):
        part = doubtful[start : start + BATCH]
        fine = _integrate([certified[i] for i in part], shape, FINE_STEPS)
        for i, flow in zip(part, fine, strict=True):
            flows[i] = flow
    return flows, len(doubtful)


def main(wanted: int, seed: int = 0) -> None:
    """Tries `wanted` problems, and prints what came of those that are certified."""
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(seed)
    started = time.perf_counter()
    counts: collections.Counter = collections.Counter()
    most_left = largest_share = 0.0
    for shape, share in SHARES.items():
        certified = []
        for problem in problems(rng, shape, round(share * wanted)):
            sign = "> 0" if np.linalg.det(problem.R) > 0 else "<= 0"
            counts[f"det R {sign}"] += 1
            if problem.answer:
                counts[f"certified, det R {sign}"] += 1
                certified.append(problem)
        flows, again = integrate(certified, shape)
        counts["integrated again in more steps"] += again
        counts["as certified"] += sum(bool(flow.is_as_certified) for flow in flows)
        for problem, flow in zip(certified, flows, strict=True):
            most_left = max(most_left, flow.risk_left)
            largest_share = max(largest_share, flow.norm_share)
            if not flow.is_as_certified:
                print(f"NOT as certified: {flow} {problem}")
        seconds = time.perf_counter() - started
        print(f"{shape}, {seconds:.0f} s: {dict(counts)}")
        print(
            f"  largest risk left {most_left:.1e}; largest norm over the certified one"
            f" {largest_share:.6f}",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wanted", type=int, help="problems to try")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    main(arguments.wanted, arguments.seed)
