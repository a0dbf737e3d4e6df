"""Checkpoints: what is restored after damage, what is refused, what comes back."""

import collections
import errno
import json
import math
import shutil
from typing import NamedTuple

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from identity_matters.train import trees
from identity_matters.train.checkpoint import (
    Checkpoints,
    load_variables,
    save_variables,
)
from identity_matters.train.checkpoint_storage import CheckpointError

SETTINGS = {
    "optim": {"learning_rate": 0.05, "boundary_steps": (3, 5)},
    "name": "cifar10",
}
# Too large for tensorstore to keep inside its index, so it gets a file of its own.
LARGE = (64, 64)


def state_of(step):
    rng = np.random.default_rng(step)
    return {
        "params": {"conv": {"kernel": rng.normal(size=LARGE).astype(np.float32)}},
        "step": np.int32(step),
        "empty": {},
        "opt_state": (rng.normal(size=3).astype(jnp.bfloat16), ()),
    }


def extra_of(step):
    sums = {"loss": 0.1 + step, "largest": math.inf}
    return {"records": step, "sums": sums, "note": None}


def like(tree):
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), tree
    )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A directory in which steps 1, 2 and 3 were saved."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    with Checkpoints(directory, settings=SETTINGS) as checkpoints:
        assert checkpoints.restore(state_of(0)) is None
        assert not directory.exists()
        for step in (1, 2, 3):
            checkpoints.save(step, state_of(step), extra_of(step))
    return directory


