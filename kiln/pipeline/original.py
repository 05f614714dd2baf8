"""Entries that run the original function: where compiling failed, and where the program itself raises.

    def f(x, n):
        if n < 0:                     f(x, -1)    guards of the path to `raise`, then `f` itself
            raise ValueError(n)       f(x, 2)     another variant, compiled
        return x * n

Eager raises the exception, so the traceback and the order of side effects are eager's.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType

from kiln.capture.bytecode.resume import origin_of, resume_function
from kiln.native._frames import Dispatcher, Driven
from kiln.pipeline.dispatchers import original_of


def in_python(function: FunctionType) -> FunctionType:
    """A resume function that calls the functions it resumes instead of their dispatchers: all of them run in Python.

    Otherwise each level of nested calls would be compiled on its own once the level above runs eager.
    """
    origin = origin_of(function)
    if origin is None or origin.inner is None:
        return function
    call = origin.inner.function
    assert isinstance(call, Driven) and isinstance(call.function, Dispatcher)
    inner = replace(origin.inner, function=in_python(original_of(call.function)))
    plain = replace(origin, inner=inner)
    return resume_function(plain, function.__globals__, function.__closure__, function.__qualname__)


def taking_slots(function: FunctionType, run: Callable[..., object] | None = None) -> Callable[..., object]:
    """`run`, or `function` itself, as an entry calls it: every argument slot of `function` positionally, `*args` and
    `**kwargs` as one slot each."""
    code, run = function.__code__, run or function
    positional, keyword_only = code.co_argcount, code.co_kwonlyargcount
    if not keyword_only and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return run
    names = code.co_varnames[positional : positional + keyword_only]

    def call(*slots: object) -> object:
        args, rest = slots[:positional], list(slots[positional + keyword_only :])
        named = dict(zip(names, slots[positional:], strict=False))
        if code.co_flags & inspect.CO_VARARGS:
            args += rest.pop(0)  # type: ignore[operator]
        if code.co_flags & inspect.CO_VARKEYWORDS:
            named.update(rest.pop(0))  # type: ignore[call-overload]
        return run(*args, **named)

    return call
