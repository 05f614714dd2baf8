"""Side effects: what the program changed that existed before, replayed in order when the region is done.

    self.count += 1        AttributeEffect(self, "count")   LOAD <new value>; LOAD self; STORE_ATTR count
    cache.append(y)        ContentsEffect(cache)            cache[:] = [..., y]

An effect is noted at the first change of a thing and writes its last contents. Things made in the frame need no
effect: they are built as they are at the end.
"""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any, final

from kiln.capture.interpreter.core import MISSING, CaptureState, Codegen, Value


@final
@dataclass(frozen=True)
class ContentsEffect:
    """A container from outside has new contents: emptied and filled again, the object stays."""

    value: Any

    def emit(self, g: Codegen) -> None:
        self.value.emit_contents(g)


@final
@dataclass(frozen=True)
class AppendEffect:
    """A list from outside, whose items nobody asked for, got some more."""

    value: Any

    def emit(self, g: Codegen) -> None:
        for item in self.value.appended:
            g.const(list.append)
            g.emit(self.value)
            g.emit(item)
            g.call(2)
            g.op("POP_TOP")


@final
@dataclass(frozen=True)
class AttributeEffect:
    """An object's attribute was set or deleted; `attrs[name]` of the value is what stands there now."""

    value: Any
    name: str
    again: bool = False
    """It was deleted and set again: it comes last in the instance's dict."""

    def emit(self, g: Codegen) -> None:
        new = self.value.attrs.get(self.name)
        if new is None or self.again:
            emit_deletion(g, self.value, self.name)
        if new is None:
            return
        g.emit(self.value)
        emit_attribute(g, self.value.python_type(), self.name, new)
        g.op("POP_TOP")


def emit_attribute(g: Codegen, cls: type, name: str, new: Value) -> None:
    """Set an attribute of the object on the stack past its class's `__setattr__` and past properties."""
    found = g.state.lookup(cls, name)
    if found is not None and type(found[1]) is not types.MemberDescriptorType and hasattr(type(found[1]), "__set__"):
        g.op("COPY", 1)
        g.op("LOAD_ATTR", "__dict__")
        g.const(name)
        g.emit(new)
        g.op("SWAP", 3)
        g.op("SWAP", 2)
        g.op("STORE_SUBSCR")
        return
    g.const(object.__setattr__)
    g.op("COPY", 2)
    g.const(name)
    g.emit(new)
    g.call(3)
    g.op("POP_TOP")


def emit_deletion(g: Codegen, value: Value, name: str) -> None:
    """The attribute may have been there before, or have been made and deleted in the frame."""
    g.emit(value)
    if value.python_type().__dictoffset__ == 0:
        g.op("DELETE_ATTR", name)
        return
    g.op("LOAD_ATTR", "__dict__")
    g.op("LOAD_ATTR", "pop")
    g.const(name)
    g.const(None)
    g.call(2)
    g.op("POP_TOP")


@final
@dataclass(frozen=True)
class GlobalEffect:
    """A global variable was set."""

    namespace: Any
    name: str

    def emit(self, g: Codegen) -> None:
        g.emit(self.namespace.values[self.name])
        g.const(self.namespace.dictionary)
        g.const(self.name)
        g.op("STORE_SUBSCR")


@final
@dataclass(frozen=True)
class CellEffect:
    """A cell from outside has new contents."""

    cell: Any

    def emit(self, g: Codegen) -> None:
        g.emit(self.cell.content)
        g.emit(self.cell)
        g.op("STORE_ATTR", "cell_contents")


@final
@dataclass(frozen=True)
class StateEffect:
    """A mode of torch has a new value: `setter(value)`."""

    setter: Any
    arguments: tuple[Any, ...]

    def emit(self, g: Codegen) -> None:
        g.const(self.setter)
        for argument in self.arguments:
            g.const(argument)
        g.call(len(self.arguments))
        g.op("POP_TOP")


@final
@dataclass(frozen=True)
class CallEffect:
    """A call whose result nobody needs (`print`, logging) is made when the region is done."""

    function: Value
    args: tuple[Value, ...]
    kwargs: dict[str, Value] = field(default_factory=dict)

    def emit(self, g: Codegen) -> None:
        g.emit(self.function)
        for argument in (*self.args, *self.kwargs.values()):
            g.emit(argument)
        g.call_keywords(len(self.args) + len(self.kwargs), tuple(self.kwargs))
        g.op("POP_TOP")


WRITES = frozenset(("contents", "attribute", "global", "cell"))
"""Effects on what existed before the frame: from then on real objects do not tell what the program would see."""


def writes_outside(s: CaptureState) -> bool:
    return any(key[0] in WRITES for key in s.effects)


def mutated(s: CaptureState, value: Value) -> None:
    """Note that a container from outside is about to change."""
    if value.source is not None:
        s.effects.setdefault(("contents", id(value)), ContentsEffect(value))
    elif getattr(value, "original", None) is not None:
        raise value.unsupported("change", "it has no path from the arguments of the frame")


def appended(s: CaptureState, value: Value) -> None:
    """Note that a list from outside is about to get an item more."""
    s.effects.setdefault(("contents", id(value)), AppendEffect(value))


def rewritten(s: CaptureState, value: Value) -> None:
    """What was appended is now part of the contents that are known."""
    s.effects[("contents", id(value))] = ContentsEffect(value)


def attribute_set(s: CaptureState, value: Value, name: str, again: bool = False) -> None:
    """Note that an attribute of an object from outside was set; `again` after it was deleted."""
    if value.source is not None:
        key = ("attribute", id(value), name)
        if again:
            s.effects.pop(key, None)
        s.effects.setdefault(key, AttributeEffect(value, name, again))
    elif value.real() is not MISSING:
        raise value.unsupported("change", "it has no path from the arguments of the frame")
