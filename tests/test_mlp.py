"""Perceptrons against NumPy loops; their initial weights."""

import functools
import math

import jax
import numpy as np
import pytest

from identity_matters.nets import apply_net, init_variables, mlp

IMAGES = np.random.default_rng(0).normal(size=(7, 2, 3, 1)).astype(np.float32)
FORWARD = jax.jit(mlp.forward)
VECTORS = IMAGES.reshape(7, 6)


def make(depth, width=6, identity=True, activation="relu"):
    settings = {"identity": identity, "activation": activation, "initialization": "standard"}
    net = mlp.Mlp(num_classes=3, depth=depth, width=width, **settings)
    return net, init_variables(net, jax.random.key(1), IMAGES.shape[1:])


def unrolled(kernels, x, identity, activation):
    """Outputs and the list of h_1 ... h_{l-1}, by a loop over matrices."""
    hidden = []
    for j, W in enumerate(kernels[:-1]):
        argument = np.maximum(x, 0) if j and activation == "relu" else x
        y = argument @ W
        x = x + y if identity and W.shape[0] == W.shape[1] else y
        hidden.append(x)
    argument = np.maximum(x, 0) if activation == "relu" else x
    return argument @ kernels[-1], hidden


# d = 6 inputs: the first layer is square at width 6 and has no identity at width 5.
@pytest.mark.parametrize(
    ("depth", "width", "identity", "activation"),
    [
        (2, 6, True, "relu"),
        (4, 6, True, "relu"),
        (4, 5, True, "linear"),
        (5, 6, False, "relu"),
        (5, 5, False, "linear"),
    ],
)
def test_scan_equals_a_numpy_loop(depth, width, identity, activation):
    net, variables = make(depth, width, identity, activation)
    apply = jax.jit(functools.partial(apply_net, net, train=False))
    logits, intermediates = apply(variables, IMAGES)
    kernels = mlp.kernels_in_order(variables["params"])
    assert [kernel.shape for kernel in kernels] == [
        (6, width),
        *[(width, width)] * (depth - 2),
        (width, 3),
    ]
    expected, hidden = unrolled(kernels, VECTORS.astype(np.float64), identity, activation)
    # float32 against float64, a handful of layers.
    np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)
    _, passed = FORWARD(variables, VECTORS)
    norms = [np.linalg.norm(h, axis=1) for h in hidden]
    np.testing.assert_allclose(passed["norm"], norms, rtol=1e-5)
    np.testing.assert_allclose(passed["last_hidden"], hidden[-1], rtol=1e-4, atol=1e-5)
    assert intermediates["residual_ratio"].shape == (depth - 2 + (width == 6), 7)


@pytest.mark.parametrize("activation", ["relu", "linear"])
def test_initial_weights(activation):
    gain = {"relu": math.sqrt(2), "linear": 1.0}[activation]
    images = (8, 8, 1)
    for initialization, scale in (("near_zero", 1 / 70), ("standard", gain), ("orthogonal", gain)):
        settings = {"identity": False, "activation": activation, "initialization": initialization}
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
            # 280,000 numbers: their deviation is known to 0.15 %.
            assert np.std(square) == pytest.approx(0.5 * scale / 8, rel=0.01)
        # 640 numbers, deviation 1/64 in every net: known to 3 %.
        assert np.std(variables["params"]["last"]["kernel"]) == pytest.approx(1 / 64, rel=0.1)


def test_nets_of_a_size_share_a_program():
    """What tells them apart is handed over, so that the grid of nets compiles once a depth."""
    traced = []

    @jax.jit
    def run(variables, x):
        traced.append(x.shape)
        return mlp.forward(variables, x)

    for identity in (True, False):
        for activation in ("relu", "linear"):
            run(make(3, 6, identity, activation)[1], VECTORS)
    assert len(traced) == 1


def test_effective_dimension_by_hand():
    """On a line 1; evenly over k axes k; weights 3/4 and 1/4 of two axes 1/(9/16 + 1/16) = 1.6."""
    dimension = jax.jit(mlp.effective_dimension)
    line = np.outer([1.0, -5.0, 1e-30], [3.0, 4.0]).astype(np.float32)
    assert dimension(line) == pytest.approx(1.0, rel=1e-6)
    assert dimension(np.eye(4, dtype=np.float32)) == 4.0
    uneven = np.array([[1.0, 0], [2, 0], [-3, 0], [0, 9]], np.float32)
    assert dimension(uneven) == pytest.approx(1.6, rel=1e-6)
    assert np.isnan(dimension(np.zeros((2, 2), np.float32)))
