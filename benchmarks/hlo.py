"""What a compiled program costs, read from its HLO text.

XLA's own count (`Compiled.cost_analysis`) counts the body of a loop once, and does not
separate the chip's memory (HBM on accelerators) from the memories inside the chip,
where TPUs keep most activations of a small batch. Here a loop counts once per
iteration, and the memories are separated. `hlo_text` says what the text looks like.

What an instruction reads and writes depends on its class. These are the classes, each
with a line of it; x and y are f32[100,3] in the chip's memory, which is 1200 bytes::

    any other operation: all of its operands and results
      %sum = f32[100,3] add(%x, %y)                           reads 2400, writes 1200
    a slice: a part of its first operand, as large as the result
      %row = f32[1,3] dynamic-slice(%x, %i, %j), ...          reads 12, writes 12
    an update in place: the part that is new
      %new = f32[100,3] dynamic-update-slice(%x, %row, %i, %j)  reads 12, writes 12
    a fusion of several operations: what they read of its operands, and write of its
    results; results between them are never in memory
      %z = f32[100,3] fusion(%y, %row, %i), kind=kLoop, calls=%write
    a copy that runs beside other work: both ends, as long as the shorter
      %there = (f32[100,3], f32[100,3]{1,0:S(1)}, u32[]) copy-start(%x)
"""

import collections
import dataclasses
import functools
import math
import re
from typing import NamedTuple

