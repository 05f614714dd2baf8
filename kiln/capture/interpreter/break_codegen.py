"""Code for a graph break: save the state, make the effects, run the instruction, call the resume functions.

    y = g(x)                       y, = region(x)
    print(y)            =>         <build callee, arguments and live state>; <effects>
    return y + 1                   CALL print          (in the exception handlers of the program)
                                   return resume_f(<result>, y)

A break inside inlined calls resumes them from the inside out: the resume function of the caller first calls that of
the callee. Needs: every frame of `stop.frames` (innermost first) can be resumed.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from functools import partial
from typing import cast, final

import torch

from kiln.capture.bytecode.assemble import Assembler, Instr, Label, TryBegin, TryEnd
from kiln.capture.bytecode.decode import CONDITIONAL, OR_POP, Handler, Instruction
from kiln.capture.bytecode.liveness import leads_to, live_locals
from kiln.capture.bytecode.loops import set_by_turns
from kiln.capture.bytecode.resume import (
    CLASS_CELL,
    Entry,
    InnerCall,
    ResumeOrigin,
    assembled,
    is_result,
    parameter,
    resume_function,
    unused_number,
)
from kiln.capture.bytecode.versions import TABLE
from kiln.capture.interpreter.breaks import (
    DebuggerCall,
    FrameInspection,
    GraphBreak,
    NotConstant,
    NotResumable,
    UnsupportedValue,
)
from kiln.capture.interpreter.changed_numbers import note_longer, note_made, note_passed, note_set_by_turns
from kiln.capture.interpreter.codegen import CodeWriter
from kiln.capture.interpreter.context_methods import method_of
from kiln.capture.interpreter.control_flow import plain_operator
from kiln.capture.interpreter.core import NOT_RESUMABLE, CallSite, CaptureState, Value
from kiln.capture.interpreter.effects import contents_key
from kiln.capture.interpreter.frame import (
    CODES,
    HANDLED_BEFORE,
    OPCODES,
    PendingCall,
    SymbolicFrame,
    current_exception,
    read_variable,
)
from kiln.capture.interpreter.opcodes.control import BUILTIN_ITERABLES, BUILTIN_ITERATORS
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, Sequence
from kiln.capture.interpreter.variables.sets import Set
from kiln.native._frames import Driven, TailCall
from kiln.runtime.guards.source import LocalSource
from kiln.runtime.tracebacks import drop_entry, insert_calls
from kiln.support.records import dataclass


@final
class Passed(Value):
    """An argument of the frame that it has not read."""

    __slots__ = ("kind", "source")

    def __init__(self, kind: type, source: LocalSource) -> None:
        self.kind, self.source = kind, source

    def python_type(self) -> type:
        return self.kind


Slots = list[Value | str | None]
"""A stack: values of the frame, or the temporaries that hold what the transformed code has put there."""
MakeResume = Callable[[types.FunctionType], Callable[..., object]]

PLAIN = (int, float, bool, str, bytes, complex, type(None))
CONTAINERS = (list, tuple, set, dict)
MOST_ITEMS = 1000
"""In all containers that are looked through for one question."""

WITH_NULL: dict[str, Callable[[Assembler, str], object]] = {
    "LOAD_METHOD": lambda body, name: body.op("LOAD_ATTR", name),
    "LOAD_GLOBAL_CALL": lambda body, name: body.global_(name),
    "LOAD_SUPER_METHOD": lambda body, name: body.super_attr(name),
    "LOAD_SPECIAL": lambda body, name: body.const(partial(method_of, name)).op("SWAP", 2).call(1),
}
"""Instructions that push a NULL beside their value are written without it; the resume function pushes it."""


@final
@dataclass
class Resumption:
    """A resume function for a chain of frames, its parameters, and the temporaries that hold its arguments."""

    function: Callable[..., object]
    parameters: Items[str]
    arguments: list[str]
    values: dict[str, Value]
    """Those of its parameters that are known."""
    target: int
    """Where the outermost frame goes on."""


@final
class BreakWriter:
    """Writes one graph break."""

    def __init__(
        self,
        s: CaptureState,
        writer: CodeWriter,
        frames: Items[object],
        make_resume: MakeResume,
        resumed: bool,
        debugging: bool = False,
    ) -> None:
        self.state = s
        self.writer = writer
        self.frames = [frame for frame in frames if isinstance(frame, SymbolicFrame)]
        self.debugging = debugging
        """What follows runs in Python, with all variables."""
        self.make_resume: MakeResume = assembled if self.debugging else make_resume
        self.resumed = resumed
        """The code is that of a resume function."""
        self.of_varying = False
        """The graph breaks at a value that differs from call to call."""
        self.landing: Label | None = None
        """Where exceptions of the program's instructions go, if not to the caller."""
        self.handling = False
        """The code handles the exception that the program handles."""
        self.prepared = False
        self.stored: dict[int, str] = {}
        self.kept: list[Value] = []

    def store(self, value: Value) -> str:
        """Build `value` once, before the effects; returns its temporary."""
        name = self.stored.get(id(value))
        if name is None:
            assert not self.prepared or isinstance(value, Constant), "what it is built from is dropped"
            name = self.stored[id(value)] = self.writer.store(value)
            self.kept.append(value)
        return name

    def drop(self, *but: str) -> None:
        """Drop what the frame of this code holds, as the frames of the program no longer do: it may be freed now."""
        for name in self.writer.local_names():
            if name not in but:
                self.writer.body.const(None).op("STORE_FAST", name)

    def prepare(self) -> None:
        """Build the live state of all frames before the effects and the instruction can change it."""
        for index, frame in enumerate(self.frames):
            pass_unread(self, frame)
            for name in self.live_names(frame):
                self.store(frame.locals[name])
            for name in self.cell_names(frame):
                self.store(frame.cells[name])
            for value in (*(frame.saved if index == 0 else frame.stack), *frame.handled):
                if value is not None:
                    self.store(value)
            site = self.frames[index - 1].continuation if index else NOT_RESUMABLE
            if index == 0 and frame.pending is not None:
                site = frame.pending.site
                for value in frame.pending.arguments:
                    self.store(value)
            if site.instead is not None:
                self.store(site.instead)
        if (error := current_exception(self.frames[0])) is not None:
            self.store(error)
        self.prepared = True

    def live_names(self, frame: SymbolicFrame) -> list[str]:
        return self.names_of(frame, live_variables(self, frame))

    def successors(self, frame: SymbolicFrame) -> list[int]:
        inst = frame.decoded.instruction(frame.at)
        found = [frame.at + 1] if frame.at + 1 < len(frame.decoded) else []
        if inst.name in CONDITIONAL or inst.name in OR_POP or inst.name == "FOR_ITER":
            found.append(inst.arg)
        handler = frame.decoded.handlers[frame.at]
        return [*found, handler.target] if handler else found

    def cell_names(self, frame: SymbolicFrame) -> list[str]:
        code = frame.code
        names = (*code.co_cellvars, *code.co_freevars)
        return [name for name in names if name in frame.cells and name != CLASS_CELL]

    def resume(
        self, target: int, pops: int, results: list[str | None], depth: int | None = None, first: int = 0
    ) -> Resumption:
        """Resume functions for the frames `first`..root; `first` continues at `target` with `results` on its stack."""
        frame = self.frames[first]
        base = frame.saved if first == 0 else frame.stack
        kept: Slots = [*(base[: len(base) - pops] if depth is None else base[:depth])]
        return self.resume_with(target, kept, results, first)

    def resume_with(self, target: int, kept: Slots, results: list[str | None], first: int = 0) -> Resumption:
        """`kept`: what was on the stack before, or the temporary that holds it."""
        made = self.single(self.frames[first], target, kept, results, NOT_RESUMABLE, [])
        for index in range(first + 1, len(self.frames)):
            made = self.outer(index, made)
        return made

    def outer(self, index: int, inner: Resumption) -> Resumption:
        """The frame at `index` was calling the one whose resumption is `inner`."""
        frame = self.frames[index]
        site = self.frames[index - 1].continuation
        return self.single(frame, frame.at + 1, [*frame.stack], [], site, [inner])

    def single(
        self,
        frame: SymbolicFrame,
        target: int,
        kept: Slots,
        results: list[str | None],
        site: CallSite,
        inner: list[Resumption],
    ) -> Resumption:
        code, at = frame.code, frame.at
        live = live_locals(frame.decoded)[target]
        handler = frame.decoded.handlers[at] if inner else None
        if handler is not None:
            live |= live_locals(frame.decoded)[handler.target]
        names = self.names_of(frame, live)
        cells = self.cell_names(frame)
        values = {name: frame.locals[name] for name in names}
        arguments = [self.store(value) for value in values.values()]
        arguments += [self.store(frame.cells[name]) for name in cells]
        number = unused_number(code)
        slots: list[str | None] = []
        handled = [position for position, value in enumerate(kept) if value is HANDLED_BEFORE]
        kept = kept.copy()
        for position, error in zip(handled, frame.handled, strict=False):
            kept[position] = error
        for position, value in enumerate(kept):
            slots.append(None if value is None else parameter("stack", number, position))
            if value is not None:
                if isinstance(value, Value):
                    values[parameter("stack", number, position)] = value
                arguments.append(value if isinstance(value, str) else self.store(value))
        for position, result in enumerate(results):
            slots.append(None if result is None else parameter("result", number, position))
            if result is not None:
                arguments.append(result)
        extra, call = self.inner_call(at, site, inner, arguments, number)
        for made in inner:
            found = zip(extra, made.parameters, strict=False)
            values.update((outer, made.values[name]) for outer, name in found if name in made.values)
        entry = Entry(
            target, tuple(names), tuple(cells), tuple(slots), tuple(extra), self.first_name(code), tuple(handled)
        )
        closure = (frame.cells[CLASS_CELL].original,) if CLASS_CELL in code.co_freevars else None
        qualname = f"{code.co_qualname} after line {frame.location().line}"
        origin = ResumeOrigin(code, entry, call)
        function = resume_function(origin, frame.globals.dictionary, closure, qualname)
        unsorted = (*names, *cells, *(slot for slot in slots if slot is not None), *extra)
        given = dict(zip(unsorted, arguments, strict=True))
        parameters = entry.parameters()
        passed = [given[name] for name in parameters]
        return Resumption(self.make_resume(function), parameters, passed, values, target)

    def first_name(self, code: types.CodeType) -> str | None:
        """The first argument, where the code may call `super()`."""
        return code.co_varnames[0] if CLASS_CELL in code.co_freevars and code.co_argcount else None

    def names_of(self, frame: SymbolicFrame, live: frozenset[str]) -> list[str]:
        """Live locals in the order of `co_varnames`; for a debugger all."""
        code = frame.code
        first = self.first_name(code)

        def passed(name: str) -> bool:
            return name in live or name == first or self.debugging or self.outlives(frame.locals[name])

        return [name for name in code.co_varnames if name in frame.locals and passed(name)]

    def outlives(self, value: Value) -> bool:
        """Whether the program can tell if a value that it does not use any more is freed: eager keeps it."""
        found = isinstance(value.source, LocalSource) and self.resumed
        return (found or value.source is None) and is_watched(self.state, value)

    def inner_call(
        self, at: int, site: CallSite, inner: list[Resumption], arguments: list[str], number: int
    ) -> tuple[list[str], InnerCall | None]:
        if not inner:
            return [], None
        extra = [
            parameter("result", number, position) if is_result(name) else parameter("inner", number, name)
            for position, name in enumerate(inner[0].parameters)
        ]
        arguments.extend(inner[0].arguments)
        instead = None
        passed = tuple(extra)
        if site.instead is not None:
            instead = parameter("instead", number)
            extra.append(instead)
            arguments.append(self.store(site.instead))
        return extra, InnerCall(self.driven(inner[0].function), passed, at, site.keeps_result, instead)

    def driven(self, function: Callable[..., object]) -> Callable[..., object]:
        return function if self.debugging else Driven(function)

    def tail_call(self, resumption: Resumption) -> None:
        """`return resume(...)`: the resume function is the only owner of its arguments."""
        root = self.frames[-1]
        loops = self.resumed and leads_to(root.decoded, resumption.target, root.begin)
        for name, value in resumption.values.items():
            note_passed(self.state, LocalSource(name), value, in_loop=loops)
        set_in_loop = set_by_turns(root.decoded, root.at, resumption.target)
        note_set_by_turns(self.state, {name: root.locals[name] for name in set_in_loop if name in root.locals})
        stopped = self.frames[0]
        for name in resumption.parameters if stopped.pending is None else ():
            if is_result(name):
                note_made(self.state, name, (stopped.code, stopped.at))
                if self.of_varying:
                    note_longer(self.state, name)
        if self.handling:
            self.writer.body.op("POP_EXCEPT")
        as_data = self.resumed and not self.debugging
        if as_data:
            self.writer.body.const(TailCall)
        self.writer.body.const(resumption.function if as_data else self.driven(resumption.function))
        for name in resumption.arguments:
            self.writer.body.op("LOAD_FAST", name)
        count = len(resumption.arguments) + as_data
        if not as_data:
            self.drop()
            count = count if self.debugging else self.listed(count)
        if as_data:
            self.writer.body.call(count).op("RETURN_VALUE")
        else:
            call_last(self.writer.body, count)

    def begin_try(self) -> TryBegin | None:
        """What is written from here to `end_try` raises exceptions of the program."""
        if self.landing is None:
            return None
        begin = TryBegin(self.landing, False, int(self.handling))
        self.writer.body.items.append(begin)
        return begin

    def listed(self, count: int) -> int:
        """Put the arguments of a `Driven` on the stack into a list; how many arguments that makes."""
        self.writer.body.op("BUILD_LIST", count)
        return 1

    def handler(self) -> tuple[int, Handler] | None:
        """The innermost frame with a handler for an exception of the instruction, and the handler."""
        for index, frame in enumerate(self.frames):
            found = frame.decoded.handlers[frame.at]
            if found is not None:
                return index, found
        return None


