"""What a compiled program costs, read from its HLO text.

XLA's own count (`Compiled.cost_analysis`) counts the body of a loop once, and does not
separate the chip's memory (HBM on accelerators) from the memories inside the chip,
where TPUs keep most activations of a small batch. Here a loop counts once per
iteration, and the memories are separated. ``f32[128,32,32,64]{0,3,2,1:T(8,128)S(1)}``
is an array padded to tiles of 8 x 128, in memory space 1, inside the chip; space 0,
which is not printed, is the chip's memory.
"""

import collections
import dataclasses
import functools
import math
import re
from typing import NamedTuple

COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
_ARRAY = re.compile(r"([a-z]+\d*)[a-z\d]*\[([\d,]*)\](?:\{([^}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
# The opcode is the first word between a space and a parenthesis; shapes have no such
# word.
_INSTRUCTION = re.compile(
    r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(?=, |$)(.*)$"
)
_NAME = re.compile(r"%([\w.\-]+)")
_TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_ESTIMATED_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# What an asynchronous operation holds until it is done, beside operands and results.
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
# These read only a part of their first operand, as large as their result.
_READ_A_PART = ("dynamic-slice", "gather", "slice")
# A GPU runs the second kind beside other work.
_FUSIONS = ("fusion", "fusion-start")
# These copy in the background; their result lists both ends of the copy.
_ASYNCHRONOUS_COPIES = ("copy-start", "slice-start", "dynamic-slice-start")


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
    program = _parse(text)

    @functools.cache
    def cost_of_computation(name: str) -> Cost:
        instructions = program.computations[name]
        shapes = {instruction.name: instruction.shape for instruction in instructions}
        total = Cost()
        for instruction in instructions:
            part, times = cost_of_instruction(instruction, shapes)
            total = total.plus(part, times=times)
        return total

    def cost_of_instruction(
        instruction: Instruction, shapes: dict[str, str]
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
        return _cost_of_operation(instruction, shapes, program), 1

    return cost_of_computation(program.entry)


# Reading the text


class Instruction(NamedTuple):
    """One line: ``ROOT name = shape opcode(inside), rest``; see `_INSTRUCTION`."""

    root: str | None  # "ROOT " in the line whose result is that of the computation
    name: str
    shape: str
    opcode: str
    inside: str  # operands, or a parameter's number, or a constant's value
    rest: str

    @property
    def operands(self) -> list[str]:
        return _NAME.findall(self.inside)

    def called(self, attribute: str) -> str:
        """The computation that an attribute names."""
        match = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.rest)
        if match is None:
            raise ValueError(f"{self.name} has no attribute {attribute}")
        return match[1]


class _Program(NamedTuple):
    """The instructions of each computation, and the computation that runs first."""

    computations: dict[str, list[Instruction]]
    entry: str

    def branches(self, conditional: Instruction) -> list[str]:
        """The computations that a conditional chooses from."""
        attributes = conditional.rest.split("metadata")[0]
        names = _NAME.findall(attributes)
        return [name for name in names if name in self.computations]


def _parse(text: str) -> _Program:
    computations: dict[str, list[Instruction]] = {}
    entry = current = ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = head[2]
            computations[current] = []
            if head[1]:
                entry = current
        elif match := _INSTRUCTION.match(line):
            computations[current].append(Instruction(*match.groups()))
        elif line.startswith(" ") and " = " in line:
            raise ValueError(
                f"this line of a compiled program cannot be read: {line.strip()[:60]}"
            )
    return _Program(computations, entry)


def _iterations(loop: Instruction, condition: list[Instruction]) -> int:
    if known := _TRIP_COUNT.search(loop.rest):
        return int(known[1])
    limits = [
        instruction.inside
        for instruction in condition
        if instruction.opcode == "constant"
    ]
    if len(limits) != 1 or not limits[0].isdigit():
        raise ValueError(
            f"a loop does not say how often it runs; its condition has {limits}"
        )
    return int(limits[0])


class _Array(NamedTuple):
    """One array of a shape: its size with padding, and whether it is in memory."""

    size_bytes: float
    in_memory: bool  # the chip's memory, not one inside the chip


def _arrays(shape: str) -> list[_Array]:
    """The arrays of a shape, which may be a tuple."""
    return [
        _Array(
            size_bytes=math.prod(_padded_sides(axes, layout)) * _bytes_of(dtype),
            in_memory="S(" not in layout,
        )
        for dtype, axes, layout in _ARRAY.findall(shape)
    ]


def _padded_sides(axes: str, layout: str) -> list[int]:
    """The sides of an array, rounded up to whole tiles.

    Args:
      axes: such as "128,32,32,64".
      layout: such as "0,3,2,1:T(8,128)", the axis that varies fastest first.
    """
    sides = [int(side) for side in axes.split(",") if side]
    tile = _TILE.search(layout)
    if tile is None:
        return sides
    fastest_first = [
        int(axis) for axis in layout.split(":")[0].split(",") if axis.isdigit()
    ]
    tile_sides = [int(side) for side in reversed(tile[1].split(","))]
    for axis, tile_side in zip(fastest_first, tile_sides, strict=False):
        sides[axis] = math.ceil(sides[axis] / tile_side) * tile_side
    return sides


def _bytes_of(dtype: str) -> float:
    """The size of one entry; 0 for what is no number, such as a token."""
    if dtype == "pred":
        return 1
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8 if bits else 0


# The cost of an operation


def _cost_of_operation(
    instruction: Instruction, shapes: dict[str, str], program: _Program
) -> Cost:
    operands = [_arrays(shapes.get(name, "")) for name in instruction.operands]
    results = _results(instruction, operands)
    estimated_cycles = 0
    if estimate := _ESTIMATED_CYCLES.search(instruction.rest):
        estimated_cycles = int(estimate[1])
    kind = instruction.opcode.removesuffix("-start")
    collectives: collections.Counter = collections.Counter()
    collective_bytes = 0.0
    if kind in COLLECTIVES:
        collectives[kind] = 1
        collective_bytes = sum(array.size_bytes for array in results)
    return Cost(
        memory_bytes=sum(
            array.size_bytes
            for array in _accessed(instruction, operands, results, program)
            if array.in_memory
        ),
        estimated_cycles=estimated_cycles,
        collectives=collectives,
        collective_bytes=collective_bytes,
    )


def _results(instruction: Instruction, operands: list[list[_Array]]) -> list[_Array]:
    """The results of an operation, also of one that only starts.

    Most asynchronous operations list their operands before their results; all-reduce
    does not.
    """
    if not instruction.opcode.endswith("-start"):
        return _arrays(instruction.shape)
    listed = _arrays(_CONTEXT.sub("", instruction.shape))
    after_operands = listed[sum(map(len, operands)) :]
    return after_operands or listed


def _accessed(
    instruction: Instruction,
    operands: list[list[_Array]],
    results: list[_Array],
    program: _Program,
) -> list[_Array]:
    """What an operation reads and writes: whole arrays, or as much of them."""
    if instruction.opcode in _ASYNCHRONOUS_COPIES:
        # (source, destination, context) in some order; as many bytes are read as
        # written.
        one_end, other_end = _arrays(instruction.shape)[:2]
        size_bytes = min(one_end.size_bytes, other_end.size_bytes)
        return [_Array(size_bytes, end.in_memory) for end in (one_end, other_end)]
    if instruction.opcode in _READ_A_PART:
        (source,) = operands[0]
        return results + [source._replace(size_bytes=x.size_bytes) for x in results]
    if instruction.opcode == "dynamic-update-slice":
        update = operands[1]
        return update + update  # read, and written in place
    if instruction.opcode in _FUSIONS:
        fusion = instruction.called("calls")
        operands = _parts_of_operands(fusion, operands, program)
        results = _parts_of_results(fusion, results, program)
    return results + [array for arrays in operands for array in arrays]


def _parts_of_operands(
    fusion: str, operands: list[list[_Array]], program: _Program
) -> list[list[_Array]]:
    """The operands of a fusion, each reduced to what the fusion reads of it."""
    parts = list(operands)
    for number, size_bytes in _bytes_read(fusion, program).items():
        part = operands[number][0]._replace(size_bytes=size_bytes)
        parts[number] = [part] if size_bytes else []
    return parts


def _parts_of_results(
    fusion: str, results: list[_Array], program: _Program
) -> list[_Array]:
    """The results of a fusion, each reduced to what the fusion writes of it."""
    parts = list(results)
    for number, size_bytes in enumerate(_bytes_written(fusion, program)):
        if size_bytes is not None:
            parts[number] = results[number]._replace(size_bytes=size_bytes)
    return parts


def _bytes_read(fusion: str, program: _Program) -> dict[int, float]:
    """Bytes read of those parameters, by number, of which a fusion reads only parts.

    A fusion may pass a parameter on to a fusion within it, as libtpu does for slices in
    a loop.
    """
    body = program.computations[fusion]
    by_name = {instruction.name: instruction for instruction in body}
    uses = collections.defaultdict(list)
    for user in body:
        if user.opcode != "bitcast":
            for place, operand in enumerate(user.operands):
                uses[_behind_bitcasts(by_name, operand).name].append((user, place))
    parts = {}
    for instruction in body:
        if instruction.opcode == "parameter" and uses[instruction.name]:
            sizes = [
                _bytes_read_by(user, place, program)
                for user, place in uses[instruction.name]
            ]
            if None not in sizes:
                number = int(instruction.inside)
                parts[number] = sum(size for size in sizes if size is not None)
    return parts


def _bytes_read_by(user: Instruction, place: int, program: _Program) -> float | None:
    """Bytes that an instruction reads of its operand at `place`; None for the whole."""
    if user.opcode in _READ_A_PART and place == 0:
        return sum(array.size_bytes for array in _arrays(user.shape))
    if user.opcode == "dynamic-update-slice" and place == 0:
        return 0.0
    if user.opcode in _FUSIONS:
        return _bytes_read(user.called("calls"), program).get(place)
    return None


def _bytes_written(fusion: str, program: _Program) -> list[float | None]:
    """Bytes that a fusion writes of each result in place; None for the whole."""
    body = program.computations[fusion]
    by_name = {instruction.name: instruction for instruction in body}
    (root,) = [instruction for instruction in body if instruction.root]
    results = root.operands if root.opcode == "tuple" else [root.name]
    return [
        _bytes_written_by(_behind_bitcasts(by_name, result), by_name, program)
        for result in results
    ]


def _bytes_written_by(
    writer: Instruction, by_name: dict[str, Instruction], program: _Program
) -> float | None:
    """Bytes that an instruction writes of its result in place; None for the whole."""
    if writer.opcode == "dynamic-update-slice":
        update = by_name[writer.operands[1]]
        return sum(array.size_bytes for array in _arrays(update.shape))
    if writer.opcode in _FUSIONS:
        of_results = _bytes_written(writer.called("calls"), program)
        return of_results[0] if len(of_results) == 1 else None
    return None


def _behind_bitcasts(by_name: dict[str, Instruction], name: str) -> Instruction:
    """The instruction `name`, or what it is a bitcast of."""
    instruction = by_name[name]
    if instruction.opcode == "bitcast":
        return _behind_bitcasts(by_name, instruction.operands[0])
    return instruction