@pytest.fixture
def directory(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


def restore(directory, settings=SETTINGS, expected=None):
    """(the restored checkpoint, warnings).

    Checks that the state is exactly what was saved.
    """
    warned = []
    with Checkpoints(
        directory, settings=settings, on_warning=warned.append
    ) as checkpoints:
        restored = checkpoints.restore(expected or like(state_of(0)))
    if restored is not None:
        step, state, extra = restored
        assert extra == extra_of(step)
        jax.tree.map(np.testing.assert_array_equal, state, state_of(step))
        assert all(type(leaf) is np.ndarray for leaf in jax.tree.leaves(state))
        types = [
            jax.tree.map(lambda x: x.dtype, tree) for tree in (state, state_of(step))
        ]
        assert types[0] == types[1]
    return restored, warned


def content(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_the_newest_is_restored_and_only_two_are_kept(directory, monkeypatch):
    before = content(directory)
    restored, warned = restore(directory)
    assert restored[0] == 3 and warned == []
    assert sorted(path.name for path in directory.iterdir()) == ["2", "3"]
    assert content(directory) == before
    monkeypatch.chdir(directory.parent)
    assert restore(directory.name)[0][0] == 3


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def delete(path):
    path.unlink()


def metadata(directory, step):
    return directory / str(step) / "metadata" / "metadata"


# orbax reads all arrays at once and gives up at the first damaged one; the other
# results then reach an event loop that is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage", [flip_a_bit, truncate, delete])
def test_damage_to_any_file_never_restores_wrong_numbers(saved, tmp_path, damage):
    """If the damage matters, step 2 is restored with a warning; if not, step 3 is."""
    fell_back = set()
    for name in content(saved / "3"):
        directory = shutil.copytree(saved, tmp_path / "copy", dirs_exist_ok=True)
        damage(directory / "3" / name)
        damaged = content(directory / "3")
        restored, warned = restore(directory)
        if restored[0] == 2:
            assert len(warned) == 1 and "checkpoint 3 is damaged" in warned[0]
            assert "checkpoint 2 is used" in warned[0]
            assert content(directory / "damaged" / "3") == damaged
            fell_back.add(name)
        else:
            assert restored[0] == 3 and warned == []
        shutil.rmtree(directory)
    assert "metadata/metadata" in fell_back
    sizes = {name: len(data) for name, data in content(saved / "3").items()}
    assert max(sizes, key=sizes.get) in fell_back


def test_a_run_goes_on_after_damage(directory):
    for aside in ("3", "3.1", "3.2"):
        flip_a_bit(metadata(directory, 3))
        warned = []
        with Checkpoints(
            directory, settings=SETTINGS, on_warning=warned.append
        ) as checkpoints:
            assert checkpoints.restore(like(state_of(0)))[0] == 2
            checkpoints.save(3, state_of(3), extra_of(3))
        assert len(warned) == 1
        assert restore(directory)[0][0] == 3
        assert (directory / "damaged" / aside).exists()


def test_where_all_are_damaged_it_stops_and_touches_nothing(directory):
    for step in (3, 2):
        truncate(metadata(directory, step))
        before = content(directory)
        with pytest.raises(CheckpointError, match=r"checkpoint 3 in .* is damaged \("):
            load_variables(directory)  # never those of another step
    with pytest.raises(
        CheckpointError, match=r"all checkpoints in .* are damaged \(3: .*; 2: "
    ):
        restore(directory)
    assert content(directory) == before


@pytest.mark.parametrize(
    "failure",
    [
        OSError(errno.EIO, "Input/output error"),
        TimeoutError("timed out"),
        ValueError("UNAVAILABLE: the bucket does not answer"),
        Exception("DEADLINE_EXCEEDED: ..."),
        ValueError("Error reading: [OS error 5: Input/output error]"),
        ValueError("Error opening: [OS error 24: Too many open files]"),
    ],
)
def test_storage_that_does_not_answer_is_not_damage(directory, failure, monkeypatch):
    before = content(directory)
    read = ocp.CheckpointManager.restore

    def failing(manager, step, args):
        if "state" in args:
            raise failure
        return read(manager, step, args=args)

    monkeypatch.setattr(ocp.CheckpointManager, "restore", failing)
    with pytest.raises(CheckpointError, match=r"checkpoint 3 in .* cannot be read now"):
        restore(directory)
    # A file that is missing is damage, and too little memory is not.
    failure = ValueError("Error opening: [OS error 2: No such file or directory]")
    with pytest.raises(CheckpointError, match=r"all checkpoints in .* are damaged"):
        restore(directory)
    failure = MemoryError("Unable to allocate 8 TiB")
    with pytest.raises(MemoryError, match="Unable to allocate 8 TiB"):
        restore(directory)
    assert content(directory) == before


def test_what_is_being_written_is_left_alone_by_readers_and_removed_by_the_run(
    directory,
):
    unfinished = directory / "4.orbax-checkpoint-tmp"
    (unfinished / "metadata").mkdir(parents=True)
    load_variables(directory)
    assert unfinished.exists()
    assert restore(directory)[0][0] == 3
    assert not unfinished.exists()


def test_metadata_that_were_changed_are_not_believed(directory):
    held = metadata(directory, 3).read_bytes()
    assert held.count(b"0.05") == 1
    metadata(directory, 3).write_bytes(held.replace(b"0.05", b"0.07"))
    restored, warned = restore(directory)
    assert (
        restored[0] == 2 and "its metadata are not those that were saved" in warned[0]
    )
    (directory / "2").rename(directory / "7")
    with pytest.raises(CheckpointError, match=r"7: .*: it was saved as step 2"):
        restore(directory)


@pytest.mark.parametrize("text", ["[]", "[" * 100_000])
def test_what_orbax_cannot_list_is_one_line(directory, text):
    (directory / "3" / "_CHECKPOINT_METADATA").write_text(text)
    with pytest.raises(CheckpointError, match="cannot be read"):
        restore(directory)


def test_other_settings_are_refused_by_name_and_nothing_is_touched(directory):
    # Not even the damaged newest step is moved: the directory belongs to another run.
    flip_a_bit(metadata(directory, 3))
    before = content(directory)
    settings = {
        **SETTINGS,
        "optim": {"learning_rate": 0.1, "boundary_steps": [3, 5]},
        "new": 1,
    }
    with pytest.raises(CheckpointError) as error:
        restore(directory, settings)
    assert (
        str(error.value)
        == f"the checkpoint {directory}/2 is from another run: the setting new is None"
        " there and 1 here; the setting optim.learning_rate is 0.05 there and 0.1"
        " here"
    )
    assert content(directory) == before


def test_the_variables_of_a_run_are_those_of_every_collection(tmp_path):
    variables = {"params": {"w": W}, "fixed": {"P": W + 1}, "batch_stats": {"m": W + 2}}
    with Checkpoints(tmp_path, settings=SETTINGS) as checkpoints:
        checkpoints.save(1, {**variables, "step": np.int32(1)}, extra_of(1))
    assert same(variables, load_variables(tmp_path))


@pytest.mark.parametrize(("count", "ending"), [(5, "here"), (7, "; and 2 more")])
def test_of_many_other_settings_five_are_named(directory, count, ending):
    new = {f"new{place}": place for place in range(count)}
    with pytest.raises(CheckpointError) as error:
        restore(directory, SETTINGS | new)
    assert str(error.value).count("the setting new") == 5
    assert str(error.value).endswith(ending)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"step": np.zeros((), np.int64)},
            r"array step is 'int32\[\]' there and 'int64\[\]' here",
        ),
        ({"opt_state": ()}, r"opt_state.0 is 'bfloat16\[3\]' there and None here"),
    ],
)
def test_another_state_is_refused_by_name(directory, changed, message):
    before = content(directory)
    with pytest.raises(CheckpointError, match=message):
        restore(directory, expected=like({**state_of(0), **changed}))
    assert content(directory) == before


