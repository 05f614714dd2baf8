"""Functions under `functools.lru_cache`.

    log2(64, ("a", 1))  constants only: the cached function itself is called, as eager does on its first call
    config.table(64)    a method of an object from outside, whose attributes may change after the first call: likewise
    table(config, 64)   an object from outside in another place: a graph break, unless a cache gave it
    table(n)            anything else: the function behind the cache is inlined, unless it reads variables from outside

A result is read by calling the cached function again, so `cache_clear()` is noticed, and a list or tensor is the one
that the cache holds. A function that is inlined runs in each call: with side effects it breaks the graph, and where
it reads what may have changed since its result was cached. What a cache gave is taken to be as it was made, so that
a cached recipe can be applied to sizes that change by another cached function, as einops does.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, StateChange, Value
from kiln.capture.interpreter.effects import changes
from kiln.capture.interpreter.outside_reads import parts, refuse_outside_reads
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, here
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.reference import ObjectRef
from kiln.runtime.guards.source import AnswerSource, CallSource, Source, StepSource, attribute_path

CACHED = functools._lru_cache_wrapper
BY_IDENTITY: object = object.__hash__
STALE = "it reads a variable from outside, which may have changed since its result was cached"
PLAIN_TUPLES = (tuple, torch.Size)
C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, CACHED)


def call_cached(
    s: CaptureState, function: functools._lru_cache_wrapper[object], source: Source | None, args: Args, kwargs: Kwargs
) -> Value:
    """A call of the cached function at `source`."""
    changing = [arg for arg in (*args, *kwargs.values()) if may_change(s, arg)]
    receiver = args[0] if changing and changing == args[:1] and is_method(function, args[0]) else None
    if changing and (receiver is None or pending_changes(s)):
        why = "an argument may change, or have changed, after its result was cached"
        raise UnsupportedCall(function=name_of(function), why=why)
    rest = args if receiver is None else args[1:]
    keeps = CACHED.cache_info(function).maxsize != 0
    if source is None or not all(is_plain(s, arg) for arg in (*rest, *kwargs.values())):
        with reading_nothing(s, function, (*args, *kwargs.values()), keeps and source is not None):
            return inlined(s, function, source, args, kwargs)
    plain = [plain_value(s, arg) for arg in rest]
    named = {key: plain_value(s, arg) for key, arg in kwargs.items()}
    if not is_constant((*plain, *named.values())) or not keeps:
        return inlined(s, function, source, args, kwargs)
    path: Source = CallSource(source, tuple(plain), tuple(named.items()))
    try:
        if receiver is None:
            result = function(*plain, **named)
        else:
            call = methodcaller(function.__wrapped__.__name__, *plain, **named)
            result = call(receiver.real())
            assert receiver.source is not None
            path = AnswerSource(receiver.source, ObjectRef(name_of(function), call))
    except Exception:  # which is not cached
        return inlined(s, function, source, args, kwargs)
    s.part(CacheResults).paths[id(path)] = path
    return as_constant(s, result, path) if receiver is None else s.wrap(result, path)


@final
class CacheResults:
    """The paths by which the frame has got results of cached functions, by address."""

    def __init__(self) -> None:
        self.paths: dict[int, Source] = {}


def is_from_cache(s: CaptureState, value: Value) -> bool:
    """Whether it is a result of a cached function, or was read from one."""
    paths, source = s.part(CacheResults).paths, value.source
    while isinstance(source, StepSource) and id(source) not in paths:
        source = source.base
    return id(source) in paths


def may_change(s: CaptureState, value: Value) -> bool:
    """Whether it is an object from outside that a cache finds by its identity, whatever has become of it."""
    if isinstance(value, Tensor):
        return value.original is not None
    if is_from_cache(s, value):
        return False
    real = value.real() if value.source is not None and not value.is_constant else MISSING
    return (
        type(real).__hash__ is BY_IDENTITY
        and real is not MISSING
        and not isinstance(real, (type, types.FunctionType, types.ModuleType, *C_FUNCTIONS))
    )


def is_plain(s: CaptureState, value: Value) -> bool:
    """Whether it is a constant, or a tuple of such."""
    if not isinstance(value, Tuple):
        return value.is_constant
    return value.python_type() in PLAIN_TUPLES and all(is_plain(s, item) for item in value.items(s))


def plain_value(s: CaptureState, value: Value) -> object:
    if not isinstance(value, Tuple):
        return value.constant(s)
    return value.python_type()([plain_value(s, item) for item in value.items(s)])


def pending_changes(s: CaptureState) -> bool:
    """Whether the frame has changed what existed before it: a cached function must not run before that is done."""
    count, _, written = changes(s)
    return bool(count or written)


def is_method(function: functools._lru_cache_wrapper[object], receiver: Value) -> bool:
    """Whether the class of the receiver has the cached function under its name."""
    if isinstance(receiver, Tensor):
        return False
    real = receiver.real()
    return inspect.getattr_static(real, function.__wrapped__.__name__, None) is function


def name_of(function: functools._lru_cache_wrapper[object]) -> str:
    return getattr(function.__wrapped__, "__qualname__", "a function")


def inlined(
    s: CaptureState, function: functools._lru_cache_wrapper[object], source: Source | None, args: Args, kwargs: Kwargs
) -> Value:
    """What the function behind the cache does, if it changes nothing that exists before the call."""
    call, outer, changed = here(s), s.counters.changed, dict[tuple[int, str], StateChange]()
    given = (*args, *kwargs.values())
    fakes = [value.fake for value in given if isinstance(value, Tensor)]
    before, s.counters.changed = changes(s, fakes), changed
    try:
        result = s.wrap(function.__wrapped__, attribute_path(source, "__wrapped__")).call(s, args, kwargs)
    finally:
        s.counters.changed = outer
    s.counters.has_changed(changed.values())
    if changes(s, fakes) != before or any(change.value is value for change in changed.values() for value in given):
        why = "it has side effects, which are left out where the result is in its cache"
        raise UnsupportedCall(function=name_of(function), why=why).before(call)
    return result


@contextmanager
def reading_nothing(
    s: CaptureState, function: functools._lru_cache_wrapper[object], given: Iterable[Value], keeps: bool
) -> Iterator[None]:
    """Break in front of the call where it reads a variable from outside, if a cache keeps its result."""
    if not keeps:
        yield
        return
    call, outer, accepted = here(s), s.watch, {id(value): value for value in parts(s, given)}

    def watch() -> None:
        if outer is not None:
            outer()
        try:
            refuse_outside_reads(s, accepted, STALE, lambda value: is_from_cache(s, value))
        except UnsupportedCall:
            raise UnsupportedCall(function=name_of(function), why=STALE).before(call) from None

    s.watch = watch
    try:
        yield
    finally:
        s.watch = outer


def as_constant(s: CaptureState, result: object, path: Source | None) -> Value:
    return Constant(result, path) if isinstance(result, (int, float)) else s.wrap(result, path)


def cached_method(s: CaptureState, value: Value, name: str, raw: object) -> Value:
    """A cached function on a class is bound like any function."""
    return BoundMethod(s.class_attr(value, name, raw), value)
