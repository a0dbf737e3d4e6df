"""Corrected eq. (2.3) at very many random points, in float32, with rounding bounds.

Each point is drawn by what it is made of, so that nothing about it has to be computed
back: the layers ``A_i = -Q_i diag(s_i) P_i^T`` with reflections Q_i and P_i and
``0 <= s_i <= tau``, the error E, from which ``R = (I + A_l) ... (I + A_1) - E``
follows, and Sigma by its eigenvalues and eigenvectors. At each point both sides of (G3)
are computed along with bounds of their rounding errors (G11 of
docs/theory/gradient_bound.md): a point violates (G3) only if the sides differ by more
than that.

All arrays have the points in their last axis, which vectorizes products of small
matrices.
"""

import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from identity_matters.array_types import Array
from identity_matters.checks import check_whole

_UNIT_ROUNDOFF = 2.0**-24
# A computed Householder reflection of a vector of d entries is off by at most this many
# d u times the vector's norm, for every d: to first order it is (4 d + 5) u (G11).
_REFLECTION_ROUNDINGS = 10
# Error bounds are computed in float32 themselves, with a relative error of some 1e-6.
_BOUND_SLACK = 1.001
# log10 of the least of three log-uniform numbers, which go up to 1: 1 - tau / max_tau,
# the weight of a column of E, and a number for each layer. The layer's singular values
# lie below tau by uniform shares of that number, relative to tau.
_LOG10_CLOSEST = -4.0
# left / right below which a point counts as close to equality.
_TIGHT_RATIO = 1.01


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
    """``(I - 2 v v^T / v^T v) X`` for each point, X where v = 0; v: [d, n]."""
    # For d = 1 one v in 8 million is 0. Any other square is above the least normal
    # number: the entries are multiples of 2^-22.
    squared_length = jnp.maximum(jnp.sum(v * v, axis=0), jnp.finfo(v.dtype).tiny)
    scaled = 2 * jnp.sum(v[:, None, :] * X, axis=0) / squared_length[None]
    return jnp.asarray(X - v[:, None, :] * scaled[None])


class Points(NamedTuple):
    """Points of B_tau, made of their singular values, E and Sigma; all float32.

    Attributes:
      A: f32[depth, d, d, points].
      tau: f32[points], the largest singular value that was drawn.
      C: f32[d, d, points], E in the eigenvectors of Sigma, columns scaled by the roots
        of the eigenvalues, so that ``f - C = ||C||_F^2``.
      root_eigenvalues: f32[d, points], the least first.
      v: f32[d, points]; the reflection ``V = I - 2 v v^T / v^T v``, or I if v = 0, has
        the eigenvectors of Sigma.
    """

    A: jax.Array
    tau: jax.Array
    C: jax.Array
    root_eigenvalues: jax.Array
    v: jax.Array


def draw_points(
    key: jax.Array, *, points: int, depth: int, d: int, max_tau: float
) -> Points:
    """Random points of B_tau, float32, many of them close to the equality of G7.

    The layers are ``A_i = -Q_i diag(s_i) P_i^T``. Half of the points have
    ``P_i = Q_i``; where the singular values come close to tau, ``A_i`` is then close to
    ``-tau I``. In half of the points the rows of E are close to multiples of the
    eigenvector of the least eigenvalue of Sigma. ValueError unless the counts are
    positive whole numbers and ``0 < max_tau < 1``, and the rounding of a layer cannot
    take its norm to 1, as it could for d of 20 or more and max_tau near 1: from 1 on,
    (G3) says nothing, but its right-hand side is a number.
    """
    points = check_whole("points", points)
    depth = check_whole("depth", depth)
    d = check_whole("d", d)
    if not 0 < max_tau < 1:
        raise ValueError(f"max_tau must be above 0 and below 1, got {max_tau}")
    largest_tau = max_tau * (1 - 10**_LOG10_CLOSEST)
    if not largest_tau * (1 + _enlargement(d)) < 1:
        raise ValueError(
            f"max_tau = {max_tau} is too close to 1 for d = {d}: rounding may take the"
            " norm of a layer to 1"
        )
    uniform = _draw_uniform(
        key,
        points,
        {
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
        },
    )
    # Whether P_i = Q_i, and whether E is aligned with the least eigenvector.
    is_symmetric, is_aligned = uniform["kinds"] < 0.5
    of_layers = (depth, d, points)
    tau = max_tau * (1 - _log_uniform(uniform["tau"][0]))
    singular_values = _singular_values(
        tau, uniform["closeness"], uniform["s"].reshape(of_layers)
    )
    left = 2 * uniform["left"].reshape(of_layers) - 1
    independent = 2 * uniform["right"].reshape(of_layers) - 1
    right = jnp.where(is_symmetric[None, None], left, independent)
    weight = jnp.where(is_aligned, _log_uniform(uniform["weight"][0]), 1.0)
    entries = 2 * uniform["C"].reshape(d, d, points) - 1
    return Points(
        A=_layers(left, singular_values, right),
        tau=tau,
        C=_weighted_columns(entries, weight),
        root_eigenvalues=_root_eigenvalues(uniform["least"], uniform["growth"]),
        v=2 * uniform["v"] - 1,
    )


