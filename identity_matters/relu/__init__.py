"""Residual nets with one ReLU a block and small norm (open question of section 5).

docs/theory/relu.md has all statements and proofs for ``h + V ReLU(U h + s)``. Its JAX
functions do not refuse float32, but searches and comparisons need float64: call
``jax.config.update("jax_enable_x64", True)`` first. Symbols:

* ``U, V, s``: input weights, output weights and biases of l blocks of width k, see
  `model.Blocks`
* ``w``: the row (u, s) of one unit, or u alone without biases
* ``A, B``: fixed maps: the net is ``yhat = B h_l(A x)``; identity matrices for plain
  nets
* ``f``: the risk on a sample, ``(1/n) sum_i ||yhat_i - y_i||^2``
* ``|||.|||``: ``max_j max(||U_j||, ||V_j||, ||s_j||)``, spectral norms

Modules, and the statements of that page that they are about:

* `model`: the net, its risk and gradient, gradient descent; `problems`: random problems
  with a teacher in the ball.
* `origin`: what f looks like around zero weights (N1 to N5).
* `critical_points`: a search for them, kink distances, dead units (N6, N7).
* `certificate`: proves that a bad local minimum lies near a point (N10, N11), with
  `exact_net` and `rational` for the exact arithmetic.
* `feature_bound`: what remains of eq. (2.3) (N12 to N15).
* `training`: when gradient flow provably reaches risk 0 (N16); `flow` integrates it.
* `rounding`: how far floats may be from what they stand for.
"""
