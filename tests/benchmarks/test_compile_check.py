"""benchmarks.compile_check: bytes that programs move, refusals, a real run."""

import os
import signal
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import xla_bridge

from benchmarks import compile_check, cost, hlo
from experiments.images import cifar, imagenet, train
from identity_matters import flops
from identity_matters.train.step import initial_state

# A loop of 5 iterations. Each squares a [2, 3] array (padded to 8 x 128 in the chip's
# main memory) into on-chip memory, writes 12 bytes in place, and all-reduces 24 bytes.
PROGRAM = """
HloModule by_hand

%body (p: (s32[], f32[2,3])) -> (s32[], f32[2,3]) {
  %p = (s32[], f32[2,3]{1,0:T(8,128)}, f32[100,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[2,3]{1,0:T(8,128)} get-tuple-element(%p), index=1
  %y = f32[100,3]{1,0} get-tuple-element(%p), index=2
  %square = f32[2,3]{1,0:T(8,128)S(1)} multiply(%x, %x), metadata={op_name="jit(f)/mul"}, backend_config={"window_config":{"estimated_cycles":"618"}}
  %row = f32[1,3]{1,0:S(1)} fusion(%y, %i), kind=kLoop, calls=%read
  %z = f32[100,3]{1,0} fusion(%y, %row, %i), kind=kLoop, calls=%write
  %sum = f32[2,3]{1,0:S(1)} all-reduce(%square), channel_id=1, to_apply=%add
  ROOT %t = (s32[], f32[2,3]{1,0:T(8,128)}, f32[100,3]{1,0}) tuple(%i, %x, %z)
}

%read (a: f32[100,3], b: s32[]) -> f32[1,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = f32[1,3]{1,0} dynamic-slice(%a, %b, %b), dynamic_slice_sizes={1,3}
}

%write (a: f32[100,3], u: f32[1,3], b: s32[]) -> f32[100,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %u = f32[1,3]{1,0:S(1)} parameter(1)
  %b = s32[] parameter(2)
  ROOT %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
}

%condition (p: (s32[], f32[2,3])) -> pred[] {
  %p = (s32[], f32[2,3]{1,0}, f32[100,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[2,3]) -> f32[2,3] {
  %x = f32[2,3]{1,0:T(8,128)} parameter(0)
  %start = (s32[], f32[2,3]{1,0:T(8,128)}, f32[100,3]{1,0}) tuple(%x)
  %loop = (s32[], f32[2,3]{1,0}, f32[100,3]{1,0}) while(%start), condition=%condition, body=%body
  %there = (f32[2,3]{1,0:T(8,128)}, f32[2,3]{1,0:T(8,128)S(1)}, u32[]) copy-start(%x)
  ROOT %out = f32[2,3]{1,0:T(8,128)S(1)} copy-done(%there)
}
"""  # noqa: E501


def test_bytes_of_a_program_by_hand():
    cost_of_program = hlo.cost(PROGRAM)
    padded = 8 * 128 * 4
    # An iteration reads x twice, one row, the index twice, and writes one row; then x
    # is copied in.
    assert cost_of_program.memory_bytes == (5 * (2 * padded + 12 + 12 + 4 + 4) + padded)
    assert cost_of_program.collectives == {"all-reduce": 5}
    assert cost_of_program.collective_bytes == 5 * 24
    # The product has an estimate, and runs in every iteration.
    assert cost_of_program.estimated_cycles == 5 * 618
    # A trip count that XLA found takes precedence over the one in the condition.
    known = 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'
    cost_of_seven = hlo.cost(PROGRAM.replace("body=%body", known))
    assert cost_of_seven.collectives == {"all-reduce": 7}
    assert cost_of_seven.collective_bytes == 7 * 24
    with pytest.raises(ValueError, match="does not say how often"):
        hlo.cost(PROGRAM.replace("constant(5)", "add(%i, %i)"))


