"""Functions under `functools.lru_cache`.

    log2(64, ("a", 1))  constants only: the cached function itself is called, as eager does on its first call
    backend(Tensor)     a class, which a cache finds by its identity: likewise
    config.table(64)    a method of an object from outside, whose attributes may change after the first call: likewise
    table(config, 64)   an object from outside in another place: a graph break, unless a cache gave it
    table(n)            anything else: the function behind the cache is inlined, unless it reads variables from outside

A result is read by calling the cached function again, so `cache_clear()` is noticed, and a list or tensor is the one
that the cache holds. One that holds few results might lose one by that, in a guard of another variant: its function is
inlined whatever it gets. A function that is inlined runs in each call: with side effects it breaks the graph, where
it reads what may have changed since its result was cached, and where a later call could tell its result from the one
that the cache holds: if the frame changes it, or hands it on. What a cache gave is taken to be as it was made, so that
a cached recipe can be applied to sizes that change by another cached function, as einops does.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import methodcaller
from typing import TypeAlias, final

import torch

from kiln.capture.interpreter.breaks import GraphBreak, PastStep, UnsupportedCall
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, StateChange, Value
from kiln.capture.interpreter.effects import changes
from kiln.capture.interpreter.lifetimes import held
from kiln.capture.interpreter.outside_reads import parts, refuse_outside_reads
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, here
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.nested_graphs import NotNested, draws_random
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import ObjectRef
from kiln.runtime.guards.source import AnswerSource, CallSource, Source, StepSource, attribute_path
from kiln.runtime.seen_results import SEEN_RESULTS, is_seen

CACHED = functools._lru_cache_wrapper
Cached: TypeAlias = "functools._lru_cache_wrapper[object]"
MakeBreak = Callable[[], GraphBreak]
BY_IDENTITY: object = object.__hash__
SEEN = "its result is changed or handed on, which the next call would see in what the cache holds"
DRAWS = "it draws random numbers, once for all calls that find its result"
STALE = "it reads a variable from outside, which may have changed since its result was cached"
FEW_RESULTS = 8
"""As many as variants may ask for in their guards."""
PLAIN_TUPLES = (tuple, torch.Size)
UNCHANGING = (
    *PLAIN_TUPLES,
    *(int, float, bool, complex, str, bytes, type(None), type, range, slice, types.FunctionType),
)
C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType, CACHED)


def call_cached(s: CaptureState, function: Cached, source: Source | None, args: Args, kwargs: Kwargs) -> Value:
    """A call of the cached function at `source`."""
    changing = [arg for arg in (*args, *kwargs.values()) if may_change(s, arg)]
    receiver = args[0] if changing and changing == args[:1] and is_method(function, args[0]) else None
    if changing and (receiver is None or pending_changes(s)):
        why = "an argument may change, or have changed, after its result was cached"
        raise UnsupportedCall(function=name_of(function), why=why)
    rest = args if receiver is None else args[1:]
    if s.counters.nested:
        raise NotNested("it calls a cached function, which must run where the program calls it only")
    most = CACHED.cache_info(function).maxsize
    keeps, loses = most != 0, most is not None and 0 < most <= FEW_RESULTS
    if source is None or loses or not all(is_plain(s, arg) for arg in (*rest, *kwargs.values())):
        kept = keeps and source is not None
        if kept and is_seen(function):
            raise UnsupportedCall(function=name_of(function), why=SEEN)
        place, first = here(s), len(s.recorder.nodes)
        with reading_nothing(s, function, (*args, *kwargs.values()), kept):
            made = inlined(s, function, source, args, kwargs)
        if kept and source is not None:
            s.guard(AnswerSource(source, s.reference(is_seen)), GuardKind.EQUALS, False)
        if kept and not any(isinstance(arg, Tensor) for arg in (*args, *kwargs.values())):
            if draws_random(s.recorder.nodes[first:]):
                raise UnsupportedCall(function=name_of(function), why=DRAWS).before(place)
            s.part(InlinedResults).keep(s, function, made, (*args, *kwargs.values()))
        return made
    plain = [plain_value(s, arg) for arg in rest]
    named = {key: plain_value(s, arg) for key, arg in kwargs.items()}
    known = [s.reference(value) if isinstance(value, type) else value for value in plain]
    if not is_constant((*known, *named.values())) or not keeps:
        return inlined(s, function, source, args, kwargs)
    path: Source = CallSource(source, tuple(known), tuple(named.items()))
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


@final
class InlinedResults:
    """What inlined calls have made that the cache would hold, and how to break in front of the call if that is seen."""

    def __init__(self) -> None:
        self.functions: list[tuple[Cached, MakeBreak]] = []
        self.objects: list[tuple[Value, MakeBreak]] = []
        self.tensors: list[tuple[FakeTensor, tuple[int, bool], MakeBreak]] = []

    def keep(self, s: CaptureState, function: Cached, result: Value, given: Iterable[Value]) -> None:
        make_break, known = partial(break_at_seen, function, here(s)), held(s, given)
        self.functions.append((function, make_break))
        made = [value for value in held(s, [result]).values() if isinstance(value, Value) and id(value) not in known]
        for value in [value for value in made if value.source is None]:
            s.counters.lasting[id(value)] = value, make_break
            if isinstance(value, Tensor) and type(value.fake) is FakeTensor:
                self.tensors.append((value.fake, state_of(value.fake), make_break))
            elif value.python_type() not in UNCHANGING:
                self.objects.append((value, make_break))

    def refuse_seen(self, is_built: Callable[[Value], bool], outputs: Iterable[FakeTensor]) -> None:
        """Break in front of a call if its result was changed in place, is built, or shares memory with outputs, or if a
        side that was given up has seen one."""
        for function, make_break in self.functions:
            if is_seen(function):
                raise make_break()
        for value, make_break in self.objects:
            if is_built(value):
                raise make_break()
        seen = {id(fake.storage_view.storage) for fake in outputs} if self.tensors else ()
        for fake, state, make_break in self.tensors:
            if state_of(fake) != state or id(fake.storage_view.storage) in seen:
                raise make_break()


def state_of(fake: FakeTensor) -> tuple[int, bool]:
    """What calls in place change."""
    return fake.storage_view.storage.version, fake.requires_grad


def break_at_seen(function: Cached, call: PastStep) -> GraphBreak:
    SEEN_RESULTS.add(function)
    return UnsupportedCall(function=name_of(function), why=SEEN).before(call)


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


def is_class(s: CaptureState, value: Value) -> bool:
    """Whether it is a class that a cache finds by its identity, as it was before the frame."""
    cls = value.real() if issubclass(value.python_type(), type) else None
    if not isinstance(cls, type) or type(cls).__hash__ is not type.__hash__:
        return False
    return not any([base in s.classes.changed or base in s.classes.made for base in cls.__mro__])


def is_plain(s: CaptureState, value: Value) -> bool:
    """Whether it is a constant, a class, or a tuple of constants."""
    if not isinstance(value, Tuple):
        return value.is_constant or is_class(s, value)
    return value.python_type() in PLAIN_TUPLES and all(
        is_plain(s, item) and not is_class(s, item) for item in value.items(s)
    )


def plain_value(s: CaptureState, value: Value) -> object:
    if not isinstance(value, Tuple):
        return value.constant(s)
    return value.python_type()([plain_value(s, item) for item in value.items(s)])


def pending_changes(s: CaptureState) -> bool:
    """Whether the frame has changed what existed before it: a cached function must not run before that is done."""
    count, _, written = changes(s)
    return bool(count or written)


def is_method(function: Cached, receiver: Value) -> bool:
    """Whether the class of the receiver has the cached function under its name."""
    if isinstance(receiver, Tensor):
        return False
    real = receiver.real()
    return inspect.getattr_static(real, function.__wrapped__.__name__, None) is function


def name_of(function: Cached) -> str:
    return getattr(function.__wrapped__, "__qualname__", "a function")


def inlined(s: CaptureState, function: Cached, source: Source | None, args: Args, kwargs: Kwargs) -> Value:
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
def reading_nothing(s: CaptureState, function: Cached, given: Iterable[Value], keeps: bool) -> Iterator[None]:
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
