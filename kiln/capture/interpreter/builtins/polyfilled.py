"""Callables written in C that are interpreted as Python functions of `polyfills.py`."""

from __future__ import annotations

import bisect
import collections
import functools
import inspect
import operator
import types
import typing
import weakref
from collections.abc import Callable, Hashable

import torch
from torch.autograd.profiler import record_function
from torch.optim.optimizer import _get_value

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import UnsupportedOperation
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CaptureState,
    Handler,
    Kwargs,
    Value,
    handles,
)
from kiln.capture.interpreter.variables.builtin import call_unknown
from kiln.capture.interpreter.variables.function import Function, inline
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.graph.trace.log import Target
from kiln.runtime.guards.guard import GuardKind

POLYFILLS: dict[Hashable, object] = {
    **{getattr(operator, name): getattr(polyfills, name) for name in ("itemgetter", "attrgetter", "methodcaller")},
    types.SimpleNamespace.__repr__: polyfills.namespace_repr,
    functools.lru_cache: polyfills.lru_cache,
    weakref._remove_dead_weakref: polyfills.remove_dead_weakref,  # type: ignore[attr-defined]
    collections._count_elements: polyfills.count_elements,  # type: ignore[attr-defined]
    torch.broadcast_shapes: polyfills.broadcast_shapes,
    torch._C._nn.pad_sequence: polyfills.pad_sequence,  # type: ignore[attr-defined]
    torch._check: polyfills.check,
    torch._check_is_size: polyfills.check_is_size,
    torch._check_index: polyfills.check_index,
    torch._check_value: polyfills.check_value,
    torch._check_type: polyfills.check_type,
    torch._check_with: polyfills.check_with,
    torch._check_tensor_all: polyfills.check_tensor_all,
    **dict.fromkeys(
        (torch._assert_scalar, torch.ops.aten._assert_scalar, torch.ops.aten._assert_scalar.default),
        polyfills.assert_scalar,
    ),
    torch.ops.aten._assert_tensor_metadata.default: polyfills.assert_tensor_metadata,
    record_function.__init__: polyfills.record_function_init,
    record_function.__enter__: polyfills.record_function_enter,
    record_function.__exit__: polyfills.record_function_exit,
    torch.device.__enter__: polyfills.enter_device,
    torch.device.__exit__: polyfills.leave_device,
    _get_value: polyfills.value_of_state,
    inspect._shadowed_dict: polyfills.shadowed_dict,  # type: ignore[attr-defined]
    torch._C._group_tensors_by_device_and_dtype: polyfills.grouped_tensors,
    torch.nn.TransformerEncoder.forward: polyfills.encode,
}
"""The original -> the function that is interpreted in its place."""


def interpret(s: CaptureState, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """Call a function of the library that has a handler by its own code."""
    value = s.wrap(function, None)
    assert isinstance(value, Function)
    return inline(s, value, args, kwargs, NOT_RESUMABLE)


def interpreted(replacement: object) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        return s.wrap(replacement, None).call(s, args, kwargs)

    return handler


for _original, _replacement in POLYFILLS.items():
    handles(_original)(interpreted(_replacement))


def asked(name: str, count: int, target: Target) -> Handler:
    """A question to `count` tensors whose answer is a bool: `polyfills.py` computes it for plain ones of one device."""
    replacement = interpreted(getattr(polyfills, name))

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        devices = [value.fake.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        if s.function_modes or len(devices) != count or len(set(devices)) != 1:
            return record(s, target, args, kwargs)
        return replacement(s, args, kwargs)

    return handler


for _name, _count in {"equal": 2, "allclose": 2, "is_nonzero": 1}.items():
    handles(getattr(torch, _name))(asked(_name, _count, getattr(torch, _name)))
    handles(getattr(torch.Tensor, _name))(asked(_name, _count, _name))


@handles(polyfills.encode_padded)
def encode_padded(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return interpret(s, torch.nn.TransformerEncoder.forward, args, kwargs)


def subscripted(function: Callable[..., object]) -> Handler:
    """`Optional[int]`: made by the library, which remembers it, if its parts are constants."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        try:
            plain = [typing_constant(s, arg) for arg in args]
        except UnsupportedOperation:
            return interpret(s, function, args, kwargs)
        return s.wrap(function(*plain), None)

    return handler


def typing_constant(s: CaptureState, value: Value) -> object:
    real = value.real()
    if isinstance(value, Tuple):
        return tuple([typing_constant(s, item) for item in value.items(s)])
    if type(real).__module__ != "typing" or value.source is None:
        return value.constant(s)
    s.guard(value.source, GuardKind.IS, s.reference(real))
    return real


for _kind in list(vars(typing).values()):
    if isinstance(_kind, type) and _kind.__module__ == "typing":
        for _name in ("__getitem__", "__class_getitem__"):
            _subscript = getattr(vars(_kind).get(_name), "__func__", vars(_kind).get(_name))
            if isinstance(_subscript, types.FunctionType):
                handles(_subscript)(subscripted(_subscript))


def of_number(function: Callable[..., object], replacement: object) -> Handler:
    """`function` of a list and a number: interpreted if that is an input of the region."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        number = args[1] if len(args) > 1 else kwargs.get("x")
        if "key" in kwargs or number is None or not number.is_torch or number.python_type() not in (int, float):
            return call_unknown(s, function, args, kwargs)
        return s.wrap(replacement, None).call(s, args, kwargs)

    return handler


for _search, _replacement in (
    (bisect.bisect_right, polyfills.bisect_right),
    (bisect.bisect_left, polyfills.bisect_left),
):
    handles(_search)(of_number(_search, _replacement))
