"""Perceptrons of any depth, trained at the best of several rates."""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg

from identity_matters import matrices, nets
from identity_matters.batches import batch_plan
from identity_matters.images import datasets
from identity_matters.nets import mlp
from identity_matters.preprocessing import Preprocessing

# a training with a larger batch loss has diverged; the zero map has loss 1
DIVERGED_LOSS = 1e4


class Split(NamedTuple):
    """Training examples, and the scores of the best linear map.

    Attributes:
      x: f32[n, h, w, c].
      labels: i32[n].
      num_classes: of the data set.
      linear_optimum_loss: see `linear_optimum`.
      linear_optimum_error_percent: see `linear_optimum`.
    """

    x: np.ndarray
    labels: np.ndarray
    num_classes: int
    linear_optimum_loss: float
    linear_optimum_error_percent: float


@functools.cache
def load_split(dataset: str, normalization: str, data_dir: str) -> Split:
    """The normalized training images of a data set; ValueError if they are missing."""
    source = datasets.find_source(dataset)
    images, labels = datasets.load(dataset, "train", data_dir)
    x = np.asarray(Preprocessing.fit(normalization, images).eval_input(images))
    loss, error_percent = linear_optimum(
        x.reshape(len(x), -1), labels, source.num_classes
    )
    return Split(
        x=x,
        labels=labels.astype(np.int32),
        num_classes=source.num_classes,
        linear_optimum_loss=loss,
        linear_optimum_error_percent=error_percent,
    )


def linear_optimum(x, labels, num_classes: int) -> tuple[float, float]:
    """The loss and the error, in percent, of the best linear map.

    Args:
      x: f[n, d], the inputs.
      labels: int[n].
      num_classes: of the one-hot labels y.
    Returns:
      The mean of ``||y - W x||^2`` at the best W, and how many percent of its largest
      outputs are at another class.
    """
    x = np.asarray(x, np.float64)
    y = np.eye(num_classes)[labels]
    W = scipy.linalg.pinvh(x.T @ x) @ (x.T @ y)
    fitted = x @ W
    loss = np.mean(np.sum((y - fitted) ** 2, axis=1))
    error = np.mean(np.argmax(fitted, axis=1) != labels)
    return float(loss), float(100 * error)


class Untrained(NamedTuple):
    """A training without its weights.

    Attributes:
      split: the examples.
      net: the perceptron.
      settings: the group `train`, and "layer_points".
    """

    split: Split
    net: mlp.Mlp
    settings: dict


def build(
    *, net: str, depth: int, layer_points: int, data: dict, model: dict, train: dict
) -> Untrained:
    """What is trained in a trial; its weights come with the key.

    Raises:
      ValueError: a setting cannot be used.
    """
    if train["pilot_steps"] < 2 or train["step_count"] % train["pilot_steps"]:
        raise ValueError(
            "train.step_count must be a multiple of train.pilot_steps, which must be"
            f" at least 2, got {train['step_count']} and {train['pilot_steps']}"
        )
    split = load_split(**data)
    inputs = math.prod(split.x.shape[1:])
    if depth == 2 and model["width"] != inputs:
        raise ValueError(
            f"a net of 2 layers needs a square layer: model.width must be {inputs} as"
            f" the inputs, got {model['width']}; or leave 2 out of depths"
        )
    perceptron = mlp.Mlp(num_classes=split.num_classes, **model)
    return Untrained(split, perceptron, {**train, "layer_points": layer_points})


@functools.cache
def _optimizer(step_count: int, momentum: float) -> optax.GradientTransformation:
    # The schedule starts at 1; `_update` multiplies
    # by the rate, so all rates share one program.
    return optax.sgd(optax.cosine_decay_schedule(1.0, step_count), momentum)


def _forward(dtype: str, state: dict, x, labels):
    """(squared error of each example, f32[n]; outputs; what `mlp.forward` measures)."""
    logits, passed = mlp.forward(state, x.reshape(len(x), -1), dtype)
    targets = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return jnp.sum(jnp.square(logits - targets), axis=1), logits, passed


