"""Convolutions of maps that are smaller than the kernel, by patches.

Images are [n, h, w, c] and kernels [k, k, in, out].
"""

import jax
import jax.numpy as jnp


def convolution(images: jax.Array, kernel: jax.Array, strides, padding, **options):
    """`jax.lax.conv_general_dilated` for Flax's layers, faster on CPUs for tiny maps.

    Where the map is smaller than the kernel, patches are multiplied by it: for many
    maps of 2 x 2, that is an order of magnitude faster than XLA's convolution. Of the
    options only `precision` counts then, so dilations and groups must be 1.
    """
    n, h, w, _ = images.shape
    k, _, _, c_out = kernel.shape
    keeps_the_size = padding == "SAME" and max(strides) == 1
    if not keeps_the_size or min(h, w) >= k:
        return jax.lax.conv_general_dilated(images, kernel, strides, padding, **options)
    zeros = ((k - 1) // 2, k // 2)  # before and after, as "SAME" has them
    padded = jnp.pad(images, ((0, 0), zeros, zeros, (0, 0)))
    shifted = [padded[:, i : i + h, j : j + w] for i in range(k) for j in range(k)]
    patches = jnp.concatenate(shifted, axis=-1).reshape(n * h * w, -1)
    product = jnp.matmul(
        patches, kernel.reshape(-1, c_out), precision=options.get("precision")
    )
    return product.reshape(n, h, w, c_out)
