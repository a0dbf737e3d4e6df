"""Corrected eq. (2.3) at very many random points, in float32, with rounding bounds.

Each point is drawn by what it is made of, so that nothing about it has to be computed
back: the layers ``A_i = Q_i diag(s_i) P_i^T`` with singular values of at most tau, the
error E, from which ``R = (I + A_l) ... (I + A_1) - E`` follows, and Sigma by its
eigenvalues and eigenvectors. At each point both sides of (G3) are computed along with
bounds of their rounding errors (G11 of docs/theory/gradient_bound.md): a point violates
(G3) only if the sides differ by more than that.

All arrays have the points in their last axis, which vectorizes products of small
matrices.
"""

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp

from identity_matters.array_types import Array

UNIT_ROUNDOFF = 2.0**-24
# A computed Householder reflection of a vector of d entries is off by at most this many
# d u times the vector's norm, for every d (Higham 2002, Lemma 19.2, with a generous
# constant).
_REFLECTION_ROUNDINGS = 10
# Error bounds are themselves computed in float32, with a relative error far below this.
_BOUND_SLACK = 1.001
# The least 1 - tau / max_tau, and the least relative distance of singular values from
# tau.
_LOG10_CLOSEST = -4.0


def multiply(X: Array, Y: Array) -> jax.Array:
    """``X Y`` for each point: [d, k, n], [k, m, n] -> [d, m, n]."""
    return jnp.sum(X[:, :, None, :] * Y[None, :, :, :], axis=1)


def transpose(X: Array) -> jax.Array:
    """The transpose for each point."""
    return jnp.swapaxes(X, 0, 1)


def frobenius(X: Array) -> jax.Array:
    """The Frobenius norm for each point: [d, m, n] -> [n]."""
    return jnp.sqrt(jnp.sum(X * X, axis=(0, 1)))


def _reflect(v: Array, X: Array) -> jax.Array:
    """``(I - 2 v v^T / v^T v) X`` for each point; v: [d, n]."""
    scaled = 2 * jnp.sum(v[:, None, :] * X, axis=0) / jnp.sum(v * v, axis=0)[None]
    return jnp.asarray(X - v[:, None, :] * scaled[None])


def draw_points(
    key: jax.Array, *, points: int, depth: int, d: int, max_tau: float
) -> dict:
    """Random points of B_tau, float32, many of them close to the equality of G7.

    Half of the points have ``P_i = -Q_i``; where the singular values come close to tau,
    ``A_i`` is then close to ``-tau I``. In half of them the rows of E are close to
    multiples of the eigenvector of the least eigenvalue of Sigma. Q_i and P_i are
    reflections.

    Returns:
      A: f32[depth, d, d, points].
      tau: f32[points], of the singular values that were drawn.
      C: f32[d, d, points], E in the eigenvectors of Sigma, columns scaled by the roots
        of the eigenvalues, so that ``f - C = ||C||_F^2``.
      root_eigenvalues: f32[d, points], the least first.
      v: f32[d, points]; the reflection ``V = I - 2 v v^T / v^T v`` has the eigenvectors
        of Sigma.
    """
    sizes = {
        "tau": 1,
        "closeness": depth,
        "s": depth * d,
        "left": depth * d,
        "right": depth * d,
        "kinds": 2,
        "least": 1,
        "growth": d,
        "weight": 1,
        "C": d * d,
        "v": d,
    }
    # One draw for all: each would be compiled separately.
    uniform = jax.random.uniform(key, (sum(sizes.values()), points), jnp.float32)
    ends = list(itertools.accumulate(sizes.values()))
    drawn = dict(zip(sizes, jnp.split(uniform, ends[:-1]), strict=True))
    # Whether P_i = -Q_i, and whether E is aligned with the least eigenvector.
    symmetric, aligned = drawn["kinds"] < 0.5
    tau = max_tau * (1 - 10 ** (_LOG10_CLOSEST * drawn["tau"][0]))
    closeness = 10 ** (_LOG10_CLOSEST * drawn["closeness"])
    s = tau[None, None] * (
        1 - closeness[:, None] * drawn["s"].reshape(depth, d, points)
    )
    s = s.at[:, 0].set(jnp.broadcast_to(tau[None], (depth, points)))
    left = 2 * drawn["left"].reshape(depth, d, points) - 1
    independent = 2 * drawn["right"].reshape(depth, d, points) - 1
    right = jnp.where(symmetric[None, None], left, independent)
    identity = jnp.eye(d, dtype=jnp.float32)[:, :, None]
    layers = []
    for i in range(depth):
        from_right = transpose(_reflect(right[i], -s[i][:, None] * identity))
        layers.append(_reflect(left[i], from_right))
    growth = 10 ** (2 * drawn["growth"]).at[0].set(0.0)
    root_eigenvalues = jnp.sqrt(10 ** (-drawn["least"]) * growth)
    weight = jnp.where(aligned, 10 ** (_LOG10_CLOSEST * drawn["weight"][0]), 1.0)
    is_least = (jnp.arange(d) == 0)[None, :, None]
    column_weights = jnp.where(is_least, 1.0, weight[None, None])
    C = (2 * drawn["C"].reshape(d, d, points) - 1) * column_weights
    return {
        "A": jnp.stack(layers),
        "tau": tau,
        "C": C,
        "root_eigenvalues": root_eigenvalues,
        "v": 2 * drawn["v"] - 1,
    }


