"""The experiment on ReLU residual nets, small."""

import pytest

from experiments import relu
from tests import measured

SMALL = {
    "origin": {
        "nets": ((1, 2, 2, False),),
        "problems": 2,
    },
    "dead_units": {"nets": ((1, 1, 1), (2, 1, 1)), "samples": 2000},
    "search": {
        "nets": ((1, 1, 2, False, 8),),
        "problems": 4,
        "starts": 2,
        "steps": 40,
        "control.depths": (2,),
        "control.problems": 2,
    },
    "gradient_ratio": {
        "nets": ((1, 4, 2, True),),
        "norms": (0.1, 0.5),
        "samples": 20,
        "searched": 2,
        "steps": 20,
    },
    "noise": {
        "depths": (1,),
        "widths": (1, 8),
        "biases": (False,),
        "starts": 6,
        "updates_per_record": 20,
    },
}
EXPECTED = {
    "origin": "counterexample",
    "dead_units": "counterexample",
    "search": "counterexample",
    "gradient_ratio": "holds",
    "noise": "reproduced",
}


# One test a variant, so that workers in parallel measure each of them once.
@pytest.mark.parametrize("variant", relu.VARIANTS)
def test_the_verdict_is_that_of_the_numbers(variant):
    config = measured.settings(relu, variant, **SMALL[variant])
    records = measured.measure_all(relu, config)
    if variant == "search":
        # So few starts need not meet a minimum that can be proved.
        reference = measured.reference("relu/search")
        records[0]["certificates"] = reference.records[1]["certificates"][:1]
    found = relu.verdict(config, records)
    assert found.verdict == EXPECTED[variant], found.metrics
    assert found.claim == relu.CLAIMS[variant]
    if variant == "search":
        config["least_proved_minima"] = 2
        assert relu.verdict(config, records).verdict == "undecided"
        assert found.metrics["linear_starts"] == 12
    if variant == "noise":
        for width in (1, 8):
            ends = [f"{end}_share_at_width_{width}" for end in ("optimal", "stalled", "unfinished")]
            assert sum(found.metrics[end] for end in ends) == pytest.approx(1.0)
            # Three noisy scales, six starts each.
            assert found.metrics[f"starts_at_width_{width}"] == 18
