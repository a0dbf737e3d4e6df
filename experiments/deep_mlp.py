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

import numpy as np

from experiments import run
from experiments.run.settings import configs
from experiments.run.trials import grid
from experiments.run.verdicts import largest, least, reproduced, total, where
from identity_matters import paper

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


_TRAIN = {
    # l times the first rate of a cosine decay: the curvature at the identity
    # grows like l.
    "rates_times_depth": (3.0, 1.0, 0.3, 0.1, 0.03),
    "momentum": 0.9,
    # updates at every rate before the best goes on
    "pilot_steps": 10,
    # total updates, a multiple of pilot_steps
    "step_count": 70,
    "batch_examples": 32,
}
_SHORT = {
    # l, in layers; 1200 is the depth that the blog post names
    "depths": (2, 4, 8, 16, 32, 64, 256, 1200),
    "train": _TRAIN,
}
_LONG = {
    "depths": (16, 32, 64, 256),
    "train": {**_TRAIN, "pilot_steps": 100, "step_count": 2000},
}


def _changes(variant: str) -> dict:
    length = _LONG if "/long/" in variant else _SHORT
    return {**length, "nets": _nets(variant.split("/")[-1])}


def _nets(compared: str) -> dict[str, dict]:
    """The nets to compare: name -> changes of the model settings.

    `compared` is "orthogonal", for two activations from orthogonal weights, or an
    activation, for nets with and without the identity.
    """
    if compared == "orthogonal":
        return {
            activation: {
                "identity": False,
                "initialization": "orthogonal",
                "activation": activation,
            }
            for activation in ("relu", "linear")
        }
    return {
        "identity": {"identity": True, "activation": compared},
        # The same weights without the identity.
        "plain_near_zero": {"identity": False, "activation": compared},
        "plain_standard": {
            "identity": False,
            "activation": compared,
            "initialization": "standard",
        },
    }


