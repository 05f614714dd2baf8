"""Resume functions that compute nothing run in Python, up to where the program computes again.

    seq.append(nxt)              plain data only (`plain_code.py`): it is not captured at all
    for step in range(n):        left at the next turn, in front of what computes

    for t in row.tolist():       the graph breaks: `t` differs from call to call
        if t != last:            a variant for each way through the loop would only hold Python
            seq.append(t)

Else the first variant of such a function is compiled, since nothing is known of it. When another one is asked for, and
none so far has a region, all calls run in Python (`capture/bytecode/stretch.py`). It is left in front of what computed
in an earlier capture, and of calls in code that no capture has reached.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType
from typing import final

import torch

from kiln.capture.bytecode.assemble import SUSPENDS, Assembler, CellVar, FreeVar, arguments_of
from kiln.capture.bytecode.decode import DecodedCode
from kiln.capture.bytecode.loops import loop_bodies, set_by_turns
from kiln.capture.bytecode.resume import CLASS_CELL, NULL, ResumeOrigin, origin_of, resume_function
from kiln.capture.bytecode.resume import Entry as ResumeEntry
from kiln.capture.bytecode.stretch import exits, in_order, leaving_places, stretch_code, turn_of
from kiln.capture.interpreter.frame import CODES
from kiln.native._frames import Dispatcher, Driven, Entry
from kiln.pipeline.dispatchers import Arguments, IsKnown, MakeDispatcher, RunsInPython, original_of, side_exits
from kiln.pipeline.plain_code import NULL as NULL_KIND
from kiln.pipeline.plain_code import (
    PlainCode,
    State,
    TensorOf,
    is_plain,
    kind_of_object,
    looks_plain,
    plain_code,
)
from kiln.pipeline.seen_inputs import SeenInputs
from kiln.runtime.guards.constant import ObjectRef
from kiln.runtime.guards.guard import Guard, GuardKind, ShapeRelation
from kiln.runtime.guards.source import AnswerSource, LocalSource
from kiln.runtime.guards.tree import build_tree
from kiln.runtime.variant import Variant
from kiln.support.real_builtins import real_builtins
from kiln.support.records import dataclass

PLAIN_METHODS = frozenset(
    [name for cls in (list, dict, set, str, tuple) for name in dir(cls) if not hasattr(torch.Tensor, name)]
)
"""Methods of containers that no tensor has."""
MOVES_ONLY = frozenset(("POP_TOP", "STORE_FAST", "JUMP"))
"""What an earlier capture computed there merged the sides of an `if`."""


def python_stretch(dispatcher: Dispatcher, make_resume: MakeDispatcher, is_known: IsKnown) -> Entry | None:
    """The entry for all calls of a resume function whose variants, and those that led to its side exit, have no region;
    None if it is to be compiled."""
    function = original_of(dispatcher)
    origin = origin_of(function)
    if origin is None:
        return None
    before = [] if side_exits(dispatcher) == 0 else make_resume(function).entries
    found = [entry.info for entry in (*before, *dispatcher.entries)]
    variants = [info for info in found if not (isinstance(info, RunsInPython) and info.guards)]
    if not variants or not all(map(has_no_region, variants)):
        return None
    with real_builtins():
        decoded, _ = CODES.rows(origin.code)
        computes = partial(may_compute, decoded, function)
        left = exits(decoded, origin, computes, lambda place: is_known(resume_at(function, origin, decoded, place)))
        return None if left is None else Entry(None, stretch(function, origin, left, make_resume), RunsInPython())


def stretch(
    function: FunctionType, origin: ResumeOrigin, left: Iterable[ResumeEntry], make_resume: MakeDispatcher
) -> FunctionType:
    """Runs the code of `origin` up to one of the places `left`."""
    decoded, _ = CODES.rows(origin.code)
    with real_builtins():
        resumed = {place: make_resume(resume_at(function, origin, decoded, place)) for place in left}
        made = resume_function(origin, function.__globals__, kept_closure(function), function.__qualname__)
        made.__code__ = stretch_code(decoded, origin, resumed)
    return made


@final
@dataclass(frozen=True)
class PlainStretch:
    """Looks for a stretch of plain data at the beginning of `origin`, of which a call has these arguments."""

    function: FunctionType
    origin: ResumeOrigin
    arguments: Arguments
    is_known: IsKnown
    seen: SeenInputs

    @property
    def decoded(self) -> DecodedCode:
        return CODES.rows(self.origin.code)[0]

    def found(self) -> PlainCode:
        kinds = {name: kind_of_object(value, name) for name, value in self.arguments.items()}
        stack = tuple([NULL_KIND if slot is NULL else kinds[slot] for slot in self.origin.entry.stack])
        return plain_code(self.decoded, self.origin.entry.target, State(stack, kinds), self.function.__globals__)

    def knows(self, place: ResumeEntry | None) -> bool:
        """Whether a graph break leads there."""
        return place is not None and self.is_known(resume_at(self.function, self.origin, self.decoded, place))

    def left(self, *, loops_may_begin: bool) -> tuple[ResumeEntry, ...] | None:
        """Where it is left, if a loop over plain data is in it, or if it leads to another turn of a loop that the graph
        breaks in; None if there is none. `loops_may_begin`: else all that computes behind it is known."""
        decoded, begin, found = self.decoded, self.origin.entry.target, self.found()
        known_to_compute = {
            at for at in decoded.facts.computing & found.plain if decoded.instruction(at).name not in MOVES_ONLY
        }
        loops = loop_bodies(decoded)
        turns = {at for _, _, body in loops if begin in body for at in body}
        reads, computing = (
            found.reads | (found.elements - turns),
            found.computing | (known_to_compute - (found.elements & turns)),
        )
        reached = found.plain | computing
        if computing and min(reached) >= begin and not any([head in found.plain for head, _, _ in loops]):
            return None  # known at once: the time of a function with many breaks is linear in them
        begins = self.begins_of_loops(loops, computing | reads, found)
        if begins is None:
            return None
        left = computing | reads | begins
        places = leaving_places(decoded, self.origin, left.__contains__, self.knows)
        if places is None or any(
            [place is None or place.target == begin for at, place in places.items() if at in computing]
        ):
            return None
        exits = in_order(places)
        self.note_changes(found, exits)
        if all([self.knows(place) or place.target < begin for place in exits]):
            return exits
        plain_loop = any([body <= found.plain - left for _, _, body in loops])
        around = any([place.target < begin for place in exits])
        return exits if loops_may_begin and (plain_loop or around) else None

    def note_changes(self, found: PlainCode, exits: Iterable[ResumeEntry]) -> None:
        """What the resume functions behind it get: numbers that turns of a loop set are symbols, and so are sizes of
        tensors that data decide."""
        for place in exits:
            names = set_by_turns(self.decoded, self.origin.entry.target, place.target)
            self.seen.add_symbolic(dict.fromkeys(names - self.seen.symbolic.keys(), ()))
            state = found.states.get(place.target)
            held = state.names.items() if state is not None else ()
            given = {name: kind.name for name, kind in held if isinstance(kind, TensorOf)}
            dims = {name: self.seen.symbolic[text] for name, text in given.items() if text in self.seen.symbolic}
            self.seen.add_symbolic(dims)

    def begins_of_loops(
        self, loops: Iterable[tuple[int, list[int], frozenset[int]]], computing: set[int], found: PlainCode
    ) -> set[int] | None:
        """Where loops begin that compute and that the graph is not known to break in: they are captured whole. None
        where that place is not found."""
        decoded, begins = self.decoded, set[int]()
        for head, _, body in loops:
            if head not in found.plain or self.origin.entry.target in body or body.isdisjoint(computing):
                continue
            is_for = decoded.instruction(head).name == "FOR_ITER"
            if is_for and self.knows(turn_of(decoded, self.origin, head)):
                continue
            at = head - 1
            while at >= 0 and decoded.instruction(at).name not in ("GET_ITER", "JUMP"):
                at -= 1
            if not is_for or at < 0 or decoded.instruction(at).name != "GET_ITER":
                return None
            begins.add(at)
        return begins


def plain_stretch(
    dispatcher: Dispatcher,
    arguments: Arguments,
    make_resume: MakeDispatcher,
    is_known: IsKnown,
    seen: SeenInputs,
) -> Entry | None:
    """The entry for a resume function that goes through plain data (`PlainStretch`); None if it is to be compiled."""
    function = original_of(dispatcher)
    origin = origin_of(function)
    if origin is None or origin.inner is not None:
        return None
    left = PlainStretch(function, origin, arguments, is_known, seen).left(loops_may_begin=not dispatcher.entries)
    return None if left is None else forecast(function, arguments, stretch(function, origin, left, make_resume))


def forecast(function: FunctionType, arguments: Arguments, run: FunctionType) -> Entry:
    """The entry that calls `run` while the arguments that are plain data now are such."""
    names = [name for name, value in arguments.items() if is_plain(value)]
    asked = ObjectRef(f"{looks_plain.__module__}:{looks_plain.__name__}", looks_plain)
    guards = [Guard(AnswerSource(LocalSource(name), asked), GuardKind.EQUALS, True) for name in names]
    return Entry(build_tree(guards, collect=(), function=function), run, RunsInPython(tuple(guards)))


def plain_beginning(
    dispatcher: Dispatcher,
    arguments: Arguments,
    make_resume: MakeDispatcher,
    is_known: IsKnown,
    seen: SeenInputs,
    failed: Guard | None,
) -> Entry | None:
    """Likewise for the beginning of a function that a variant was compiled of, whose guard has `failed`: the entry
    hands over to a resume function that begins where it does."""
    function = original_of(dispatcher)
    code = function.__code__
    if origin_of(function) is not None or code.co_flags & SUSPENDS or CLASS_CELL in code.co_freevars:
        return None
    decoded, _ = CODES.rows(code)
    start = next(at for at in range(len(decoded)) if decoded.instruction(at).name == "RESUME") + 1
    cells = (*code.co_cellvars, *code.co_freevars)
    entry = ResumeEntry(start, tuple([name for name in arguments_of(code) if name not in cells]), cells, ())
    origin = ResumeOrigin(code, entry, None)
    looked = PlainStretch(function, origin, arguments, is_known, seen)
    left = looked.left(loops_may_begin=is_on_plain_data(failed, arguments))
    if not left:
        return None
    return forecast(function, arguments, handing_over(function, entry, stretch(function, origin, left, make_resume)))


def is_on_plain_data(failed: Guard | None, arguments: Arguments) -> bool:
    """Whether the guard is on an argument that is plain data, or on an item of one."""
    root = failed.source.root() if failed is not None else None
    if failed is not None and isinstance(failed.expected, ShapeRelation):
        root = failed.expected.names[0][1].root()
    return isinstance(root, LocalSource) and is_plain(arguments.get(root.name, NotImplemented))


def handing_over(function: FunctionType, entry: ResumeEntry, run: Callable[..., object]) -> FunctionType:
    """A function with the slots of `function` that makes its cells and calls `run`."""
    code = function.__code__
    body = Assembler(code.co_firstlineno)
    if code.co_freevars:
        body.op("COPY_FREE_VARS", len(code.co_freevars))
    for name in code.co_cellvars:
        body.op("MAKE_CELL", CellVar(name))
    body.op("RESUME", 0).const(Driven(run))
    for name in entry.parameters():
        if name in entry.locals:
            body.op("LOAD_FAST", name)
        else:
            body.op("LOAD_CLOSURE", CellVar(name) if name in code.co_cellvars else FreeVar(name))
    body.op("BUILD_LIST", len(entry.parameters())).call(1).op("RETURN_VALUE")
    made = body.finish(code, arguments_of(code), code.co_cellvars, code.co_freevars)
    return FunctionType(made, function.__globals__, function.__name__, None, function.__closure__)


def kept_closure(function: FunctionType) -> tuple[CellType, ...] | None:
    """The closure of a resume function: that of its origin, if it is one."""
    return function.__closure__ if origin_of(function) is not None else None


def has_no_region(info: object) -> bool:
    facts = info.facts if isinstance(info, Variant) else ()
    return isinstance(info, Variant | RunsInPython) and not any([kind == "region" for kind, _ in facts])


def resume_at(function: FunctionType, origin: ResumeOrigin, decoded: DecodedCode, place: ResumeEntry) -> FunctionType:
    """The function that goes on where the stretch is left."""
    name = f"{origin.code.co_qualname} from line {decoded.line(place.target)}"
    there = ResumeOrigin(origin.code, place, None)
    return resume_function(there, function.__globals__, kept_closure(function), name)


def may_compute(decoded: DecodedCode, function: FunctionType, index: int) -> bool:
    """Whether an instruction computes with tensors, as far as is known: a call that was never captured may."""
    if index in decoded.facts.computing:
        return True
    name = decoded.instruction(index).name
    if CODES.is_reached(decoded.code, index) or not name.startswith("CALL") or name.startswith("CALL_INTRINSIC"):
        return False
    return not is_plain_call(decoded, function, index)


def is_plain_call(decoded: DecodedCode, function: FunctionType, index: int) -> bool:
    """Whether all that its line loads by name are builtins and methods of containers."""
    line, at = decoded.line(index), index
    while at > 0 and decoded.line(at - 1) == line:
        at -= 1
        name, arg = decoded.instruction(at).name, decoded.instruction(at).arg
        if name in ("LOAD_METHOD", "LOAD_ATTR") and arg not in PLAIN_METHODS:
            return False
        if name in ("LOAD_GLOBAL", "LOAD_GLOBAL_CALL"):
            found = function.__globals__.get(arg, getattr(builtins, arg, None))
            if not isinstance(found, BuiltinFunctionType) and not hasattr(builtins, getattr(found, "__name__", "")):
                return False
        elif name == "LOAD_DEREF":
            return False
    return True
