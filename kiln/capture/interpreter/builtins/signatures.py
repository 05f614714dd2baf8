"""`inspect.signature` of functions, methods and objects with a `__call__`.

inspect.signature(model).parameters     those of `torch.nn.Module.__call__`, without `self`
"""

from __future__ import annotations

import inspect
import types

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.functions import attribute
from kiln.capture.interpreter.builtins.polyfilled import interpret
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.function import Function
from kiln.capture.interpreter.variables.made_class import is_made
from kiln.capture.interpreter.variables.object import Object
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import DictAttrSource


@handles(inspect.signature)
def signature(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Depends on the callable's code and defaults, and on what it is said to wrap. Annotations are not guarded."""
    function = args[0]
    bound = getattr(function, "function", None)
    target = bound if bound is not None else function
    real = target.real()
    if real is MISSING or (isinstance(real, type) and is_made(s, real)):
        return interpret(s, inspect.signature, args, kwargs)
    if isinstance(target, Object):
        target = call_of_object(s, target)
        bound = target
    found = inspect.signature(target.constant(s))
    while isinstance(target, Function):
        guard_defaults(s, target)
        target = target.get_attr(s, "__wrapped__") if "__wrapped__" in vars(target.constant(s)) else None
    if bound is not None:
        found = found.replace(parameters=list(found.parameters.values())[1:])
    return s.wrap(found, None)


def call_of_object(s: CaptureState, target: Object) -> Value:
    """The function that a call of the object runs; its class and what overrides that are guarded."""
    own = ("__signature__", "__wrapped__")
    found = s.classes.lookup(target.python_type(), "__call__")
    if found is None or type(found[1]) is not types.FunctionType or any([attribute(s, target, name) for name in own]):
        raise UnsupportedCall(function="inspect.signature", why="the object says itself what it takes")
    s.guard_type(target)
    return s.class_attr(target, "__call__", found[1])


def guard_defaults(s: CaptureState, function: Function) -> None:
    """Guard what `inspect.signature` reads of a function beside its code."""
    if "__signature__" in vars(function.constant(s)):
        raise UnsupportedCall(function="inspect.signature", why="the function has a `__signature__`")
    if function.source is not None:
        for name in {"__signature__", "__wrapped__"} - vars(function.constant(s)).keys():
            s.guard(DictAttrSource(function.source, name), GuardKind.ABSENT)
    for default in (*function.defaults, *function.kwdefaults.values()):
        default.constant(s)
