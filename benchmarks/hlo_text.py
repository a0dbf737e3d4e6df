"""The text of a compiled program (HLO), line by line.

A computation is a head, instructions, and a brace. The program starts at ENTRY; loops,
branches and fusions name the other computations::

    %write (a: f32[100,3], u: f32[1,3], b: s32[]) -> f32[100,3] {
      %a = f32[100,3]{1,0} parameter(0)
      %u = f32[1,3]{1,0} parameter(1)
      %b = s32[] parameter(2)
      ROOT %c = f32[100,3]{1,0} dynamic-update-slice(%a, %u, %b, %b)
    }

    ENTRY %main (y: f32[100,3], row: f32[1,3], i: s32[]) -> f32[100,3] {
      ...
      ROOT %z = f32[100,3]{1,0} fusion(%y, %row, %i), kind=kLoop, calls=%write
    }

An instruction has a name, the shape of its result, an opcode, operands and attributes.
A shape such as ``f32[128,32,32,64]{0,3,2,1:T(8,128)S(1)}`` is an array with its layout:
padded to tiles of 8 x 128, in memory space 1, inside the chip. Space 0, which is not
printed, is the chip's memory.
"""

import functools
import math
import re
from typing import NamedTuple

_ARRAY = re.compile(r"([a-z]+\d*)[a-z\d]*\[([\d,]*)\](?:\{([^}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{$")
# The opcode is the first word between a space and a parenthesis; shapes have no such
# word.
_INSTRUCTION = re.compile(
    r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(?=, |$)(.*)$"
)
_NAME = re.compile(r"%([\w.\-]+)")


class Array(NamedTuple):
    """One array of a shape.

    Attributes:
      size_bytes: with the padding of tiles.
      in_memory: whether it is in the chip's memory, not in one inside the chip.
    """

    size_bytes: float
    in_memory: bool


class Instruction(NamedTuple):
    """One line: ``ROOT %name = shape opcode(inside), attributes``.

    Attributes:
      is_root: whether its result is that of the computation.
      name: without the %.
      shape: of the result, an array or a tuple of shapes.
      opcode: such as "fusion" or "dynamic-slice".
      inside: the operands, or a parameter's number, or a constant's value.
      attributes: such as ", kind=kLoop, calls=%write".
    """

    is_root: bool
    name: str
    shape: str
    opcode: str
    inside: str
    attributes: str

    @property
    def operands(self) -> list[str]:
        """The names of the instructions whose results this one takes, in order."""
        return _NAME.findall(self.inside)

    @property
    def arrays(self) -> list[Array]:
        """The arrays of the shape."""
        return arrays(self.shape)

    @property
    def size_bytes(self) -> float:
        """Of all arrays of the shape."""
        return sum(array.size_bytes for array in self.arrays)

    def called(self, attribute: str) -> str:
        """The computation that an attribute such as "calls" names.

        Raises:
          ValueError: the instruction has no such attribute.
        """
        match = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.attributes)
        if match is None:
            raise ValueError(f"{self.name} has no attribute {attribute}")
        return match[1]


class Use(NamedTuple):
    """The instruction `user` takes something as its operand number `place`."""

    user: Instruction
    place: int


class Computation:
    """The instructions of one computation.

    Attributes:
      instructions: in the order of their lines.
      by_name: the same, by name.
    """

    def __init__(self, instructions: list[Instruction]):
        self.instructions = instructions
        self.by_name = {instruction.name: instruction for instruction in instructions}

    def with_opcode(self, opcode: str) -> list[Instruction]:
        """The instructions with this opcode."""
        return [
            instruction
            for instruction in self.instructions
            if instruction.opcode == opcode
        ]

    def behind_bitcasts(self, name: str) -> Instruction:
        """The instruction `name`, or what it is a bitcast of."""
        instruction = self.by_name[name]
        while instruction.opcode == "bitcast":
            instruction = self.by_name[instruction.operands[0]]
        return instruction

    @property
    def results(self) -> list[str]:
        """The names of the instructions whose results the computation returns."""
        (root,) = [line for line in self.instructions if line.is_root]
        return root.operands if root.opcode == "tuple" else [root.name]

    @functools.cached_property
    def uses(self) -> dict[str, list[Use]]:
        """Name of an instruction -> all uses of its result, also behind bitcasts."""
        uses: dict[str, list[Use]] = {name: [] for name in self.by_name}
        for user in self.instructions:
            if user.opcode != "bitcast":
                for place, operand in enumerate(user.operands):
                    used = self.behind_bitcasts(operand)
                    uses[used.name].append(Use(user, place))
        return uses


class Program(NamedTuple):
    """A program.

    Attributes:
      computations: by name.
      entry: the name of the one that runs first.
    """

    computations: dict[str, Computation]
    entry: str

    def branches(self, conditional: Instruction) -> list[str]:
        """The computations that a conditional chooses from."""
        # Metadata comes last; it quotes the source, which may have any names.
        before_metadata = conditional.attributes.split("metadata")[0]
        names = _NAME.findall(before_metadata)
        return [name for name in names if name in self.computations]


def parse(text: str) -> Program:
    """The program that ``Compiled.as_text()`` prints.

    Raises:
      ValueError: a line cannot be read.
    """
    instructions: dict[str, list[Instruction]] = {}
    entry = current = ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            current = head[2]
            instructions[current] = []
            if head[1]:
                entry = current
        elif match := _INSTRUCTION.match(line):
            root, *fields = match.groups()
            instructions[current].append(Instruction(root is not None, *fields))
        elif line.startswith(" ") and " = " in line:
            raise ValueError(
                f"this line of a compiled program cannot be read: {line.strip()[:60]}"
            )
    computations = {name: Computation(lines) for name, lines in instructions.items()}
    return Program(computations, entry)


def arrays(shape: str) -> list[Array]:
    """The arrays of a shape, which may be a tuple, also a nested one."""
    return [
        Array(
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
