"""benchmarks.compile_check: programs like those of a run; what fails is a result."""

import os
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import absent_devices, compile_check, hlo
from experiments.images import cifar, imagenet, train
from identity_matters import flops
from identity_matters.train.step import initial_state


def tiny(settings):
    """The groups of a variant with a net of one block."""
    groups = settings.to_dict()
    tiny_net = {
        "blocks_per_stage": (1,),
        "widths": (4,),
        "stage_strides": (1,),
        "stem_width": 4,
    }
    groups["model"].update(tiny_net)
    return groups


@pytest.mark.parametrize("part", ["train", "evaluate"])
def test_a_program_from_shapes_is_the_one_that_a_run_compiles(part, monkeypatch):
    groups = {**tiny(cifar.get_config()), "devices": jax.devices()}
    del groups["scale"], groups["variant"]
    training = train.Training(**groups)
    steps = training.parallel
    lowered, count, examples = steps.lower(part, 2)
    state = initial_state(
        training.task.init(jax.random.key(0)), training.task.optimizer
    )
    state = steps.start(jax.random.key(1), jax.device_get(state))
    called = []
    monkeypatch.setattr(steps, "_call", lambda _, *program: called.append(program))
    if part == "train":
        steps.train(state, steps.place(list(steps.open_train(0, 0, 2))))
        assert (count, examples) == (2, 128)
    else:
        steps.evaluate(state)
        assert (count, examples) == (1, 1000)
    ((mapped, arguments),) = called
    assert lowered.as_text() == mapped.lower(*arguments).as_text()


def test_streams_are_compiled_with_their_images_as_arguments():
    groups = tiny(imagenet.get_config("imagenet2012/parameters_as_printed"))
    groups["data"].update(image_pixels=8, eval_shorter_side_pixels=8)
    groups["train"]["batch_examples"] = 8
    for part, shares in (("train", "1x2"), ("evaluate", "256")):
        program = compile_check.lower_training(groups, part, jax.devices())
        assert program.steps == 1
        assert f"tensor<4x{shares}x8x8x3xui8>" in program.lowered.as_text()


def test_what_compiles_is_measured_and_what_does_not_is_reported(monkeypatch):
    devices = jax.devices()
    groups = tiny(cifar.get_config())

    def attempt(groups, devices=devices, memory_bytes=None):
        monkeypatch.setattr(flops, "memory_limits", lambda kind: (memory_bytes, None))
        lower = lambda: compile_check.lower_training(groups, "evaluate", devices)  # noqa: E731
        return compile_check.attempt(lower, devices)

    compiled_record = attempt(groups, memory_bytes=1e9)
    assert compiled_record["fits"] and "problem" not in compiled_record
    assert compiled_record["argument_bytes"] > 450 * 64 / 4
    assert compiled_record["collectives"]["all-reduce"] >= 1
    # There are bounds only for devices whose peaks are known, and estimates of TPUs.
    assert compiled_record["images_per_second_at_most"] is None
    assert compiled_record["estimated_seconds"] is None
    refused = attempt(groups, memory_bytes=compiled_record["argument_bytes"])
    assert not refused["fits"] and "bytes" in refused["problem"]
    undivided = attempt(groups, devices=devices[:3])
    assert (
        not undivided["fits"]
        and "multiple of the number of devices" in undivided["problem"]
    )
    records = [
        {"program": "p", "part": "train", "slice": str(i), **record}
        for i, record in enumerate((compiled_record, refused, undivided))
    ]
    judged = compile_check.verdict({}, records)
    assert (judged.verdict, judged.metrics["programs_that_fail"]) == (
        "not reproduced",
        2,
    )
    assert compile_check.verdict({}, records[:1]).verdict == "reproduced"


def test_an_estimate_of_the_compiler_becomes_seconds_of_a_step():
    estimated = hlo.Cost(estimated_cycles=30_000_000)
    seconds = compile_check._estimated_seconds(estimated, 10, "TPU v5 lite")
    assert seconds == 30_000_000 / 10 / 1.5e9
    assert compile_check._estimated_seconds(estimated, 10, "NVIDIA H100") is None
    assert compile_check._estimated_seconds(hlo.Cost(), 10, "TPU v4") is None


def test_bounds_are_the_lesser_of_arithmetic_and_memory(monkeypatch):
    monkeypatch.setattr(flops, "peak_flops_per_second", lambda kind, dtype: 1e3)
    x = jax.ShapeDtypeStruct((8, 8), np.float32)
    lowered = jax.jit(jnp.matmul).lower(x, x)

    def bound(bandwidth):
        monkeypatch.setattr(flops, "memory_limits", lambda kind: (1e9, bandwidth))
        return compile_check.attempt(
            lambda: compile_check.LoweredProgram(
                lowered=lowered,
                steps=1,
                examples=8,
                operations=2 * 64,
                compute_dtype="float32",
            ),
            jax.devices()[:1],
        )

    assert bound(1e9)["images_per_second_at_most"] == 8 / (8 * 128 / 1e3)
    # Two matrices are read and one is written.
    assert bound(1e2)["images_per_second_at_most"] == 8 / (3 * 8 * 8 * 4 / 1e2)


def crash(trial):
    os.write(2, b"more\nstack overflow in a pass\n")
    os.kill(os.getpid(), signal.SIGSEGV)


def refuse(trial):
    raise ValueError(f"no program {trial.program}")


def test_a_compiler_that_crashes_is_a_result(monkeypatch):
    monkeypatch.setattr(compile_check, "_measure_here", crash)
    monkeypatch.setattr(absent_devices, "devices_of", lambda name: jax.devices()[:1])
    said = []
    log = types.SimpleNamespace(stop_requested=lambda: False, say=said.append)
    trial = types.SimpleNamespace(slice="s", program="p", part="train")
    record = compile_check.measure(trial, None, log)
    assert not record["fits"]
    # The signal tells a bug of the compiler from a kill for want of memory.
    reason = "the compiler crashed (SIGSEGV: more | stack overflow in a pass)"
    assert record["problem"] == reason and said == [f"p (train) on s: {reason}"]
    # Our own errors are none of the compiler's.
    monkeypatch.setattr(compile_check, "_measure_here", refuse)
    with pytest.raises(ValueError, match="no program p"):
        compile_check.measure(trial, None, log)


def test_eq_2_3_is_lowered_as_points_of_which_the_products_are_counted():
    settings = compile_check.experiments.find("linear_sampled").settings_of(
        "points_large"
    )
    before = dict(settings)
    lower = compile_check._how_to_lower(compile_check.POINTS)
    program = lower(settings, "points", jax.devices()[:1])
    layers = 3
    width = 3
    assert program.operations == (3 * layers - 2) * 2 * width**3
    assert program.examples == before["chunks"] * before["points_per_chunk"]
    assert settings == before  # they are the caller's


def test_the_network_of_theorem_3_2_has_a_unit_for_each_image_of_imagenet():
    settings = compile_check.experiments.find("memorize").settings_of(
        "synthetic_imagenet"
    )
    program = compile_check.lower_memorize(settings, "forward", jax.devices()[:1])
    assert (program.steps, program.examples) == (1, 131_072)
    assert program.compute_dtype == "float32"
    blocks = 80_073
    width = 16
    assert f"tensor<{blocks}x{width}x{width}xf32>" in program.lowered.as_text()
    last = 2 * (width * 1000 + 1000 * 1000)
    # The input map multiplies each of the pieces that an input is cut into: three for
    # 64 features.
    operations = 3 * 2 * 64 * width + 4 * blocks * width**2 + last
    assert program.operations == operations
