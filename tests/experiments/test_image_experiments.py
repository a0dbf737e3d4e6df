"""experiments/images: logs, trained nets and their labels, and kills."""

import json
import re
import types

import jax
import numpy as np
import pytest
import threadpoolctl
from etils import epath

from experiments.images import cifar, comparisons, imagenet, protocol, train
from experiments.images.data import ImageData, load_data
from experiments.images.settings import IMAGENET_DATA
from experiments.run import RESULT, DivergedError, fitting
from experiments.run.signals import Stop
from experiments.run.training_log import TrainingLog, TrainingLogs
from identity_matters import runs
from identity_matters import train as library_train
from identity_matters.batches import Arrays
from identity_matters.images import datasets, miniature
from identity_matters.images import imagenet as library_imagenet
from identity_matters.preprocessing import Preprocessing
from identity_matters.train.records import NonFiniteError
from tests import forked
from tests.experiments import shallow_arms
from tests.measured import settings

TINY = (
    "--config.model.stem_width=4",
    "--config.model.blocks_per_stage=(1,1,1)",
    "--config.model.widths=(4,4,4)",
)


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
    evaluation = training.evaluate(trained.variables)
    assert evaluation["test_error_percent"] == result["test_error_percent"]
    assert evaluation["test_loss"] == pytest.approx(result["test_loss"], rel=1e-5)
    # Its labels are those that were counted, also when the checkpoint alone is read.
    images = training.task.data.test_images
    labels = training.task.data.test_labels
    alone = library_train.load(run.path / "checkpoints" / "cell=0")
    for net in (trained, alone):
        errors = np.mean(net.predict(images) != labels)
        assert 100 * errors == pytest.approx(result["test_error_percent"], abs=1e-9)
    with pytest.raises(
        library_train.CheckpointError, match=r"those of this run are in .*cell=0"
    ):
        library_train.load(run.path)
    # It does not go on from there on other images.
    training.fingerprint = {"sha256": "other"}
    logs = TrainingLogs(Run(run.path), None)
    refused = pytest.raises(
        runs.RunError, match=r"images\.sha256 is .* and 'other' here"
    )
    with logs.trial(0, 1) as log, refused:
        training.run(jax.random.key(0), log)


def test_a_training_says_what_it_ran_on_and_belongs_to_its_key(tmp_path, monkeypatch):
    state = {"params": {"w": np.ones(3, np.float32)}}
    peaks = []

    def fit(*_, checkpoints, peak_flops_per_second, **__):
        peaks.append(peak_flops_per_second)
        with checkpoints:
            if checkpoints.restore(state) is None:
                checkpoints.save(1, state, {})
        raise NonFiniteError(7, "loss", np.nan)

    monkeypatch.setattr(fitting.loop, "fit", fit)
    monkeypatch.setattr(fitting.flops, "peak_flops_per_second", lambda *_: 1e12)
    data = types.SimpleNamespace(train_examples=5)
    training = fitting.DeviceTraining(
        types.SimpleNamespace(flops_per_example=3.0, data=data),
        types.SimpleNamespace(devices=jax.devices()[:2], batch_examples=8),
        types.SimpleNamespace(steps_per_dispatch=4),
    )
    assert training.size() == {
        "training_flops_per_example": 3.0,
        "train_examples": 5,
        "devices": 2,
        "processes": 1,
        "device_kind": "cpu",
        "steps_per_dispatch": 4,
    }
    logs = TrainingLogs(Run(tmp_path), Stop())
    settings = {"settings": {}, "compute_dtype": "float32"}
    with logs.trial(0, 1) as log:
        with pytest.raises(DivergedError, match="loss is nan at step 7") as diverged:
            training.fit(log, key=jax.random.key(3), **settings)
        assert diverged.value.step == 7
        with pytest.raises(runs.RunError, match=r"the setting key is \[0, 3\] there"):
            training.fit(log, key=jax.random.key(4), **settings)
    assert peaks == [2e12, 2e12]  # of both devices


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


