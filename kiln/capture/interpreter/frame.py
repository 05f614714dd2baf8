"""One frame of the user's program, executed symbolically.

A frame holds locals, cells and a value stack like CPython's, but of `Value`s. An instruction is decoded when it is
first reached, into a row `(handler, argument, may_break)` of its code object, so a step is a lookup and a call.
Handlers are registered by normal opcode name:

    @opcode("UNARY_NOT", pops=1)
    def unary_not(frame, arg):
        frame.push(FALSE if truth_value(frame.state, frame.pop(), "not") else TRUE)

`pops` says that it may break the graph, and how many operands it then takes from `saved`, the stack before it.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Sequence
from dataclasses import field
from math import inf
from types import CodeType, MappingProxyType
from typing import Any, final
from weakref import ref

import torch

from kiln.capture.bytecode.assemble import SUSPENDS, Instr, parsed
from kiln.capture.bytecode.decode import CodeFacts, DecodedCode
from kiln.capture.bytecode.liveness import READS_FRAME
from kiln.capture.bytecode.postdominators import RETURNS
from kiln.capture.bytecode.resume import NULL, InnerCall, ResumeOrigin
from kiln.capture.bytecode.versions import TABLE
from kiln.capture.interpreter.breaks import BrokenFrame, GraphBreak, Raised, UnsupportedOpcode
from kiln.capture.interpreter.core import NOT_RESUMABLE, PUSH, Args, CallSite, CaptureState, Value
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.exception import caught, lines_of, link
from kiln.graph.trace.nested_graphs import NotNested
from kiln.runtime.guards.source import LocalSource
from kiln.support.location import Location
from kiln.support.records import dataclass

OpcodeHandler = Callable[["SymbolicFrame", Any], None]
Count = int | Callable[[int], int]
"""A number of values on the stack, or a function of the opcode's argument."""


@final
@dataclass(frozen=True, slots=True)
class Opcode:
    """A row of OPCODES: the handler, and what a graph break at the instruction needs.

    `breaks`: it may break the graph. `pops` is the number of values on top of the stack that it may read, `pushes` the
    number that replaces them; without `pops` it cannot be executed outside of its frame, with `uses_globals` not in
    another module. `prepare` is applied to the argument once per code object.
    """

    handler: OpcodeHandler
    breaks: bool
    pops: Count | None
    pushes: Count
    uses_globals: bool
    prepare: Callable[[object], Value] | None

    def operands(self, arg: object) -> int:
        assert self.pops is not None
        return count_of(self.pops, arg)

    def results(self, arg: object) -> int:
        return count_of(self.pushes, arg)


def count_of(count: Count, arg: object) -> int:
    return count if isinstance(count, int) else count(arg if isinstance(arg, int) else 0)


NULL_ABOVE = TABLE.null_above
TORCH = os.path.join(os.path.dirname(torch.__file__), "")
"""Its own handlers of exceptions keep no error of an operator."""
OPCODES: dict[str, Opcode] = {}
"""By normal opcode name."""


def opcode(
    *names: str,
    pops: Count | None = None,
    pushes: Count = 1,
    breaks: bool = False,
    uses_globals: bool = False,
    prepare: Callable[[object], Value] | None = None,
) -> Callable[[OpcodeHandler], OpcodeHandler]:
    """Register the handler of opcodes; those with `pops` may break the graph."""

    def register(handler: OpcodeHandler) -> OpcodeHandler:
        for name in names:
            assert name not in OPCODES, f"{name} has two handlers"
            OPCODES[name] = Opcode(handler, breaks or pops is not None, pops, pushes, uses_globals, prepare)
        return handler

    return register


def argument(count: int) -> int:
    """As many as the argument says."""
    return count


def argument_plus(extra: int) -> Callable[[int], int]:
    """As many as the argument says, and `extra` more."""
    return lambda count: count + extra


MOST_STEPS = 50_000
"""Of code that the program may not come to."""
ENDLESS = "it takes too many steps"

HANDLED_BEFORE = Constant(None)
"""On the stack of a frame that handles an exception: what was handled before, which POP_EXCEPT restores."""

Row = tuple[OpcodeHandler, Any, bool]
"""A decoded instruction: handler, argument, whether it may break the graph."""


