"""experiments/images: settings, verdicts, logs, loading a net, and what a kill must not
lose.
"""

import json

import jax
import numpy as np
import pytest

import experiments
from experiments.images import ablations, cifar, comparisons, imagenet, train
from experiments.images import data as image_data
from experiments.images.data import ImageData, classes_and_shape
from experiments.images.settings import (
    ACCELERATOR_STEPS_PER_DISPATCH,
    dispatches_at,
    steps_at,
)
from experiments.run import RESULT
from experiments.run.endings import Stop
from experiments.run.training_log import TrainingLog
from identity_matters import paper, runs
from identity_matters import train as library_train
from identity_matters.preprocessing import Preprocessing
from tests import forked
from tests.measured import settings

VARIANTS = [
    (module, variant)
    for module in (cifar, ablations, imagenet)
    for variant in (*module.VARIANTS, *module.OTHER_VARIANTS)
    if not variant.startswith("cifar100")  # those of CIFAR-10 with other images
]
PARAMETERS = {
    "cifar10/all_conv_residual": 13_538_736,
    "cifar10/small": 1_064_880,
    "cifar10/small/initialisation": 170_928,
    "cifar10/wide": 2_391_984,
    "imagenet2012/parameters_as_printed": 35_693_760,
    "imagenet2012/blocks_of_34_layers": 21_095_616,
    "imagenet2012/resnet_34": 21_797_672,
}
PRINTED = "imagenet2012/parameters_as_printed"
TINY = (
    "--config.model.stem_width=4",
    "--config.model.blocks_per_stage=(1,1,1)",
    "--config.model.widths=(4,4,4)",
)


@pytest.mark.parametrize("module", [ablations, cifar, comparisons, imagenet])
def test_help_says_what_each_variant_is(module):
    notes = [getattr(module, kind, None) for kind in experiments.KINDS]
    assert all(all(note.values()) for note in notes if note)
    assert any(notes)


@pytest.mark.parametrize(("module", "variant"), VARIANTS, ids=str)
def test_every_variant_makes_its_trainings(module, variant, monkeypatch):
    """Pretends that every data set is there, with one example per split."""

    def load(data):
        _, shape = classes_and_shape(data)
        one = np.zeros((1, *shape), np.uint8), np.zeros(1, np.int32)
        preprocessing = Preprocessing.fit("none", one[0])
        return ImageData(image_data.Arrays(*one, *one), preprocessing, {"train": "one"})

    monkeypatch.setattr(train, "load_data", load)
    trials = module.EXPERIMENT.trials(**settings(module, variant))
    assert len({json.dumps(trial) for trial in trials}) == len(trials) > 0
    for trial in trials:
        training = module.EXPERIMENT.build(**trial)
        assert training.keeps_checkpoint == (module is not ablations)
        assert training.fingerprint == {"train": "one"}
        assert training.parameters == PARAMETERS.get(variant, training.parameters)


@pytest.mark.parametrize("num_classes", [10, 100])
def test_the_operations_of_the_papers_training_are_those_of_our_net_of_table_1(
    num_classes,
):
    own = settings(cifar, "cifar10/all_conv_residual")
    _, _, forward = train.make_net(own["model"], num_classes, (32, 32, 3))
    examples = own["train"]["steps"] * own["train"]["batch_examples"]
    assert paper.cifar_training_flops(num_classes) == 3 * forward * examples


def test_the_papers_recipe_is_that_of_section_4():
    own = settings(cifar, "cifar10/all_conv_residual")
    recipe = {
        "learning_rate": 0.05,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "decay_factor": 0.1,
    }
    assert recipe.items() <= own["optim"].items()
    assert own["optim"]["boundary_steps"] == (30_000, 50_000)
    assert (own["train"]["batch_examples"], own["data"]["pad_pixels_per_side"]) == (
        128,
        2,
    )


def test_schedules_by_hand():
    assert steps_at(256, 200, 350) == (39_062, 68_359)
    assert dispatches_at(256, 200, 350) == (39_100, 68_400)
    optim = settings(imagenet, PRINTED)["optim"]
    # Two epochs are 2 * 1,281,167 / 256 = 10,009 steps; 69 of them fit before step
    # 700,000.
    assert optim["boundary_steps"][:2] == (10_009, 20_018)
    assert len(optim["boundary_steps"]) == 69
    small = settings(cifar, "cifar10/small")
    _, rate = train.make_optimizer(steps=small["train"]["steps"], **small["optim"])
    assert float(rate(small["train"]["steps"])) == 0


