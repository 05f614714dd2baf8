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

from kiln.capture.bytecode.assemble import Assembler, CellVar, Instr, Label, TryBegin, TryEnd, parsed
from kiln.capture.bytecode.decode import DecodedCode

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

    def parameters(self) -> tuple[str, ...]:
        return (*self.locals, *self.cells, *(one for one in self.stack if one is not NULL), *self.extra)


def resume_code(decoded: DecodedCode, entry: Entry, inner: InnerCall | None, number: int) -> CodeType:
    """The code of the resume function."""
    code = decoded.code
    items = parsed(code)
    positions = [index for index, item in enumerate(items) if isinstance(item, Instr)]
    target = Label()
    head = Assembler(decoded.instructions[entry.target].line)
    head.op("RESUME", 0)
    for slot in entry.stack:
        head.op("PUSH_NULL") if slot is NULL else head.op("LOAD_FAST", slot)
    if inner is not None:
        _inner_call(head, inner, items, positions)
    head.op("JUMP_FORWARD", target)
    body = _without_cell_setup(items, positions[entry.target], target)
    head.items.extend(body)
    cells = tuple(dict.fromkeys((*code.co_cellvars, *code.co_freevars, *entry.cells)))
    depth = code.co_stacksize + len(entry.stack) + len(entry.extra) + 8
    return head.finish(code, entry.parameters(), cells, (), f"resume_{number}_in_{code.co_name}", depth)


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
            if hasattr(item.arg, "name") and type(item.arg).__name__ == "FreeVar":
                item = Instr(item.name, CellVar(item.arg.name), location=item.location)
        body.append(item)
    return body
