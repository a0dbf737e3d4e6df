"""Agreement among simulated processes; test_survival runs real ones."""

import ctypes
import json
import os
import signal
import socket
import threading
import types

import jax
import ml_collections
import ml_dtypes
import numpy as np
import pytest

from experiments import run
from experiments.run import endings, execution, measuring, multiprocess, signals
from experiments.run import process as settings_of_process
from identity_matters.train import multihost
from tests import forked


@pytest.fixture
def gathered(monkeypatch):
    """gathered(f) makes `gather` return ``f(value)``.

    That holds the values of processes 0, 1, ...
    """

    def pretend(values):
        monkeypatch.setattr(
            multihost, "gather", lambda value: json.loads(json.dumps(values(value)))
        )

    return pretend


def test_alone_nothing_happens():
    with pytest.raises(KeyError):
        multihost.check_agreement({}, error=KeyError("x"))
    assert multihost.gather({"a": [1, 2.5, None]}) == [{"a": [1, 2.5, None]}]
    assert multihost.make_and_tell(lambda: {3, 4}, describe=sorted) == {3, 4}
    tree = {"x": np.float32([-0.0, 1])}
    assert multihost.arrays_from_process_0(tree) is tree
    assert multihost.restored_by_process_0(lambda: (3, tree), like={}) == (3, tree)
    assert multihost.restored_by_process_0(lambda: None, like=tree) is None
    assert multihost.is_process_0()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([{"a": 1, "b": 2}, {"a": 1, "b": 3}], "process 1 has b=3, process 0 has b=2"),
        ([{"a": 1}, {"a": 1}, {}], "process 2 has a=None, process 0 has a=1"),
        (
            [{"a": {"b": 1}}, {"a": {"b": 2}}],
            r"process 1 has a\.b=2, process 0 has a\.b=1",
        ),
    ],
)
def test_a_difference_is_named_with_both_values(gathered, values, message):
    gathered(lambda _: [{"values": value, "error": None} for value in values])
    with pytest.raises(ValueError, match=message):
        multihost.check_agreement({})
    gathered(lambda _: [{"values": values[0], "error": None}] * 3)
    multihost.check_agreement({})


def test_all_must_have_the_same_number_of_devices(monkeypatch):
    owners = [0, 0, 1]
    devices = [types.SimpleNamespace(process_index=owner) for owner in owners]
    monkeypatch.setattr(jax, "devices", lambda: devices)
    with pytest.raises(
        ValueError, match="process 1 has devices=1, process 0 has devices=2"
    ):
        multihost.check_agreement({})
    devices.append(devices[-1])
    multihost.check_agreement({})


def test_settings_seeds_and_versions_must_be_alike_but_for_places(gathered):
    settings = {"data": {"data_dir": "a", "flip": True}, "optim": {"momentum": 0.9}}
    others = {"seed": 0, "data": [{"sha256": "d"}]}

    def with_other(name, value):
        def both(mine):
            assert name in mine["values"] and mine["error"] is None
            return [mine, {**mine, "values": {**mine["values"], name: value}}]

        return both

    gathered(with_other("data.data_dir", "b"))
    multiprocess.require_alike(settings, others, None)
    of_settings = ("optim.momentum", "data.flip", "data", "seed")
    # Other programs would wait for each other for ever.
    of_programs = ("commit", "digest_of_code", "packages", "jax_settings", "variables")
    for name in of_settings + of_programs:
        gathered(with_other(name, "other"))
        with pytest.raises(
            ValueError, match=f"process 1 has {name}='other', process 0 has"
        ):
            multiprocess.require_alike(settings, others, None)


def test_processes_stop_together_or_not_at_all(gathered):
    stop = signals.Stop()
    gathered(lambda mine: [mine, False])
    multiprocess.check_stop(stop)
    gathered(lambda mine: [mine, True])
    with pytest.raises(signals.Interrupted):
        multiprocess.check_stop(stop)
    gathered(lambda mine: [mine, False])
    stop.requested = KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        multiprocess.check_stop(stop)


