"""What the identity, the initialisation and the rivals give, by docs/protocol.md.

Claims (sections 1 and 4): the identity makes deep nets trainable; the small
initialisation helps; the paper's net beats earlier all-convolutional nets. Every arm of
a comparison is tuned alike, and the protocol is older than the runs: read it first.

Command: python -m experiments.images.comparisons --config=:digits/two_depths
    make reproduce-comparisons VARIANT=digits/identity SEEDS="0 1 2"
    make data && make reproduce-comparisons VARIANT=cifar10/identity SEEDS="0 1 2"
Five short trials and a final training for each arm. Only digits/two_depths runs in
`make reproduce`: four final trainings, with rates that digits/identity has tuned.
"""

from experiments import run
from experiments.images import protocol, settings
from experiments.run.settings import configs
from experiments.run.trials import without

# A net has trained if its training error
# at the end is at most this. See docs/protocol.md.
TRAINED_PERCENT = {"digits": 5.0, "cifar10": 60.0}
GOOD_STARTS = ("plain_unit_variance", "plain_delta_orthogonal")
# Convolutions -> blocks per stage, as even as they can be: 1 + 2 sum(blocks).
BLOCKS = {7: (1, 1, 1), 15: (2, 2, 3), 31: (5, 5, 5), 63: (10, 10, 11)}

_IDENTITY: dict[str, dict] = {
    "identity": {"residual_init": "paper"},
    "plain_paper": {"residual_init": "paper", "identity": False},
    "plain_unit_variance": {"residual_init": "unit_variance", "identity": False},
    "plain_delta_orthogonal": {"residual_init": "delta_orthogonal", "identity": False},
}
# The middle one of the three rates that the seeds of `digits/identity` chose. A test
# compares them with the reference runs.
TUNED_RATES = {
    "identity/7": 0.1,
    "plain_unit_variance/7": 0.01,
    "identity/31": 0.03,
    "plain_unit_variance/31": 0.003,
}
_INITIALISATION: dict[str, dict] = {
    "paper": {"initial_scale": 1.0},
    "paper_times_2": {"initial_scale": 2.0},
    "paper_times_4": {"initial_scale": 4.0},
    "paper_times_8": {"initial_scale": 8.0},
    "paper_times_16": {"initial_scale": 16.0},
    "he": {"residual_init": "he"},
}
_STARTS: dict[str, dict] = {
    "paper": {"residual_init": "paper"},
    "fixup": {"residual_init": "fixup"},
    "gate": {"residual_init": "he", "gate": True},
}
# About 0.5M parameters each; no other changes than width and depth.
_TABLE_2: dict[str, dict] = {
    "this_paper": {"blocks_per_stage": (3, 3, 3), "widths": (22, 44, 88)},
    "all_cnn_c": {"name": "all_cnn_c", "width": 58},
    "resnet": {"name": "resnet", "depth": 20, "width": 22},
    "densenet": {"name": "densenet", "depth": 40, "growth": 8},
}
_NARROW = {"widths": (16, 32, 64)}
_DIGITS = {
    "steps": 400,
    "batch_examples": 64,
    "steps_per_log": 25,
    **settings.DIGITS_INTERVALS,
}
_SHORT = {"steps": 2000, "batch_examples": 128, "steps_per_checkpoint": 200}
_LONG = {"steps": 7800, "batch_examples": 128, "steps_per_checkpoint": 200}


def _at_depths(arms: dict[str, dict], *depths: int) -> dict[str, dict]:
    """Each arm at each number of convolutions, as ``ARM/DEPTH``."""
    return {
        f"{name}/{depth}": {**changes, "blocks_per_stage": BLOCKS[depth]}
        for depth in depths
        for name, changes in arms.items()
    }


