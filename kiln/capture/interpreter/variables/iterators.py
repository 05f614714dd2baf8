"""Iterators made by builtins, and generators (whose body is a symbolic frame that is resumed by `next`)."""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import field
from typing import final

from kiln.capture.interpreter.breaks import GraphBreak, PastStep, Raised, UnsupportedAttribute, UnsupportedValue
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Value,
    will_change,
)
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.exception import link
from kiln.capture.interpreter.variables.key_iterator import KeyIterator
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import ReversedList, SequenceIterator, Tuple
from kiln.support.records import dataclass


@final
class Lazy(Value):
    """An iterator whose `step` computes the next item, None at the end (`zip`, `map`, `enumerate`, ...).

    `parts` gives the arguments of `make` (by default `cls`) that make an iterator over the remaining items; None: it
    cannot be rebuilt. `over` are the iterators whose items it takes, `kept` is what it keeps from one to the next.
    """

    __slots__ = ("cls", "kept", "make", "over", "parts", "step")

    def __init__(
        self,
        cls: type,
        step: Callable[[CaptureState], Value | None],
        parts: Callable[[], list[Value]] | None = None,
        make: Callable[..., object] | None = None,
        over: Sequence[Value] = (),
        kept: list[int] | None = None,
    ) -> None:
        self.over, self.kept = over, kept
        self.cls = cls
        self.make = make or cls
        self.step = step
        self.parts = parts

    @property
    def position(self) -> tuple[int, ...] | None:
        return None if self.kept is None else tuple(self.kept)

    @position.setter
    def position(self, position: tuple[int, ...]) -> None:
        assert self.kept is not None
        self.kept[:] = position

    def remaining(self, s: CaptureState) -> int | None:
        counts = [remaining(s, iterator) for iterator in self.over]
        return min((count for count in counts if count is not None), default=None)

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self

    def next(self, s: CaptureState) -> Value | None:
        s.counters.change()
        will_change(s, self)
        return self.step(s)

    def emit(self, g: Codegen) -> None:
        if self.parts is None:
            super().emit(g)
            return
        g.make(self, self.make, *self.parts())


