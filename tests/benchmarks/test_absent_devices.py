"""benchmarks.absent_devices: a machine without their compilers."""

import jax
import pytest
from jax._src import xla_bridge

from benchmarks import absent_devices, compile_check
from experiments import run
from experiments.run import endings


def test_a_compiler_that_is_missing_ends_in_one_line(monkeypatch):
    def missing(*_, **__):
        raise RuntimeError("no libtpu\nand more")

    monkeypatch.setattr(absent_devices.topologies, "get_topology_desc", missing)
    with pytest.raises(
        ValueError, match=r"^no compiler for v5e-1: no libtpu; run: make compile-check$"
    ):
        compile_check.trials(variant="one_chip", slices=("v5e-1",), programs=("p",))
    with pytest.raises(ValueError, match="slices must be among"):
        compile_check.trials(variant="one_chip", slices=("v9",), programs=("p",))


def test_gpus_are_skipped_in_one_line_where_there_is_no_compiler_for_them(
    monkeypatch,
):
    jax.devices()
    monkeypatch.delitem(xla_bridge._topology_factories, "cuda", raising=False)
    absent_devices.devices_of.cache_clear()
    with pytest.raises(run.SkippedError) as skipped:
        compile_check.trials(variant="gpu", slices=("h100",), programs=("p",))
    said = "no compiler for h100: topology not implemented for cuda"
    assert endings.ending_of(skipped.value, "results") == (0, f"skipped: {said}")