# Five turns. Each reads one row of a [100, 3] array and writes one of another by a
# fusion within a fusion, as libtpu compiles a scan over layers.
NESTED = """
HloModule nested

%inner (a: f32[100,3], b: s32[]) -> f32[1,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = f32[1,3]{1,0} dynamic-slice(%a, %b, %b), dynamic_slice_sizes={1,3}
}

%inner_write (a: f32[100,3], u: f32[1,3], b: s32[]) -> f32[100,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %u = f32[1,3]{1,0} parameter(1)
  %b = s32[] parameter(2)
  ROOT %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
}

%outer (n: s32[], x: f32[100,3], y: f32[100,3]) -> f32[100,3] {
  %n = s32[] parameter(0)
  %x = f32[100,3]{1,0} parameter(1)
  %y = f32[100,3]{1,0} parameter(2)
  %row = f32[1,3]{1,0} fusion(%x, %n), kind=kLoop, calls=%inner
  ROOT %z = f32[100,3]{1,0} fusion(%y, %row, %n), kind=kLoop, calls=%inner_write
}

%body (p: (s32[], f32[100,3], f32[100,3])) -> (s32[], f32[100,3], f32[100,3]) {
  %p = (s32[], f32[100,3]{1,0}, f32[100,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[100,3]{1,0} get-tuple-element(%p), index=1
  %y = f32[100,3]{1,0} get-tuple-element(%p), index=2
  %z = f32[100,3]{1,0} fusion(%i, %x, %y), kind=kOutput, calls=%outer
  ROOT %t = (s32[], f32[100,3]{1,0}, f32[100,3]{1,0}) tuple(%i, %x, %z)
}

%condition (p: (s32[], f32[100,3], f32[100,3])) -> pred[] {
  %p = (s32[], f32[100,3]{1,0}, f32[100,3]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (s: s32[], x: f32[100,3], y: f32[100,3]) -> (s32[], f32[100,3], f32[100,3]) {
  %s = s32[] parameter(0)
  %x = f32[100,3]{1,0} parameter(1)
  %y = f32[100,3]{1,0} parameter(2)
  %start = (s32[], f32[100,3]{1,0}, f32[100,3]{1,0}) tuple(%s, %x, %y)
  ROOT %l = (s32[], f32[100,3], f32[100,3]) while(%start), condition=%condition, body=%body
}
"""  # noqa: E501


def test_a_fusion_within_a_fusion_reads_and_writes_only_its_rows():
    # A turn reads the index and one row, and writes one row.
    assert hlo.cost(NESTED).memory_bytes == 5 * (4 + 12 + 12)
    # If another instruction takes the whole array, it counts as a whole.
    whole = NESTED.replace(
        "%row = f32[1,3]{1,0} fusion(%x, %n)",
        "%w = f32[] reduce(%x, %x)\n  %row = f32[1,3]{1,0} fusion(%x, %n)",
    )
    assert hlo.cost(whole).memory_bytes == 5 * (4 + 1200 + 12)


# A GPU reads a row and writes it by fusions that run beside other work. Their results
# list operands, results and a context.
ASYNCHRONOUS = """
HloModule asynchronous

%read (a: f32[100,3], b: s32[]) -> f32[1,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %b = s32[] parameter(1)
  ROOT %c = f32[1,3]{1,0} dynamic-slice(%a, %b, %b), dynamic_slice_sizes={1,3}
}

%write (a: f32[100,3], u: f32[1,3], b: s32[]) -> f32[100,3] {
  %a = f32[100,3]{1,0} parameter(0)
  %u = f32[1,3]{1,0} parameter(1)
  %b = s32[] parameter(2)
  ROOT %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
}

ENTRY %main (x: f32[100,3], n: s32[]) -> f32[100,3] {
  %x = f32[100,3]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %r = ((f32[100,3]{1,0}, s32[]), f32[1,3]{1,0}, u32[]) fusion-start(%x, %n), kind=kLoop, calls=%read
  %row = f32[1,3]{1,0} fusion-done(%r)
  %w = ((f32[100,3]{1,0}, f32[1,3]{1,0}, s32[]), f32[100,3]{1,0}, u32[]) fusion-start(%x, %row, %n), kind=kLoop, calls=%write
  ROOT %out = f32[100,3]{1,0} fusion-done(%w)
}
"""  # noqa: E501


