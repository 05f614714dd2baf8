"""Arguments of NumPy's functions while tracing: as tensors, and as examples by which NumPy tells dtypes and shapes."""

from __future__ import annotations

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.operations import ERRORS
from kiln.capture.interpreter.variables.array import (
    DTYPES,
    ArrayValue,
    NumpyObject,
    TracedArray,
    converted,
    has_open_size,
)
from kiln.capture.interpreter.variables.known_array import KnownArray, plain
from kiln.capture.interpreter.variables.sequence import Sequence, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.runtime.heard_warnings import hearing
from kiln.support.optional import load

numpy: NumpyObject = load("numpy")


def tensor_of(s: CaptureState, value: Value, dtype: NumpyObject = None) -> Tensor:
    """An argument as a tensor, in one of NumPy's dtypes."""
    if isinstance(value, KnownArray) and not value.memory.is_known:
        value = value.traced(s)
    if isinstance(value, TracedArray):
        return value.tensor if dtype is None else converted(s, value.tensor, dtype)
    array = numpy.asarray(plain(s, value), dtype)
    wanted = DTYPES.get(array.dtype.name)
    if wanted is None:
        raise UnsupportedCall(function="numpy", why=f"it gets the dtype {array.dtype}")
    made = record(s, torch.tensor, [s.const(array.tolist())], {"dtype": s.const(wanted)})
    assert isinstance(made, Tensor)
    return made


def example(s: CaptureState, value: Value) -> NumpyObject:
    """What stands for an argument when NumPy is asked for the dtype and shape of the result in this call."""
    if isinstance(value, ArrayValue):
        return value.example_of_call()
    if isinstance(value, Symbolic) and value.node.node.has_hint():
        return value.node.node.hint
    if isinstance(value, Sequence):
        items = [example(s, item) for item in value.items(s)]
        return tuple(items) if isinstance(value, Tuple) else items
    return plain(s, value)


def asked(s: CaptureState, function: NumpyObject, args: Args, kwargs: Kwargs) -> NumpyObject:
    """What NumPy returns, or raises, for arrays of these dtypes and shapes. Other calls may have other shapes."""
    try:
        return answered(s, function, args, kwargs)
    except ERRORS as error:
        if any([has_open_size(value) for value in (*args, *kwargs.values())]):
            raise UnsupportedCall(function=f"numpy.{function.__name__}", why="its sizes come from data") from None
        raise s.error(type(error), *error.args) from None


def answered(s: CaptureState, function: NumpyObject, args: Args, kwargs: Kwargs) -> NumpyObject:
    examples = [example(s, arg) for arg in args]
    if getattr(numpy.linalg, function.__name__, None) is function:
        examples = [regular(array) for array in examples]
    return in_peace(function, examples, {key: example(s, arg) for key, arg in kwargs.items()})


def in_peace(function: NumpyObject, args: list[NumpyObject], kwargs: dict[str, NumpyObject]) -> NumpyObject:
    """A call whose warnings nobody hears."""
    with numpy.errstate(all="ignore"), hearing():
        return function(*args, **kwargs)


def regular(array: NumpyObject) -> NumpyObject:
    """Square matrices that have an inverse, in place of those of ones."""
    if getattr(array, "ndim", 0) < 2 or array.shape[-1] != array.shape[-2]:
        return array
    return array + numpy.eye(array.shape[-1], dtype=array.dtype)