@final
class Generator(Value):
    """A generator, whose frame runs to the next `yield` on demand."""

    __slots__ = ("args", "frame", "kwargs", "made_at", "result", "resumed", "started")

    def __init__(self, frame: SymbolicFrame, args: Args, kwargs: Kwargs, caller: SymbolicFrame) -> None:
        self.made_at = PastStep(caller.number, caller.step, caller.location())
        self.frame = frame
        self.args = args
        self.kwargs = kwargs
        self.started = False
        self.resumed = False
        """The `yield from` in it has just ended by an exception that its iterator was given."""
        self.result: Value | None = None
        """What the body returned, until a StopIteration takes it."""

    def python_type(self) -> type:
        return types.CoroutineType if self.frame.code.co_flags & inspect.CO_COROUTINE else types.GeneratorType

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        if self.python_type() is types.CoroutineType:
            raise s.error(TypeError, "'coroutine' object is not iterable")
        return self

    def next(self, s: CaptureState) -> Value | None:
        return self.send(s, s.const(None))

    def send(self, s: CaptureState, value: Value) -> Value | None:
        frame = self.frame
        if frame.finished:
            return None
        if not self.started and not s.is_none(value):
            raise s.error(TypeError, "can't send non-None value to a just-started generator")
        begun = self.started
        self._enter(s)
        if begun:
            frame.push(value)
        return self._run(s)

    def _enter(self, s: CaptureState) -> None:
        if self.started and self.frame.running:
            raise s.error(ValueError, "generator already executing")
        will_change(s, self)
        if not self.started:
            s.part(StartedGenerators).generators.append(self)
        self.started = self.frame.running = True
        self.frame.parent, self.frame.outer = running_frame(s), None

    def _run(self, s: CaptureState) -> Value | None:
        """To the next `yield`; None at the end. A StopIteration that leaves the body is an error of the program."""
        frame = self.frame
        try:
            item = frame.run()
        except Raised as raised:
            if not issubclass(raised.value.python_type(), StopIteration):
                raise
            error = s.error(RuntimeError, "generator raised StopIteration")
            error.value.set_attr(s, "__cause__", raised.value)
            error.value.set_attr(s, "__context__", raised.value)
            raise Raised(error.value).again() from None
        if frame.finished:
            self.result = item
            return None
        return item

    def emit(self, g: Codegen) -> None:
        """Call the function again if the generator has not started; otherwise break in front of that call."""
        if self.started:
            raise UnsupportedValue(type="generator", why="it has started to run in the graph").before(self.made_at)
        assert self.frame.function is not None
        named = Dict({name: (Constant(name), value) for name, value in self.kwargs.items()})
        g.make(self, make_generator, self.frame.function, Tuple(list(self.args)), named)

    def throw(self, s: CaptureState, error: Value) -> Value | None:
        """Raise `error` at the `yield`; the next item, None at the end."""
        frame = self.frame
        if not self.started or frame.finished:
            self.started = frame.finished = True
            raise Raised(error).again()
        self._enter(s)
        raised = Raised(error)
        try:
            item = self._throw_into_delegate(s, error)
        except Raised as other:
            raised = other
        else:
            if item is not None:
                frame.running = False
                return item
        if not self.resumed:
            link(s, raised, frame.handled[-1] if frame.handled else None)
            if not frame.unwind(raised.value):
                try:
                    raise raised
                finally:
                    del raised  # it leads to this frame
        return self._run(s)

    def _throw_into_delegate(self, s: CaptureState, error: Value) -> Value | None:
        """The iterator of a `yield from` gets the exception first; what it yields then, None if it does not."""
        self.resumed = False
        inner = self.delegate()
        if inner is None:
            return None
        if issubclass(error.python_type(), GeneratorExit):
            close(s, inner)
            return None
        if not isinstance(inner, Generator) and s.classes.lookup(inner.python_type(), "throw") is None:
            return None
        try:
            if not isinstance(inner, Generator):
                return inner.get_attr(s, "throw").call(s, [error], {})
            item = inner.throw(s, error)
            result = inner.take_result()
        except Raised as raised:
            if isinstance(inner, Generator) or not issubclass(raised.value.python_type(), StopIteration):
                raise
            item, result = None, raised.value.get_attr(s, "value")
        if item is None:
            self._end_delegation(result)
            self.resumed = True
        return item

    def close(self, s: CaptureState) -> None:
        """Raise GeneratorExit at the `yield`; a generator that yields again is an error."""
        if not self.started:
            self.started = self.frame.finished = True
            return
        if self.frame.finished:
            return
        try:
            item = self.throw(s, s.error(GeneratorExit).value)
        except Raised as raised:
            if not issubclass(raised.value.python_type(), GeneratorExit):
                raise
            return
        if item is not None:
            raise s.error(RuntimeError, "generator ignored GeneratorExit")
        self.take_result()

    def is_in_handler(self, s: CaptureState) -> bool:
        """Whether it is suspended in a `try` or `with` of the program that acts when the generator is closed."""
        return not self.frame.finished and acts_when_closed(s, self.frame, self.frame.at)

    def may_act(self, s: CaptureState) -> bool:
        """Whether it may be suspended there."""
        decoded = self.frame.decoded
        yields = [at for at in range(len(decoded)) if decoded.instruction(at).name == "YIELD_VALUE"]
        return not self.frame.finished and any(acts_when_closed(s, self.frame, at) for at in yields)

    def delegate(self) -> Value | None:
        """The iterator in which a `yield from` is suspended."""
        frame = self.frame
        at = frame.decoded.instruction(frame.ip) if frame.ip < len(frame.decoded) else None
        inside = at is not None and at.name == "RESUME" and at.arg == 2
        return frame.stack[-1] if inside and frame.stack else None

    def _end_delegation(self, result: Value) -> None:
        """The inner iterator ended: continue after the `yield from` with its result, as SEND does."""
        frame = self.frame
        at, instruction = frame.ip, frame.decoded.instruction
        while instruction(at).name != "SEND":
            at = instruction(at).arg if instruction(at).name == "JUMP" else at + 1
        frame.ip = instruction(at).arg
        if instruction(frame.ip).name == "END_SEND":
            frame.push(result)
        else:
            frame.stack[-1] = result

    def take_result(self) -> Value:
        """What the body returned, for the StopIteration at its end: later ones have no value."""
        found, self.result = self.result, None
        return found if found is not None else Constant(None)

    def stop(self, s: CaptureState) -> Raised:
        """The StopIteration at the end."""
        result = self.take_result()
        return s.error(StopIteration, *([] if s.is_none(result) else [result]))

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        frame = self.frame
        if name in ("gi_running", "gi_suspended"):
            running = self.started and frame.running
            return Constant(running if name == "gi_running" else self.started and not running and not frame.finished)
        if name == "gi_yieldfrom":
            return self.delegate() or Constant(None)
        if name == "gi_code":
            return Constant(frame.code)
        if name == "gi_frame" and frame.finished:
            return Constant(None)
        if name in ("gi_frame", "__name__", "__qualname__") and frame.function is not None:
            if name == "gi_frame":
                raise UnsupportedAttribute(name=name, type="generator", why="interpreted frames are no objects")
            return frame.function.get_attr(s, name)
        return super().get_attr(s, name, site)


