"""The trials and the verdict of experiments/factorization.py; see test_experiments for a run."""

import jax
import numpy as np
import pytest

from experiments import factorization as arm
from identity_matters.linear.factorization import relative_product_error


def settings(variant="random", **changes):
    config = {**arm.get_config(variant).to_dict(), **changes}
    del config["scale"]
    return config


def build_all(**config):
    _, subjects = arm.EXPERIMENT.prepare(config, settings())
    return subjects


def test_large_cells_are_measured_by_the_cheap_methods_alone():
    trials = arm.trials(**settings(dimensions=(2, 64), depths=(64, 4096)))
    by_dimension = {trial["dimension"]: trial for trial in trials}
    assert by_dimension.keys() == {2, 64, 256}
    assert "path" in by_dimension[2]["methods"] and "path" not in by_dimension[64]["methods"]
    # 4096 layers of 64 x 64 numbers of 8 bytes are 134 MB, of 256 x 256 they are 2.1 GB.
    assert by_dimension[64]["depths"] == (64, 4096)
    assert by_dimension[256]["methods"] == ("svd", "polar")
    smaller = arm.trials(**settings(dimensions=(64,), max_stack_megabytes=100.0))
    assert smaller[0]["depths"] == (64,)


@pytest.mark.parametrize(("most", "tried"), [(1, False), (2, True)])
def test_a_matrix_of_your_own(tmp_path, most, tried):
    file = tmp_path / "R.npy"
    np.save(file, np.diag([2.0, 0.5]))
    own = {"file": str(file), "depths": (8,), "path_max_dimension": most, "path_iterations": 2}
    (subject,) = build_all(**settings("file", **own))
    assert ("path" in subject["methods"]) == tried
    record = arm.measure(subject, None)
    # ceil(3 log 2) = 3 layers are the fewest; no layer need be more than 2^{1/l} - 1.
    assert [row["depth"] for row in record["rows"]] == [3, 8]
    assert record["rows"][1]["norms"]["psd"] == pytest.approx(2 ** (1 / 8) - 1)
    A = np.load(tmp_path / "R-depth=8.npy")
    assert relative_product_error(A, np.load(file)) < 1e-12
    best = record["rows"][1]["norms"][record["rows"][1]["best_method"]]
    assert np.linalg.norm(A, 2, axis=(1, 2)).max() == pytest.approx(best)
    assert arm.verdict(settings("file"), [record]).verdict == "holds"
    for row in record["rows"]:
        row["norms"] = dict.fromkeys(row["norms"], 5.0)
    assert arm.verdict(settings("file"), [record]).verdict == "undecided"


def half_turn(**changes):
    """The record of R = -I in the plane at 8 layers, by the polar factorization."""
    (common,) = build_all(
        **settings("negative_even", dimensions=(2,), strengths=(0.0,), path_iterations=1)
    )
    trial = {**common, "depths": (8,), "least_depth_too": False, "methods": ("polar",)}
    record = {**trial, **arm.measure(trial, jax.random.key(0))}
    (row,) = record["rows"]
    return {**record, "rows": [{**row, **changes}]}


@pytest.mark.parametrize(
    ("variant", "changes", "says"),
    [
        ("negative_even", {}, "holds"),
        ("negative_even", {"relative_product_errors": {"polar": 1e-9}}, "undecided"),
        ("negative_even", {"bound_v3": 0.39}, "undecided"),
        ("negative_even", {"bound_iclr2017": 0.39}, "undecided"),
        ("negative_even", {"bound_polar": 0.39}, "undecided"),
        # A factorization that beats what none can beat, and one that leaves something open.
        ("negative_even", {"best_over_lower_bound": 0.999}, "undecided"),
        ("negative_even", {"best_over_lower_bound": 1.002}, "undecided"),
        # Only targets that are solved are asked to be optimal.
        ("negative_odd", {"best_over_lower_bound": 1.2}, "holds"),
        ("normal", {"best_over_lower_bound": 1.2}, "undecided"),
    ],
)
def test_each_criterion_flips_the_verdict(variant, changes, says):
    assert arm.verdict(settings(variant), [half_turn(**changes)]).verdict == says


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "unitary"}, "variant must be one of .*, got 'unitary'"),
        ({"dimensions": (2, 0)}, "dimensions must be above 0, got 0"),
        ({"depths": (2.5,)}, "depths must hold whole numbers, got 2.5"),
        ({"ascents": -1}, "ascents must be above -1, got -1"),
        ({"path_starts": 0}, "path_starts must be above 0, got 0"),
        ({"large_methods": ("qr",)}, "large_methods must be among .*, got 'qr'"),
        ({"variant": "ill_conditioned", "strengths": (0.5,)}, "condition number .* got 0.5"),
    ],
)
def test_refused_before_anything_is_measured(change, message):
    with pytest.raises(ValueError, match=message):
        build_all(**settings(**change))
    with pytest.raises(ValueError, match="leave nothing to measure"):
        build_all(**settings(strengths=()))


def test_files_that_hold_no_target_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"got 'R\.npy', which is no file"):
        build_all(**settings("file", file="R.npy"))
    file = tmp_path / "R.npy"
    file.write_text("1 0\n0 1\n")
    archive = tmp_path / "R.npz"
    np.savez(archive, R=np.eye(2))
    for no_array in (file, archive):
        with pytest.raises(ValueError, match="holds no array of numbers"):
            build_all(**settings("file", file=str(no_array)))
    np.save(file, np.diag([16.0, 1 / 16]))
    with pytest.raises(ValueError, match=r"at least 9 = ceil\(3 gamma\) .*, got 8"):
        build_all(**settings("file", file=str(file), depths=(8,)))
