"""The array type for arguments from NumPy or JAX."""

import jax
import numpy as np

# Has a shape and a dtype, unlike `numpy.typing.ArrayLike`, which may also be a list.
Array = jax.Array | np.ndarray
