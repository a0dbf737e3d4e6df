"""SIGTERM and Ctrl-C: each asks a run to stop, or ends it with an exception.

Why a signal may be sent a second time: a handler ends the run by raising an exception
wherever the program is. Python drops the exception if that is inside a callback of the
garbage collector, of which JAX has one, and only reports it to `sys.unraisablehook`. An
exception of that hook would be dropped as well. So the hook, `report_unraisable`, has a
timer send the signal again a moment later, when the collector has finished.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator

from absl import logging

RESEND_SECONDS = 0.05


class Interrupted(BaseException):
    """SIGTERM came; no Exception, so that no handler takes it for a failure."""


# Signal that stops a run -> the exception that it raises.
STOP_SIGNALS = {signal.SIGTERM: Interrupted, signal.SIGINT: KeyboardInterrupt}

_resent_signals: list[threading.Timer] = []  # those that may not have fired yet


class Stop:
    """Whether SIGTERM or Ctrl-C has come: `requested` is their exception, or None."""

    def __init__(self) -> None:
        self.requested: type[BaseException] | None = None

    def check(self) -> None:
        """Raises the exception of the signal that has come, if one has."""
        if self.requested is not None:
            raise self.requested


@contextlib.contextmanager
def stop_signal(
    asks_first: bool, ignored_after: bool = False, stop: Stop | None = None
) -> Iterator[Stop]:
    """Catches SIGTERM and Ctrl-C inside; yields a `Stop`.

    A signal that is ignored stays so. Whoever started this process wants that: shells
    let the background jobs of a script ignore Ctrl-C.

    Args:
      asks_first: the first of them only sets `requested`; any other raises its
        exception, too.
      ignored_after: both are ignored from then on; if false, all is as before.
      stop: the one to yield, which may have been requested before; by default a new
        one.
    """
    stop = stop or Stop()

    def handle(number, _):
        waits = asks_first and stop.requested is None
        stop.requested = STOP_SIGNALS[number]
        if not waits:
            raise stop.requested
        if number == signal.SIGINT:
            logging.info(
                "stopping after the next steps, with a checkpoint; Ctrl-C again kills"
            )

    previous = {
        number: signal.signal(number, handle)
        for number in STOP_SIGNALS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield stop
    finally:
        while _resent_signals:
            _resent_signals.pop().cancel()
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_IGN if ignored_after else handler)


def report_unraisable(failure) -> None:
    """A `sys.unraisablehook` that loses no signal and hides orbax's late errors.

    "Event loop is closed" comes from every array that orbax abandons after another one
    failed.
    """
    for number, exception in STOP_SIGNALS.items():
        if isinstance(failure.exc_value, exception):
            _send_again(number)
            return
    if str(failure.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(failure)


def _send_again(number: int) -> None:
    """Sends a signal to the main thread, after RESEND_SECONDS."""
    main_thread = threading.main_thread().ident
    timer = threading.Timer(RESEND_SECONDS, signal.pthread_kill, (main_thread, number))
    timer.daemon = True
    _resent_signals.append(timer)
    timer.start()