@final
@dataclass
class StartedGenerators:
    """The generators that the capture has started."""

    generators: list[Generator] = field(default_factory=list)


def forget_callers(s: CaptureState) -> None:
    """When the capture is over: the frame that called a generator last has it in its locals."""
    for made in s.part(StartedGenerators).generators:
        made.frame.parent = None


def suspended_generator(s: CaptureState) -> Generator | None:
    """A generator that the capture leaves in a `try` or `with`: CPython would close it when the program drops it."""
    return next((made for made in s.part(StartedGenerators).generators if made.is_in_handler(s)), None)


def is_dropped_late(s: CaptureState, stop: GraphBreak) -> bool:
    """Whether a loop around the break has such a generator on its stack: who calls the resume function would keep it
    when the loop drops it."""
    stacks = [getattr(frame, "saved", ()) for frame in stop.frames]
    return any([generator.may_act(s) for stack in stacks for value in stack for generator in iterated(value)])


def iterated(value: Value) -> Iterator[Generator]:
    """The generators that an iterator goes through."""
    if isinstance(value, Generator):
        yield value
    elif isinstance(value, Lazy):
        for inner in value.over:
            yield from iterated(inner)


def acts_when_closed(s: CaptureState, frame: SymbolicFrame, at: int) -> bool:
    """Whether a GeneratorExit that is raised at this instruction meets more than clauses that do not catch it."""
    handler = frame.decoded.handlers[at]
    while handler is not None:
        name = frame.decoded.instruction(handler.target).name
        if name == "INTRINSIC":  # of the whole body
            return False
        passed = handler.target if name in ("CLEANUP_THROW", "COPY") else past_clauses(s, frame, handler.target)
        if passed is None:
            return True
        handler = frame.decoded.handlers[passed]
    return False


def past_clauses(s: CaptureState, frame: SymbolicFrame, at: int) -> int | None:
    """Where a handler at `at` with `except` clauses, none of which catches a GeneratorExit, raises it again."""
    instruction = frame.decoded.instruction
    at += 1
    while instruction(at).name == "LOAD_GLOBAL":
        kinds = list[object]()
        while instruction(at).name == "LOAD_GLOBAL":
            kinds.append(frame.globals.load(s, instruction(at).arg).constant(s))
            at += 1
        at += instruction(at).name == "BUILD_TUPLE"
        jumps = instruction(at).name == "CHECK_EXC_MATCH" and instruction(at + 1).name == "POP_JUMP_IF_FALSE"
        if not jumps or any([not isinstance(kind, type) or issubclass(GeneratorExit, kind) for kind in kinds]):
            return None
        at = instruction(at + 1).arg
    return at if instruction(at).name == "RERAISE" else None


def close(s: CaptureState, iterator: Value) -> None:
    """What closing a generator does to the iterator that it delegates to."""
    if isinstance(iterator, Generator):
        iterator.close(s)
    elif s.classes.lookup(iterator.python_type(), "close") is not None:
        iterator.get_attr(s, "close").call(s, [], {})


def sent(s: CaptureState, iterator: Value, value: Value) -> tuple[Value | None, Value]:
    """The next item of an iterator that is sent `value`, or None and what it returned at its end."""
    if isinstance(iterator, Generator):
        item = iterator.send(s, value)
        return item, iterator.take_result() if item is None else value
    plain = s.is_none(value)
    found = s.classes.lookup(iterator.python_type(), "__next__")
    if plain and (found is None or type(found[1]) is not types.FunctionType):
        return iterator.next(s), value
    try:
        if plain:
            return s.call_special(iterator, "__next__", [], {}), value
        return iterator.get_attr(s, "send").call(s, [value], {}), value
    except Raised as raised:
        if not issubclass(raised.value.python_type(), StopIteration):
            raise
        return None, raised.value.get_attr(s, "value")


