"""The flags of XLA for CPUs, and the random generator."""

import json
import os
import re
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from identity_matters import jax_settings, nets, runs, train
from identity_matters.jax_settings import (
    EMITTERS_FLAG,
    FAST_CONVOLUTIONS,
    FUSION_FLAG,
    ONE_PIECE,
    QUICK_COMPILATION,
    use_fast_convolutions,
    use_quick_compilation,
)
from tests import forked


@pytest.fixture
def flags(monkeypatch):
    """What XLA_FLAGS becomes.

    It is set before, and this jaxlib is pretended.
    """

    def become(
        before: str,
        jaxlib: str = "0.10.2",
        packages: tuple = (),
        platforms: str = "",
        add=use_fast_convolutions,
        cores: int = 2,
    ):
        monkeypatch.setenv("XLA_FLAGS", before)
        monkeypatch.setattr("importlib.metadata.version", {"jaxlib": jaxlib}.get)
        monkeypatch.setattr("importlib.util.find_spec", {p: p for p in packages}.get)
        config = types.SimpleNamespace(values={"jax_platforms": platforms or None})
        monkeypatch.setattr(jax_settings, "jax", types.SimpleNamespace(config=config))
        monkeypatch.setattr("identity_matters.limits.usable_cores", lambda: cores)
        add()
        return os.environ["XLA_FLAGS"]

    return become


@pytest.mark.parametrize(
    ("add", "added", "own_choice"),
    [
        (use_fast_convolutions, FAST_CONVOLUTIONS, f"{FUSION_FLAG}=individual_dot"),
        (use_quick_compilation, QUICK_COMPILATION, f"{EMITTERS_FLAG}=true"),
    ],
)
def test_a_flag_is_added_once_to_those_of_the_user(flags, add, added, own_choice):
    assert flags("", add=add) == added
    assert flags("--xla_a=1", add=add) == f"--xla_a=1 {added}"
    assert flags(added, add=add) == added
    assert flags(own_choice, add=add) == own_choice
    assert flags("/a/file/with/flags", add=add) == "/a/file/with/flags"


def test_one_flag_does_not_keep_the_other_out(flags):
    both = f"{FAST_CONVOLUTIONS} {QUICK_COMPILATION}"
    assert flags(FAST_CONVOLUTIONS, add=use_quick_compilation) == both


def test_with_one_core_programs_are_compiled_in_one_piece(flags):
    in_one_piece = f"{QUICK_COMPILATION} {ONE_PIECE}"
    assert flags("", add=use_quick_compilation, cores=1) == in_one_piece


@pytest.mark.parametrize(
    ("jaxlib", "convolutions", "compilation"),
    [
        ("0.8.0", "", ""),
        ("0.9.2", "", ""),
        ("0.10.2", FAST_CONVOLUTIONS, QUICK_COMPILATION),
        ("0.11.2", FAST_CONVOLUTIONS, ""),
        ("0.12.0.1", FAST_CONVOLUTIONS, ""),
        ("0.13", "", ""),
    ],
)
def test_a_jaxlib_gets_the_flags_with_which_it_was_tried(
    flags, jaxlib, convolutions, compilation
):
    assert flags("", jaxlib) == convolutions
    assert flags("", jaxlib, add=use_quick_compilation) == compilation


def test_the_flag_is_for_cpus(flags):
    assert flags("", packages=("jax_plugins",)) == ""
    assert flags("", packages=("jax_plugins",), platforms="cpu") == FAST_CONVOLUTIONS
    assert flags("", platforms="cuda,cpu") == ""
    # libtpu compiles for absent TPUs while JAX runs on the CPU, and reads XLA_FLAGS,
    # too.
    assert flags("", packages=("libtpu",), platforms="cpu") == ""


def test_this_jaxlib_knows_the_flag_for_convolutions_and_uses_it():
    """XLA ends a process at an unknown flag.

    A program without YNNPACK has no such fusion.
    """
    code = """
import os
import jax, jax.numpy as jnp
if {own!r}:
    os.environ["XLA_FLAGS"] = {own!r}
from identity_matters import train
x, kernel = jnp.ones((8, 16, 16, 32)), jnp.ones((3, 3, 32, 32))
convolve = lambda x, kernel: jax.lax.conv_general_dilated(
    x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
print(jax.jit(convolve).lower(x, kernel).compile().as_text().count("ynn"))
"""

    def fusions(own: str) -> int:
        environment = {
            name: os.environ[name] for name in os.environ if name != "XLA_FLAGS"
        }
        command = [sys.executable, "-c", code.format(own=own)]
        return int(
            subprocess.check_output(
                command, env=environment, text=True, cwd=forked.ROOT
            )
        )

    assert fusions("") == 0
    assert fusions(f"{FUSION_FLAG}=individual_dot,individual_convolution") > 0


