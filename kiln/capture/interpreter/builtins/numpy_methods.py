"""Methods of arrays whose numbers are known at run time: functions of NumPy, and what differs from them.

a.mean(axis=0)      np.mean(a, axis=0)
a.copy()            np.copy(a, order="C"), which alone would keep the layout
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.numpy_functions import call_function, numpy
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.variables.array import ARRAY_METHODS, TracedArray, converted
from kiln.capture.interpreter.variables.known_array import plain
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, record


def method(name: str) -> Callable[[CaptureState, TracedArray, Args, Kwargs], Value]:
    """`a.sum(axis=0)` is `np.sum(a, axis=0)`."""
    function = getattr(numpy, name)

    def call(s: CaptureState, array: TracedArray, args: Args, kwargs: Kwargs) -> Value:
        if name in ("reshape", "transpose") and len(args) != 1:
            args = [Tuple(args)] if args else []
        return call_function(s, function, [array, *args], kwargs)

    return call


def copy(s: CaptureState, array: TracedArray, args: Args, kwargs: Kwargs) -> Value:
    """`a.copy()`, in rows, where `np.copy` keeps the layout."""
    given = dict(zip(("order",), args, strict=False)) | kwargs
    return call_function(s, numpy.copy, [array], {"order": s.const("C"), **given})


def cast(s: CaptureState, array: TracedArray, args: Args, kwargs: Kwargs) -> Value:
    """`a.astype(dtype)`, which copies."""
    if len(args) != 1 or kwargs.keys() - {"copy"}:
        raise UnsupportedCall(function="ndarray.astype", why="it gets more than a dtype")
    dtype = numpy.dtype(plain(s, args[0]))
    made = converted(s, array.tensor, dtype)
    if made is array.tensor and "copy" in kwargs and not kwargs["copy"].truth(s):
        return array
    tensor = record(s, "clone", [made], {}) if made is array.tensor else made
    assert isinstance(tensor, Tensor)
    return TracedArray(tensor, array.is_scalar)


def flattened(s: CaptureState, array: TracedArray, args: Args, kwargs: Kwargs) -> Value:
    """`a.flatten(order)`, which copies."""
    given = dict(zip(("order",), args, strict=False)) | kwargs
    order = plain(s, given["order"]) if given else "C"
    if order not in ("C", "F"):
        raise UnsupportedCall(function="ndarray.flatten", why=f"it gets the order {order!r}")
    axes = range(array.tensor.fake.dim())
    turned = array.tensor if order == "C" else record(s, "permute", [array.tensor, s.const(tuple(axes[::-1]))], {})
    copy = record(s, "clone", [turned], {"memory_format": s.const(torch.contiguous_format)})
    return array.view(record(s, "reshape", [copy, s.const((-1,))], {}))


def as_python(name: str) -> Callable[[CaptureState, TracedArray, Args, Kwargs], Value]:
    """`item` and `tolist`, which torch has too."""

    def call(s: CaptureState, array: TracedArray, args: Args, kwargs: Kwargs) -> Value:
        if array.number is not None and not args and not kwargs:
            return array.number
        return array.tensor.get_attr(s, name).call(s, args, kwargs)

    return call


def register() -> None:
    """The methods, if NumPy is there."""
    if numpy is None:
        return
    for name in (
        *("sum", "mean", "max", "min", "any", "all", "var", "std", "prod", "cumsum", "argmax", "argmin", "reshape"),
        *("ravel", "squeeze", "transpose", "swapaxes", "clip", "repeat", "round", "trace", "dot"),
        *("argsort", "argpartition", "nonzero", "searchsorted", "take", "compress", "cumprod", "diagonal"),
    ):
        ARRAY_METHODS[name] = method(name)
    ARRAY_METHODS.update(copy=copy, astype=cast, flatten=flattened, item=as_python("item"), tolist=as_python("tolist"))


register()