ITERATORS = (SequenceIterator, ReversedList, KeyIterator, Lazy)
"""Iterators with a position, to which they can be put back; that of some is None."""


def remaining(s: CaptureState, iterator: Value) -> int | None:
    """How many items an iterator still has; None: that is not known, or it cannot be put back to where it is."""
    known = isinstance(iterator, ITERATORS) and iterator.position is not None
    return iterator.remaining(s) if known else None  # type: ignore[attr-defined]


def refuse_other_lengths(s: CaptureState, iterators: list[Value], ended: int) -> None:
    """Raise eager's error of a strict `zip`, the first of whose iterators at its end is that at position `ended`."""
    other, how = ended, "shorter"
    if not ended:
        longer = (number for number, iterator in enumerate(iterators) if number and iterator.next(s) is not None)
        other, how = next(longer, 0), "longer"
    if other:
        before = "argument 1" if other == 1 else f"arguments 1-{other}"
        raise s.error(ValueError, f"zip() argument {other + 1} is {how} than {before}")


def zipped(iterators: list[Value], strict: bool) -> Lazy:
    def step(s: CaptureState) -> Value | None:
        items: list[Value] = []
        for iterator in iterators:
            item = iterator.next(s)
            if item is None:
                if strict:
                    refuse_other_lengths(s, iterators, len(items))
                return None
            items.append(item)
        return Tuple(items) if items else None

    return Lazy(zip, step, lambda: iterators, zip_strictly if strict else zip, iterators, [])


def zip_strictly(*iterators: Iterator[object]) -> Iterator[tuple[object, ...]]:
    """Called by transformed code."""
    return zip(*iterators, strict=True)


def mapped(function: Value, iterators: list[Value]) -> Lazy:
    def step(s: CaptureState) -> Value | None:
        items = [iterator.next(s) for iterator in iterators]
        present = [item for item in items if item is not None]
        return function.call(s, present, {}) if len(present) == len(items) else None

    return Lazy(map, step, lambda: [function, *iterators])


def enumerated(iterator: Value, start: int) -> Lazy:
    state = [start - 1]

    def step(s: CaptureState) -> Value | None:
        item = iterator.next(s)
        state[0] += 1
        return Tuple([Constant(state[0]), item]) if item is not None else None

    return Lazy(enumerate, step, lambda: [iterator, Constant(state[0] + 1)], over=[iterator], kept=state)


def filtered(function: Value | None, iterator: Value) -> Lazy:
    def step(s: CaptureState) -> Value | None:
        while (item := iterator.next(s)) is not None:
            if (function.call(s, [item], {}) if function is not None else item).truth(s):
                return item
        return None

    return Lazy(filter, step, lambda: [function if function is not None else Constant(None), iterator])


def chained(iterables: Value) -> Lazy:
    current: list[Value] = []

    def step(s: CaptureState) -> Value | None:
        while True:
            if not current:
                following = iterables.next(s)
                if following is None:
                    return None
                current.append(following.iterate(s))
            item = current[0].next(s)
            if item is not None:
                return item
            current.clear()

    return Lazy(itertools.chain, step, lambda: [*current, iterables], chain_from)


def chain_from(*iterators: Iterator[Iterable[object]]) -> Iterator[object]:
    """Called by transformed code: the rest of the current iterator, if there is one, then of those that follow."""
    *current, following = iterators
    return itertools.chain(*current, itertools.chain.from_iterable(following))


def called_until(function: Value, sentinel: Value, same: Callable[[CaptureState, Value, Value], bool]) -> Lazy:
    """`iter(function, sentinel)`."""

    def step(s: CaptureState) -> Value | None:
        item = function.call(s, [], {})
        if not same(s, item, sentinel):
            return item
        made.parts = None
        return None

    made = Lazy(type(iter(int, 1)), step, lambda: [function, sentinel], iter)
    return made


def make_generator(function: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Called by transformed code: `function(*args, **kwargs)`."""
    return function(*args, **kwargs)