def test_a_step_that_is_not_newer_is_refused(directory):
    with Checkpoints(directory, settings=SETTINGS) as checkpoints:
        with pytest.raises(CheckpointError, match="holds checkpoint 3 already"):
            checkpoints.save(3, state_of(3), extra_of(3))
        checkpoints.save(5, state_of(5), extra_of(5))
    assert restore(directory)[0][0] == 5


# Variables alone: what comes back is what was saved, or it is refused

W = np.arange(3, dtype=np.float32)


def same(saved, restored):
    """Whether two trees have the same containers, order of keys, and arrays."""
    if isinstance(saved, dict | flax.core.FrozenDict):
        keys = [(type(key), key) for key in saved]
        alike = type(saved) is type(restored) and keys == [
            (type(key), key) for key in restored
        ]
        return alike and all(same(saved[key], restored[key]) for key in saved)
    if isinstance(saved, list | tuple):
        alike = type(saved) is type(restored) and len(saved) == len(restored)
        return alike and all(map(same, saved, restored))
    if saved is None:
        return restored is None
    array = np.asarray(saved)
    return (
        type(restored) is np.ndarray
        and (restored.dtype, restored.shape) == (array.dtype, array.shape)
        and restored.dtype.isnative
        and restored.tobytes() == array.tobytes()
    )


# Names that a file system, or a path of names, could take for something else.
NAMES = (
    "",
    " ",
    ".",
    "..",
    "a.b",
    "a/b",
    "%",
    "%2E",
    "~",
    "é",
    "\n",
    "A",
    "NaN",
    "k" * 200,
)


def mixed_variables():
    """Variables with every container, name, shape and dtype that comes back."""
    return {
        "params": {
            "list": [W, {"tuple": (2 * W, None, ())}, []],
            "whole": {0: W, 7: 2 * W, -1: {1: W}},
            "frozen": flax.core.freeze({"b": W, "a": {"c": W}}),
            "names": {name: i * W for i, name in enumerate(NAMES)},
            "a": {"b": 3 * W},  # not a.b
            "empty": {},
        },
        "batch_stats": {},
        "counters": {"calls": np.int32(3)},
        "step": {"w": jnp.asarray(W)},
        "opt_state": [W],
        "shapes": {
            "none": np.zeros((0, 4)),
            "none_of_bfloat16": jnp.zeros((3, 0), jnp.bfloat16),
            "scalar": np.array(-0.0),
            "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
            "strided": np.arange(10)[::-3],
        },
        "dtypes": {
            name: np.array([0, 1, 1]).astype(jnp.dtype(name))
            for name in (
                "bool",
                "int8",
                "int16",
                "int32",
                "int64",
                "uint8",
                "uint16",
                "uint32",
                "uint64",
                "float16",
                "float32",
                "float64",
                "complex64",
                "complex128",
                "bfloat16",
                "int4",
                "float8_e4m3fn",
                "float8_e5m2",
            )
        },
    }


