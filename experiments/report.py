"""Writes the report on the reference runs and yours: REPORT.md, report.html, tables/, figures/.

Command: make report (into results/local/), or make report-reference, which rewrites the committed
report in results/ from results/reference alone.
"""

import logging
import pathlib
import sys

from absl import flags

from experiments import commands
from identity_matters.report import build, groups
from identity_matters.runs import write_atomically

_README = pathlib.Path("README.md")  # its results follow the reference
_REFERENCE_ONLY = flags.DEFINE_boolean(
    "reference_only", False, "Report the reference alone, beside its directory."
)


def _main(_: list[str]) -> int:
    # Matplotlib warns about missing fonts, which no text here needs.
    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    reference = pathlib.Path(commands.REFERENCE_DIR.value)
    collections = [groups.read("reference", reference)]
    directory = reference.parent
    if not _REFERENCE_ONLY.value:
        directory = pathlib.Path(commands.RESULTS_DIR.value)
        collections.append(groups.read("yours", directory))
        if not collections[-1].runs:
            print(f"{directory} has no finished run: the report shows the reference alone")
    for collection in collections:
        for problem in collection.problems:
            print(f"skipped: {problem}", file=sys.stderr)
    try:
        if _REFERENCE_ONLY.value:
            readme = build.with_results(_README.read_text(encoding="utf-8"), collections[0])
        written = build.write(collections, directory)
        if _REFERENCE_ONLY.value:
            write_atomically(_README, readme)
            written.append(_README)
    except (OSError, ValueError) as error:
        print(f"report: {error}; the old report was not touched", file=sys.stderr)
        return 1
    print("\n".join(map(str, written)))
    return 0


if __name__ == "__main__":
    commands.run(_main)
