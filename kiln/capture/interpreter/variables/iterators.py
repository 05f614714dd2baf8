"""Iterators made by builtins, and generators (whose body is a symbolic frame that is resumed by `next`)."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import final

from kiln.capture.interpreter.breaks import PastStep, Raised, UnsupportedValue
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Codegen, Kwargs, Value
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import Tuple


@final
class Lazy(Value):
    """An iterator whose `step` computes the next item, None at the end (`zip`, `map`, `enumerate`, ...).

    `parts` gives the arguments of `make` (by default `cls`) that make an iterator over the remaining items; None: it
    cannot be rebuilt.
    """

    __slots__ = ("cls", "make", "parts", "step")

    def __init__(
        self,
        cls: type,
        step: Callable[[CaptureState], Value | None],
        parts: Callable[[], list[Value]] | None = None,
        make: Callable[..., object] | None = None,
    ) -> None:
        self.cls = cls
        self.make = make or cls
        self.step = step
        self.parts = parts
        self.source = None

    def python_type(self) -> type:
        return self.cls

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self

    def next(self, s: CaptureState) -> Value | None:
        s.counters.consumed += 1
        return self.step(s)

    def emit(self, g: Codegen) -> None:
        if self.parts is None:
            super().emit(g)
            return
        g.body.const(self.make)
        parts = self.parts()
        for part in parts:
            g.emit(part)
        g.body.call(len(parts))
        g.remember(self)


@final
class Generator(Value):
    """A generator, whose frame runs to the next `yield` on demand."""

    __slots__ = ("args", "frame", "kwargs", "made_at", "started")

    def __init__(self, frame: SymbolicFrame, args: Args, kwargs: Kwargs, caller: SymbolicFrame) -> None:
        self.made_at = PastStep(caller.number, caller.step, caller.location())
        self.frame = frame
        self.args = args
        self.kwargs = kwargs
        self.started = False
        self.source = None

    def python_type(self) -> type:
        return types.GeneratorType

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self

    def next(self, s: CaptureState) -> Value | None:
        return self.send(s, s.const(None))

    def send(self, s: CaptureState, value: Value) -> Value | None:
        frame = self.frame
        if not frame.running and self.started and frame.finished:
            return None
        if self.started:
            frame.push(value)
        self.started = True
        frame.running = True
        frame.parent, frame.outer = running_frame(s), None
        item = frame.run()
        if frame.finished:
            frame.result = item
            return None
        return item

    def emit(self, g: Codegen) -> None:
        """Call the function again if the generator has not started; otherwise break in front of that call."""
        if self.started:
            raise UnsupportedValue(type="generator", why="it has started to run in the graph").before(self.made_at)
        g.body.const(make_generator)
        assert self.frame.function is not None
        g.emit(self.frame.function)
        g.emit(Tuple(list(self.args)))
        g.emit(Dict({name: (Constant(name), value) for name, value in self.kwargs.items()}))
        g.body.call(3)
        g.remember(self)

    def throw(self, s: CaptureState, error: Value) -> Value | None:
        frame = self.frame
        if not self.started or frame.finished:
            frame.finished = True
            raise Raised(error)
        frame.running = True
        frame.parent, frame.outer = running_frame(s), None
        inner = self.delegate()
        if inner is None:
            if not frame.unwind(error):
                raise Raised(error)
        else:
            try:
                item = inner.throw(s, error)
            except Raised as raised:
                if not frame.unwind(raised.value):
                    raise
            else:
                if item is not None:
                    frame.running = False
                    return item
                self._end_delegation(inner)
        item = frame.run()
        if frame.finished:
            frame.result = item
            return None
        return item

    def delegate(self) -> Generator | None:
        """The generator in which a `yield from` is suspended."""
        frame = self.frame
        instructions = frame.decoded.instructions
        inside = (
            frame.ip < len(instructions) and instructions[frame.ip].name == "RESUME" and instructions[frame.ip].arg == 2
        )
        inner = frame.stack[-1] if inside and frame.stack else None
        return inner if isinstance(inner, Generator) else None

    def _end_delegation(self, inner: Generator) -> None:
        """The inner generator returned: continue after the `yield from` with its result, as SEND does."""
        frame = self.frame
        instructions = frame.decoded.instructions
        at = frame.ip
        while instructions[at].name != "SEND":
            at = instructions[at].arg if instructions[at].name == "JUMP" else at + 1
        frame.ip = instructions[at].arg
        if instructions[frame.ip].name == "END_SEND":
            frame.push(inner.frame.result)
        else:
            frame.stack[-1] = inner.frame.result


def zipped(iterators: list[Value], strict: bool) -> Lazy:
    def step(s: CaptureState) -> Value | None:
        items: list[Value] = []
        for iterator in iterators:
            item = iterator.next(s)
            if item is None:
                if strict and (items or any(iterator.next(s) is not None for iterator in iterators[1:])):
                    raise s.error(ValueError, "zip() arguments have different lengths")
                return None
            items.append(item)
        return Tuple(items) if items else None

    return Lazy(zip, step, lambda: iterators, zip_strictly if strict else zip)


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

    return Lazy(enumerate, step, lambda: [iterator, Constant(state[0] + 1)])


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
