"""The memory traffic and the collectives of a compiled program, read from its HLO text.

XLA's own count (`Compiled.cost_analysis`) counts the body of a loop once, and does not
separate the chip's memory (HBM on accelerators) from the memories inside the chip,
where TPUs keep most activations of a small batch. Here a loop counts once per
iteration, and the memories are separated. ``f32[128,32,32,64]{0,3,2,1:T(8,128)S(1)}``
is an array padded to tiles of 8 x 128, in memory space 1, inside the chip; space 0,
which is not printed, is the chip's memory.
"""

import collections
import functools
import math
import re
from typing import NamedTuple

_ARRAY = re.compile(r"([a-z]+\d*)[a-z\d]*\[([\d,]*)\](?:\{([^}]*)\})?")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
# The opcode is the first word between a space and a parenthesis; shapes have no such
# word.
_INSTRUCTION = re.compile(
    r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(?=, |$)(.*)$"
)
COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
)
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
_PARTS = ("dynamic-slice", "gather", "slice")


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
        return re.findall(r"%([\w.\-]+)", self.inside)

    def called(self, attribute: str) -> str:
        """The computation that an attribute names."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.rest)
        if found is None:
            raise ValueError(f"{self.name} has no attribute {attribute}")
        return found[1]


def traffic(text: str) -> collections.Counter:
    """The bytes that a run of the program ``Compiled.as_text()`` moves on one device.

    "memory" counts bytes read from and written to the chip's memory, padding of tiles
    included; (opcode, "count") counts the collectives, and (opcode, "bytes") the bytes
    of their results. A loop runs as often as XLA says or, if it does not say, as the
    only constant in its condition; ValueError if there is neither. Of several branches,
    the one that moves most counts. If a fusion reads a part of an operand, or updates
    its result in place, only that part counts.
    """
    computations, entry = _parse(text)

    @functools.cache
    def walk(name: str) -> collections.Counter:
        total: collections.Counter = collections.Counter()
        shapes = {
            instruction.name: instruction.shape for instruction in computations[name]
        }
        for instruction in computations[name]:
            times = 1
            moved: dict = {}
            if instruction.opcode == "while":
                times = _turns(
                    instruction, computations[instruction.called("condition")]
                )
                moved = walk(instruction.called("body"))
            elif instruction.opcode == "call":
                moved = walk(instruction.called("to_apply"))
            elif instruction.opcode == "conditional":
                branches = re.findall(
                    r"%([\w.\-]+)", instruction.rest.split("metadata")[0]
                )
                ways = [walk(branch) for branch in branches if branch in computations]
                moved = max(ways, key=lambda way: way["memory"])
            elif instruction.opcode not in _FREE and not instruction.opcode.endswith(
                "-done"
            ):
                moved = _moved(instruction, shapes, computations)
            total.update({what: times * count for what, count in moved.items()})
        return total

    return walk(entry)


def _parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    computations: dict[str, list[Instruction]] = {}
    entry = current = ""
    for line in text.splitlines():
        if head := _COMPUTATION.match(line):
            current = head[2]
            computations[current] = []
            entry = current if head[1] else entry
        elif found := _INSTRUCTION.match(line):
            computations[current].append(Instruction(*found.groups()))
        elif line.startswith(" ") and " = " in line:
            raise ValueError(
                f"this line of a compiled program cannot be read: {line.strip()[:60]}"
            )
    return computations, entry


def _arrays(shape: str) -> list[tuple[float, bool]]:
    """(bytes, whether they are in the chip's memory) for each array of a shape."""
    found = []
    for kind, axes, layout in _ARRAY.findall(shape):
        sides = [int(axis) for axis in axes.split(",") if axis]
        order = [
            int(axis) for axis in layout.split(":")[0].split(",") if axis.isdigit()
        ]
        tile = re.search(r"T\(([\d,]+)\)", layout)
        for axis, step in zip(
            order, reversed(tile[1].split(",")) if tile else (), strict=False
        ):
            sides[axis] = -(-sides[axis] // int(step)) * int(step)
        bits = re.search(r"\d+", kind)
        each = 1 if kind == "pred" else int(bits[0]) / 8 if bits else 0
        found.append((math.prod(sides) * each, "S(" not in layout))
    return found


def _sum(arrays: list[tuple[float, bool]]) -> dict:
    return {"memory": sum(size for size, in_memory in arrays if in_memory)}


def _turns(loop: Instruction, condition: list[Instruction]) -> int:
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest):
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


def _moved(instruction: Instruction, shapes: dict, computations: dict) -> dict:
    results = _arrays(instruction.shape)
    operands = [_arrays(shapes.get(name, "")) for name in instruction.operands]
    if instruction.opcode in ("copy-start", "slice-start", "dynamic-slice-start"):
        # (source, destination, context) in some order; as many bytes are read as
        # written.
        (one_size, source), (other_size, target) = results[:2]
        return _sum([(min(one_size, other_size), place) for place in (source, target)])
    if instruction.opcode in _PARTS:
        return _sum(results + [(size, operands[0][0][1]) for size, _ in results])
    if instruction.opcode == "dynamic-update-slice":
        return _sum(operands[1] * 2)
    if instruction.opcode == "fusion":
        _cut_down(instruction.called("calls"), computations, results, operands)
    moved = _sum(results + [array for arrays in operands for array in arrays])
    kind = instruction.opcode.removesuffix("-start")
    if kind in COLLECTIVES:
        # An asynchronous collective lists its operands before its results.
        moved_results = results
        if instruction.opcode != kind:
            moved_results = results[len(results) // 2 :]
        moved |= {
            (kind, "count"): 1,
            (kind, "bytes"): sum(size for size, _ in moved_results),
        }
    return moved


def _cut_down(called: str, computations: dict, results: list, operands: list) -> None:
    """Reduces the arrays of a fusion, in place, to what it reads or writes."""
    for number, size in _parts_read(called, computations).items():
        operands[number] = [(size, operands[number][0][1])] if size else []
    for i, written in enumerate(_parts_written(called, computations)):
        if written is not None:
            results[i] = (written, results[i][1])


def _source(by_name: dict[str, Instruction], name: str) -> Instruction:
    """The instruction `name`, or what it is a bitcast of."""
    instruction = by_name[name]
    return (
        _source(by_name, instruction.operands[0])
        if instruction.opcode == "bitcast"
        else instruction
    )


def _parts_read(called: str, computations: dict) -> dict[int, float]:
    """Bytes read of those parameters, by number, of which a fusion reads only parts.

    A fusion may pass a parameter on to a fusion within it, as libtpu does for slices in
    a loop.
    """
    body = computations[called]
    by_name = {instruction.name: instruction for instruction in body}
    users = collections.defaultdict(list)
    for instruction in body:
        if instruction.opcode != "bitcast":
            for place, name in enumerate(instruction.operands):
                users[_source(by_name, name).name].append((instruction, place))

    def size_read(user: Instruction, place: int) -> float | None:
        """Bytes that one use reads; None if it reads the whole."""
        if user.opcode in _PARTS and place == 0:
            return sum(size for size, _ in _arrays(user.shape))
        if user.opcode == "dynamic-update-slice" and place == 0:
            return 0.0
        if user.opcode == "fusion":
            return _parts_read(user.called("calls"), computations).get(place)
        return None

    parts = {}
    for instruction in body:
        if instruction.opcode == "parameter" and users[instruction.name]:
            sizes = [size_read(*use) for use in users[instruction.name]]
            if None not in sizes:
                parts[int(instruction.inside)] = sum(
                    size for size in sizes if size is not None
                )
    return parts


def _parts_written(called: str, computations: dict) -> list[float | None]:
    """Bytes that a fusion writes of each result in place; None for the whole."""
    body = computations[called]
    by_name = {instruction.name: instruction for instruction in body}
    (root,) = [instruction for instruction in body if instruction.root]
    parts: list[float | None] = []
    for name in root.operands if root.opcode == "tuple" else [root.name]:
        written = _source(by_name, name)
        if written.opcode == "dynamic-update-slice":
            update = by_name[written.operands[1]]
            parts.append(sum(size for size, _ in _arrays(update.shape)))
        elif written.opcode == "fusion":
            nested = _parts_written(written.called("calls"), computations)
            parts.append(nested[0] if len(nested) == 1 else None)
        else:
            parts.append(None)
    return parts