def _draw_uniform(
    key: jax.Array, points: int, sizes: dict[str, int]
) -> dict[str, jax.Array]:
    """Uniform numbers in [0, 1): name -> f32[size, points].

    One draw for all, because each would be compiled separately.
    """
    uniform = jax.random.uniform(key, (sum(sizes.values()), points), jnp.float32)
    ends = list(itertools.accumulate(sizes.values()))
    parts = jnp.split(uniform, ends[:-1])
    return dict(zip(sizes, parts, strict=True))


def _log_uniform(uniform: jax.Array) -> jax.Array:
    """Log-uniform numbers from 1e-4 to 1."""
    return 10 ** (_LOG10_CLOSEST * uniform)


def _singular_values(
    tau: jax.Array, closeness: jax.Array, share: jax.Array
) -> jax.Array:
    """f32[depth, d, points]: the first is tau, the others are below it.

    Args:
      tau: f32[points].
      closeness: f32[depth, points], uniform; decides how near to tau those of a layer
        are.
      share: f32[depth, d, points], uniform; decides each one.
    """
    below = _log_uniform(closeness)[:, None] * share
    s = tau[None, None] * (1 - below)
    return s.at[:, 0].set(jnp.broadcast_to(tau[None], (len(s), len(tau))))


def _layers(left: jax.Array, singular_values: jax.Array, right: jax.Array) -> jax.Array:
    """``A_i = -Q_i diag(s_i) P_i^T``, f32[depth, d, d, points].

    Args:
      left: f32[depth, d, points], the vectors of the reflections Q_i.
      singular_values: f32[depth, d, points], s_i.
      right: f32[depth, d, points], the vectors of the reflections P_i.
    """
    depth, d, _ = singular_values.shape
    identity = jnp.eye(d, dtype=jnp.float32)[:, :, None]
    layers = []
    for i in range(depth):
        diagonal = -singular_values[i][:, None] * identity
        from_right = transpose(_reflect(right[i], diagonal))
        layers.append(_reflect(left[i], from_right))
    return jnp.stack(layers)


def _root_eigenvalues(least: jax.Array, growth: jax.Array) -> jax.Array:
    """Roots of Sigma's eigenvalues, f32[d, points]: the least first.

    The least eigenvalue is log-uniform from 0.1 to 1, and the others are up to 100
    times as large.
    """
    factors = 10 ** (2 * growth).at[0].set(0.0)
    return jnp.sqrt(10 ** (-least) * factors)


def _weighted_columns(entries: jax.Array, weight: jax.Array) -> jax.Array:
    """f32[d, d, points] with all columns but the first multiplied by `weight`."""
    is_least = (jnp.arange(len(entries)) == 0)[None, :, None]
    return entries * jnp.where(is_least, 1.0, weight[None, None])


class _Bounded(NamedTuple):
    """Computed matrices, f32[d, d, n], and bounds of their errors' norms, f32[n]."""

    value: jax.Array
    error: jax.Array


class _Roundings(NamedTuple):
    """Relative errors of the two operations that points are computed with.

    Attributes:
      product: gamma = d u / (1 - d u), of a sum of d products.
      reflection: 10 d u, of a reflection of a vector of d entries.
    """

    product: float
    reflection: float

    @classmethod
    def of(cls, d: int) -> "_Roundings":
        du = d * _UNIT_ROUNDOFF
        return cls(
            product=du / (1 - du), reflection=_REFLECTION_ROUNDINGS * d * _UNIT_ROUNDOFF
        )


