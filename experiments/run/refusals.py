"""Which errors refuse what the user asked for; all others are bugs.

Before the first measurement the settings are checked, by the `trials` and `build` of an
experiment and by the functions of the library that they call. A check refuses with
``raise ValueError(...)``, or TypeError, and the command ends with that message in one
line. The same errors also come from mistakes of the program: from an operation such as
``None + 1``, or from another library that was called wrongly. Their traceback must be
seen. So the two are told apart by what failed: a `raise` statement of ours, or anything
else.
"""

import inspect
from collections.abc import Collection

from identity_matters import runs

# Packages whose `raise` statements are checks of what users typed. A module that is run
# as a program is called __main__.
OUR_PACKAGES = ("identity_matters", "experiments", "benchmarks", "__main__")
# Errors that settings cause, whatever raises them.
_ALWAYS_REFUSALS = (
    runs.RunError,  # a run that cannot be used
    OSError,  # a file that cannot be read
    OverflowError,  # a number that is too large to compute with
    MemoryError,  # an array that is too large
)


def is_refusal(error: BaseException, packages: Collection[str] = OUR_PACKAGES) -> bool:
    """Whether an error of `trials` or `build` refuses what the user asked for.

    Args:
      error: the error, with its traceback.
      packages: whose `raise` statements count.
    """
    if isinstance(error, _ALWAYS_REFUSALS):
        return True
    is_of_checks = isinstance(error, ValueError | TypeError)
    return is_of_checks and _was_raised_by_a_statement_of(packages, error)


def _was_raised_by_a_statement_of(
    packages: Collection[str], error: BaseException
) -> bool:
    """Whether the code that failed is a `raise` statement in one of `packages`."""
    where = error.__traceback__
    if where is None:
        return False
    while where.tb_next is not None:
        where = where.tb_next
    failed = inspect.getframeinfo(where, context=1)
    if failed.code_context is None or failed.positions is None:  # there is no source
        return False
    # Python can be told to keep no columns; then the line itself must begin so.
    source = failed.code_context[0][failed.positions.col_offset :].lstrip()
    package = where.tb_frame.f_globals.get("__name__", "").split(".")[0]
    return package in packages and source.startswith("raise ")
