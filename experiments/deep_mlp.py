"""MLPs of 2 to 1200 layers with and without the identity, on real images.

A blog post on the paper (S. Bhattacharya, sagnibak.github.io/blog/identity-matters)
minimizes E||y - f(x)||^2 with f(x) = W_l ... W_1 x from zero-centred weights of small
variance: all other layers attenuate the gradient of a layer. With W_i + I in place of
W_i, even 1200 layers train, and no W_i needs to move further than O(1/l) from zero.
Here y is the one-hot vector of the label.

* digits/relu, digits/linear: with the identity, and without it from the same or
  standard weights.
* digits/orthogonal: without the identity, from orthogonal weights, which lose no
  direction.

Command: python -m experiments.deep_mlp --config=:digits/relu
Hardware: 2 CPU cores, one of them in use; the times are listed with the variants.
float32.
Expected: with the identity, nets of every depth train. Without it, from small or
standard weights, no net of 256 layers or more trains in this many updates. From small
weights the gradient is 0 in float32 from 32 layers on. Standard weights preserve far
more of it, but deep nets then map all inputs to nearly one line. From orthogonal
weights linear nets train as with the identity.
"""

import collections
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.linalg

from experiments import run
from experiments.run.settings import configs
from experiments.run.trials import grid
from experiments.run.verdicts import largest, least, reproduced, total, where
from identity_matters import nets, paper, random_matrices
from identity_matters.batches import batch_plan
from identity_matters.images import datasets
from identity_matters.nets import mlp
from identity_matters.preprocessing import Preprocessing

# a training with a larger batch loss has diverged; the zero map has loss 1
DIVERGED_LOSS = 1e4
# Fields of the deepest net of each kind that become metrics.
_OF_DEEPEST = (
    "train_loss",
    "train_error_percent",
    "start_effective_dimension",
    "least_gradient_norm",
    "largest_gradient_norm",
)

VARIANTS = {
    "digits/relu": "ReLU nets with and without the identity; half a minute",
    "digits/linear": "the same for linear nets; 20 s",
    "digits/orthogonal": "orthogonal weights instead of the identity; 20 s",
}
OTHER_VARIANTS = {
    "digits/long/relu": "2,000 updates instead of 70; three minutes",
    "digits/long/linear": "the same for linear nets",
    "digits/long/orthogonal": "the same for orthogonal weights",
}


def _changes(variant: str) -> dict:
    question = variant.split("/")[-1]
    is_long = "/long/" in variant
    return {
        # l, in layers; 1200 is the depth that the blog post names
        "depths": (16, 32, 64, 256) if is_long else (2, 4, 8, 16, 32, 64, 256, 1200),
        "nets": _nets(question),  # the settings that differ between nets
        "train": {
            # l times the first rate of a cosine decay: the curvature at the identity
            # grows like l.
            "rates_times_depth": (3.0, 1.0, 0.3, 0.1, 0.03),
            "momentum": 0.9,
            # updates at every rate before the best goes on
            "pilot_steps": 100 if is_long else 10,
            # total updates, a multiple of pilot_steps
            "step_count": 2000 if is_long else 70,
            "batch_examples": 32,
        },
    }


def _nets(question: str) -> dict[str, dict]:
    """The nets to compare: name -> changes of the model settings."""
    if question == "orthogonal":
        return {
            activation: {
                "identity": False,
                "initialization": "orthogonal",
                "activation": activation,
            }
            for activation in ("relu", "linear")
        }
    return {
        "identity": {"identity": True, "activation": question},
        # The same weights without the identity.
        "plain_near_zero": {"identity": False, "activation": question},
        "plain_standard": {
            "identity": False,
            "activation": question,
            "initialization": "standard",
        },
    }


