"""NumPy on constants: scalars and arrays that the program computes from numbers of its own.

    scale = np.sqrt(2.0) * np.float32(3)              computed while tracing
    rates = np.linspace(0, 0.1, 4).tolist()           likewise
    torch.from_numpy(np.arange(3.0))                  a constant tensor

Arrays and scalars from outside, and arrays that a tensor was turned into, are no constants (`numpy_functions.py`). An
array that leaves the frame is copied each time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Handler,
    Kwargs,
    Value,
    handles,
    wraps,
)
from kiln.capture.interpreter.operations import ERRORS
from kiln.capture.interpreter.variables.array import array_input, is_usable
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.mapping import fresh
from kiln.capture.interpreter.variables.object import wrap_object
from kiln.capture.interpreter.variables.sequence import List, Sequence, Slice, Tuple
from kiln.capture.interpreter.variables.tensor import Symbolic, record
from kiln.runtime.guards.source import Source
from kiln.support.optional import load

numpy = load("numpy")
METHODS = frozenset((
    "tolist", "item", "sum", "mean", "min", "max", "prod", "cumsum", "argmax", "argmin", "reshape", "astype", "copy",
    "round", "any", "all", "transpose", "ravel",
))  # fmt: skip
LARGEST = 1 << 16
"""Elements of an array that is computed while tracing."""


@final
class NumpyArray(Value):
    """An array that the program made of constants, and has not changed."""

    __slots__ = ("array",)

    def __init__(self, array: object) -> None:
        self.array = array
        self.source = None

    def python_type(self) -> type:
        return type(self.array)

    def real(self) -> object:
        return self.array

    def example(self) -> object:
        return self.array

    def example_of_call(self) -> object:
        return self.array

    def constant(self, s: CaptureState) -> object:
        return self.array

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name in METHODS:
            return ArrayMethod(self, name)
        if name in ("shape", "ndim", "size", "dtype", "T"):
            return s.wrap(getattr(self.array, name), None)
        raise UnsupportedCall(function=f"ndarray.{name}", why="it is not computed on constants")

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        return computed(s, operator.getitem, [self, key], {})

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return List([s.wrap(item, None) for item in self.array]).iterate(s)  # type: ignore[attr-defined]

    def emit(self, g: Codegen) -> None:
        assert numpy is not None
        g.make(self, numpy.array, self.array)


@final
class ArrayMethod(NamedMethod):
    """A bound method of an array of constants."""

    __slots__ = ()
    owner: NumpyArray

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return computed(s, getattr(self.owner.array, self.name), args, kwargs)


def plain(s: CaptureState, value: Value) -> object:
    """A constant as NumPy takes it."""
    if isinstance(value, Sequence):
        items = [plain(s, item) for item in value.items(s)]
        return tuple(items) if isinstance(value, Tuple) else items
    if isinstance(value, NumpyArray):
        return value.array
    if isinstance(value, Symbolic | Slice):
        return value.constant(s)
    if not value.is_constant and not isinstance(value.real(), type):
        raise UnsupportedCall(function="numpy", why=f"it gets a {value.type_name()}, which is not a constant")
    return value.constant(s)


def computed(s: CaptureState, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """The result of `function` on constants. One without a result may have changed its arguments."""
    name = getattr(function, "__name__", "numpy")
    if "out" in kwargs:
        raise UnsupportedCall(function=name, why="it writes to an array")
    plain_args, named = [plain(s, arg) for arg in args], {key: plain(s, arg) for key, arg in kwargs.items()}
    try:
        result = function(*plain_args, **named)
    except ERRORS as error:
        raise s.error(type(error), *error.args) from None
    if result is None or getattr(result, "size", 0) > LARGEST:
        raise UnsupportedCall(function=name, why="it may change its arguments, or its result is large")
    assert numpy is not None
    return NumpyArray(result) if isinstance(result, numpy.ndarray) else fresh(s, result)


def makes(function: Callable[..., object]) -> Handler:
    return lambda s, args, kwargs: computed(s, function, args, kwargs)


def wrap_scalar(s: CaptureState, real: object, source: Source | None) -> Value:
    if source is None:
        return Constant(real)
    return array_input(s, real, source) if is_usable(real) else wrap_object(s, real, source)


def from_numpy(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """A tensor of the numbers in an array of constants."""
    if not args or not isinstance(args[0], NumpyArray):
        return record(s, torch.from_numpy, args, kwargs)
    assert numpy is not None
    array = numpy.array(args[0].array)
    return record(s, torch.tensor, [s.const(array.tolist())], {"dtype": s.const(torch.from_numpy(array).dtype)})


def register() -> None:
    """The handlers, if NumPy is there."""
    if numpy is None:
        return
    for name in ("arange", "zeros", "ones"):
        function = getattr(numpy, name)
        if not isinstance(function, type(numpy.prod)):
            handles(function)(makes(function))
    scalars = [getattr(numpy, name) for name in (
        "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "bool_",
    )]  # fmt: skip
    for scalar in scalars:
        handles(scalar)(makes(scalar))
        wraps(scalar)(wrap_scalar)


register()
