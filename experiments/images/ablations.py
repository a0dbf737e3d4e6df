"""The paper's side remarks on its net, one by one: what helps, and by how much.

Claims (section 4, and section 1 for the identity): nets of the same depth without the identity do
not train; the small initialisation "substantially helped"; the fixed random projection "slightly
improved" the test error; with batch normalisation a net of this size overfits.

Command: python -m experiments.images.ablations --config=:digits/identity
    python -m experiments.images.ablations --config=:cifar10/initialisation    # after make data
2 CPU cores: digits/identity and digits/initialisation a little over two minutes together.
Expected: with the identity below 5 % training error at every depth, deep without it at chance.
"""

import ml_collections

from experiments import run
from experiments.images import data as image_data
from experiments.images import train
from experiments.images.log import RESULT

# A net has trained if its training error is at most the first, and has not if it is within the
# second of pure chance, percentage points. Our choice.
TRAINED_PERCENT = 5.0
CHANCE_MARGIN_PERCENT = 10.0
# How much lower the training loss has to be before an initialisation has "substantially helped".
HELPED_LOSS_RATIO = 0.5
# Below this loss a net has fitted its images, and ratios say nothing.
LEAST_LOSS = 0.01

# What `make reproduce` runs on any machine.
VARIANTS = ("digits/identity", "digits/initialisation")
# At the paper's size, for an accelerator; a few minutes a net on one H200 (estimate).
OTHER_VARIANTS = (
    "cifar10/identity",
    "cifar10/initialisation",
    "cifar10/projection",
    "cifar10/batch_norm",
    "cifar10/activation",
)
_DEPTHS = {
    "digits": ((1, 1, 1), (3, 3, 3), (5, 5, 5)),
    "cifar10": ((3, 3, 3), (6, 6, 6), (9, 9, 9)),
}


# A rate that leaves some room: at 0.05 nets of the baseline's kind diverged at times.
_SHORT_RATE = {"learning_rate": 0.03, "boundary_steps": (250,)}
_SHORT = {
    "steps": 300,
    "batch_examples": 64,
    "steps_per_log": 25,
    "steps_per_evaluation": 100,
    "steps_per_checkpoint": 100,
}


def _nets(dataset: str, question: str) -> dict:
    """What is particular to each net: name -> changes of the settings of the net."""
    if question == "identity":
        # With the standard initialisation, which is the better one for nets without identity: with
        # the paper's their output would be smaller by 1/(k sqrt c) in every layer.
        kinds = {
            "identity": {"residual_init": "paper"},
            "no_identity": {"residual_init": "standard", "identity": False},
        }
        return {
            f"{kind}/{'-'.join(map(str, blocks))}": {**changes, "blocks_per_stage": blocks}
            for blocks in _DEPTHS[dataset]
            for kind, changes in kinds.items()
        }
    return {
        # Section 4: the small initialisation "substantially helped".
        "initialisation": {
            "paper": {"residual_init": "paper"},
            "paper_times_3": {"residual_init": "paper", "initial_scale": 3.0},
            "standard": {"residual_init": "standard"},
            # All residual weights zero: the origin is a critical point in all of them.
            "zero": {"initial_scale": 0.0},
        },
        # Section 4: a fixed random projection "slightly improved test error".
        "projection": {"fixed": {"projection": "fixed"}, "trained": {"projection": "trained"}},
        # Section 4: a net of this size with batch normalisation overfits.
        "batch_norm": {"without": {"batch_norm": False}, "with": {"batch_norm": True}},
        # What the text leaves open and the base code did.
        "activation": {
            "relu": {},
            "leak": {"leak": 0.1},
            "activate_first": {"activate_first": True},
            "leak_and_activate_first": {"leak": 0.1, "activate_first": True},
        },
    }[question]


