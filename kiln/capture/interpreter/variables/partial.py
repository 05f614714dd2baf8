"""`functools.partial`, made in the frame or found outside; its keywords can be changed.

scaled = partial(f, scale=2); scaled.keywords["scale"] = 3
"""

from __future__ import annotations

import functools
from typing import final

from kiln.capture.interpreter.breaks import UnsupportedAttribute, UnsupportedValue
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Value,
    will_change,
    wraps,
)
from kiln.capture.interpreter.effects import emit_attribute
from kiln.capture.interpreter.variables.function import named
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AttrSource, DictAttrSource, ItemSource, Source


@final
class Partial(Value):
    """functools.partial."""

    __slots__ = ("args", "attrs", "function", "given", "keywords", "original", "source")
    cls = functools.partial

    def __init__(self, function: Value, args: Args, kwargs: Kwargs, source: Source | None = None) -> None:
        self.function = function
        self.args = args
        self.given = kwargs
        self.original: functools.partial[object] | None = None
        self.attrs: dict[str, Value] = {}
        """Attributes of one that the frame made."""
        self.keywords: Dict | None = None
        """What the program has read as `keywords`, which it may have changed."""
        self.source = source

    def read_keywords(self, s: CaptureState) -> Dict:
        if self.keywords is None:
            found: Value = Dict(named(s, self.given))
            if self.original is not None:
                path = AttrSource(self.source, "keywords") if self.source is not None else None
                found = s.wrap(self.original.keywords, path)
            assert isinstance(found, Dict)
            found.items(s)
            self.keywords = found
        return self.keywords

    @property
    def kwargs(self) -> Kwargs:
        if self.keywords is None or self.keywords._items is None:
            return self.given
        items = self.keywords._items
        if not all(isinstance(name, str) for name in items):
            raise self.unsupported("call", "a keyword is no string")
        return {str(name): value for name, (_, value) in items.items()}

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return self.function.call(s, [*self.args, *args], {**self.kwargs, **kwargs}, site)

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name == "func":
            return self.function
        if name == "args":
            return Tuple(list(self.args))
        if name == "keywords":
            return self.read_keywords(s)
        if name == "__dict__":
            raise UnsupportedAttribute(name=name, type=self.type_name(), why="attributes of a partial are not modelled")
        if name in self.attrs:
            return self.attrs[name]
        attributes = self.attributes()
        if attributes is not None and name in attributes:
            return s.wrap(attributes[name], DictAttrSource(self.source, name) if self.source is not None else None)
        return super().get_attr(s, name, site)

    def set_attr(self, s: CaptureState, name: str, value: Value | None, site: CallSite = NOT_RESUMABLE) -> None:
        if value is None or self.original is not None or hasattr(functools.partial, name):
            super().set_attr(s, name, value, site)
        else:
            will_change(s, self)
            self.attrs[name] = value

    def attributes(self) -> dict[str, object] | None:
        """What a partial from outside has as attributes; None without a `__dict__`, which reading it would make."""
        if self.original is None:
            return None
        state: tuple[object, object, object, dict[str, object] | None] = self.original.__reduce__()[2]  # type: ignore[index, assignment]
        return state[3]

    def emit(self, g: Codegen) -> None:
        parts = (self.function, *self.args, *self.kwargs.values())
        g.make(self, functools.partial, *parts, names=tuple(self.kwargs))
        for name, value in self.attrs.items():
            emit_attribute(g, functools.partial, name, value)


@wraps(functools.partial, subclasses=True)
def wrap_partial(s: CaptureState, real: functools.partial[object], source: Source | None) -> Value:
    if type(real) is not functools.partial:
        raise UnsupportedValue(type=type(real).__name__, why="it is of a subclass of functools.partial")
    part = lambda name: AttrSource(source, name) if source else None  # noqa: E731
    args_source, keywords_source = part("args"), part("keywords")
    args = [s.wrap(a, ItemSource(args_source, i) if args_source else None) for i, a in enumerate(real.args)]
    kwargs = {
        k: s.wrap(a, ItemSource(keywords_source, k) if keywords_source else None) for k, a in real.keywords.items()
    }
    if source is not None:
        s.guard(source, GuardKind.TYPE_IS, s.reference(type(real)))
        s.guard(args_source, GuardKind.LENGTH, len(real.args))
        s.guard(keywords_source, GuardKind.DICT_KEYS, tuple(real.keywords))
    made = Partial(s.wrap(real.func, part("func")), args, kwargs, source)
    made.original = real
    return made
