"""The update rule against TensorFlow's in NumPy, and learning rates by hand."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict, unflatten_dict

from identity_matters.train.step import momentum_sgd, relative_schedule

RATES = [0.5, 0.5, 0.05]
MOMENTUM = 0.9
PENALTY = 0.01


SHAPES = {
    "conv.kernel": (3, 3, 1, 2),
    "conv.bias": (2,),
    "head.kernel": (2, 3),
    "norm.scale": (1, 1, 1, 2),
}


def start(seed):
    rng = np.random.default_rng(seed)
    flat = {
        name: rng.normal(size=shape).astype(np.float32)
        for name, shape in SHAPES.items()
    }
    return unflatten_dict(flat, sep=".")


def tensorflow_momentum(w, gradients, nesterov, penalty):
    """tf.train.MomentumOptimizer in NumPy, for one variable."""
    velocity = np.zeros_like(w)
    for rate, gradient in zip(RATES, gradients, strict=True):
        g = gradient + penalty * w
        velocity = MOMENTUM * velocity + g
        w = w - rate * ((g + MOMENTUM * velocity) if nesterov else velocity)
    return w


@pytest.mark.parametrize(
    ("nesterov", "decayed", "penalised"),
    [
        (False, "convolutions", {"conv.kernel"}),
        (True, "kernels", {"conv.kernel", "head.kernel"}),
        (False, "all", {"conv.kernel", "conv.bias", "head.kernel", "norm.scale"}),
    ],
)
def test_three_updates_are_those_of_tensorflow(nesterov, decayed, penalised):
    params, *gradients = (start(seed) for seed in range(4))
    optimizer = momentum_sgd(
        lambda step: jnp.asarray(RATES, jnp.float32)[step],
        momentum=MOMENTUM,
        weight_decay=PENALTY,
        nesterov=nesterov,
        decayed=decayed,
    )

    @jax.jit
    def run(params):
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params

    ours, *given = (flatten_dict(tree, sep=".") for tree in (run(params), *gradients))
    for name, w in flatten_dict(params, sep=".").items():
        penalty = PENALTY if name in penalised else 0.0
        expected = tensorflow_momentum(w, [g[name] for g in given], nesterov, penalty)
        assert ours[name].dtype == np.float32
        np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-6)


def test_a_penalty_on_nothing_is_an_error():
    optimizer = momentum_sgd(0.1, momentum=0.9, nesterov=False, weight_decay=1e-4)
    with pytest.raises(ValueError, match="decayed='convolutions' names no parameter"):
        optimizer.init({"kernel": jnp.ones((2, 2), jnp.float32)})


PAPER = {"schedule": "step", "boundary_steps": (30_000, 50_000)}
TWELVE = {"steps": 12}


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        (PAPER, {0: 1, 29_999: 1, 30_000: 0.1, 49_999: 0.1, 50_000: 0.01}),
        # A quarter, a third and a half of the way: (1 + cos(pi/4))/2, 3/4, 1/2 of the
        # largest rate.
        (
            {"schedule": "cosine", **TWELVE},
            {0: 1, 3: 0.8535534, 4: 0.75, 6: 0.5, 12: 0},
        ),
        (
            {"schedule": "cosine", "warmup_steps": 4, **TWELVE},
            {0: 0.25, 1: 0.5, 3: 1, 4: 1, 8: 0.5, 12: 0},
        ),
        # Boundaries count from the start of the run, not from the end of the warm-up.
        (
            {
                "schedule": "step",
                "boundary_steps": (5,),
                "warmup_steps": 4,
            },
            {0: 0.25, 3: 1, 4: 1, 5: 0.1},
        ),
        # Integers of 8 bits do not overflow at 1,000 - 8, nor at step 504.
        (
            {"schedule": "cosine", "steps": 1_000, "warmup_steps": np.int8(8)},
            {3: 0.5, 504: 0.5},
        ),
        # A short run may stop before a boundary.
        ({**PAPER, "steps": 10}, {9: 1}),
    ],
)
def test_rates_over_the_largest_by_hand(settings, rates):
    schedule = relative_schedule(**{"steps": 90_000, **settings})
    values = jax.jit(jax.vmap(schedule))(jnp.asarray(list(rates), jnp.int32))
    np.testing.assert_allclose(values, list(rates.values()), rtol=1e-6, atol=1e-7)


SGD = functools.partial(momentum_sgd, 0.1, nesterov=False)
STEP = functools.partial(relative_schedule, steps=10)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (SGD, {"momentum": 1.0}, r"momentum must be 0 or more and below 1, got 1\.0"),
        (
            SGD,
            {"weight_decay": -1.0},
            r"weight_decay must be 0 or more and below 1, got -1\.0",
        ),
        (
            SGD,
            {"decayed": "biases"},
            "must be one of convolutions, kernels, all, got 'biases'",
        ),
        (
            STEP,
            {"schedule": "steps"},
            "must be one of step, cosine, constant, got 'steps'",
        ),
        (STEP, {"steps": 0}, "steps must be at least 1, got 0"),
        (
            STEP,
            {"warmup_steps": 10},
            "warmup_steps must be from 0 to below steps=10, got 10",
        ),
        (
            STEP,
            {"decay_factor": 1.5},
            r"decay_factor must be above 0 and at most 1, got 1\.5",
        ),
        (
            STEP,
            {"boundary_steps": (5, 5)},
            r"ascend from above warmup_steps=0, got \(5, 5\)",
        ),
        (
            STEP,
            {"schedule": "cosine", "boundary_steps": (5,)},
            r"got \(5,\) for 'cosine'",
        ),
    ],
)
def test_bad_settings_are_named(make, settings, message):
    good = (
        {"momentum": 0.9, "weight_decay": 1e-4} if make is SGD else {"schedule": "step"}
    )
    with pytest.raises(ValueError, match=message):
        make(**{**good, **settings})
