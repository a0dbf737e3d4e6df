"""The comparisons of nets: one tuning for all arms, and the verdicts.

Of experiments/images/comparisons.py and protocol.py.
"""

import statistics

import numpy as np
import pytest

from experiments.images import comparisons, data, protocol, verdicts
from experiments.images.data import load_data
from experiments.images.settings import ALL_CONV_RESIDUAL, DATA, DIGITS, require_use
from experiments.run import RESULT
from identity_matters import flops, nets
from identity_matters.batches import Arrays
from identity_matters.preprocessing import Preprocessing
from tests.measured import reference_runs, settings

FOLLOW_UP = "cifar10/table_2_smaller_rate"


@pytest.mark.parametrize(
    "variant", sorted(comparisons.OTHER_VARIANTS.keys() - {FOLLOW_UP})
)
def test_no_arm_is_tuned_in_its_own_way(variant):
    """Arms have the same grid, trials and settings, and differ in their nets alone."""
    config = settings(comparisons, variant)
    every_trial = comparisons.trials(**config)
    shared = {}
    for arm in config["arms"]:
        mine = [trial for trial in every_trial if trial["arm"] == arm]
        tuning = [trial for trial in mine if trial["phase"] == protocol.TUNING]
        assert [trial["tried_rate"] for trial in tuning] == list(
            protocol.LEARNING_RATES
        )
        (final,) = (trial for trial in mine if trial["phase"] == protocol.FINAL)
        assert mine[-1] is final and final["tried_rate"] is None
        assert len({str(trial["model"]) for trial in mine}) == 1
        for phase, trainings in ((protocol.TUNING, tuning), (protocol.FINAL, [final])):
            for trial in trainings:
                groups = {name: trial[name] for name in ("data", "optim", "train")}
                assert "learning_rate" not in groups["optim"]
                assert shared.setdefault(phase, groups) == groups
    assert len({str(trial["model"]) for trial in every_trial}) == len(config["arms"])


def test_two_depths_have_the_rates_that_the_seeds_tuned_and_nothing_else_of_their_own():
    runs = reference_runs("comparisons/digits/identity")
    assert len(runs) == 3
    for arm, rate in comparisons.TUNED_RATES.items():
        tuned = [run.summary["metrics"][f"learning_rate/{arm}"] for run in runs]
        assert rate == statistics.median(tuned)
    at_two_depths = comparisons.trials(**settings(comparisons, "digits/two_depths"))
    assert {trial["arm"] for trial in at_two_depths} == set(comparisons.TUNED_RATES)
    with_tuning = comparisons.trials(**settings(comparisons, "digits/identity"))
    final_trainings = {
        trial["arm"]: trial for trial in with_tuning if trial["phase"] == protocol.FINAL
    }
    for trial in at_two_depths:
        arm = trial["arm"]
        assert trial["tried_rate"] == comparisons.TUNED_RATES[arm]
        assert {**trial, "tried_rate": None} == final_trainings[arm]


def test_the_follow_up_has_the_next_smaller_rate_and_nothing_else_of_its_own():
    runs = reference_runs("comparisons/cifar10/table_2")
    (tuned,) = {run.summary["metrics"]["learning_rate/this_paper"] for run in runs}
    smaller = max(rate for rate in protocol.LEARNING_RATES if rate < tuned)
    (trial,) = comparisons.trials(**settings(comparisons, FOLLOW_UP))
    (final_training,) = (
        other
        for other in comparisons.trials(**settings(comparisons, "cifar10/table_2"))
        if other["arm"] == "this_paper" and other["phase"] == protocol.FINAL
    )
    assert trial == {**final_training, "tried_rate": smaller}


def test_each_arm_needs_its_tuned_rate():
    changed = settings(comparisons, "digits/two_depths")
    del changed["tuned_rates"]["identity/7"]
    with pytest.raises(
        ValueError, match="one rate for each of the arms identity/31, identity/7, "
    ):
        comparisons.trials(**changed)


