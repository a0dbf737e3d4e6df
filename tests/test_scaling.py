"""The benchmark of dividing a step: its settings, its verdict, and one tiny run of two devices."""

import pytest

from benchmarks import scaling
from experiments.configs import benchmark_scaling

SETTINGS = benchmark_scaling.get_config().to_dict()
SCALE = SETTINGS.pop("scale")
TINY = {
    "device_counts": (2,),
    "net": {"blocks_per_stage": (1, 1, 1), "widths": (4, 4, 4)},
    "batch_examples": 4,
    "examples": 8,
    "image_pixels_per_side": 8,
    "steps_per_round": 1,
    "rounds": 1,
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"variant": "gpu"}, "variant must be virtual_devices, got 'gpu'"),
        ({"device_counts": ()}, "device_counts must be numbers of 2 or more"),
        ({"device_counts": (1, 2)}, "device_counts must be numbers of 2 or more"),
        (
            {"device_counts": (3,)},
            "batch_examples must be a multiple of device_counts, got 64",
        ),
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"largest_overhead": 0}, "largest_overhead must be positive, got 0"),
    ],
)
def test_bad_settings_are_refused_by_name(changes, message):
    with pytest.raises(ValueError, match=message):
        scaling.plan(**{**SETTINGS, **changes})


def test_the_verdict_is_that_of_the_dearest():
    def conclude(*overheads):
        records = [
            {"devices": 2**i, "overhead": overhead, "one_device_step_seconds": 0.5}
            for i, overhead in enumerate(overheads, start=1)
        ]
        return scaling.conclude({"largest_overhead": 1.5}, records)

    good, bad = conclude(0.9, 1.5), conclude(0.9, 1.5001)
    assert (good.verdict, bad.verdict) == ("reproduced", "not reproduced")
    assert good.metrics["overhead/4_devices"] == 1.5


def test_two_devices_find_what_one_finds(key):
    (cell,) = scaling.plan(**{**SETTINGS, **TINY})
    result = scaling.measure(cell, key)
    ((alone, shared),) = result["round_seconds"]
    assert result["overhead"] == pytest.approx(shared / alone)
    assert result["step_seconds"] == shared
    assert result["first_loss"] > 0


def test_steps_that_are_not_the_same_are_not_compared(key, monkeypatch):
    class Odd(scaling._Worker):
        def __init__(self, devices, settings):
            self.first_loss = float(devices)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(scaling, "_Worker", Odd)
    (cell,) = scaling.plan(**{**SETTINGS, **TINY})
    with pytest.raises(RuntimeError, match="these are not the same steps"):
        scaling.measure(cell, key)
