"""How long a run took, by phase, as its records say; all times can be added by hand."""

import types

import jax

from experiments import run
from experiments.run import measuring
from experiments.run.signals import Stop
from experiments.run.training_log import TrainingLogs
from identity_matters import runs


def logged(cell, kind, seconds, compile_seconds=0.0):
    times = {"seconds": seconds, "compile_seconds": compile_seconds}
    return {"cell": cell, "kind": kind, **times}


def experiment_of(measure=None):
    return run.DeviceExperiment(
        name="toy",
        module=__name__,
        trials=lambda: [{}],
        verdict=lambda settings, records: run.Verdict("theorem-2-1", {}, "holds"),
        measure=measure,
    )


def test_what_a_training_logs_and_the_rest_of_its_time_are_all_of_it():
    records = [
        logged(0, "train", 10.0, 3.0),
        logged(0, "evaluation", 2.0, 1.0),
        logged(0, "result", 20.0, 4.0),
        logged(1, "train", 5.0),
        logged(1, "result", 7.0),
    ]
    # 4 seconds of the first trial and 2 of the second were not logged.
    assert experiment_of().phase_seconds(records) == {
        "compile": 4,
        "train": 15,
        "evaluate": 2,
        "other": 6,
        "total": 27,
    }


def test_an_older_run_whose_training_was_resumed_took_what_it_logged():
    records = [
        logged(0, "train", 100.0),
        logged(0, "train", 10.0),
        logged(0, "result", 11.0),  # of the last process
        logged(1, "train", 5.0),
        logged(1, "result", 7.0),
    ]
    seconds = experiment_of().phase_seconds(records)
    assert (seconds["other"], seconds["total"]) == (2, 117)


def test_a_training_that_diverged_took_what_it_logged():
    seconds = experiment_of().phase_seconds([logged(0, "train", 10.0, 3.0)])
    assert (seconds["other"], seconds["total"]) == (0, 13)


def test_a_resumed_training_counts_the_records_that_it_goes_on_from(tmp_path):
    def measure(built, key, log):
        log.rewind(2)
        log.append({"kind": "train", "step": 3, "seconds": 0.0, "compile_seconds": 0.0})
        return {"compile_seconds": 1.0}

    run_dir = runs.RunDir.create(
        tmp_path, experiment="toy", variant="plain", seed=0, config={}
    )
    for step, seconds in ((1, 100.0), (2, 20.0), (3, 1000.0)):
        run_dir.append({"step": step, **logged(0, "train", seconds, 0.5)})
    stop = Stop()
    measuring.measure_trials(
        experiment_of(measure),
        [{}],
        [types.SimpleNamespace()],
        key=jax.random.key(0),
        run_dir=run_dir,
        stop=stop,
        logs=TrainingLogs(run_dir, stop),
    )
    result = run_dir.records[-1]
    # Two records of 100.5 and 20.5 seconds stay; the new part takes less than 5.
    assert 121 <= result["seconds"] < 126
    run_dir.finish("failed")
