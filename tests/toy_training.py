"""A tiny problem for the tests of training.

4x4 images, one convolution, dropout, running means.
"""

import jax
import jax.numpy as jnp
import numpy as np

from identity_matters.batches import Arrays
from identity_matters.train import loop
from identity_matters.train.step import (
    AXIS_NAME,
    Task,
    momentum_sgd,
    relative_schedule,
)

TRAIN_EXAMPLES = 20
TEST_EXAMPLES = 13
CLASSES = 3
FLOPS_PER_EXAMPLE = 1e6


def init(key):
    # One draw for all parameters, as each shape would be compiled separately.
    weights = jax.random.normal(key, (64,), jnp.float32)
    return {
        "params": {
            "stem": {"kernel": 0.3 * weights[:36].reshape(3, 3, 1, 4)},
            "head": {
                "kernel": 0.3 * weights[36:52].reshape(4, 4),
                "bias": jnp.zeros(4, jnp.float32),
            },
        },
        "fixed": {"projection": weights[52:].reshape(4, CLASSES)},
        "batch_stats": {"mean": jnp.zeros((), jnp.float32)},
    }


def make_apply(axis_name: str | None = AXIS_NAME):
    """The net.

    If `axis_name` is a mapped axis, its running mean is over the whole batch.
    """

    def apply(variables, x, *, train, keys=None):
        params = variables["params"]
        h = jax.lax.conv_general_dilated(
            x,
            params["stem"]["kernel"],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        h = jnp.mean(jax.nn.relu(h), axis=(1, 2))
        if train:
            bits = (
                jax.random.key_data(keys)[:, :1]
                >> jnp.arange(4, dtype=jnp.uint32)[None]
            )
            h = jnp.where(bits % 2 == 1, h, 0)
        head = h @ params["head"]["kernel"] + params["head"]["bias"][None]
        mean = variables["batch_stats"]["mean"]
        if train:
            now = jnp.mean(x)
            now = jax.lax.pmean(now, axis_name) if axis_name else now
            mean = 0.5 * mean + 0.5 * now
        ratio = jnp.linalg.norm(head, axis=1) / (1 + jnp.linalg.norm(h, axis=1))
        logits = (h + head) @ variables["fixed"]["projection"]
        return logits, {"residual_ratio": ratio[None], "batch_stats": {"mean": mean}}

    return apply


def train_input(images, keys):
    """Scaled pixels with a random brightness for each example."""
    # The bits of a key are random enough here; drawing from it takes long to compile.
    brightness = (jax.random.key_data(keys)[:, 1] % 256).astype(jnp.float32) / 256
    return eval_input(images) + 0.1 * brightness[:, None, None, None]


def eval_input(images):
    return images.astype(jnp.float32) / 255


def make_task(**changed) -> Task:
    rng = np.random.default_rng(0)
    schedule = relative_schedule(schedule="step", steps=12, boundary_steps=(5,))
    arrays = {
        "train_images": rng.integers(0, 256, (TRAIN_EXAMPLES, 4, 4, 1), np.uint8),
        "train_labels": rng.integers(0, CLASSES, TRAIN_EXAMPLES),
        "test_images": rng.integers(0, 256, (TEST_EXAMPLES, 4, 4, 1), np.uint8),
        "test_labels": rng.integers(0, CLASSES, TEST_EXAMPLES),
    }
    arrays |= {name: changed.pop(name) for name in arrays if name in changed}
    settings = {
        "init": init,
        "apply": make_apply(),
        "train_input": train_input,
        "eval_input": eval_input,
        "data": Arrays(**arrays),
        "optimizer": momentum_sgd(
            schedule, momentum=0.9, nesterov=False, weight_decay=1e-3
        ),
        "schedule": schedule,
        "learning_rate": 0.1,
        "flops_per_example": FLOPS_PER_EXAMPLE,
    }
    return Task(**{**settings, **changed})


class Log(loop.Log):
    """Asks to stop once `stop_at_step` has been reached."""

    def __init__(self, records=(), stop_at_step=None):
        super().__init__()
        self.records = list(records)
        self.steps_seen = []
        self.phases = []
        self._stop_at_step = stop_at_step

    def stop_requested(self):
        reached = self.steps_seen[-1] if self.steps_seen else 0
        return self._stop_at_step is not None and reached >= self._stop_at_step

    def phase(self, name, step, steps):
        self.phases.append((name, step))

    def progress(self, step, loss, seconds_left):
        assert seconds_left >= 0
        if loss is not None:
            self.steps_seen.append(step)
