"""A trace of a few dispatches for TensorBoard or Perfetto."""

import warnings

import jax

# The first dispatches warm up caches; a trace of all would be too large to open.
SKIPPED_DISPATCHES = 2
TRACED_DISPATCHES = 5


class Profiler:
    """Writes one trace into `directory` while it is entered; does nothing if that is empty."""

    def __init__(self, directory):
        self._directory = str(directory)
        self._started = 0
        self._tracing = False

    def dispatch_starts(self) -> None:
        """To be called before each dispatch."""
        if self._directory and self._started == SKIPPED_DISPATCHES:
            jax.profiler.start_trace(self._directory)
            self._tracing = True
        self._started += 1

    def dispatch_done(self) -> None:
        """To be called when the results of a dispatch have been read."""
        if self._tracing and self._started >= SKIPPED_DISPATCHES + TRACED_DISPATCHES:
            self._stop()

    def _stop(self) -> None:
        self._tracing = False
        jax.profiler.stop_trace()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._tracing:
            self._stop()
        elif self._directory and self._started <= SKIPPED_DISPATCHES:
            warnings.warn(
                f"no trace was written: it starts after {SKIPPED_DISPATCHES} dispatches, and there"
                f" were {self._started}",
                stacklevel=2,
            )