_COMMON = {
    # Our choice: the blog post names no data.
    "data": {
        "dataset": "digits",
        "normalization": "per_image",
        "data_dir": "data",  # where `make data` put the data sets
    },
    # Defaults that `nets` overrides; see the docstring of identity_matters.nets.mlp.
    "model": {
        "width": 64,  # digits have 64 pixels, so the first layer is square too
        "initialization": "near_zero",  # near_zero, standard or orthogonal
        "initial_scale": 1.0,
        "compute_dtype": "float32",
    },
    # gradient norms are recorded for at most this many layers of each net
    "layer_points": 65,
    "verdict": {
        # of the way from the zero map's loss to the best linear map's
        "trained_percent": 90.0,
        # From this depth on, nets without the identity are claimed not to train in so
        # many updates: 70 train 2 to 16 layers, 2,000 train 16 to 64.
        "hard_from_depth": 256,
        # of gradient norms of two square layers at the start, at most
        "even_gradient_ratio": 10.0,
        # Weights count as of order 1/l if, among nets with the same l x rate and at
        # least `order_from_depth` layers, l |||A||| at the end differs by at most this
        # factor.
        "norm_times_depth_ratio": 3.0,
        "order_from_depth": 8,
    },
}
get_config = configs(
    {name: _changes(name) for name in VARIANTS | OTHER_VARIANTS}, _COMMON
)


def trials(
    *, variant: str, depths, model: dict, nets: dict, verdict: dict, **common
) -> list[dict]:
    """One trial for each net and depth."""
    listed = []
    for cell in grid(depth=depths, net=nets):
        changed_model = {**model, **nets[cell["net"]], "depth": cell["depth"]}
        listed.append({**cell, "model": changed_model, **common})
    return listed


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