@pytest.mark.parametrize(
    "ending",
    [endings.Ending(2, "no disk"), endings.Ending(0, "skipped: no GPU"), endings.DONE],
)
def test_who_failed_alone_does_not_wait_for_those_who_wait_for_it(monkeypatch, ending):
    others_come = threading.Event()
    monkeypatch.setattr(jax.distributed, "shutdown", others_come.wait)
    monkeypatch.setattr(multiprocess, "_FAILED_SECONDS", 0.01)
    leaving = threading.Thread(target=multiprocess.leave, args=(ending,), daemon=True)
    leaving.start()
    if ending == endings.DONE:
        leaving.join(0.2)
        assert leaving.is_alive()
        others_come.set()
    leaving.join(60)
    assert not leaving.is_alive()
    others_come.set()


@pytest.mark.parametrize(
    ("several", "given", "used"),
    [
        (False, "", "identity_matters/jax"),
        (True, "", ""),
        (True, "shared", "shared"),
    ],
)
def test_processes_share_a_cache_of_programs_or_have_none(
    monkeypatch, tmp_path, several, given, used
):
    """Process 0 alone would fill the one in its home directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: several)
    before = jax.config.values["jax_compilation_cache_dir"]
    try:
        jax.config.update(
            "jax_compilation_cache_dir", str(tmp_path / given) if given else None
        )
        settings_of_process._configure_cache()
        cache = jax.config.values["jax_compilation_cache_dir"]
        assert cache == (str(tmp_path / used) if used else None)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_what_they_compare_is_experiment_seed_and_data(monkeypatch):
    compared = {}

    def require_alike(settings, others, error):
        compared.update(settings=settings, others=others, error=error)

    monkeypatch.setattr(multiprocess, "require_alike", require_alike)
    trains = run.TrainingExperiment("cifar", __name__, trials=list, verdict=dict)
    built = [types.SimpleNamespace(fingerprint="abc"), types.SimpleNamespace()]
    refusal = ValueError("no")
    stop = signals.Stop()
    execution._require_agreement(trains, {"depth": 3}, 5, built, refusal, stop)
    others = {"experiment": "cifar", "seed": 5, "data": ["abc", None]}
    assert compared == {"settings": {"depth": 3}, "others": others, "error": refusal}


def test_all_stop_before_the_run_and_before_each_training_if_one_is_told(monkeypatch):
    monkeypatch.setattr(multihost, "any_process", lambda mine: True)
    monkeypatch.setattr(multiprocess, "require_alike", lambda *_: None)
    trains = run.TrainingExperiment("cifar", __name__, trials=list, verdict=dict)
    stop = signals.Stop()
    with pytest.raises(signals.Interrupted):
        execution._require_agreement(trains, {}, 0, [], None, stop)
    with pytest.raises(signals.Interrupted):
        measuring.measure_trials(
            trains,
            trials=[{}],
            built=[None],
            key=jax.random.key(0),
            run_dir=types.SimpleNamespace(records=[]),
            stop=stop,
            logs=object(),
        )


@pytest.mark.parametrize("several", [False, True])
def test_a_signal_ends_one_process_at_once_and_several_only_together(
    monkeypatch, several
):
    told = []

    def tell(*_, **__):
        told.append(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    def measure(*arguments):
        stop = arguments[-1]
        assert stop.requested is signals.Interrupted
        told.append(stop)
        raise signals.Interrupted

    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: several)
    monkeypatch.setattr(execution, "_prepare", tell)
    monkeypatch.setattr(
        execution, "_open_run", lambda *_: multiprocess.SilentRun("r", "e", [])
    )
    monkeypatch.setattr(execution, "_measure", measure)
    trains = run.TrainingExperiment("cifar", __name__, trials=list, verdict=dict)
    with pytest.raises(signals.Interrupted):
        execution.execute(
            trains, ml_collections.ConfigDict(), seed=0, results_dir="results"
        )
    assert len(told) == (2 if several else 1)


def test_only_who_writes_must_be_able_to_write(monkeypatch):
    trains = run.TrainingExperiment("cifar", __name__, trials=list, verdict=dict)
    options = {"checkpoint_dir": "/proc/nowhere"}
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    with pytest.raises(ValueError, match="--checkpoint_dir cannot be used"):
        execution._check_log_options(trains, options)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    execution._check_log_options(trains, options)


def test_the_handler_of_a_signal_that_jax_took_over_is_back(monkeypatch):
    def take_over(**_):
        ignore = ctypes.c_void_p(1)  # SIG_IGN
        ctypes.CDLL(None).signal(signal.SIGTERM, ignore)

    monkeypatch.setattr(multihost, "initialize", take_over)
    given = {"coordinator_address": None, "num_processes": None, "process_id": None}
    chosen = types.SimpleNamespace(distributed=True, **given)
    monkeypatch.setattr(multiprocess.flags, "FLAGS", chosen)
    with signals.stop_signal(asks_first=True) as stop:
        assert multiprocess.join()
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested is signals.Interrupted


def test_an_error_of_one_reaches_the_others(gathered, monkeypatch):
    gathered(lambda mine: [mine, {**mine, "error": None}])
    with pytest.raises(ValueError, match="process 0: no data here"):
        multihost.check_agreement({}, ValueError("no data here\nor there"))
    gathered(lambda mine: [mine or {"error": "RunError: it is finished"}, None])
    with pytest.raises(KeyError, match=r"^'x'$"):  # process 0 raises its own error
        multihost.make_and_tell(lambda: {}["x"], describe=sorted)
    with pytest.raises(KeyError, match=r"^'x'$"):
        multihost.restored_by_process_0(lambda: {}["x"], like={})
    monkeypatch.setattr(multihost, "is_process_0", lambda: False)
    with pytest.raises(multihost.Process0Error, match="RunError: it is finished"):
        multihost.told_by_process_0()
    with pytest.raises(multihost.Process0Error, match="RunError: it is finished"):
        multihost.restored_by_process_0(lambda: pytest.fail("only 0"), like={})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((None, None, None), "the processes could not be joined: "),
        (("nowhere", 2, 0), "coordinator_address must be HOST:PORT, got 'nowhere'"),
    ],
)
def test_what_makes_no_cluster_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        multihost.initialize(*arguments)


# Bits that a sum over processes would change: negative zeros, a NaN with a payload,
# subnormals.
_SENT = {
    "zeros": np.array([-0.0, 0.0, -0.0], np.float32),
    "nan": np.array([0x7FC0_1234, 0xFFC0_0001], np.uint32).view(np.float32),
    "subnormal": np.array([1e-45, -1e-45], np.float32),
    "scalar": np.array(-0.0, np.float64),
    "whole": np.array([[-1], [2**40]], np.int64),
    "small": np.array([-0.0, 3.0]).astype(ml_dtypes.bfloat16),
}


def _receive(address, process_id):
    """Ends with 0 if what process 0 sent arrives bit for bit.

    Processes start from other arrays.
    """
    multihost.initialize(address, 2, process_id)
    others = jax.tree.map(np.ones_like, _SENT)
    restored = multihost.restored_by_process_0(
        lambda: ({"step": 3}, _SENT) if process_id == 0 else os._exit(4), like=others
    )
    assert restored is not None
    description, received = restored
    equal = description == {"step": 3} and all(
        received[name].dtype == sent.dtype
        and received[name].shape == sent.shape
        and received[name].tobytes() == sent.tobytes()
        for name, sent in _SENT.items()
    )
    os._exit(0 if equal else 5)


def test_arrays_arrive_bit_for_bit():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [
        forked.server.Process(target=_receive, args=(address, i)) for i in (0, 1)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]


def _wait_in_vain(address, process_id):
    try:
        multihost.initialize(address, 2, process_id, start_timeout_seconds=1)
    except ValueError as error:
        os._exit(3 if "not all of them came within 1 s" in str(error) else 4)


@pytest.mark.parametrize("process_id", [0, 1])
def test_who_waits_in_vain_is_told_and_not_aborted(process_id):
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    waiting = forked.server.Process(target=_wait_in_vain, args=(address, process_id))
    waiting.start()
    waiting.join(60)
    assert waiting.exitcode == 3


def test_a_silent_run_holds_the_lines_that_the_file_would():
    run = multiprocess.SilentRun("r", "e/v/seed=0", [{"loss": "NaN"}])
    run.append({"x": np.float32(0.5), "y": np.inf})
    assert np.isnan(run.records[0]["loss"])
    assert run.records[1] == {"x": 0.5, "y": np.inf}
    run.rewind(1)
    assert len(run.records) == 1
    assert run.finish("done", verdict="reproduced")["status"] == "done"