@pytest.mark.parametrize("arm", ["all_cnn_c", "resnet", "densenet"])
def test_rivals_train_with_the_settings_that_table_2_gives_them(arm, tmp_path):
    """These are few: what is not named there has the default of the net."""
    small = {"all_cnn_c": {"width": 4}, "resnet": {"depth": 8, "width": 4}}
    trial = next(
        trial
        for trial in comparisons.trials(**settings(comparisons, "cifar10/table_2"))
        if trial["arm"] == arm and trial["phase"] == protocol.TUNING
    )
    model = trial["model"] | small.get(arm, {"depth": 10, "growth": 2})
    training = train.Training(
        data=trial["data"],
        model=model,
        optim=trial["optim"] | {"learning_rate": 0.1, "schedule": "cosine"},
        train=trial["train"] | {"steps": 1, "batch_examples": 4},
        images=_few_images(trial["data"]),
    )
    logs = TrainingLogs(Run(tmp_path), Stop())
    with logs.trial(0, 1) as log:
        result = training.run(jax.random.key(0), log)
    assert not result["diverged"] and result["test_examples"] == 4


def _skip_without_imagenet() -> None:
    for name in ("tensorflow_datasets", "array_record", "grain", "cv2"):
        pytest.importorskip(name)


def _few_images(data: dict) -> ImageData:
    """Eight random images of the size of CIFAR's; the last four are the test set."""
    images = np.random.default_rng(0).integers(0, 256, (8, 32, 32, 3), np.uint8)
    labels = np.arange(8)
    preprocessing = Preprocessing.fit(
        data["normalization"],
        images,
        pad_pixels_per_side=data["pad_pixels_per_side"],
        flip=data["flip"],
    )
    examples = Arrays(images[:4], labels[:4], images[4:], labels[4:])
    return ImageData(examples, preprocessing, {})


@pytest.mark.parametrize(
    "module",
    [cifar, comparisons, imagenet],
    ids=lambda module: module.__name__,
)
@pytest.mark.compiled_for_users
def test_predict_gives_the_labels_that_an_experiment_counted(module, tmp_path):
    """To the example, from the checkpoint alone, and not without the preprocessing."""
    changes = dict(LEARNS)
    if module is imagenet:
        _skip_without_imagenet()
        changes |= {**MINIATURE, "data.data_dir": str(tmp_path)}
    variant = list(module.VARIANTS)[-1]
    trial = module.EXPERIMENT.trials(**settings(module, variant))[-1]
    for name, value in changes.items():
        group, setting = name.split(".")
        trial[group][setting] = value
    training = module.EXPERIMENT.build(**trial)
    if module is comparisons:
        rate = changes["optim.learning_rate"]
        training = protocol.make_training(training, rate)
    logs = TrainingLogs(Run(tmp_path), Stop())
    with logs.trial(0, 1) as log:
        result = training.run(jax.random.key(0), log)
        trained = library_train.load(log.checkpoint_dir)
    data = training.task.data
    test = data.read_test(np.arange(data.test_examples))
    evaluation = trained.evaluate(test["images"], test["labels"])
    assert evaluation["examples"] == result["test_examples"] > 0
    assert evaluation["error_percent"] == pytest.approx(
        result["test_error_percent"], abs=1e-9
    )
    assert evaluation["errors"] == np.sum(
        trained.predict(test["images"]) != test["labels"]
    )
    assert evaluation["loss"] == pytest.approx(result["test_loss"], rel=1e-4)
    bare = Preprocessing.fit("none", test["images"])
    other = library_train.TrainedNet(trained.net, trained.variables, bare)
    assert np.any(other.predict(test["images"]) != trained.predict(test["images"]))


def test_the_linear_classifier_has_the_error_of_a_net_with_as_many_mistakes():
    percent = cifar.linear_classifier_error_percent()
    mistakes = round(450 * percent / 100)
    assert 20 < mistakes < 50
    assert percent == 100 * mistakes / 450


