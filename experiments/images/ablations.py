"""The paper's remarks on its net, tested one by one: what helps, and by how much.

Claims (section 4): the fixed random projection "slightly improved" the test error; with
batch normalisation a net of this size overfits. The paper leaves the activation open;
we ask whether the choices of the base code lower the test error. comparisons.py asks
what the identity and the initialisation give, with a learning rate tuned for each net.

Command: make data && make reproduce-ablations VARIANT=cifar10/small SEEDS="0 1 2"
    python -m experiments.images.ablations --config=:cifar10/small/projection
A net of cifar10/small takes 24 to 64 minutes on one core, depending on what else runs;
its three variants take 2 to 2.5 hours a seed on two cores.
The criteria for cifar10/small below were written before its first run, except one:
`MOST_TRAIN_ERROR_PERCENT` came later. Without it, batch norm was "not reproduced" with
every seed, though after ten epochs nets of this size could not overfit. Expected:
undecided for batch norm with every seed; the others depend on the seed.

A run is one seed, so its verdict compares the difference of two test errors with the
sampling error due to the finite test set. If the difference is smaller, the verdict is
"undecided".
"""

from typing import TYPE_CHECKING, NamedTuple

from experiments import run
from experiments.images import settings, verdicts
from experiments.run import RESULT
from experiments.run.settings import configs
from experiments.run.verdicts import total, where

if TYPE_CHECKING:
    from experiments.images.train import Training

VARIANTS = ()
QUESTIONS = {
    "projection": "the last map fixed or trained",
    "batch_norm": "with and without batch norm",
    "activation": "the base code's activations",
}
OTHER_VARIANTS = {
    **{
        f"cifar10/{question}": f"{about}; a net on an H200: minutes (estimate)"
        for question, about in QUESTIONS.items()
    },
    # Within reach of two cores: ten epochs, 170,928 parameters.
    **{
        f"cifar10/small/{question}": f"{about}; one core: 1 to 2 hours"
        for question, about in QUESTIONS.items()
    },
}
# With a larger training error a net has had no chance to overfit.
MOST_TRAIN_ERROR_PERCENT = 5.0
# The nets of each question: name -> changes of the model settings.
_NETS: dict[str, dict[str, dict]] = {
    "projection": {
        "fixed": {"projection": "fixed"},
        "trained": {"projection": "trained"},
    },
    "batch_norm": {"without": {"batch_norm": False}, "with": {"batch_norm": True}},
    "activation": {
        "relu": {},
        "leak": {"leak": 0.1},
        "activate_first": {"activate_first": True},
        "leak_and_activate_first": {"leak": 0.1, "activate_first": True},
    },
}
_NOT_SMALL = ("leak_and_activate_first",)  # left out of cifar10/small
# Size -> scale, and its changes of each group of settings.
_SIZES: dict[str, dict] = {
    # The schedule of cifar.py's small nets, over ten epochs instead of thirty.
    "cifar10/small": {
        "scale": "reduced",
        "data": {"dataset": "cifar10"},
        "model": {"blocks_per_stage": (2, 2, 2), "widths": (16, 32, 64)},
        "optim": {
            "schedule": "cosine",
            "boundary_steps": (),
            "warmup_steps": 400,
            "weight_decay": 5e-4,
        },
        "train": {
            "steps": settings.steps_at(128, 10)[0],
            "steps_per_checkpoint": 200,
        },
    },
    "cifar10": {
        "scale": "paper",
        "data": {"dataset": "cifar10"},
        "model": {"compute_dtype": "bfloat16"},
        "optim": {},
        "train": {},
    },
}


def _nets(size: str, question: str) -> dict:
    """The nets to compare: name -> changes of the model settings."""
    nets = _NETS[question]
    if size != "cifar10/small":
        return nets
    return {name: changes for name, changes in nets.items() if name not in _NOT_SMALL}


def _settings(variant: str) -> dict:
    size, question = variant.rsplit("/", 1)
    changes = _SIZES[size]
    common = settings.make_settings(
        scale=changes["scale"],
        data=changes["data"],
        model=changes["model"],
        optim=changes["optim"],
        keep_final_checkpoint=False,
        **changes["train"],
    )
    return {**common, "nets": _nets(size, question)}


get_config = configs({variant: _settings(variant) for variant in OTHER_VARIANTS})


