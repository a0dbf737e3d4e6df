"""A ReLU residual net in rational arithmetic, and its derivatives on one smooth piece.

All arrays hold fractions unless a type says otherwise; f[...] gives their shapes.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import scipy.linalg

from identity_matters.relu import origin
from identity_matters.relu.model import Blocks
from identity_matters.relu.rational import exact


class Block(NamedTuple):
    """Exact weights, inputs and pre-activations of a block.

    Attributes:
      V: f[d, k].
      W: f[k, width_z], the rows w = (u, s) of its units.
      z: f[n, width_z], the inputs, with a 1 appended where there are biases.
      pre: f[n, k], the pre-activations.
    """

    V: np.ndarray
    W: np.ndarray
    z: np.ndarray
    pre: np.ndarray

    @property
    def alive(self) -> np.ndarray:
        """bool[k], whether each unit is not strictly dead."""
        return np.any(self.pre >= 0, axis=0)

    @property
    def active(self) -> np.ndarray:
        """f[n, k], 1 where a unit is active and 0 elsewhere."""
        return exact(self.pre > 0)

    @property
    def size(self) -> int:
        """How many weights it has."""
        return self.V.size + self.W.size

    def live(self) -> "Block":
        """The same with its live units only."""
        return Block(
            V=self.V[:, self.alive],
            W=self.W[self.alive],
            z=self.z,
            pre=self.pre[:, self.alive],
        )


def forward_pass(blocks: Blocks, z: np.ndarray) -> tuple[np.ndarray, list[Block]]:
    """The exact forward pass from the inputs z, f[n, width_z].

    Returns h_l - h_0, f[n, d], and all blocks.
    """
    depth, width, d = blocks.U.shape
    weights = exact(origin.unit_weights(blocks)).reshape(depth, width, -1)
    passed: list[Block] = []
    start = z
    for W, V in zip(weights, exact(blocks.V), strict=True):
        block = Block(V=V, W=W, z=z, pre=z @ W.T)
        passed.append(block)
        z = z.copy()
        z[:, :d] += (block.pre * block.active) @ V.T
    return (z - start)[:, :d], passed


def gradient_and_hessian(
    blocks: list[Block], B: np.ndarray, r: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``(grad f, Hessian)`` of the piece on which all pre-activations keep their signs.

    With J the derivatives of the residuals r, the gradient is ``2/n J^T r`` and the
    Hessian ``2/n (J^T J + sum_i r_i Hess r_i)``. Weights are ordered block by block, V
    row by row and then W.

    Args:
      blocks: the live blocks.
      B: f[d_out, d], the output map.
      r: f[n, d_out], the exact residuals.
    """
    d, _ = blocks[0].V.shape
    size = sum(block.size for block in blocks)
    # Half of sum_i r_i Hess r_i: each pair of weights is in one of the two triangles.
    mixed = _zeros(size, size)
    # Derivatives of the next block's input in all weights below it, f[n, d, below].
    input_rates = _zeros(len(r), d, 0)
    for block, G in zip(blocks, _pulled_back(blocks, r @ B), strict=True):
        rates = _ActivationRates.of(block, input_rates)
        below = input_rates.shape[2]
        end = below + block.size
        mixed[below:end, :end] = _rows_of_mixed(block, rates, input_rates, G)
        input_rates = _output_rates(block, rates, input_rates)
    jacobian = np.einsum("oa,nap->nop", B, input_rates).reshape(-1, size)
    share = Fraction(2, len(r))
    gradient = jacobian.T @ r.ravel() * share
    hessian = (jacobian.T @ jacobian + mixed + mixed.T) * share
    return gradient, hessian


def _pulled_back(blocks: list[Block], last: np.ndarray) -> list[np.ndarray]:
    """Gradients of half the sum of squares in the output of each block, f[n, d] each.

    `last` is that of the last block.
    """
    d, _ = blocks[0].V.shape
    pulled = [last]
    for block in reversed(blocks[1:]):
        G = pulled[0]
        pulled.insert(0, G + ((G @ block.V) * block.active) @ block.W[:, :d])
    return pulled


class _ActivationRates(NamedTuple):
    """Derivatives of a block's activations, the ReLU of its pre-activations.

    Attributes:
      in_below: f[n, k, below], in the weights of the blocks below.
      in_W: f[n, k, width_z], of unit c in its row of W; it does not depend on others.
    """

    in_below: np.ndarray
    in_W: np.ndarray

    @classmethod
    def of(cls, block: Block, input_rates: np.ndarray) -> "_ActivationRates":
        """`input_rates`, f[n, d, below]: derivatives of the block's input below it."""
        d, _ = block.V.shape
        active = block.active[:, :, None]
        return cls(
            in_below=np.einsum("cb,nbp->ncp", block.W[:, :d], input_rates) * active,
            in_W=active * block.z[:, None],
        )