def test_variables_come_back_in_their_containers(tmp_path):
    variables = mixed_variables()
    save_variables(tmp_path / "mixed", variables)
    assert same(variables, load_variables(tmp_path / "mixed"))
    frozen = flax.core.freeze({"params": {"w": W}})
    save_variables(tmp_path / "frozen", frozen)
    assert same(frozen, load_variables(tmp_path / "frozen"))


class Pair(NamedTuple):
    a: np.ndarray
    b: np.ndarray


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (
            {"w": W.astype(">f4")},
            "params.w has dtype >f4, whose byte order is not this machine's",
        ),
        ({"w": np.array([None])}, "params.w has dtype object, which cannot be saved"),
        ({"w": np.array(["a"])}, "params.w has dtype <U1"),
        (
            {"w": np.array(["2020-01-01"], "M8[D]")},
            r"params.w has dtype datetime64\[D\]",
        ),
        ({"w": np.longdouble([1])}, "params.w has dtype"),
        ({"w": W.astype(jnp.uint4)}, "params.w has dtype uint4"),
        ({"w": 3.0}, "params.w is a float, which would not come back as such"),
        ({"w": "text"}, "params.w is a str"),
        (
            {"w": jax.random.key(0)},
            r"params.w is a random key: save jax\.random\.key_data of it",
        ),
        ({"w": np.ma.array([1.0, 2.0], mask=[0, 1])}, "params.w is a MaskedArray"),
        ({"w": W.view(np.recarray)}, "params.w is a recarray"),
        (Pair(W, W), "params is a Pair"),
        (collections.OrderedDict(a=W), "params is a OrderedDict"),
        (
            {(1, 2): W},
            r"the keys of params must all be text or all whole numbers, got \(1, 2\)",
        ),
        (
            {0: W, "a": W},
            "the keys of params must all be text or all whole numbers, got 0",
        ),
        (
            {True: W},
            "the keys of params must all be text or all whole numbers, got True",
        ),
        ({"\ud800": W}, r"the key '\\ud800' of params is not valid text"),
        ({}, "there is nothing to save"),
        ({"z": np.zeros((0, 4))}, "there is nothing to save"),
    ],
)
def test_what_would_not_come_back_is_refused_before_anything_is_written(
    params, message, tmp_path
):
    with pytest.raises(trees.NotStorableError, match=message):
        save_variables(tmp_path / "net", {"params": params})
    assert not (tmp_path / "net").exists()
    with pytest.raises(
        trees.NotStorableError, match="must be a dict of collections, got a"
    ):
        save_variables(tmp_path / "net", [params])


def test_a_file_is_no_directory_of_checkpoints(tmp_path):
    (tmp_path / "own.py").write_text("")
    with pytest.raises(
        CheckpointError, match=r"own\.py is a file; checkpoints need a directory"
    ):
        save_variables(tmp_path / "own.py", {"params": {"w": W}})


def test_no_directory_is_not_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: save_variables("", {"params": {"w": W}}),
        lambda: load_variables(""),
    ):
        with pytest.raises(CheckpointError, match=r"^the directory's name is empty$"):
            call()
    assert not list(tmp_path.iterdir())
    save_variables(".", {"params": {"w": W}})
    np.testing.assert_array_equal(load_variables(".")["params"]["w"], W)


def test_checkpoints_of_before_containers_were_kept_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(json, "dumps", without_containers(json.dumps))
    with Checkpoints(tmp_path / "old", settings=SETTINGS) as checkpoints:
        checkpoints.save(1, state_of(1), extra_of(1))
    monkeypatch.undo()
    variables = load_variables(tmp_path / "old")
    assert variables.keys() == {"params", "fixed", "batch_stats"}
    np.testing.assert_array_equal(
        variables["params"]["conv"]["kernel"], state_of(1)["params"]["conv"]["kernel"]
    )
    assert restore(tmp_path / "old")[0][0] == 1


def without_containers(dumps):
    """Writes metadata as they once were."""

    def old(value, **options):
        if isinstance(value, dict) and "arrays" in value:
            value = {name: held for name, held in value.items() if name != "variables"}
        return dumps(value, **options)

    return old
