"""Attacks on eq. (2.3): an adversarial optimisation, and a lattice search in exact arithmetic."""

import dataclasses
import fractions
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from identity_matters.array_types import Array
from identity_matters.linear import landscape, network, projected, risk

Rational = fractions.Fraction | int
# log of the least sigma_min(Sigma) that the search admits and starts from, far below the optimum.
_LEAST_LOG_EIGENVALUE = -7.0


def worst_case(
    A: Array,
    E: Array,
    Sigma: Array,
    tau: float | Array,
    form: str,
    *,
    steps: int,
    learning_rate: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Maximises right/left of eq. (2.3) over ``|||A||| <= tau``, R and ``||Sigma|| <= 1``.

    The target is written ``R = (I + A_l) ... (I + A_1) - E`` with E free: without that the
    optimiser mostly learns to move E about through R. Variables are A, E, Sigma and the logarithm
    of a lower bound m of sigma_min(Sigma). On the way right is taken at (tau, m), which is smooth,
    and not at the measured |||A||| and sigma_min(Sigma), so evaluate the result with
    `landscape.right_over_left`. Vmappable in all array arguments.

    Args:
      A: f64[depth, d, d], E and Sigma: f64[d, d], tau: f64[] in (0, 1): the start and the radius.
      form: one of `landscape.FORMS`.
      steps, learning_rate: of `projected.minimise`.
    Returns:
      ``(A, R, Sigma)`` of the worst point found.
    """
    bound = landscape.bound_function(form)

    def target(layers, error):
        return network.product(layers) - error

    def objective(parameters):
        layers, error, second_moment, log_least = parameters
        excess, gradient = risk.excess_risk_and_gradient(
            layers, target(layers, error), second_moment
        )
        right = bound(layers.shape[0], tau, jnp.exp(log_least), excess)
        return jnp.log(jnp.sum(gradient**2)) - jnp.log(right)

    def project(parameters):
        layers, error, second_moment, log_least = parameters
        log_least = jnp.clip(log_least, _LEAST_LOG_EIGENVALUE, 0.0)
        layers, second_moment = projected.clip_layers_and_second_moment(
            layers, second_moment, tau, jnp.exp(log_least), 1.0
        )
        return layers, error / jnp.linalg.norm(error), second_moment, log_least

    start = (A, E, Sigma, jnp.asarray(_LEAST_LOG_EIGENVALUE))
    (layers, error, second_moment, _), _ = projected.minimise(
        objective, project, start, steps=steps, learning_rate=learning_rate
    )
    return layers, target(layers, error), second_moment


@dataclasses.dataclass(frozen=True)
class ScalarPoint:
    """A point with d = 1 and both sides of eq. (2.3) there, all exact."""

    a: tuple[fractions.Fraction, ...]
    R: fractions.Fraction
    Sigma: fractions.Fraction
    squared_gradient: fractions.Fraction
    right: fractions.Fraction

    @property
    def fails(self) -> bool:
        """Whether the right-hand side exceeds the squared gradient, with no rounding at all."""
        return self.right > self.squared_gradient


def scalar_point(a: Sequence[Rational], R: Rational, Sigma: Rational, form: str) -> ScalarPoint:
    """Both sides of eq. (2.3) for d = 1 in exact rational arithmetic.

    An implementation of its own (Lemma 2.4 for numbers), shared with no floating-point code:
    ``df/da_i = 2 E Sigma prod_{j != i} (1 + a_j)``, ``f - C = E^2 Sigma``.

    Args:
      a: the layers A_i, rational numbers (int or Fraction) with ``max |a_i| < 1``.
      R, Sigma: rational numbers, ``Sigma > 0``.
      form: one of `landscape.FORMS`.
    Raises:
      ValueError: no layer, some ``|a_i| >= 1``, or ``Sigma <= 0``.
    """
    layers = tuple(fractions.Fraction(value) for value in a)
    R, Sigma = fractions.Fraction(R), fractions.Fraction(Sigma)
    if not layers:
        raise ValueError("a must hold at least 1 layer, got none")
    tau = max(abs(value) for value in layers)
    if tau >= 1:
        raise ValueError(f"eq. (2.3) needs max |a_i| < 1, got {tau}")
    if Sigma <= 0:
        raise ValueError(f"Sigma must be positive, got {Sigma}")
    product = fractions.Fraction(1)
    for value in layers:
        product *= 1 + value
    E = product - R
    squares = [(2 * E * Sigma * product / (1 + value)) ** 2 for value in layers]
    squared_gradient = sum(squares, start=fractions.Fraction(0))
    right = landscape.bound_function(form)(len(layers), tau, Sigma, E**2 * Sigma)
    return ScalarPoint(layers, R, Sigma, squared_gradient, right)


def smallest_scalar_counterexample(
    form: str, *, max_depth: int, max_integer: int, max_sigma: int
) -> ScalarPoint | None:
    """The first d = 1 point that violates eq. (2.3), in order of depth, then A, then R + Sigma.

    Layers are taken from 0, -1/2 and 1/2 in this order, R from 1 ... max_integer (det R > 0),
    Sigma from 1 ... max_sigma. None where no point of this lattice fails.

    Raises:
      ValueError: see `scalar_point`; or a size below 1.
    """
    sizes = {"max_depth": max_depth, "max_integer": max_integer, "max_sigma": max_sigma}
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    half = fractions.Fraction(1, 2)
    data = itertools.product(range(1, max_integer + 1), range(1, max_sigma + 1))
    ordered = sorted(data, key=lambda pair: (sum(pair), pair))
    for depth in range(1, max_depth + 1):
        for a in itertools.product((fractions.Fraction(0), -half, half), repeat=depth):
            for R, Sigma in ordered:
                point = scalar_point(a, R, Sigma, form)
                if point.fails:
                    return point
    return None
