"""The gradient inequality behind Theorem 2.2, as printed (two forms) and corrected.

Every form reads ``||grad f||_F^2 >= right(l, tau, sigma, f - C)`` where ``|||A||| <=
tau < 1``. Both printed ones, "iclr2017" and "v3" (of arXiv), are false; there sigma is
sigma_min(Sigma). "corrected" is true and tight; there it is sigma_+, the least non-zero
eigenvalue. docs/theory/gradient_bound.md has the proofs, and says what is wrong in
print.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters import matrices, paper
from identity_matters.array_types import Array
from identity_matters.checks import (
    check_array_type,
    check_choice,
    check_whole,
    real_array,
    real_number,
    square_matrix,
)
from identity_matters.linear import model, second_moment

_EPS = float(np.finfo(np.float64).eps)
# Powers of a float64 are computed exactly, as fractions, up to this exponent. Those of
# larger ones would have too many digits.
_LARGEST_EXACT_EXPONENT = 200


def gradient_bound_corrected(depth: Any, tau: Any, sigma: Any, excess: Any) -> Any:
    """``4 l (1-tau)^{2l-2} sigma_+(Sigma) (f - C)``, corrected eq. (2.3).

    It is at most ``||grad f||_F^2`` in B_tau (G3). Equality holds at ``A_i = -tau I``,
    ``Sigma = s I`` (G7). Arguments broadcast; 0 <= tau < 1.

    Along a training of four layers, for Sigma = I:

    >>> from identity_matters.linear import Rules, gradient_descent
    >>> jax.config.update("jax_enable_x64", True)
    >>> rules = Rules(0.05, max_updates=9, risk_tolerance=0.0, divergence_factor=1e3)
    >>> R = np.diag([1.5, 0.8])
    >>> curves = gradient_descent(np.zeros((4, 2, 2)), R, np.eye(2), rules).curves
    >>> right = gradient_bound_corrected(
    ...     depth=4, tau=curves.norm, sigma=1.0, excess=curves.excess_risk
    ... )
    >>> bool((curves.gradient_norm**2 >= right).all())
    True
    """
    return 4 * depth * (1 - tau) ** (2 * depth - 2) * sigma * excess


# The right-hand sides as functions of (depth, tau, sigma, excess). Pure arithmetic: JAX
# may trace them, and with `fractions.Fraction` arguments they are exact.
BOUNDS: dict[str, Callable[..., Any]] = {
    "iclr2017": paper.gradient_bound_iclr2017,
    "v3": paper.gradient_bound_v3,
    "corrected": gradient_bound_corrected,
}
FORMS = tuple(BOUNDS)


def bound_of_form(form: str) -> Callable[..., Any]:
    """One of `BOUNDS`; ValueError for an unknown form."""
    return BOUNDS[check_choice("form", form, FORMS)]


def gradient_lower_bound(
    A: Array, R: Array, Sigma: Array, form: str = "corrected"
) -> float:
    """The right-hand side of eq. (2.3) at A, with ``tau = |||A|||`` as measured there.

    Of the forms only "corrected" is a true bound of ``||grad f||_F^2``. Eigenvalues of
    Sigma that float64 cannot tell from 0 are left out, so the bound holds whatever they
    are: with Pi the projection on the others and sigma the least of them, it is

        4 l (1-tau)^{2l-2} sigma ||E Sigma^{1/2} Pi||_F^2.

    This is (G3), as ``||E Sigma||_F >= ||E Sigma Pi||_F``. What rounding may have
    added to it, also through E and tau, is subtracted, so the bound is 0 where E is no
    larger than its rounding. The printed forms have the computed tau,
    ``sigma_min(Sigma)`` and f - C, without margins.

    Args:
      A: f64[depth, d, d] with ``|||A||| < 1``.
      R: f64[d, d].
      Sigma: f64[d, d], symmetric positive semidefinite.
      form: one of `FORMS`.
    Raises:
      ValueError: an argument is not as above, or holds anything but finite real
        numbers, or the bound is beyond float64.
      TypeError: an array is not float64.

    >>> jax.config.update("jax_enable_x64", True)
    >>> # The smallest counterexample to the printed forms: the squared gradient is 16.
    >>> A, R, Sigma = jnp.zeros((1, 1, 1)), jnp.full((1, 1), 2.0), jnp.full((1, 1), 2.0)
    >>> [round(gradient_lower_bound(A, R, Sigma, form), 9) for form in FORMS]
    [32.0, 32.0, 16.0]
    """
    bound = bound_of_form(form)
    for name, array in {"A": A, "R": R, "Sigma": Sigma}.items():
        real_array(name, array)
    # For every form, since it checks the shapes and dtypes.
    excess = float(model.excess_risk(A, R, Sigma))
    tau = float(model.max_spectral_norm(A))
    if not tau < 1:
        raise ValueError(f"eq. (2.3) needs |||A||| < 1, got {tau}")
    matrix, eigenvalues = second_moment.check_second_moment(Sigma)
    with np.errstate(over="ignore", invalid="ignore"):
        if form == "corrected":
            right = _corrected_rounded_down(np.asarray(A), np.asarray(R), matrix, tau)
        else:
            right = float(bound(A.shape[0], tau, eigenvalues[0], excess))
    if not math.isfinite(right):
        raise ValueError(f"the bound must be within the range of float64, is {right}")
    return right


def _corrected_rounded_down(
    A: np.ndarray, R: np.ndarray, Sigma: np.ndarray, tau: float
) -> float:
    """The corrected right-hand side, at most what it is in exact arithmetic.

    As far as singular values and eigenvalues are as exact as `second_moment` assumes.
    inf or nan if it or a norm on the way is beyond float64.
    """
    depth, d, _ = A.shape
    product, error = _product(A)
    E = product - R
    # As in `_corrected_right`.
    exponent_of_E = int(matrices.exponents(E))
    exponent_of_Sigma = int(matrices.exponents(Sigma))
    E = np.ldexp(E, -exponent_of_E)
    norm = float(np.linalg.norm(E)) * (1 + d**2 * _EPS)
    # The difference is rounded, too.
    error = float(np.ldexp(error, -exponent_of_E)) + norm * _EPS / 2
    # E may be nothing but rounding, and that of larger entries beyond float64 now.
    if error >= norm and math.isfinite(norm):
        return 0.0
    kept = second_moment.kept_part(np.ldexp(Sigma, -exponent_of_Sigma))
    largest = float(kept.eigenvalues[-1])
    # Of sums of d^2 squares, of vectors that are orthonormal up to rounding, and of a
    # few numbers more.
    down = 1 - (d**2 + 16 * d + 16) * _EPS
    # ||E Sigma^{1/2} Pi||_F, then ||E Sigma||_F.
    root = math.sqrt(kept.squared_norm(E)) * down - error * math.sqrt(largest) / down
    lost = (norm + error) * float(kept.rounding) / down
    weighted = math.sqrt(kept.least) * root * down - lost
    if not math.isfinite(weighted):
        return weighted
    # The largest singular value is assumed to be as exact as an eigenvalue.
    tau += float(second_moment.eigenvalue_rounding(d, tau))
    squared = Fraction(max(weighted, 0.0)) ** 2
    scale = Fraction(4) ** (exponent_of_E + exponent_of_Sigma)
    return _rounded_down(
        4 * depth * _power_rounded_down(tau, 2 * depth - 2) * squared * scale
    )


def _product(A: np.ndarray) -> tuple[np.ndarray, float]:
    """The product of all layers, f64[d, d], and a bound of its error, in ``||.||_F``.

    Layer i adds the rounding of its product and sum, a matrix of at most

        delta_i = ((d + 1) ||A_i||_F ||M_{i-1}||_F + ||M_i||_F) eps / 2

    with M_i the product up to it, and the layers above it, whose product is L_i, carry
    that on. The sum of ``||L_i||_F delta_i`` is of first order; it is taken twice for
    what is of higher order.
    """
    d = A.shape[-1]
    inputs = np.stack(list(matrices.partial_products(A)))
    # L_l^T, ..., L_0^T.
    above = np.stack(list(matrices.partial_products(np.swapaxes(A[::-1], 1, 2))))
    of_inputs = np.linalg.norm(inputs, axis=(1, 2))
    of_above = np.linalg.norm(above, axis=(1, 2))[::-1]
    of_layers = np.linalg.norm(A, axis=(1, 2))
    steps = (d + 1) * of_layers * of_inputs[:-1] + of_inputs[1:]
    # A layer of zeros rounds nothing.
    steps = np.where(A.any(axis=(1, 2)), steps, 0.0)
    return inputs[-1], float(steps @ of_above[1:]) * _EPS


def _corrected_right(
    depth: np.ndarray, tau: Any, E: np.ndarray, Sigma: np.ndarray
) -> np.ndarray:
    """The corrected right-hand side, f64[...], for the kept part of Sigma, batched.

    Less what rounding may add to that part; not that of E and tau.
    """
    # The bound is of degree 2 in both. Powers of 2 keep their digits, and leave squares
    # that are within float64 where the bound is.
    exponent_of_E = matrices.exponents(E)
    exponent_of_Sigma = matrices.exponents(Sigma)
    E = matrices.times_powers_of_2(E, -exponent_of_E)
    Sigma = matrices.times_powers_of_2(Sigma, -exponent_of_Sigma)
    kept = second_moment.kept_part(Sigma)
    excess = kept.squared_norm(E)
    # ||E Sigma||_F is at least the first of these less the second.
    before_rounding = np.sqrt(kept.least * excess)
    rounding = np.linalg.norm(E, axis=(-2, -1)) * kept.rounding
    # Where there is nothing to divide by, the bound is 0 with any share.
    divisor = np.where(before_rounding > 0, before_rounding, 1)
    share_left = np.maximum(1 - rounding / divisor, 0)
    # (before_rounding - rounding)^2 = kept.least excess share_left^2.
    right = gradient_bound_corrected(
        depth, tau, sigma=kept.least, excess=excess * share_left**2
    )
    return np.ldexp(right, 2 * (exponent_of_E + exponent_of_Sigma))


def squared_gradient_and_excess(
    A: Array, R: Array, Sigma: Array, depth: int | Array
) -> tuple[jax.Array, jax.Array]:
    """``(||grad f||_F^2, f - C)``, f64[] each, at one point.

    A vmapped caller may mix depths. A: f64[max_depth, d, d], padded with zeros from
    `depth`, int[], on; R and Sigma, which is symmetric: f64[d, d]. The padding does not
    change the map, and its gradient is not counted.
    """
    excess, gradient = model.excess_risk_and_gradient(A, R, Sigma)
    return jnp.sum(leading_layers(gradient, depth) ** 2), excess


def leading_layers(stack: Array, depth: int | Array) -> jax.Array:
    """The stack, f64[max_depth, d, d], with zeros from layer `depth`, int[], on."""
    return jnp.where((jnp.arange(stack.shape[0]) < depth)[:, None, None], stack, 0.0)


def check_points(A: Array, R: Array, Sigma: Array, depth: int | Array) -> None:
    """Refuses what is not a batch of points; runs on the host, not under tracing.

    Args:
      A: f64[n, max_depth, d, d], with zeros from `depth` on.
      R, Sigma: f64[n, d, d]. Sigma must be symmetric, since half of it would count
        otherwise.
      depth: int[n], or one number for all, from 1 to max_depth.
    Raises:
      TypeError: A, R or Sigma is not a NumPy or JAX array.
      ValueError: an argument is not as above, or holds anything but finite real
        numbers.
    """
    for name, array in {"A": A, "R": R, "Sigma": Sigma}.items():
        check_array_type(name, array)
        real_array(name, array)
    if np.ndim(A) != 4 or A.shape[2] != A.shape[3]:
        raise ValueError(f"A must be [n, max_depth, d, d], got shape {np.shape(A)}")
    count, _, d, _ = A.shape
    for name, matrices_of_points in {"R": R, "Sigma": Sigma}.items():
        if np.shape(matrices_of_points) != (count, d, d):
            raise ValueError(
                f"{name} must be {count} x {d} x {d}, one matrix for each point of A,"
                f" got shape {np.shape(matrices_of_points)}; np.broadcast_to({name},"
                f" {(count, d, d)}) repeats one"
            )
    second_moment.check_symmetric(np.asarray(Sigma))
    _check_depths(np.asarray(A), depth)


def _check_depths(A: np.ndarray, depth: int | Array) -> None:
    """ValueError unless these are depths of the points A, whose other layers are 0."""
    count, max_depth, _, _ = A.shape
    depths = np.asarray(depth)
    is_whole = np.issubdtype(depths.dtype, np.integer)
    if not is_whole or depths.shape not in ((), (count,)):
        raise ValueError(
            f"depth must be a whole number, or {count} of them, got {depth!r}"
        )
    if depths.min() < 1 or depths.max() > max_depth:
        raise ValueError(
            f"depth must be from 1 to {max_depth}, the layers of A, got {depths.min()}"
            f" to {depths.max()}"
        )
    is_padding = np.arange(max_depth) >= np.broadcast_to(depths, count)[:, None]
    if A[is_padding].any():
        raise ValueError("A must be 0 in all layers from depth on")


_evaluate = jax.jit(jax.vmap(squared_gradient_and_excess))


def right_over_left(
    A: Array, R: Array, Sigma: Array, depth: int | Array, form: str
) -> np.ndarray:
    """Right-hand side of eq. (2.3) over ``||grad f||_F^2`` at many points: f64[n].

    Above 1 the bound fails; where both sides vanish, as at an optimum, it is nan. The
    right-hand side is that of `gradient_lower_bound`.

    Args:
      A: f64[n, max_depth, d, d] with |||A||| < 1, zeros from `depth` on.
      R: f64[n, d, d].
      Sigma: f64[n, d, d], symmetric; that it is positive semidefinite is not checked.
      depth: int[n], or one number for all, from 1 to max_depth.
      form: one of `FORMS`.
    Raises:
      ValueError: an argument is not as above, or holds anything but finite real
        numbers, or a side is beyond float64.
      TypeError: an array is not float64.
    """
    bound = bound_of_form(form)
    check_points(A, R, Sigma, depth)
    depth = np.broadcast_to(depth, len(A))
    pending = _evaluate(A, R, Sigma, depth)
    # NumPy computes eigenvalues while XLA evaluates gradients: with two CPU threads
    # and jaxlib 0.10.2, two independent batched LAPACK calls in one program deadlock.
    tau = matrices.spectral_norms(np.asarray(A)).max(axis=1)
    if not (tau < 1).all():
        raise ValueError(f"eq. (2.3) needs |||A||| < 1, got {tau.max()}")
    second_moments = np.asarray(Sigma)
    with np.errstate(over="ignore", invalid="ignore"):
        if form == "corrected":
            layers = np.moveaxis(np.asarray(A), 1, 0)
            E = matrices.residual_product(layers) - np.asarray(R)
            right = _corrected_right(depth, tau, E, second_moments)
            squared_gradient, _ = pending
        else:
            sigma = np.linalg.eigvalsh(second_moments)[..., 0]
            squared_gradient, excess = pending
            right = bound(depth, tau, sigma, np.asarray(excess))
        left = np.asarray(squared_gradient)
        if not np.isfinite(left).all() or not np.isfinite(right).all():
            raise ValueError("both sides must be within the range of float64")
        return right / left


def squared_gradient_floor(R: Array, Sigma: Array, depth: int, tau: float) -> float:
    """A lower bound of ``||grad f||_F^2`` over B_tau when ``det R < 0`` (G10):

        4 l (1-tau)^{2l-2} sigma_min(Sigma)^2 ((1-tau)^l + sigma_min(R))^2,

    with equality for d = 1 at ``A_i = -tau``. Both least values are lowered by their
    rounding errors, and so is the result. It is positive, so no critical point lies
    inside, unless rounding leaves it open whether Sigma is singular, or the bound is
    below float64: then it is 0.

    Args:
      R: f64[d, d] with negative determinant.
      Sigma: f64[d, d], symmetric positive semidefinite.
      depth: l.
      tau: in [0, 1).
    Raises:
      ValueError: an argument is not as above, ``sigma_min(R)`` is not above rounding,
        or the bound is beyond float64.
    """
    R = square_matrix("R", R)
    depth = check_whole("depth", depth)
    tau = real_number("tau", tau)
    matrix, eigenvalues = second_moment.check_second_moment(Sigma)
    second_moment.check_same_shape(R, matrix)
    if not 0 <= tau < 1:
        raise ValueError(f"tau must lie in [0, 1), got {tau}")
    sign = matrices.determinant_sign(R)
    stretches = np.linalg.svd(R, compute_uv=False)
    if not sign < 0:
        raise ValueError(
            f"R must have a negative determinant, got det R of sign {sign}"
        )
    # Singular values are assumed to be as exact as eigenvalues.
    rounding = second_moment.eigenvalue_rounding(len(R), stretches[0])
    if stretches[-1] <= rounding:
        raise ValueError(
            f"R must be invertible beyond rounding, here {rounding:.3g}, got singular"
            f" values down to {stretches[-1]:.3g}"
        )
    sigma_rounding = second_moment.eigenvalue_rounding(len(matrix), eigenvalues[-1])
    sigma_min = max(float(eigenvalues[0] - sigma_rounding), 0.0)
    # Rounding may have raised the least singular value.
    least_stretch = Fraction(float(stretches[-1] - rounding))
    distance = _power_rounded_down(tau, depth) + least_stretch
    of_other_layers = _power_rounded_down(tau, 2 * depth - 2)
    floor = 4 * depth * of_other_layers * Fraction(sigma_min) ** 2 * distance**2
    rounded = _rounded_down(floor)
    if math.isinf(rounded):
        raise ValueError("the floor must be within the range of float64")
    return rounded


def _rounded_down(exact: Fraction) -> float:
    """The largest float64 up to `exact`, at least 0; infinity if that is beyond."""
    try:
        nearest = float(exact)
    except OverflowError:
        return math.inf
    return nearest if Fraction(nearest) <= exact else math.nextafter(nearest, 0.0)


def _power_rounded_down(tau: float, exponent: int) -> Fraction:
    """A lower bound of ``(1 - tau)^exponent``, or itself if the exponent is small.

    For tau above 1, that of 1.
    """
    base = max(1 - Fraction(tau), Fraction(0))
    if exponent <= _LARGEST_EXACT_EXPONENT or base == 0:
        return base**exponent
    logarithm = exponent * math.log1p(-tau)
    # Of log1p, of the product and of exp: each is off by at most two roundings.
    roundings = 4 * abs(logarithm) + 8
    return Fraction(math.exp(logarithm)) * (1 - Fraction(roundings * _EPS))
