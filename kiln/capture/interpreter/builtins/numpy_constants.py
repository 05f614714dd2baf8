"""NumPy on constants: scalars and arrays that the program computes from numbers of its own.

    scale = np.sqrt(2.0) * np.float32(3)              computed while tracing
    rates = np.linspace(0, 0.1, 4).tolist()           likewise
    torch.from_numpy(np.arange(3.0))                  a constant tensor

Arrays and scalars from outside, and arrays that a tensor was turned into, are no constants (`numpy_functions.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.capture.interpreter.builtins.numpy_sizes import of_sizes
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value, handles, wraps
from kiln.capture.interpreter.variables.array import ARRAY_METHODS, TracedArray, array_input, is_usable
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.known_array import computed
from kiln.capture.interpreter.variables.object import wrap_object
from kiln.runtime.guards.source import Source
from kiln.support.optional import load

numpy = load("numpy")
MAKERS = ("arange", "zeros", "ones", "empty", "full", "eye", "identity", "tri", "indices", "frombuffer", "fromiter")
"""Functions that get no arrays, which NumPy does not let arrays override."""


def makes(function: Callable[..., object]) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        if len(args) == 1 and isinstance(args[0], TracedArray):  # `np.float64(a.mean())`
            return ARRAY_METHODS["astype"](s, args[0], [s.wrap(function, None)], kwargs)
        made = of_sizes(s, function, args, kwargs)
        return computed(s, function, args, kwargs) if made is None else made

    return handler


def wrap_scalar(s: CaptureState, real: object, source: Source | None) -> Value:
    if source is None:
        return Constant(real)
    return array_input(s, real, source) if is_usable(real) else wrap_object(s, real, source)


def register() -> None:
    """The handlers, if NumPy is there."""
    if numpy is None:
        return
    for name in MAKERS:
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
