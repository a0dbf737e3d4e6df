"""Programs for CPUs compiled in a third of the time, without XLA's optimizations.

The programs compute the same sums and products. Their roundings may differ, as XLA then
neither fuses a product with a sum nor reorders sums.
"""

import functools
from typing import Any

import jax
from jax._src import compiler

OPTIONS = {
    "xla_backend_optimization_level": 0,
    # Otherwise XLA 0.10 generates loops by MLIR, which takes longer than LLVM itself.
    "xla_cpu_use_fusion_emitters": False,
}
get_compile_options = compiler.get_compile_options
# (name, value) of each option that programs are now compiled with; none for users.
options_in_use: list[tuple[str, Any]] = []


@functools.cache
def known_options() -> list[tuple[str, Any]]:
    """Those of OPTIONS that this version of XLA knows."""
    known = []
    for name, value in OPTIONS.items():
        try:
            jax.jit(lambda: 0, compiler_options={name: value})()
        except jax.errors.JaxRuntimeError:
            continue
        known.append((name, value))
    return known


def _get_quick_options(*arguments: Any, backend: Any = None, **keywords: Any):
    """`get_compile_options` of JAX, with the options in use added."""
    options = get_compile_options(*arguments, backend=backend, **keywords)
    if options_in_use and backend is not None and backend.platform == "cpu":
        options.env_option_overrides = [
            *options.env_option_overrides,
            *options_in_use,
        ]
    return options


compiler.get_compile_options = _get_quick_options


def use(wanted: bool) -> None:
    """From here on programs are compiled quickly, or as those of users are."""
    options = known_options() if wanted else []
    if options != options_in_use:
        jax.clear_caches()
        use_options(options)


def use_options(options: list[tuple[str, Any]]) -> None:
    """As `use` with what `options_in_use` is elsewhere; starts no backend of JAX."""
    options_in_use[:] = options
