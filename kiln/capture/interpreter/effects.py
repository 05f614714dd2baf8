"""Side effects: changes of what existed before the frame, made in order after the region has run.

    self.count += 1        AttributeEffect(self, "count")   LOAD <new value>; LOAD self; STORE_ATTR count
    cache.append(y)        ContentsEffect(cache)            cache[:] = [..., y]

An effect is added at the first change of a thing and writes its last state. Objects made in the frame need none:
they are built in their last state.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import field
from typing import ClassVar, TypeAlias, final

from kiln.capture.bytecode.assemble import Label
from kiln.capture.interpreter.core import CaptureState, Codegen, Value, will_change
from kiln.graph.trace.fake import FakeTensor
from kiln.support.records import dataclass


class SideEffect:
    """Base of the effects; see `effect_log.Keyed`."""

    writes: ClassVar[bool] = False
    lasting: ClassVar[bool] = True

    @property
    def key(self) -> Hashable:
        """By default, each effect is separate."""
        return id(self)


class Container(Value):
    """A value whose contents can be replaced."""

    __slots__ = ()

    def truth(self, s: CaptureState) -> bool:
        return self.length(s) != 0

    def emit_contents(self, g: Codegen) -> None:
        """Replace the contents of the object from outside by those it has now."""
        raise NotImplementedError


def contents_key(value: Value) -> Hashable:
    return "contents", id(value)


@final
@dataclass(frozen=True)
class ContentsEffect(SideEffect):
    """A container from outside has new contents: it is filled with them, keeping its identity."""

    value: Container
    writes = True

    @property
    def key(self) -> Hashable:
        return contents_key(self.value)

    def emit(self, g: Codegen) -> None:
        self.value.emit_contents(g)


def is_field(cls: type, raw: object) -> bool:
    """Whether a class attribute stands for a slot, or for what an exception class written in C keeps."""
    return type(raw) is types.MemberDescriptorType or (
        type(raw) is types.GetSetDescriptorType and issubclass(cls, BaseException)
    )


def emit_attribute(g: Codegen, cls: type, name: str, new: Value) -> None:
    """Set an attribute of the object on the stack, bypassing its class's `__setattr__` and properties."""
    found = g.state.classes.lookup(cls, name)
    if found is not None and not is_field(cls, found[1]) and hasattr(type(found[1]), "__set__"):
        g.body.op("COPY", 1).op("LOAD_ATTR", "__dict__").const(name)
        g.emit(new)
        g.body.op("SWAP", 3).op("SWAP", 2).op("STORE_SUBSCR")
        return
    g.body.const(object.__setattr__).op("COPY", 2).const(name)
    g.emit(new)
    g.body.call(3).op("POP_TOP")


def emit_deletion(g: Codegen, value: Value, name: str) -> None:
    """Delete an attribute if it is there: it may have been set and deleted in the frame."""
    g.emit(value)
    found = g.state.classes.lookup(value.python_type(), name)
    if found is not None and type(found[1]) is types.MemberDescriptorType:
        g.body.const(object.__setattr__).op("COPY", 2).const(name).const(None).call(3).op("POP_TOP")
        g.body.const(object.__delattr__).op("COPY", 2).const(name).call(2).op("POP_TOP").op("POP_TOP")
        return
    g.body.attr("__dict__").attr("pop").const(name).const(None).call(2).op("POP_TOP")


@final
@dataclass(frozen=True)
class CallEffect(SideEffect):
    """A call whose result is not used (logging) is made when the region is done.

    One of a `message` changes nothing that the frame can read: a side of a branch may have it.
    """

    function: Value
    args: tuple[object, ...]
    kwargs: dict[str, Value] = field(default_factory=dict)
    message: bool = False

    def values(self) -> Iterator[Value]:
        """What it is called with."""
        yield from [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Value)]

    def replaced(self, replace: Callable[[Value], Value]) -> CallEffect:
        """The same call with other values."""
        args = [replace(arg) if isinstance(arg, Value) else arg for arg in self.args]
        kwargs = {name: replace(value) for name, value in self.kwargs.items()}
        return CallEffect(self.function, tuple(args), kwargs, self.message)

    def emit(self, g: Codegen) -> None:
        g.run(self.function, *self.args, *self.kwargs.values(), names=tuple(self.kwargs))


@final
@dataclass(frozen=True, eq=False)
class OneSided(SideEffect):
    """A message of one side of a branch, written where its `condition`, a tensor of one element, is `taken`."""

    condition: Value
    taken: bool
    effect: Message

    message: ClassVar[bool] = True

    def values(self) -> Iterator[Value]:
        yield self.condition
        yield from self.effect.values()

    def replaced(self, replace: Callable[[Value], Value]) -> OneSided:
        return OneSided(replace(self.condition), self.taken, self.effect.replaced(replace))

    def emit(self, g: Codegen) -> None:
        emit_on_one_side(g, self.condition, self.taken, self.values(), lambda: self.effect.emit(g))


def emit_on_one_side(
    g: Codegen, condition: Value, taken: bool, values: Iterable[Value], write: Callable[[], object]
) -> None:
    """`write()` in calls in which the condition is `taken`; it uses `values`. What is computed for it alone is computed
    there: a text may raise in other calls."""
    for value in values:
        if not value.is_deferred:
            g.emit(value)
            g.body.op("POP_TOP")
    before, end = dict(g.built), Label()
    g.emit(condition)
    g.body.jump_if(not taken, end)
    write()
    g.body.label(end)
    g.built.clear()
    g.built.update(before)


Message: TypeAlias = CallEffect | OneSided


def note_change(s: CaptureState, value: Container) -> None:
    """Call before changing a container: one from outside gets an effect."""
    s.counters.change()
    will_change(s, value)
    if value.source is not None:
        s.effects.note(ContentsEffect(value))
    elif getattr(value, "original", None) is not None:
        raise value.unsupported("change", "it has no path from the arguments of the frame")


def changes(s: CaptureState, fakes: Iterable[object] | None = ()) -> tuple[object, ...]:
    """Equal before and after code without side effects: those on objects, and writes to memory from outside and of
    `fakes`; with None, writes to memory do not count."""
    written: dict[int, int] = {}
    if fakes is not None:
        views = [record.view for record in s.recorder.inputs if isinstance(record.fake, FakeTensor)]
        views += [fake.storage_view for fake in fakes if type(fake) is FakeTensor and not fake.is_outer]
        written = {id(view.storage): view.storage.version for view in views if view.storage.version}
    return s.effects.changes, s.effects.snapshot(), written
