"""Zero weights: an exact critical point of every net, and what f looks like around it.

As eps falls to 0, ``f(eps theta) = f(0) + eps^2 q(theta) + O(eps^4)`` with

    q(theta) = -2 sum_{blocks, units} <v, m(w)>,
    m(w) = (1/n) sum_i B^T e_i ReLU(w . z_i),

where ``z_i = (A x_i, 1)``, or ``A x_i`` without biases, and ``e_i = y_i - B A x_i`` (N1
to N5). For eps < 0 the form is ``q(-theta)``. It differs, as -w has other features.

All functions here but the last compute by NumPy. They take plain arrays of numbers, and
raise ValueError for others, as those that JAX traces.
"""

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from identity_matters.checks import plain_array
from identity_matters.relu import model
from identity_matters.relu.model import Blocks, Problem

_POWER_STEPS = 30  # of the power iteration; the largest value on the way counts


def unit_inputs(problem: Problem, bias: bool) -> np.ndarray:
    """``z_i``: f64[n, d + 1] with biases, f64[n, d] without."""
    z = plain_array("x", problem.x) @ plain_array("A", problem.A).T
    return np.concatenate([z, np.ones((len(z), 1))], axis=1) if bias else z


def errors(problem: Problem) -> np.ndarray:
    """``e_i = y_i - B A x_i``, errors at the origin: f64[n, d_out].

    Leading axes are kept. ValueError unless y has the shape of the predictions.
    """
    linear = plain_array("B", problem.B) @ plain_array("A", problem.A)
    predictions = plain_array("x", problem.x) @ np.swapaxes(linear, -1, -2)
    y = plain_array("y", problem.y)
    model.check_shape_of_y(problem, predictions.shape)
    return y - predictions


def risk_at_origin(problem: Problem) -> np.ndarray:
    """f(0): f64[], or f64[m] for a leading axis."""
    return np.mean(np.sum(errors(problem) ** 2, axis=-1), axis=-1)


def error_correlation(W: ArrayLike, problem: Problem) -> np.ndarray:
    """``m(w)`` for the rows of W: f64[k, d].

    W is f64[k, d + 1], biases last, or f64[k, d]: its width says whether there are
    biases.
    """
    W = plain_array("W", W)
    z = unit_inputs(problem, bias=W.shape[1] > problem.A.shape[0])
    pulled_back = errors(problem) @ plain_array("B", problem.B)
    return np.maximum(z @ W.T, 0).T @ pulled_back / len(z)


def unit_weights(blocks: Blocks) -> np.ndarray:
    """The rows w of all blocks: f64[l k, d + 1] with biases last, or f64[l k, d]."""
    rows = plain_array("U", blocks.U)
    if blocks.s is not None:
        s = plain_array("s", blocks.s)
        rows = np.concatenate([rows, s[..., None]], axis=-1)
    return rows.reshape(-1, rows.shape[-1])


def second_order_form(blocks: Blocks, problem: Problem) -> float:
    """``q(theta)``, as above; ValueError for blocks that do not fit together."""
    blocks = model.checked_blocks("net", blocks)
    v = np.swapaxes(blocks.V, 1, 2).reshape(-1, problem.A.shape[0])
    return float(-2 * np.sum(v * error_correlation(unit_weights(blocks), problem)))


def escape_curvature(
    problem: Problem, bias: bool, rng: np.random.Generator, starts: int
) -> tuple[float, np.ndarray]:
    """A lower bound on ``kappa = max_{||w|| = 1} ||m(w)||`` (N2), and its w.

    w is f64[d + 1] with biases, else f64[d]. On the cone of one activation pattern m is
    linear, so power iteration ``w <- M^T M w`` with the pattern's own M climbs inside a
    cone.
    """
    z = unit_inputs(problem, bias)
    pulled_back = errors(problem) @ plain_array("B", problem.B) / len(z)
    W = rng.standard_normal((starts, z.shape[1]))
    best = 0.0
    best_w = W[0] / np.linalg.norm(W[0])
    for _ in range(_POWER_STEPS):
        norms = np.linalg.norm(W, axis=1, keepdims=True)
        W = W[norms[:, 0] > 0] / norms[norms[:, 0] > 0]
        if not len(W):
            break
        active = z @ W.T > 0
        # The matrix of m on the cone of each w: f64[starts, d, columns of W].
        M = np.einsum("ns,na,nb->sab", active, pulled_back, z)
        m = np.einsum("sab,sb->sa", M, W)
        values = np.linalg.norm(m, axis=1)
        if values.max() > best:
            best = float(values.max())
            best_w = W[values.argmax()].copy()
        W = np.einsum("sab,sa->sb", M, m)
    return best, best_w


def escape_direction(w: ArrayLike, problem: Problem, depth: int, width: int) -> Blocks:
    """The unit theta with ``q(theta) = -||m(w)||``, in one unit of the first block.

    w, a unit vector, f64[d + 1] with a bias (last) or f64[d], has ``m(w) != 0``, else a
    ValueError.
    """
    w = plain_array("w", w)
    dimension = problem.A.shape[0]
    (m,) = error_correlation(w[None], problem)
    if not m.any():
        raise ValueError(
            "the errors do not correlate with the unit: m(w) = 0; choose another w"
        )
    rows = np.zeros((depth, width, len(w)))
    rows[0, 0] = np.sqrt(0.5) * w
    V = np.zeros((depth, dimension, width))
    V[0, :, 0] = np.sqrt(0.5) * m / np.linalg.norm(m)
    has_bias = len(w) > dimension
    return Blocks(U=rows[..., :dimension], V=V, s=rows[..., -1] if has_bias else None)


def largest_autodiff_hessian_entry(zero: Blocks, problem: Problem) -> float:
    """The largest |entry| that `jax.hessian` gives at zero: 0, although q is not."""
    hessian = jax.jit(jax.hessian(model.risk))(zero, problem)
    return float(max(jnp.abs(leaf).max() for leaf in jax.tree.leaves(hessian)))