def trials(*, variant: str, model: dict, nets: dict, **groups) -> list[dict]:
    """One training for each net to compare."""
    defaults = EXPERIMENT.settings_of(variant).get("model", model)
    settings.require_use(model, defaults, changes=nets.values(), setting="nets")
    return [
        {"net": name, "model": {**model, **changes}, **groups}
        for name, changes in nets.items()
    ]


def measure(training: "Training", key, log) -> dict:
    """Trains one net; divergence is a result, not an error."""
    return training.run(key, log, keep_diverged=True)


class Judgement(NamedTuple):
    """What a question's judge says.

    Attributes:
      verdict: "reproduced", "not reproduced" or "undecided".
      metrics: the differences of test errors that it rests on.
    """

    verdict: str
    metrics: dict


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    """Whether the paper's remark holds for the nets of this run; see `_JUDGES`."""
    question = config["variant"].rpartition("/")[2]
    results = where(records, kind=RESULT)
    nets = {result["net"]: result for result in results}
    judgement = _JUDGES[question](nets)
    metrics = {
        "nets": len(results),
        "diverged": total(results, "diverged"),
        **_net_metrics(results),
        **judgement.metrics,
    }
    return run.Verdict(question.replace("_", "-"), metrics, judgement.verdict)


def _net_metrics(results: list[dict]) -> dict:
    """Errors, loss and the step of divergence of each net, as ``NAME/NET``."""
    names = ("train_error_percent", "test_error_percent", "train_loss", "diverged_step")
    return {
        f"{name}/{result['net']}": result[name]
        for result in results
        for name in names
        if name in result
    }


# The judges, one for each question. Each takes the results of the nets, by their names.


def judge_projection(nets: dict[str, dict]) -> Judgement:
    """By which of the fixed and the trained projection has the lower test error."""
    fixed = nets["fixed"]
    trained = nets["trained"]
    holds = verdicts.errs_less(fixed, trained)
    is_refuted = verdicts.errs_less(trained, fixed)
    return _decide(holds, is_refuted, _differences(nets, baseline="fixed"))


def judge_batch_norm(nets: dict[str, dict]) -> Judgement:
    """By whether batch norm overfits: a lower training error, a higher test error.

    That it does not overfit is decided only if it fits its training images.
    """
    without = nets["without"]
    with_norm = nets["with"]
    differences = _differences(nets, baseline="without")
    if without["diverged"] or with_norm["diverged"]:
        return Judgement("undecided", differences)
    train_error = with_norm["train_error_percent"]
    fits_better = train_error < without["train_error_percent"]
    overfits = fits_better and verdicts.errs_less(without, with_norm)
    fits = train_error <= MOST_TRAIN_ERROR_PERCENT
    is_refuted = fits and verdicts.errs_less(with_norm, without)
    return _decide(overfits, is_refuted, differences)


def judge_activation(nets: dict[str, dict]) -> Judgement:
    """By test error: holds if any change lowers that of ReLU, fails if all raise it."""
    relu = nets["relu"]
    changed = [net for name, net in nets.items() if name != "relu"]
    holds = any(verdicts.errs_less(net, relu) for net in changed)
    is_refuted = all(verdicts.errs_less(relu, net) for net in changed)
    return _decide(holds, is_refuted, _differences(nets, baseline="relu"))


_JUDGES = {
    "projection": judge_projection,
    "batch_norm": judge_batch_norm,
    "activation": judge_activation,
}


def _differences(nets: dict[str, dict], baseline: str) -> dict:
    """How much more than the baseline each other net errs, and the margin of that."""
    metrics = {}
    for name, net in nets.items():
        if name == baseline:
            continue
        difference, margin = verdicts.error_difference_percent(nets[baseline], net)
        metrics[f"test_error_difference_percent/{name}"] = difference
        metrics[f"test_error_margin_percent/{name}"] = margin
    return metrics


def _decide(holds: bool, is_refuted: bool, differences: dict) -> Judgement:
    """The judgement on a claim that holds, is refuted, or stays undecided."""
    if holds:
        return Judgement("reproduced", differences)
    if is_refuted:
        return Judgement("not reproduced", differences)
    return Judgement("undecided", differences)


EXPERIMENT = run.TrainingExperiment(
    name="ablations",
    module=__name__,
    trials=trials,
    measure=measure,
    verdict=verdict,
    build=settings.build_training,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