def pass_unread(breaking: BreakWriter, frame: SymbolicFrame) -> None:
    """Variables that nothing has read so far are passed on without a guard, if they are live."""
    live = live_variables(breaking, frame) | {breaking.first_name(frame.code)}
    for name in tuple(frame.unread):
        if breaking.debugging or not (name in live or is_plain(frame.unread[name])):
            read_variable(frame, name)
        elif name in live:
            frame.locals[name] = Passed(type(frame.unread.pop(name)), LocalSource(name))


def live_variables(breaking: BreakWriter, frame: SymbolicFrame) -> frozenset[str]:
    """At the break and behind it."""
    live = live_locals(frame.decoded)
    return live[frame.at].union(*(live[index] for index in breaking.successors(frame)))


def call_last(body: Assembler, count: int) -> None:
    """Return what the call on the stack returns; an exception of it has no entry of this frame, as in eager."""
    failed = Label()
    begin = TryBegin(failed, False, 0)
    body.items.append(begin)
    body.call(count)
    body.items.append(TryEnd(begin))
    body.op("RETURN_VALUE").label(failed)
    body.const(drop_entry).op("COPY", 2).call(1).op("POP_TOP").op("RERAISE", 0)


def is_watched(s: CaptureState, value: Value) -> bool:
    """Whether there may be weak references to it, or a finalizer, or to something that it alone holds."""
    waiting, seen = [value], set[int]()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, BoundMethod):
            waiting.append(found.self_)
        elif isinstance(found, Object):
            return not found.is_torch
        elif isinstance(found, Class):
            return found.cls in s.classes.made  # its bases list it
        elif isinstance(found, Sequence | Set | Dict):
            if found.source is None:
                waiting += held_values(s, found)
            elif s.effects.find(contents_key(found)) is not None or not is_plain(found.real()):
                return True
    return False