def test_table_2_has_nets_of_half_a_million_parameters():
    for arm in settings(comparisons, "cifar10/table_2")["arms"].values():
        model = arm if "name" in arm else {**ALL_CONV_RESIDUAL, **arm}
        shapes = nets.variable_shapes(
            nets.make_net(num_classes=10, **model), (32, 32, 3)
        )
        assert flops.count_parameters(shapes["params"]) == pytest.approx(
            0.5e6, rel=0.05
        )


def test_held_out_images_are_not_trained_on_and_the_test_set_is_not_seen():
    images = load_data({**DATA, **DIGITS})
    short = protocol.without_held_out(images, 269)
    whole = images.examples
    parts = short.examples
    assert (parts.train_examples, parts.test_examples) == (1078, 269)
    joined = np.concatenate([parts.train_images, parts.test_images])
    np.testing.assert_array_equal(joined, whole.train_images)
    labels = np.concatenate([parts.train_labels, parts.test_labels])
    np.testing.assert_array_equal(labels, whole.train_labels)
    assert short.fingerprint != images.fingerprint


@pytest.mark.parametrize(
    ("phase", "steps", "train_examples", "test_examples"),
    [(protocol.TUNING, 400, 2, 5000), (protocol.FINAL, 2000, 5002, 1)],
)
def test_both_phases_follow_rules_2_to_4_of_the_protocol(
    phase, steps, train_examples, test_examples, monkeypatch
):
    """5,000 images held out of CIFAR; a twentieth of warm-up, a cosine to zero.

    A short trial is scored at its end, and has the schedule over its own length.
    """
    images = np.zeros((5002, 32, 32, 3), np.uint8)
    labels = np.zeros(5002, np.int32)
    examples = Arrays(images, labels, images[:1], labels[:1])
    loaded = data.ImageData(examples, Preprocessing.fit("none", images), {})
    monkeypatch.setattr(data, "load_data", lambda group: loaded)
    trial = next(
        trial
        for trial in comparisons.trials(
            **settings(comparisons, "cifar10/initialisation")
        )
        if trial["phase"] == phase
    )
    training = protocol.make_training(protocol.build(**trial), 0.3)
    seen = training.task.data
    assert (seen.train_examples, seen.test_examples) == (train_examples, test_examples)
    assert training.intervals.steps == steps
    if phase == protocol.TUNING:
        assert training.intervals.steps_per_evaluation == steps
    warmup = steps // 20
    shares = {0: 1 / warmup, warmup - 1: 1, (warmup + steps) // 2: 1 / 2, steps: 0}
    for step, share in shares.items():
        assert float(training.task.schedule(step)) == pytest.approx(share, abs=1e-6)
    assert training.task.learning_rate == 0.3


def test_a_final_training_at_a_rate_that_was_tuned_before_holds_nothing_out():
    trial = comparisons.trials(**settings(comparisons, "digits/two_depths"))[0]
    training = protocol.make_training(protocol.build(**trial), trial["tried_rate"])
    seen = training.task.data
    assert (seen.train_examples, seen.test_examples) == (1347, 450)


class _Scored:
    """In place of a training: it ends with these errors at once."""

    def run(self, key, log, *, keep_diverged):
        assert keep_diverged  # one that diverges ends no comparison
        return {"test_error_percent": 9.0, "test_examples": 7, "diverged": False}


class _Log:
    """Holds the results of the tuning of two arms: 0.01 is best for a, 0.1 for b."""

    def results(self):
        best = {"a": 0.01, "b": 0.1}
        return [
            {
                "arm": arm,
                "phase": protocol.TUNING,
                "tried_rate": rate,
                "diverged": False,
                "held_out_error_percent": float(rate != best[arm]),
            }
            for arm in best
            for rate in protocol.LEARNING_RATES
        ]


def test_an_arm_is_trained_at_its_best_rate_and_only_then_scored_on_the_test_set(
    monkeypatch,
):
    rates = []

    def make_training(part, rate):
        rates.append(rate)
        return _Scored()

    monkeypatch.setattr(protocol, "make_training", make_training)
    tuning = protocol.Part("a", protocol.TUNING, 0.3, {})
    assert protocol.measure(tuning, None, _Log()) == {
        "learning_rate": 0.3,
        "held_out_error_percent": 9.0,
        "held_out_examples": 7,
        "diverged": False,
    }
    for arm, rate in {"a": 0.01, "b": 0.1}.items():
        final_part = protocol.Part(arm, protocol.FINAL, None, {})
        result = protocol.measure(final_part, None, _Log())
        assert (result["learning_rate"], result["test_error_percent"]) == (rate, 9.0)
    assert rates == [0.3, 0.01, 0.1]


def test_held_out_images_have_no_share_in_the_normalisation():
    rng = np.random.default_rng(0)
    bright = np.arange(30)[:, None, None, None] + rng.integers(0, 9, (30, 4, 4, 1))
    labels = np.zeros(30, np.int64)
    train_images = bright.astype(np.uint8)
    examples = Arrays(train_images, labels, train_images[:1], labels[:1])
    fitted = Preprocessing.fit("mean_std", train_images, pad_pixels_per_side=1)
    short = protocol.without_held_out(data.ImageData(examples, fitted, {}), 10)
    constants = short.preprocessing.constants
    assert constants["shift"].item() == pytest.approx(train_images[:20].mean())
    assert constants["divisor"].item() == pytest.approx(train_images[:20].std())
    assert short.preprocessing.pad_pixels_per_side == 1


@pytest.mark.parametrize(
    ("variant", "changes", "message"),
    [
        (
            "digits/identity",
            {"model.blocks_per_stage": (1, 1, 1)},
            "model.blocks_per_stage would change nothing: each of arms has its own",
        ),
        (
            "cifar10/table_2",
            {"model.widths": (16, 32, 64)},
            "model.widths would change nothing: each of arms has its own",
        ),
        (
            "digits/two_depths",
            {"train.keep_final_checkpoint": True},
            "train.keep_final_checkpoint must be False: comparisons keep no nets",
        ),
    ],
)
def test_settings_that_would_change_nothing_are_refused(variant, changes, message):
    with pytest.raises(ValueError, match=message):
        protocol.build(
            **comparisons.trials(**settings(comparisons, variant, **changes))[0]
        )


def test_a_setting_that_some_arms_leave_open_may_be_changed():
    model = {"leak": 0.1, "projection": "fixed"}
    changes = [{"leak": 0.2}, {"projection": "trained"}]
    require_use(model, {**model, "leak": 0.0}, changes=changes, setting="arms")


def test_the_tuning_trials_of_an_arm_share_one_program():
    """It is compiled once, not once for each rate."""
    every_trial = comparisons.trials(**settings(comparisons, "digits/initialisation"))
    first, *others = (
        protocol.build(**trial)
        for trial in every_trial
        if trial["arm"] == "he" and trial["phase"] == protocol.TUNING
    )
    program = training_program(first)
    assert all(training_program(other) == program for other in others[::3])


def training_program(part):
    training = protocol.make_training(part, part.tried_rate)
    return training.parallel.lower("train", 1).program.as_text()


def tried(*errors):
    results = zip(protocol.LEARNING_RATES, errors, strict=True)
    return [
        {"tried_rate": rate, "diverged": error is None, "held_out_error_percent": error}
        for rate, error in results
    ]


def test_the_best_rate():
    assert protocol.best_rate(tried(9.0, 8.0, 7.0, None, None)) == 0.03
    assert protocol.best_rate(tried(9.0, 7.0, 7.0, 90.0, None)[::-1]) == 0.01
    assert protocol.best_rate(tried(*[None] * 5)) == 0.003
    for wrong in (tried(*[1.0] * 5)[:4], tried(*[1.0] * 5) + tried(*[1.0] * 5)):
        with pytest.raises(ValueError, match="needs one trial for each"):
            protocol.best_rate(wrong)


def final(test_error=10.0, train_error=1.0, diverged=False, arm="a", rate=0.03):
    result = {
        "kind": RESULT,
        "phase": protocol.FINAL,
        "arm": arm,
        "learning_rate": rate,
    }
    result |= {"diverged": diverged, "num_classes": 10, "parameters": 5}
    result |= {"training_flops_per_example": 7.0}
    if diverged:
        return {**result, "diverged_step": 3}
    errors = {"test_error_percent": test_error, "train_error_percent": train_error}
    return {**result, **errors, "train_loss": 1.0, "test_examples": 10_000}


@pytest.mark.parametrize(
    ("with_identity", "plain", "verdict"),
    [
        # At most 5 % is trained.
        (5.0, 5.1, "reproduced"),
        (5.0, 5.0, "not reproduced"),
        (5.1, 90.0, "not reproduced"),
    ],
)
def test_verdicts_at_two_depths(with_identity, plain, verdict):
    records = [
        final(train_error=error, arm=f"{arm}/{depth}")
        for arm, deep_error in (
            ("identity", with_identity),
            ("plain_unit_variance", plain),
        )
        for depth, error in ((7, 1.0), (31, deep_error))
    ]
    config = comparisons.get_config("digits/two_depths").to_dict()
    concluded = comparisons.verdict(config, records)
    assert (concluded.claim, concluded.verdict) == ("identity-needed", verdict)


def test_what_differs_and_what_has_failed():
    # Two standard errors of the difference of errors near 15 % of 10,000 images are
    # 1.01 points.
    assert verdicts.errs_less(final(15.0), final(16.1))
    assert not verdicts.errs_less(final(15.0), final(15.9))
    assert not verdicts.errs_less(final(16.1), final(15.0))
    assert verdicts.errs_less(final(15.0), final(diverged=True))
    assert not verdicts.errs_less(final(diverged=True), final(diverged=True))
    assert protocol.failed(final(diverged=True)) and protocol.failed(
        final(train_error=80.0)
    )
    assert not protocol.failed(final(train_error=79.9))
    # Chance is 99 % with 100 classes.
    assert protocol.failed({**final(train_error=89.0), "num_classes": 100})
    assert not protocol.failed({**final(train_error=88.9), "num_classes": 100})


def depths(identity, plain, orthogonal):
    """Training errors at 7 and 31 convolutions of the three arms of CIFAR-10.

    A net without one has diverged.
    """
    arms = {"identity": identity, "plain_unit_variance": plain}
    arms["plain_delta_orthogonal"] = orthogonal
    return [
        final(train_error=error, diverged=error is None, arm=f"{arm}/{depth}")
        for arm, errors in arms.items()
        for depth, error in zip((7, 31), errors, strict=True)
    ]


@pytest.mark.parametrize(
    ("errors", "verdict", "first_failed"),
    [
        # At most 60 % is trained.
        (
            ((60, 60), (40, 60.1), (40, None)),
            "reproduced",
            {"plain_unit_variance": 31, "plain_delta_orthogonal": 31},
        ),
        (
            ((30, 30), (40, 60), (40, 90)),
            "not reproduced",
            {"plain_delta_orthogonal": 31},
        ),
        (
            ((60.1, 30), (40, 90), (90, 90)),
            "not reproduced",
            {"identity": 7, "plain_unit_variance": 31, "plain_delta_orthogonal": 7},
        ),
    ],
)
def test_verdicts_on_the_identity(errors, verdict, first_failed):
    config = comparisons.get_config("cifar10/identity").to_dict()
    concluded = comparisons.verdict(config, depths(*errors))
    assert (concluded.claim, concluded.verdict) == ("identity-needed", verdict)
    prefix = "first_failed_depth/"
    assert first_failed == {
        name.removeprefix(prefix): depth
        for name, depth in concluded.metrics.items()
        if name.startswith(prefix)
    }


@pytest.mark.parametrize(
    ("variant", "errors", "verdict"),
    [
        ("cifar10/initialisation", {"paper": 15.0, "he": 16.1}, "reproduced"),
        ("cifar10/initialisation", {"paper": 15.0, "he": 15.5}, "undecided"),
        ("cifar10/initialisation", {"paper": 16.1, "he": 15.0}, "not reproduced"),
        ("cifar10/table_2", {"this_paper": 15.0, "all_cnn_c": 16.1}, "reproduced"),
        ("cifar10/table_2", {"this_paper": 16.1, "all_cnn_c": 15.0}, "not reproduced"),
        # It has no rival beside it.
        (FOLLOW_UP, {"this_paper": 15.0}, "not comparable"),
        ("cifar10/starts", {"paper": 15.0, "fixup": 15.5, "gate": 14.5}, "reproduced"),
        (
            "cifar10/starts",
            {"paper": 16.1, "fixup": 15.0, "gate": 17.0},
            "not reproduced",
        ),
    ],
)
def test_verdicts_on_test_errors(variant, errors, verdict):
    records = [final(error, arm=arm) for arm, error in errors.items()]
    concluded = comparisons.verdict(comparisons.get_config(variant).to_dict(), records)
    assert concluded.verdict == verdict


TRAINED = {"test_error": 30.0}
# Its test error is lower than that of a net at chance that has learned nothing.
AT_CHANCE = {"test_error": 89.0, "train_error": 89.0}
DIVERGED = {"diverged": True}


@pytest.mark.parametrize(
    ("variant", "arms", "verdict"),
    [
        (
            "cifar10/initialisation",
            {"paper": AT_CHANCE, "he": DIVERGED},
            "undecided",
        ),
        (
            "cifar10/initialisation",
            {"paper": TRAINED, "he": AT_CHANCE},
            "reproduced",
        ),
        # One that has failed is worse even if its test error is lower.
        (
            "cifar10/initialisation",
            {"paper": {"test_error": 89.5, "train_error": 79.0}, "he": AT_CHANCE},
            "reproduced",
        ),
        (
            "cifar10/table_2",
            {"this_paper": DIVERGED, "all_cnn_c": AT_CHANCE},
            "undecided",
        ),
        (
            "cifar10/table_2",
            {"this_paper": AT_CHANCE, "all_cnn_c": TRAINED},
            "not reproduced",
        ),
        (
            "cifar10/starts",
            {"paper": DIVERGED, "fixup": DIVERGED, "gate": AT_CHANCE},
            "undecided",
        ),
        (
            "cifar10/starts",
            {"paper": DIVERGED, "fixup": DIVERGED, "gate": TRAINED},
            "not reproduced",
        ),
        (
            "cifar10/starts",
            {"paper": TRAINED, "fixup": DIVERGED, "gate": AT_CHANCE},
            "reproduced",
        ),
    ],
)
def test_nets_that_failed_are_not_compared(variant, arms, verdict):
    records = [final(**result, arm=arm) for arm, result in arms.items()]
    concluded = comparisons.verdict(comparisons.get_config(variant).to_dict(), records)
    assert concluded.verdict == verdict


def test_metrics_say_what_was_tuned_and_whether_the_grid_was_wide_enough():
    metrics = protocol.metrics_of([final(arm="a", rate=0.3), final(arm="b", rate=0.1)])
    assert (metrics["learning_rate/a"], metrics["at_edge_of_grid/a"]) == (0.3, 1)
    assert (metrics["learning_rate/b"], metrics["at_edge_of_grid/b"]) == (0.1, 0)


def test_metrics_say_which_arms_have_failed_and_where_they_diverged():
    metrics = protocol.metrics_of(
        [
            final(arm="a"),
            final(arm="b", train_error=80.0),
            final(arm="c", diverged=True),
        ]
    )
    assert [metrics[f"failed/{arm}"] for arm in "abc"] == [0, 1, 1]
    diverged = {name: metrics[name] for name in metrics if "diverged_step" in name}
    assert diverged == {"diverged_step/c": 3}
