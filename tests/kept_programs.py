"""Programs that an earlier session of the tests has compiled, for the next one.

They lie in pytest's own cache, from which `pytest --cache-clear` and `make clean`
remove them. JAX takes a program from there if the program, its compiler and all the
compiler's options are the same; XLA makes it for the processor it runs on, so that each
machine has its own.
"""

import os
import pathlib
import platform

import jax
from jax._src import lru_cache

# Where programs are kept; None if they are not.
directory: pathlib.Path | None = None
_put = lru_cache.LRUCache.put


def _put_whole(cache: lru_cache.LRUCache, key: str, value: bytes) -> None:
    """Writes a file elsewhere first: other processes read, and this may be killed."""
    unfinished = f"{key}-{os.getpid()}"
    _put(cache, unfinished, value)
    written = cache.path / f"{unfinished}{lru_cache._CACHE_SUFFIX}"
    if written.exists():
        written.replace(cache.path / f"{key}{lru_cache._CACHE_SUFFIX}")


lru_cache.LRUCache.put = _put_whole


def directory_name() -> str:
    """That of this machine's programs, below pytest's cache."""
    return f"jax of {platform.node()}".replace(os.sep, "-")


def use(place: pathlib.Path | None) -> None:
    """From here on programs are kept in `place` and taken from there; None: no more.

    JAX looks for the setting once, at the first program that it compiles.
    """
    global directory
    directory = place
    jax.config.update("jax_compilation_cache_dir", place and str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
