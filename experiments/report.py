"""Writes the report on the reference runs and yours, with tables and figures.

Command: make report (into results/local/), or make report-reference, which rewrites the
committed report in results/ from results/reference alone, and with it the results in
README.md. With --reference_only and another --reference_dir, the report is written
beside that directory, and README.md stays as it is.
"""

import logging
import pathlib

from absl import flags

from experiments import commands
from identity_matters import code_version, limits
from identity_matters.report import build, collection
from identity_matters.runs import write_atomically

_REFERENCE_ONLY = flags.DEFINE_boolean(
    "reference_only",
    False,
    "Report the reference alone, beside its directory; if it is the committed one, also"
    " in README.md.",
)


def _is_committed(reference: pathlib.Path) -> bool:
    """Whether this is the reference of the repository that the code is in."""
    committed = code_version.REPOSITORY / "results" / "reference"
    return reference.resolve() == committed.resolve()


def _write_with_readme(
    collections: list[collection.Collection], directory: pathlib.Path
) -> list[pathlib.Path]:
    """Writes the report on the committed reference, and its results into the README.

    Nothing is written if the README cannot be read or lacks a place for them.
    """
    path = code_version.REPOSITORY / "README.md"
    readme = build.with_results(path.read_text(encoding="utf-8"), collections[0])
    written = build.write(collections, directory, limits.usable_cores())
    write_atomically(path, readme)
    return [*written, path]


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
        if _REFERENCE_ONLY.value and _is_committed(reference):
            written = _write_with_readme(collections, directory)
        else:
            written = build.write(collections, directory, limits.usable_cores())
    except (OSError, ValueError) as error:
        commands.complain(f"report: {error}")
        return 1
    for path in written:
        commands.show(path)
    if _REFERENCE_ONLY.value and not _is_committed(reference):
        commands.show(
            f"no README is changed: {reference} is not the committed reference"
        )
    return 0


if __name__ == "__main__":
    commands.run(_main)
