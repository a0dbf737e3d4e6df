"""Deep linear residual networks (section 2 of the paper), in float64.

Symbols, throughout this package (the paper's letters on the left):

=========  =========================================================================
``A``      f64[depth, d, d], the residual weights; ``A[0]`` is the paper's A_1
``l``      depth, the number of layers
``R``      f64[d, d], the target map of the data model ``y = R x + xi``
``Sigma``  f64[d, d], the second moment ``E[x x^T]`` of the inputs
``E``      f64[d, d], ``(I + A_l) ... (I + A_1) - R``
``f - C``  excess risk, ``||E Sigma^{1/2}||_F^2`` (Claim 2.3)
``tau``    ``|||A||| = max_i ||A_i||`` in spectral norm; ``B_tau`` is the ball of that radius
``gamma``  ``max(|log sigma_max(R)|, |log sigma_min(R)|)`` (Theorem 2.1)
=========  =========================================================================
"""
