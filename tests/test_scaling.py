"""The benchmark of dividing a step: its settings, its verdict, and one tiny run of two devices."""

import pytest

from benchmarks import scaling
from experiments.configs import benchmark_scaling

SETTINGS = benchmark_scaling.get_config().to_dict()
SCALE = SETTINGS.pop("scale")
TINY = {
    "device_counts": (2,),
    "net": {"blocks_per_stage": (1, 1, 1), "widths": (16, 16, 16)},
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


def tiny_cell():
    (cell,) = scaling.plan(**{**SETTINGS, **TINY})
    return cell


def test_a_worker_trains_on_as_many_devices_as_it_is_told():
    settings = {name: tiny_cell()[name] for name in TINY if name not in ("device_counts", "rounds")}
    settings |= {"num_classes": 10, "key": [0, 1]}
    # It raises unless it has two; the loss of ten classes is near log 10 = 2.30.
    with scaling._Worker(2, settings) as worker:
        assert worker.loss == pytest.approx(2.3, abs=0.1)
        assert 0 < worker.run() < 10


def fake_workers(monkeypatch, seconds, losses):
    """Workers whose rounds take `seconds` and that find `losses`, by their number of devices."""

    class Fake(scaling._Worker):
        def __init__(self, devices, settings):
            assert "key" in settings
            self.loss = losses[devices]
            self._seconds = iter(seconds[devices])

        def run(self):
            return next(self._seconds)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(scaling, "_Worker", Fake)


def test_rounds_are_compared_in_pairs(key, monkeypatch):
    # Ratios 2, 1.5 and 1; steps of a third of a round.
    fake_workers(monkeypatch, {1: [3, 6, 9], 2: [6, 9, 9]}, {1: 2.3, 2: 2.3001})
    result = scaling.measure({**tiny_cell(), "rounds": 3, "steps_per_round": 3}, key)
    assert result["overhead"] == 1.5
    assert result["one_device_step_seconds"] == 2
    assert result["step_seconds"] == 3


def test_steps_that_are_not_the_same_are_not_compared(key, monkeypatch):
    fake_workers(monkeypatch, {1: [], 2: []}, {1: 2.3, 2: 2.31})
    with pytest.raises(RuntimeError, match="these are not the same steps"):
        scaling.measure(tiny_cell(), key)