@pytest.mark.parametrize("variant", [*cifar.VARIANTS, *cifar.OTHER_VARIANTS])
def test_no_long_training_ends_with_a_shorter_dispatch(variant):
    own = cifar.get_config(variant)
    # the others were meant for CPUs, where a dispatch is one step
    if own.scale == "paper":
        assert own.train.steps % ACCELERATOR_STEPS_PER_DISPATCH == 0


def test_the_recipe_for_two_cores_is_that_of_the_protocol():
    own = settings(cifar, "cifar10/wide")
    assert (own["model"]["widths"], own["model"]["initial_scale"]) == (
        (48, 96, 192),
        16.0,
    )
    recipe = {
        "schedule": "cosine",
        "learning_rate": 0.05,
        "warmup_steps": 400,
        "nesterov": True,
    }
    recipe |= {"momentum": 0.9, "weight_decay": 1e-3, "decayed": "convolutions"}
    assert recipe.items() <= own["optim"].items()
    assert own["train"]["steps"] * own["train"]["batch_examples"] == pytest.approx(
        4e6, rel=2e-3
    )
    model = {
        name: own["model"][name]
        for name in ("projection", "batch_norm", "identity", "leak")
    }
    assert model == {
        "projection": "fixed",
        "batch_norm": False,
        "identity": True,
        "leak": 0.0,
    }


def test_sixteen_devices_share_what_they_can(tmp_path):
    flags = ("--config.train.steps=1", "--tensorboard", f"--results_dir={tmp_path}")
    asked = "--config.train.devices=16"  # 0 would take one for such small images
    forked.run("experiments.images.cifar", *TINY, *flags, asked, devices=16, ends=0)
    (run,), _ = runs.read_collection(tmp_path)
    result = run.records[-1]
    # Batches of 1000 test examples are not divisible by 16; still, each example is
    # counted once.
    assert (result["devices"], result["test_examples"]) == (16, 450)
    # The setting 0 is kept beside the number that was chosen for it.
    assert (result["train"]["steps_per_dispatch"], result["steps_per_dispatch"]) == (
        0,
        1,
    )
    assert list(run.path.glob("tensorboard/cell=0/*"))
    # A trained net comes back in three lines.
    training, trained = train.load(run.path)
    found = training.evaluate(trained.variables)
    assert found["test_error_percent"] == result["test_error_percent"]
    assert found["test_loss"] == pytest.approx(result["test_loss"], rel=1e-5)
    # Its labels are those that were counted, also when the checkpoint alone is read.
    images, labels = training.task.data.test_images, training.task.data.test_labels
    alone = library_train.load(run.path / "checkpoints" / "cell=0")
    for one in (trained, alone):
        errors = np.mean(one.predict(images) != labels)
        assert 100 * errors == pytest.approx(result["test_error_percent"], abs=1e-9)
    with pytest.raises(
        library_train.CheckpointError, match=r"those of this run are in .*cell=0"
    ):
        library_train.load(run.path)
    # It does not go on from there on other images.
    training.fingerprint, log = {"sha256": "other"}, TrainingLog(Run(run.path), None)
    refused = pytest.raises(
        runs.RunError, match=r"images\.sha256 is .* and 'other' here"
    )
    with log.trial(0, 1), refused:
        training.run(jax.random.key(0), log)


# A net that is quick to train and learns at once: not from the paper's initialisation.
LEARNS = {
    "model.blocks_per_stage": (1,),
    "model.stem_width": 8,
    "model.widths": (8,),
    "model.stage_strides": (2,),
    "model.residual_init": "standard",
    "optim.boundary_steps": (),
    "optim.learning_rate": 0.05,
    "train.steps": 60,
}
MINIATURE = {
    "data.miniature_examples": 42,
    "data.image_pixels": 16,
    "data.eval_shorter_side_pixels": 18,
    "optim.warmup_steps": 0,
    "optim.learning_rate": 0.01,
    "train.batch_examples": 8,
    "train.steps": 30,
}


