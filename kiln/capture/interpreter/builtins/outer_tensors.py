"""Gradients through wrapper subclasses: what `kiln/graph/trace/outer.py` asks of the capture.

    z = torch.mul(w, 2)                 autograd runs on the outer fakes of w and z, and calls
                                        `__torch_dispatch__(aten.mul, ...)`, interpreted, for each operator
    z.sum().backward()                  the same, when the joint graph is made

The log of torch calls has the call on the wrappers, so that user backends and the second derivative run the program's
own `__torch_dispatch__` under eager's autograd; tensors inside of a result are read from it by `getattr`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import cast, final

from kiln.capture.interpreter.breaks import GraphBreak, PastStep, Raised, UnsupportedCall
from kiln.capture.interpreter.builtins.backward_reads import backward_frame
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.input_names import InputNames
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.subclass import (
    NATIVE_WRAPPERS,
    WITH_GRADIENTS,
    InnerCalls,
    Subclassed,
    bare_layout,
    lowered,
    new_subclass,
    part_of,
    run_dispatched,
    subclassed,
)
from kiln.capture.interpreter.variables.tensor import Tensor, here
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import Target, target_name
from kiln.graph.trace.outer import make_outer
from kiln.graph.trace.recorder import replace_calls
from kiln.runtime.subclasses import PART, BuildWrapper, WrapperLayout
from kiln.support.records import dataclass

HIDDEN = ("_is_param",)
"""Attributes that torch sets on a parameter; its gradient does not have them."""


@final
@dataclass
class CapturedOuter:
    """The outer fakes of one capture. `defined`: those (by `id`) that the log of torch calls has."""

    state: CaptureState
    defined: set[int] = field(default_factory=set)
    first: tuple[SymbolicFrame, PastStep] | None = None
    """The first call on wrappers with gradients: what cannot be traced in the backward breaks in front of it."""

    # For the recording.

    @contextmanager
    def backward(self) -> Iterator[None]:
        if self.first is None:
            yield
            return
        s, (frame, call) = self.state, self.first
        effects = s.effects.snapshot()
        try:
            with backward_frame(s, frame, None), InnerCalls(s, records=False):
                yield
            if s.effects.snapshot() != effects:
                raise UnsupportedCall(function="__torch_dispatch__", why="it has side effects in the backward")
        except (GraphBreak, Raised) as problem:
            if isinstance(problem, GraphBreak) and problem.frames and isinstance(problem.frames[0], PastStep):
                raise
            stop = UnsupportedCall(function="__torch_dispatch__ (in the backward)", why=problem.reason)
            raise stop.before(call, problem.at) from problem

    def parts(self, outer: FakeTensor) -> Sequence[FakeTensor]:
        found: list[FakeTensor] = []
        self._template(self._object(outer), found)
        return found

    def layout(self, outer: FakeTensor) -> WrapperLayout:
        return cast(WrapperLayout, self._template(self._object(outer), []))

    def bare_layout(self, outer: FakeTensor) -> WrapperLayout:
        return bare_layout(self._object(outer).cls, outer)

    def tangent(self, outer: FakeTensor, fresh: Callable[[FakeTensor], FakeTensor]) -> FakeTensor:
        """Integers and narrower types cannot hold a gradient: where there are such parts, it is taken to be plain."""
        if any(part.dtype is not outer.dtype for part in self.parts(outer)):
            return fresh(outer)
        return self._like(self._object(outer), fresh).torch_arg(self.state)  # type: ignore[return-value]

    def _object(self, outer: FakeTensor) -> Object:
        return self.state.part(Subclassed).objects[id(outer)]

    def _template(self, value: Value, parts: list[FakeTensor]) -> object:
        """The layout of a wrapper, or of what it has as an attribute; adds the tensors inside to `parts`."""
        s = self.state
        if isinstance(value, Tensor):
            parts.append(value.fake)
            return PART
        if isinstance(value, List | Tuple) and value.python_type() in (list, tuple):
            items = [self._template(item, parts) for item in value.items(s)]
            return items if isinstance(value, List) else tuple(items)
        if isinstance(value, Dict) and value.python_type() is dict:
            return {key: self._template(item, parts) for key, item in plain_items(s, value)}
        part = part_of(value)
        if part is None or part.inner is not None:
            return self._constant(value)
        assert isinstance(value, Object)
        bare = bare_layout(value.cls, part.outer)
        content = [(name, self._template(item, parts)) for name, item in attributes(s, value)]
        return WrapperLayout(
            bare.cls, bare.sizes, bare.strides, bare.offset, bare.dtype, bare.device, tuple(content)
        )  # fmt: skip

    def _constant(self, value: Value) -> object:
        if not value.is_constant:
            why = f"a gradient or tangent has a {value.type_name()} as an attribute"
            raise UnsupportedCall(function="__torch_dispatch__", why=why)
        return value.constant(self.state)

    def _like(self, value: Value, fresh: Callable[[FakeTensor], FakeTensor]) -> Value:
        """A wrapper of fresh tensors."""
        s = self.state
        if isinstance(value, Tensor):
            return Tensor(fresh(value.fake))
        if isinstance(value, List | Tuple) and value.python_type() in (list, tuple):
            items = [self._like(item, fresh) for item in value.items(s)]
            return List(items) if isinstance(value, List) else Tuple(items)
        if isinstance(value, Dict):
            return Dict({key: (s.const(key), self._like(item, fresh)) for key, item in plain_items(s, value)})
        part = part_of(value)
        if part is None:
            return value
        assert isinstance(value, Object)
        native = NATIVE_WRAPPERS.get(value.cls)
        made = native.make(value.cls) if native is not None else Object(value.cls)
        made.attrs = {name: self._like(item, fresh) for name, item in attributes(s, value)}
        return new_subclass(s, made, make_outer(part.outer), None)

    # For the log.

    def define(self, value: Object) -> None:
        """See to it that the log has a wrapper before a call that takes it."""
        s, part = self.state, part_of(value)
        assert part is not None
        if id(part.outer) in self.defined or part.inner is not None:
            return
        self.defined.add(id(part.outer))
        if value.source is not None:
            real = value.original
            record = s.recorder.table.find(real) or s.recorder.table.add_outer(
                real, s.part(InputNames).name(value.source), value.source, part.outer
            )
            record.kept = True
            return
        parts: list[FakeTensor] = []
        layout = self._template(value, parts)
        assert isinstance(layout, WrapperLayout)
        mark = s.recorder.mark()
        replace_calls(s.recorder, mark, BuildWrapper(layout), parts, {}, part.outer, stack=running_frame(s).locations())

    def note(self, result: object) -> None:
        """Log reads of what is inside of the wrappers among the results of a call."""
        if isinstance(result, list | tuple):
            for item in result:
                self.note(item)
        elif isinstance(result, FakeTensor) and result.is_outer and id(result) not in self.defined:
            self.defined.add(id(result))
            for name, value in attributes(self.state, self._object(result)):
                if value.is_constant:
                    continue
                inner = lowered(self.state, value)
                mark = self.state.recorder.mark()
                replace_calls(self.state.recorder, mark, getattr, (result, name), {}, inner)
                self.note(inner)


def attributes(s: CaptureState, value: Object) -> Iterator[tuple[str, Value]]:
    """The instance dict of a wrapper."""
    for name in value.instance_names():
        found = value.instance_attr(s, name)
        if found is not None and name not in HIDDEN:
            yield name, found


def plain_items(s: CaptureState, value: Dict) -> Iterator[tuple[object, Value]]:
    for _, (key, item) in value.items(s).items():
        yield key.constant(s), item


def outer_tensors(s: CaptureState) -> CapturedOuter:
    if s.recorder.outer is None:
        s.recorder.outer = CapturedOuter(s)
    assert isinstance(s.recorder.outer, CapturedOuter)
    return s.recorder.outer


def call_with_gradients(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value:
    """A call on wrappers through which gradients are needed: one entry of the log."""
    outer = outer_tensors(s)
    frame = running_frame(s)
    if outer.first is None:
        outer.first = frame, here(s)
    for value in subclassed(s, [*args, *kwargs.values()]):
        outer.define(value)
    mark, effects = s.recorder.mark(), s.effects.snapshot()
    mode, result = run_dispatched(s, target, args, kwargs)
    if s.effects.snapshot() != effects:
        raise refusal(target, "its `__torch_dispatch__` has side effects")
    if any(record.has_history for record in s.recorder.inputs if getattr(record.fake, "is_outer", False)):
        raise refusal(target, "it changes a wrapper from outside, seen by autograd")
    given = [arg.torch_arg(s) for arg in args]
    named = {name: value.torch_arg(s) for name, value in kwargs.items()}
    replace_calls(s.recorder, mark, target, given, named, result, stack=frame.locations())
    outer.note(result)
    return mode.lift(result)


def define_wrappers(s: CaptureState, values: Iterable[Value], call: PastStep, mark: int) -> int:
    """Before a call of a `torch.autograd.Function` that takes or makes wrappers: see to it that the log has those that
    it takes. Returns where the call itself begins, which was at `mark`."""
    outer = outer_tensors(s)
    if outer.first is None:
        outer.first = running_frame(s), call
    inner = s.recorder.calls[mark:]
    del s.recorder.calls[mark:]
    for value in values:
        if isinstance(value, Object) and part_of(value) is not None:
            outer.define(value)
    begins = s.recorder.mark()
    s.recorder.calls += inner
    return begins


def note_wrappers(s: CaptureState, results: Sequence[object]) -> None:
    """After it, read what is inside of the wrappers that it made."""
    outer_tensors(s).note(list(results))


def refusal(target: Target, why: str) -> GraphBreak:
    return UnsupportedCall(function=target_name(target), why=why).of_recorded_call()


def register() -> None:
    WITH_GRADIENTS.append(call_with_gradients)


register()
