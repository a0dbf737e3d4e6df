"""benchmarks.hlo: the bytes that programs move, by hand and beside XLA's count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import hlo
from tests.benchmarks import hlo_programs


def test_bytes_of_a_program_by_hand():
    cost_of_program = hlo.cost(hlo_programs.PROGRAM)
    padded = 8 * 128 * 4
    # An iteration reads x twice, one row, the index twice, and writes one row; then x
    # is copied in.
    assert cost_of_program.memory_bytes == (5 * (2 * padded + 12 + 12 + 4 + 4) + padded)
    assert cost_of_program.collectives == {"all-reduce": 5}
    assert cost_of_program.collective_bytes == 5 * 24
    # The product has an estimate, and runs in every iteration.
    assert cost_of_program.estimated_cycles == 5 * 618
    # Where libtpu has no estimate it writes the largest int64.
    unknown = hlo_programs.PROGRAM.replace('"618"', f'"{2**63 - 1}"')
    assert unknown != hlo_programs.PROGRAM
    assert hlo.cost(unknown).estimated_cycles == 0
    # A trip count that XLA found takes precedence over the one in the condition.
    known = 'body=%body, backend_config={"known_trip_count":{"n":"7"}}'
    cost_of_seven = hlo.cost(hlo_programs.PROGRAM.replace("body=%body", known))
    assert cost_of_seven.collectives == {"all-reduce": 7}
    assert cost_of_seven.collective_bytes == 7 * 24
    with pytest.raises(ValueError, match="does not say how often"):
        hlo.cost(hlo_programs.PROGRAM.replace("constant(5)", "add(%i, %i)"))


def test_a_fusion_within_a_fusion_reads_and_writes_only_its_rows():
    # A turn reads the index and one row, and writes one row.
    assert hlo.cost(hlo_programs.NESTED).memory_bytes == 5 * (4 + 12 + 12)
    # If another instruction takes the whole array, it counts as a whole.
    whole = hlo_programs.NESTED.replace(
        "%row = f32[1,3]{1,0} fusion(%x, %n)",
        "%w = f32[] reduce(%x, %x)\n  %row = f32[1,3]{1,0} fusion(%x, %n)",
    )
    assert hlo.cost(whole).memory_bytes == 5 * (4 + 1200 + 12)


def test_a_fusion_that_only_starts_reads_and_writes_only_its_rows():
    index = 4
    row = 12
    # Both fusions read the index and a row, and write a row.
    of_a_fusion = index + 2 * row
    assert hlo.cost(hlo_programs.ASYNCHRONOUS).memory_bytes == 2 * of_a_fusion


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
