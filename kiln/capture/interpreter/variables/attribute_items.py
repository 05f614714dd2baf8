"""The attributes of objects and classes as items of dicts, and the items of dicts as attributes.

obj.__dict__["x"]            AttributeItems: a `Dict` whose items are the attributes of `obj`
obj.__dict__ = items         OwnItems: attributes of `obj` that are the items of a `Dict`
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import Generic, TypeVar, final

from kiln.capture.interpreter.core import CaptureState, Codegen, Value
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.mapping import Dict

Owner = TypeVar("Owner", bound=Value)


class AttributeItems(MutableMapping[str, tuple[Value, Value]], Generic[Owner]):
    """The items of `owner.__dict__`, as `Dict` holds them."""

    def __init__(self, s: CaptureState, owner: Owner) -> None:
        self.state = s
        self.owner = owner

    def emit(self, g: Codegen) -> None:
        g.emit(self.owner)
        g.body.attr("__dict__")


@final
class OwnItems(dict[str, Value | None]):
    """The attributes of an object whose `__dict__` is a dict of the program, perhaps itself: `self.__dict__ = self`"""

    def __init__(self, s: CaptureState, native: Dict) -> None:
        self.state = s
        self.native = native

    def __contains__(self, name: object) -> bool:
        return self.native.find(self.state, name) is not None

    def __getitem__(self, name: str) -> Value | None:
        return self.native.find(self.state, name)

    def get(self, name: str, default: Value | None = None) -> Value | None:  # type: ignore[override]
        found = self.native.find(self.state, name)
        return default if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter([name for name in self.native.items(self.state) if isinstance(name, str)])

    def values(self) -> list[Value | None]:  # type: ignore[override]
        return [self[name] for name in self]

    def items(self) -> list[tuple[str, Value | None]]:  # type: ignore[override]
        return [(name, self[name]) for name in self]

    def __setitem__(self, name: str, value: Value | None) -> None:
        key = Constant(name)
        if value is None:
            self.native.del_item(self.state, key)
        else:
            self.native.set_item(self.state, key, value)