def is_plain(real: object) -> bool:
    """Whether it is a constant or tensor, or a short container of such: nothing that weak references are made to."""
    waiting, count = [real], 0
    while waiting:
        found = waiting.pop()
        if type(found) in CONTAINERS:
            held = cast(Collection[object], found)
            count += len(held)
            if count > MOST_ITEMS:  # or a container is an item of itself
                return False
            waiting += [*held, *(found.values() if isinstance(found, dict) else ())]
        elif type(found) not in PLAIN and not isinstance(found, torch.Tensor):
            return False
    return True


def held_values(s: CaptureState, container: Sequence | Set | Dict) -> list[Value]:
    """The items of a container that was made in the frame."""
    if isinstance(container, Sequence):
        unread = container.front if container._items is None else None
        if isinstance(container, List) and container.tail:
            return [*(container._items or ([] if unread is None else [unread])), *container.appended, *container.tail]
        return list(container.items(s)) if unread is None else [unread, *container.appended]
    if isinstance(container, Set):
        return list(container.items(s).values())
    return [value for pair in container.items(s).values() for value in pair]


def write_break(s: CaptureState, writer: CodeWriter, stop: GraphBreak, make_resume: MakeResume, resumed: bool) -> None:
    """Write the transformed code from the break on; if a value cannot be rebuilt, break further out."""
    try:
        debugging = isinstance(stop, DebuggerCall)
        breaking = BreakWriter(s, writer, stop.frames, make_resume, resumed, debugging)
        breaking.of_varying = isinstance(stop, NotConstant)
        write_resumption(s, writer, breaking, stop)
    except UnsupportedValue as problem:
        if len(stop.frames) > 1 and not problem.frames:
            problem.before(stop.frames[1], stop.at)
        raise