def test_the_protocol_says_how_hard_the_held_out_digits_and_the_test_digits_are():
    """docs/protocol.md, rule 2: beside as many digits that are drawn at random."""
    # here, because it takes a second that no other test needs
    from sklearn.linear_model import LogisticRegression

    images, labels = datasets.load("digits", "all")
    pixels = images.reshape(len(images), -1) / datasets.find_source("digits").pixel_max
    test_from = datasets.find_source("digits").splits["train"]
    held_out_from = test_from - protocol.HELD_OUT_EXAMPLES["digits"]

    def error_percent(order, first):
        """Of the examples from `first` on, after training on those before."""
        x = pixels[order]
        y = labels[order]
        classifier = LogisticRegression(max_iter=cifar.LINEAR_ITERATIONS)
        classifier.fit(x[:first], y[:first])
        return 100 * np.mean(classifier.predict(x[first:]) != y[first:])

    measured = []
    with threadpoolctl.threadpool_limits(1):
        for count, first in ((len(labels), test_from), (test_from, held_out_from)):
            drawn = [
                error_percent(np.random.default_rng(seed).permutation(count), first)
                for seed in range(20)
            ]
            in_order = error_percent(np.arange(count), first)
            measured += [in_order, min(drawn), max(drawn)]
    page = " ".join((forked.ROOT / "docs" / "protocol.md").read_text().split())
    said = re.search(
        r"errs on (\S+) % of them, but on (\S+) to (\S+) % of as many drawn at random,"
        r" in 20 draws.* errs on (\S+) % of them, and on (\S+) to (\S+) % of as many",
        page,
    )
    assert said is not None
    # A linear solver may label an image or two differently on another machine.
    assert [float(number) for number in said.groups()] == pytest.approx(
        measured, abs=0.8
    )


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


def test_a_comparison_goes_on_after_a_net_that_diverged_and_says_where(monkeypatch):
    def fit(*_, **__):
        raise DivergedError("loss is nan at step 7", 7)

    monkeypatch.setattr(train.Training, "fit", fit)
    trial = comparisons.trials(**settings(comparisons, "digits/two_depths"))[0]
    result = protocol.measure(protocol.build(**trial), jax.random.key(0), None)
    assert (result["diverged"], result["diverged_step"]) == (True, 7)


def test_each_split_of_imagenet_is_read_by_its_own_settings(tmp_path):
    _skip_without_imagenet()
    directory = miniature.prepare(tmp_path, 42)
    sizes = {"image_pixels": 16, "eval_shorter_side_pixels": 24}
    images = load_data({**IMAGENET_DATA, "data_dir": str(directory), **sizes})
    encoded = {
        split: library_imagenet.EncodedImages(directory, split)
        for split in ("train", "validation")
    }
    data = images.examples
    assert (data.train_examples, data.test_examples) == (42, 10)
    assert images.fingerprint == {
        split: encoded_images.fingerprint() for split, encoded_images in encoded.items()
    }
    indices = np.arange(3)
    expected = library_imagenet.read_test(
        encoded["validation"], indices, pixels=16, shorter_side_pixels=24
    )
    np.testing.assert_array_equal(data.read_test(indices)["images"], expected["images"])
    assert images.preprocessing.image_shape == (16, 16, 3)


def test_one_other_image_or_label_makes_other_data(monkeypatch):
    splits = {
        split: (np.zeros((4, 2, 2, 1), np.uint8), np.zeros(4, np.int32))
        for split in ("train", "test")
    }
    monkeypatch.setattr(datasets, "load", lambda name, split, data_dir: splits[split])

    def fingerprint(read_as: str) -> str:
        # What is read from one directory is kept.
        group = {"dataset": "digits", "normalization": "none", "data_dir": read_as}
        return load_data(group).fingerprint["sha256"]

    before = fingerprint("before")
    for split, arrays in splits.items():
        for place, array in enumerate(arrays):
            array[-1] = 1
            assert fingerprint(f"{split} {place}") != before
            array[-1] = 0
    assert fingerprint("after") == before


