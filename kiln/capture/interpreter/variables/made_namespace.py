"""The globals of code that `exec` and `eval` run: a dict that is a value.

space = {"n": 3}; exec("def f(x): return x * n", space)        `f` finds `n` in the value of `space`
"""

from __future__ import annotations

import builtins
import types
from typing import ClassVar, final

from kiln.capture.interpreter.core import CaptureState, Codegen, Value
from kiln.capture.interpreter.variables.mapping import Dict, is_namespace
from kiln.runtime.guards.source import BuiltinSource

BUILTINS = "__builtins__"


@final
class MadeNamespace:
    """A namespace whose names are the items of a dict."""

    __slots__ = ("names",)

    dictionary: ClassVar[types.MappingProxyType[str, object]] = types.MappingProxyType({})
    """There is no real one."""

    def __init__(self, names: Dict) -> None:
        self.names = names

    def load(self, s: CaptureState, name: str) -> Value:
        found = self.names.find(s, name)
        if found is None:
            found = self._builtin(s, name)
        if found is None:
            raise s.name_error(NameError, name, f"name '{name}' is not defined")
        return found

    def _builtin(self, s: CaptureState, name: str) -> Value | None:
        space = self.names.find(s, BUILTINS)
        if isinstance(space, Dict) and space.real() is not vars(builtins):
            return space.find(s, name)
        if space is not None and not isinstance(space, Dict) and space.real() is not builtins:
            raise space.unsupported("use as `__builtins__`", "it is not the module")
        real = vars(builtins)
        return s.wrap(real[name], BuiltinSource(name)) if name in real else None

    def store(self, s: CaptureState, name: str, value: Value) -> None:
        self.names.set_item(s, s.const(name), value)

    def name(self, s: CaptureState) -> Value:
        """The `__module__` of functions."""
        found = self.names.find(s, "__name__")
        return s.const(None) if found is None else found

    def as_dict(self, s: CaptureState) -> Value:
        return self.names

    def emit(self, g: Codegen) -> Dict | None:
        """Push the dict; returned, it is to be filled when the function that uses it has been made.

        Python reads the builtins of a function when it makes it.
        """
        if self.names.source is not None or g.is_built(self.names):
            g.emit(self.names)
            return None
        g.body.op("BUILD_MAP", 0)
        g.remember(self.names)
        space = self.names.find(g.state, BUILTINS)
        if space is not None:
            g.emit(space)
            g.body.op("COPY", 2).const(BUILTINS).op("STORE_SUBSCR")
        return self.names


def module_of(dictionary: object) -> str | None:
    """The name of the module whose dict it is."""
    return str(dictionary["__name__"]) if isinstance(dictionary, dict) and is_namespace(dictionary) else None
