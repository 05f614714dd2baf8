"""Arguments of a call bound to the parameters of a function, as CPython does it, with its errors.

def f(x, *rest, scale=1): ...
f(a, b, c)        {"x": a, "rest": (b, c), "scale": 1}
f()               TypeError: f() missing 1 required positional argument: 'x'
"""

from __future__ import annotations

import types
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Protocol

from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import Tuple


class HasParameters(Protocol):
    """What binding reads of a function."""

    code: types.CodeType
    defaults: list[Value]
    kwdefaults: dict[str, Value]

    def qualified_name(self, s: CaptureState) -> str: ...


def bind(s: CaptureState, function: HasParameters, args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Bind arguments to parameters as CPython does."""
    code = function.code
    count = code.co_argcount
    names = code.co_varnames
    bound = dict(zip(names[:count], args, strict=False))
    flags = code.co_flags
    if len(args) > count and not flags & CO_VARARGS:
        raise wrong_call(s, function, too_many(function, len(args)))
    rest = _bind_keywords(s, function, bound, kwargs) if kwargs else {}
    if len(bound) < count + code.co_kwonlyargcount:
        _bind_defaults(s, function, bound)
    last = count + code.co_kwonlyargcount
    if flags & CO_VARARGS:
        bound[names[last]] = Tuple(list(args[count:]))
        last += 1
    if flags & CO_VARKEYWORDS:
        bound[names[last]] = Dict({name: (s.const(name), value) for name, value in rest.items()})
    return bound


def wrong_call(s: CaptureState, function: HasParameters, problem: str) -> Exception:
    """What the frame raises in CPython's place."""
    return s.error(TypeError, f"{function.qualified_name(s)}() {problem}")


def too_many(function: HasParameters, given: int) -> str:
    """CPython's message for too many positional arguments."""
    code = function.code
    count, optional = code.co_argcount, len(function.defaults)
    taken = f"from {count - optional} to {count}" if optional else str(count)
    plural = "" if count == 1 and not optional else "s"
    verb = "was" if given == 1 else "were"
    return f"takes {taken} positional argument{plural} but {given} {verb} given"


def _bind_keywords(s: CaptureState, function: HasParameters, bound: dict[str, Value], kwargs: Kwargs) -> Kwargs:
    code = function.code
    names = code.co_varnames[code.co_posonlyargcount : code.co_argcount + code.co_kwonlyargcount]
    rest = {}
    for name, value in kwargs.items():
        if name in names:
            if name in bound:
                raise wrong_call(s, function, f"got multiple values for argument '{name}'")
            bound[name] = value
        elif code.co_flags & CO_VARKEYWORDS:
            rest[name] = value
        elif name in code.co_varnames[: code.co_posonlyargcount]:
            given = ", ".join(each for each in code.co_varnames[: code.co_posonlyargcount] if each in kwargs)
            what = "some positional-only arguments passed as keyword arguments"
            raise wrong_call(s, function, f"got {what}: '{given}'")
        else:
            raise wrong_call(s, function, f"got an unexpected keyword argument '{name}'")
    return rest


def _bind_defaults(s: CaptureState, function: HasParameters, bound: dict[str, Value]) -> None:
    code = function.code
    count = code.co_argcount
    first = count - len(function.defaults)
    missing: list[str] = []
    for index, name in enumerate(code.co_varnames[: count + code.co_kwonlyargcount]):
        if name in bound:
            continue
        if first <= index < count:
            bound[name] = function.defaults[index - first]
        elif index >= count and name in function.kwdefaults:
            bound[name] = function.kwdefaults[name]
        else:
            missing.append(name)
    if missing:
        positional = [name for name in missing if name in code.co_varnames[:count]]
        raise wrong_call(s, function, lacking(positional or missing, "positional" if positional else "keyword-only"))


def lacking(names: list[str], kind: str) -> str:
    """CPython's message for arguments that are not given."""
    quoted = [f"'{name}'" for name in names]
    if len(quoted) > 1:
        quoted[-1] = f"and {quoted[-1]}"
    listed = (", " if len(quoted) > 2 else " ").join(quoted)
    plural = "s" if len(quoted) > 1 else ""
    return f"missing {len(quoted)} required {kind} argument{plural}: {listed}"
