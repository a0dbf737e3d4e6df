"""Deep linear residual networks (section 2 of the paper), in float64.

Symbols, throughout this package (the paper's letters on the left):

* ``A``: f64[depth, d, d], the residual weights; ``A[0]`` is the paper's A_1
* ``l``: depth, the number of layers
* ``R``: f64[d, d], the target map of the data model ``y = R x + xi``
* ``Sigma``: f64[d, d], the second moment ``E[x x^T]`` of the inputs
* ``E``: f64[d, d], ``(I + A_l) ... (I + A_1) - R``
* ``f - C``: excess risk, ``||E Sigma^{1/2}||_F^2`` (Claim 2.3)
* ``tau``: ``|||A||| = max_i ||A_i||`` in spectral norm; ``B_tau`` is the ball of that radius
* ``gamma``: ``max(|log sigma_max(R)|, |log sigma_min(R)|)`` (Theorem 2.1)

The NumPy functions, such as `factorize`, always compute in float64. The JAX functions reject
float32; JAX makes float64 arrays only after ``jax.config.update("jax_enable_x64", True)``.
"""

from identity_matters.linear.descent import Descent as Descent
from identity_matters.linear.descent import Rules as Rules
from identity_matters.linear.descent import gradient_descent as gradient_descent
from identity_matters.linear.factorization import METHODS as METHODS
from identity_matters.linear.factorization import factorize as factorize
from identity_matters.linear.factorization import polar_bound as polar_bound
from identity_matters.linear.gradient_bound import gradient_lower_bound as gradient_lower_bound
from identity_matters.linear.lower_bound import norm_lower_bound as norm_lower_bound
from identity_matters.linear.model import excess_risk as excess_risk
from identity_matters.linear.model import excess_risk_and_gradient as excess_risk_and_gradient
from identity_matters.linear.model import max_spectral_norm as max_spectral_norm
from identity_matters.linear.model import product as product
from identity_matters.linear.model import risk_gradient as risk_gradient
from identity_matters.linear.shortest_path import PathSettings as PathSettings
from identity_matters.linear.target import Target as Target
from identity_matters.linear.target import check_target as check_target