# Defaults that `nets` overrides; see the docstring of identity_matters.nets.mlp.
_MODEL = {
    "width": 64,  # digits have 64 pixels, so the first layer is square too
    "initialization": "near_zero",  # near_zero, standard or orthogonal
    "initial_scale": 1.0,
    "compute_dtype": "float32",
}
_COMMON = {
    # Our choice: the blog post names no data.
    "data": {
        "dataset": "digits",
        "normalization": "per_image",
        "data_dir": "data",  # where `make data` put the data sets
    },
    "model": _MODEL,
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


def judge_orthogonal(settings: dict, records: list[dict]) -> run.Verdict:
    """From orthogonal weights all linear nets train, and no deep ReLU net does."""
    nets = _records_by_net(settings, records)
    metrics = {**_common_metrics(settings, records), **_metrics_of_nets(nets)}
    holds = _all_train(nets["linear"]) and _no_deep_one_trains(nets["relu"])
    return run.Verdict("orthogonal-weights", metrics, reproduced(holds))


def judge_relu(settings: dict, records: list[dict]) -> run.Verdict:
    """With the identity all nets train and gradients are even; without it, neither."""
    nets = _records_by_net(settings, records)
    metrics = _blog_post_metrics(nets, settings, records)
    holds = _identity_decides(nets, settings["verdict"])
    return _verdict_on_the_blog_post("blog-post-relu", metrics, holds)


def judge_linear(settings: dict, records: list[dict]) -> run.Verdict:
    """The same for linear nets, whose weights also end at norms of order 1/l."""
    nets = _records_by_net(settings, records)
    metrics = _blog_post_metrics(nets, settings, records)
    ratio = metrics["identity_norm_times_depth_ratio_at_equal_rates"]
    largest_ratio = settings["verdict"]["norm_times_depth_ratio"]
    is_of_order = ratio is not None and ratio <= largest_ratio
    holds = _identity_decides(nets, settings["verdict"]) and is_of_order
    return _verdict_on_the_blog_post("blog-post-linear", metrics, holds)


def _blog_post_metrics(
    nets: dict[str, list[dict]], settings: dict, records: list[dict]
) -> dict:
    """Those of all nets, of each net, and of the norms with the identity."""
    return {
        **_common_metrics(settings, records),
        **_metrics_of_nets(nets),
        **_norm_metrics(nets["identity"], settings["verdict"]),
    }


def _verdict_on_the_blog_post(claim: str, metrics: dict, holds: bool) -> run.Verdict:
    layers = paper.NUMBERS["blog_post_deepest_layers"].value
    return run.Verdict(
        claim=claim,
        metrics=metrics,
        verdict=reproduced(holds),
        paper={"identity_deepest_trained_layers": layers},
    )


def _records_by_net(settings: dict, records: list[dict]) -> dict[str, list[dict]]:
    """Name of each net -> its records, with "trained" and "deep"."""
    judged = [_judged(record, settings["verdict"]) for record in records]
    return {name: where(judged, net=name) for name in settings["nets"]}


def _common_metrics(settings: dict, records: list[dict]) -> dict:
    """The metrics that are not of one net."""
    return {
        "deepest_layers": max(settings["depths"]),
        "linear_optimum_loss": records[0]["linear_optimum_loss"],
        "linear_optimum_error_percent": records[0]["linear_optimum_error_percent"],
    }


def _metrics_of_nets(nets: dict[str, list[dict]]) -> dict:
    """Those of each net, as ``NET_METRIC``."""
    return {
        f"{net}_{metric}": value
        for net, records in nets.items()
        for metric, value in _metrics_of_net(records).items()
    }


def _metrics_of_net(records: list[dict]) -> dict:
    """Which depths of one net train, and how the deepest ends."""
    deepest = max(records, key=lambda record: record["depth"])
    return {
        "deepest_trained_layers": largest(where(records, trained=True), "depth", 0),
        "shallowest_untrained_layers": least(where(records, trained=False), "depth"),
        "diverged_nets": total(records, "diverged"),
        "frozen_nets": total(records, "frozen"),
        "least_gap_closed_percent": least(records, "gap_closed_percent"),
        **{f"deepest_{measured}": deepest.get(measured) for measured in _OF_DEEPEST},
    }


def _identity_decides(nets: dict[str, list[dict]], rules: dict) -> bool:
    """Whether nets with the identity train, with even gradients, and others do not."""
    identity = nets["identity"]
    return (
        _all_train(identity)
        and _no_deep_one_trains(nets["plain_near_zero"])
        and _no_deep_one_trains(nets["plain_standard"])
        and _gradients_are_even(identity, rules)
        and _gradients_are_attenuated(nets["plain_near_zero"], identity)
    )


def _judged(record: dict, rules: dict) -> dict:
    """The record, with "trained" and "deep"."""
    # The percent of the way to the best linear map's loss;
    # a diverged net has no such field.
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
    """Whether in each net the gradients of square layers are of about the same norm."""
    return all(
        record["largest_gradient_norm"]
        <= rules["even_gradient_ratio"] * record["least_gradient_norm"]
        for record in records
    )


def _gradients_are_attenuated(plain: list[dict], identity: list[dict]) -> bool:
    """Whether deep plain nets have smaller gradients than those with the identity.

    Every square layer has a smaller gradient than any square layer of the net of the
    same depth with the identity.
    """
    least_by_depth = {
        record["depth"]: record["least_gradient_norm"] for record in identity
    }
    return all(
        record["largest_gradient_norm"] < least_by_depth[record["depth"]]
        for record in where(plain, deep=True)
    )


def _norm_metrics(identity: list[dict], rules: dict) -> dict:
    """The range of l |||A||| at the end, of nets with the identity.

    Its largest ratio compares nets with the same l x rate, which is the step size of
    their product W_l ... W_1.
    The first steps at a large rate move the weights further than they need to go, so
    only among such nets does l |||A||| show the effect of depth.
    """
    norms_by_rate = collections.defaultdict(list)
    for record in where(identity, diverged=False):
        if record["depth"] >= rules["order_from_depth"]:
            norm_times_depth = record["norm"] * record["depth"]
            norms_by_rate[record["rate_times_depth"]].append(norm_times_depth)
    of_all = [norm for norms in norms_by_rate.values() for norm in norms]
    ratios = [
        max(norms) / min(norms) for norms in norms_by_rate.values() if len(norms) > 1
    ]
    return {
        "identity_least_norm_times_depth": min(of_all, default=None),
        "identity_largest_norm_times_depth": max(of_all, default=None),
        "identity_norm_times_depth_ratio_at_equal_rates": max(ratios, default=None),
    }


VERDICTS = {
    "digits/relu": judge_relu,
    "digits/linear": judge_linear,
    "digits/orthogonal": judge_orthogonal,
    "digits/long/relu": judge_relu,
    "digits/long/linear": judge_linear,
    "digits/long/orthogonal": judge_orthogonal,
}
EXPERIMENT = run.Experiment(
    name="deep_mlp",
    module=__name__,
    trials=trials,
    measurements="experiments.measurements.deep_mlp",
    verdict=VERDICTS,
    signed=("initial_scale",),
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