class Run:
    """A run directory in memory."""

    def __init__(self, path):
        self.path = path
        self.name = "cifar/v/seed=0"
        self.records = []
        self.waiting = 0

    def append(self, record, *, may_wait=False):
        self.records.append(record)
        self.waiting += may_wait

    def flush(self):
        self.waiting = 0

    def rewind(self, count):
        del self.records[count:]


def test_a_log_says_what_a_run_will_take_and_where_it_goes_on(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(TrainingLog, "say", lambda self, line: said.append(line))
    logs = TrainingLogs(Run(tmp_path), None, False, "", "")
    with logs.trial(0, 1) as log:
        log.phase("restoring", 0, 900)
        log.phase("compiling", 300, 900)
        for step in range(301, 310):
            log.progress(step, 2.0, 7200.0)
        log.append({"kind": "evaluation", "step": 309, "test_error_percent": 12.349})
    assert said[0] == "resuming from step 300 of 900"
    assert said[1].startswith("this takes about 2.0 hours on this machine, until ")
    assert said[2:] == ["step 309/900: test error 12.35 %, 2:00:00 left"]
    with logs.trial(1, 2) as log:
        log.phase("evaluating", 0, 900)
        log.progress(0, None, 3000.0)
    assert len(said) == 3


def test_lines_wait_for_the_next_checkpoint_and_events_follow_a_resumed_training(
    tmp_path, monkeypatch
):
    tensorboardX = pytest.importorskip("tensorboardX")
    writers = []
    written = []

    class Writer:
        def __init__(self, directory, purge_step):
            writers.append(purge_step)
            self.add_scalar = lambda *scalar: written.append(scalar)
            self.close = lambda: None

    monkeypatch.setattr(tensorboardX, "SummaryWriter", Writer)
    run = Run(tmp_path)
    logs = TrainingLogs(run, None, tensorboard=True)
    with logs.trial(0, 1) as log:
        for step in (30, 40):
            record = {"kind": "train", "step": step, "loss": 1.0, "ratios": [0.5, 0.25]}
            log.append(record)
        assert run.waiting == 2
        log.flush()
        assert run.waiting == 0
    # TensorBoard forgets what a killed process wrote from there on.
    assert writers == [30]
    assert written[-3:] == [
        ("train/loss", 1.0, 40),
        ("train/ratios/1", 0.5, 40),
        ("train/ratios/2", 0.25, 40),
    ]


def test_two_runs_do_not_share_checkpoints(tmp_path):
    logs = [
        TrainingLogs(Run(tmp_path), None, False, "", str(tmp_path / "ck"))
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


def test_the_checkpoints_of_a_finished_training_are_deleted_alone(tmp_path):
    """When a run is resumed, those of a later training are there already."""
    first, second = (tmp_path / "checkpoints" / f"cell={cell}" for cell in range(2))
    for directory in (first, second):
        (directory / "5").mkdir(parents=True)
    logs = TrainingLogs(Run(epath.Path(tmp_path)), None)
    logs.delete_checkpoints(0)
    assert not first.exists()
    assert second.exists()
    logs.delete_checkpoints()
    assert not second.exists()


KILL = """
import os, runpy
from experiments.run.training_log import TrainingLogs
real = TrainingLogs.delete_checkpoints
def delete(*arguments):
    real(*arguments) if {after} else None
    os.kill(os.getpid(), 9)
TrainingLogs.delete_checkpoints = delete
runpy.run_module("experiments.images.comparisons", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("after", [False, True])
def test_a_finished_net_is_not_lost_with_its_checkpoints(after, tmp_path):
    """Killed just before or after the first deletion, a comparison keeps its net."""
    config = f"--config={shallow_arms.__file__}:digits/two_depths"
    # Not the blocks of TINY: each arm has its own.
    narrow = [change for change in TINY if "blocks_per_stage" not in change]
    command = [config, *narrow, f"--results_dir={tmp_path}"]
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