def test_a_fusion_that_only_starts_reads_and_writes_only_its_rows():
    index = 4
    row = 12
    assert hlo.cost(ASYNCHRONOUS).memory_bytes == (index + 2 * row) + (index + 2 * row)


@pytest.mark.parametrize(
    ("shape", "count"),
    [
        ("(f32[2,3]{1,0}, f32[5]{0}) all-reduce(%x, %y)", 11),
        # Started, it lists its results alone, as it does when it waits ...
        ("(f32[2,3]{1,0}, f32[5]{0}) all-reduce-start(%x, %y)", 11),
        # ... and others list their operands before them.
        ("((f32[2,3]{1,0}), f32[4,3]{1,0}, u32[]) all-gather-start(%x)", 12),
    ],
)
def test_bytes_of_collectives_that_wait_or_only_start(shape, count):
    text = f"""
HloModule one

ENTRY %main (x: f32[2,3], y: f32[5]) -> f32[2,3] {{
  %x = f32[2,3]{{1,0}} parameter(0)
  %y = f32[5]{{0}} parameter(1)
  %c = {shape}, channel_id=1, to_apply=%add
  ROOT %out = f32[2,3]{{1,0}} copy(%x)
}}
"""
    cost_of_program = hlo.cost(text)
    assert cost_of_program.collective_bytes == 4 * count
    assert cost_of_program.collectives.total() == 1


