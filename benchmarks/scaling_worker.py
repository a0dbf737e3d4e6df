"""The training of benchmarks/scaling.py on all virtual devices of this process; see there.

Reads one JSON value a line: first the settings, answered with the number of devices and the loss
that a first round of steps ends with; then anything at all, answered with the seconds that a round
of steps takes.
"""

import json
import sys

import jax

from benchmarks import train_step

# Table 1's recipe does not matter here; what makes a whole step does.
_STEP = {"compute_dtype": "float32", "steps_per_dispatch": 1, "pad_pixels_per_side": 2}
_LEARNING_RATE = 0.01


def main() -> None:
    settings = json.loads(sys.stdin.readline())
    key = jax.random.wrap_key_data(jax.numpy.asarray(settings.pop("key"), "uint32"))
    settings = {**settings, **settings.pop("net"), **_STEP, "learning_rate": _LEARNING_RATE}
    work, _ = train_step.make_task(key, settings)
    training = train_step.Training(work, key, jax.devices(), settings)
    training.run()  # compiles, and fills caches
    sums = training.parallel.read(training.sums)
    loss = float(sums["loss"][-1] / sums["examples"][-1])
    _answer({"devices": jax.device_count(), "loss": loss})
    for _ in sys.stdin:
        _answer({"seconds": training.run()})


def _answer(value: dict) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
