"""Functions of NumPy that the region calls themselves, where torch has none that computes the same.

    np.argsort(a)                a step of the region: NumPy's order of equal elements
    np.histogram(a, bins=n)      two arrays of n and n + 1 elements
    np.unique(a)                 as long as data decide
    np.allclose(a, b)            a truth value of Python, from the region

The arguments travel as text and tensors (`plan/numpy_operators.py`). In the tables are functions that return new arrays
and write to none, with shapes that follow from those of the arguments.
"""

from __future__ import annotations

import json
from dataclasses import field
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.numpy_arguments import answered, tensor_of
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.operations import ERRORS
from kiln.capture.interpreter.variables.array import ArrayValue, NumpyObject, TracedArray, converted
from kiln.capture.interpreter.variables.known_array import plain
from kiln.capture.interpreter.variables.sequence import List, Sequence, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.plan.numpy_operators import VARYING
from kiln.support.optional import load
from kiln.support.records import dataclass

numpy: NumpyObject = load("numpy")
SHAPED = frozenset((
    "all", "allclose", "amax", "amin", "angle", "any", "append", "argmax", "argmin", "argpartition", "argsort",
    "array_equal", "array_equiv", "around", "average", "clip", "convolve", "corrcoef", "correlate", "count_nonzero",
    "cov", "cross", "cumprod", "cumsum", "diff", "digitize", "dot", "ediff1d", "einsum", "fix", "gradient",
    "histogram", "histogram2d", "i0", "in1d", "inner", "interp", "isclose", "isin", "kron", "lexsort", "max", "mean",
    "median", "min", "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmedian", "nanmin",
    "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "outer", "packbits", "pad", "partition",
    "percentile", "polyfit", "polyval", "prod", "ptp", "quantile", "round", "searchsorted", "select", "sinc", "sort",
    "std", "sum", "take", "take_along_axis", "tensordot", "trapezoid", "trapz", "unpackbits", "unravel_index",
    "unwrap", "vander", "var", "vdot", "linalg.cholesky", "linalg.cond", "linalg.det", "linalg.eigh",
    "linalg.eigvalsh", "linalg.inv", "linalg.matrix_power", "linalg.matrix_rank", "linalg.norm", "linalg.pinv",
    "linalg.qr", "linalg.slogdet", "linalg.solve", "linalg.svd", "fft.fft", "fft.fft2", "fft.fftn", "fft.fftshift",
    "fft.ifft", "fft.ifft2", "fft.ifftn", "fft.ifftshift", "fft.irfft", "fft.irfft2", "fft.rfft", "fft.rfft2",
))  # fmt: skip
"""Their results have shapes that follow from the shapes of arrays and from the other arguments."""
NAMED = SHAPED | VARYING | {"bincount"}
WRITTEN = frozenset(("out", "overwrite_input"))
"""Arguments that name what is written to."""


def name_of(function: NumpyObject) -> str | None:
    """The name by which the region calls it; None for a function that is in none of the tables."""
    name: str = function.__name__
    if isinstance(function, numpy.ufunc):
        return name if getattr(numpy, name, MISSING) is function and function.signature is None else None
    for prefix, space in (("", numpy), ("linalg.", numpy.linalg), ("fft.", numpy.fft)):
        if getattr(space, name, MISSING) is function and prefix + name in NAMED:
            return prefix + name
    return None


@final
@dataclass
class Form:
    """The arguments of a call as text, with arrays and numbers that change beside it."""

    s: CaptureState
    arrays: list[Value] = field(default_factory=list)
    numbers: list[Value] = field(default_factory=list)

    def written(self, value: Value) -> object:
        if isinstance(value, ArrayValue):
            is_scalar = isinstance(value, TracedArray) and value.is_scalar
            return self.array(tensor_of(self.s, value), is_scalar)
        if isinstance(value, Symbolic) and value.python_type() is int:
            self.numbers.append(value)
            return {"number": len(self.numbers) - 1}
        if isinstance(value, Sequence):
            items = [self.written(item) for item in value.items(self.s)]
            return {"tuple": items} if isinstance(value, Tuple) else items
        return self.constant(value, plain(self.s, value))

    def array(self, tensor: Value, is_scalar: bool) -> object:
        self.arrays.append(tensor)
        return {"scalar" if is_scalar else "array": len(self.arrays) - 1}

    def constant(self, value: Value, number: NumpyObject) -> object:
        if isinstance(number, numpy.generic):
            return self.array(tensor_of(self.s, value), is_scalar=True)
        if isinstance(number, type | numpy.dtype):
            return {"dtype": numpy.dtype(number).name}
        if number is None or type(number) in (bool, int, float, str):
            return number
        raise UnsupportedCall(function="numpy", why=f"it gets a {value.type_name()}")


