"""Replaces a report file by file.

A kill at any moment leaves pages whose links lead somewhere.
"""

import contextlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator

from identity_matters import runs

_PREFIX = ".report-"
_PAGES = ("report.html", "REPORT.md")
_PARTS = ("figures", "tables")  # what the pages link to


@contextlib.contextmanager
def prepared(directory: pathlib.Path) -> Iterator[pathlib.Path]:
    """A new directory for the report, whose content replaces that of `directory`.

    If the report cannot be built, nothing is replaced. Figures and tables go first,
    then the pages that name them. Only then is what no page names any more deleted.
    Directories that killed reports left behind are removed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _remove_left_over(directory)
    with (
        tempfile.TemporaryDirectory(dir=directory, prefix=_PREFIX) as made,
        contextlib.ExitStack() as held,
    ):
        aside = pathlib.Path(made)
        runs.lock_path(aside, held)
        yield aside
        _replace(directory, aside)


def _replace(directory: pathlib.Path, aside: pathlib.Path) -> None:
    """Moves a report that was made `aside` over that in `directory`; see `prepared`."""
    kept = {part: {path.name for path in (aside / part).iterdir()} for part in _PARTS}
    for part in _PARTS:
        (directory / part).mkdir(exist_ok=True)
        for file in sorted(kept[part]):
            os.replace(aside / part / file, directory / part / file)
    for name in _PAGES:
        os.replace(aside / name, directory / name)
    for part in _PARTS:
        for path in (directory / part).glob("*.*"):
            if path.suffix in (".svg", ".csv") and path.name not in kept[part]:
                path.unlink()


def _remove_left_over(directory: pathlib.Path) -> None:
    """Removes the directories of reports that were killed, not of those at work."""
    for path in directory.glob(f"{_PREFIX}*"):
        with (
            contextlib.suppress(runs.RunError, OSError),
            contextlib.ExitStack() as held,
        ):
            runs.lock_path(path, held)
            shutil.rmtree(path)
