"""Residual nets with one ReLU a block and small norm (open question of section 5).

docs/theory/relu.md has all statements and proofs for ``h + V ReLU(U h + s)``. Symbols,
in float64:

* ``U, V, s``: input weights, output weights and biases of l blocks of width k, see
  `model.Blocks`
* ``w``: the row (u, s) of one unit, or u alone without biases
* ``A, B``: fixed maps: the net is ``yhat = B h_l(A x)``; identity matrices for plain
  nets
* ``f``: the risk on a sample, ``(1/n) sum_i ||yhat_i - y_i||^2``
* ``|||.|||``: ``max_j max(||U_j||, ||V_j||, ||s_j||)``, spectral norms
"""
