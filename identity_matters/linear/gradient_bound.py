"""The gradient inequality behind Theorem 2.2, in its two printed forms and corrected (eq. 2.3).

Every form has the shape ``||grad f||_F^2 >= right(l, tau, sigma, f - C)`` for all A with
``|||A||| <= tau < 1``. As printed, sigma is sigma_min(Sigma); as corrected, it is sigma_+, the
least non-zero eigenvalue:

* ``iclr2017``: as printed at ICLR 2017; false (`paper.gradient_bound_iclr2017`)
* ``v3``: as printed in arXiv v3; false (`paper.gradient_bound_v3`)
* ``corrected``: ``4 l (1-tau)^{2l-2} sigma_+(Sigma) (f - C)``; true and tight

docs/theory/gradient_bound.md has the proofs and says what is wrong in print.
"""

import fractions
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from identity_matters import paper, random_matrices, solvers
from identity_matters.array_types import Array
from identity_matters.linear import model

# Eigenvalues of Sigma up to this many d eps ||Sigma|| count as 0.
_RANK_ROUNDINGS = 64
# log of the least sigma_min(Sigma) in the search, which starts there; far below the optimum.
_LEAST_LOG_EIGENVALUE = -7.0


def gradient_bound_corrected(depth: Any, tau: Any, sigma: Any, excess: Any) -> Any:
    """``4 l (1-tau)^{2l-2} sigma_+(Sigma) (f - C)``, at most ``||grad f||_F^2`` in B_tau.

    G3 proves it; equality holds at ``A_i = -tau I``, ``Sigma = s I`` (G7). Arguments are numbers,
    or arrays that broadcast, with 0 <= tau < 1; sigma is `least_nonzero_eigenvalue` of Sigma.
    """
    return 4 * depth * (1 - tau) ** (2 * depth - 2) * sigma * excess


def least_nonzero_eigenvalue(eigenvalues: ArrayLike) -> np.ndarray:
    """The least eigenvalue that is not 0 up to rounding, 0 if all are: f64[..., d] -> f64[...].

    The eigenvalues must be those of positive semidefinite matrices, in increasing order.

    >>> float(least_nonzero_eigenvalue([-1e-17, 0.5, 2.0]))
    0.5
    """
    eigenvalues = np.asarray(eigenvalues)
    largest = eigenvalues[..., -1:]
    rounding = _RANK_ROUNDINGS * eigenvalues.shape[-1] * np.finfo(np.float64).eps
    return np.where(eigenvalues > rounding * largest, eigenvalues, largest).min(axis=-1)


def _sigma(form: str, eigenvalues: np.ndarray) -> np.ndarray:
    """The eigenvalue of Sigma that a form uses: sigma_+ if corrected, sigma_min as printed."""
    return least_nonzero_eigenvalue(eigenvalues) if form == "corrected" else eigenvalues[..., 0]


# The right-hand sides as functions of (depth, tau, sigma, excess). Pure arithmetic: JAX may trace
# them, and with `fractions.Fraction` arguments they are exact.
BOUNDS: dict[str, Callable[..., Any]] = {
    "iclr2017": paper.gradient_bound_iclr2017,
    "v3": paper.gradient_bound_v3,
    "corrected": gradient_bound_corrected,
}
FORMS = tuple(BOUNDS)


def gradient_lower_bound(
    A: Array, Sigma: Array, excess: float | Array, form: str = "corrected"
) -> jax.Array:
    """The right-hand side of eq. (2.3) at A, with ``tau = |||A|||`` as measured there: f64[].

    At the smallest counterexample to the printed forms the squared gradient is 16.

    >>> jax.config.update("jax_enable_x64", True)
    >>> A, R, Sigma = jnp.zeros((1, 1, 1)), jnp.full((1, 1), 2.0), jnp.full((1, 1), 2.0)
    >>> excess = model.excess_risk(A, R, Sigma)
    >>> [float(gradient_lower_bound(A, Sigma, excess, form)) for form in FORMS]
    [32.0, 32.0, 16.0]

    A: f64[depth, d, d] with ``|||A||| < 1``; Sigma: f64[d, d], symmetric positive semidefinite;
    excess: f64[], ``f(A) - C`` from `model.excess_risk`; form: one of `FORMS`, of which only
    "corrected" is a true bound. Raises ValueError unless A, Sigma and form are so, and TypeError
    unless A and Sigma are float64. Rounding may make `excess` slightly negative, and so the bound.
    """
    if form not in BOUNDS:
        raise ValueError(f"form must be one of {FORMS}, got {form!r}")
    tau = float(model.max_spectral_norm(A))
    model.check_array(Sigma, "Sigma", A.shape[1:], f"be {A.shape[1]} x {A.shape[1]}, as the layers")
    eigenvalues = second_moment_eigenvalues(Sigma)
    if not tau < 1:
        raise ValueError(f"eq. (2.3) needs |||A||| < 1, got {tau}")
    return BOUNDS[form](A.shape[0], tau, _sigma(form, eigenvalues), excess)