# Compiled once per depth: all that distinguishes nets of one depth is in the state.
@functools.partial(
    jax.jit, static_argnames=("optimizer", "dtype"), donate_argnames="state"
)
def _update(optimizer, dtype: str, state: dict, rate, x, labels):
    """One update: (new state, mean loss of the batch, norm of its gradient)."""

    def loss_of(params):
        losses, _, _ = _forward(dtype, {**state, "params": params}, x, labels)
        return jnp.mean(losses)

    loss, gradient = jax.value_and_grad(loss_of)(state["params"])
    updates, opt_state = optimizer.update(gradient, state["opt_state"])
    updates = jax.tree.map(lambda update: rate * update, updates)
    params = optax.apply_updates(state["params"], updates)
    new_state = {**state, "params": params, "opt_state": opt_state}
    return new_state, loss, optax.tree.norm(gradient)


@functools.partial(jax.jit, static_argnames="dtype")
def _evaluate(dtype: str, state: dict, x, labels):
    losses, logits, passed = _forward(dtype, state, x, labels)
    wrong = jnp.argmax(logits, axis=1) != labels
    return losses, wrong, mlp.effective_dimension(passed["last_hidden"])


class Training:
    """A net to train at any rate, always from the same weights, on the same batches.

    Args:
      split, net, settings: see `Untrained`.
      key: of the trial.
    Attributes:
      variables: the initial weights.
      indices: i32[step_count, batch_examples], the examples of each batch.
    """

    def __init__(self, split: Split, net: mlp.Mlp, settings: dict, key):
        self.split = split
        self.net = net
        self.settings = settings
        init_key, order_key = jax.random.split(key)
        self._optimizer = _optimizer(settings["step_count"], settings["momentum"])
        self.variables = jax.device_get(
            nets.init_variables(net, init_key, split.x.shape[1:])
        )
        self.indices, _ = batch_plan(
            seed=int(jax.random.bits(order_key, dtype=jnp.uint32)),
            num_examples=len(split.x),
            batch_examples=settings["batch_examples"],
            first_step=0,
            steps=settings["step_count"],
        )

    def start(self) -> dict:
        """The state before the first update: copies, as `_update` donates its state."""
        copies = {
            name: jax.tree.map(jnp.array, self.variables[name])
            for name in ("params", "fixed")
        }
        return {**copies, "opt_state": self._optimizer.init(copies["params"])}

    def _step(self, state: dict, rate: float, step: int):
        """`_update` on the batch of this step."""
        indices = self.indices[step]
        return _update(
            self._optimizer,
            self.net.compute_dtype,
            state,
            jnp.float32(rate),
            self.split.x[indices],
            self.split.labels[indices],
        )

    def advance(
        self, state: dict, rate_times_depth: float, first: int, count: int
    ) -> tuple[dict, np.ndarray, bool]:
        """Makes `count` updates, from number `first` on.

        Returns:
          The new state; the losses, f64[count]; and whether no weight has moved, as
          all gradient norms underflowed to 0 in float32. A loss is the mean over a
          batch, and infinite once one exceeds DIVERGED_LOSS or a loss or gradient is
          not finite.
        """
        losses = np.full(count, np.inf)
        moved = False
        rate = rate_times_depth / self.net.depth
        for i in range(count):
            state, loss, norm = self._step(state, rate, first + i)
            if not (loss <= DIVERGED_LOSS and np.isfinite(norm)):
                return state, losses, False
            losses[i] = loss
            moved = moved or norm > 0
        return state, losses, not moved

    def evaluate(self, state: dict) -> dict:
        """Scores on all training examples; no dimension if a last hidden layer is 0."""
        losses, wrong, dimension = jax.device_get(
            _evaluate(self.net.compute_dtype, state, self.split.x, self.split.labels)
        )
        return {
            "loss": float(np.mean(losses, dtype=np.float64)),
            "error_percent": float(100 * np.mean(wrong)),
            "effective_dimension": float(dimension) if np.isfinite(dimension) else None,
        }

    def gradient_norms(self) -> np.ndarray:
        """Norm of each layer's gradient on the first batch at the start, f64[depth]."""
        state, _, _ = self._step(self.start(), 0.0, 0)
        # The velocity after one update is that update's gradient.
        gradient = optax.tree_utils.tree_get(state["opt_state"], "trace")
        return np.array(
            [np.linalg.norm(kernel) for kernel in mlp.kernels_in_order(gradient)]
        )


class _Pilot(NamedTuple):
    """A net after the first updates at one rate."""

    rate_times_depth: float
    mean_loss: float  # over the last half of the updates
    last_loss: float
    state: dict
    is_frozen: bool  # all gradients are 0


