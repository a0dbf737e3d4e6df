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


def system(
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
    # Derivatives of the output of the blocks so far with respect to all weights.
    output_rates = np.full((len(r), d, size), Fraction(0))
    # Half of sum_i r_i Hess r_i: each pair of weights is in one of the two triangles.
    mixed = np.full((size, size), Fraction(0))
    offset = 0
    for block, G in zip(blocks, _pulled_back(blocks, r @ B), strict=True):
        places = _Places.of(block, offset)
        rates = _ActivationRates.of(block, below=output_rates[:, :, :offset])
        _fill_mixed_derivatives(mixed, block, places, rates, G)
        _input_to_output_rates(output_rates, block, places, rates)
        offset += block.size
    jacobian = np.einsum("oa,nap->nop", B, output_rates).reshape(-1, size)
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


class _Places(NamedTuple):
    """Where the weights of a block stand among all weights.

    Attributes:
      offset: of its first weight; those before belong to the blocks below.
      of_V: i64[d, k].
      of_W: i64[k, width_z].
    """

    offset: int
    of_V: np.ndarray
    of_W: np.ndarray

    @classmethod
    def of(cls, block: Block, offset: int) -> "_Places":
        V, W, _, _ = block
        return cls(
            offset=offset,
            of_V=offset + np.arange(V.size).reshape(V.shape),
            of_W=offset + V.size + np.arange(W.size).reshape(W.shape),
        )


class _ActivationRates(NamedTuple):
    """Derivatives of a block's active pre-activations, 0 where a unit is not active.

    Attributes:
      in_input: f[n, d, below], those of the block's input in the weights below it.
      in_below: f[n, k, below], in the weights of the blocks below.
      in_W: f[n, k, width_z], of unit c in its row of W.
    """

    in_input: np.ndarray
    in_below: np.ndarray
    in_W: np.ndarray

    @classmethod
    def of(cls, block: Block, below: np.ndarray) -> "_ActivationRates":
        d, _ = block.V.shape
        active = block.active[:, :, None]
        return cls(
            in_input=below,
            in_below=np.einsum("cb,nbp->ncp", block.W[:, :d], below) * active,
            in_W=active * block.z[:, None],
        )


def _fill_mixed_derivatives(
    mixed: np.ndarray,
    block: Block,
    places: _Places,
    rates: _ActivationRates,
    G: np.ndarray,
) -> None:
    """Sets in `mixed` the pairs of a weight of the block and one of it or below it.

    They are V with W, V with the weights below, and W with the weights below. Each
    of their entries is still 0 and is set once. The other pairs, two weights of V or
    two of W, have no second derivative on a smooth piece.

    Args:
      mixed: f[size, size], half of ``sum_i r_i Hess r_i``; changed in place.
      block: the block.
      places: where its weights stand.
      rates: the derivatives of its pre-activations.
      G: f[n, d], the gradient in the block's output.
    """
    d, units = block.V.shape
    of_V = places.of_V
    of_W = places.of_W
    below = slice(places.offset)
    for unit in range(units):
        V_with_W = G.T @ rates.in_W[:, unit]
        mixed[np.ix_(of_V[:, unit], of_W[unit])] = V_with_W
    mixed[of_V, below] = np.einsum("na,ncp->acp", G, rates.in_below)
    mixed[of_W[:, :d], below] = np.einsum(
        "nc,nbp->cbp", (G @ block.V) * block.active, rates.in_input
    )


def _input_to_output_rates(
    output_rates: np.ndarray, block: Block, places: _Places, rates: _ActivationRates
) -> None:
    """Turns derivatives of the block's input, f[n, d, size], into its output's.

    `output_rates` is changed in place. The block adds to the derivatives in the weights
    below it, and those in its own weights are set: its input does not depend on them.
    """
    d, _ = block.V.shape
    below = slice(places.offset)
    output_rates[:, :, below] += np.einsum("ac,ncp->nap", block.V, rates.in_below)
    features = (block.active * block.pre)[:, None]
    output_rates[:, np.arange(d)[:, None], places.of_V] = features
    output_rates[:, :, places.of_W] = np.einsum("ac,ncb->nacb", block.V, rates.in_W)


def orbit_tangents(blocks: list[Block]) -> np.ndarray:
    """t_c, f64[size, units]: tangents (v_c, -w_c), ordered as in `system`."""
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
