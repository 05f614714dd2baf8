"""Functions under `functools.lru_cache`.

    log2(64)            constants only: the cached function itself is called, as eager does on its first call
    table(module)       anything else: the function behind the cache is inlined

A result of constants is read by calling the cached function again, so `cache_clear()` is noticed, and a list or tensor
is the one that the cache holds. A function that is inlined runs in each call: with side effects it breaks the graph.
"""

from __future__ import annotations

import functools

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, StateChange, Value
from kiln.capture.interpreter.effects import changes
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.tensor import Tensor, here
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.source import CallSource, Source

CACHED = functools._lru_cache_wrapper


def call_cached(
    s: CaptureState, function: functools._lru_cache_wrapper[object], source: Source | None, args: Args, kwargs: Kwargs
) -> Value:
    """A call of the cached function at `source`."""
    if source is not None and all(arg.is_constant for arg in (*args, *kwargs.values())):
        plain = [arg.constant(s) for arg in args]
        named = {key: arg.constant(s) for key, arg in kwargs.items()}
        if is_constant((*plain, *named.values())) and function.cache_parameters()["maxsize"] != 0:
            try:
                result = function(*plain, **named)
            except Exception as error:
                raise s.error(type(error), *error.args) from None
            return as_constant(s, result, CallSource(source, tuple(plain), tuple(named.items())))
    return inlined(s, function, args, kwargs)


def inlined(s: CaptureState, function: functools._lru_cache_wrapper[object], args: Args, kwargs: Kwargs) -> Value:
    """What the function behind the cache does, if it changes nothing that exists before the call."""
    call, outer, changed = here(s), s.counters.changed, dict[tuple[int, str], StateChange]()
    given = (*args, *kwargs.values())
    fakes = [value.fake for value in given if isinstance(value, Tensor)]
    before, s.counters.changed = changes(s, fakes), changed
    try:
        result = s.wrap(function.__wrapped__, None).call(s, args, kwargs)
    finally:
        s.counters.changed = outer
    s.counters.has_changed(changed.values())
    if changes(s, fakes) != before or any(change.value is value for change in changed.values() for value in given):
        why = "it has side effects, which are left out where the result is in its cache"
        raise UnsupportedCall(function=getattr(function.__wrapped__, "__qualname__", "a function"), why=why).before(
            call
        )
    return result


def as_constant(s: CaptureState, result: object, path: Source | None) -> Value:
    return Constant(result, path) if isinstance(result, (int, float)) else s.wrap(result, path)


def cached_method(s: CaptureState, value: Value, name: str, raw: object) -> Value:
    """A cached function on a class is bound like any function."""
    return BoundMethod(s.class_attr(value, name, raw), value)
