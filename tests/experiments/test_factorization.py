"""experiments/factorization.py: what is measured of large targets, and of your own."""

import numpy as np
import pytest

from experiments import factorization
from experiments.measurements import factorization as measurements
from identity_matters.linear.factorization import relative_product_error
from tests.measured import build_all, judged, trials


def test_large_cells_are_measured_by_the_cheap_methods_alone():
    cells = trials(factorization, "random", dimensions=(2, 64), depths=(64, 4096))
    by_dimension = {cell["dimension"]: cell for cell in cells}
    assert by_dimension.keys() == {2, 64, 256}
    # 4096 layers of 64 x 64 numbers of 8 bytes are 134 MB, 1024 of 256 x 256 are 537
    # MB.
    assert by_dimension[64]["depths"] == (64, 4096)
    assert by_dimension[256]["methods"] == ("svd", "polar")
    smaller = trials(
        factorization, "random", dimensions=(64,), max_stack_megabytes=100.0
    )
    assert smaller[0]["depths"] == (64,)


@pytest.mark.parametrize(("most", "tried"), [(1, False), (2, True)])
def test_a_matrix_of_your_own(tmp_path, most, tried):
    file = tmp_path / "R.npy"
    np.save(file, np.diag([2.0, 0.5]))
    changes = {
        "file": str(file),
        "depths": (8,),
        "path_max_dimension": most,
        "path_iterations": 2,
    }
    (subject,) = build_all(factorization, "file", **changes)
    record = measurements.measure(subject, None)
    assert all(("path" in row["norms"]) == tried for row in record["rows"])
    # ceil(3 log 2) = 3 layers are the fewest; no layer need be more than 2^{1/l} - 1.
    assert [row["depth"] for row in record["rows"]] == [3, 8]
    assert record["rows"][1]["norms"]["psd"] == pytest.approx(2 ** (1 / 8) - 1)
    A = np.load(tmp_path / "R-depth=8.npy")
    assert relative_product_error(A, np.load(file)) < 1e-12
    best = record["rows"][1]["norms"][record["rows"][1]["best_method"]]
    assert np.linalg.norm(A, 2, axis=(1, 2)).max() == pytest.approx(best)
    assert judged(factorization, "file", [record]).verdict == "holds"
    for row in record["rows"]:
        row["norms"] = dict.fromkeys(row["norms"], 5.0)
    assert judged(factorization, "file", [record]).verdict == "undecided"


def test_files_that_hold_no_target_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"'R\.npy' is not a file"):
        build_all(factorization, "file", file="R.npy")
    file = tmp_path / "R.npy"
    file.write_text("1 0\n0 1\n")
    archive = tmp_path / "R.npz"
    np.savez(archive, R=np.eye(2))
    for no_array in (file, archive):
        with pytest.raises(ValueError, match="holds no array of numbers"):
            build_all(factorization, "file", file=str(no_array))
    np.save(file, np.diag([16.0, 1 / 16]))
    with pytest.raises(ValueError, match=r"at least 9 = ceil\(3 gamma\) .*, got 8"):
        build_all(factorization, "file", file=str(file), depths=(8,))
