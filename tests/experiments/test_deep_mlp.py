"""Perceptrons against NumPy, and how experiments/deep_mlp.py trains them."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.measurements import deep_mlp
from identity_matters import nets
from identity_matters.nets import apply_net, init_variables, mlp
from tests.tables import by_name

IMAGES = np.random.default_rng(0).normal(size=(7, 2, 3, 1)).astype(np.float32)
VECTORS = IMAGES.reshape(7, 6)


def unrolled(kernels, x, identity, activation):
    """Outputs and the list of h_1 ... h_{l-1}, from a loop over matrices."""
    hidden = []
    for j, W in enumerate(kernels[:-1]):
        argument = np.maximum(x, 0) if j and activation == "relu" else x
        y = argument @ W
        x = x + y if identity and W.shape[0] == W.shape[1] else y
        hidden.append(x)
    argument = np.maximum(x, 0) if activation == "relu" else x
    return argument @ kernels[-1], hidden


# d = 6 inputs: the first layer is square at width 6; at width 5 it is not, and has no
# identity.
@by_name(
    {"depth": 2, "width": 6, "identity": True, "activation": "relu"},
    {"depth": 4, "width": 6, "identity": True, "activation": "relu"},
    {"depth": 4, "width": 5, "identity": True, "activation": "linear"},
    {"depth": 5, "width": 6, "identity": False, "activation": "relu"},
    {"depth": 5, "width": 5, "identity": False, "activation": "linear"},
)
def test_scan_equals_a_numpy_loop(depth, width, identity, activation):
    settings = {
        "identity": identity,
        "activation": activation,
        "initialization": "standard",
    }
    net = mlp.Mlp(num_classes=3, depth=depth, width=width, **settings)
    variables = init_variables(net, jax.random.key(1), IMAGES.shape[1:])
    apply = jax.jit(functools.partial(apply_net, net, train=False))
    logits, intermediates = apply(variables, IMAGES)
    kernels = mlp.kernels_in_order(variables["params"])
    shapes = [(6, width), *[(width, width)] * (depth - 2), (width, 3)]
    assert [kernel.shape for kernel in kernels] == shapes
    expected, hidden = unrolled(
        kernels, VECTORS.astype(np.float64), identity, activation
    )
    # float32 against float64, through at most five layers.
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    _, passed = jax.jit(mlp.forward)(variables, VECTORS)
    norms = [np.linalg.norm(h, axis=1) for h in hidden]
    np.testing.assert_allclose(passed["norm"], norms, rtol=1e-5)
    np.testing.assert_allclose(passed["last_hidden"], hidden[-1], rtol=1e-4, atol=1e-5)
    assert intermediates["residual_ratio"].shape == (depth - 2 + (width == 6), 7)


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_initial_weights(activation):
    gain = {"relu": math.sqrt(2), "linear": 1.0}[activation]
    images = (8, 8, 1)
    for initialization, scale in (
        ("near_zero", 1 / 70),
        ("standard", gain),
        ("orthogonal", gain),
    ):
        settings = {
            "identity": False,
            "activation": activation,
            "initialization": initialization,
        }
        net = mlp.Mlp(num_classes=10, depth=70, width=64, initial_scale=0.5, **settings)
        variables = init_variables(net, jax.random.key(0), images)
        square = mlp.square_kernels(variables["params"])
        assert square.shape == (69, 64, 64)
        assert len(np.unique(square[:, 0, 0])) == 69
        if initialization == "orthogonal":
            gram = np.swapaxes(square, 1, 2) @ square
            expected = np.broadcast_to((0.5 * gain) ** 2 * np.eye(64), gram.shape)
            np.testing.assert_allclose(gram, expected, atol=1e-5)
        else:
            # 280,000 numbers: their standard deviation is known to 0.15 %.
            assert np.std(square) == pytest.approx(0.5 * scale / 8, rel=0.01)
        # 640 numbers with standard deviation 1/64 in every net, which is known to 3 %.
        assert np.std(variables["params"]["last"]["kernel"]) == pytest.approx(
            1 / 64, rel=0.1
        )


def test_effective_dimension_by_hand():
    """1 on a line, and k evenly on k axes.

    On two axes with weights 3/4 and 1/4 it is 1/(9/16 + 1/16) = 1.6.
    """
    dimension = jax.jit(mlp.effective_dimension)
    line = np.outer([1.0, -5.0, 1e-30], [3.0, 4.0]).astype(np.float32)
    assert dimension(line) == pytest.approx(1.0, rel=1e-6)
    assert dimension(np.eye(4, dtype=np.float32)) == 4.0
    uneven = np.array([[1.0, 0], [2, 0], [-3, 0], [0, 9]], np.float32)
    assert dimension(uneven) == pytest.approx(1.6, rel=1e-6)
    assert np.isnan(dimension(np.zeros((2, 2), np.float32)))


# The experiment.

LABELS = np.random.default_rng(0).integers(0, 3, 48).astype(np.int32)
X = np.random.default_rng(1).normal(size=(48, 2, 2, 1)).astype(np.float32)
SPLIT = deep_mlp.Split(X, LABELS, 3, 0.5, 10.0)
TRAIN = {
    "rates_times_depth": (1.0,),
    "momentum": 0.9,
    "pilot_steps": 2,
    "batch_examples": 8,
}
MODEL = {"depth": 5, "width": 4, "activation": "relu", "identity": True}


def make_training(step_count=6, split=SPLIT, **changes):
    net = nets.make_net("mlp", num_classes=split.num_classes, **{**MODEL, **changes})
    return deep_mlp.Training(
        split, net, {**TRAIN, "step_count": step_count}, jax.random.key(0)
    )


def test_no_map_is_better_than_least_squares():
    # One feature, constant 1: the best constant is (2/3, 1/3), its mean loss 4/9, its
    # error 1/3.
    by_hand = deep_mlp.linear_optimum(np.ones((3, 1)), np.array([0, 0, 1]), 2)
    assert by_hand == pytest.approx((4 / 9, 100 / 3))


def test_updates_are_momentum_descent_of_the_squared_error():
    """Two updates against NumPy, with gradients by automatic differentiation."""
    training = make_training(step_count=2)
    state, losses, frozen = training.advance(training.start(), 0.5, 0, 2)
    fixed = training.variables["fixed"]

    def loss_of(params, indices):
        x = jnp.asarray(X)[indices].reshape(8, 4)
        labels = jnp.asarray(LABELS)[indices]
        logits, _ = mlp.forward({"params": params, "fixed": fixed}, x)
        return jnp.mean(jnp.sum((logits - jnp.eye(3)[labels]) ** 2, axis=1))

    params = training.variables["params"]
    velocity = jax.tree.map(np.zeros_like, params)
    # The rate is 0.5 / depth, and the cosine over two updates halves it for the second
    # one.
    value_and_gradient = jax.jit(jax.value_and_grad(loss_of))
    gradients = []
    for indices, rate, loss in zip(training.indices, (0.1, 0.05), losses, strict=True):
        value, gradient = value_and_gradient(params, indices)
        assert loss == pytest.approx(float(value), rel=1e-5)
        gradients.append(jax.tree.map(np.asarray, gradient))
        velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, gradients[-1])
        params = jax.tree.map(
            lambda p, v, rate=rate: p - np.float32(rate) * v, params, velocity
        )
    for ours, theirs in zip(
        jax.tree.leaves(state["params"]), jax.tree.leaves(params), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)
    assert not frozen
    at_start = [np.linalg.norm(kernel) for kernel in mlp.kernels_in_order(gradients[0])]
    np.testing.assert_allclose(training.gradient_norms(), at_start, rtol=1e-4)


def test_what_a_net_does_is_over_every_example():
    training = make_training(identity=True, initial_scale=0.0)
    evaluation = training.evaluate(training.start())
    x = X.reshape(48, 4).astype(np.float64)
    logits = np.maximum(x, 0) @ training.variables["params"]["last"]["kernel"]
    loss = np.mean(np.sum((logits - np.eye(3)[LABELS]) ** 2, axis=1))
    assert evaluation["loss"] == pytest.approx(loss, rel=1e-5)
    assert evaluation["error_percent"] == pytest.approx(
        100 * np.mean(logits.argmax(1) != LABELS)
    )


class Scripted:
    """Stands in for a training.

    Losses are given for each rate, and the state counts updates.
    """

    def __init__(self, losses):
        self.losses = losses

    def start(self):
        return 0

    def advance(self, state, rate, first, count):
        assert state == first
        losses = np.array(self.losses[rate][first : first + count], float)
        return first + count, losses, rate == "frozen"


@pytest.mark.parametrize(
    ("losses", "rate", "state"),
    [
        # The rate with the least loss at the end of its pilot goes on; of equal ones
        # the first.
        (
            {"high": [9, 5, 1, 1], "middle": [9, 4, 3, 2], "low": [1, 6, 5, 4]},
            "middle",
            4,
        ),
        ({"high": [1, 1, 1, 1], "low": [1, 1, 1, 1]}, "high", 4),
        # If the best rate diverges, the next best takes over; if every one does, there
        # is no state.
        ({"high": [9, 3, np.inf, np.inf], "low": [9, 5, 4, 3]}, "low", 4),
        ({"high": [np.inf] * 4, "low": [9, 3, np.inf, np.inf]}, "high", None),
        # A net that no gradient moves is not trained further, and no other rate is
        # tried.
        ({"frozen": [1, 1, 1, 1], "never": [0, 0, 0, 0]}, "frozen", 2),
    ],
)
def test_the_rule_for_the_rate(losses, rate, state):
    rule = {"rates_times_depth": list(losses), "step_count": 4, "pilot_steps": 2}
    result = deep_mlp.train(Scripted(losses), **rule)
    assert result == deep_mlp.Trained(rate, state, is_frozen=rate == "frozen")


def test_divergence_and_dead_nets_are_seen():
    training = make_training(
        identity=False, initialization="standard", activation="linear"
    )
    _, losses, frozen = training.advance(training.start(), 1e6, 0, 6)
    assert np.isfinite(losses[0]) and np.isinf(losses[-1]) and not frozen
    dead = make_training(identity=False, initial_scale=0.0)
    _, losses, frozen = dead.advance(dead.start(), 1.0, 0, 6)
    assert frozen and losses.tolist() == [1.0] * 6