@pytest.mark.parametrize(
    "module",
    [cifar, comparisons, imagenet],
    ids=lambda module: module.__name__,
)
def test_predict_gives_the_labels_that_an_experiment_counted(module, tmp_path):
    """To the example, from the checkpoint alone, and not without the preprocessing."""
    changes = dict(LEARNS)
    if module is imagenet:
        for name in ("tensorflow_datasets", "array_record", "grain", "cv2"):
            pytest.importorskip(name)
        changes |= {**MINIATURE, "data.data_dir": str(tmp_path)}
    variant = list(module.VARIANTS)[-1]
    trial = module.EXPERIMENT.trials(**settings(module, variant))[-1]
    for name, value in changes.items():
        group, setting = name.split(".")
        trial[group][setting] = value
    training = module.EXPERIMENT.build(**trial)
    if module is comparisons:
        training = training.training(changes["optim.learning_rate"])
    log = TrainingLog(Run(tmp_path), Stop())
    with log.trial(0, 1):
        result = training.run(jax.random.key(0), log)
        trained = library_train.load(log.checkpoint_dir)
    data = training.task.data
    test = data.read_test(np.arange(data.test_examples))
    found = trained.evaluate(test["images"], test["labels"])
    assert found["examples"] == result["test_examples"] > 0
    assert found["error_percent"] == pytest.approx(
        result["test_error_percent"], abs=1e-9
    )
    assert found["errors"] == np.sum(trained.predict(test["images"]) != test["labels"])
    assert found["loss"] == pytest.approx(result["test_loss"], rel=1e-4)
    bare = Preprocessing.fit("none", test["images"])
    other = library_train.TrainedNet(trained.net, trained.variables, bare)
    assert np.any(other.predict(test["images"]) != trained.predict(test["images"]))


def test_a_run_that_trained_no_image_net_is_not_loaded():
    path = (
        forked.ROOT
        / "results"
        / "reference"
        / "landscape"
        / "hessian_at_origin"
        / "seed=0"
    )
    with pytest.raises(
        runs.RunError, match="a run of landscape, which keeps no trained net"
    ):
        train.load(path)


class Run:
    """A run directory in memory."""

    def __init__(self, path):
        self.path, self.name, self.records = path, "cifar/v/seed=0", []

    def append(self, record, *, may_wait=False):
        self.records.append(record)

    def flush(self):
        pass

    def rewind(self, count):
        del self.records[count:]


