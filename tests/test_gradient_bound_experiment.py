"""The attacks on eq. (2.3) at small sizes, and verdicts that can fail."""

import jax
import pytest

from experiments import gradient_bound as arm
from tests import measured

SMALL = {
    "random.points": 200,
    "random.batch_points": 40,
    "random.widths": (2,),
    "random.depth_caps": (3,),
    "singular.points": 200,
    "singular.widths": (2,),
    "search.widths": (1,),
    "search.depths": (2,),
    "search.taus": (0.5,),
    "search.starts": 2,
    "search.steps": 100,
    "tight.widths": (2,),
    "tight.depths": (1, 3),
    "tight.taus": (0.25, 0.5),
    "scaling.width": 2,
    "scaling.max_depth": 3,
    "scaling.points": 40,
}


@pytest.fixture(scope="module")
def runs():
    """Of one printed form and of the corrected one: a search is compiled for each."""
    configs = {name: measured.settings(arm, name, **SMALL) for name in ("v3", "corrected")}
    return {v: (config, measured.measure_all(arm, config)) for v, config in configs.items()}


def measure_kind(variant, kind, **changes):
    config = measured.settings(arm, variant, **SMALL, **changes)
    (trial,) = [t for t in arm.trials(**config) if t["kind"] == kind]
    return arm.EXPERIMENT.measured(trial, arm.build(**trial), jax.random.key(0))


def test_verdicts_and_what_they_count(runs):
    printed, corrected = (arm.verdict(*runs[variant]) for variant in ("v3", "corrected"))
    assert (printed.verdict, corrected.verdict) == ("counterexample", "holds")
    assert printed.metrics["points"] == corrected.metrics["points"] == 200
    assert printed.metrics["failures"] > 0 == corrected.metrics["failures"]
    # The hand example, in float64 by the general code.
    assert printed.metrics["smallest_squared_gradient"] == 16
    assert printed.metrics["smallest_right_hand_side"] == 32
    # Shares of failures name their distribution.
    drawn = [printed.metrics[f"{name}_sigma_norm_drawn"] for name in ("least", "largest")]
    assert drawn == pytest.approx([1e-3, 1e3])
    assert printed.metrics["largest_tau_drawn"] == 0.99
    assert printed.metrics["largest_depth_drawn"] == 3
    # Two thirds of the targets are near a product of positive determinant, a third is Gaussian.
    assert 10 < printed.metrics["negative_determinants_percent"] < 60
    # Singular data are for the corrected form, which is tight there.
    assert "singular_points" not in printed.metrics
    assert corrected.metrics["singular_points"] == 200
    assert corrected.metrics["singular_failures"] == 0
    assert corrected.metrics["singular_largest_right_over_left"] >= 0.99


@pytest.mark.parametrize(
    ("variant", "kind", "change", "says"),
    [
        ("corrected", "random", {"failures": 1}, "counterexample"),
        ("corrected", "random", {"points": 199}, "undecided"),
        ("corrected", "singular", {"failures": 1}, "counterexample"),
        ("corrected", "singular", {"points": 199}, "undecided"),
        ("corrected", "search", {"largest_ratios": [1.0 + 1e-6]}, "counterexample"),
        ("corrected", "tight", {"largest_error": 1e-11}, "undecided"),
        # A printed form is refuted by an exact counterexample and no other.
        ("v3", "exact", {"smallest": None, "smallest_with_sigma_1": None}, "undecided"),
    ],
)
def test_each_attack_flips_the_verdict(runs, variant, kind, change, says):
    config, records = runs[variant]
    changed = [{**r, **change} if r["kind"] == kind else r for r in records]
    assert arm.verdict(config, changed).verdict == says


# s (1-tau)^{-(l-1)} = 2 * 4, s = 2, and 1; to a few roundings.
@pytest.mark.parametrize(
    ("variant", "ratio", "slope", "largest"),
    [("iclr2017", 8.0, 1, 4.0), ("v3", 2.0, 1, 1.0), ("corrected", 1.0, 0, 1.0)],
)
def test_ratios_at_the_tight_family_and_as_the_data_grow(variant, ratio, slope, largest):
    where = {"depth": 3, "tau": 0.5, "scale": 2.0}
    rows = measure_kind(variant, "tight")["rows"]
    (row,) = [row for row in rows if where.items() <= row.items()]
    assert row["ratio"] == pytest.approx(ratio, rel=1e-13)
    scaling = measure_kind(variant, "scaling")
    slopes = [scaling["least_slope"], scaling["largest_slope"]]
    assert slopes == pytest.approx([slope, slope], abs=1e-12)
    assert scaling["failing_fractions"][-1] == slope
    assert arm.largest_ratio(variant, 3, 0.5) == largest


def test_counts_add_up():
    bins = {"random.histogram_log10": (-3.0, 3.0), "random.histogram_bins": 6}
    found = measure_kind("v3", "random", max_tau=0.9, **bins)
    failures, counts = found["failures"], found["histogram_counts"]
    assert found["points"] == sum(counts) == 200
    assert 0 < failures == sum(found["failures_by_sampler"].values())
    # The three bins right of 0 hold exactly what failed.
    assert failures == sum(counts[3:])


def test_figures_draw_what_was_measured(runs):
    distribution, tight = measured.draw(arm, runs)
    for form in runs:
        share = sum(row["points_percent"] for row in distribution if row["variant"] == form)
        assert share == pytest.approx(100)
    assert len(tight) == 2 * 2 * 2 * 3