def second_moment_eigenvalues(Sigma: ArrayLike) -> np.ndarray:
    """The eigenvalues of Sigma, f64[d, d], in increasing order: f64[d].

    Raises ValueError unless Sigma is symmetric positive semidefinite up to rounding.
    """
    matrix = np.asarray(Sigma)
    rounding = _RANK_ROUNDINGS * len(matrix) * np.finfo(np.float64).eps * np.abs(matrix).max()
    asymmetry = np.abs(matrix - matrix.T).max()
    if not asymmetry <= rounding:
        raise ValueError(f"Sigma must be symmetric, but |Sigma - Sigma^T| reaches {asymmetry}")
    eigenvalues = np.linalg.eigvalsh(matrix)
    if not eigenvalues[0] >= -rounding:
        raise ValueError(
            f"Sigma must be positive semidefinite, but has the eigenvalue {eigenvalues[0]}"
        )
    return eigenvalues


def squared_gradient_and_excess(
    A: Array, R: Array, Sigma: Array, depth: int | Array
) -> tuple[jax.Array, jax.Array]:
    """``(||grad f||_F^2, f - C)``, f64[] each, at one point; a vmapped caller may mix depths.

    The stack may be padded: its layers from `depth` on must be zero. As factors I they change
    neither the map nor the gradient of the others, and their own gradient is not counted.

    A: f64[max_depth, d, d]; R and Sigma: f64[d, d]; depth: int[].
    """
    excess, gradient = model.excess_risk_and_gradient(A, R, Sigma)
    return jnp.sum(leading_layers(gradient, depth) ** 2), excess


def leading_layers(stack: Array, depth: int | Array) -> jax.Array:
    """`stack`, f64[max_depth, d, d], with zeros in place of all layers from `depth` (int[]) on."""
    return jnp.where((jnp.arange(stack.shape[0]) < depth)[:, None, None], stack, 0.0)


_evaluate = jax.jit(jax.vmap(squared_gradient_and_excess))


def right_over_left(A: Array, R: Array, Sigma: Array, depth: Array, form: str) -> np.ndarray:
    """Right-hand side of eq. (2.3) divided by ``||grad f||_F^2`` at a batch of points.

    A: f64[n, max_depth, d, d] with ``|||A||| < 1`` and zero layers from `depth`, int[n], on; R and
    Sigma: f64[n, d, d]; form: one of `FORMS`, else a KeyError. Returns f64[n]; above 1 the bound
    fails; nan where both sides vanish, as at an optimum.
    """
    pending = _evaluate(A, R, Sigma, depth)
    # NumPy, not JAX, computes the eigenvalues, while XLA evaluates the gradients: two independent
    # batched LAPACK calls in one compiled function deadlock on a CPU with two threads (seen with
    # jaxlib 0.10.2).
    tau = random_matrices.spectral_norms(np.asarray(A)).max(axis=1)
    sigma = _sigma(form, np.linalg.eigvalsh(np.asarray(Sigma)))
    squared_gradient, excess = (np.asarray(value) for value in pending)
    with np.errstate(invalid="ignore"):
        return BOUNDS[form](np.asarray(depth), tau, sigma, excess) / squared_gradient