def test_the_flag_is_in_the_record_of_a_training(tmp_path):
    tiny = ("--config.model.blocks_per_stage=(1,1,1)", "--config.model.widths=(4,4,4)")
    short = ("--config.model.stem_width=4", "--config.train.steps=1")
    forked.run(
        "experiments.images.cifar", *tiny, *short, f"--results_dir={tmp_path}", ends=0
    )
    (run,), _ = runs.read_collection(tmp_path)
    recorded = json.loads((run.path / "environment.json").read_text())
    assert FAST_CONVOLUTIONS in recorded["variables"]["XLA_FLAGS"]
    assert recorded["jax_settings"]["jax_threefry_partitionable"] is True


def test_this_jaxlib_knows_all_flags_that_it_gets():
    """XLA ends a process at an unknown flag; theory on one core gets all of them."""
    code = """
from identity_matters import jax_settings, limits
limits.usable_cores = lambda: 1
jax_settings.use_fast_convolutions()
jax_settings.use_quick_compilation()
import jax, os
print(jax.jit(lambda x: x + 1)(1), os.environ["XLA_FLAGS"])
"""
    environment = {name: os.environ[name] for name in os.environ if name != "XLA_FLAGS"}
    command = [sys.executable, "-c", code]
    total, *flags = subprocess.check_output(
        command, env=environment, text=True, cwd=forked.ROOT
    ).split()
    assert total == "2"
    assert flags == [
        setting
        for setting in jax_settings.JAXLIB_VERSIONS
        if jax_settings._jaxlib_knows(setting)
    ]


def test_the_flags_are_in_the_record_of_a_theory_run(tmp_path):
    forked.run(
        "experiments.relu",
        "--config=:dead_units",
        "--config.samples=100",
        f"--results_dir={tmp_path}",
        ends=0,
    )
    (run,), _ = runs.read_collection(tmp_path)
    recorded = json.loads((run.path / "environment.json").read_text())
    knows = jax_settings._jaxlib_knows(QUICK_COMPILATION)
    assert (QUICK_COMPILATION in recorded["variables"].get("XLA_FLAGS", "")) == knows


def test_the_locks_have_versions_that_were_tried():
    first, end = jax_settings.JAXLIB_VERSIONS[FAST_CONVOLUTIONS]
    for lock in (forked.ROOT / "requirements").glob("*.txt"):
        for major, minor in re.findall(
            r"^jaxlib==(\d+)\.(\d+)", lock.read_text(), re.MULTILINE
        ):
            assert first <= (int(major), int(minor)) < end, lock


def test_a_run_sets_what_changes_numbers_whatever_was_set_before(tmp_path):
    code = """
import json
import jax
from experiments.run import process
others = {
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_random_seed_offset": 7,
    "jax_default_matmul_precision": "bfloat16",
    "jax_numpy_dtype_promotion": "strict",
    "jax_disable_jit": True,
}
for configure in (process.configure_for_theory, process.configure_for_devices):
    for name, other in others.items():
        jax.config.update(name, other)
    jax.config.update("jax_enable_x64", configure is process.configure_for_devices)
    configure()
    names = [*others, "jax_enable_x64"]
    print(json.dumps([jax.config.values[name] for name in names]))
"""
    lines = forked.run_code(code, tmp_path).stdout.splitlines()
    usual = ["threefry2x32", True, 0, None, "standard", False]
    assert [json.loads(line) for line in lines] == [[*usual, True], [*usual, False]]


@pytest.mark.parametrize("generator", ["rbg", "threefry2x32"])
def test_keys_do_not_depend_on_the_default_generator_of_jax(generator):
    with jax.default_prng_impl(generator):
        key = jax_settings.random_key(3)
    assert jax.random.key_impl(key) == "threefry2x32"
    np.testing.assert_array_equal(jax.random.key_data(key), [0, 3])


def test_a_training_on_arrays_does_not_depend_on_the_generators_of_jax():
    net = nets.make_net("mlp", num_classes=2, depth=2, width=2)
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32)
    y = np.arange(8) % 2
    start = nets.init_variables(net, jax_settings.random_key(0), (1, 2, 1))

    def trained() -> dict:
        x4 = x.reshape(8, 1, 2, 1)
        settings = {
            "steps": 3,
            "learning_rate": 0.1,
            "batch_examples": 2,
            "verbose": False,
        }
        return train.train(net, start, x4, y, x4, y, **settings)[0].variables

    expected = trained()
    # Without it a split key, which also orders the examples, is another one.
    with jax.default_prng_impl("rbg"), jax.threefry_partitionable(False):
        losses = trained()
    jax.tree.map(np.testing.assert_array_equal, losses, expected)
