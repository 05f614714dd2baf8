"""Reading a code object into a flat list of normal instructions.

    def f(a): return a + 1     =>     0  RESUME 0
                                      1  LOAD_FAST 'a'
                                      2  LOAD_CONST 1
                                      3  BINARY_OP <add>
                                      4  RETURN_VALUE 0

Inline caches and EXTENDED_ARG are removed; jump targets are indices into the list. Raw and normal instructions
correspond one to one, so an index also identifies the instruction when the code is edited.
"""

from __future__ import annotations

import bisect
import dis
import opcode
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any, final

from kiln.capture.bytecode import v311, v312
from kiln.capture.bytecode.exceptions import ExceptionRange, exception_ranges
from kiln.capture.bytecode.table import Jump, RawInstruction, VersionTable
from kiln.support.location import Location
from kiln.support.records import dataclass

TABLES: dict[tuple[int, int], VersionTable] = {table.version: table for table in (v311.TABLE, v312.TABLE)}
"""The table of each CPython version that Kiln knows."""

CONDITIONAL = frozenset(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"))
OR_POP = frozenset(("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"))
JUMPS = CONDITIONAL | OR_POP | {"JUMP", "FOR_ITER", "SEND"}
ENDS = frozenset(["JUMP", "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"])
"""Instructions that never fall through."""

_CACHES: tuple[int, ...] = tuple(opcode._inline_cache_entries)  # type: ignore[attr-defined]


@final
@dataclass(frozen=True, slots=True)
class Instruction:
    """A normal instruction. `arg` is decoded by the version table; for jumps it is an index."""

    name: str
    arg: Any
    unit: int
    line: int


@final
@dataclass(frozen=True, slots=True)
class Handler:
    """Where execution continues if the instruction raises."""

    target: int
    depth: int
    lasti: bool


@final
@dataclass(frozen=True, slots=True)
class DecodedCode:
    """`handlers[i]` is the exception handler of instruction `i`, `locations[i]` its line, filled in on demand.

    `live` is filled by `liveness.live_locals`.
    """

    code: CodeType
    instructions: tuple[Instruction, ...]
    handlers: tuple[Handler | None, ...]
    locations: list[Location | None]
    live: list[frozenset[str]]


def raw_instructions(code: CodeType) -> Iterator[RawInstruction]:
    """The instructions as stored, without caches and EXTENDED_ARG."""
    data = code.co_code
    unit, extended, units = 0, 0, len(data) // 2
    opname = dis.opname
    while unit < units:
        op, arg = data[2 * unit], data[2 * unit + 1] | extended
        following = unit + 1 + _CACHES[op]
        if op == dis.EXTENDED_ARG:
            extended = arg << 8
        else:
            yield RawInstruction(opname[op], arg, unit, following, code)
            extended = 0
        unit = following


def decode(code: CodeType, table: VersionTable | None = None) -> DecodedCode:
    """Read `code` with the table of the running Python, unless another is given.

    An opcode without a row becomes `UNKNOWN` with its raw name as argument; executing it breaks the graph.
    """
    rows = (table or TABLES[sys.version_info[:2]]).rows
    raws = list(raw_instructions(code))
    # A jump may target the EXTENDED_ARG in front of an instruction, so its first unit counts.
    starts = [0, *(raw.next_unit for raw in raws[:-1])]
    lines = _lines(code)
    instructions = []
    for raw in raws:
        row = rows.get(raw.opname)
        name, arg = row(raw) if row else ("UNKNOWN", raw.opname)
        if type(arg) is Jump:
            arg = _index(starts, arg.unit)
        instructions.append(Instruction(name, arg, raw.unit, lines[raw.unit]))
    handlers = _handlers(instructions, starts, exception_ranges(code))
    return DecodedCode(code, tuple(instructions), handlers, [None] * len(instructions), [])


def _index(starts: list[int], unit: int) -> int:
    return bisect.bisect_right(starts, unit) - 1


def _lines(code: CodeType) -> list[int]:
    lines = [code.co_firstlineno] * (len(code.co_code) // 2)
    for start, end, line in code.co_lines():
        if line is not None:
            lines[start // 2 : end // 2] = [line] * (end // 2 - start // 2)
    return lines


def _handlers(
    instructions: list[Instruction], starts: list[int], ranges: tuple[ExceptionRange, ...]
) -> tuple[Handler | None, ...]:
    handlers: list[Handler | None] = [None] * len(instructions)
    for guarded in ranges:
        handler = Handler(_index(starts, guarded.target), guarded.depth, guarded.lasti)
        for index in range(_index(starts, guarded.start), len(instructions)):
            if instructions[index].unit >= guarded.end:
                break
            handlers[index] = handler
    return tuple(handlers)


def text(decoded: DecodedCode) -> str:
    """One line per instruction."""
    rows = []
    for index, inst in enumerate(decoded.instructions):
        arg = getattr(inst.arg, "__name__", repr(inst.arg))
        handler = decoded.handlers[index]
        rows.append(f"{index:4} {inst.name} {arg}" + (f"   # except -> {handler.target}" if handler else ""))
    return "\n".join(rows)