def get_config(variant: str = VARIANTS[0]) -> ml_collections.ConfigDict:
    known = VARIANTS + OTHER_VARIANTS
    if variant not in known:
        raise ValueError(f"variant must be one of {known}, got {variant!r}")
    dataset, question = variant.split("/")
    digits = dataset == "digits"
    # With 31 convolutions even the paper's initialisation diverges at times at the paper's rate.
    small = {"blocks_per_stage": (3, 3, 3), "widths": (16, 32, 64)}
    net = small if digits else {"compute_dtype": "bfloat16"}
    return ml_collections.ConfigDict(
        {
            "variant": variant,
            "scale": "reduced" if digits else "paper",
            "data": image_data.settings(dataset),
            # Settings of the net that are the same for all but where `nets` changes them.
            "model": train.all_conv_residual_settings(**net),
            "nets": _nets(dataset, question),
            "optim": train.optim_settings(**(_SHORT_RATE if digits else {})),
            "train": train.train_settings(
                keep_final_checkpoint=False, **(_SHORT if digits else {})
            ),
        }
    )


def trials(*, variant: str, model: dict, nets: dict, **groups) -> list[dict]:
    """One training for each net that is compared."""
    del variant
    return [
        {"net": name, "model": {**model, **changes}, **groups} for name, changes in nets.items()
    ]


def measure(training: train.Training, key, log) -> dict:
    """Trains one net; that it diverges is a result."""
    return training.run(key, log, keep_diverged=True)


def verdict(config: dict, records: list[dict]) -> run.Verdict:
    """A verdict where the claim can be decided by these nets alone, else "not comparable"."""
    results = [record for record in records if record["kind"] == RESULT]
    question = config["variant"].split("/")[-1]
    metrics = {"nets": len(results), "diverged": sum(result["diverged"] for result in results)}
    for result in results:
        for metric in ("train_error_percent", "test_error_percent", "train_loss"):
            if metric in result:
                metrics[f"{metric}/{result['net']}"] = result[metric]
        if result["diverged"]:
            metrics[f"diverged_step/{result['net']}"] = result["diverged_step"]
    decide = {"identity": identity_holds, "initialisation": initialisation_helps}.get(question)
    said = "not comparable"
    if decide is not None:
        said = train.reproduced(decide(results))
    return run.Verdict(question.replace("_", "-"), metrics, said)


def _trained(result: dict) -> bool:
    return not result["diverged"] and result["train_error_percent"] <= TRAINED_PERCENT


def _at_chance(result: dict) -> bool:
    chance_percent = 100 * (1 - 1 / result["num_classes"])
    return (
        result["diverged"]
        or result["train_error_percent"] >= chance_percent - CHANCE_MARGIN_PERCENT
    )


def identity_holds(results: list[dict]) -> bool:
    """With the identity all nets train; without it, the deepest does not."""
    with_identity = [result for result in results if result["model"]["identity"]]
    without = [result for result in results if not result["model"]["identity"]]
    deepest = max(sum(result["model"]["blocks_per_stage"]) for result in results)
    deepest_without = [r for r in without if sum(r["model"]["blocks_per_stage"]) == deepest]
    return (
        bool(with_identity and deepest_without)
        and all(map(_trained, with_identity))
        and all(map(_at_chance, deepest_without))
    )


def initialisation_helps(results: list[dict]) -> bool:
    """The net called "paper" ends at a training loss well below that of "standard"."""
    nets = {result["net"]: result for result in results}
    ours, standard = nets["paper"], nets["standard"]
    if ours["diverged"] or standard["diverged"]:
        return standard["diverged"] and not ours["diverged"]
    losses = max(ours["train_loss"], LEAST_LOSS), max(standard["train_loss"], LEAST_LOSS)
    return losses[0] <= HELPED_LOSS_RATIO * losses[1]


EXPERIMENT = run.Experiment(
    "ablations", trials, measure, verdict, build=train.Training, trains=True
)

if __name__ == "__main__":
    run.main(EXPERIMENT)