def build(
    *, net: str, depth: int, layer_points: int, data: dict, model: dict, train: dict
):
    """A function that makes the `Training` of a trial, which only needs a key.

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
    settings = {**train, "layer_points": layer_points}
    return functools.partial(Training, split, perceptron, settings)


@functools.cache
def _descent(step_count: int, momentum: float) -> optax.GradientTransformation:
    # The schedule starts at 1; `_step` multiplies by the rate, so all rates share one
    # program.
    return optax.sgd(optax.cosine_decay_schedule(1.0, step_count), momentum)


def _forward(dtype: str, state: dict, x, labels):
    """(squared error of each example, f32[n]; outputs; what `mlp.forward` measures)."""
    logits, passed = mlp.forward(state, x.reshape(len(x), -1), dtype)
    targets = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return jnp.sum(jnp.square(logits - targets), axis=1), logits, passed


# Compiled once per depth: all that distinguishes nets of one depth is in the state.
@functools.partial(
    jax.jit, static_argnames=("descent", "dtype"), donate_argnames="state"
)
def _step(descent, dtype: str, state: dict, rate, x, labels):
    """One update: (new state, mean loss of the batch, norm of its gradient)."""

    def loss_of(params):
        losses, _, _ = _forward(dtype, {**state, "params": params}, x, labels)
        return jnp.mean(losses)

    loss, gradient = jax.value_and_grad(loss_of)(state["params"])
    updates, opt_state = descent.update(gradient, state["opt_state"])
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
      split: the examples.
      net: the perceptron.
      settings: the group `train`, and "layer_points".
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
        self._descent = _descent(settings["step_count"], settings["momentum"])
        self.variables = jax.device_get(
            nets.init_variables(net, init_key, split.x.shape[1:])
        )
        self.indices, _ = batch_plan(
            int(jax.random.bits(order_key, dtype=jnp.uint32)),
            len(split.x),
            settings["batch_examples"],
            0,
            settings["step_count"],
        )

    def start(self) -> dict:
        """The state before the first update: copies, as `_step` donates its buffers."""
        copies = {
            name: jax.tree.map(jnp.array, self.variables[name])
            for name in ("params", "fixed")
        }
        return {**copies, "opt_state": self._descent.init(copies["params"])}

    def _step(self, state: dict, rate: float, step: int):
        indices = self.indices[step]
        return _step(
            self._descent,
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


def train(
    training: Training, *, rates_times_depth, step_count: int, pilot_steps: int
) -> tuple[dict | None, dict]:
    """Trains a net at the best of several rates, chosen in the same way for all nets.

    Each rate runs for `pilot_steps` on the same batches. The rate with the least mean
    loss over the last half of them, the first if several are as good, runs to the end;
    if it diverges later, the next best takes over. A net is frozen, and not trained
    further, if all gradients of a pilot are 0.

    Returns:
      The last state, None if every rate diverged; and two fields of the record.
    """
    pilots = []
    for rate in rates_times_depth:
        pilot = _run_pilot(training, rate, pilot_steps)
        if pilot.is_frozen:
            return pilot.state, {"rate_times_depth": rate, "frozen": True}
        pilots.append(pilot)
    for pilot in sorted(pilots, key=lambda pilot: pilot.mean_loss):
        state = _train_to_the_end(training, pilot, pilot_steps, step_count)
        if state is not None:
            break
    return state, {"rate_times_depth": pilot.rate_times_depth, "frozen": False}


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


def measure(make_training, key) -> dict:
    """Gradient norms by layer at the start, training, norm of the weights."""
    training = make_training(key)
    split = training.split
    net = training.net
    settings = training.settings
    gradient = training.gradient_norms()
    start = training.evaluate(training.start())
    # The last matrix never has the identity, even if it is square.
    squares = len(mlp.square_kernels(training.variables["params"]))
    square_gradient = gradient[-1 - squares : -1]
    state, trained = train(
        training,
        rates_times_depth=settings["rates_times_depth"],
        step_count=settings["step_count"],
        pilot_steps=settings["pilot_steps"],
    )
    layers = np.linspace(0, net.depth - 1, settings["layer_points"])
    layers = np.unique(layers.round().astype(int))
    measured = {
        "layers": (layers + 1).tolist(),
        "gradient_norms": gradient[layers].tolist(),
        "least_gradient_norm": float(square_gradient.min()),
        "largest_gradient_norm": float(square_gradient.max()),
        "start_effective_dimension": start["effective_dimension"],
        **trained,
        "diverged": state is None,
        "linear_optimum_loss": split.linear_optimum_loss,
        "linear_optimum_error_percent": split.linear_optimum_error_percent,
    }
    if state is None:
        return measured
    end = training.evaluate(state)
    gap = 1 - split.linear_optimum_loss  # the loss of the zero map is ||y||^2 = 1
    measured["gap_closed_percent"] = 100 * (1 - end["loss"]) / gap
    measured["train_loss"] = end["loss"]
    measured["train_error_percent"] = end["error_percent"]
    if net.identity:
        norms = random_matrices.spectral_norms(mlp.square_kernels(state["params"]))
        measured["norm"] = float(norms.max())
    return measured


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """Metrics and verdict of one variant; see the module docstring."""
    question = settings["variant"].split("/")[-1]
    rules = settings["verdict"]
    judged = [_judged(record, rules) for record in records]
    nets_by_name = {name: where(judged, net=name) for name in settings["nets"]}
    metrics = {
        "deepest_layers": max(settings["depths"]),
        "linear_optimum_loss": records[0]["linear_optimum_loss"],
        "linear_optimum_error_percent": records[0]["linear_optimum_error_percent"],
    }
    for name, of_name in nets_by_name.items():
        metrics |= _net_metrics(name, of_name)
    if question == "orthogonal":
        holds = _all_train(nets_by_name["linear"]) and _no_deep_one_trains(
            nets_by_name["relu"]
        )
        return run.Verdict("orthogonal-weights", metrics, reproduced(holds))
    identity = nets_by_name["identity"]
    norms = _norms_times_depth(identity, rules)
    metrics |= _norm_metrics(norms)
    holds = (
        _all_train(identity)
        and _no_deep_one_trains(nets_by_name["plain_near_zero"])
        and _no_deep_one_trains(nets_by_name["plain_standard"])
        and _gradients_are_even(identity, rules)
        and _gradients_are_attenuated(nets_by_name["plain_near_zero"], identity)
    )
    if question == "linear":
        ratio = metrics["identity_norm_times_depth_ratio_at_equal_rates"]
        holds = holds and ratio is not None and ratio <= rules["norm_times_depth_ratio"]
    layers = paper.NUMBERS["blog_post_deepest_layers"].value
    return run.Verdict(
        claim=f"blog-post-{question}",
        metrics=metrics,
        verdict=reproduced(holds),
        paper={"identity_deepest_trained_layers": layers},
    )


def _judged(record: dict, rules: dict) -> dict:
    """The record, with "trained" and "deep"."""
    # The percent of the way to the best linear map's loss; a diverged net has no such
    # field.
    closed_percent = record.get("gap_closed_percent", -np.inf)
    return {
        "gap_closed_percent": closed_percent,
        **record,
        "trained": closed_percent >= rules["trained_percent"],
        "deep": record["depth"] >= rules["hard_from_depth"],
    }


def _all_train(records: list[dict]) -> bool:
    return not where(records, trained=False)


def _no_deep_one_trains(records: list[dict]) -> bool:
    """Whether there are deep nets among these and none of them has trained."""
    deep = where(records, deep=True)
    return bool(deep) and not where(deep, trained=True)


def _gradients_are_even(records: list[dict], rules: dict) -> bool:
    """Whether in each net the gradients of all layers are of about the same norm."""
    return all(
        record["largest_gradient_norm"]
        <= rules["even_gradient_ratio"] * record["least_gradient_norm"]
        for record in records
    )


def _gradients_are_attenuated(plain: list[dict], identity: list[dict]) -> bool:
    """Whether deep plain nets have smaller gradients than those with the identity.

    Every layer has a smaller gradient than any layer of the net of the same depth.
    """
    least = {record["depth"]: record["least_gradient_norm"] for record in identity}
    return all(
        record["largest_gradient_norm"] < least[record["depth"]]
        for record in where(plain, deep=True)
    )


def _norms_times_depth(identity: list[dict], rules: dict) -> dict[float, list[float]]:
    """l |||A||| of nets of order_from_depth layers or more, by l x rate.

    The first steps at a large rate move the weights further than they need to go. So l
    |||A||| shows the effect of depth only among nets with the same l x rate, their
    product's step size.
    """
    norms = collections.defaultdict(list)
    for record in where(identity, diverged=False):
        if record["depth"] >= rules["order_from_depth"]:
            norms[record["rate_times_depth"]].append(record["norm"] * record["depth"])
    return norms


def _norm_metrics(norms_by_rate: dict[float, list[float]]) -> dict:
    everywhere = [norm for norms in norms_by_rate.values() for norm in norms]
    ratios = [
        max(norms) / min(norms) for norms in norms_by_rate.values() if len(norms) > 1
    ]
    return {
        "identity_least_norm_times_depth": min(everywhere, default=None),
        "identity_largest_norm_times_depth": max(everywhere, default=None),
        "identity_norm_times_depth_ratio_at_equal_rates": max(ratios, default=None),
    }


def _net_metrics(name: str, records: list[dict]) -> dict:
    metrics = {
        "deepest_trained_layers": largest(where(records, trained=True), "depth", 0),
        "shallowest_untrained_layers": least(where(records, trained=False), "depth"),
        "diverged_nets": total(records, "diverged"),
        "frozen_nets": total(records, "frozen"),
        "least_gap_closed_percent": least(records, "gap_closed_percent"),
    }
    deepest = max(records, key=lambda record: record["depth"])
    metrics |= {
        f"deepest_{measured}": deepest.get(measured) for measured in _OF_DEEPEST
    }
    return {f"{name}_{metric}": value for metric, value in metrics.items()}


EXPERIMENT = run.Experiment(
    name="deep_mlp",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
    build=build,
    signed=("initial_scale",),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
