"""Searches for points that violate a form of eq. (2.3): by ascent, and exactly."""

import fractions
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from identity_matters import solvers
from identity_matters.array_types import Array
from identity_matters.checks import check_array_type
from identity_matters.linear import model
from identity_matters.linear.gradient_bound import bound_of_form

# log of the least sigma_min(Sigma) in the ascent, which starts there; far below the
# optimum.
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
    """Maximises right/left of eq. (2.3) over |||A||| <= tau, R and ||Sigma|| <= 1.

    E is a variable, R is not: otherwise the optimiser mostly learns to change E through
    R. The objective has tau and a variable lower bound of sigma_min(Sigma) in place of
    the measured |||A||| and sigma_min(Sigma), which are not smooth.

    Args:
      A: f64[depth, d, d], where it starts.
      E: f64[d, d], the error (I + A_l) ... (I + A_1) - R at the start.
      Sigma: f64[d, d], at the start.
      tau: f64[] in (0, 1); vmappable, as are the three above.
      form: one of `gradient_bound.FORMS`.
      steps, learning_rate: of projected Adam.
    Returns:
      The worst ``(A, R, Sigma)``; evaluate it with
        `gradient_bound.right_over_left`.
    Raises:
      ValueError: an unknown form.
    """
    bound = bound_of_form(form)
    for name, array in {"A": A, "E": E, "Sigma": Sigma}.items():
        check_array_type(name, array)
    identity = jnp.eye(E.shape[0])

    def target(layers, error):
        return model.product(layers) - error

    def objective(parameters):
        layers, error, second_moment, log_least = parameters
        R = target(layers, error)
        excess, gradient = model.excess_risk_and_gradient(layers, R, second_moment)
        right = bound(layers.shape[0], tau, jnp.exp(log_least), excess)
        return jnp.log(jnp.sum(gradient**2)) - jnp.log(right)

    def project(parameters):
        layers, error, second_moment, log_least = parameters
        log_least = jnp.clip(log_least, _LEAST_LOG_EIGENVALUE, 0.0)
        # One batched SVD serves both constraints: under vmap, two would deadlock, as in
        # `gradient_bound.right_over_left`. The SVD of Sigma + I, which is positive
        # definite, diagonalises it.
        shifted = (second_moment + second_moment.T) / 2 + identity
        left, values, right = jnp.linalg.svd(jnp.concatenate([layers, shifted[None]]))
        layers = (left[:-1] * jnp.minimum(values[:-1], tau)[:, None, :]) @ right[:-1]
        eigenvalues = jnp.clip(values[-1] - 1, jnp.exp(log_least), 1.0)
        second_moment = (left[-1] * eigenvalues[None, :]) @ left[-1].T
        return layers, error / jnp.linalg.norm(error), second_moment, log_least

    start = (A, E, Sigma, jnp.asarray(_LEAST_LOG_EIGENVALUE))
    best, _ = solvers.projected_adam(
        objective, project, start, steps=steps, learning_rate=learning_rate
    )
    layers, error, second_moment, _ = best
    return layers, target(layers, error), second_moment


class ScalarPoint(NamedTuple):
    """A point with d = 1 and both sides of eq. (2.3) there, all exact.

    Attributes:
      a: the layers A_i.
      R, Sigma: the target and the second moment.
      squared_gradient: the left-hand side.
      right: the right-hand side.
    """

    a: tuple[fractions.Fraction, ...]
    R: int
    Sigma: int
    squared_gradient: fractions.Fraction
    right: fractions.Fraction


def smallest_scalar_counterexample(
    form: str, *, max_depth: int, max_integer: int, max_sigma: int
) -> ScalarPoint | None:
    """The first d = 1 point that violates eq. (2.3), by depth, then A, then R + Sigma.

    Layers are 0, -1/2 or 1/2, in this order; R is 1 ... max_integer and Sigma 1 ...
    max_sigma. None if no such point fails; ValueError for an unknown form. The
    arithmetic is exact and shares only the right-hand side with the floating-point
    version.
    """
    bound = bound_of_form(form)
    zero = fractions.Fraction(0)
    half = fractions.Fraction(1, 2)
    data = itertools.product(range(1, max_integer + 1), range(1, max_sigma + 1))
    ordered = sorted(data, key=lambda pair: (sum(pair), pair))
    for depth in range(1, max_depth + 1):
        for a in itertools.product((zero, -half, half), repeat=depth):
            for R, Sigma in ordered:
                point = _scalar_point(a, R, Sigma, bound)
                if point.right > point.squared_gradient:
                    return point
    return None


def _scalar_point(
    a: tuple[fractions.Fraction, ...], R: int, Sigma: int, bound: Callable[..., Any]
) -> ScalarPoint:
    """Both sides of eq. (2.3) at layers a, for d = 1; `bound` is one of `BOUNDS`."""
    product = math.prod(1 + a_i for a_i in a)
    E = product - R
    # df/da_i = 2 E Sigma prod_{j != i} (1 + a_j)
    slopes = [2 * E * Sigma * product / (1 + a_i) for a_i in a]
    squares = [slope**2 for slope in slopes]
    tau = max(abs(a_i) for a_i in a)
    return ScalarPoint(
        a=a,
        R=R,
        Sigma=Sigma,
        squared_gradient=sum(squares, fractions.Fraction(0)),
        right=bound(len(a), tau, Sigma, E**2 * Sigma),
    )
