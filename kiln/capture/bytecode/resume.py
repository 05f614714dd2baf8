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

import re
import weakref
from collections.abc import Mapping, Sequence
from types import CellType, CodeType, FunctionType, MappingProxyType
from typing import Any, final

from kiln.capture.bytecode.assemble import (
    SUSPENDS,
    Assembler,
    CellVar,
    FreeVar,
    Instr,
    Label,
    TryBegin,
    TryEnd,
    parsed,
)
from kiln.capture.bytecode.decode import DecodedCode, decode
from kiln.native._frames import Driven
from kiln.support.errors import require
from kiln.support.real_builtins import real_builtins
from kiln.support.records import dataclass

CLASS_CELL = "__class__"
"""`super()` needs this free variable, so the resume function keeps it in a closure."""
NOWHERE: Mapping[int, Assembler] = MappingProxyType({})
Items = list[Any]
"""Instructions, labels, and begins and ends of exception regions."""
NULL = None
"""A NULL on the stack: pushed again, not passed as an argument."""
RESUMED = "_kiln_resumed"
"""The attribute of resume functions: their `ResumeOrigin`. Also in csrc/frames/dispatcher.cpp."""
PARAMETER = re.compile(r"_(?:stack|result|inner|instead)_(\d+)")
"""How the parameters of resume functions begin that are no variables of the program; `parameter` makes them."""


def parameter(kind: str, number: int, which: int | str | None = None) -> str:
    """`number` tells them from the variables of the program. `which`: a position, or what the inner frame calls it:
    what is known of a variable holds behind each break."""
    return f"_{kind}_{number}" if which is None else f"_{kind}_{number}_{which}"


def is_result(name: str) -> bool:
    """Whether a parameter is what the instruction at a graph break has left."""
    return name.startswith("_result_") and PARAMETER.match(name) is not None


def unused_number(code: CodeType) -> int:
    """The first `number` of parameters that no variable of `code` has: equal states get equal names."""
    used = {int(found[1]) for name in code.co_varnames if (found := PARAMETER.match(name))}
    return next(number for number in range(len(used) + 1) if number not in used)


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
    handled: tuple[int, ...] = ()
    """Positions in `stack` where handlers keep what was handled before; the slots are the exceptions they handle."""

    def parameters(self) -> tuple[str, ...]:
        names = (*self.locals, *self.cells, *(name for name in self.stack if name is not NULL), *self.extra)
        return (self.first, *(name for name in names if name != self.first)) if self.first in names else names  # type: ignore[return-value]


@final
@dataclass(frozen=True, slots=True)
class ResumeOrigin:
    """What a resume function is: the rest of `code` from `entry` on, after the call `inner` if there is one.

    The interpreter continues in the instructions of `code` itself, so nothing is written or read again for a break,
    and a break in the body of a loop leads back to an equal origin.
    """

    code: CodeType
    entry: Entry
    inner: InnerCall | None


def origin_of(function: FunctionType) -> ResumeOrigin | None:
    """None for a function that is no resume function."""
    found: ResumeOrigin | None = function.__dict__.get(RESUMED)
    return found


def original_code(function: FunctionType) -> CodeType:
    """The code of the program that the function runs."""
    origin = origin_of(function)
    return function.__code__ if origin is None else origin.code


@final
class Unassembled:
    """Stands in the code of a resume function for what is assembled when it is first called in Python."""

    __slots__ = ("function",)

    def __init__(self) -> None:
        self.function: weakref.ref[FunctionType] | None = None

    def __call__(self) -> FunctionType:
        function = self.function() if self.function is not None else None
        assert function is not None, "its code runs"
        return assembled(function)


def resume_function(
    origin: ResumeOrigin, dictionary: dict[str, object], closure: tuple[CellType, ...] | None, name: str
) -> FunctionType:
    """The function, whose code is assembled when it is to run in Python."""
    code, parameters = origin.code, origin.entry.parameters()
    waiting = Unassembled()
    body = Assembler(code.co_firstlineno)
    if CLASS_CELL in code.co_freevars:
        body.op("COPY_FREE_VARS", 1)
    body.op("RESUME", 0).const(waiting).call(0)
    for slot in parameters:
        body.op("LOAD_FAST", slot).op("DELETE_FAST", slot)
    body.call(len(parameters)).op("RETURN_VALUE")
    made = FunctionType(body.finish(code, parameters, (), kept_freevars(code)), dictionary, code.co_name, None, closure)
    made.__qualname__ = name
    made.__dict__[RESUMED] = origin
    waiting.function = weakref.ref(made)
    return made


