"""When JAX compiles, and how long that takes."""

import contextlib
from collections.abc import Callable, Iterator

import jax

# JAX's event at the end of a compilation, or of reading a program from the cache
_COMPILED = "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def listening(on_compiled: Callable[[float], None]) -> Iterator[None]:
    """Inside, `on_compiled` is called after each compilation, with its seconds."""

    # The name of an argument that is not used is JAX's.
    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if event == _COMPILED:
            on_compiled(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
