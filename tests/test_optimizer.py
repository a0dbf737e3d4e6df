import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from identity_matters.training.optimizer import make_optimizer

RATES = [0.5, 0.5, 0.05]
MOMENTUM = 0.9
PENALTY = 0.01


def schedule(step):
    return jnp.asarray(RATES, jnp.float32)[step]


def start(seed):
    rng = np.random.default_rng(seed)
    shapes = {
        "conv": {"kernel": (3, 3, 1, 2), "bias": (2,)},
        "head": {"kernel": (2, 3)},
        "norm": {"scale": (1, 1, 1, 2)},
    }
    return jax.tree.map(
        lambda shape: rng.normal(size=shape).astype(np.float32),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )


def leaves(tree):
    names = (("conv", "kernel"), ("conv", "bias"), ("head", "kernel"), ("norm", "scale"))
    return {f"{module}.{leaf}": np.asarray(tree[module][leaf]) for module, leaf in names}


def three_updates(params, gradients, **settings):
    optimizer = make_optimizer(schedule, momentum=MOMENTUM, weight_decay=PENALTY, **settings)

    @jax.jit
    def run(params):
        state = optimizer.init(params)
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, params)
            params = optax.apply_updates(params, updates)
        return params

    return leaves(run(params))


def tensorflow_momentum(w, gradients, nesterov, penalty):
    """tf.train.MomentumOptimizer in NumPy, for one variable."""
    velocity = np.zeros_like(w)
    for rate, gradient in zip(RATES, gradients, strict=True):
        g = gradient + penalty * w
        velocity = MOMENTUM * velocity + g
        w = w - rate * ((g + MOMENTUM * velocity) if nesterov else velocity)
    return w


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize(
    ("decayed", "penalised"),
    [
        ("convolutions", {"conv.kernel"}),
        ("kernels", {"conv.kernel", "head.kernel"}),
        ("all", {"conv.kernel", "conv.bias", "head.kernel", "norm.scale"}),
    ],
)
def test_three_updates_are_those_of_tensorflow(nesterov, decayed, penalised):
    params, *gradients = (start(seed) for seed in range(4))
    ours = three_updates(params, gradients, nesterov=nesterov, decayed=decayed)
    for name, w in leaves(params).items():
        penalty = PENALTY if name in penalised else 0.0
        expected = tensorflow_momentum(w, [leaves(g)[name] for g in gradients], nesterov, penalty)
        assert ours[name].dtype == np.float32
        np.testing.assert_allclose(ours[name], expected, rtol=1e-5, atol=1e-6)


def test_no_penalty_leaves_weights_without_gradient_alone():
    optimizer = make_optimizer(schedule, momentum=0.9, nesterov=False, weight_decay=0.0)
    params = {"bias": jnp.ones(2, jnp.float32)}
    updates, _ = optimizer.update({"bias": jnp.zeros(2, jnp.float32)}, optimizer.init(params))
    assert not np.any(updates["bias"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"momentum": 1.0}, r"momentum must be 0 or more and below 1, got 1\.0"),
        ({"weight_decay": -1.0}, r"weight_decay must be 0 or more and below 1, got -1\.0"),
        ({"decayed": "biases"}, "must be one of convolutions, kernels, all, got 'biases'"),
    ],
)
def test_bad_settings_are_named(settings, message):
    good = {"momentum": 0.9, "nesterov": False, "weight_decay": 1e-4}
    with pytest.raises(ValueError, match=message):
        make_optimizer(schedule, **{**good, **settings})


def test_a_penalty_on_nothing_is_an_error():
    optimizer = make_optimizer(schedule, momentum=0.9, nesterov=False, weight_decay=1e-4)
    with pytest.raises(ValueError, match=r"0\.0001, but decayed='convolutions' names no parameter"):
        optimizer.init({"kernel": jnp.ones((2, 2), jnp.float32)})