def assembled(function: FunctionType) -> FunctionType:
    """`function`, with its code assembled if it is a resume function."""
    origin = origin_of(function)
    if origin is not None and any(type(value) is Unassembled for value in function.__code__.co_consts):
        with real_builtins():
            function.__code__ = resume_code(decode(origin.code), origin.entry, origin.inner)
    return function


def kept_freevars(code: CodeType) -> tuple[str, ...]:
    """The free variables that the resume functions of `code` have."""
    return tuple(name for name in code.co_freevars if name == CLASS_CELL)


def is_setup(item: Instr, begun: bool) -> bool:
    """Whether a resume function lacks the instruction; `begun`: it does not stand before the frame's `RESUME`."""
    return item.name in ("COPY_FREE_VARS", "RETURN_GENERATOR") or (item.name == "MAKE_CELL" and not begun)


def resume_code(
    decoded: DecodedCode, entry: Entry, inner: InnerCall | None, leaving: Mapping[int, Assembler] = NOWHERE
) -> CodeType:
    """The code of the resume function. It has the name of the original: tracebacks and debuggers show it.

    `leaving`: what stands in front of instructions, but for the entry itself.
    """
    code = decoded.code
    items = parsed(code)
    positions = [index for index, item in enumerate(items) if isinstance(item, Instr)]
    set_depths(items, decoded)
    target = Label()
    head = Assembler(decoded.line(entry.target))
    if CLASS_CELL in code.co_freevars:
        head.op("COPY_FREE_VARS", 1)
    if code.co_flags & SUSPENDS:
        head.op("RETURN_GENERATOR").op("POP_TOP")
    head.op("RESUME", 0)
    for position, slot in enumerate(entry.stack):
        head.op("PUSH_NULL") if slot is NULL else head.op("LOAD_FAST", slot)
        if position in entry.handled:
            head.op("PUSH_EXC_INFO").op("POP_TOP")
    for slot in dict.fromkeys(slot for slot in entry.stack if slot is not NULL):
        head.op("DELETE_FAST", slot)  # neither kept alive nor seen by `locals()`
    if inner is not None:
        head.line = decoded.line(inner.at)
        _inner_call(head, inner, items, positions)
        head.line = decoded.line(entry.target)
    head.op("JUMP_FORWARD", target)
    before = {positions[index]: code.items for index, code in leaving.items()}
    body = _without_cell_setup(items, positions[entry.target], target, before)
    head.items.extend(body)
    kept = kept_freevars(code)
    cells = tuple(
        dict.fromkeys(name for name in (*code.co_cellvars, *code.co_freevars, *entry.cells) if name not in kept)
    )
    depth = code.co_stacksize + len(entry.stack) + len(entry.extra) + 8
    depth += max(map(len, before.values()), default=0)
    return head.finish(code, entry.parameters(), cells, kept, depth, code.co_flags & SUSPENDS)


def set_depths(items: Items, decoded: DecodedCode) -> None:
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


def _inner_call(head: Assembler, inner: InnerCall, items: Items, positions: list[int]) -> None:
    region = _region_of(items, positions[inner.at])
    begin = None
    if region is not None:
        begin = TryBegin(region.target, region.push_lasti, region.stack_depth)
        head.items.append(begin)
    head.const(inner.function)
    for name in inner.arguments:
        head.op("LOAD_FAST", name).op("DELETE_FAST", name)
    if isinstance(inner.function, Driven):
        head.op("BUILD_LIST", len(inner.arguments))
    head.call(1 if isinstance(inner.function, Driven) else len(inner.arguments))
    if begin is not None:
        head.items.append(TryEnd(begin))
    if not inner.keep:
        head.op("POP_TOP")
        if inner.instead is not None:
            head.op("LOAD_FAST", inner.instead)


def _region_of(items: Items, position: int) -> TryBegin | None:
    region = None
    for item in items[:position]:
        if isinstance(item, TryBegin):
            region = item
        elif isinstance(item, TryEnd):
            region = None
    return region


def _without_cell_setup(items: Items, position: int, target: Label, before: Mapping[int, Sequence[object]]) -> Items:
    """The original instructions with the label, without those that make the frame's cells: these come as arguments.

    An inlined comprehension of CPython 3.12 makes cells of its own, which stay.
    """
    body: Items = []
    begun = False
    for index, item in enumerate(items):
        body.extend(before.get(index, ()))
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