def _settings(
    *,
    data: dict,
    model: dict,
    weight_decay: float,
    train: dict,
    arms: dict[str, dict],
    tuning: dict,
) -> dict:
    """The settings of a comparison.

    `tuning` has "trial_steps", the length of a tuning trial, or "tuned_rates".
    """
    common = settings.make_settings(
        scale="reduced",
        data=data,
        model=model,
        optim={"weight_decay": weight_decay, "decayed": "kernels"},
        keep_final_checkpoint=False,
        **train,
    )
    # What all arms have in common, or the protocol tunes, is no setting.
    common["optim"] = without(common["optim"], *protocol.SET_BY_THE_PROTOCOL)
    return {**common, **tuning, "arms": arms}


def _on_digits(
    *, model: dict, arms: dict, tuned_rates: dict[str, float] | None = None
) -> dict:
    tuning = (
        {"tuned_rates": tuned_rates}
        if tuned_rates
        else {"trial_steps": _DIGITS["steps"]}
    )
    return _settings(
        data=settings.DIGITS,
        model=model,
        weight_decay=1e-4,
        train=_DIGITS,
        arms=arms,
        tuning=tuning,
    )


def _on_cifar(
    dataset: str, *, model: dict, train: dict, tuning: dict, arms: dict
) -> dict:
    return _settings(
        data={"dataset": dataset, "pad_pixels_per_side": 4},
        model=model,
        weight_decay=5e-4,
        train=train,
        arms=arms,
        tuning=tuning,
    )


_VARIANTS = {
    "digits/two_depths": _on_digits(
        model=_NARROW,
        arms=_at_depths(
            {name: _IDENTITY[name] for name in ("identity", "plain_unit_variance")},
            7,
            31,
        ),
        tuned_rates=TUNED_RATES,
    ),
    "digits/identity": _on_digits(
        model=_NARROW,
        arms=_at_depths(_IDENTITY, *BLOCKS),
    ),
    "digits/initialisation": _on_digits(
        model={**_NARROW, "blocks_per_stage": (3, 3, 3)},
        arms=_INITIALISATION,
    ),
    "cifar10/identity": _on_cifar(
        "cifar10",
        model=_NARROW,
        train=_SHORT,
        tuning={"trial_steps": 400},
        arms=_at_depths(
            {name: _IDENTITY[name] for name in ("identity", *GOOD_STARTS)}, 7, 31
        ),
    ),
    "cifar10/initialisation": _on_cifar(
        "cifar10",
        model={**_NARROW, "blocks_per_stage": (2, 2, 2)},
        train=_SHORT,
        tuning={"trial_steps": 400},
        arms=_INITIALISATION,
    ),
    "cifar10/starts": _on_cifar(
        "cifar10",
        model={**_NARROW, "blocks_per_stage": (5, 5, 5)},
        train=_SHORT,
        tuning={"trial_steps": 400},
        arms=_STARTS,
    ),
    "cifar10/table_2": _on_cifar(
        "cifar10",
        model={},
        train=_LONG,
        tuning={"trial_steps": 800},
        arms=_TABLE_2,
    ),
    "cifar10/table_2_smaller_rate": _on_cifar(
        "cifar10",
        model={},
        train=_LONG,
        tuning={"tuned_rates": {"this_paper": 0.03}},
        arms={"this_paper": _TABLE_2["this_paper"]},
    ),
    "cifar100/table_2": _on_cifar(
        "cifar100",
        model={},
        train=_LONG,
        tuning={"trial_steps": 800},
        arms=_TABLE_2,
    ),
}
OTHER_VARIANTS = {
    "digits/identity": "at 7 to 63 convolutions; two cores: 28 to 101 minutes",
    "digits/initialisation": "six initial scales; two cores: 7 to 16 minutes",
    "cifar10/identity": "at 7 and 31 convolutions; two cores: 8 hours; H100: 5 minutes",
    "cifar10/initialisation": "six scales; two cores: 2 hours; H100: 3 minutes",
    "cifar10/starts": "the paper's against Fixup and gates; H100: 3 minutes",
    "cifar10/table_2": "four nets of 0.5M parameters; one H100: 13 to 19 minutes",
    "cifar10/table_2_smaller_rate": "the paper's net at 0.03; two cores: 1.3 hours",
    "cifar100/table_2": "the same four nets; one H100: 13 minutes (estimate)",
}
VARIANTS = {
    "digits/two_depths": "needed at 7 and 31 convolutions? 4 nets, at tuned rates",
}
get_config = configs(_VARIANTS)