class Trained(NamedTuple):
    """How a training ended.

    Attributes:
      rate_times_depth: the rate of the training, times the depth; if every rate
        diverged, that of the worst pilot.
      state: the last state; None if every rate diverged.
      is_frozen: whether all gradients were 0, and the training stopped.
    """

    rate_times_depth: float
    state: dict | None
    is_frozen: bool


def train(
    training: Training, *, rates_times_depth, step_count: int, pilot_steps: int
) -> Trained:
    """Trains a net at the best of several rates, chosen in the same way for all nets.

    Each rate runs for `pilot_steps` on the same batches. The rate with the least mean
    loss over the last half of them, the first if several are as good, runs to the end;
    if it diverges later, the next best takes over. A net is frozen, and not trained
    further, if all gradients of a pilot are 0.
    """
    pilots = []
    for rate in rates_times_depth:
        pilot = _run_pilot(training, rate, pilot_steps)
        if pilot.is_frozen:
            return Trained(rate, pilot.state, is_frozen=True)
        pilots.append(pilot)
    best_first = sorted(pilots, key=lambda pilot: pilot.mean_loss)
    for pilot in best_first:
        state = _train_to_the_end(training, pilot, pilot_steps, step_count)
        if state is not None:
            return Trained(pilot.rate_times_depth, state, is_frozen=False)
    return Trained(best_first[-1].rate_times_depth, state=None, is_frozen=False)


def _run_pilot(training: Training, rate_times_depth: float, steps: int) -> _Pilot:
    state, losses, is_frozen = training.advance(
        training.start(), rate_times_depth, 0, steps
    )
    return _Pilot(
        rate_times_depth=rate_times_depth,
        mean_loss=float(np.mean(losses[steps // 2 :])),
        last_loss=losses[-1],
        state=state,
        is_frozen=is_frozen,
    )


def _train_to_the_end(
    training: Training, pilot: _Pilot, pilot_steps: int, step_count: int
) -> dict | None:
    """The state after `step_count` updates; None if the training diverges."""
    state = pilot.state
    loss = pilot.last_loss
    done = pilot_steps
    while np.isfinite(loss) and done < step_count:
        state, losses, _ = training.advance(
            state, pilot.rate_times_depth, done, pilot_steps
        )
        loss = losses[-1]
        done += pilot_steps
    return state if np.isfinite(loss) else None


def measure(untrained: Untrained, key: jax.Array) -> dict:
    """Gradient norms by layer at the start, training, norm of the weights."""
    training = Training(untrained.split, untrained.net, untrained.settings, key)
    settings = training.settings
    at_start = _fields_at_start(training)
    trained = train(
        training,
        rates_times_depth=settings["rates_times_depth"],
        step_count=settings["step_count"],
        pilot_steps=settings["pilot_steps"],
    )
    fields = {
        **at_start,
        "rate_times_depth": trained.rate_times_depth,
        "frozen": trained.is_frozen,
        "diverged": trained.state is None,
        "linear_optimum_loss": training.split.linear_optimum_loss,
        "linear_optimum_error_percent": training.split.linear_optimum_error_percent,
    }
    if trained.state is not None:
        fields |= _fields_at_end(training, trained.state)
    return fields


def _fields_at_start(training: Training) -> dict:
    """Norms of the layers' gradients, for a part of the layers, and their extremes."""
    gradient = training.gradient_norms()
    # The last matrix never has the identity, even if it is square.
    squares = len(mlp.square_kernels(training.variables["params"]))
    square_gradient = gradient[-1 - squares : -1]
    layers = np.linspace(0, training.net.depth - 1, training.settings["layer_points"])
    layers = np.unique(layers.round().astype(int))
    scores = training.evaluate(training.start())
    return {
        "layers": (layers + 1).tolist(),
        "gradient_norms": gradient[layers].tolist(),
        "least_gradient_norm": float(square_gradient.min()),
        "largest_gradient_norm": float(square_gradient.max()),
        "start_effective_dimension": scores["effective_dimension"],
    }


def _fields_at_end(training: Training, state: dict) -> dict:
    """Scores of the trained net, and the norm of its weights beside the identity."""
    scores = training.evaluate(state)
    # The loss of the zero map is ||y||^2 = 1.
    gap = 1 - training.split.linear_optimum_loss
    fields = {
        "gap_closed_percent": 100 * (1 - scores["loss"]) / gap,
        "train_loss": scores["loss"],
        "train_error_percent": scores["error_percent"],
    }
    if training.net.identity:
        norms = matrices.spectral_norms(mlp.square_kernels(state["params"]))
        fields["norm"] = float(norms.max())
    return fields