def unknown_opcode(frame: SymbolicFrame, arg: str) -> None:
    raise UnsupportedOpcode(opcode=arg, why="the interpreter has no handler for it")


def first_time(frame: SymbolicFrame, arg: object) -> None:
    """Stands in the rows for an instruction that was never reached: decodes it, and executes it."""
    name, arg = frame.decoded.name_and_arg(frame.at)
    entry = OPCODES.get(name)
    if entry is None:
        row: Row = unknown_opcode, arg if name == "UNKNOWN" else name, True
    else:
        row = entry.handler, entry.prepare(arg) if entry.prepare else arg, entry.breaks
    handler, arg, breaks = frame.rows[frame.at] = row
    if breaks:
        frame.saved, frame.consumed = frame.stack.copy(), frame.state.counters.consumed
    handler(frame, arg)


UNREACHED: Row = first_time, None, False


@final
@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a code object; `parsed` is filled on demand."""

    code: ref[CodeType]
    facts: CodeFacts
    rows: list[Row]
    parsed: list[Instr]


@final
class CodeTable:
    """Decoded code objects with their handlers. Entries die with their code, so they do not refer to it.

    By address: the hash of a code object is that of all its contents.
    """

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self.decoded = 0
        """How many instructions the code objects have that were read."""

    def rows(self, code: CodeType) -> tuple[DecodedCode, list[Row]]:
        found = self._known.get(id(code)) or self._add(code)
        return DecodedCode(code, found.facts), found.rows

    def is_reached(self, code: CodeType, index: int) -> bool:
        """Whether a capture has executed the instruction."""
        return self.rows(code)[1][index] is not UNREACHED

    def instruction(self, code: CodeType, index: int) -> Instr:
        """A copy of the instruction as it is assembled."""
        found = self._known.get(id(code)) or self._add(code)
        if not found.parsed:
            found.parsed.extend(item for item in parsed(code) if isinstance(item, Instr))
        return found.parsed[index].copy()

    def _add(self, code: CodeType) -> Known:
        facts = CodeFacts(code)
        count = len(facts.units)
        self.decoded += count
        address, known = id(code), self._known
        found = known[address] = Known(ref(code, lambda _: known.pop(address, None)), facts, [UNREACHED] * count, [])
        return found


CODES = CodeTable()


@final
@dataclass
class Heads:
    """What runs in place of instructions in this attempt: rows, by the `id` of the code and the instruction."""

    rows: dict[int, dict[int, Row]] = field(default_factory=dict)


@final
@dataclass
class Computing:
    """The instructions of an attempt at which torch calls were recorded, in whatever they call."""

    instructions: set[tuple[CodeFacts, int]] = field(default_factory=set)

    def note(self, frame: SymbolicFrame | None) -> None:
        while frame is not None:
            self.instructions.add((frame.decoded.facts, frame.at))
            frame = frame.parent

    def remember(self, stop: GraphBreak | None) -> None:
        """There is a region. What an instruction has recorded that then broke the graph is not in it."""
        frames = stop.frames[:1] if stop is not None else []
        broken = [(frame.decoded.facts, frame.at) for frame in frames if isinstance(frame, SymbolicFrame)]
        for facts, at in self.instructions.difference(broken):
            facts.computing.add(at)


@final
@dataclass(frozen=True, slots=True)
class PendingCall:
    """The call with which a resumed frame begins: that of its callee's resume function."""

    call: InnerCall
    function: Value
    arguments: Args
    site: CallSite