from benchmarks.hlo_text import (
    Array,
    Computation,
    Instruction,
    Program,
    Use,
    arrays,
    parse,
)

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ESTIMATED_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# libtpu writes the largest int64 where its model has no answer.
_NO_ESTIMATE = 2**63 - 1
# The shape of an instruction that only starts lists its operands, then its results and
# a context, which it holds until it is done. This one lists its results alone.
_STARTS_WITHOUT_OPERANDS = "all-reduce-start"
_CONTEXT = re.compile(r", u32\[\](\{[^}]*\})?")
# These only name what exists already, or are counted where they are executed.
_FREE = (
    "parameter",
    "get-tuple-element",
    "tuple",
    "bitcast",
    "constant",
    "after-all",
    "partition-id",
    "replica-id",
    "iota",
    "opt-barrier",
)
_SLICES = ("dynamic-slice", "gather", "slice")
_UPDATE = "dynamic-update-slice"
# A GPU runs the second kind beside other work.
_FUSIONS = ("fusion", "fusion-start")
_STARTED_COPIES = ("copy-start", "slice-start", "dynamic-slice-start")
# Stands for the size of an array of which the whole is read or written.
_WHOLE = math.inf


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run of a program, or of a part of it, costs on one device.

    Attributes:
      memory_bytes: read from and written to the chip's memory, padding of tiles
        included.
      estimated_cycles: libtpu's own estimate, summed over the instructions that have
        one: fusions, copies and the like, but no collective. Other compilers write
        none.
      collectives: how often each of COLLECTIVES runs.
      collective_bytes: of their results.
    """

    memory_bytes: float = 0
    estimated_cycles: int = 0
    collectives: collections.Counter = dataclasses.field(
        default_factory=collections.Counter
    )
    collective_bytes: float = 0

    def plus(self, other: "Cost", *, times: int = 1) -> "Cost":
        """This, and `other` so many times."""
        collectives = self.collectives.copy()
        for opcode, count in other.collectives.items():
            collectives[opcode] += times * count
        return Cost(
            memory_bytes=self.memory_bytes + times * other.memory_bytes,
            estimated_cycles=self.estimated_cycles + times * other.estimated_cycles,
            collectives=collectives,
            collective_bytes=self.collective_bytes + times * other.collective_bytes,
        )


def cost(text: str) -> Cost:
    """What a run of the program ``Compiled.as_text()`` costs on one device.

    A loop runs as often as XLA says or, if it does not say, as the only constant in its
    condition. Of several branches, the one that moves most counts. If a fusion reads a
    part of an operand, or updates its result in place, only that part counts.

    Raises:
      ValueError: a line cannot be read, or a loop does not say how often it runs.
    """
    program = parse(text)

    @functools.cache
    def cost_of_computation(name: str) -> Cost:
        computation = program.computations[name]
        total = Cost()
        for instruction in computation.instructions:
            of_one_execution, times = cost_of_instruction(instruction, computation)
            total = total.plus(of_one_execution, times=times)
        return total

    def cost_of_instruction(
        instruction: Instruction, computation: Computation
    ) -> tuple[Cost, int]:
        """(the cost of one execution, how often it is executed)."""
        if instruction.opcode == "while":
            condition = program.computations[instruction.called("condition")]
            body = cost_of_computation(instruction.called("body"))
            return body, _iterations(instruction, condition)
        if instruction.opcode == "call":
            return cost_of_computation(instruction.called("to_apply")), 1
        if instruction.opcode == "conditional":
            branches = map(cost_of_computation, program.branches(instruction))
            return max(branches, key=lambda branch: branch.memory_bytes), 1
        if instruction.opcode in _FREE or instruction.opcode.endswith("-done"):
            return Cost(), 1
        return _cost_of_operation(_operation(instruction, computation), program), 1

    return cost_of_computation(program.entry)


def _iterations(loop: Instruction, condition: Computation) -> int:
    """How often the body of a loop runs.

    From an attribute of the loop, or from the constant in its condition::

        ..., backend_config={"known_trip_count":{"n":"5"}}
        %n = s32[] constant(5)
    """
    if known := _TRIP_COUNT.search(loop.attributes):
        return int(known[1])
    limits = [constant.inside for constant in condition.with_opcode("constant")]
    if len(limits) != 1 or not limits[0].isdigit():
        raise ValueError(
            f"a loop does not say how often it runs; its condition has {limits}"
        )
    return int(limits[0])


# The cost of an operation


class _Operation(NamedTuple):
    """An instruction that does work.

    Attributes:
      instruction: its line.
      operands: the arrays of each operand, which may be a tuple.
      results: the arrays of the result.
    """

    instruction: Instruction
    operands: list[list[Array]]
    results: list[Array]


def _operation(instruction: Instruction, computation: Computation) -> _Operation:
    """An instruction of a computation, with the arrays of its operands and results."""
    operands = [
        computation.by_name[name].arrays if name in computation.by_name else []
        for name in instruction.operands
    ]
    if instruction.opcode.endswith("-start"):
        results = _results_of_start(instruction, operand_count=len(_flat(operands)))
    else:
        results = instruction.arrays
    return _Operation(instruction, operands, results)


def _results_of_start(instruction: Instruction, *, operand_count: int) -> list[Array]:
    """The results of an instruction that only starts, with so many arrays as operands.

    These have the result f32[4,3], and the results f32[2,3] and f32[5]::

        %c = ((f32[2,3]), f32[4,3], u32[]) all-gather-start(%x)
        %c = (f32[2,3], f32[5]) all-reduce-start(%x, %y)
    """
    listed = arrays(_CONTEXT.sub("", instruction.shape))
    if instruction.opcode == _STARTS_WITHOUT_OPERANDS:
        return listed
    return listed[operand_count:]


def _flat(operands: list[list[Array]]) -> list[Array]:
    """The arrays of all operands."""
    return [array for of_operand in operands for array in of_operand]


def _cost_of_operation(operation: _Operation, program: Program) -> Cost:
    instruction = operation.instruction
    kind = instruction.opcode.removesuffix("-start")
    collectives: collections.Counter = collections.Counter()
    collective_bytes = 0.0
    if kind in COLLECTIVES:
        collectives[kind] = 1
        collective_bytes = sum(array.size_bytes for array in operation.results)
    return Cost(
        memory_bytes=sum(
            array.size_bytes
            for array in _accessed(operation, program)
            if array.in_memory
        ),
        estimated_cycles=_estimated_cycles(instruction),
        collectives=collectives,
        collective_bytes=collective_bytes,
    )


def _estimated_cycles(instruction: Instruction) -> int:
    """libtpu's estimate for an instruction; 0 if it has none."""
    estimate = _ESTIMATED_CYCLES.search(instruction.attributes)
    if estimate is None or int(estimate[1]) == _NO_ESTIMATE:
        return 0
    return int(estimate[1])


def _part(array: Array, size_bytes: float) -> Array:
    """As many bytes of an array, in the same memory."""
    return array._replace(size_bytes=size_bytes)


def _accessed(operation: _Operation, program: Program) -> list[Array]:
    """What an operation reads and writes: whole arrays, and parts of arrays."""
    opcode = operation.instruction.opcode
    if opcode in _STARTED_COPIES:
        return _accessed_by_copy(operation)
    if opcode in _SLICES:
        return _accessed_by_slice(operation)
    if opcode == _UPDATE:
        return _accessed_by_update(operation)
    if opcode in _FUSIONS:
        return _accessed_by_fusion(operation, program)
    return _flat(operation.operands) + operation.results


def _accessed_by_copy(copy: _Operation) -> list[Array]:
    """Both ends of a copy, each as long as the shorter one.

    The first two arrays of the shape are the ends, in either order; a context follows::

        %there = (f32[9,3]{1,0}, f32[9,3]{1,0:S(1)}, u32[]) copy-start(%x)
        %part = ((f32[9,3]{1,0}), f32[1,3]{1,0:S(1)}, s32[]) slice-start(%x), ...
    """
    one_end, other_end = copy.instruction.arrays[:2]
    copied_bytes = min(one_end.size_bytes, other_end.size_bytes)
    return [
        _part(one_end, copied_bytes),
        _part(other_end, copied_bytes),
    ]