def replace_operator(s: CaptureState, frame: SymbolicFrame, inst: Instruction) -> None:
    """Call the plain Python of a control flow operator: torch's own runs torch's compiler."""
    if frame.pending is not None or not inst.name.startswith("CALL"):
        return
    first = len(frame.saved) - OPCODES[inst.name].operands(inst.arg)
    for position, value in enumerate(frame.saved[first : first + 2], first):
        plain = None if value is None else plain_operator(value.real())
        if plain is not None:
            frame.saved[position] = s.wrap(plain, None)


def write_resumption(s: CaptureState, writer: CodeWriter, breaking: BreakWriter, stop: GraphBreak) -> None:
    frame = breaking.frames[0]
    inst = frame.decoded.instruction(frame.at)
    refuse(breaking, frame, inst.name, stop)
    replace_operator(s, frame, inst)
    breaking.prepare()
    for effect in s.effects:
        effect.emit(writer)
    breaking.drop(*breaking.stored.values())
    pops = OPCODES[inst.name].operands(inst.arg) if frame.pending is None else 0
    operands = frame.saved[len(frame.saved) - pops :]
    writer.body.line = breaking.frames[-1].location().line  # where an exception of the instruction is reported
    handle(breaking, current_exception(frame))
    found = breaking.handler()
    if found is not None or breaking.handling or len(breaking.frames) > 1:
        breaking.landing = Label()
    loops = frame.pending is None and inst.name == "FOR_ITER"
    begin = None if loops else breaking.begin_try()
    if frame.pending is None and inst.name == "WITH_EXCEPT_START":
        write_leaving(breaking, frame, operands, begin)
        operands = []
    for value in operands if not loops else ():
        writer.body.op("PUSH_NULL") if value is None else writer.body.op("LOAD_FAST", breaking.store(value))
    if frame.pending is not None:
        write_pending_call(breaking, frame, frame.pending, begin)
    elif inst.name in CONDITIONAL or inst.name in OR_POP:
        write_branch(breaking, frame, inst, begin)
    elif loops:
        next_turn(breaking, frame.at, [*frame.saved])
    elif inst.name != "WITH_EXCEPT_START":
        write_instruction(breaking, frame, inst, pops, begin)
    if breaking.landing is not None:
        writer.body.label(breaking.landing)
        complete_traceback(breaking)
    if found is not None:
        write_handler(breaking, *found)
    elif breaking.landing is not None:
        if breaking.handling:
            writer.body.op("SWAP", 2).op("POP_EXCEPT")
        writer.body.op("RERAISE", 0)


