"""Calls of objects whose `__call__` is written in C: weak references, aliases, scripted functions.

ref()             what it refers to, asked again in each call
list[int]()       a list
scripted(x)       the Python function that it was made of, interpreted
"""

from __future__ import annotations

import types
import typing
import weakref
from types import FunctionType

import torch

from kiln.capture.interpreter.breaks import SkippedCode, UnsupportedCall
from kiln.capture.interpreter.core import (
    MISSING,
    WRAPPERS,
    Args,
    CaptureState,
    Kwargs,
    Value,
    handles,
    read_attr,
    wraps,
)
from kiln.capture.interpreter.lifetimes import only_dropped_hold
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.tensor import from_torch
from kiln.capture.interpreter.variables.weak_references import WeakReference
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import CALL, CallSource, Source, attribute_path


@handles(weakref.ref.__call__)
def call_reference(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    reference = args[0]
    if isinstance(reference, WeakReference):
        return reference.target(s) or Constant(None)
    real, source = reference.real(), reference.source
    if real is MISSING or source is None:
        raise UnsupportedCall(function="weakref.ref", why="the reference was made in the graph")
    target = real()
    if target is not None and only_dropped_hold(s, target):
        raise UnsupportedCall(function="weakref.ref", why="what it refers to may be freed by now")
    if target is None:
        s.guard(source, GuardKind.IS, s.reference(real))
        return s.const(None)
    known = s.recorder.table.find(target) if isinstance(target, torch.Tensor) else None
    if known is None and type(real) is weakref.ref:
        s.guard(source, GuardKind.TYPE_IS, s.reference(type(real)))
        return s.wrap(target, CallSource(source))
    if known is None:  # of a class that derives from it, such as the references in a `WeakValueDictionary`
        s.guard(source, GuardKind.IS, s.reference(real))
        return s.wrap(target, CallSource(CALL, (s.reference(real),)))
    s.guard(source, GuardKind.IS, s.reference(real))
    s.guard(known.source, GuardKind.IS, s.reference(target))
    return from_torch(s, known.fake)


@handles(weakref.finalize.__init__)
def make_finalizer(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    assert s.frame is not None
    why = "a finalizer is called when its object is freed"
    raise SkippedCode(function=s.frame.location().function, why=why)


@handles(vars(typing.NewType).get("__call__"))
def call_new_type(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`UserId(3)`, which is 3."""
    return args[-1]


@handles(types.GenericAlias.__call__)
def call_alias(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    alias = args[0].real()
    origin = getattr(alias, "__origin__", None)
    if getattr(origin, "__module__", None) not in ("builtins", "collections"):
        raise UnsupportedCall(function=args[0].type_name(), why="its instances keep the alias")
    return read_attr(s, args[0], "__origin__").call(s, args[1:], kwargs)


@wraps(torch.jit.ScriptFunction)
def wrap_script_function(s: CaptureState, real: object, source: Source | None) -> Value:
    """A scripted function stands for the Python function that it was made of."""
    plain = getattr(real, "_torchdynamo_inline", None)
    if not isinstance(plain, FunctionType):
        return WRAPPERS[object](s, real, source)
    s.guard(source, GuardKind.IS, s.reference(real))
    return s.wrap(plain, attribute_path(source, "_torchdynamo_inline"))
