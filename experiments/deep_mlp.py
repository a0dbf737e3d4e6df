"""Perceptrons of 2 to 1200 layers with and without the identity, on real images.

A blog post on the paper (S. Bhattacharya, sagnibak.github.io/blog/identity-matters) puts its point
so: minimize E||y - f(x)||^2 with f(x) = W_l ... W_1 x from zero-centred weights of small variance,
and the gradient to a layer is attenuated by all others, the more the deeper the net; with
W_i + I in the place of W_i even 1200 layers train with "no optimization difficulty", and no W_i
needs to go further than O(1/l) from zero. The nets here are as wide as the images have pixels, y is
the unit vector of the label, and the learning rate of each is the best of the same few (`train`).

* digits/relu, digits/linear: nets with the identity, the same without it, and without it from the
  start that is made for such nets.
* digits/orthogonal: without it from orthogonal weights, which keep every direction.

A net has trained when its loss over all training images has gone 90 % of the way from that of the
map 0 to that of the best linear map, which least squares gives.

Command: python -m experiments.deep_mlp --config=:digits/relu
Hardware: 2 CPU cores, of which one works. Time: half a minute for relu, where every depth is
compiled, and 20 s for each of the others; about a minute for each of digits/long. float32.
Expected: with the identity all depths train. Without it no net of 256 layers or more does in these
many updates; how deep nets then train grows with the updates, from 2 to 8 layers in 70 to 32 or 64
in 2,000. From small weights the gradient is 0 in float32 from 32 layers on; standard weights keep
most of it, but send all inputs to one line. Linear nets of orthogonal weights train like those with
the identity.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
import optax
import scipy.linalg

from experiments import run
from identity_matters import batches, nets, paper, random_matrices
from identity_matters.images import augment, datasets
from identity_matters.nets import mlp

CLAIMS = {
    "relu": "blog-post-relu",
    "linear": "blog-post-linear",
    "orthogonal": "orthogonal-weights",
}
# A batch loss above so many times that of the map 0, which is 1, ends a training as diverged.
DIVERGED_LOSS = 1e4

# Settings

VARIANTS = {
    "digits/relu": "ReLU nets with and without the identity; half a minute",
    "digits/linear": "the same for linear nets; 20 s",
    "digits/orthogonal": "orthogonal weights instead of the identity; 20 s",
}
OTHER_VARIANTS = {
    "digits/long/relu": "2,000 updates instead of 70; a minute and a half",
    "digits/long/linear": "the same for linear nets",
    "digits/long/orthogonal": "the same for orthogonal weights",
    "cifar10/relu": "256 units, 2,000 updates; the deepest nets take an accelerator",
    "cifar10/linear": "the same for linear nets",
    "cifar10/orthogonal": "the same for orthogonal weights",
}


def get_config(variant: str = "digits/relu") -> ml_collections.ConfigDict:
    """The settings of `variant`, DATASET[/long]/QUESTION."""
    known = VARIANTS | OTHER_VARIANTS
    if variant not in known:
        raise ValueError(f"variant must be one of {', '.join(known)}, got {variant!r}")
    dataset, *_, question = variant.split("/")
    digits, long = dataset == "digits", "/long/" in variant
    short = digits and not long
    # 2 layers need as many units as there are inputs.
    depths = (2, 4, 8, 16, 32, 64, 256, 1200) if digits else (4, 8, 16, 32, 64, 256, 1200)
    settings = {
        "variant": variant,
        # The deepest net has the 1200 layers that the blog post names; it names no data.
        "scale": "paper",
        "data": {
            "dataset": dataset,
            "normalization": "per_image",
            "data_dir": "data",  # where `make data` put the data sets
        },
        "depths": (16, 32, 64, 256) if long else depths,  # layers l
        # Where `nets` does not say otherwise; see the docstring of the net.
        "model": {
            "width": 64 if digits else 256,  # digits have 64 pixels: the first layer is square, too
            "initialization": "near_zero",  # near_zero, standard or orthogonal
            "initial_scale": 1.0,
            "compute_dtype": "float32",
        },
        "nets": _nets(question),  # what is particular to each net
        "train": {
            # l times the learning rate, the first of equally good ones: the curvature of a net of l
            # layers at the identity grows like l. Each rate falls to 0 along half a cosine.
            "rates_times_depth": (3.0, 1.0, 0.3, 0.1, 0.03),
            "momentum": 0.9,
            # Updates with every rate, before the best goes on.
            "pilot_steps": 10 if short else 100,
            "step_count": 70 if short else 2000,  # updates in all, a multiple of pilot_steps
            "batch_examples": 32 if digits else 128,
        },
        "layer_points": 65,  # at most so many layers of each net are written down
        "verdict": {
            # A net has trained if its loss has gone this part of the way from that of the map 0 to
            # that of the best linear map.
            "trained_percent": 90.0,
            # From here on nets without the identity are claimed not to train within the updates of
            # the run, few or many. With more of them deeper ones train: 70 train 2 to 8 layers,
            # 2,000 train 32 to 64.
            "hard_from_depth": 256,
            # The largest ratio of the gradients of two square layers at the start that counts as
            # gradients that flow through.
            "even_gradient_ratio": 10.0,
            # Weights count as of order 1/l if l |||A||| at the end differs by at most this factor
            # among nets of one l x rate, of depths from `order_from_depth` on.
            "norm_times_depth_ratio": 3.0,
            "order_from_depth": 8,
        },
    }
    return ml_collections.ConfigDict(settings)


def _nets(question: str) -> dict:
    if question == "orthogonal":
        common = {"identity": False, "initialization": "orthogonal"}
        return {kind: {**common, "activation": kind} for kind in ("relu", "linear")}
    plain = {"identity": False, "activation": question}
    return {
        "identity": {"identity": True, "activation": question},
        # The same weights without the identity: zero-centred and of small variance.
        "plain_near_zero": plain,
        # The start that is made for such nets.
        "plain_standard": {**plain, "initialization": "standard"},
    }


@dataclasses.dataclass(frozen=True)
class Rules:
    """The group `verdict` of the settings."""

    trained_percent: float
    hard_from_depth: int
    even_gradient_ratio: float
    norm_times_depth_ratio: float
    order_from_depth: int

    def __post_init__(self):
        if not 0 < self.trained_percent < 100:
            raise ValueError(
                f"verdict.trained_percent must be within 0 and 100, got {self.trained_percent}"
            )
        for name, value in dataclasses.asdict(self).items():
            if value < 1:
                raise ValueError(f"verdict.{name} must be at least 1, got {value}")


# Trials


def trials(
    *, variant: str, data: dict, depths, model: dict, nets: dict, train: dict, layer_points: int,
    verdict: dict,
) -> list[dict]:  # fmt: skip
    """One for each net and depth."""
    del variant
    Rules(**verdict)
    common = {"layer_points": layer_points, "data": data, "train": train}
    return [
        {"net": name, "depth": depth, "model": {**model, **changes, "depth": depth}, **common}
        for depth in depths
        for name, changes in nets.items()
    ]


class Split(NamedTuple):
    """All training examples, x f32[n, h, w, c] and labels i32[n], and what a linear map can do."""

    x: np.ndarray
    labels: np.ndarray
    num_classes: int
    linear_optimum_loss: float
    linear_optimum_error_percent: float


@functools.cache
def load_split(dataset: str, normalization: str, data_dir: str) -> Split:
    """The training images of a data set as inputs; raises ValueError where there are none."""
    source = datasets.find_source(dataset)
    images, labels = datasets.load(dataset, "train", data_dir)
    constants = augment.fit_normalization(normalization, images)
    _, as_input = augment.make_inputs(normalization, constants, pad_pixels_per_side=0, flip=False)
    x = np.asarray(as_input(images))
    optimum = linear_optimum(x.reshape(len(x), -1), labels, source.num_classes)
    return Split(x, labels.astype(np.int32), source.num_classes, *optimum)


def linear_optimum(x, labels, num_classes: int) -> tuple[float, float]:
    """Mean of ``||y - W x||^2`` at the best W (least squares), and its error in percent.

    Args:
      x: f[n, d].
      labels: int[n]; y is the unit vector of the label.
    """
    x = np.asarray(x, np.float64)
    y = np.eye(num_classes)[labels]
    W = scipy.linalg.pinvh(x.T @ x) @ (x.T @ y)
    fitted = x @ W
    errors = np.argmax(fitted, axis=1) != labels
    return float(np.mean(np.sum((y - fitted) ** 2, axis=1))), float(100 * np.mean(errors))


def effective_dimension(h: jax.Array) -> jax.Array:
    """In how many directions vectors point, whatever their lengths: from 1 to their dimension.

    ``1 / ||M||_F^2``, M the mean of ``u u^T`` over the vectors' directions u: 1 where all lie on
    one line, k where they are spread evenly over k orthogonal ones. NaN where a vector is 0.

    Args:
      h: f[n, d].
    Returns:
      f[], of the dtype of h.
    """
    # Tiny vectors would vanish when their entries are squared.
    h = h / jnp.max(jnp.abs(h), axis=1, keepdims=True)
    u = h / jnp.linalg.norm(h, axis=1, keepdims=True)
    M = jnp.matmul(u.T, u, precision=jax.lax.Precision.HIGHEST) / len(u)
    return 1 / jnp.sum(jnp.square(M))


class Programs(NamedTuple):
    """What is compiled, once for all nets of a depth: what tells them apart is in the state.

    start(variables) -> state, in arrays of its own.
    step(state, rate, x f32[b, h, w, c], labels i32[b]) -> (state, loss, gradient norm), one update.
    evaluate(state, x f32[n, h, w, c], labels i32[n]) -> (losses f32[n], is wrong bool[n], norms
        f32[depth - 1], the mean of ||h_j||, effective dimension f32[] of the last hidden layer).
    """

    start: Callable
    step: Callable
    evaluate: Callable


@functools.cache
def _programs(step_count: int, momentum: float) -> Programs:
    # The schedule starts at 1 and is multiplied by the rate, so that one program is for all.
    descent = optax.sgd(optax.cosine_decay_schedule(1.0, step_count), momentum)

    def forward(state, x):
        return mlp.forward(state, x.reshape(len(x), -1))

    def losses(logits, labels):
        targets = jax.nn.one_hot(labels, logits.shape[1], dtype=logits.dtype)
        return jnp.sum(jnp.square(logits - targets), axis=1)

    def start(variables):
        state = {name: jax.tree.map(jnp.array, variables[name]) for name in ("params", "fixed")}
        return {**state, "opt_state": descent.init(state["params"])}

    def step(state, rate, x, labels):
        def loss_of(params):
            logits, _ = forward({**state, "params": params}, x)
            return jnp.mean(losses(logits, labels))

        loss, gradient = jax.value_and_grad(loss_of)(state["params"])
        updates, opt_state = descent.update(gradient, state["opt_state"])
        updates = jax.tree.map(lambda update: rate * update, updates)
        params = optax.apply_updates(state["params"], updates)
        new = {"params": params, "fixed": state["fixed"], "opt_state": opt_state}
        squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(gradient)]
        return new, loss, jnp.sqrt(sum(squares))

    def evaluate(state, x, labels):
        logits, passed = forward(state, x)
        wrong = jnp.argmax(logits, axis=1) != labels
        dimension = effective_dimension(passed["last_hidden"])
        return losses(logits, labels), wrong, jnp.mean(passed["norm"], axis=1), dimension

    return Programs(start, jax.jit(step, donate_argnums=0), jax.jit(evaluate))


class Subject:
    """A net and how it is trained: what a trial measures, without weights yet."""

    def __init__(
        self, split: Split, model: dict, *, rates_times_depth, momentum: float, pilot_steps: int,
        step_count: int, batch_examples: int,
    ):  # fmt: skip
        if len(rates_times_depth) == 0 or min(rates_times_depth) <= 0:
            raise ValueError(f"train.rates_times_depth must be positive, got {rates_times_depth}")
        if pilot_steps < 2 or step_count < 1 or step_count % pilot_steps:
            raise ValueError(
                "train.step_count must be a multiple of train.pilot_steps, which must be at least"
                f" 2, got {step_count} and {pilot_steps}"
            )
        if batch_examples < 1:
            raise ValueError(f"train.batch_examples must be at least 1, got {batch_examples}")
        inputs = math.prod(split.x.shape[1:])
        if model["depth"] == 2 and model["width"] != inputs:
            raise ValueError(
                "a net of 2 layers needs as many units as there are inputs to have a square layer,"
                f" got model.width={model['width']} for {inputs} inputs; leave 2 out of depths"
            )
        self.split, self.model = split, model
        self.net = nets.make_net("mlp", num_classes=split.num_classes, **model)
        self.rates, self.momentum = rates_times_depth, momentum
        self.pilot_steps, self.step_count = pilot_steps, step_count
        self.batch_examples = batch_examples
        self.layer_points = 2


def build(*, net: str, depth: int, layer_points: int, data: dict, model: dict, train: dict):
    """The `Subject` of a trial; raises ValueError for settings that cannot be used."""
    del net, depth
    if layer_points < 2:
        raise ValueError(f"layer_points must be at least 2, got {layer_points}")
    subject = Subject(load_split(**data), model, **train)
    subject.layer_points = layer_points
    return subject


class Training:
    """A subject with weights and an order of examples; every rate starts from the same weights.

    Attributes:
      variables: the initial weights, NumPy arrays.
      indices: i32[step_count, batch_examples], the examples of each update.
      is_square: bool[depth], which matrices are square and hence may have the identity.
    """

    def __init__(self, subject: Subject, key):
        init_key, order_key = jax.random.split(key)
        self._split, self._depth = subject.split, subject.model["depth"]
        self._programs = _programs(subject.step_count, subject.momentum)
        variables = nets.init_variables(subject.net, init_key, self._split.x.shape[1:])
        self.variables = jax.device_get(variables)
        kernels = mlp.kernels_in_order(self.variables["params"])
        self.is_square = np.array([mlp.is_square(kernel.shape) for kernel in kernels])
        self.is_square[-1] = False
        seed = int(jax.random.bits(order_key, dtype=jnp.uint32))
        self.indices, _ = batches.batch_plan(
            seed, len(self._split.x), subject.batch_examples, 0, subject.step_count
        )

    def start(self) -> dict:
        """The state before the first update, in arrays of its own, for `advance` takes them."""
        return self._programs.start(self.variables)

    def advance(self, state: dict, rate_times_depth: float, first: int, count: int):
        """`count` updates from the `first` on.

        Returns:
          The new state; losses f64[count], the mean over each batch, infinite from the first on
          that is not finite or above DIVERGED_LOSS; and whether every gradient was 0 (its square
          below float32's least number), which moves no weight.
        """
        losses, moved = np.full(count, np.inf), False
        rate = jnp.float32(rate_times_depth / self._depth)
        for i, indices in enumerate(self.indices[first : first + count]):
            x, labels = self._split.x[indices], self._split.labels[indices]
            state, loss, gradient_norm = self._programs.step(state, rate, x, labels)
            loss, gradient_norm = float(loss), float(gradient_norm)
            if not (loss <= DIVERGED_LOSS and np.isfinite(gradient_norm)):
                return state, losses, False
            losses[i] = loss
            moved = moved or gradient_norm > 0
        return state, losses, not moved

    def evaluate(self, state: dict) -> dict:
        """What a net does to every training example.

        Returns:
          "loss" and "error_percent"; "signal_norms" f64[depth - 1], the means of ||h_j||;
          "effective_dimension" of the last hidden layer, or None where it is 0.
        """
        losses, wrong, norms, dimension = jax.device_get(
            self._programs.evaluate(state, self._split.x, self._split.labels)
        )
        return {
            "loss": float(np.mean(losses, dtype=np.float64)),
            "error_percent": float(100 * np.mean(wrong)),
            "signal_norms": norms.astype(np.float64),
            "effective_dimension": float(dimension) if np.isfinite(dimension) else None,
        }

    def gradient_norms(self) -> np.ndarray:
        """Frobenius norms of the first batch's gradient to each layer at the start, f64[depth]."""
        indices = self.indices[0]
        x, labels = self._split.x[indices], self._split.labels[indices]
        state, _, _ = self._programs.step(self.start(), jnp.float32(0), x, labels)
        # The velocity after one update is that update's gradient.
        gradient = optax.tree_utils.tree_get(state["opt_state"], "trace")
        return np.array([np.linalg.norm(kernel) for kernel in mlp.kernels_in_order(gradient)])


class Outcome(NamedTuple):
    """What `train` ends with.

    Attributes:
      state: None where every rate diverged.
      rate_times_depth: of the run that is reported.
      losses: mean loss of each of its batches, infinite after it diverged.
      pilot_losses: what the rates were chosen by, infinite where one diverged.
      watched: the values of `watch` along the run.
      frozen: no gradient moved a weight, so that the state is that of the start.
    """

    state: Any
    rate_times_depth: float
    losses: np.ndarray
    pilot_losses: list[float]
    watched: list
    frozen: bool


def train(
    training, rates_times_depth, step_count: int, pilot_steps: int, watch: Callable
) -> Outcome:
    """Trains with the best of some rates, by one rule for all nets.

    Each rate runs for `pilot_steps` on the same batches. The one with the least mean loss over the
    last half of them goes on to the end; should it diverge later, the next best does instead. Of
    equal ones the first goes on.

    Args:
      training: a `Training`.
      step_count: updates in all, a multiple of `pilot_steps`.
      watch: ``watch(state)``, called after each `pilot_steps` updates of what goes on.
    """
    pilots = []
    for rate in rates_times_depth:
        state, losses, frozen = training.advance(training.start(), rate, 0, pilot_steps)
        pilots.append((float(np.mean(losses[pilot_steps // 2 :])), rate, state, losses))
        if frozen:
            return Outcome(training.start(), rate, losses, [pilots[-1][0]], [], True)
    chosen_by = [pilot[0] for pilot in pilots]
    for _, rate, state, losses in sorted(pilots, key=lambda pilot: pilot[0]):
        watched = [watch(state)]
        while np.isfinite(losses[-1]) and len(losses) < step_count:
            state, more, _ = training.advance(state, rate, len(losses), pilot_steps)
            losses = np.concatenate([losses, more])
            watched.append(watch(state))
        if np.isfinite(losses[-1]):
            return Outcome(state, rate, losses, chosen_by, watched, False)
    return Outcome(None, rate, losses, chosen_by, watched, False)


def measure(subject: Subject, key) -> dict:
    """Gradient and signal of one net at the start by layer, its training, its weights by layer."""
    training, split = Training(subject, key), subject.split
    depth, has_identity = subject.model["depth"], subject.model["identity"]
    gradient, square = training.gradient_norms(), training.is_square
    start = training.evaluate(training.start())

    def largest_norm(state):
        return random_matrices.largest_spectral_norm(mlp.square_kernels(state["params"]))

    watch = largest_norm if has_identity else (lambda state: None)
    outcome = train(training, subject.rates, subject.step_count, subject.pilot_steps, watch)
    points = np.unique(np.linspace(0, depth - 1, subject.layer_points).round().astype(int))
    measured = {
        "layers": (points + 1).tolist(),
        "gradient_norms": gradient[points].tolist(),
        "least_gradient_norm": float(gradient[square].min()),
        "largest_gradient_norm": float(gradient[square].max()),
        "signal_norms": start["signal_norms"][points[:-1]].tolist(),
        "start_loss": start["loss"],
        "start_effective_dimension": start["effective_dimension"],
        "rate_times_depth": outcome.rate_times_depth,
        "pilot_losses": outcome.pilot_losses,
        "batch_losses": outcome.losses.tolist(),
        "diverged": outcome.state is None,
        "frozen": outcome.frozen,
        "linear_optimum_loss": split.linear_optimum_loss,
        "linear_optimum_error_percent": split.linear_optimum_error_percent,
    }
    if outcome.state is None:
        return measured
    end = training.evaluate(outcome.state)
    gap = 1 - split.linear_optimum_loss  # the loss of the map 0 is ||y||^2 = 1
    measured["train_loss"] = end["loss"]
    measured["train_error_percent"] = end["error_percent"]
    measured["gap_closed_percent"] = 100 * (1 - end["loss"]) / gap
    if has_identity:
        norms = random_matrices.spectral_norms(mlp.square_kernels(outcome.state["params"]))
        measured["norm"] = float(norms.max())
        measured["layer_norms"] = norms[np.unique(np.minimum(points, len(norms) - 1))].tolist()
        measured["norm_curve"] = outcome.watched
    return measured


# Verdict


def verdict(settings: dict, records: list[dict]) -> run.Verdict:
    """Metrics and verdict of one variant; see the module's docstring and CLAIMS."""
    question = settings["variant"].split("/")[-1]
    rules = Rules(**settings["verdict"])
    trained = [r for r in records if _closed(r) >= rules.trained_percent]
    kinds = {name: [r for r in records if r["net"] == name] for name in settings["nets"]}
    metrics = {
        "deepest_layers": max(settings["depths"]),
        "linear_optimum_loss": records[0]["linear_optimum_loss"],
        "linear_optimum_error_percent": records[0]["linear_optimum_error_percent"],
    }
    for name, own in kinds.items():
        metrics |= _net_metrics(name, own, [r for r in own if r in trained])
    if question == "orthogonal":
        holds = _orthogonal_holds(kinds, trained, rules)
        published = {}
    else:
        holds = _identity_holds(kinds, trained, rules)
        norms = _norms_times_depth(kinds["identity"], rules.order_from_depth)
        everywhere = [norm for own in norms.values() for norm in own]
        ratio = max((max(own) / min(own) for own in norms.values() if len(own) > 1), default=None)
        metrics["identity_least_norm_times_depth"] = min(everywhere, default=None)
        metrics["identity_largest_norm_times_depth"] = max(everywhere, default=None)
        metrics["identity_norm_times_depth_ratio_at_equal_rates"] = ratio
        if question == "linear":
            holds = holds and ratio is not None and ratio <= rules.norm_times_depth_ratio
        layers = paper.NUMBERS["blog_post_deepest_layers"].value
        published = {"identity_deepest_trained_layers": layers}
    decided = "reproduced" if holds else "not reproduced"
    return run.Verdict(CLAIMS[question], metrics, decided, published)


def _norms_times_depth(records: list[dict], from_depth: int) -> dict[float, list[float]]:
    """l x rate -> l |||A||| at the end of each net that trained with it.

    The first steps of a large rate throw weights further than they need to go, so that only nets of
    one l x rate, the step that their product of layers takes, tell how norms depend on depth.
    """
    norms: dict[float, list[float]] = {}
    for record in records:
        if record["depth"] >= from_depth and not record["diverged"]:
            own = norms.setdefault(record["rate_times_depth"], [])
            own.append(record["norm"] * record["depth"])
    return norms


def _closed(record: dict) -> float:
    """Percent of the way to the best linear map's loss; none for a net that diverged."""
    return record.get("gap_closed_percent", -np.inf)


def _net_metrics(name: str, records: list[dict], trained: list[dict]) -> dict:
    deepest = max(records, key=lambda r: r["depth"])
    failed = [r["depth"] for r in records if r not in trained]
    return {
        f"{name}_deepest_trained_layers": max((r["depth"] for r in trained), default=0),
        f"{name}_shallowest_untrained_layers": min(failed, default=None),
        f"{name}_diverged_nets": sum(r["diverged"] for r in records),
        f"{name}_frozen_nets": sum(r["frozen"] for r in records),
        f"{name}_least_gap_closed_percent": min(map(_closed, records)),
        f"{name}_deepest_train_loss": deepest.get("train_loss"),
        f"{name}_deepest_train_error_percent": deepest.get("train_error_percent"),
        f"{name}_deepest_start_effective_dimension": deepest["start_effective_dimension"],
        f"{name}_deepest_least_gradient_norm": deepest["least_gradient_norm"],
        f"{name}_deepest_largest_gradient_norm": deepest["largest_gradient_norm"],
    }


def _identity_holds(kinds: dict, trained: list[dict], rules: Rules) -> bool:
    """Nets with the identity train at every depth and get even gradients; deep plain ones do not.

    The gradient of the plain net of the same weights must be smaller than that of the net with the
    identity in all layers, from `hard_from_depth` on.
    """
    identity = {r["depth"]: r for r in kinds["identity"]}
    near_zero, standard = (
        [r for r in kinds[name] if r["depth"] >= rules.hard_from_depth]
        for name in ("plain_near_zero", "plain_standard")
    )
    even = all(
        r["largest_gradient_norm"] <= rules.even_gradient_ratio * r["least_gradient_norm"]
        for r in identity.values()
    )
    attenuated = all(
        r["largest_gradient_norm"] < identity[r["depth"]]["least_gradient_norm"] for r in near_zero
    )
    return (
        all(r in trained for r in identity.values())
        and bool(near_zero and standard)
        and not any(r in trained for r in near_zero + standard)
        and even
        and attenuated
    )


def _orthogonal_holds(kinds: dict, trained: list[dict], rules: Rules) -> bool:
    """Linear nets train at every depth, ReLU nets do not from `hard_from_depth` on."""
    hard = [r for r in kinds["relu"] if r["depth"] >= rules.hard_from_depth]
    return (
        all(r in trained for r in kinds["linear"])
        and bool(hard)
        and not any(r in trained for r in hard)
    )


EXPERIMENT = run.Experiment(
    "deep_mlp", trials, measure, verdict, build=build, get_config=get_config
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