def writes(function: NumpyObject, args: Args, kwargs: Kwargs) -> bool:
    """Whether it is told where to write its result."""
    given = [kwargs[name].real() for name in WRITTEN if name in kwargs]
    if any(value is not None and value is not False for value in given):
        return True
    return isinstance(function, numpy.ufunc) and len(args) > function.nin


def has_other_shapes(name: str, args: Args, kwargs: Kwargs) -> bool:
    """Whether results have shapes that the tables do not tell: numbers of bins by a rule, residuals, rows."""
    if name == "unique":
        return len(args) > 1 or not kwargs.keys() <= {"return_index", "return_inverse", "return_counts"}
    if name == "polyfit":
        return len(args) > 3 or bool(kwargs)
    return name.startswith("histogram") and any([isinstance(value.real(), str) for value in (*args, *kwargs.values())])


def expected_of(s: CaptureState, function: NumpyObject, args: Args, kwargs: Kwargs) -> NumpyObject:
    """What NumPy returns for arrays of ones: what it raises for these says nothing of others. They cannot be written
    to, so that a result which can is none of them, as `np.diff(a, n=0)` is."""
    name = function.__name__
    try:
        made = answered(s, function, args, kwargs)
    except ERRORS as error:
        raise UnsupportedCall(function=f"numpy.{name}", why=f"of ones it raises {error!r}") from None
    arrays = [part for part in (made if isinstance(made, list | tuple) else [made]) if isinstance(part, numpy.ndarray)]
    if not all([array.flags.writeable for array in arrays]):
        raise UnsupportedCall(function=f"numpy.{name}", why="its result may share memory with an argument")
    return made


def called_itself(s: CaptureState, function: NumpyObject, args: Args, kwargs: Kwargs) -> Value | None:
    """The result of a call that the region makes; None for a function that is in none of the tables."""
    name = name_of(function)
    if name is None or writes(function, args, kwargs) or has_other_shapes(name, args, kwargs):
        return None
    expected, form = expected_of(s, function, args, kwargs), Form(s)
    text: dict[str, object] = {"args": [form.written(arg) for arg in args]}
    named = {key: form.written(arg) for key, arg in kwargs.items()}
    given = [s.const(name), s.const(json.dumps(text | {"named": named})), List(form.arrays), List(form.numbers)]
    made = record(s, torch.ops.kiln_numpy.call.default, given, {})
    assert isinstance(made, Sequence)
    parts = made.items(s)
    if not isinstance(expected, tuple | list):
        return result_of(s, parts[0], expected)
    results = [result_of(s, part, like) for part, like in zip(parts, expected, strict=True)]
    if isinstance(expected, list):
        return s.model.list_of(results)
    kind = type(expected)
    return Tuple(results) if kind is tuple else s.wrap(kind, None).call(s, results, {})


def result_of(s: CaptureState, tensor: Value, like: object) -> Value:
    """A tensor of the region as an array, a scalar of NumPy, or a number of Python."""
    assert isinstance(tensor, Tensor)
    if isinstance(like, bool | int | float) and not isinstance(like, numpy.generic):
        return tensor.get_attr(s, "item").call(s, [], {})
    if not isinstance(like, numpy.ndarray | numpy.generic) or tensor.fake.dim() != like.ndim:
        raise UnsupportedCall(function="numpy", why="its result is no array")
    return TracedArray(converted(s, tensor, like.dtype), isinstance(like, numpy.generic))
