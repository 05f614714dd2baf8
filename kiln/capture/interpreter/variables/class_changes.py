"""Attributes that the program sets on classes from outside.

    Handle.next_id += 1     the class is written behind the region: type.__setattr__(Handle, "next_id", 5)

Plain data only. Functions and other descriptors, special names, and what hides one of these break the graph: code that
is not interpreted may read them.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

from kiln.capture.interpreter.core import CaptureState, Codegen, Value
from kiln.capture.interpreter.effects import SideEffect
from kiln.capture.interpreter.pure import IMMUTABLE_TYPE
from kiln.runtime.guards.reference import HEAP_TYPE
from kiln.support.records import dataclass


@final
@dataclass(frozen=True)
class ClassAttributeEffect(SideEffect):
    """An attribute of a class from outside has a new value."""

    owner: Value
    cls: type
    name: str
    writes = True

    @property
    def key(self) -> Hashable:
        return "class attribute", id(self.cls), self.name

    def emit(self, g: Codegen) -> None:
        g.run(type.__setattr__, self.owner, self.name, g.state.classes.changed[self.cls][self.name])


def set_outer_attr(s: CaptureState, owner: Value, cls: type, name: str, value: Value | None) -> bool:
    """`cls.name = value` on a class from outside; False if it is not modelled."""
    settable = cls.__flags__ & HEAP_TYPE and not cls.__flags__ & IMMUTABLE_TYPE
    if value is None or not settable or name.startswith("__") or s.classes.lookup(type(cls), name) is not None:
        return False
    found = s.classes.lookup(cls, name)
    kinds = [value.python_type(), *([] if found is None else [type(found[1])])]
    if any(hasattr(kind, "__get__") for kind in kinds):
        return False
    s.counters.consumed += 1  # a side of a branch that does this is not taken beside the other
    s.classes.change(cls, name, value)
    s.effects.note(ClassAttributeEffect(owner, cls, name))
    return True
