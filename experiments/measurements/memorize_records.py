"""What is recorded of a network of any kind that memorizes labels."""

import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from identity_matters.memorize import construct
from identity_matters.memorize.certificate import PrecisionError
from identity_matters.memorize.examples import ConflictingLabelsError
from identity_matters.memorize.paper_method import AssumptionError

_REFUSALS = (AssumptionError, ConflictingLabelsError, PrecisionError)


def refusals_recorded(measure: Callable[..., dict]) -> Callable[..., dict]:
    """`measure`; but if no network can be built, its record is {"refused": reason}."""

    @functools.wraps(measure)
    def measure_or_say_why_not(*arguments, **options) -> dict:
        try:
            return measure(*arguments, **options)
        except _REFUSALS as error:
            return {"refused": str(error)}

    return measure_or_say_why_not


def errors_and_times(
    network: Any,
    certificate: Any,
    x: np.ndarray,
    y: np.ndarray,
    *,
    build_seconds: float,
    batch_examples: int,
    forward: Callable,
) -> dict:
    """Runs a network on all of x: its errors, its times, and whether it is certified.

    Args:
      network: what `forward` takes.
      certificate: of the network.
      x: [n, d], the inputs.
      y: int[n], their labels.
      build_seconds: how long it took to build the network.
      batch_examples: inputs that pass through the network at once.
      forward: the forward pass of such a network.
    """
    started = time.perf_counter()
    result = construct.verify(network, x, y, batch_examples, forward)
    return {
        "errors": result.errors,
        "max_abs_error": result.max_abs_error,
        "build_seconds": build_seconds,
        "verify_seconds": time.perf_counter() - started,
        "certified": certificate.holds,
    }