# A block with activations z_nc adds sum_c V_ac z_nc to entry a of h. With G, f[n, d],
# of `_pulled_back`, it contributes the second derivatives of
#
#     sum_{n, a, c} G_na V_ac z_nc,
#
# where G is held fixed, for three kinds of pairs of weights. Two weights of V, or two
# of W, of the same block have no second derivative on a smooth piece.


def _rows_of_mixed(
    block: Block, rates: _ActivationRates, input_rates: np.ndarray, G: np.ndarray
) -> np.ndarray:
    """The rows of a block in `mixed` of `gradient_and_hessian`: f[own, below + own].

    Columns are the weights of the blocks below and then its own, V before W, as rows
    are. Of the block's own pairs, each is in the row of its weight of V alone.
    """
    below = input_rates.shape[2]
    V_size = block.V.size
    W_size = block.W.size
    V_with_below = _V_with_below(rates, G).reshape(V_size, below)
    V_with_W = _V_with_W(rates, G).reshape(V_size, W_size)
    W_with_below = _W_with_below(block, input_rates, G).reshape(W_size, below)
    return np.block(
        [
            [V_with_below, _zeros(V_size, V_size), V_with_W],
            [W_with_below, _zeros(W_size, V_size), _zeros(W_size, W_size)],
        ]
    )


def _zeros(*shape: int) -> np.ndarray:
    return np.full(shape, Fraction(0))


def _V_with_W(rates: _ActivationRates, G: np.ndarray) -> np.ndarray:
    """Of V_ac and W_eb, 0 unless c = e: f[d, k, k, width_z], [a, c, e, b]."""
    _, k, width_z = rates.in_W.shape
    derivatives = _zeros(G.shape[1], k, k, width_z)
    unit = np.arange(k)
    derivatives[:, unit, unit] = np.einsum("na,ncb->acb", G, rates.in_W)
    return derivatives


def _V_with_below(rates: _ActivationRates, G: np.ndarray) -> np.ndarray:
    """Of V_ac and each weight below: f[d, k, below]."""
    return np.einsum("na,ncp->acp", G, rates.in_below)


def _W_with_below(block: Block, input_rates: np.ndarray, G: np.ndarray) -> np.ndarray:
    """Of W_cb and each weight below, through entry b of z: f[k, width_z, below].

    The bias reads the 1 that is appended to z, which depends on no weight.
    """
    k, width_z = block.W.shape
    _, d, below = input_rates.shape
    derivatives = _zeros(k, width_z, below)
    derivatives[:, :d] = np.einsum(
        "nc,nbp->cbp", (G @ block.V) * block.active, input_rates
    )
    return derivatives


def _output_rates(
    block: Block, rates: _ActivationRates, input_rates: np.ndarray
) -> np.ndarray:
    """Derivatives of the block's output in all weights up to it: f[n, d, below + own].

    Args:
      block: the block.
      rates: the derivatives of its activations.
      input_rates: f[n, d, below], the derivatives of its input in the weights below.
    """
    n, d, _ = input_rates.shape
    in_below = input_rates + np.einsum("ac,ncp->nap", block.V, rates.in_below)
    # Entry a of the output contains V_ac times activation c, and no other row of V.
    activations = block.active * block.pre
    in_V = np.einsum("ae,nc->naec", exact(np.eye(d)), activations)
    in_W = np.einsum("ac,ncb->nacb", block.V, rates.in_W)
    own = [in_V.reshape(n, d, -1), in_W.reshape(n, d, -1)]
    return np.concatenate([in_below, *own], axis=2)


def orbit_tangents(blocks: list[Block]) -> np.ndarray:
    """t_c, f64[size, units]: tangents (v_c, -w_c), as in `gradient_and_hessian`."""
    of_blocks = []
    for block in blocks:
        units = len(block.W)
        unit = np.eye(units)
        # Column c holds the part of unit c alone.
        of_V = block.V[:, :, None] * unit
        of_W = -block.W[:, :, None] * unit[:, None]
        of_blocks.append(
            np.concatenate([of_V.reshape(-1, units), of_W.reshape(-1, units)])
        )
    return scipy.linalg.block_diag(*of_blocks).astype(np.float64)