def test_a_log_says_what_a_run_will_take_and_where_it_goes_on(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(TrainingLog, "say", lambda self, line: said.append(line))
    log = TrainingLog(Run(tmp_path), None, False, "", "")
    with log.trial(0, 1):
        log.phase("restoring", 0, 900)
        log.phase("compiling", 300, 900)
        for step in range(301, 310):
            log.progress(step, 2.0, 7200.0)
        log.append({"kind": "evaluation", "step": 309, "test_error_percent": 12.349})
    assert said[0] == "resuming from step 300 of 900"
    assert said[1].startswith("this takes about 2.0 hours on this machine, until ")
    assert said[2:] == ["step 309/900: test error 12.35 %, 2:00:00 left"]
    with log.trial(1, 2):
        log.phase("evaluating", 0, 900)
        log.progress(0, None, 3000.0)
    assert len(said) == 3


def test_two_runs_do_not_share_checkpoints(tmp_path):
    logs = [
        TrainingLog(Run(tmp_path), None, False, "", str(tmp_path / "ck"))
        for _ in range(2)
    ]
    other = logs[1].trial(0, 1)
    with (
        logs[0].trial(0, 1),
        pytest.raises(runs.RunError, match="another process is writing here"),
    ):
        other.__enter__()
    with logs[1].trial(0, 1):
        pass


KILL = """
import os, runpy
from experiments.run.training_log import TrainingLog
real = TrainingLog.delete_checkpoints
def delete(*arguments):
    real(*arguments) if {after} else None
    os.kill(os.getpid(), 9)
TrainingLog.delete_checkpoints = delete
runpy.run_module("experiments.images.comparisons", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("after", [False, True])
def test_a_finished_net_is_not_lost_with_its_checkpoints(after, tmp_path):
    """Killed just before or after the first deletion, a comparison keeps its net."""
    command = ["--config=:digits/two_depths", *TINY, f"--results_dir={tmp_path}"]
    command += ["--config.train.steps=2", "--config.train.steps_per_log=1"]
    forked.run_code(KILL.format(after=after), tmp_path, *command, ends=-9)
    (run,) = (tmp_path / "comparisons" / "digits").glob("two_depths@*/seed=0")
    before = (run / "metrics.jsonl").read_text()
    assert json.loads(before.splitlines()[-1])["kind"] == RESULT
    forked.run("experiments.images.comparisons", *command, ends=0)
    lines = (run / "metrics.jsonl").read_text()
    assert lines.startswith(before)
    results = [
        line for line in map(json.loads, lines.splitlines()) if line["kind"] == RESULT
    ]
    assert [line["cell"] for line in results] == [0, 1, 2, 3]
    assert not list(run.glob("checkpoints/*"))


MEASURED = {
    "kind": RESULT,
    "train_examples": 1_281_167,
    "test_examples": 50_000,
    "test_error_percent": 36.0,
    "test_error_best_percent": 35.9,
    "test_top5_error_percent": 15.0,
    "test_top5_error_best_percent": 14.9,
}


@pytest.mark.parametrize(
    ("module", "variant", "measured", "verdict"),
    [
        (
            cifar,
            "cifar10/all_conv_residual",
            {"test_error_best_percent": 6.88},
            "reproduced",
        ),
        (
            cifar,
            "cifar10/all_conv_residual",
            {"test_error_best_percent": 6.89},
            "not reproduced",
        ),
        (cifar, "cifar10/small", {"scale": "reduced"}, "not comparable"),
        # Table 2 prints the errors of other nets for these two.
        (cifar, "cifar100/resnet", {"test_error_best_percent": 27.2}, "not comparable"),
        (
            cifar,
            "cifar100/all_cnn_c",
            {"test_error_best_percent": 33.7},
            "not comparable",
        ),
        (imagenet, PRINTED, {}, "reproduced"),
        (imagenet, PRINTED, {"test_error_best_percent": 36.3}, "not reproduced"),
        (imagenet, PRINTED, {"test_top5_error_best_percent": 15.2}, "not reproduced"),
        (
            imagenet,
            "imagenet2012/blocks_of_34_layers",
            {"test_examples": 49_999},
            "not comparable",
        ),
        (
            imagenet,
            "imagenet2012/resnet_34",
            {"test_error_best_percent": 20.0},
            "not comparable",
        ),
        (
            imagenet,
            "miniature/all_conv_residual",
            {"test_error_percent": 29.9},
            "reproduced",
        ),
        (
            imagenet,
            "miniature/all_conv_residual",
            {"test_error_percent": 30.1},
            "not reproduced",
        ),
    ],
)
def test_verdicts(module, variant, measured, verdict):
    config = {
        **module.get_config(variant).to_dict(),
        "scale": measured.get("scale", "paper"),
    }
    assert (
        module.verdict(config, [{"kind": "train"}, {**MEASURED, **measured}]).verdict
        == verdict
    )


DIVERGED = {"diverged": True, "diverged_step": 7}


def errors(test_error_percent, train_error_percent=10.0, train_loss=1.0):
    return {
        "diverged": False,
        "test_error_percent": test_error_percent,
        "train_error_percent": train_error_percent,
        "train_loss": train_loss,
        "test_examples": 10_000,
    }


LEAKY = {"relu": errors(15), "leak": errors(16.2)}
GOOD = errors(15, train_loss=0.4)


# Two standard errors of the difference of errors near 15 % of 10,000 images are 1.01
# points.
@pytest.mark.parametrize(
    ("question", "nets", "verdict"),
    [
        ("projection", {"fixed": errors(15), "trained": errors(16.1)}, "reproduced"),
        ("projection", {"fixed": errors(15), "trained": errors(15.9)}, "undecided"),
        (
            "projection",
            {"fixed": errors(16.1), "trained": errors(15)},
            "not reproduced",
        ),
        ("projection", {"fixed": errors(15), "trained": DIVERGED}, "reproduced"),
        ("projection", {"fixed": DIVERGED, "trained": DIVERGED}, "undecided"),
        (
            "batch_norm",
            {"without": errors(15, 12), "with": errors(17, 11)},
            "reproduced",
        ),
        (
            "batch_norm",
            {"without": errors(15, 12), "with": errors(17, 13)},
            "undecided",
        ),
        (
            "batch_norm",
            {"without": errors(15, 12), "with": errors(15.5, 11)},
            "undecided",
        ),
        (
            "batch_norm",
            {"without": errors(15, 12), "with": errors(13, 9)},
            "not reproduced",
        ),
        ("batch_norm", {"without": errors(15, 12), "with": DIVERGED}, "undecided"),
        ("activation", {**LEAKY, "activate_first": errors(13.9)}, "reproduced"),
        ("activation", {**LEAKY, "activate_first": errors(15.1)}, "undecided"),
        ("activation", {**LEAKY, "activate_first": DIVERGED}, "not reproduced"),
        (
            "initialisation",
            {"paper": GOOD, "standard": errors(15, train_loss=0.8)},
            "reproduced",
        ),
        (
            "initialisation",
            {"paper": GOOD, "standard": errors(15, train_loss=0.79)},
            "undecided",
        ),
        ("initialisation", {"paper": errors(15), "standard": errors(17)}, "undecided"),
        (
            "initialisation",
            {"paper": errors(17), "standard": errors(15)},
            "not reproduced",
        ),
        # All have one rate, which may suit one start and not the other.
        ("initialisation", {"paper": DIVERGED, "standard": errors(15)}, "undecided"),
        ("initialisation", {"paper": errors(15), "standard": DIVERGED}, "undecided"),
    ],
)
def test_small_ablations_decide_by_a_difference_that_was_seen(question, nets, verdict):
    config = ablations.get_config(f"cifar10/small/{question}").to_dict()
    assert set(nets) == set(config["nets"])
    for order in (list(nets), list(nets)[::-1]):
        records = [{"kind": RESULT, "net": name, **nets[name]} for name in order]
        concluded = ablations.verdict(config, records)
        assert concluded.verdict == verdict
        assert concluded.claim == question.replace("_", "-")


# Two standard errors of the difference of errors near 4 and 8 % of 450 images are 3.2
# points.
@pytest.mark.parametrize(
    ("linear", "error", "train_error", "verdict"),
    [
        (8.0, 5.0, 0.5, "undecided"),
        (8.0, 4.0, 0.5, "reproduced"),
        (8.0, 4.0, 0.6, "not reproduced"),
        (4.0, 8.0, 0.5, "not reproduced"),
        (4.0, 6.0, 0.5, "undecided"),
        (4.0, 6.0, 0.6, "not reproduced"),
    ],
)
def test_digits_are_decided_by_a_difference_that_was_seen(
    linear, error, train_error, verdict
):
    result = {
        "kind": RESULT,
        "linear_classifier_test_error_percent": linear,
        "train_error_percent": train_error,
        "test_error_percent": error,
        "test_examples": 450,
    }
    config = cifar.get_config("digits/all_conv_residual").to_dict()
    concluded = cifar.verdict(config, [result])
    assert concluded.verdict == verdict
    assert concluded.metrics["test_error_difference_percent"] == pytest.approx(
        error - linear
    )
    p, q = linear / 100, error / 100
    margin = 200 * ((p * (1 - p) + q * (1 - q)) / 450) ** 0.5
    assert concluded.metrics["test_error_margin_percent"] == pytest.approx(margin)


@pytest.mark.parametrize(
    ("with_identity", "without", "verdict"),
    # Nets without the identity start where they cannot move: they decide nothing.
    [(30, 80, "reproduced"), (31, 80, "not reproduced"), (30, 0, "reproduced")],
)
def test_in_ten_epochs_a_net_has_trained_at_30_percent(with_identity, without, verdict):
    config = ablations.get_config("cifar10/small/identity").to_dict()
    (blocks,) = {
        tuple(changes["blocks_per_stage"]) for changes in config["nets"].values()
    }
    records = [
        {
            **{"kind": RESULT, "net": str(identity), "num_classes": 10},
            **errors(50, train_error_percent=error_percent),
            "model": {"blocks_per_stage": blocks, "identity": identity},
        }
        for identity, error_percent in ((True, with_identity), (False, without))
    ]
    assert ablations.verdict(config, records).verdict == verdict
