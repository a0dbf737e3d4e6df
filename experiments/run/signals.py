"""What SIGTERM and Ctrl-C do to a run."""

import contextlib
import signal
import sys
import threading

from absl import logging

RESEND_SECONDS = 0.05  # a signal whose exception was lost is sent again after this time

_sent_again: list[threading.Timer] = []  # those that may not have fired yet


class Interrupted(BaseException):
    """SIGTERM came.

    Not an Exception, so that no handler on the way mistakes it for a failure.
    """


# Signal that stops a run -> the exception that it raises.
STOP_SIGNALS = {signal.SIGTERM: Interrupted, signal.SIGINT: KeyboardInterrupt}


class Stop:
    """Whether SIGTERM or Ctrl-C has come: `requested` is their exception, or None."""

    def __init__(self):
        self.requested: type[BaseException] | None = None

    def check(self) -> None:
        """Raises the exception of the signal that has come, if one has."""
        if self.requested is not None:
            raise self.requested


@contextlib.contextmanager
def stop_signal(asks_first: bool, ignored_after: bool = False):
    """Catches SIGTERM and Ctrl-C inside; yields a `Stop`.

    A signal that is ignored stays so. Whoever started this process wants that: shells
    let the background jobs of a script ignore Ctrl-C.

    Args:
        asks_first: the first of them only sets `requested`; any other raises its
            exception, too.
        ignored_after: both are ignored from then on; if false, all is as before.
    """
    stop = Stop()

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
        while _sent_again:
            _sent_again.pop().cancel()
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_IGN if ignored_after else handler)


def tell_unraisable(failure) -> None:
    """Python's own hook, but silent about arrays that orbax gave up.

    It does so after one of them has failed.

    Python ignores what a signal handler raises if it happens to run inside a callback
    of the garbage collector, of which JAX has one. The signal is then sent again.
    """
    for number, exception in STOP_SIGNALS.items():
        if isinstance(failure.exc_value, exception):
            main_thread = threading.main_thread().ident
            again = threading.Timer(
                RESEND_SECONDS, signal.pthread_kill, (main_thread, number)
            )
            again.daemon = True
            _sent_again.append(again)
            again.start()
            return
    if str(failure.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(failure)