def _accessed_by_slice(operation: _Operation) -> list[Array]:
    """The result, and as much of the first operand.

    ::

        %row = f32[1,3]{1,0} dynamic-slice(%x, %i, %j), dynamic_slice_sizes={1,3}
    """
    (source,) = operation.operands[0]
    parts_read = [_part(source, result.size_bytes) for result in operation.results]
    return parts_read + operation.results


def _accessed_by_update(operation: _Operation) -> list[Array]:
    """The second operand twice: it is read, and written over a part of the first.

    ::

        %new = f32[100,3]{1,0} dynamic-update-slice(%x, %row, %i, %j)
    """
    update = operation.operands[1]
    return update + update


def _accessed_by_fusion(fusion: _Operation, program: Program) -> list[Array]:
    """Operands and results, each reduced to what the fused operations read and write.

    ::

        %z = f32[100,3]{1,0} fusion(%y, %row, %i), kind=kLoop, calls=%write
    """
    fused = program.computations[fusion.instruction.called("calls")]
    operands = list(fusion.operands)
    for number, bytes_read in _bytes_read(fused, program).items():
        first_array = fusion.operands[number][0]
        operands[number] = [_part(first_array, bytes_read)]
    results = list(fusion.results)
    for number, bytes_written in _bytes_written(fused, program).items():
        results[number] = _part(results[number], bytes_written)
    return _flat(operands) + results


# What fused operations read and write. A fusion may hold another one: then the function
# of a computation and that of an instruction call each other, one level further in.


def _bytes_read(fused: Computation, program: Program) -> dict[int, float]:
    """Number of a parameter -> the bytes read of it.

    Only parameters of which no use reads the whole. This computation gives {0: 12}::

        %a = f32[100,3]{1,0} parameter(0)
        %b = s32[] parameter(1)
        ROOT %c = f32[1,3]{1,0} dynamic-slice(%a, %b, %b), dynamic_slice_sizes={1,3}
    """
    bytes_by_number = {}
    for parameter in fused.with_opcode("parameter"):
        by_use = [_bytes_read_by(use, program) for use in fused.uses[parameter.name]]
        if by_use and _WHOLE not in by_use:
            number = int(parameter.inside)
            bytes_by_number[number] = sum(by_use)
    return bytes_by_number


def _bytes_read_by(use: Use, program: Program) -> float:
    """The bytes that a fused operation reads of one of its operands, or `_WHOLE`.

    Of %a, these read 12 bytes, none, and what the fusion within the fusion reads, as
    libtpu writes for slices in a loop::

        %c = f32[1,3]{1,0} dynamic-slice(%a, %b, %b), dynamic_slice_sizes={1,3}
        %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
        %c = f32[1,3]{1,0} fusion(%a, %b), kind=kLoop, calls=%inner
    """
    user = use.user
    if user.opcode in _SLICES and use.place == 0:
        return user.size_bytes
    if user.opcode == _UPDATE and use.place == 0:
        return 0
    if user.opcode in _FUSIONS:
        nested = program.computations[user.called("calls")]
        return _bytes_read(nested, program).get(use.place, _WHOLE)
    return _WHOLE


def _bytes_written(fused: Computation, program: Program) -> dict[int, float]:
    """Number of a result -> the bytes written of it.

    Only results that are updated in place. This computation gives {0: 12}::

        %u = f32[1,3]{1,0} parameter(1)
        ROOT %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
    """
    bytes_by_number = {}
    for number, name in enumerate(fused.results):
        writer = fused.behind_bitcasts(name)
        bytes_written = _bytes_written_by(writer, fused, program)
        if bytes_written != _WHOLE:
            bytes_by_number[number] = bytes_written
    return bytes_by_number


def _bytes_written_by(
    writer: Instruction, fused: Computation, program: Program
) -> float:
    """The bytes that a fused operation writes of its result, or `_WHOLE`.

    An update writes as much as its second operand has, also in a fusion with one
    result::

        %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
        %c = f32[100,3]{1,0} fusion(%a, %u, %b), kind=kLoop, calls=%inner_write
    """
    if writer.opcode == _UPDATE:
        update = fused.by_name[writer.operands[1]]
        return update.size_bytes
    if writer.opcode in _FUSIONS:
        nested = program.computations[writer.called("calls")]
        if len(nested.results) == 1:
            return _bytes_written(nested, program).get(0, _WHOLE)
    return _WHOLE
