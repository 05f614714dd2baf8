"""Functions under `functools.lru_cache`.

    log2(64)            constants only: the cached function itself is called, as eager does on its first call
    table(module)       anything else: the function behind the cache is inlined

A guard on the result asks the cached function again, so it notices `cache_clear()` and nothing else. A mutable result
(a list or a tensor) could change between calls without a guard noticing, so it is computed anew.
"""

from __future__ import annotations

import functools
from typing import Any

from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import is_fixed
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.source import CallSource, Source

CACHED = functools._lru_cache_wrapper


def call_cached(s: CaptureState, function: Any, source: Source | None, args: Args, kwargs: Kwargs) -> Value:
    """A call of the cached function at `source`."""
    if source is not None and all(arg.is_constant for arg in (*args, *kwargs.values())):
        plain = [arg.constant(s) for arg in args]
        named = {key: arg.constant(s) for key, arg in kwargs.items()}
        path = (
            CallSource(source, tuple(plain), tuple(named.items())) if is_constant((*plain, *named.values())) else None
        )
        try:
            result = as_constant(s, function(*plain, **named), path)
        except Exception as error:
            raise s.error(type(error), *error.args) from None
        if path is not None and is_fixed(s, result):
            return result
    return s.wrap(function.__wrapped__, None).call(s, args, kwargs)


def as_constant(s: CaptureState, result: object, path: Source | None) -> Value:
    return Constant(result, path) if isinstance(result, (int, float)) else s.wrap(result, path)


def cached_method(s: CaptureState, value: Value, name: str, raw: object) -> Value:
    """A cached function on a class is bound like any function."""
    return BoundMethod(s.class_attr(value, name, raw), value)