def compare_sides(points: Points) -> dict:
    """Both sides of (G3) at points of `draw_points`, and rounding bounds (G11).

    Returns:
      f32[points] each:
      left: ``||grad f||_F^2``.
      left_error: absolute.
      right: ``4 l (1 - tau)^{2l-2} sigma_min (f - C)`` with tau enlarged by its
        rounding error, so that it is a lower bound of the right-hand side at |||A|||.
      right_error: absolute.
    """
    depth, d = points.A.shape[:2]
    roundings = _Roundings.of(d)
    tau = points.tau * (1 + _enlargement(d))
    W = points.A + jnp.eye(d, dtype=points.A.dtype)[:, :, None][None]
    left, left_error = _squared_gradient(W, 1 + tau, points, roundings)
    right = _right_side(tau, points, depth)
    right_relative = _right_relative_error(tau, depth, d)
    return {
        "left": left,
        "left_error": left_error,
        "right": right,
        "right_error": _BOUND_SLACK * right_relative * right,
    }


def _enlargement(d: int) -> float:
    """``20 d^{3/2} u + 4 u``: |||A||| is at most ``tau' = tau (1 + this)`` (G11).

    The layers as computed *are* the point, so that their norms have to be bounded, not
    those of the layers that were meant.
    """
    # Two reflections, each off by 10 d u times ||A_i||_F <= sqrt(d) tau.
    in_reflections = 2 * math.sqrt(d) * _Roundings.of(d).reflection
    # The roundings of the factor of tau and of its product with tau: 2 u, taken twice.
    in_product = 4 * _UNIT_ROUNDOFF
    return in_reflections + in_product


def _right_relative_error(tau: jax.Array, depth: int, d: int) -> jax.Array:
    """``(2l - 2) 2 u / (1 - tau) + (d^2 + 2l + 10) u``, f32[points] (G11).

    The relative rounding error of `_right_side` at this tau.
    """
    power = 2 * depth - 2
    # 1 - tau is off by u / (1 - tau) of itself at most, tau being rounded; twice that
    # covers the subtraction. The power multiplies it by its exponent.
    in_base = power * 2 * _UNIT_ROUNDOFF / (1 - tau)
    # d^2: the squares of C's entries and their sum. 2 l: the products of the power.
    # 10: the square of the root, the factors and their products, fewer than ten.
    in_arithmetic = (d**2 + 2 * depth + 10) * _UNIT_ROUNDOFF
    return in_base + in_arithmetic


def _right_side(tau: jax.Array, points: Points, depth: int) -> jax.Array:
    """``4 l (1 - tau)^{2l-2} sigma_min (f - C)``, f32[points]."""
    excess = jnp.sum(points.C * points.C, axis=(0, 1))
    least_root = points.root_eigenvalues[0]
    return 4 * depth * (1 - tau) ** (2 * depth - 2) * least_root**2 * excess


def _squared_gradient(
    W: jax.Array, stretch: jax.Array, points: Points, roundings: _Roundings
) -> tuple[jax.Array, jax.Array]:
    """``||grad f||_F^2`` and a bound of its absolute error, f32[points] each.

    Args:
      W: f32[depth, d, d, points], ``I + A_i``.
      stretch: f32[points], a bound of ``||I + A_i||``.
      points: where.
      roundings: relative errors.
    """
    depth, d = W.shape[:2]
    maps = _Maps(
        W=W,
        norms=[frobenius(W_i) for W_i in W],
        stretch=stretch,
        rounding=roundings.product + _UNIT_ROUNDOFF,
    )
    inputs = _inputs_of_layers(maps)
    # T_i N_i^T is half of df/dA_i: T_i begins with E Sigma and takes up W_{i+1}^T.
    T = _error_times_Sigma(points, roundings)
    squared = jnp.zeros_like(stretch)
    squared_error = jnp.zeros_like(stretch)
    for i in reversed(range(depth)):
        norm, error = _norm_of_product(T, inputs[i], roundings)
        squared = squared + norm**2
        squared_error = squared_error + 2 * norm * error + error**2
        T = maps.transposed_times(i, T)
    # Relative errors of the norms, which count twice in the squares of the norms.
    # d^2: the squares of the entries and their sum. l: the sum over the layers.
    # 8: the roots, the factors 2, and the squares of the norms.
    in_norms = 2 * (d**2 + depth + 8) * _UNIT_ROUNDOFF * squared
    return squared, _BOUND_SLACK * (squared_error + in_norms)


