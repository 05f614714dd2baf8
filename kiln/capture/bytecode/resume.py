"""Resume functions: the code of a frame, entered in the middle.

    def f(a, b):                          def resume(b, x):
        x = a / (abs(a) + 1)                  <restore the stack>; goto L
        if b.sum() < 0:           =>          ...
            b = b * -1                    L:  b = b * -1
        return x * b                          return x * b

Parameters: live locals in the order of `co_varnames`, cells (which replace the code's own cells and free
variables), values of the stack, then the state of the frames that were inlined. A frame that was in the middle of an
inlined call makes that call again, to the callee's resume function, inside the same exception handlers.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any, final

from kiln.capture.bytecode.assemble import Assembler, CellVar, FreeVar, Instr, Label, TryBegin, TryEnd, parsed
from kiln.capture.bytecode.decode import DecodedCode
from kiln.support.errors import require

CLASS_CELL = "__class__"
"""The free variable that `super()` needs: it stays one, so the resume function has a closure of this cell."""
NULL = None
"""A NULL slot of the stack: pushed again, not passed."""


@final
@dataclass(frozen=True, slots=True)
class InnerCall:
    """The call a resumed frame makes first: `function(*inner arguments)`, in place of instruction `at`.

    `keep`: the result is pushed. Else it is dropped and the stack slot named by `instead` is pushed, if there is one.
    """

    function: Any
    arguments: tuple[str, ...]
    at: int
    keep: bool
    instead: str | None


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """Where and with what a frame goes on: at instruction `target`, `stack` restored from parameters."""

    target: int
    locals: tuple[str, ...]
    cells: tuple[str, ...]
    stack: tuple[str | None, ...]
    extra: tuple[str, ...] = ()
    first: str | None = None
    """A local or cell that must be the first parameter: `super()` without arguments looks there."""

    def parameters(self) -> tuple[str, ...]:
        names = (*self.locals, *self.cells, *(one for one in self.stack if one is not NULL), *self.extra)
        return (self.first, *(one for one in names if one != self.first)) if self.first in names else names  # type: ignore[return-value]


def resume_code(decoded: DecodedCode, entry: Entry, inner: InnerCall | None, number: int) -> CodeType:
    """The code of the resume function."""
    code = decoded.code
    items = parsed(code)
    positions = [index for index, item in enumerate(items) if isinstance(item, Instr)]
    _set_depths(items, decoded)
    target = Label()
    head = Assembler(decoded.instructions[entry.target].line)
    if CLASS_CELL in code.co_freevars:
        head.op("COPY_FREE_VARS", 1)
    head.op("RESUME", 0)
    for slot in entry.stack:
        head.op("PUSH_NULL") if slot is NULL else head.op("LOAD_FAST", slot)
    if inner is not None:
        _inner_call(head, inner, items, positions)
    head.op("JUMP_FORWARD", target)
    body = _without_cell_setup(items, positions[entry.target], target)
    head.items.extend(body)
    kept = tuple(name for name in code.co_freevars if name == CLASS_CELL)
    cells = tuple(
        dict.fromkeys(name for name in (*code.co_cellvars, *code.co_freevars, *entry.cells) if name not in kept)
    )
    depth = code.co_stacksize + len(entry.stack) + len(entry.extra) + 8
    return head.finish(code, entry.parameters(), cells, kept, f"resume_{number}_in_{code.co_name}", depth)


def _set_depths(items: list[Any], decoded: DecodedCode) -> None:
    """The library leaves the stack depth of exception regions open; the exception table has it."""
    count = 0
    waiting: list[TryBegin] = []
    for item in items:
        if isinstance(item, TryBegin):
            waiting.append(item)
        elif isinstance(item, Instr):
            handler = decoded.handlers[count]
            count += 1
            for begin in waiting:
                require(handler, "an exception region begins at an instruction without a handler")
                begin.stack_depth = handler.depth  # type: ignore[union-attr]
            waiting.clear()


def _inner_call(head: Assembler, inner: InnerCall, items: list[Any], positions: list[int]) -> None:
    region = _region_of(items, positions[inner.at])
    begin = None
    if region is not None:
        begin = TryBegin(region.target, region.push_lasti, region.stack_depth)
        head.items.append(begin)
    head.const(inner.function)
    for name in inner.arguments:
        head.op("LOAD_FAST", name)
    head.call(len(inner.arguments))
    if begin is not None:
        head.items.append(TryEnd(begin))
    if not inner.keep:
        head.op("POP_TOP")
        if inner.instead is not None:
            head.op("LOAD_FAST", inner.instead)


def _region_of(items: list[Any], position: int) -> TryBegin | None:
    region = None
    for item in items[:position]:
        if isinstance(item, TryBegin):
            region = item
        elif isinstance(item, TryEnd):
            region = None
    return region


def _without_cell_setup(items: list[Any], position: int, target: Label) -> list[Any]:
    """The original instructions with the label; cells come as arguments, so none is made."""
    body: list[Any] = []
    for index, item in enumerate(items):
        if index == position:
            body.append(target)
        if isinstance(item, Instr):
            if item.name in ("MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR"):
                if index == position:
                    body.append(Instr("NOP", lineno=item.lineno))
                continue
            if isinstance(item.arg, FreeVar) and item.arg.name != CLASS_CELL:
                item = Instr(item.name, CellVar(item.arg.name), location=item.location)
        body.append(item)
    return body
