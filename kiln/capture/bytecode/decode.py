"""Reading a code object into a flat list of normal instructions.

    def f(a): return a + 1     =>     0  RESUME 0
                                      1  LOAD_FAST 'a'
                                      2  LOAD_CONST 1
                                      3  BINARY_OP <add>
                                      4  RETURN_VALUE 0

Inline caches and EXTENDED_ARG are removed, raw instructions that stand for two are two; jump targets are indices into
the list. `assemble.parsed` gives the same list, so an index also identifies the instruction when the code is edited.
Much of a program's code is never reached, so only the layout of a code object is read at once, and an instruction when
it is asked for.
"""

from __future__ import annotations

import bisect
import dis
import opcode
from types import CodeType
from typing import Any, final

from kiln.capture.bytecode.exceptions import ExceptionRange, exception_ranges
from kiln.capture.bytecode.table import Decoded, Jump, RawInstruction
from kiln.capture.bytecode.versions import TABLE
from kiln.support.location import Location
from kiln.support.records import dataclass

CONDITIONAL = frozenset(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"))
OR_POP = frozenset(("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP"))
JUMPS = CONDITIONAL | OR_POP | {"JUMP", "FOR_ITER", "SEND"}
ENDS = frozenset(["JUMP", "RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"])
"""Instructions that never fall through."""

_ROWS, _PAIRS = TABLE.rows, TABLE.pairs
EXTENDED_ARG = dis.EXTENDED_ARG
PUSH_EXC_INFO, WITH_EXCEPT_START = dis.opmap["PUSH_EXC_INFO"], dis.opmap["WITH_EXCEPT_START"]
PAIR_OPCODES = frozenset(dis.opmap[name] for name in _PAIRS)
LEFT_OUT = frozenset([EXTENDED_ARG, *(dis.opmap[name] for name in TABLE.left_out)])
NAMES = tuple([TABLE.same.get(name, name) for name in dis.opname])


def _widths() -> tuple[int, ...]:
    caches: dict[str, int] | list[int] = opcode._inline_cache_entries  # type: ignore[attr-defined]
    counts = [caches.get(name, 0) for name in dis.opname] if isinstance(caches, dict) else caches  # by name since 3.13
    return tuple([1 + count for count in counts])


WIDTHS = _widths()
"""The code units of each opcode, with its caches."""


@final
@dataclass(frozen=True, slots=True)
class Instruction:
    """A normal instruction. `arg` is decoded by the version table; for jumps it is an index."""

    name: str
    arg: Any
    unit: int


@final
@dataclass(frozen=True, slots=True)
class Handler:
    """Where execution continues if the instruction raises."""

    target: int
    depth: int
    lasti: bool


LoopBody = tuple[int, list[int], frozenset[int]]
"""The head of a loop, the jumps back to it, and all its instructions."""


@final
class CodeFacts:
    """What is known of a code object: where its instructions are, and what was read of them on demand.

    It does not refer to the code, so that it can be kept by code.
    """

    __slots__ = (
        *("catches", "computing", "copies", "handlers", "in_library", "instructions"),
        *("lines", "live", "locations", "loops", "meetings", "units"),
    )

    def __init__(self, code: CodeType) -> None:
        self.in_library: bool | None = None
        """Whether it belongs to an installed package; None until that is asked."""
        self.units: list[int] = []
        """The code unit of each instruction; the two of a pair have the same."""
        opcodes, units, unit = code.co_code[::2], self.units, 0
        self.catches = opcodes.count(PUSH_EXC_INFO) > opcodes.count(WITH_EXCEPT_START)
        """Whether it has handlers of exceptions beside those of `with`."""
        while unit < len(opcodes):
            op = opcodes[unit]
            if op not in LEFT_OUT:
                units.append(unit)
                if op in PAIR_OPCODES:
                    units.append(unit)
            unit += WIDTHS[op]
        self.instructions: list[Instruction | None] = [None] * len(units)
        self.locations: list[Location | None] = [None] * len(units)
        self.lines: list[tuple[int, int, int | None]] = []
        """The first byte, the end, and the line of each run of instructions."""
        self.handlers: tuple[Handler | None, ...] | None = None
        self.live: list[frozenset[str]] = []
        """Filled by `liveness.live_locals`."""
        self.meetings: list[tuple[int, bool]] = []
        """By instruction: its nearest postdominator, and whether several lead to it. Filled by `postdominators`."""
        self.loops: list[LoopBody] | None = None
        """Filled by `loops.loop_bodies`."""
        self.computing: set[int] = set()
        """The instructions at which a capture has recorded torch calls, in whatever they call."""
        self.copies: dict[int, int] = {}
        """The instructions that are read as jumps, with their targets. Filled by `postdominators`."""

    def index(self, unit: int) -> int:
        """The instruction at a code unit, or that an EXTENDED_ARG there belongs to: jumps may lead to it."""
        return bisect.bisect_left(self.units, unit)


@final
class DecodedCode:
    """A code object as normal instructions, each decoded when it is first asked for."""

    __slots__ = ("code", "facts")

    def __init__(self, code: CodeType, facts: CodeFacts) -> None:
        self.code = code
        self.facts = facts

    def __len__(self) -> int:
        return len(self.facts.units)

    def instruction(self, index: int) -> Instruction:
        """An opcode without a row becomes `UNKNOWN` with its raw name as argument; executing it breaks the graph."""
        facts = self.facts
        found = facts.instructions[index]
        if found is None:
            name, arg = self.name_and_arg(index)
            found = facts.instructions[index] = Instruction(name, arg, facts.units[index])
        return found

    def name_and_arg(self, index: int) -> Decoded:
        if index in self.facts.copies:
            return "JUMP", self.facts.copies[index]
        raw = self.raw(index)
        row = _ROWS.get(raw.opname)
        if row is None:
            return "UNKNOWN", raw.opname
        decoded = row(raw)
        return (decoded[0], self.facts.index(decoded[1].unit)) if type(decoded[1]) is Jump else decoded

    @property
    def instructions(self) -> list[Instruction]:
        return [self.instruction(index) for index in range(len(self))]

    def raw(self, index: int) -> RawInstruction:
        """The instruction as stored, without caches and EXTENDED_ARG; one of a pair as if it stood alone."""
        units, data = self.facts.units, self.code.co_code
        unit = units[index]
        op, arg, before = data[2 * unit], data[2 * unit + 1], 1
        if op in PAIR_OPCODES:
            second = index > 0 and units[index - 1] == unit
            name = _PAIRS[NAMES[op]][second]
            return RawInstruction(name, arg & 15 if second else arg >> 4, unit, unit + WIDTHS[op], self.code)
        while unit >= before and data[2 * (unit - before)] == EXTENDED_ARG:
            arg |= data[2 * (unit - before) + 1] << 8 * before
            before += 1
        return tuple.__new__(RawInstruction, (NAMES[op], arg, unit, unit + WIDTHS[op], self.code))

    def line(self, index: int) -> int:
        lines = self.facts.lines
        if not lines:
            lines.extend(self.code.co_lines())
        found = lines[bisect.bisect_left(lines, (2 * self.facts.units[index] + 1,)) - 1][2]
        return self.code.co_firstlineno if found is None else found

    def location(self, index: int) -> Location:
        facts = self.facts
        known = facts.locations[index]
        if known is None:
            code = self.code
            known = facts.locations[index] = Location(code.co_filename, self.line(index), code.co_qualname)
        return known

    @property
    def in_library(self) -> bool:
        facts = self.facts
        if facts.in_library is None:
            facts.in_library = self.location(0).in_library
        return facts.in_library

    @property
    def in_service(self) -> bool:
        return self.in_library and self.location(0).in_service

    @property
    def handlers(self) -> tuple[Handler | None, ...]:
        """The exception handler of each instruction."""
        facts = self.facts
        if facts.handlers is None:
            facts.handlers = _handlers(facts, exception_ranges(self.code))
        return facts.handlers


def decode(code: CodeType) -> DecodedCode:
    return DecodedCode(code, CodeFacts(code))


def _handlers(facts: CodeFacts, ranges: tuple[ExceptionRange, ...]) -> tuple[Handler | None, ...]:
    handlers: list[Handler | None] = [None] * len(facts.units)
    for guarded in ranges:
        handler = Handler(facts.index(guarded.target), guarded.depth, guarded.lasti)
        for index in range(facts.index(guarded.start), len(facts.units)):
            if facts.units[index] >= guarded.end:
                break
            handlers[index] = handler
    return tuple(handlers)
