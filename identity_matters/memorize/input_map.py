"""The input map A_0 x without rounding: the same bits in every order of summation.

A sum of floating-point numbers depends on its order unless no partial sum is rounded.
So A_0 has entries of few bits, and x is cut into pieces of few bits each, so that every
partial sum of the products of A_0 with a piece is a whole number of steps small enough
to be exact. A device, a batch or a library may then add in any order, fused or not. The
pieces are put together in one fixed order, element by element. Proof:
docs/theory/memorize.md (E9).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import DTypeLike

from identity_matters.array_types import Array

# Entries of x that are cut into pieces at once, to stay in a core's cache.
CHUNK_ENTRIES = 2**19
# With fewer bits to share, a piece would have fewer than three, or an entry of A_0
# fewer than two.
LEAST_SHARED_BITS = 5


class Slicing(NamedTuple):
    """How many bits A_0 and the inputs have in the exact products of a map from R^d.

    d 2^map_bits 2^(piece_bits - 1) is at most 2^24 in float32 and 2^53 in float64, so
    that all partial sums are exact. Together the pieces have at least one bit more than
    the precision.

    Attributes:
      map_bits: entries of A_0 are odd multiples of a power of two, at most 2^map_bits
        times it.
      piece_bits: a piece of an input is a whole number of at most 2^(piece_bits - 1) in
        size.
      pieces: into how many pieces each input is cut.
    """

    map_bits: int
    piece_bits: int
    pieces: int


def slicing(features: int, dtype: DTypeLike) -> Slicing:
    """The bits of a map from R^d; ValueError if d is too large for exact sums.

    >>> slicing(3072, np.float32)
    Slicing(map_bits=6, piece_bits=7, pieces=4)
    >>> slicing(2, np.float64)
    Slicing(map_bits=26, piece_bits=27, pieces=2)
    """
    precision = np.finfo(dtype).nmant + 1
    shared_bits = precision + 1 - (features - 1).bit_length()
    if shared_bits < LEAST_SHARED_BITS:
        most = 2 ** (precision + 1 - LEAST_SHARED_BITS)
        raise ValueError(
            f"{features} features are too many for {np.dtype(dtype)}, which takes"
            f" {most}: use float64, or fewer features"
        )
    most_piece_bits = (shared_bits + 1) // 2
    pieces = -(-(precision + 1) // most_piece_bits)
    piece_bits = -(-(precision + 1) // pieces)
    return Slicing(
        map_bits=shared_bits - piece_bits, piece_bits=piece_bits, pieces=pieces
    )


def margin_bits(dtype: DTypeLike) -> int:
    """How far A_0 stays from underflow and overflow: by a factor of 2^margin_bits.

    Then no step of `project` underflows before the last scaling. The least bit of a
    t_j (`_put_together`) is 2^-(map_bits + pieces piece_bits) times the largest entry
    of its row of A_0 or more, and that exponent is below margin_bits.
    """
    return 2 * np.finfo(dtype).nmant - 2


def round_map(input_map: np.ndarray) -> np.ndarray:
    """The rows of `input_map`, f[k, d], rounded so that `project` is exact: f[k, d].

    Each entry becomes an odd multiple of a power of two that its row shares. So none is
    zero, and no feature is ignored. The largest entries should be within `margin_bits`
    of the normal range.
    """
    map_bits = slicing(input_map.shape[1], input_map.dtype).map_bits
    _, exponents = np.frexp(np.abs(input_map).max(axis=1, keepdims=True))
    exponents -= map_bits
    multiples = 2 * np.floor(np.ldexp(input_map, -exponents) / 2) + 1
    return np.ldexp(multiples, exponents).astype(input_map.dtype)


@jax.jit
def project(input_map: Array, x: Array) -> jax.Array:
    """``h_0 = A_0 x`` in columns: f[k, d] and f[n, d] to f[k, n].

    For a map from `round_map`, all devices that round to nearest agree on every bit of
    the result. Each x is first rounded to a grid, by at most 2^-24 (float64: 2^-53)
    times its largest entry unless that is close to subnormal, and subnormal entries
    count as zero, on devices that keep them, too.

    In the letters of (E9), with x in 2^(e-1) <= max |x_i| < 2^e, b = piece_bits and
    p = pieces,

        y_1 = 2^(b-1-e) x,    s_j = round(y_j),    y_{j+1} = 2^b (y_j - s_j),
        t_p = A_0 s_p,        t_j = A_0 s_j + 2^-b t_{j+1},    h = 2^(e-b+1) t_1.
    """
    n, features = x.shape
    rows = max(1, min(n, CHUNK_ENTRIES // features))
    chunks = jnp.pad(x, ((0, -n % rows), (0, 0))).reshape(-1, rows, features)
    h = jax.lax.map(lambda chunk: _project_chunk(input_map, chunk), chunks)
    return h.reshape(-1, len(input_map))[:n].T


def _project_chunk(input_map: Array, x: Array) -> jax.Array:
    """`project` in rows: f[n, k]."""
    _, piece_bits, pieces = slicing(x.shape[1], x.dtype)
    info = jnp.finfo(x.dtype)
    x = jnp.where(jnp.abs(x) < info.tiny, 0, x)
    scale_exponents = _scale_exponents(x, piece_bits)
    scaled = x * _power_of_two(scale_exponents, x.dtype)[:, None]
    products = [
        jnp.matmul(piece, input_map.T, precision=jax.lax.Precision.HIGHEST)
        for piece in _cut_into_pieces(scaled, piece_bits, pieces)
    ]
    t = _put_together(products, piece_bits)
    h = t * _power_of_two(-scale_exponents, x.dtype)[:, None]
    # Devices that flush subnormal numbers to zero differ on when a number is subnormal.
    return jnp.where(jnp.abs(h) < 2 * info.tiny, 0, h)


def _scale_exponents(x: jax.Array, piece_bits: int) -> jax.Array:
    """``b - 1 - e`` for each row of x, f[n, d], as integers[n].

    It is less for the smallest rows, so that 2 to this power and its reciprocal are
    normal numbers.
    """
    largest = jnp.max(jnp.abs(x), axis=1)
    return jnp.minimum(piece_bits - 1 - _exponent(largest), -jnp.finfo(x.dtype).minexp)


def _cut_into_pieces(y: jax.Array, piece_bits: int, pieces: int) -> list[jax.Array]:
    """The whole numbers s_1, s_2, ... of y = y_1, f[n, d] each, the largest first."""
    cut = []
    for _ in range(pieces):
        s = jax.lax.round(y, jax.lax.RoundingMethod.TO_NEAREST_EVEN)
        cut.append(s)
        # Exact: y - s is at most 1/2 in size and has no finer bits than y.
        y = (y - s) * 2.0**piece_bits
    return cut


def _put_together(products: list[jax.Array], piece_bits: int) -> jax.Array:
    """t_1 from the products A_0 s_1, A_0 s_2, ..., all f[n, k]."""
    *larger, t = products
    for product in reversed(larger):
        t = product + t * 2.0**-piece_bits
    return t


def flushes(x: np.ndarray) -> bool:
    """Whether x, f[n, d], has subnormal entries that matter.

    `project` takes them for zero.
    """
    _, piece_bits, pieces = slicing(x.shape[1], x.dtype)
    size = np.abs(x)
    subnormal = (size > 0) & (size < np.finfo(x.dtype).tiny)
    if not subnormal.any():
        return False
    _, exponents = np.frexp(size.max(axis=1, keepdims=True))
    half_a_step = np.ldexp(np.ones((), x.dtype), exponents - pieces * piece_bits)
    return bool((subnormal & (size > half_a_step)).any())


class _Format(NamedTuple):
    """How the bits of a floating-point number are used.

    Attributes:
      integer: the dtype of integers as wide as the number.
      mantissa_bits: stored ones.
      bias: is added to the exponent.
    """

    integer: Any
    mantissa_bits: int
    bias: int

    @classmethod
    def of(cls, dtype: Any) -> "_Format":
        info = jnp.finfo(dtype)
        return cls(
            integer=jnp.int32 if info.bits == 32 else jnp.int64,
            mantissa_bits=info.nmant,
            bias=info.maxexp - 1,
        )


def _exponent(x: jax.Array) -> jax.Array:
    """The e with 2^(e-1) <= x < 2^e for normal x > 0, a small one for 0: integers."""
    layout = _Format.of(x.dtype)
    bits = jax.lax.bitcast_convert_type(x, layout.integer)
    return (bits >> layout.mantissa_bits) - layout.bias + 1


def _power_of_two(exponent: jax.Array, dtype: Any) -> jax.Array:
    """2^exponent, made of bits, for exponents of normal numbers: exact everywhere."""
    layout = _Format.of(dtype)
    shifted = (exponent.astype(layout.integer) + layout.bias) << layout.mantissa_bits
    return jax.lax.bitcast_convert_type(shifted, dtype)
