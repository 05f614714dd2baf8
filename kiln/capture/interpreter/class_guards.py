"""Guards on every attribute that a capture looked up on a class, found or not.

    lookup(Net, "__bool__") -> None               type(self).__bool__: absent
    lookup(Net, "scale")    -> a property          type(self).scale: type_is property
    lookup(Meta, "__call__") -> type.__call__      type(type(self)).__call__: is

A class is guarded where a path leads to it: the program named it, or it is the class of a value from outside, the
metaclass of such a class, or the class of one of its attributes. All guards on a class cost one comparison of its
version when the region is entered. Values and functions that the program used have guards of their own.
"""

from __future__ import annotations

import types

from kiln.capture.interpreter.class_lookups import Found
from kiln.capture.interpreter.core import MADE_WITH_CLASS, CaptureState
from kiln.capture.interpreter.variables.function import expectation
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import HEAP_TYPE, path_of
from kiln.runtime.guards.source import AttrSource, Source, TypeSource

BOUND = (staticmethod, classmethod, types.ClassMethodDescriptorType)
"""Reading one of these through its class makes another object."""
IMMUTABLE_PARTS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType)
NEVER_GUARDED = MADE_WITH_CLASS | frozenset(("__dict__", "__weakref__", "__class__", "__doc__", "__module__"))


def guard_lookups(s: CaptureState) -> None:
    """Add the guards. What a class made in the frame inherits is guarded on its bases from outside."""
    for cls, name in s.classes.found():
        for base in s.classes.outer_bases(cls) if cls in s.classes.made else ():
            s.classes.lookup(base, name)
    found = {key: entry for key, entry in s.classes.found().items() if key[0] not in s.classes.made}
    paths = class_paths(s, found)
    for (cls, name), entry in found.items():
        path = paths.get(cls)
        if path is None:
            if can_change(cls):
                s.classes.unreached.add(cls)
        elif name not in NEVER_GUARDED:
            guard_lookup(s, AttrSource(path, name), cls, name, entry)


def class_paths(s: CaptureState, found: dict[tuple[type, str], Found | None]) -> dict[type, Source]:
    """A path to each class of a lookup; classes that cannot change need none."""
    paths = {cls: TypeSource(source) for cls, source in s.classes.instances.items()} | s.classes.sources
    paths = {cls: path for cls, path in paths.items() if can_change(cls)}
    looked_up = {cls for cls, _ in found}
    for cls, path in list(paths.items()):
        meta = type(cls)
        if meta in looked_up and can_change(meta):
            paths.setdefault(meta, TypeSource(path))
    for (cls, name), entry in found.items():
        kind = type(entry[1]) if entry is not None else type(None)
        if kind in looked_up and can_change(kind) and cls in paths:
            paths.setdefault(kind, TypeSource(AttrSource(paths[cls], name)))
    return paths


def can_change(cls: type) -> bool:
    return bool(cls.__flags__ & HEAP_TYPE)


def guard_lookup(s: CaptureState, source: Source, cls: type, name: str, entry: Found | None) -> None:
    if entry is None:
        if (cls, name) not in s.classes.lacking:
            s.guard(source, GuardKind.ABSENT)
        return
    raw = entry[1]
    used = s.classes.attributes.get((cls, name))
    if used is not None and used.source is not None and s.guards.has_identifying(used.source):
        return
    if type(raw) is types.FunctionType:
        s.guard(source, GuardKind.FUNCTION_CODE, expectation(s, raw))
    elif type(raw) in IMMUTABLE_PARTS and path_of(raw):
        s.guard(source, GuardKind.IS, s.reference(raw))
    elif type(raw) not in BOUND:
        s.guard(source, GuardKind.TYPE_IS, s.reference(type(raw)))
