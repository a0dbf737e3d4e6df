"""Programs that an earlier session of the tests has compiled, for the next one.

They lie in pytest's own cache, from which `pytest --cache-clear` and `make clean`
remove them. JAX takes a program from there if the program, its compiler and all the
compiler's options are the same; XLA makes it for the processor it runs on, so that each
machine has its own. Only `.ci/run` removes old ones. With a JAX whose own module for
this has changed, nothing is kept.
"""

import os
import pathlib
import platform

import jax

from identity_matters import environment

try:
    from jax._src import lru_cache

    _put = lru_cache.LRUCache.put
    _SUFFIX = lru_cache._CACHE_SUFFIX
except (ImportError, AttributeError):
    lru_cache = None

# Where programs are kept; None if they are not.
directory: pathlib.Path | None = None


def _put_whole(cache, key: str, value: bytes) -> None:
    """Writes a file elsewhere first: other processes read, and this may be killed."""
    unfinished = f"{key}-{os.getpid()}"
    _put(cache, unfinished, value)
    written = cache.path / f"{unfinished}{_SUFFIX}"
    if written.exists():
        written.replace(cache.path / f"{key}{_SUFFIX}")


if lru_cache is not None:
    lru_cache.LRUCache.put = _put_whole


def directory_name() -> str:
    """That of this machine's programs, below pytest's cache."""
    machine = f"jax of {platform.node()}, {environment.cpu_model()}"
    return machine.replace(os.sep, "-")


def use(place: pathlib.Path | None) -> None:
    """Keeps programs in `place` and takes them from there, unless it is None.

    Call it before the first program is compiled: later calls change nothing.
    """
    global directory
    if lru_cache is None:
        return
    directory = place
    jax.config.update("jax_compilation_cache_dir", place and str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