@final
class SymbolicFrame:
    """The frame of one call."""

    __slots__ = (
        *("state", "code", "decoded", "rows", "locals", "cells", "stack", "saved", "consumed", "ip", "at", "kwnames"),
        *("names", "unread", "begin"),
        *("parent", "number", "step", "continuation", "globals", "function", "result", "running", "handled", "outer"),
        "caller",
        *("delegates", "is_generator", "is_resumed", "finished", "given", "pending"),
    )

    def __init__(
        self,
        state: CaptureState,
        code: CodeType,
        function: Value | None,
        globals_: Any,
        parent: SymbolicFrame | None,
    ) -> None:
        self.state = state
        self.code = code
        self.decoded, self.rows = CODES.rows(code)
        if self.decoded.facts.catches and not code.co_filename.startswith(TORCH):
            state.counters.may_catch = True
        if (heads := state.part(Heads).rows) and id(code) in heads:
            self.rows = [heads[id(code)].get(index, row) for index, row in enumerate(self.rows)]
        self.locals: dict[str, Value] = {}
        self.unread: dict[str, object] = {}
        """Variables that a resume function got and that were not read so far: no guard is on them."""
        self.cells: dict[str, Any] = {}
        self.stack: list[Value | None] = []
        self.saved: list[Value | None] = []
        self.consumed = 0
        self.ip = 0
        self.at = 0
        self.kwnames: tuple[str, ...] = ()
        self.names: Value | None = None
        """For the body of a class statement: the dict of its names."""
        self.parent = parent
        state.counters.frames += 1
        self.number = state.counters.frames
        self.step = 0
        self.continuation = NOT_RESUMABLE
        self.globals = globals_
        self.function = function
        self.result: Value | None = None
        self.running = True
        self.finished = False
        self.handled: list[Value] = []
        """The exceptions that handlers handle, innermost last; on the stack lies a HANDLED_BEFORE for each."""
        self.outer: tuple[Location, ...] | None = None
        self.caller: tuple[Location, bool] | None = None
        """For a frame of a library: the line that led here, and whether it is the program's."""
        self.is_generator = bool(code.co_flags & SUSPENDS)
        self.delegates = False
        """Whether the compiled function is suspended in a `yield from` or `await` of an iterator from outside."""
        self.is_resumed = False
        self.begin = 0
        """Where it was entered."""
        self.given: tuple[Value, ...] = ()
        """The arguments of a resume function: its frame is their owner."""
        self.pending: PendingCall | None = None
        """The call to make first."""

    @property
    def resumable(self) -> bool:
        """Whether the caller can continue after a break in this frame."""
        made = self.is_of_made_class() or self.has_made_globals
        return self.continuation.resumable and not self.lacks_free_variable() and not made

    @property
    def has_made_globals(self) -> bool:
        """Whether its globals are a dict that is a value, as in code that `exec` runs."""
        return isinstance(self.globals.dictionary, MappingProxyType)

    @property
    def knows_all(self) -> bool:
        """Whether it has all variables of the function: a resume function gets those that its code names."""
        return not self.is_resumed or READS_FRAME & set(self.code.co_names) != set()

    def is_of_made_class(self) -> bool:
        """Whether the frame refers to its class by `super()`, and that class is made while tracing."""
        cell = self.cells.get("__class__")
        return cell is not None and cell.original is None

    def lacks_free_variable(self) -> bool:
        """Whether a variable of an enclosing function is not set yet.

        A resume function has these as variables of its own, whose error is another one.
        """
        return any(self.cells[name].load(self.state) is None for name in self.code.co_freevars if name in self.cells)

    def enter(self, origin: ResumeOrigin) -> None:
        """Continue as the resume function with this origin and the arguments `locals`."""
        self.is_resumed = True
        self.given = tuple(self.locals.values())
        entry, inner = origin.entry, origin.inner
        self.ip = self.at = self.begin = entry.target
        self.stack.extend(None if slot is NULL else self.locals[slot] for slot in entry.stack)
        for position in entry.handled:
            self.handled.append(self.locals[entry.stack[position]])  # type: ignore[index]
            self.stack[position] = HANDLED_BEFORE
        for name in entry.cells:
            self.cells[name] = self.locals.pop(name)
        if inner is not None:
            self.at = inner.at
            arguments = [self.locals[name] for name in inner.arguments]
            instead = self.locals[inner.instead] if inner.instead is not None else None
            site = PUSH if inner.keep else PUSH.discarding(instead)
            self.pending = PendingCall(inner, self.state.wrap(inner.function, None), arguments, site)
        for slot in (*entry.stack, *entry.extra):
            if slot is not NULL:
                self.locals.pop(slot, None)

    def run(self) -> Value | None:
        """Execute until the frame returns or yields a value."""
        state = self.state
        caller, state.frame = state.frame, self
        start = self.step
        try:
            while True:
                try:
                    if self.pending is not None:
                        self._call_pending(self.pending)
                    if state.stops or state.watch is not None or state.counters.nested:
                        self._checked_steps()
                    else:
                        self._steps()
                    return self.result
                except Raised as raised:
                    self._link(raised)
                    if not self.unwind(raised.value):
                        raise
                    caught(raised, len(self.locations()) - 1)
                except GraphBreak as stop:
                    self._note(stop)
                    raise
        finally:
            state.frame = caller
            state.counters.steps += self.step - start

    def _call_pending(self, pending: PendingCall) -> None:
        state = self.state
        self.saved, self.consumed = self.stack.copy(), state.counters.consumed
        self.step += 1
        self.stop_if_asked()
        try:
            result = pending.function.call(state, pending.arguments, {}, pending.site)
        except Raised:
            self.pending = None
            raise
        self.pending = None
        if pending.site.keeps_result:
            self.stack.append(result)
        elif pending.site.instead is not None:
            self.stack.append(pending.site.instead)

    def stop_if_asked(self) -> None:
        """Break here if an earlier attempt found that the graph must be broken in front of this step."""
        stop = self.state.stops.get((self.number, self.step))
        if stop is not None:
            stop.frames, stop.resumable, stop.at = [], True, self.location()
            stop.args = (stop.render(),)
            raise stop

    def _steps(self) -> None:
        rows, stack, counters = self.rows, self.stack, self.state.counters
        while self.running:
            at = self.at = self.ip
            handler, arg, breaks = rows[at]
            if breaks:
                self.saved, self.consumed = stack.copy(), counters.consumed
            self.ip = at + 1
            self.step += 1
            handler(self, arg)

    def _checked_steps(self) -> None:
        rows, watch, last = self.rows, self.state.watch, last_step(self)
        while self.running:
            at = self.at = self.ip
            handler, arg, _ = rows[at]
            if self.step > last:
                raise NotNested(ENDLESS)
            self.saved = self.stack.copy()  # the graph may be broken here, also where no attempt came before
            self.consumed = self.state.counters.consumed
            self.step += 1
            self.stop_if_asked()
            self.ip = at + 1
            handler(self, arg)
            if watch is not None:
                watch()

    def _note(self, stop: GraphBreak) -> None:
        """Add this frame to the break; if it cannot resume the callee, it becomes the innermost frame."""
        if stop.at is None:
            stop.at = self.location()
            stop.args = (stop.render(),)
        if stop.frames and (not stop.frames[-1].resumable or calls_service(self, stop.frames)):
            stop.frames = []
            stop.resumable = False
        elif not stop.frames and self.consumed != self.state.counters.consumed:
            # The instruction has changed something: begin again and break in front of it.
            stop.resumable = False
        stop.frames.append(self)

    def _link(self, raised: Raised) -> None:
        """Set the context of an exception that begins here."""
        raised.lines = raised.lines or lines_of(raised, self.locations())
        try:
            link(self.state, raised, current_exception(self))
        except GraphBreak as stop:
            self._note(stop)
            raise

    def unwind(self, exception: Value) -> bool:
        """Go to the exception handler of the current instruction, or leave the frame: False."""
        handler = self.decoded.handlers[self.at]
        if handler is None:
            self.running = False
            self.finished = True
            return False
        del self.stack[handler.depth :]
        if handler.lasti:
            self.stack.append(self.state.const(self.decoded.instruction(self.at).unit))
        self.stack.append(exception)
        self.ip = handler.target
        self.kwnames = ()
        return True

    def location(self, of_program: bool = False) -> Location:
        """The current line; with `of_program`, in a frame of a library, the line of the program that led there."""
        known = self.decoded.facts.locations[self.at]
        here = self.decoded.location(self.at) if known is None else known
        if not of_program or not self.decoded.in_library:
            return here
        if self.caller is None:
            outer = self.parent.location(of_program) if self.parent is not None else here
            self.caller = outer, not outer.in_library
        return self.caller[0] if self.caller[1] else here

    def locations(self) -> tuple[Location, ...]:
        """The stack of lines, innermost last."""
        if self.outer is None:
            self.outer = self.parent.locations() if self.parent is not None else ()
        return (*self.outer, self.location())

    def pop(self) -> Value:
        value = self.stack.pop()
        assert value is not None, "NULL on the stack"
        return value

    def pop_many(self, count: int) -> list[Any]:
        """The top `count` values, the deepest first."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def push(self, value: Value | None) -> None:
        self.stack.append(value)


def top(frame: SymbolicFrame) -> Value | None:
    """The value on top of the stack; below a NULL that belongs to it."""
    stack = frame.stack
    found = stack[-1] if stack else None
    return stack[-2] if found is None and NULL_ABOVE and len(stack) > 1 else found


def push_callable(frame: SymbolicFrame, value: Value) -> None:
    """Push what is called, and the NULL beside it."""
    frame.stack += (value, None) if NULL_ABOVE else (None, value)


def last_step(frame: SymbolicFrame) -> float:
    """Up to which step a frame may go: code that the program does not come to need not end."""
    return frame.step + MOST_STEPS if frame.state.counters.nested else inf


def run_to(frame: SymbolicFrame, end: int, held: Sequence[Value | None]) -> None:
    """Execute the instructions in front of `end`, behind the last: in front of a return; `held` are the values from
    before.

    Raises:
        NotNested: if the frame is left, or advances an iterator that it had before.
    """
    state, iterators, copies = frame.state, {id(value) for value in held}, frame.decoded.facts.copies
    last = last_step(frame)
    returning = end == len(frame.decoded)
    while frame.ip != end and not (returning and frame.decoded.instruction(frame.ip).name in RETURNS):
        at = frame.at = frame.ip
        if frame.step > last:
            raise NotNested(ENDLESS)
        if at in copies:  # its row may be older than that the copy was found
            frame.ip = copies[at]
            continue
        if frame.decoded.instruction(at).name == "FOR_ITER" and id(frame.stack[-1]) in iterators:
            raise NotNested("it takes items from an iterator of the program")
        handler, arg, _ = frame.rows[at]
        frame.saved, frame.consumed = frame.stack.copy(), state.counters.consumed
        frame.step += 1
        frame.stop_if_asked()
        frame.ip = at + 1
        handler(frame, arg)
        if not frame.running:
            raise NotNested("it leaves the frame")
        if state.watch is not None:
            state.watch()


def read_variable(frame: SymbolicFrame, name: str) -> Value | None:
    """The value of a variable that is no cell; None if it has none."""
    if name in frame.unread:
        value = frame.locals[name] = frame.state.wrap(frame.unread.pop(name), LocalSource(name))
        frame.given = (*frame.given, value)
    return frame.locals.get(name)


def read_variables(frame: SymbolicFrame) -> None:
    """Before variables may be read in one side of a branch only."""
    inner: object = frame
    while isinstance(inner, SymbolicFrame):
        for name in tuple(inner.unread):
            read_variable(inner, name)
        inner = inner.parent


def running_frame(s: CaptureState) -> SymbolicFrame:
    """The current frame."""
    assert isinstance(s.frame, SymbolicFrame)
    return s.frame


def outermost_frame(s: CaptureState) -> SymbolicFrame:
    """The frame of the function that is captured."""
    frame = running_frame(s)
    while frame.parent is not None:
        frame = frame.parent
    return frame


def dropped_arguments(frame: SymbolicFrame) -> list[Value]:
    """The arguments of the resume function that runs that no frame holds any more: eager may have freed them."""
    held = set(map(id, frame.pending.arguments if frame.pending is not None else ()))  # else its callee has taken them
    while True:
        held.update(map(id, (*frame.locals.values(), *frame.cells.values(), *frame.stack, *frame.handled)))
        if frame.parent is None:
            return [value for value in frame.given if id(value) not in held]
        frame = frame.parent


def calls_service(frame: SymbolicFrame, callees: Sequence[BrokenFrame]) -> bool:
    """Whether the graph breaks in a service that the frame has called, such as a function of Python's library.

    That call runs in Python as a whole: the code of a service gains nothing from being compiled, and breaks again soon.
    A generator has run in part already.
    """
    found = [callee for callee in callees if isinstance(callee, SymbolicFrame)]
    inside = [callee.decoded.in_service and not callee.is_generator for callee in found]
    return all(inside) and not frame.decoded.in_service


def current_exception(frame: SymbolicFrame | None) -> Value | None:
    """The exception of `raise` without arguments and of `sys.exc_info`."""
    while frame is not None:
        if frame.handled:
            return frame.handled[-1]
        frame = frame.parent
    return None
