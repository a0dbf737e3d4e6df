"""Linear nets on samples: what is drawn, and the net.

Also the training on one or several devices.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import linear_sampled
from experiments.measurements import linear_sampled as measurements
from identity_matters import random_matrices
from identity_matters.linear import model, sampled
from identity_matters.train.checkpoint import Checkpoints
from identity_matters.train.loop import StopRequested, fit
from identity_matters.train.records import TIMING_FIELDS
from identity_matters.train.step import initial_state
from tests import toy_training as toy

D = 4
DEPTH = 3


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    Sigma = random_matrices.symmetric(rng, [0.5, 1.0, 1.5, 2.0])
    return sampled.make_problem(rng.standard_normal((D, D)), Sigma, 0.3)


def layers(scale=0.5):
    return scale * np.random.default_rng(1).standard_normal((DEPTH, D, D))


@pytest.mark.slow
def test_examples_follow_the_model_and_depend_on_their_key_alone(problem):
    keys = jax.random.split(jax.random.key(2), 20_000)
    drawn = jax.device_get(sampled.draw(problem, keys, jnp.float64))
    x = drawn["images"]
    y = drawn["labels"]
    np.testing.assert_allclose(x.T @ x / len(x), problem.Sigma, atol=0.05)
    noise = (y - x @ problem.R.T) / problem.noise_std
    np.testing.assert_allclose(noise.T @ noise / len(x), np.eye(D), atol=0.05)
    np.testing.assert_allclose(noise.T @ x / len(x), np.zeros((D, D)), atol=0.05)
    some = sampled.draw(problem, keys[jnp.array([7, 3])], jnp.float64)
    np.testing.assert_allclose(some["images"], x[[7, 3]], rtol=1e-12)
    assert sampled.draw(problem, keys[:1])["labels"].dtype == jnp.float32


def test_the_net_and_its_gradient_are_those_of_the_closed_form(problem):
    A = layers()
    x, y = sampled.exact_split(problem, np.float64)
    np.testing.assert_allclose(
        sampled.forward(A, x), x @ np.asarray(model.product(A)).T, atol=1e-12
    )
    risk, gradient = model.excess_risk_and_gradient(A, problem.R, problem.Sigma)
    loss, of_loss = jax.value_and_grad(sampled.mean_loss)(jnp.asarray(A), x, y)
    assert loss == pytest.approx(float(risk), rel=1e-12)
    np.testing.assert_allclose(of_loss, gradient, rtol=1e-9, atol=1e-12)


def test_one_label_is_not_compared_with_all_predictions():
    with pytest.raises(ValueError, match=r"got \(4, 3\) and \(1, 3\)"):
        sampled.mean_loss(np.zeros((2, 3, 3)), np.ones((4, 3)), np.ones((1, 3)))


def test_the_rows_of_one_matrix_are_no_layers():
    with pytest.raises(ValueError, match=r"A must be \[depth, d, d\], and x \[n, d\]"):
        sampled.forward(np.eye(3), np.eye(3))


def test_inputs_may_be_of_another_dtype_than_the_layers():
    whole = np.arange(12).reshape(4, 3)
    for x in (whole, whole.astype(np.float32)):
        outputs = sampled.forward(np.ones((2, 3, 3)), x)
        np.testing.assert_array_equal(outputs, whole @ (np.eye(3) + 5 * np.ones(3)))


@pytest.mark.parametrize(
    "keys",
    [jax.random.key(0), jax.random.split(jax.random.key(0), (2, 2)), np.arange(2), 0],
)
def test_each_example_has_its_own_key(problem, keys):
    with pytest.raises(ValueError, match=r"keys must be typed keys \[n\], as jax"):
        sampled.draw(problem, keys)


@pytest.mark.parametrize("squarings", [2, 8])
def test_bounds_of_spectral_norms(squarings):
    A = np.concatenate([layers(), np.zeros((1, D, D)), 0.1 * np.eye(D)[None]])
    norms = np.linalg.norm(A, ord=2, axis=(1, 2))
    bounds = np.asarray(sampled.spectral_norm_bounds(A, squarings))
    assert (bounds >= norms * (1 - 1e-12)).all()
    assert (bounds <= norms * D ** (0.5 / 2**squarings) * (1 + 1e-12)).all()
    assert bounds[DEPTH + 1] == pytest.approx(0.1 * D ** (0.5 / 2**squarings))


def test_bounds_of_spectral_norms_are_within_a_percent_or_two_by_default():
    """d^{1/512}: 1.4 % above the norm for d = 1024, 0.27 % for d = 4."""
    bounds = np.asarray(sampled.spectral_norm_bounds(0.1 * np.eye(D)[None]))
    assert bounds == pytest.approx(0.1 * D ** (1 / 512), rel=1e-12)


@pytest.mark.parametrize(
    ("dtype", "scales"),
    [
        (np.float32, (1e-30, 1e-20, 1.0, 1e30, 1e37)),
        (np.float64, (1e-200, 1.0, 1e200, 1e307)),
    ],
)
def test_bounds_of_spectral_norms_whose_squares_leave_the_dtype(dtype, scales):
    """Of rank 1 the bound is the norm: nothing but its margin covers rounding."""
    rng = np.random.default_rng(4)
    left = rng.standard_normal((20, 8, 1))
    right = rng.standard_normal((20, 1, 8))
    A = (left @ right).astype(dtype)
    for scale in scales:
        scaled = A * dtype(scale)
        norms = np.linalg.norm(scaled.astype(np.longdouble), axis=(1, 2))
        bounds = np.asarray(sampled.spectral_norm_bounds(scaled))
        assert (bounds >= norms).all()
        assert (bounds <= norms * (1 + 100 * np.finfo(dtype).eps)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_of_the_largest_matrices_are_not_zero(dtype):
    """Their reciprocal is below the least normal number."""
    size = dtype(0.9) * np.finfo(dtype).max
    A = np.array([[[size, 0], [0, size]]], dtype)
    assert (np.asarray(sampled.spectral_norm_bounds(A)) >= size).all()


def test_counts_that_make_no_bound_and_no_descent_are_refused(problem):
    with pytest.raises(ValueError, match="squarings must be at least 0, got -1"):
        sampled.spectral_norm_bounds(layers(), -1)
    how = {"depth": 1, "batch_examples": 1, "updates": 1, "runs": 1}
    rng = np.random.default_rng(0)
    for name in how:
        with pytest.raises(ValueError, match=f"{name} must be at least [01], got -1"):
            sampled.descend(rng, problem, **how | {name: -1}, learning_rate=0.1)


def test_numpys_descent_moves_along_the_closed_form_as_the_batch_grows(problem):
    A = np.zeros((DEPTH, D, D))
    gradient = model.risk_gradient(A, problem.R, problem.Sigma)
    moved = A - 0.01 * np.asarray(gradient)
    expected = model.excess_risk(moved, problem.R, problem.Sigma)
    how = {
        "depth": DEPTH,
        "learning_rate": 0.01,
        "batch_examples": 20_000,
        "updates": 1,
    }
    runs = sampled.descend(np.random.default_rng(3), problem, **how, runs=2)
    np.testing.assert_allclose(runs.excess_risk[:, 1], float(expected), rtol=0.02)
    norm = np.linalg.norm(moved, axis=(1, 2)).max()
    np.testing.assert_allclose(runs.norm, [[0, norm]] * 2, rtol=0.05)


def training(steps=24, devices=1, **changed):
    settings = linear_sampled.get_config("noise_floor").to_dict()
    train = settings["train"] | {
        "steps": steps,
        "batch_examples": 8,
        "steps_per_dispatch": 4,
    }
    train |= {
        "steps_per_log": 12,
        "steps_per_evaluation": 12,
        "steps_per_checkpoint": 8,
    }
    small = {"problem": {"width": D, "gamma": 0.5, "noise_std": 1.0}, "depth": 2}
    config = {**small, "train": train | changed}
    return measurements.Training(**config, devices=jax.devices()[:devices])


def run(trained, **options):
    log = options.pop("log", None) or toy.Log()
    arguments = trained.task, trained.parallel, trained.intervals, log
    _, state = fit(*arguments, key=jax.random.key(5), **options)
    records = [
        {k: v for k, v in r.items() if k not in TIMING_FIELDS} for r in log.records
    ]
    return state, records


@pytest.fixture(scope="module")
def on_one_device():
    """The training on one device, whose steps are compiled once for this file."""
    return training()


@pytest.fixture(scope="module")
def whole(on_one_device):
    return run(on_one_device)


@pytest.mark.compiled_for_users
def test_a_killed_training_resumes_bit_for_bit(whole, on_one_device, tmp_path):
    def checkpoints():
        return Checkpoints(tmp_path, settings={"a": 1})

    log = toy.Log(stop_at_step=12)
    with pytest.raises(StopRequested):
        run(on_one_device, log=log, checkpoints=checkpoints())
    resumed = toy.Log(records=log.records)
    state, records = run(on_one_device, log=resumed, checkpoints=checkpoints())
    expected, expected_records = whole
    np.testing.assert_array_equal(state["params"]["A"], expected["params"]["A"])
    assert records == expected_records
    assert resumed.steps_seen[0] > 12


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.compiled_for_users
def test_the_course_does_not_depend_on_the_number_of_devices(whole, devices):
    state, records = run(training(devices=devices))
    expected, expected_records = whole
    A = expected["params"]["A"]
    np.testing.assert_allclose(state["params"]["A"], A, atol=1e-6 * np.abs(A).max())
    for ours, theirs in zip(records, expected_records, strict=True):
        for name in ("loss", "test_loss", "residual_ratio"):
            if name in theirs:
                np.testing.assert_allclose(
                    ours[name], theirs[name], rtol=1e-5, atol=1e-7
                )


def test_every_step_draws_other_examples_and_an_evaluation_is_exact(whole):
    state, records = whole
    evaluations = [r for r in records if r["kind"] == "evaluation"]
    A = state["params"]["A"].astype(np.float64)
    problem = training().problem
    risk = float(model.excess_risk(A, problem.R, problem.Sigma))
    assert evaluations[-1]["test_loss"] == pytest.approx(risk, rel=1e-5)
    norms = np.linalg.norm(A, ord=2, axis=(1, 2))
    np.testing.assert_allclose(evaluations[-1]["residual_ratio"], norms, rtol=5e-3)
    assert not any("error" in name for r in records for name in r)
    # With a rate near 0 nothing is learned, and losses differ by what is drawn.
    _, records = run(training(rate_times_depth=1e-9, steps_per_log=1))
    losses = [r["loss"] for r in records if r["kind"] == "train"]
    assert len(set(losses)) == len(losses) > 10


@pytest.mark.parametrize("part", ["train", "evaluate"])
def test_the_program_from_shapes_is_the_one_that_runs(part, monkeypatch):
    trained = training()
    steps = trained.parallel
    lowered, count, examples = steps.lower(part, 4)
    state = initial_state(trained.task.init(None), trained.task.optimizer)
    state = steps.start(jax.random.key(1), jax.device_get(state))
    called = []
    monkeypatch.setattr(steps, "_call", lambda _, *program: called.append(program))
    if part == "train":
        steps.train(state, steps.place(list(steps.open_train(0, 0, 4))))
        assert (count, examples) == (4, 8)
    else:
        steps.evaluate(state)
        assert (count, examples) == (1, D)
    ((mapped, arguments),) = called
    assert lowered.as_text() == mapped.lower(*arguments).as_text()


def verdict(variant, *results, **changed):
    settings = linear_sampled.get_config(variant).to_dict() | changed
    records = [{"kind": "result", **result} for result in results]
    return linear_sampled.EXPERIMENT.judge(settings, records)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "reproduced"),
        ({"excess_risk": 0.115}, "not reproduced"),
        ({"largest_norm": 0.26}, "not reproduced"),
    ],
)
def test_the_noise_floor_is_judged(changed, said):
    result = {
        "depth": 4,
        "excess_risk": 0.105,
        "predicted_excess_risk": 0.1,
        "largest_norm": 0.2,
    }
    result |= {"start_excess_risk": 5.0, "images_per_second": 1.0, **changed}
    assert verdict("noise_floor", result).verdict == said


@pytest.mark.parametrize(
    ("differences", "said"),
    [
        ([0.0, 1e-7], "reproduced"),
        ([0.0, 1e-3], "not reproduced"),
        ([0.0, 0.0], "undecided"),
    ],
)
def test_the_devices_are_judged(differences, said):
    result = {
        "devices": [1, 2],
        "risk_differences": differences,
        "weight_differences": [0.0, 0.0],
    }
    assert verdict("devices", result).verdict == said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "holds"),
        ({"violations": 1}, "counterexample"),
        ({"tight": 0}, "undecided"),
        ({"least_ratio": float("nan")}, "undecided"),
    ],
)
def test_the_points_are_judged(changed, said):
    result = {
        "points": 10,
        "violations": 0,
        "unresolved": 1,
        "tight": 3,
        "least_ratio": 1.0,
    }
    result |= {"largest_margin": 1e-5, **changed}
    assert verdict("points", result).verdict == said