def complete_traceback(breaking: BreakWriter) -> None:
    """Give the exception on the stack the lines of the inlined calls, whose code ran in the outermost frame."""
    calls = [frame.location() for frame in reversed(breaking.frames[:-1])]
    if calls:
        lines = tuple((call.file, call.line, call.function) for call in calls)
        breaking.writer.body.const(insert_calls).op("COPY", 2).const(lines).call(2).op("POP_TOP")


def handle(breaking: BreakWriter, error: Value | None) -> None:
    """Let the instruction see the exception that the program handles: `raise`, `sys.exc_info`, `__context__`."""
    if error is not None:
        breaking.handling = True
        breaking.writer.body.op("LOAD_FAST", breaking.store(error)).op("PUSH_EXC_INFO").op("POP_TOP")


def refuse(breaking: BreakWriter, frame: SymbolicFrame, name: str, stop: GraphBreak) -> None:
    """Break further out if the state cannot be carried over."""
    problem = ""
    if isinstance(stop, FrameInspection):
        stop.frames, stop.resumable = stop.frames[1:2], False
        raise stop
    row = OPCODES.get(name)
    if frame.pending is not None:
        pass
    elif row is None or row.pops is None:
        problem = f"{name} cannot be executed outside of its frame"
    elif row.uses_globals and len(breaking.frames) > 1:
        problem = f"{name} belongs to another module"
    if problem:
        raised = NotResumable(reason=problem, function=frame.code.co_qualname)
        if len(breaking.frames) > 1:
            raised.before(breaking.frames[1], stop.at)
        raise raised


