"""Functions under `functools.lru_cache`.

    log2(64)            constants only: the cached function itself is called, as eager does on its first call
    table(module)       anything else: the function behind the cache is inlined

The cache declares that results may be reused, so the result for constants is a constant too. A mutable result (a list
or a tensor) could change between calls without a guard noticing, so it is computed anew.
"""

from __future__ import annotations

import functools
from typing import Any

from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.variables.function import BoundMethod
from kiln.capture.interpreter.variables.sequence import is_fixed

CACHED = functools._lru_cache_wrapper


def call_cached(s: CaptureState, function: Any, args: Args, kwargs: Kwargs) -> Value:
    """A call of a cached function."""
    if all(arg.is_constant for arg in (*args, *kwargs.values())):
        plain = [arg.constant(s) for arg in args]
        named = {key: arg.constant(s) for key, arg in kwargs.items()}
        try:
            result = s.wrap(function(*plain, **named), None)
        except Exception as error:
            raise s.error(type(error), *error.args) from None
        if is_fixed(s, result):
            return result
    return s.wrap(function.__wrapped__, None).call(s, args, kwargs)


def cached_method(s: CaptureState, value: Value, name: str, raw: object) -> Value:
    """A cached function on a class is bound like any function."""
    return BoundMethod(s.class_attr(value, name, raw), value)