def squared_gradient_floor(R: Array, Sigma: Array, depth: int, tau: float) -> float:
    """A lower bound of ``||grad f||_F^2`` over B_tau when ``det R < 0``: no critical point inside.

    ``4 l (1-tau)^{2l-2} sigma_min(Sigma)^2 ((1-tau)^l + sigma_min(R))^2``, with equality for d = 1
    at ``A_i = -tau`` (G10 of docs/theory/gradient_bound.md). R and Sigma are f64[d, d], and Sigma
    is symmetric positive definite. ValueError is raised for tau outside [0, 1) or det R >= 0.
    """
    if not 0 <= tau < 1:
        raise ValueError(f"tau must lie in [0, 1), got {tau}")
    determinant = float(np.linalg.det(np.asarray(R)))
    if not determinant < 0:
        raise ValueError(f"the floor needs det R < 0, got {determinant}")
    sigma_min = float(np.linalg.eigvalsh(np.asarray(Sigma))[0])
    distance = (1 - tau) ** depth + float(np.linalg.svd(np.asarray(R), compute_uv=False)[-1])
    return gradient_bound_corrected(depth, tau, sigma_min, sigma_min * distance**2)


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

    The target is written ``R = (I + A_l) ... (I + A_1) - E`` with E free; otherwise the optimiser
    mostly learns to change E through R. Variables are A, E, Sigma and the logarithm of a lower
    bound m of sigma_min(Sigma). The objective takes the right-hand side at (tau, m), where it is
    smooth, not at the measured |||A||| and sigma_min(Sigma). So evaluate the result, the worst
    ``(A, R, Sigma)`` found, with `right_over_left`. Vmappable in all array arguments.

    A: f64[depth, d, d], E and Sigma: f64[d, d], tau: f64[] in (0, 1): the start and the radius.
    """
    bound, identity = BOUNDS[form], jnp.eye(E.shape[0])

    def target(layers, error):
        return model.product(layers) - error

    def objective(parameters):
        layers, error, second_moment, log_least = parameters
        excess, gradient = model.excess_risk_and_gradient(
            layers, target(layers, error), second_moment
        )
        right = bound(layers.shape[0], tau, jnp.exp(log_least), excess)
        return jnp.log(jnp.sum(gradient**2)) - jnp.log(right)

    def project(parameters):
        layers, error, second_moment, log_least = parameters
        log_least = jnp.clip(log_least, _LEAST_LOG_EIGENVALUE, 0.0)
        # One batched SVD serves both constraints; under vmap, two would deadlock as described in
        # `right_over_left`. Sigma + I is positive definite, so its SVD diagonalises it.
        shifted = (second_moment + second_moment.T) / 2 + identity
        left, values, right = jnp.linalg.svd(jnp.concatenate([layers, shifted[None]]))
        layers = (left[:-1] * jnp.minimum(values[:-1], tau)[:, None, :]) @ right[:-1]
        eigenvalues = jnp.clip(values[-1] - 1, jnp.exp(log_least), 1.0)
        second_moment = (left[-1] * eigenvalues[None, :]) @ left[-1].T
        return layers, error / jnp.linalg.norm(error), second_moment, log_least

    start = (A, E, Sigma, jnp.asarray(_LEAST_LOG_EIGENVALUE))
    (layers, error, second_moment, _), _ = solvers.projected_adam(
        objective, project, start, steps=steps, learning_rate=learning_rate
    )
    return layers, target(layers, error), second_moment


class ScalarPoint(NamedTuple):
    """A point with d = 1 and both sides of eq. (2.3) there, all exact."""

    a: tuple[fractions.Fraction, ...]
    R: int
    Sigma: int
    squared_gradient: fractions.Fraction
    right: fractions.Fraction


def smallest_scalar_counterexample(
    form: str, *, max_depth: int, max_integer: int, max_sigma: int
) -> ScalarPoint | None:
    """The first d = 1 point that violates eq. (2.3), in order of depth, then A, then R + Sigma.

    Layers are taken from 0, -1/2 and 1/2 in this order, R from 1 ... max_integer (det R > 0),
    Sigma from 1 ... max_sigma. None if no point of this lattice fails. The arithmetic is exact and,
    apart from the right-hand side, shares no code with the floating-point version: it is Lemma 2.4
    for numbers. `form` is one of `FORMS`, else a KeyError.
    """
    bound, half = BOUNDS[form], fractions.Fraction(1, 2)
    data = itertools.product(range(1, max_integer + 1), range(1, max_sigma + 1))
    ordered = sorted(data, key=lambda pair: (sum(pair), pair))
    for depth in range(1, max_depth + 1):
        for a in itertools.product((fractions.Fraction(0), -half, half), repeat=depth):
            product, tau = math.prod(1 + value for value in a), max(map(abs, a))
            for R, Sigma in ordered:
                E = product - R
                slopes = [2 * E * Sigma * product / (1 + value) for value in a]
                squared_gradient = sum((slope**2 for slope in slopes), fractions.Fraction(0))
                right = bound(depth, tau, Sigma, E**2 * Sigma)
                if right > squared_gradient:
                    return ScalarPoint(a, R, Sigma, squared_gradient, right)
    return None