def end_try(breaking: BreakWriter, begin: TryBegin | None) -> None:
    if begin is not None:
        breaking.writer.body.items.append(TryEnd(begin))


def write_branch(breaking: BreakWriter, frame: SymbolicFrame, inst: Instruction, begin: TryBegin | None) -> None:
    """Test the value at run time; each branch has its own resume function."""
    body = breaking.writer.body
    taken = Label()
    keep = inst.name in OR_POP
    value = breaking.store(frame.saved[-1])  # type: ignore[arg-type]
    if "NONE" in inst.name:
        body.const(None).op("IS_OP", 0)
    positive = "TRUE" in inst.name or inst.name == "POP_JUMP_IF_NONE"
    body.jump_if(positive, taken)
    end_try(breaking, begin)
    kept: Slots = [*frame.saved[:-1]]
    go_on(breaking, frame.at + 1, kept, [])
    body.label(taken)
    go_on(breaking, inst.arg, kept, [value] if keep else [])


def write_instruction(
    breaking: BreakWriter, frame: SymbolicFrame, inst: Instruction, pops: int, begin: TryBegin | None
) -> None:
    """Execute the instruction at run time and pass its results to the resume function."""
    body = breaking.writer.body
    pushed = OPCODES[inst.name].results(inst.arg)
    if inst.name in WITH_NULL:
        WITH_NULL[inst.name](body, inst.arg)
        pushed -= 1
    elif inst.name == "LOAD_SUPER_ATTR":
        body.super_attr(inst.arg)
    elif inst.name == "CALL":
        body.call(inst.arg + 1, keyword_names(frame))
    elif inst.name == "UNARY_NOT":
        body.truth().op("UNARY_NOT")
    else:
        copied = CODES.instruction(frame.code, frame.at)
        inlined = len(breaking.frames) > 1  # its line is in another function
        body.items.append(Instr(copied.name, copied.arg, lineno=body.line) if inlined else copied)
    end_try(breaking, begin)
    if inst.name == "RAISE_VARARGS":
        return
    names_of = [breaking.writer.temporary() for _ in range(pushed)]
    for name in reversed(names_of):
        body.op("STORE_FAST", name)
    results: list[str | None] = [*names_of]
    if inst.name in WITH_NULL:
        results.insert(len(results) if TABLE.null_above else 0, None)
    go_on(breaking, frame.at + 1, [*frame.saved[: len(frame.saved) - pops]], results)


def go_on(breaking: BreakWriter, target: int, kept: Slots, results: list[str | None]) -> None:
    """Continue at `target`. Where that leads to the next turn of a loop, its item is taken here: a resume function
    that began in front of the FOR_ITER would break the graph again. None is made to return a result either."""
    at, left = past_jumps(breaking, target, results)
    handlers, loop = breaking.frames[0].decoded.handlers, breaking.frames[0].decoded.instruction(at).name == "FOR_ITER"
    if loop and handlers[at] == handlers[breaking.frames[0].at] and is_builtin_iterator(breaking, [*kept, *left][-1]):
        next_turn(breaking, at, [*kept, *left])
    elif left and not breaking.frames[0].is_generator and returns_at(breaking, at):
        breaking.writer.body.op("LOAD_FAST", left[-1])
        if breaking.handling:
            breaking.writer.body.op("SWAP", 2).op("POP_EXCEPT")
        breaking.writer.body.op("RETURN_VALUE")
    else:
        breaking.tail_call(breaking.resume_with(target, kept, results))


def returns_at(breaking: BreakWriter, at: int) -> bool:
    """Whether nothing is left to do but to return what is on top of the stack."""
    return len(breaking.frames) == 1 and breaking.frames[0].decoded.instruction(at).name == "RETURN_VALUE"


def is_builtin_iterator(breaking: BreakWriter, iterator: Value | str | None) -> bool:
    """Whether it is the break that takes its next item, and not a `__next__` of the program that is compiled."""
    if isinstance(iterator, Value):
        return issubclass(iterator.python_type(), BUILTIN_ITERATORS)
    frame = breaking.frames[0]
    iterated = frame.saved[-1] if frame.decoded.instruction(frame.at).name == "GET_ITER" else None
    return iterated is not None and issubclass(iterated.python_type(), BUILTIN_ITERABLES)


