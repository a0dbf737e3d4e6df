"""Settings of JAX on which the speed and the random numbers of a run depend.

`use_fast_convolutions` and `use_quick_compilation` choose how XLA compiles for CPUs.
`random_key` does not depend on JAX's default generator, which a user or a later version
may change.
"""

import importlib.metadata
import importlib.util
import os

import jax

from identity_matters import limits

# From 0.9 on, jaxlib hands convolutions on CPUs to the library YNNPACK, which takes up
# to nine times as long as XLA itself for the gradient of a kernel;
# docs/slow_convolutions.md has a minimal case. The minus takes convolutions out of its
# list and leaves it matrix products.
FUSION_FLAG = "--xla_cpu_experimental_ynn_fusion_type"
FAST_CONVOLUTIONS = f"{FUSION_FLAG}=-individual_convolution"
# XLA compiles each fusion of operations through MLIR, with a context of its own. Its
# older way, which jaxlib 0.11 no longer has, takes about half as long. What it makes of
# convolutions, or of loops of many steps, is slower by up to a quarter, and the last
# digits differ.
EMITTERS_FLAG = "--xla_cpu_use_fusion_emitters"
QUICK_COMPILATION = f"{EMITTERS_FLAG}=false"
# XLA cuts a program into pieces that it compiles at the same time, which takes longer
# where there is one core.
ONE_PIECE = "--xla_cpu_parallel_codegen_split_count=1"
# XLA ends the process if it does not know a flag, so each is for versions that were
# tried: from the first, to below the second.
JAXLIB_VERSIONS = {
    FAST_CONVOLUTIONS: ((0, 10), (0, 13)),
    QUICK_COMPILATION: ((0, 10), (0, 11)),
    ONE_PIECE: ((0, 10), (0, 13)),
}
GENERATOR = "threefry2x32"


def use_fast_convolutions() -> None:
    """Adds FAST_CONVOLUTIONS to XLA_FLAGS, for trainings; see `_add_flag`."""
    _add_flag(FAST_CONVOLUTIONS)


def use_quick_compilation() -> None:
    """Adds flags for many small programs to XLA_FLAGS; see `_add_flag`.

    They are QUICK_COMPILATION and, if this process may use one core only, ONE_PIECE.
    """
    _add_flag(QUICK_COMPILATION)
    if limits.usable_cores() == 1:
        _add_flag(ONE_PIECE)


def _add_flag(setting: str) -> None:
    """Adds NAME=VALUE to XLA_FLAGS.

    XLA looks there before its first compilation. Nothing is added for a jaxlib that is
    outside JAXLIB_VERSIONS, where JAX computes on an accelerator, or if the user has
    set the flag. Flags in a file, which XLA_FLAGS may name, are left alone, too.
    """
    name, _ = setting.split("=")
    flags = os.environ.get("XLA_FLAGS", "").strip()
    names_a_file = flags and not flags.startswith("-")
    if name in flags or names_a_file or not (_jaxlib_knows(setting) and _is_for_cpus()):
        return
    os.environ["XLA_FLAGS"] = f"{flags} {setting}".strip()


def _jaxlib_knows(setting: str) -> bool:
    major, minor = importlib.metadata.version("jaxlib").split(".")[:2]
    first, end = JAXLIB_VERSIONS[setting]
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
