"""The notebooks run from top to bottom, and show what their cells put out."""

import json

import pytest

from tests import forked
from tests.docs.pages import NOTEBOOKS, page_id, read

# Readers run them so; they train, which programs that are compiled quickly do slowly.
pytestmark = pytest.mark.compiled_for_users

LARGEST_NOTEBOOK_BYTES = 1_000_000
NEXT_CELL = "--- the next cell ---"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=page_id)
def test_every_notebook_runs_and_its_outputs_are_those_of_its_cells(path, tmp_path):
    """Text agrees with a fresh run, but for cells that are tagged "varies": a training.

    Every figure is there as an image. To write outputs anew: docs/README.md.
    """
    text = read(path)
    assert len(text) < LARGEST_NOTEBOOK_BYTES
    cells = json.loads(text)["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    counts = [cell["execution_count"] for cell in code]
    assert counts == list(range(1, len(code) + 1)), "not run from top to bottom"
    finished = forked.run_code(as_program(code), tmp_path)
    printed = finished.stdout.split(f"{NEXT_CELL}\n")[:-1]
    assert len(printed) == len(code)
    for cell, fresh in zip(code, printed, strict=True):
        *lines, figures = fresh.splitlines()
        assert int(figures) == images(cell), cell["id"]
        if "varies" not in cell["metadata"].get("tags", []):
            assert lines == stdout(cell).splitlines(), cell["id"]


def as_program(code: list[dict]) -> str:
    """The cells, after each of which come its number of figures and `NEXT_CELL`."""
    lines = ["import matplotlib", "matplotlib.use('agg')"]
    lines += ["from matplotlib import pyplot as plt"]
    for cell in code:
        lines.append("".join(cell["source"]))
        lines.append("print(len(plt.get_fignums()))")
        lines.append("plt.close('all')")
        lines.append(f"print({NEXT_CELL!r})")
    return "\n".join(lines)


def images(cell: dict) -> int:
    """How many images the committed outputs of a cell hold."""
    return sum("image/png" in output.get("data", {}) for output in cell["outputs"])


def stdout(cell: dict) -> str:
    """What a cell has printed, by its committed outputs."""
    streams = [
        output for output in cell["outputs"] if output["output_type"] == "stream"
    ]
    assert all(stream["name"] == "stdout" for stream in streams)
    return "".join("".join(stream["text"]) for stream in streams)
