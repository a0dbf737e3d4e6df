"""Settings of JAX on which the speed and the random numbers of a run depend.

`use_fast_convolutions` chooses how XLA computes convolutions on CPUs. `random_key` does
not depend on JAX's default generator, which a user or a later version may change.
"""

import importlib.metadata
import importlib.util
import os

import jax

# From 0.9 on, jaxlib hands convolutions on CPUs to the library YNNPACK, which takes up
# to nine times as long as XLA itself for the gradient of a kernel;
# docs/slow_convolutions.md has a minimal case. The minus takes convolutions out of its
# list and leaves it matrix products.
FUSION_FLAG = "--xla_cpu_experimental_ynn_fusion_type"
FAST_CONVOLUTIONS = f"{FUSION_FLAG}=-individual_convolution"
# XLA ends the process if it does not know a flag, so this is for versions that were
# tried: from the first, to below the second.
JAXLIB_VERSIONS = ((0, 10), (0, 13))
GENERATOR = "threefry2x32"


def use_fast_convolutions() -> None:
    """Adds FAST_CONVOLUTIONS to XLA_FLAGS.

    XLA looks there before its first compilation. Nothing is added for a jaxlib outside
    JAXLIB_VERSIONS, where JAX computes on an accelerator, or if the user has set the
    flag. Flags in a file, which XLA_FLAGS may name, are left alone, too.
    """
    flags = os.environ.get("XLA_FLAGS", "").strip()
    names_a_file = flags and not flags.startswith("-")
    if (
        FUSION_FLAG in flags
        or names_a_file
        or not (_jaxlib_knows_the_flag() and _is_for_cpus())
    ):
        return
    os.environ["XLA_FLAGS"] = f"{flags} {FAST_CONVOLUTIONS}".strip()


def _jaxlib_knows_the_flag() -> bool:
    major, minor = importlib.metadata.version("jaxlib").split(".")[:2]
    first, end = JAXLIB_VERSIONS
    return first <= (int(major), int(minor)) < end


def _is_for_cpus() -> bool:
    """Whether JAX will compute on CPUs, judged without starting its backends.

    Once they have started, XLA_FLAGS has been read.
    """
    if importlib.util.find_spec("libtpu"):
        return False  # it has its own list of flags
    if platforms := jax.config.values["jax_platforms"]:
        return platforms == "cpu"
    return importlib.util.find_spec("jax_plugins") is None


def random_key(seed: int) -> jax.Array:
    """A typed key of the one generator of this package's random numbers."""
    return jax.random.key(seed, impl=GENERATOR)
