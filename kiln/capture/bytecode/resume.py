"""Resume functions: the code of a frame, entered in the middle.

    def f(a, b):                          def resume(b, x):
        x = a / (abs(a) + 1)                  <restore the stack>; goto L
        if b.sum() < 0:           =>          ...
            b = b * -1                    L:  b = b * -1
        return x * b                          return x * b

Parameters: live locals in the order of `co_varnames`, cells (which replace the code's own cells and free
variables), stack values, then the state of inlined frames. A frame that was inside an inlined call first calls the
callee's resume function, within the same exception handlers.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import CodeType
from typing import Any, final

from kiln.capture.bytecode.assemble import Assembler, CellVar, FreeVar, Instr, Label, TryBegin, TryEnd, parsed
from kiln.capture.bytecode.decode import DecodedCode
from kiln.support.errors import require

CLASS_CELL = "__class__"
"""`super()` needs this free variable, so the resume function keeps it in a closure."""
NULL = None
"""A NULL on the stack: pushed again, not passed as an argument."""


@final
@dataclass(frozen=True, slots=True)
class InnerCall:
    """The call that a resumed frame makes first: `function(*arguments)`, in place of instruction `at`.

    `keep`: the result is pushed. Otherwise it is dropped and the parameter `instead`, if any, is pushed.
    """

    function: Any
    arguments: tuple[str, ...]
    at: int
    keep: bool
    instead: str | None


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """Where a frame continues: at instruction `target`, with `stack` restored from parameters."""

    target: int
    locals: tuple[str, ...]
    cells: tuple[str, ...]
    stack: tuple[str | None, ...]
    extra: tuple[str, ...] = ()
    first: str | None = None
    """The local or cell that must be the first parameter, where `super()` without arguments looks for `self`."""

    def parameters(self) -> tuple[str, ...]:
        names = (*self.locals, *self.cells, *(name for name in self.stack if name is not NULL), *self.extra)
        return (self.first, *(name for name in names if name != self.first)) if self.first in names else names  # type: ignore[return-value]


@final
@dataclass(frozen=True, slots=True)
class ResumeOrigin:
    """What a resume function was made from, so that what follows a break in it is made from the same code.

    `places` has the number of each instruction in the original; None in front of them, where the state is restored.
    """

    decoded: DecodedCode
    entry: Entry
    inner: InnerCall | None
    places: tuple[int | None, ...]

    def call_at(self, at: int) -> int | None:
        """The original's call during which the resume function is at `at`: its own, or that of the resumed callee."""
        place = self.places[at]
        return place if place is not None or self.inner is None else self.inner.at

    def place_of(self, target: int) -> int | None:
        """Where the original continues when the resume function continues at `target`."""
        place = self.places[target]
        if place is not None or self.inner is None or not self.inner.keep:
            return place
        return self.entry.target


def resume_origin(decoded: DecodedCode, entry: Entry, inner: InnerCall | None, made: DecodedCode) -> ResumeOrigin:
    """The origin of the resume function with the code `made`."""
    items = [item for item in parsed(decoded.code) if isinstance(item, Instr)]
    first = next((index for index, item in enumerate(items) if item.name == "RESUME"), 0)
    kept = [i for i, item in enumerate(items) if not is_setup(item, i >= first) or i == entry.target]
    head = len(made.instructions) - len(kept)
    return ResumeOrigin(decoded, entry, inner, (*[None] * head, *kept))


def is_setup(item: Instr, begun: bool) -> bool:
    """Whether a resume function lacks the instruction; `begun`: it does not stand before the frame's `RESUME`."""
    return item.name in ("COPY_FREE_VARS", "RETURN_GENERATOR") or (item.name == "MAKE_CELL" and not begun)


def resume_code(decoded: DecodedCode, entry: Entry, inner: InnerCall | None) -> CodeType:
    """The code of the resume function. It has the name of the original: tracebacks and debuggers show it."""
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
    for slot in dict.fromkeys(slot for slot in entry.stack if slot is not NULL):
        head.op("DELETE_FAST", slot)  # neither kept alive nor seen by `locals()`
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
    return head.finish(code, entry.parameters(), cells, kept, depth)


def _set_depths(items: list[Any], decoded: DecodedCode) -> None:
    """The library does not set the stack depth of exception regions; the exception table has it."""
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
    """The original instructions with the label, without those that make the frame's cells: these come as arguments.

    An inlined comprehension of CPython 3.12 makes cells of its own, which stay.
    """
    body: list[Any] = []
    begun = False
    for index, item in enumerate(items):
        if index == position:
            body.append(target)
        if isinstance(item, Instr):
            begun |= item.name == "RESUME"
            if is_setup(item, begun):
                if index == position:
                    body.append(Instr("NOP", lineno=item.lineno))
                continue
            if isinstance(item.arg, FreeVar) and item.arg.name != CLASS_CELL:
                item = Instr(item.name, CellVar(item.arg.name), location=item.location)
        body.append(item)
    return body
