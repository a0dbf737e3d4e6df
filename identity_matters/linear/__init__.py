"""Deep linear residual networks (section 2 of the paper), in float64.

Symbols, throughout this package (the paper's letters on the left):

* ``A``: f64[depth, d, d], the residual weights; ``A[0]`` is the paper's A_1
* ``l``: depth, the number of layers
* ``R``: f64[d, d], the target map of the data model ``y = R x + xi``
* ``Sigma``: f64[d, d], the second moment ``E[x x^T]`` of the inputs
* ``E``: f64[d, d], ``(I + A_l) ... (I + A_1) - R``
* ``f - C``: excess risk, ``||E Sigma^{1/2}||_F^2`` (Claim 2.3)
* ``tau``: ``|||A||| = max_i ||A_i||`` in spectral norm; ``B_tau`` is the ball of that
  radius
* ``gamma``: ``max(|log sigma_max(R)|, |log sigma_min(R)|)`` (Theorem 2.1)

The NumPy functions, such as `factorize`, always compute in float64. The JAX functions
reject float32; JAX makes float64 arrays only after
``jax.config.update("jax_enable_x64", True)``. The exceptions are `sampled`, nets that
are trained on samples, and `random_points`, which run in float32 on accelerators.

Modules, by what they are about; proofs are in the pages of docs/theory:

* the net: `model`, its map, risk and gradient; `second_moment`, what float64 knows
  about Sigma.
* the gradient bound (gradient_bound.md): `gradient_bound`, eq. (2.3) as printed and
  corrected; `gradient_attacks`, searches for points that violate it; `random_ball` and
  `random_points`, samplers of such points in float64 and in float32;
  `critical_points`, searches for these (Theorem 2.2).
* factorizations (factorization.md, many_layers.md, limits.md): `target`, the conditions
  on R; `factorization`, all methods; `turn_and_stretch`, `optimum`, `one_pace` and
  `shortest_path`, the layers of each kind; `path_starts`, `matrix_powers` and
  `invariant_spaces`, what these need; `random_targets`, samplers of R.
* bounds for every factorization (lower_bounds.md): `lower_bound`.
* training (convergence.md): `descent`, gradient descent; `convergence`, certificates
  that it stays in the ball and converges (`will_converge`); `escape`, the time to leave
  a saddle.
* training on samples (sampled.md): `sampled`, minibatch descent; `sampled_bound`, its
  noise floor and certificates.

Import the names below from here, and everything else from its module.
"""

from typing import TYPE_CHECKING

from identity_matters.lazy_names import module_getattr

if TYPE_CHECKING:
    from identity_matters.linear.descent import Descent, Rules, gradient_descent
    from identity_matters.linear.factorization import METHODS, factorize, polar_bound
    from identity_matters.linear.gradient_bound import gradient_lower_bound
    from identity_matters.linear.lower_bound import norm_lower_bound
    from identity_matters.linear.model import (
        excess_risk,
        excess_risk_and_gradient,
        max_spectral_norm,
        product,
        risk_gradient,
    )
    from identity_matters.linear.shortest_path import PathSettings
    from identity_matters.linear.target import Target, check_target

__all__ = [
    "METHODS",
    "Descent",
    "PathSettings",
    "Rules",
    "Target",
    "check_target",
    "excess_risk",
    "excess_risk_and_gradient",
    "factorize",
    "gradient_descent",
    "gradient_lower_bound",
    "max_spectral_norm",
    "norm_lower_bound",
    "polar_bound",
    "product",
    "risk_gradient",
]

# For type checkers the names are imported above. At run time a module is imported when
# a name of it is first used.
if not TYPE_CHECKING:
    __getattr__ = module_getattr(
        __name__,
        {
            "METHODS": "factorization",
            "Descent": "descent",
            "PathSettings": "shortest_path",
            "Rules": "descent",
            "Target": "target",
            "check_target": "target",
            "excess_risk": "model",
            "excess_risk_and_gradient": "model",
            "factorize": "factorization",
            "gradient_descent": "descent",
            "gradient_lower_bound": "gradient_bound",
            "max_spectral_norm": "model",
            "norm_lower_bound": "lower_bound",
            "polar_bound": "factorization",
            "product": "model",
            "risk_gradient": "model",
        },
    )

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
