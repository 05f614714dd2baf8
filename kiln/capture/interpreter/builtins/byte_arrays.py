"""The methods of `bytearray`, run on the contents; a bytearray from outside is not supported, as no guard checks it."""

from __future__ import annotations

import types

from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.native_calls import natives
from kiln.capture.interpreter.variables.byte_array import ByteArray
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.iterators import Lazy
from kiln.capture.interpreter.variables.mapping import fresh
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, all_items

METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
NOT_RUN = frozenset(
    ("__init__", "__getattribute__", "__iter__", "__sizeof__", "__alloc__", "__reduce__", "__reduce_ex__")
)
"""Methods that depend on more than the contents, or have a handler of their own."""


def plain(s: CaptureState, value: Value) -> object:
    """An argument as Python takes it; iterators are read to their end."""
    if isinstance(value, ByteArray):
        return value.content
    return [item.constant(s) for item in all_items(s, value)] if isinstance(value, Lazy) else value.constant(s)


def on_content(name: str) -> Handler:
    function = getattr(bytearray, name)

    def run(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        target, *rest = args
        if not isinstance(target, ByteArray):
            return natives(s).call(function, args, kwargs)
        given = [plain(s, arg) for arg in rest]
        named = {key: plain(s, value) for key, value in kwargs.items()}
        try:
            result = function(target.content, *given, **named)
        except Exception as error:
            raise s.error(type(error), *error.args) from None
        return target if result is target.content else fresh(s, result)

    return run


for _name, _function in vars(bytearray).items():
    if isinstance(_function, METHODS) and _name not in NOT_RUN:
        handles(_function)(on_content(_name))


@handles(bytearray)
def make_byte_array(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], Object):
        return natives(s).call(bytearray, args, kwargs)
    iterable = bool(args) and not args[0].is_constant and not isinstance(args[0], ByteArray)
    first: list[object] = [plain(s, List(all_items(s, args[0])))] if iterable else [plain(s, arg) for arg in args[:1]]
    given = [*first, *(plain(s, arg) for arg in args[1:])]
    try:
        return ByteArray(bytearray(*given, **{key: plain(s, value) for key, value in kwargs.items()}))  # type: ignore[call-overload]
    except Exception as error:
        raise s.error(type(error), *error.args) from None


@handles(bytearray.__iter__)
def iterate(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Like Python's, the iterator sees what changes meanwhile."""
    (target,) = args
    if not isinstance(target, ByteArray):
        return natives(s).call(bytearray.__iter__, args, kwargs)
    content, position = target.content, [0]

    def step(s: CaptureState) -> Value | None:
        if not 0 <= position[0] < len(content):
            position[0] = -1
            return None
        position[0] += 1
        return Constant(content[position[0] - 1])

    return Lazy(type(iter(content)), step)