def trials(*, variant: str, model: dict, arms: dict, **of_protocol) -> list[dict]:
    """A final training for each arm, after five tuning trials unless it was tuned."""
    defaults = EXPERIMENT.settings_of(variant).get("model", model)
    settings.require_use(model, defaults, changes=arms.values(), setting="arms")
    if "tuned_rates" in of_protocol:
        return protocol.final_trials(model=model, arms=arms, **of_protocol)
    return protocol.trials(model=model, arms=arms, **of_protocol)


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    """See docs/protocol.md: one seed's verdict."""
    dataset, question = config["variant"].split("/")
    arms = protocol.finals(records)
    metrics = protocol.metrics_of(records)
    if question in ("identity", "two_depths"):
        first_failed, outcome = judge_identity(arms, TRAINED_PERCENT[dataset])
        return run.Verdict("identity-needed", {**metrics, **first_failed}, outcome)
    claim, judge = _JUDGES[question]
    return run.Verdict(claim, metrics, judge(arms))


def judge_identity(arms: dict[str, dict], trained_percent: float) -> tuple[dict, str]:
    """({"first_failed_depth/ARM": depth}, verdict): does depth need the identity?"""
    trained: dict[str, dict[int, bool]] = {}
    for name, result in arms.items():
        arm, depth = name.split("/")
        has_trained = (
            not result["diverged"] and result["train_error_percent"] <= trained_percent
        )
        trained.setdefault(arm, {})[int(depth)] = has_trained
    first_failed = {
        f"first_failed_depth/{arm}": min(
            depth for depth, good in depths.items() if not good
        )
        for arm, depths in trained.items()
        if not all(depths.values())
    }
    greatest = max(trained["identity"])
    needed = all(trained["identity"].values()) and not any(
        trained[arm][greatest] for arm in GOOD_STARTS if arm in trained
    )
    return first_failed, "reproduced" if needed else "not reproduced"


def judge_initialisation(arms: dict[str, dict]) -> str:
    """Whether the paper's deviation has a lower test error than He's."""
    return _which_is_better(arms["paper"], arms["he"])


def judge_table_2(arms: dict[str, dict]) -> str:
    """Whether the paper's net has a lower test error than All-CNN-C."""
    return _which_is_better(arms["this_paper"], arms["all_cnn_c"])


def judge_without_rivals(_arms: dict[str, dict]) -> str:
    """Nothing: the run has the paper's net alone."""
    return "not comparable"


def judge_starts(arms: dict[str, dict]) -> str:
    """Whether no later start has a lower test error than the paper's, which trains."""
    if any(protocol.is_better(arms[name], arms["paper"]) for name in ("fixup", "gate")):
        return "not reproduced"
    # If all of them failed, there is nothing to compare.
    return "undecided" if protocol.failed(arms["paper"]) else "reproduced"


def _which_is_better(net: dict, other: dict) -> str:
    if protocol.is_better(net, other):
        return "reproduced"
    return "not reproduced" if protocol.is_better(other, net) else "undecided"


_JUDGES = {
    "initialisation": ("initialisation", judge_initialisation),
    "table_2": ("table-2-equal-size", judge_table_2),
    "table_2_smaller_rate": ("table-2-equal-size", judge_without_rivals),
    "starts": ("starts-near-identity", judge_starts),
}

EXPERIMENT = run.TrainingExperiment(
    name="comparisons",
    module=__name__,
    trials=trials,
    measure=protocol.measure,
    verdict=verdict,
    build=protocol.build,
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