def compare_sides(
    A: Array, tau: Array, C: Array, root_eigenvalues: Array, v: Array
) -> dict:
    """Both sides of (G3) at points of `draw_points`, and rounding bounds (G11).

    Args:
      A, tau, C, root_eigenvalues, v: what `draw_points` returns.
    Returns:
      f32[points] each:
      left: ``||grad f||_F^2``.
      left_error: absolute.
      right: ``4 l (1 - tau)^{2l-2} sigma_min (f - C)`` with tau enlarged by its
        rounding error, so that it is a lower bound of the right-hand side at |||A|||.
      right_error: absolute.
    """
    depth, d = A.shape[:2]
    u = UNIT_ROUNDOFF
    gamma = d * u / (1 - d * u)  # of a sum of d products
    reflection = _REFLECTION_ROUNDINGS * d * u
    # A layer is made by two reflections, whose errors are relative to its Frobenius
    # norm; G by one.
    tau = tau * (1 + 2 * math.sqrt(d) * reflection + 4 * u)
    stretch = 1 + tau
    identity = jnp.eye(d, dtype=A.dtype)[:, :, None]
    W = A + identity[None]

    def product(X, X_norm, Y, Y_error):
        """X Y and a bound of its error.

        X = I + A_i is off by rounding, Y by Y_error.
        """
        rounding = (gamma + u) * X_norm * (frobenius(Y) + Y_error)
        return multiply(X, Y), stretch * Y_error + rounding

    # E Sigma = C diag(root_eigenvalues) V.
    G = transpose(_reflect(v, transpose(C * root_eigenvalues[None])))
    W_norms = [frobenius(W_i) for W_i in W]
    inputs = [(jnp.broadcast_to(identity, G.shape), jnp.zeros_like(tau))]
    for i in range(depth - 1):
        inputs.append(product(W[i], W_norms[i], *inputs[-1]))
    # T_i N_i^T is half of df/dA_i: T_i begins with E Sigma and takes up W_{i+1}^T.
    T = G
    T_error = (reflection + u) * frobenius(G)
    left = jnp.zeros_like(tau)
    left_error = jnp.zeros_like(tau)
    for i in reversed(range(depth)):
        N, N_error = inputs[i]
        T_norm = frobenius(T)
        N_norm = frobenius(N)
        norm = 2 * frobenius(multiply(T, transpose(N)))
        error = 2 * (T_error * (N_norm + N_error) + (T_norm + gamma * T_norm) * N_error)
        error = error + 2 * gamma * T_norm * N_norm
        left = left + norm**2
        left_error = left_error + 2 * norm * error + error**2
        T, T_error = product(transpose(W[i]), W_norms[i], T, T_error)
    # The norms and their sum: d^2 products and squares, roots, and depth terms.
    left_error = _BOUND_SLACK * (left_error + 2 * (d**2 + depth + 8) * u * left)
    excess = jnp.sum(C * C, axis=(0, 1))
    right = 4 * depth * (1 - tau) ** (2 * depth - 2) * root_eigenvalues[0] ** 2 * excess
    # 1 - tau is off by u tau at most, relative to itself u tau / (1 - tau); then 2 l
    # powers.
    relative = (2 * depth - 2) * 2 * u / (1 - tau) + (d**2 + 2 * depth + 10) * u
    return {
        "left": left,
        "left_error": left_error,
        "right": right,
        "right_error": _BOUND_SLACK * relative * right,
    }


def attack(
    key: jax.Array,
    first_chunk: Array,
    *,
    chunks: int,
    points_per_chunk: int,
    depth: int,
    d: int,
    max_tau: float,
) -> dict[str, Any]:
    """Counts over `chunks` chunks of points, from number `first_chunk`, i32[], on.

    It can be jitted. A point depends on `key`, its chunk and its place in it alone, so
    that the points are the same on any number of devices.

    Returns:
      violations, i32[]: points at which (G3) fails by more than the rounding errors.
      unresolved, i32[]: other points at which left, as computed, is below right.
      tight, i32[]: points at which left is below 1.01 right.
      least_ratio, f32[]: the least left over right.
      largest_margin, f32[]: the largest rounding error of both sides, relative to
        right, of all points with left below 1.01 right; 0 without any.
    """

    def add_chunk(totals, chunk):
        points = draw_points(
            jax.random.fold_in(key, chunk),
            points=points_per_chunk,
            depth=depth,
            d=d,
            max_tau=max_tau,
        )
        sides = compare_sides(**points)
        left = sides["left"]
        right = sides["right"]
        margin = sides["left_error"] + sides["right_error"]
        # Written so that a NaN counts as a violation.
        violates = ~(left + margin >= right)
        below = ~(left >= right) & ~violates
        tight = left < 1.01 * right
        totals = {
            "violations": totals["violations"] + jnp.sum(violates, dtype=jnp.int32),
            "unresolved": totals["unresolved"] + jnp.sum(below, dtype=jnp.int32),
            "tight": totals["tight"] + jnp.sum(tight, dtype=jnp.int32),
            "least_ratio": jnp.minimum(totals["least_ratio"], jnp.min(left / right)),
            "largest_margin": jnp.maximum(
                totals["largest_margin"], jnp.max(jnp.where(tight, margin / right, 0))
            ),
        }
        return totals, None

    start = {
        "violations": jnp.int32(0),
        "unresolved": jnp.int32(0),
        "tight": jnp.int32(0),
        "least_ratio": jnp.float32(jnp.inf),
        "largest_margin": jnp.float32(0),
    }
    return jax.lax.scan(add_chunk, start, first_chunk + jnp.arange(chunks))[0]
