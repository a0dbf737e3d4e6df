"""Limited-memory BFGS: SciPy's, on one BLAS thread.

The matrices inside are tiny. Handing them to a second BLAS thread took ten times as long as the
arithmetic on two cores, more on a busy machine.
"""

import functools
from collections.abc import Callable

import numpy as np
import scipy.optimize
import threadpoolctl


@functools.cache
def _blas() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


def minimize(
    value_and_gradient: Callable,
    x: np.ndarray,
    *,
    iterations: int,
    memory: int = 20,
    tolerance: float = 1e-9,
) -> tuple[np.ndarray, float]:
    """Minimises a smooth function from `x`.

    Args:
      value_and_gradient: ``x -> (float, f64[n])``.
      x: f64[n].
      iterations: at most this many steps.
      memory: how many of the last steps the Hessian is estimated from.
      tolerance: stops where a step lowers the value by less than this, relative to its size or 1.
    Returns:
      The last point, f64[n], and its value, never above that of `x`.
    """
    with _blas().limit(limits=1, user_api="blas"):
        found = scipy.optimize.minimize(
            value_and_gradient,
            x,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": iterations, "maxcor": memory, "ftol": tolerance, "gtol": 0.0},
        )
    return found.x, float(found.fun)
