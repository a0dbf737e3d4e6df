"""Writes the report on the reference runs and yours, with tables and figures.

Command: make report (into results/local/), or make report-reference, which rewrites the
committed report in results/ from results/reference alone.
"""

import logging
import pathlib

from absl import flags

from experiments import commands
from identity_matters import limits
from identity_matters.report import build, collection
from identity_matters.runs import write_atomically

_README = pathlib.Path("README.md")  # its results follow the reference
_REFERENCE_ONLY = flags.DEFINE_boolean(
    "reference_only", False, "Report the reference alone, beside its directory."
)


def _write_with_readme(
    collections: list[collection.Collection], directory: pathlib.Path
) -> list[pathlib.Path]:
    """Writes the report on the reference, and its results into the README.

    Nothing is written if the README cannot be read or lacks a place for them.
    """
    readme = build.with_results(_README.read_text(encoding="utf-8"), collections[0])
    written = build.write(collections, directory, limits.usable_cores())
    write_atomically(_README, readme)
    return [*written, _README]


def _main(_: list[str]) -> int:
    # Matplotlib warns about missing fonts, which no text here needs.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    reference = pathlib.Path(commands.REFERENCE_DIR.value)
    collections = [collection.read("reference", reference)]
    directory = reference.parent
    if not _REFERENCE_ONLY.value:
        directory = pathlib.Path(commands.RESULTS_DIR.value)
        collections.append(collection.read("yours", directory))
        if not collections[-1].runs:
            commands.show(
                f"{directory} has no finished run: the report shows the reference alone"
            )
    for read_runs in collections:
        for problem in read_runs.problems:
            commands.complain(f"skipped: {problem}")
    try:
        if _REFERENCE_ONLY.value:
            written = _write_with_readme(collections, directory)
        else:
            written = build.write(collections, directory, limits.usable_cores())
    except (OSError, ValueError) as error:
        commands.complain(f"report: {error}")
        return 1
    for path in written:
        commands.show(path)
    return 0


if __name__ == "__main__":
    commands.run(_main)