def past_jumps(breaking: BreakWriter, at: int, results: list[str | None]) -> tuple[int, list[str | None]]:
    """Where jumps and dropped results lead from `at`, and the results that are left."""
    instruction, seen = breaking.frames[0].decoded.instruction, set[int]()
    while at not in seen:
        seen.add(at)
        name = instruction(at).name
        if name == "POP_TOP" and results:
            results = results[:-1]
        elif name not in ("JUMP", "NOP"):
            break
        at = instruction(at).arg if name == "JUMP" else at + 1
    return at, results


def next_turn(breaking: BreakWriter, at: int, stack: Slots) -> None:
    """The loop at `at`, whose iterator lies on top of `stack`: either another item or its end."""
    body, done, name = breaking.writer.body, Label(), breaking.writer.temporary()
    iterator = stack[-1]
    assert iterator is not None
    begin = breaking.begin_try()
    body.op("LOAD_FAST", iterator if isinstance(iterator, str) else breaking.store(iterator))
    body.op("FOR_ITER", done)
    end_try(breaking, begin)
    body.op("STORE_FAST", name).op("POP_TOP")
    breaking.tail_call(breaking.resume_with(at + 1, stack, [name]))
    body.label(done)
    for ending in TABLE.loop_end:
        body.op(ending)
    go_on(breaking, breaking.frames[0].decoded.instruction(at).arg, stack[:-1], [])


def keyword_names(frame: SymbolicFrame) -> tuple[str, ...]:
    """The KW_NAMES in front of a CALL."""
    for index in (frame.at - 1, frame.at - 2):
        if index >= 0:
            before = frame.decoded.instruction(index)
            if before.name == "KW_NAMES":
                return tuple(before.arg)
            if before.name != "NOP":
                break
    return ()


def write_pending_call(
    breaking: BreakWriter, frame: SymbolicFrame, pending: PendingCall, begin: TryBegin | None
) -> None:
    """Call the callee's resume function in Python; the frame then continues where it was entered."""
    body = breaking.writer.body
    body.const(pending.call.function)
    for value in pending.arguments:
        body.op("LOAD_FAST", breaking.store(value))
    count = len(pending.arguments)
    body.call(breaking.listed(count) if isinstance(pending.call.function, Driven) else count)
    end_try(breaking, begin)
    results: list[str | None] = []
    if pending.site.keeps_result:
        results = [breaking.writer.temporary()]
        body.op("STORE_FAST", results[0])
    else:
        body.op("POP_TOP")
        if pending.site.instead is not None:
            results = [breaking.store(pending.site.instead)]
    breaking.tail_call(breaking.resume(frame.ip, 0, results))


def write_leaving(
    breaking: BreakWriter, frame: SymbolicFrame, operands: list[Value | None], begin: TryBegin | None
) -> None:
    """Call the exit of a `with` on an exception; the operands belong to the handler and stay.

    CPython's instruction needs an exception with a traceback, and one that was raised while tracing has none.
    """
    leave, *_, error = operands
    assert leave is not None and error is not None
    body = breaking.writer.body
    body.const(leave_with).op("LOAD_FAST", breaking.store(leave)).op("LOAD_FAST", breaking.store(error)).call(2)
    end_try(breaking, begin)
    result = breaking.writer.temporary()
    body.op("STORE_FAST", result)
    breaking.tail_call(breaking.resume(frame.at + 1, 0, [result]))


def leave_with(leave: Callable[..., object], error: BaseException) -> object:
    """Called by transformed code."""
    return leave(type(error), error, error.__traceback__)


def write_handler(breaking: BreakWriter, index: int, handler: Handler) -> None:
    """If the instruction raises, continue in the program's handler, with the exception on its stack."""
    body = breaking.writer.body
    name = breaking.writer.temporary()
    body.op("STORE_FAST", name)
    results: list[str | None] = [name]
    if handler.lasti:
        zero = breaking.writer.temporary()
        body.const(0).op("STORE_FAST", zero)
        results.insert(0, zero)
    breaking.tail_call(breaking.resume(handler.target, 0, results, handler.depth, index))