class _Maps(NamedTuple):
    """The maps ``W_i = I + A_i`` of all layers, off by their rounding.

    Attributes:
      W: f32[depth, d, d, points].
      norms: f32[points] for each layer, ``||W_i||_F``.
      stretch: f32[points], a bound of ``||W_i||``.
      rounding: relative: gamma for the sums of a product, and u for the rounding of
        ``I + A_i`` (G11).
    """

    W: jax.Array
    norms: list[jax.Array]
    stretch: jax.Array
    rounding: float

    def times(self, i: int, Y: _Bounded) -> _Bounded:
        """``W_i Y``."""
        return self._product(self.W[i], self.norms[i], Y)

    def transposed_times(self, i: int, Y: _Bounded) -> _Bounded:
        """``W_i^T Y``."""
        return self._product(transpose(self.W[i]), self.norms[i], Y)

    def _product(self, X: jax.Array, X_norm: jax.Array, Y: _Bounded) -> _Bounded:
        """``X Y``: the error of Y is stretched by X, and the product adds its own."""
        added = self.rounding * X_norm * (frobenius(Y.value) + Y.error)
        return _Bounded(multiply(X, Y.value), self.stretch * Y.error + added)


def _inputs_of_layers(maps: _Maps) -> list[_Bounded]:
    """``N_i = W_{i-1} ... W_1`` for each layer i, the product of those below it."""
    depth, d, _, points = maps.W.shape
    identity = jnp.eye(d, dtype=maps.W.dtype)[:, :, None]
    inputs = [
        _Bounded(
            jnp.broadcast_to(identity, (d, d, points)), jnp.zeros_like(maps.stretch)
        )
    ]
    for i in range(depth - 1):
        inputs.append(maps.times(i, inputs[-1]))
    return inputs


def _error_times_Sigma(points: Points, roundings: _Roundings) -> _Bounded:
    """``E Sigma = C diag(root_eigenvalues) V``, made by one reflection.

    It is off by its reflection, and by u for the scaling of C before that.
    """
    scaled = points.C * points.root_eigenvalues[None]
    E_Sigma = transpose(_reflect(points.v, transpose(scaled)))
    relative_error = roundings.reflection + _UNIT_ROUNDOFF
    return _Bounded(E_Sigma, relative_error * frobenius(E_Sigma))


def _norm_of_product(
    T: _Bounded, N: _Bounded, roundings: _Roundings
) -> tuple[jax.Array, jax.Array]:
    """``||2 T N^T||_F`` and a bound of its absolute error, f32[points] each."""
    T_norm = frobenius(T.value)
    N_norm = frobenius(N.value)
    norm = 2 * frobenius(multiply(T.value, transpose(N.value)))
    # e_T (||N|| + e_N), gamma for its sums, and (1 + gamma) ||T|| e_N (G11).
    from_T = T.error * (N_norm + N.error)
    from_N = (T_norm + roundings.product * T_norm) * N.error
    error = 2 * (from_T + from_N)
    error = error + 2 * roundings.product * T_norm * N_norm
    return norm, error


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
      least_ratio, f32[]: the least left over right, where right is not 0.
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
        sides = compare_sides(points)
        left = sides["left"]
        right = sides["right"]
        margin = sides["left_error"] + sides["right_error"]
        # Written so that a NaN counts as a violation.
        violates = ~(left + margin >= right)
        below = ~(left >= right) & ~violates
        tight = left < _TIGHT_RATIO * right
        # Where right is 0 the bound says nothing about left.
        ratio = jnp.where(right == 0, jnp.inf, left / right)
        totals = {
            "violations": totals["violations"] + jnp.sum(violates, dtype=jnp.int32),
            "unresolved": totals["unresolved"] + jnp.sum(below, dtype=jnp.int32),
            "tight": totals["tight"] + jnp.sum(tight, dtype=jnp.int32),
            "least_ratio": jnp.minimum(totals["least_ratio"], jnp.min(ratio)),
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
