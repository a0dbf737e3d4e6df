"""Static function retrieval: labels as sums of three entries of a table.

The three cells of a point are hashed. The points are the edges of a hypergraph on the
cells of the table. A cell that lies in one edge alone can be set last, whatever the
others are: the edge is peeled off. If no edge is left, the table is filled in the
reverse order. Random edges of three cells are peeled off with high probability if there
are more than 1.222 cells for each (Molloy 2005), and the table is the function: no
point is stored. First: Majewski et al. 1996; Chazelle et al. 2004 (Bloomier filters).
"""

import numpy as np


def peel(
    cells: np.ndarray, table_size: int
) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Rounds of edges, each with a cell that no other of this or a later round has.

    Args:
      cells: i64[n, 3], the cells of each edge, in 0 ... table_size - 1; repeats are
        allowed.
      table_size: how many cells there are.
    Returns:
      (edges, their free cells), both i64[m], for each round, or None if some edges
      stay.

    >>> [(e.tolist(), c.tolist()) for e, c in peel(np.array([[0, 1, 2], [1, 2, 3]]), 4)]
    [([0, 1], [0, 3])]
    >>> peel(np.array([[0, 1, 2], [0, 1, 2]]), 4) is None
    True
    """
    n = len(cells)
    degree = np.bincount(cells.ravel(), minlength=table_size)
    # The exclusive or of the edges at a cell: of a cell with one edge, that edge.
    edge_at = np.zeros(table_size, np.int64)
    for column in cells.T:
        np.bitwise_xor.at(edge_at, column, np.arange(n))
    rounds = []
    left = n
    free = np.flatnonzero(degree == 1)
    while free.size:
        edges, first = np.unique(edge_at[free], return_index=True)
        rounds.append((edges, free[first]))
        left -= len(edges)
        peeled = cells[edges]
        np.subtract.at(degree, peeled, 1)
        np.bitwise_xor.at(edge_at, peeled, edges[:, None])
        touched = np.unique(peeled)
        free = touched[degree[touched] == 1]
    return rounds if left == 0 else None


def fill(
    rounds: list[tuple[np.ndarray, np.ndarray]],
    cells: np.ndarray,
    labels: np.ndarray,
    table_size: int,
    modulus: int,
) -> np.ndarray:
    """A table, i64[table_size], with ``table[cells].sum(axis=1) % modulus == labels``.

    `rounds` is what `peel` returns; cells i64[n, 3]; labels i64[n] in 0 ... modulus -
    1. Cells in no edge stay 0.
    """
    table = np.zeros(table_size, np.int64)
    for edges, free in reversed(rounds):
        # The free cell is still 0, and the others of its edge have their final values.
        table[free] = (labels[edges] - table[cells[edges]].sum(axis=1)) % modulus
    return table
