"""Types of arguments that may come from NumPy or from JAX."""

import jax
import numpy as np

# An array with a shape and a dtype of its own; `numpy.typing.ArrayLike` may be a list as well.
Array = jax.Array | np.ndarray
