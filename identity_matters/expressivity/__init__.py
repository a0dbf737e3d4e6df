"""Finite-sample expressivity: a residual network that memorises any labels (paper, section 3).

Symbols: n examples in d dimensions with r classes; width k; l = ceil(n / k) blocks; the data after
the input map are a_i = A_0 x_i, the surrogate label of class j is q_j, and a block is
h + T(h) with T(h) = V ReLU(U h + s).

* `block`: one block, and the forward pass of the whole network.
* `construction`: `memorize` builds the network, `apply` and `verify` run it.
* `paper_method`: Lemmas B.1 and B.2 to the letter, with their assumptions checked.
* `adaptive`: biases and order chosen from the data, for any distinct inputs and any width.
* `surrogates`: the surrogate labels of the adaptive method.
* `plan`, `examples`: what a method decides, and the checks of what it is given.
* `certificate`: the margins, and the precision that they need.
* `descent`: the same network trained by gradient descent, for contrast.
* `capacity`: parameter counts, separation and the widths that the theorem asks for.
"""
