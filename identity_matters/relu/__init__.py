"""Residual nets with one ReLU per block in the small-norm region (the open question of section 5).

The paper proves that a linear residual net has no bad critical point with ``|||A||| <= tau < 1``
(Theorem 2.2) and conjectures an analogous result for nonlinear blocks. docs/theory/relu.md has
all statements and proofs for ``h + V ReLU(U h + s)``. Symbols, in float64:

* ``U``: f64[l, k, d], input weights of the l blocks of width k
* ``V``: f64[l, d, k], output weights
* ``s``: f64[l, k], biases, or None for a net without biases
* ``w``: the row (u, s) of one unit, or u alone without biases
* ``A, B``: fixed maps: the net is ``yhat = B h_l(A x)``; identity matrices for plain nets
* ``e_i``: errors ``y_i - yhat_i``; at the origin ``y_i - B A x_i``
* ``f``: the risk on a sample, ``(1/n) sum_i ||yhat_i - y_i||^2``
* ``|||.|||``: ``max_j max(||U_j||, ||V_j||, ||s_j||)``, spectral norms; ``B_tau`` is its ball

* `model`: the net, its risk, its norm, random weights, gradient descent.
* `problems`: random problems with a teacher.
* `origin`: the second-order form of f at zero weights, and when a direction leads down.
* `critical_points`: their search and classification, and open sets of dead units.
* `certificate`: a computer-assisted proof, in rational numbers, of one bad local minimum.
* `feature_bound`: what remains of eq. (2.3): a gradient bound where features are independent, and
  one on the gradient in the maps themselves.
"""
