"""The container inside an object whose class derives from a container.

class Names(list): ...     Names(["a"]) is an object with a `List` inside
"""

from __future__ import annotations

import types

from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.identities import PlainReads
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import List, Sequence, Tuple
from kiln.capture.interpreter.variables.set_tables import plain_set
from kiln.capture.interpreter.variables.sets import COMBINED, Set
from kiln.runtime.guards.source import Source

READ_BY_NAME = ("__iter__", "__len__", "__contains__", "__eq__", "__sizeof__", *COMBINED)
"""Methods of sets from outside that are called while tracing."""
Native = Dict | Set | Sequence
"""The container inside an object whose class derives from a container."""


def native_of(s: CaptureState, real: object, base: type, source: Source | None) -> Native:
    """The container inside an object from outside."""
    if source is not None and any(
        (found := s.classes.lookup(type(real), name)) is not None and type(found[1]) is types.FunctionType
        for name in ("__getitem__", "__iter__", "values")
    ):
        s.part(PlainReads).bases[id(source)] = source, base
    if issubclass(base, dict):
        return Dict(None, type(real), source, real)
    if base in (list, tuple):
        items: Sequence = List(None, source, real) if base is list else Tuple(None, tuple, source, real)
        items.cls = type(real)
        return items
    assert isinstance(real, set | frozenset)
    plain = all((found := s.classes.lookup(type(real), name)) is None or found[0] is base for name in READ_BY_NAME)
    made = Set(None, type(real), source, real if plain else plain_set(real))
    if made.original is None:
        raise made.unsupported("read", "the order of its items depends on what it held before")
    return made
