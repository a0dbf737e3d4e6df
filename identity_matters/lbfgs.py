"""SciPy's L-BFGS on one BLAS thread; needs no JAX."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
import threadpoolctl

_BLAS = threadpoolctl.ThreadpoolController()


def minimize(
    value_and_gradient: Callable,
    x: np.ndarray,
    args: tuple[Any, ...] = (),
    *,
    iterations: int,
    tolerance: float = 1e-9,
) -> tuple[np.ndarray, float]:
    """Minimises by L-BFGS from `x`, f64[n]: the last point and its value.

    ``value_and_gradient(x, *args)`` returns a float and f64[n]. The search ends after
    `iterations` steps, or once a step lowers the value by at most `tolerance`, relative
    to its size or 1.
    """
    options = {"maxiter": iterations, "maxcor": 20, "ftol": tolerance, "gtol": 0.0}
    # Handing tiny matrices to a second BLAS thread
    # takes far longer than their arithmetic.
    with _BLAS.limit(limits=1, user_api="blas"):
        result = scipy.optimize.minimize(
            value_and_gradient, x, args, jac=True, method="L-BFGS-B", options=options
        )
    return result.x, float(result.fun)