def test_bytes_agree_with_xla_where_it_counts_everything():
    """On a CPU there is only one memory, and this program has no loop."""

    def function(x, kernel):
        y = jax.lax.conv(x, kernel, (1, 1), "SAME")
        return jnp.sum(jnp.tanh(y) @ y[..., ::-1]), y[:, 0] @ x[0, 0]

    shapes = [
        jax.ShapeDtypeStruct(s, np.float32) for s in ((4, 3, 32, 32), (5, 3, 3, 3))
    ]
    compiled = jax.jit(function).lower(*shapes).compile()
    expected = compiled.cost_analysis()["bytes accessed"]
    counted_bytes = hlo.cost(compiled.as_text()).memory_bytes
    assert counted_bytes == pytest.approx(expected, rel=0.05)


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
            lambda: compile_check.Program(
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
    monkeypatch.setattr(compile_check, "devices_of", lambda name: jax.devices()[:1])
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


def test_a_compiler_that_is_missing_ends_in_one_line(monkeypatch):
    def missing(*_, **__):
        raise RuntimeError("no libtpu\nand more")

    monkeypatch.setattr(compile_check.topologies, "get_topology_desc", missing)
    with pytest.raises(
        ValueError, match=r"^no compiler for v5e-1: no libtpu; run: make compile-check$"
    ):
        compile_check.trials(variant="one_chip", slices=("v5e-1",), programs=("p",))
    with pytest.raises(ValueError, match="slices must be among"):
        compile_check.trials(variant="one_chip", slices=("v9",), programs=("p",))


def test_gpus_are_skipped_in_one_line_where_there_is_no_compiler_for_them(
    monkeypatch, capsys
):
    jax.devices()
    monkeypatch.delitem(xla_bridge._topology_factories, "cuda", raising=False)
    compile_check.devices_of.cache_clear()
    with pytest.raises(SystemExit) as stop:
        compile_check.trials(variant="gpu", slices=("h100",), programs=("p",))
    assert stop.value.code == 0
    said = "no compiler for h100: topology not implemented for cuda"
    assert capsys.readouterr().err == f"benchmark_compile_check: skipped: {said}\n"


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


def test_hours_by_hand():
    settings = {
        "train": {"steps": 100, "steps_per_evaluation": 50},
        "data": {"dataset": "cifar10"},
    }
    # 100 steps of 0.36 s, and three evaluations of 10,000 examples in batches of 1000.
    seconds = {128: 0.36, 1000: 0.18}
    hours = cost.training_hours(
        settings,
        {"examples": 128},
        {"examples": 1000},
        seconds_of=lambda record: seconds[record["examples"]],
    )
    assert hours == pytest.approx((36 + 5.4) / 3600)


STEP = {
    "program": compile_check.PAPERS_NET,
    "part": "train",
    "slice": "v5e-8",
    "fits": True,
    "devices": 8,
    "argument_bytes": 1e9,
    "result_bytes": 0,
    "temporary_bytes": 2e9,
    "code_bytes": 0,
    "device_memory_bytes": 16e9,
    "moved_bytes": 5e8,
    "examples": 128,
    "arithmetic_seconds": 0.36,
    "memory_seconds": 0.2,
    "collectives": {},
    "collective_bytes": 0,
}
EVALUATION = {
    **STEP,
    "part": "evaluate",
    "examples": 1000,
    "arithmetic_seconds": 0.1,
    "memory_seconds": 0.18,
}


def test_seconds_of_a_step_by_hand():
    assert cost.bound_seconds(STEP) == cost.least_seconds(STEP) == 0.36
    assert cost.likely_seconds(STEP) == pytest.approx(0.36 / 0.4)
    # What libtpu estimates takes the place of our guess, unless it is below the bound.
    estimated = {**STEP, "estimated_seconds": 0.5}
    assert cost.likely_seconds(estimated) == 0.5
    assert cost.likely_seconds({**STEP, "estimated_seconds": 0.1}) == 0.36
    # 9 GB are sent and received 2 * 7 / 8 times, over two links of 45 GB/s.
    sending = {
        **estimated,
        "collective_bytes": 9e9,
        "collectives": {"all-reduce": 100},
    }
    assert cost.link_seconds(sending) == pytest.approx(0.175)
    assert cost.least_seconds(sending) == 0.36
    assert cost.likely_seconds(sending) == pytest.approx(0.5 + 0.175 + 100 * 1e-5)
    assert cost.least_seconds({**sending, "collective_bytes": 27e9}) == pytest.approx(
        0.525
    )
    assert cost.link_seconds({**sending, "devices": 1}) == 0


def test_the_page_of_costs_has_a_row_for_each_training_and_what_failed():
    failed = {**STEP, "program": "p", "fits": False, "problem": "too large"}
    text = cost.page([STEP, EVALUATION, failed])
    # 60,000 steps at 0.36 s, and 61 evaluations of 10 batches at 0.18 s: 6.03 hours.
    row = (
        "| cifar10/all_conv_residual | v5e-8 | 8 | 360.00 |  | 0.00 | compute | 0.50"
        " | 3.0 of 16 | 6 | 15 |"
    )
    assert row in text
    assert "* p, train, on v5e-8: too large." in text
    assert "Compiled, not measured" in text
    # Of two records of a program the last counts.
    again = cost.page([failed, {**failed, "problem": "crashed"}])
    assert "crashed" in again and "too large" not in again
    alone = cost.page([STEP, EVALUATION])
    assert "not fit" not in alone and "Table 2, in turn" not in alone


def test_the_rows_of_table_2_are_summed_where_one_chip_takes_all_of_them():
    records = [
        {**record, "program": program, "slice": "v5e-1", "devices": 1}
        for program in (compile_check.PAPERS_NET, *compile_check.RIVALS)
        for record in (STEP, EVALUATION)
    ]
    hours = sum(
        training.hours(cost.least_seconds) for training in cost._trainings(records)
    )
    assert len(cost._trainings(records)) == 4
    row = f"| all CIFAR rows of Table 2, in turn | v5e-1 | 1 |{'  |' * 6}"
    assert f"{row} {2 * hours:.2g} | {2 * hours / 0.4:.2g} |" in cost.page(records)
    assert "in turn" not in cost.page(records[2:])
