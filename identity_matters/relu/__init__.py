"""Residual nets with one ReLU per block in the small-norm region (the open question of section 5).

docs/theory/relu.md has all statements and proofs for ``h + V ReLU(U h + s)``. Symbols, in float64:

* ``U``: f64[l, k, d], input weights of the l blocks of width k
* ``V``: f64[l, d, k], output weights
* ``s``: f64[l, k], biases, or None for a net without biases
* ``w``: the row (u, s) of one unit, or u alone without biases
* ``A, B``: fixed maps: the net is ``yhat = B h_l(A x)``; identity matrices for plain nets
* ``e_i``: errors ``y_i - yhat_i``; at the origin ``y_i - B A x_i``
* ``f``: the risk on a sample, ``(1/n) sum_i ||yhat_i - y_i||^2``
* ``|||.|||``: ``max_j max(||U_j||, ||V_j||, ||s_j||)``, spectral norms; ``B_tau`` is its ball
"""
