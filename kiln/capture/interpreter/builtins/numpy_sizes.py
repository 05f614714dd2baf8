"""NumPy's arrays whose sizes are numbers that change between calls: tensors of the region from the beginning.

    np.zeros((n, 4))          torch.full((n, 4), 0.0, dtype=torch.float64)
    np.linspace(0, 1, n)      torch.arange(n, dtype=torch.float64) * (1 / (n - 1)) + 0, with 1 as its last element
    np.eye(4)                 an array of constants (`known_array.py`)

What NumPy does with arrays of constants is more than what is written as torch calls. So where a graph breaks behind
such an array, the capture begins again, and the sizes are constants.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import final

import torch

from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.operations import binary
from kiln.capture.interpreter.variables.array import DTYPES, NumpyObject, TracedArray
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.known_array import plain
from kiln.capture.interpreter.variables.sequence import Sequence, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.support.optional import load
from kiln.support.records import dataclass

numpy: NumpyObject = load("numpy")


@final
class ConstantSizes(Exception):
    """Ends an attempt: the sizes of arrays have to be constants."""


@final
@dataclass
class SizedArrays:
    """Those of one attempt: whether they may be `traced`, and whether one was `made`."""

    traced: bool = True
    made: bool = False


def constant_sizes(s: CaptureState) -> ConstantSizes | None:
    """What ends an attempt that made such an array and broke the graph."""
    return ConstantSizes() if s.part(SizedArrays).made else None


@final
@dataclass(frozen=True)
class SizedCall:
    """A call with its arguments by name."""

    s: CaptureState
    arguments: Mapping[str, Value]
    dtype: NumpyObject

    def constant(self, name: str, default: object) -> NumpyObject:
        value = self.arguments.get(name)
        return default if value is None else plain(self.s, value)

    def sizes(self, *names: str) -> Value:
        """A shape, or sizes by name; one that is missing or None is as the first."""
        given = [self.arguments.get(name, Constant(None)) for name in names]
        if isinstance(given[0], Sequence):
            return Tuple(given[0].items(self.s))
        return Tuple([given[0] if value.is_constant and value.real() is None else value for value in given])

    def call(self, target: Callable[..., object], *args: Value, typed: bool = False) -> Value:
        named = {"dtype": self.s.const(DTYPES[self.dtype.name])} if typed else {}
        return record(self.s, target, list(args), named)

    def filled(self, number: object, shape: Value) -> Value:
        return self.call(torch.full, shape, self.s.const(self.dtype.type(number).item()), typed=True)


def eye(call: SizedCall) -> Value:
    places = call.sizes("N", "M") if "N" in call.arguments else call.sizes("n", "n")
    assert isinstance(places, Tuple)
    return call.call(torch.eye, *places.items(call.s), typed=True) if call.constant("k", 0) == 0 else Constant(None)


def triangle(call: SizedCall) -> Value:
    return call.call(torch.tril, call.filled(1, call.sizes("N", "M")), call.s.const(call.constant("k", 0)))


def counted(call: SizedCall) -> Value:
    """`np.arange` of integers."""
    bounds = [call.arguments[name] for name in ("start", "stop", "step") if name in call.arguments]
    if not all([is_integer(bound) for bound in bounds]):
        return Constant(None)
    return call.call(torch.arange, *bounds, typed=True)


def spaced(call: SizedCall) -> Value:
    """`np.linspace` between constants, in NumPy's order of operations."""
    s, number = call.s, call.arguments.get("num", Constant(50))
    start, stop, at_end = call.constant("start", None), call.constant("stop", None), call.constant("endpoint", True)
    if not all([type(bound) in (int, float) for bound in (start, stop)]) or not is_integer(number) or start == stop:
        return Constant(None)
    places = record(s, torch.arange, [number], {"dtype": s.const(torch.float64)})
    last = binary(s, operator.sub, number, s.const(1))
    step = binary(s, operator.truediv, s.const(float(stop - start)), last if at_end else number)
    made = call.call(operator.add, call.call(operator.mul, places, step), s.const(float(start)))
    if at_end:
        made = call.call(torch.where, call.call(operator.eq, places, last), s.const(float(stop)), made)
    return call.call(torch.Tensor.to, made, s.const(DTYPES[call.dtype.name]))


def is_integer(value: Value) -> bool:
    return value.python_type() is int if isinstance(value, Symbolic) else type(value.real()) is int


ARRAY = ("shape", "dtype")
# fmt: off
MAKERS: Mapping[str, tuple[tuple[str, ...], Callable[[SizedCall], Value]]] = {
    "zeros":    (ARRAY,                       lambda call: call.filled(0, call.sizes("shape"))),
    "empty":    (ARRAY,                       lambda call: call.filled(0, call.sizes("shape"))),
    "ones":     (ARRAY,                       lambda call: call.filled(1, call.sizes("shape"))),
    "eye":      (("N", "M", "k", "dtype"),    eye),
    "identity": (("n", "dtype"),              eye),
    "tri":      (("N", "M", "k", "dtype"),    triangle),
    "arange":   (("start", "stop", "step"),   counted),
    "linspace": (("start", "stop", "num", "endpoint"), spaced),
}
# fmt: on
"""Names of arguments in order, and how the array is made. Calls with others are computed on constants."""


def of_sizes(s: CaptureState, function: NumpyObject, args: Args, kwargs: Kwargs) -> Value | None:
    """The array that `function` makes of changing sizes; None for other calls."""
    found = s.part(SizedArrays)
    name = getattr(function, "__name__", "")
    if not found.traced or name not in MAKERS or getattr(numpy, name, MISSING) is not function:
        return None
    names, make = MAKERS[name]
    if name == "arange" and len(args) == 1:
        names = ("stop",)
    if len(args) > len(names) or not kwargs.keys() <= {*names, "dtype"}:
        return None
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    sizes = [size for value in arguments.values() for size in symbols_in(s, value)]
    dtype = dtype_of(s, name, arguments.get("dtype"))
    if not sizes or dtype.name not in DTYPES or not all([is_integer(size) and at_least_two(size) for size in sizes]):
        return None
    made = make(SizedCall(s, arguments, dtype))
    if not isinstance(made, Tensor):
        return None
    found.made = True
    return TracedArray(made)


def dtype_of(s: CaptureState, name: str, given: Value | None) -> NumpyObject:
    default = "int64" if name == "arange" else "float64"
    return numpy.dtype(default if given is None else plain(s, given) or default)


def symbols_in(s: CaptureState, value: Value) -> list[Symbolic]:
    """The changing numbers of an argument."""
    items = value.items(s) if isinstance(value, Sequence) else [value]
    return [item for item in items if isinstance(item, Symbolic)]


def at_least_two(size: Symbolic) -> bool:
    """Other calls are guarded: NumPy's rules for empty arrays, and for one step, are others."""
    return bool(size.node.node.has_hint() and size.node > 1)
