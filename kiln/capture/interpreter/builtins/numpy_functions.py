"""NumPy's functions on arrays whose numbers are known at run time: torch calls in the dtypes that NumPy computes in.

    np.sin(a)                a: int64[3]     torch.sin(a.to(torch.float64))
    np.add(a, 1.0)           a: float32[3]   operator.add(a, 1.0)
    a.mean(axis=0)                           torch.mean(a, dim=(0,), keepdim=False)

Dtype and shape of a result are those that NumPy itself returns for arrays of ones. What is not in the tables breaks
the graph.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.numpy_arguments import asked, tensor_of
from kiln.capture.interpreter.builtins.numpy_calls import called_itself
from kiln.capture.interpreter.builtins.numpy_lists import array_in_front
from kiln.capture.interpreter.builtins.numpy_numbers import OPERATORS, of_numbers
from kiln.capture.interpreter.builtins.numpy_sizes import of_sizes
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.polyfills import running_sum
from kiln.capture.interpreter.variables.array import (
    DTYPES,
    NumpyObject,
    TracedArray,
    converted,
    has_open_size,
    number_of,
    of_result,
)
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.known_array import KnownArray, computed, is_plain, plain
from kiln.capture.interpreter.variables.sequence import Sequence, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.graph.prims.table import Cells
from kiln.runtime.guards.guard import GuardKind
from kiln.support.optional import load
from kiln.support.records import dataclass

numpy: NumpyObject = load("numpy")

ELEMENTWISE = {
    name: getattr(torch, torch_name or name)
    for name, torch_name in {
        "negative": "", "positive": "clone", "absolute": "abs", "sign": "", "sqrt": "", "square": "", "exp": "",
        "exp2": "", "expm1": "", "log": "", "log2": "", "log10": "", "log1p": "", "sin": "", "cos": "", "tan": "",
        "arcsin": "", "arccos": "", "arctan": "", "arctan2": "", "sinh": "", "cosh": "", "tanh": "", "arcsinh": "",
        "arccosh": "", "arctanh": "", "floor": "", "ceil": "", "trunc": "", "rint": "round", "maximum": "",
        "minimum": "", "fmax": "", "fmin": "", "logical_and": "", "logical_or": "", "logical_not": "",
        "logical_xor": "", "bitwise_and": "", "bitwise_or": "", "bitwise_xor": "", "invert": "bitwise_not",
        "isnan": "", "isinf": "", "isfinite": "", "reciprocal": "", "hypot": "", "deg2rad": "", "rad2deg": "",
    }.items()
}  # fmt: skip
"""Universal functions, on tensors only."""
OF_INTEGERS = ("power", "remainder", "floor_divide", "reciprocal")
"""Those that NumPy computes for any integers, with a warning, where torch raises or differs."""


LAYOUTS = {"C": torch.contiguous_format, "K": torch.preserve_format}
"""By NumPy's `order`."""


@final
@dataclass(frozen=True)
class NumpyCall:
    """A call with its arguments by name, and what NumPy returns for arguments of these dtypes and shapes."""

    s: CaptureState
    name: str
    arguments: dict[str, Value]
    expected: NumpyObject

    def given(self, name: str, default: object = None) -> NumpyObject:
        """A constant argument."""
        value = self.arguments.get(name)
        return default if value is None else plain(self.s, value)

    def tensor(self, name: str, dtype: NumpyObject = None) -> Tensor:
        return tensor_of(self.s, self.arguments[name], dtype)

    def computed(self, name: str) -> Tensor:
        """An array, in the dtype of the result."""
        return self.tensor(name, self.expected.dtype)

    def tensors(self, name: str) -> Value:
        """A sequence of arrays, in the dtype of the result."""
        value = self.arguments[name]
        if not isinstance(value, Sequence):
            raise UnsupportedCall(function=f"numpy.{self.name}", why=f"it gets a {value.type_name()}")
        return self.s.model.list_of([tensor_of(self.s, item, self.expected.dtype) for item in value.items(self.s)])

    def call(self, target: NumpyObject, *args: object, **kwargs: object) -> Value:
        """Record a torch call on values and constants."""
        s = self.s
        wrapped = [arg if isinstance(arg, Value) else s.const(arg) for arg in args]
        named = {key: arg if isinstance(arg, Value) else s.const(arg) for key, arg in kwargs.items()}
        return record(s, target, wrapped, named)

    def tensor_made(self, target: NumpyObject, *args: object) -> Tensor:
        made = self.call(target, *args)
        assert isinstance(made, Tensor)
        return made

    def axes(self, rank: int) -> tuple[int, ...]:
        axis = self.given("axis")
        if axis is None:
            return tuple(range(rank))
        if rank == 0:
            return ()
        return tuple([number % rank for number in (axis if isinstance(axis, tuple) else (axis,))])

    def refuse_truth_values(self) -> None:
        if self.expected.dtype.kind == "b":
            raise UnsupportedCall(function=f"numpy.{self.name}", why="it gets truth values")

    def layout(self, default: str) -> torch.memory_format:
        """The layout of a copy in the `order` that the call gives."""
        order = self.given("order", default)
        if order not in LAYOUTS:
            raise UnsupportedCall(function=f"numpy.{self.name}", why=f"it gets the order {order!r}")
        return LAYOUTS[order]

    def refuse(self, *names: str) -> NumpyCall:
        for name in names:
            if self.given(name) is not None:
                raise UnsupportedCall(function=f"numpy.{self.name}", why=f"it gets the argument `{name}`")
        return self


Implementation = Callable[[NumpyCall], Value]
written_as = FUNCTIONS = Cells[Implementation]("numpy")


def traced(s: CaptureState, function: NumpyObject, args: Args, kwargs: Kwargs) -> Value:
    """A call with an array that is not known: torch calls, or a call of NumPy by the region.

    NumPy comes first where an array may turn out to be empty: its errors and warnings for these are its own.
    """
    universal = isinstance(function, numpy.ufunc)
    if not universal and any(has_open_size(value) for value in (*args, *kwargs.values())):
        made = called_itself(s, function, args, kwargs)
        return as_torch_calls(s, function, args, kwargs) if made is None else made
    try:
        return as_torch_calls(s, function, args, kwargs)
    except UnsupportedCall as refused:
        made = called_itself(s, function, args, kwargs)
        if made is None:
            raise refused from None
        return made


def as_torch_calls(s: CaptureState, function: NumpyObject, args: Args, kwargs: Kwargs) -> Value:
    name: str = function.__name__
    universal = isinstance(function, numpy.ufunc)
    written = None if universal else written_form(function)
    known = (name in OPERATORS or name in ELEMENTWISE) and getattr(numpy, name, MISSING) is function
    if written is None and (not universal or not known or kwargs):
        raise UnsupportedCall(function=f"numpy.{name}", why="it is not written as torch calls")
    expected = asked(s, function, args, kwargs)
    parts = expected if isinstance(expected, list | tuple) else [expected]
    if not all([isinstance(part, numpy.ndarray | numpy.generic) and part.size for part in parts]):
        raise UnsupportedCall(function=f"numpy.{name}", why="its result is no array, or is empty")
    if written is None:
        return of_result(s, elementwise(s, function, args), expected)
    arguments = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    arguments |= arguments.pop("kwargs", {})
    made = written(NumpyCall(s, name, arguments, expected))
    return made if parts is expected or isinstance(made, TracedArray) else of_result(s, made, expected)


def written_form(function: NumpyObject) -> Implementation | None:
    """How a function of `numpy` or `numpy.linalg` is written as torch calls."""
    name: str = function.__name__
    for space, prefix in ((numpy, ""), (numpy.linalg, "linalg.")):
        if getattr(space, name, MISSING) is function:
            return FUNCTIONS.get(prefix + name)
    return None


def elementwise(s: CaptureState, function: NumpyObject, args: Args) -> Value:
    """In the dtypes of NumPy's loop. A Python number does not widen arrays."""
    name = function.__name__
    loops = loop_dtypes(s, function, args)
    if name not in OPERATORS or any(dtype.kind not in "fb" for dtype in loops):
        args = [s.const(arg.constant(s)) if isinstance(arg, Symbolic) else arg for arg in args]
    if name == "power" and dtype_of(s, args[0]).kind == "b":
        raise UnsupportedCall(function=f"numpy.{name}", why="it gets truth values")
    if name in OF_INTEGERS and loops[0].kind in "iub" and not is_nonnegative(args[1:]):
        raise UnsupportedCall(function=f"numpy.{name}", why="NumPy computes something for any integers")
    operands: list[Value] = []
    for arg, dtype in zip(args, loops, strict=False):
        if isinstance(arg, Symbolic):
            operands.append(arg)
            continue
        is_number = name in OPERATORS and number_of(arg) is not None
        operands.append(Constant(dtype.type(number_of(arg)).item()) if is_number else tensor_of(s, arg, dtype))
    made = record(s, OPERATORS.get(name) or ELEMENTWISE[name], operands, {})
    if name == "sign" and loops[0].kind == "f":  # NumPy's sign of NaN is NaN, torch's is 0
        return record(s, torch.where, [record(s, torch.isnan, operands, {}), operands[0], made], {})
    return made


def loop_dtypes(s: CaptureState, function: NumpyObject, args: Args) -> tuple[NumpyObject, ...]:
    """The dtypes in which NumPy computes; a Python number adapts to the arrays."""
    kinds: list[NumpyObject] = []
    for arg in args:
        number = number_of(arg)
        kind = arg.python_type() if isinstance(arg, Symbolic) else type(number)
        kinds.append(kind if isinstance(arg, Symbolic) or number is not None else dtype_of(s, arg))
    found: tuple[NumpyObject, ...] = function.resolve_dtypes((*kinds, *[None] * function.nout))
    return found


def dtype_of(s: CaptureState, value: Value) -> NumpyObject:
    return value.dtype if isinstance(value, TracedArray) else numpy.asarray(plain(s, value)).dtype


def is_nonnegative(values: list[Value]) -> bool:
    """Whether they are positive numbers that the program wrote."""
    return bool(values) and all((number_of(value) or 0) > 0 for value in values)


@written_as("sum", "mean", "max", "min", "amax", "amin", "any", "all")
def reduced(call: NumpyCall) -> Value:
    call.refuse("initial", "where", "out")
    name = {"max": "amax", "min": "amin"}.get(call.name, call.name)
    tensor = call.tensor("a", call.expected.dtype if name in ("sum", "mean") else None)
    axes = call.axes(tensor.fake.dim())
    if name in ("any", "all") and tensor.fake.dtype is not torch.bool:
        tensor = converted(call.s, tensor, call.expected.dtype)
    return call.call(getattr(torch, name), tensor, dim=axes, keepdim=bool(call.given("keepdims")))


@written_as("var", "std")
def spread(call: NumpyCall) -> Value:
    call.refuse("where", "out", "mean", "correction")
    tensor = call.computed("a")
    axes, keep = call.axes(tensor.fake.dim()), bool(call.given("keepdims"))
    return call.call(getattr(torch, call.name), tensor, dim=axes, correction=call.given("ddof", 0), keepdim=keep)


@written_as("prod", "cumsum", "cumprod", "argmax", "argmin")
def along_one_axis(call: NumpyCall) -> Value:
    call.refuse("initial", "where", "out")
    sums = call.name in ("prod", "cumsum", "cumprod")
    tensor: Value = call.tensor("a", call.expected.dtype if sums else None)
    if call.name in ("argmax", "argmin") and call.tensor("a").fake.dtype is torch.bool:
        tensor = call.call("to", tensor, torch.uint8)
    axis = call.given("axis")
    if axis is None:
        if call.given("keepdims"):
            raise UnsupportedCall(function=f"numpy.{call.name}", why="it gets `keepdims` without an axis")
        tensor, axis = call.call("reshape", tensor, (-1,)), 0
    named = {} if call.name in ("cumsum", "cumprod") else {"keepdim": bool(call.given("keepdims"))}
    if call.name == "cumsum" and call.expected.dtype.kind == "f":
        return call.s.wrap(running_sum, None).call(call.s, [tensor, call.s.const(axis)], {})
    return call.call(getattr(torch, call.name), tensor, dim=axis, **named)


@written_as("diag", "diagonal")
def diagonal(call: NumpyCall) -> Value:
    """A view of the elements of a matrix."""
    if call.name == "diagonal":
        axes = [call.given(f"axis{number}", number - 1) for number in (1, 2)]
        return call.call(torch.diagonal, call.tensor("a"), call.given("offset", 0), *axes)
    function = torch.diag if call.tensor("v").fake.dim() == 1 else torch.diagonal
    return call.call(function, call.tensor("v"), call.given("k", 0))


@written_as("reshape", "ravel")
def reshaped(call: NumpyCall) -> Value:
    """A view stays a view."""
    if call.given("order", "C") != "C" or call.given("copy") is not None:
        raise UnsupportedCall(function=f"numpy.{call.name}", why="it gets an order of the elements")
    shape = (-1,) if call.name == "ravel" else call.arguments.get("shape") or call.arguments["newshape"]
    return call.call("reshape", call.tensor("a"), shape)


@written_as("squeeze")
def squeezed(call: NumpyCall) -> Value:
    tensor = call.tensor("a")
    shape = tensor.fake.shape
    return call.call("squeeze", tensor, tuple([axis for axis in call.axes(len(shape)) if shape[axis] == 1]))


@written_as("expand_dims")
def expanded(call: NumpyCall) -> Value:
    tensor = call.tensor("a")
    for axis in sorted([axis % call.expected.ndim for axis in numpy_tuple(call.given("axis"))]):
        tensor = call.tensor_made("unsqueeze", tensor, axis)
    return tensor


@written_as("clip")
def clipped(call: NumpyCall) -> Value:
    call.refuse("out")
    tensor: Value = call.computed("a")
    for names, bound in ((("a_min", "min"), torch.maximum), (("a_max", "max"), torch.minimum)):
        for name in names:
            value = call.arguments.get(name)
            if value is not None and (isinstance(value, TracedArray) or value.real() is not None):
                tensor = call.call(bound, tensor, tensor_of(call.s, value, call.expected.dtype))
    return tensor


@written_as("zeros_like", "ones_like", "full_like")
def filled(call: NumpyCall) -> Value:
    number = call.given("fill_value") if call.name == "full_like" else int(call.name == "ones_like")
    dtype = DTYPES.get(call.expected.dtype.name)
    element, shape = call.expected.dtype.type(number).item(), call.arguments.get("shape")
    if shape is None:
        return call.call(torch.full_like, call.tensor("a"), element, dtype=dtype, memory_format=call.layout("K"))
    return call.refuse("order").call(torch.full, shape, element, dtype=dtype)


@written_as("repeat")
def repeated(call: NumpyCall) -> Value:
    if not isinstance(call.given("repeats"), int):
        raise UnsupportedCall(function="numpy.repeat", why="the counts differ")
    return call.call(torch.repeat_interleave, call.tensor("a"), call.given("repeats"), dim=call.given("axis"))


@written_as("round", "around")
def rounded(call: NumpyCall) -> Value:
    decimals = call.given("decimals", 0)
    if call.expected.dtype.kind in "iu" and decimals >= 0:
        return call.call("clone", call.tensor("a"))
    return call.call(torch.round, call.tensor("a"), decimals=decimals)


@written_as("ptp")
def extent(call: NumpyCall) -> Value:
    call.refuse("out")
    tensor = call.tensor("a")
    axes, keep = call.axes(tensor.fake.dim()), bool(call.given("keepdims"))
    largest, least = (call.call(function, tensor, dim=axes, keepdim=keep) for function in (torch.amax, torch.amin))
    return call.call(operator.sub, largest, least)


@written_as("median", "quantile", "percentile")
def quantile(call: NumpyCall) -> Value:
    call.refuse("out", "overwrite_input", "weights", "interpolation")
    share, axis = 0.5 if call.name == "median" else call.given("q"), call.given("axis")
    plain_axis = axis is None or isinstance(axis, int)
    shares = share if isinstance(share, list | tuple) else [share]
    plain_shares = all(type(each) in (int, float) for each in shares) and plain_axis
    if not plain_shares or call.given("method", "linear") != "linear":
        raise UnsupportedCall(function=f"numpy.{call.name}", why="it gets a method, an array of shares or several axes")
    shares = [each / 100 if call.name == "percentile" else float(each) for each in shares]
    tensor: Value = call.computed("a")
    share = shares[0]
    if not isinstance(call.given("q"), int | float | None):
        share = call.call(torch.tensor, shares, dtype=DTYPES[call.expected.dtype.name])
    return call.call(torch.quantile, tensor, share, dim=axis, keepdim=bool(call.given("keepdims")))


@written_as("take")
def taken(call: NumpyCall) -> Value:
    call.refuse("out")
    if call.given("mode", "raise") != "raise":
        raise UnsupportedCall(function="numpy.take", why="it gets a mode")
    axis, tensor, index = call.given("axis"), call.tensor("a"), call.tensor("indices")
    if axis is None:
        return call.call(operator.getitem, call.call("reshape", tensor, (-1,)), index)
    before = [call.s.const(slice(None))] * (axis % tensor.fake.dim())
    return call.call(operator.getitem, tensor, Tuple([*before, index]))


@written_as("flip", "fliplr", "flipud")
def flipped(call: NumpyCall) -> Value:
    """`a[::-1]`, a view as in NumPy."""
    array = call.arguments["m"]
    assert isinstance(array, TracedArray)
    rank = array.tensor.fake.dim()
    axes = {"fliplr": (1,), "flipud": (0,)}.get(call.name) or call.axes(rank)
    key = tuple([slice(None, None, -1 if axis in axes else None) for axis in range(rank)])
    made = array.get_item(call.s, call.s.const(key))
    assert isinstance(made, TracedArray)
    return made


@written_as("nan_to_num")
def finite(call: NumpyCall) -> Value:
    if call.given("copy", True) is not True:
        raise UnsupportedCall(function="numpy.nan_to_num", why="it writes to its argument")
    bounds = {name: call.given(name) for name in ("nan", "posinf", "neginf") if call.given(name) is not None}
    return call.call(torch.nan_to_num, call.tensor("x"), **bounds)


@written_as("pad")
def padded(call: NumpyCall) -> Value:
    if call.given("mode", "constant") != "constant" or not isinstance(call.given("constant_values", 0), int | float):
        raise UnsupportedCall(function="numpy.pad", why="it pads with other values than a constant")
    tensor = call.tensor("array")
    widths = numpy.broadcast_to(call.given("pad_width"), (tensor.fake.dim(), 2)).tolist()
    flat = [width for pair in reversed(widths) for width in pair]
    value = call.expected.dtype.type(call.given("constant_values", 0)).item()
    return call.call(torch.nn.functional.pad, tensor, tuple(flat), value=value)


@written_as("meshgrid")
def meshes(call: NumpyCall) -> Value:
    """A tuple of arrays; NumPy 1 gives a list."""
    if call.given("sparse", False) or not call.given("copy", True):
        raise UnsupportedCall(function="numpy.meshgrid", why="it makes views")
    axes = call.arguments["xi"]
    assert isinstance(axes, tuple)
    order = list(range(len(axes)))
    if call.given("indexing", "xy") == "xy":
        order[:2] = order[:2][::-1]
    shapes = [tuple([-1 if place == number else 1 for place in order]) for number in range(len(axes))]
    lines = [call.call("reshape", tensor_of(call.s, axis), shape) for axis, shape in zip(axes, shapes, strict=True)]
    made = call.call(torch.broadcast_tensors, *lines)
    assert isinstance(made, Sequence)
    grids = zip(made.items(call.s), call.expected, strict=True)
    parts: list[Value] = [of_result(call.s, call.call("clone", grid), expected) for grid, expected in grids]
    return Tuple(parts) if isinstance(call.expected, tuple) else call.s.model.list_of(parts)


@written_as("split", "array_split", "hsplit", "vsplit")
def divided(call: NumpyCall) -> Value:
    """A list of views."""
    array = call.tensor("ary")
    rank = array.fake.dim()
    fixed = {"vsplit": 0, "hsplit": min(1, rank - 1)}
    axis = fixed[call.name] if call.name in fixed else call.given("axis", 0) % rank
    parts, begin = list[Value](), 0
    for part in call.expected:
        made = call.call("narrow", array, axis, begin, part.shape[axis])
        parts.append(of_result(call.s, made, part))
        begin += part.shape[axis]
    return call.s.model.list_of(parts)


@written_as("einsum")
def einsum(call: NumpyCall) -> Value:
    call.refuse("out", "dtype")
    call.refuse_truth_values()
    operands: NumpyObject = call.arguments["operands"]
    tensors = [tensor_of(call.s, operand, call.expected.dtype) for operand in operands[1:]]
    return call.call(torch.einsum, operands[0], *tensors)


@written_as("kron", "tensordot", "linalg.solve")
def of_two(call: NumpyCall) -> Value:
    call.refuse_truth_values()
    left, right = (call.computed(name) for name in "ab")
    if call.name == "tensordot":
        return call.call(torch.tensordot, left, right, dims=call.given("axes", 2))
    if call.name == "solve" and right.fake.dim() not in (1, 2):
        raise UnsupportedCall(function="numpy.linalg.solve", why="it gets stacks of right-hand sides")
    return call.call(torch.kron if call.name == "kron" else torch.linalg.solve, left, right)


@written_as("linalg.inv", "linalg.det", "linalg.cholesky", "linalg.eigvalsh")
def of_matrix(call: NumpyCall) -> Value:
    if any(call.given(name) not in (None, False, "L") for name in ("upper", "UPLO")):
        raise UnsupportedCall(function=f"numpy.linalg.{call.name}", why="it reads the upper triangle")
    return call.call(getattr(torch.linalg, call.name), call.computed("a"))


@written_as("linalg.norm")
def norm(call: NumpyCall) -> Value:
    tensor, order, keep = call.computed("x"), call.given("ord"), bool(call.given("keepdims"))
    axes = call.axes(tensor.fake.dim())
    if order is None or len(axes) == 1:
        return call.call(torch.linalg.vector_norm, tensor, 2 if order is None else order, dim=axes, keepdim=keep)
    if order != "fro":
        raise UnsupportedCall(function="numpy.linalg.norm", why=f"it is the matrix norm {order!r}")
    return call.call(torch.linalg.matrix_norm, tensor, dim=axes, keepdim=keep)


@written_as("sort")
def sorted_array(call: NumpyCall) -> Value:
    made = call.refuse("kind", "order").call(torch.sort, call.tensor("a"), dim=call.given("axis", -1))
    return made.get_item(call.s, call.s.const(0))


def numpy_tuple(value: NumpyObject) -> tuple[int, ...]:
    return () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


STACKS = ("vstack", "hstack", "dstack", "column_stack")
# fmt: off
EXPRESSIONS: Mapping[str, Implementation] = {
    "broadcast_to": lambda c: c.call("expand", c.tensor("array"), c.arguments["shape"]),
    "transpose":    lambda c: c.call("permute", c.tensor("a"), c.given("axes") or tuple(range(c.expected.ndim))[::-1]),
    "swapaxes":     lambda c: c.call("transpose", c.tensor("a"), c.given("axis1"), c.given("axis2")),
    "moveaxis":     lambda c: c.call("movedim", c.tensor("a"), c.given("source"), c.given("destination")),
    "roll":         lambda c: c.call("roll", c.tensor("a"), c.given("shift"), numpy_tuple(c.given("axis"))),
    "stack":        lambda c: c.refuse("out", "dtype").call(torch.stack, c.tensors("arrays"), c.given("axis", 0)),
    "outer":        lambda c: c.call(torch.outer, *[c.call("reshape", c.computed(name), (-1,)) for name in "ab"]),
    "tile":         lambda c: c.call(torch.tile, c.tensor("A"), numpy_tuple(c.given("reps"))),
    "copy":         lambda c: c.call("clone", c.tensor("a"), memory_format=c.layout("K")),
    "trace":        lambda c: c.refuse("offset", "dtype", "out", "axis1", "axis2").call(torch.trace, c.computed("a")),
    **{name: lambda c: c.refuse("out", "dtype").call(getattr(torch, c.name), c.tensors("tup")) for name in STACKS},
    **{name: lambda c: c.call(c.name, c.tensor("m"), c.given("k", 0)) for name in ("triu", "tril")},
}
# fmt: on
for _name, _implementation in EXPRESSIONS.items():
    written_as(_name)(_implementation)


def concatenated(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    items, *rest = args
    axis = (rest or [kwargs.get("axis", s.const(0))])[0]
    if not isinstance(items, Sequence) or len(rest) > 1 or kwargs.keys() - {"axis"}:
        raise UnsupportedCall(function="numpy.concatenate", why="it gets other arguments than arrays and an axis")
    expected = asked(s, numpy.concatenate, [items, axis], {})
    tensors = s.model.list_of([tensor_of(s, item, expected.dtype) for item in items.items(s)])
    return of_result(s, record(s, torch.cat, [tensors, axis], {}), expected)


def chosen(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs:
        return call_function(s, numpy.nonzero, args, kwargs)
    if len(args) != 3 or kwargs:
        raise UnsupportedCall(function="numpy.where", why="it gets two arguments")
    expected = asked(s, numpy.where, args, {})
    operands = [tensor_of(s, arg, expected.dtype) for arg in args[1:]]
    condition = tensor_of(s, args[0], numpy.dtype(bool))
    return of_result(s, record(s, torch.where, [condition, *operands], {}), expected)


def product(name: str) -> Callable[[CaptureState, Args, Kwargs], Value]:
    """`np.dot` and `np.matmul`, which are the same for ranks 1 and 2."""

    def call(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != 2 or kwargs:
            raise UnsupportedCall(function=f"numpy.{name}", why="it gets other arguments than two arrays")
        expected = asked(s, getattr(numpy, name), args, {})
        if expected.dtype.kind == "b":
            raise UnsupportedCall(function=f"numpy.{name}", why="it gets truth values")
        operands = [tensor_of(s, arg, expected.dtype) for arg in args]
        if name == "dot" and any(operand.fake.dim() not in (1, 2) for operand in operands):
            raise UnsupportedCall(function="numpy.dot", why="it gets arrays of other ranks than 1 and 2")
        return of_result(s, record(s, torch.matmul, [*operands], {}), expected)

    return call


def taken_over(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`np.asarray(a)` and `np.array(a)` of an array, of a tensor, or of a list of arrays and numbers."""
    value = args[0]
    if isinstance(value, Sequence) and len(args) <= 2 and kwargs.keys() <= {"dtype"}:
        expected = asked(s, numpy.array, args, kwargs)
        return of_result(s, stacked(s, value, expected.dtype), expected)
    if isinstance(value, Tensor):
        value = tensor_as_array(s, [value], {})
    if len(args) > 1 or kwargs.keys() - {"dtype"} or not isinstance(value, TracedArray) or value.is_scalar:
        raise UnsupportedCall(function="numpy.array", why="it gets more than an array")
    wanted = plain(s, kwargs["dtype"]) if kwargs else None
    tensor = value.tensor if wanted is None else converted(s, value.tensor, numpy.dtype(wanted))
    return value if tensor is value.tensor else TracedArray(tensor)


def stacked(s: CaptureState, value: Value, dtype: NumpyObject) -> Value:
    """A list of lists of arrays and numbers as one tensor."""
    if not isinstance(value, Sequence):
        return tensor_of(s, value, dtype)
    return record(s, torch.stack, [s.model.list_of([stacked(s, item, dtype) for item in value.items(s)])], {})


def copied(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    kept, given = taken_over(s, args, kwargs), args[0]
    of = given if isinstance(given, Tensor) else given.tensor if isinstance(given, TracedArray) else None
    if of is None or not isinstance(kept, TracedArray) or kept.tensor.fake.dtype is not of.fake.dtype:
        return kept
    return kept.view(record(s, "clone", [kept.tensor], {}))


def contiguous(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    kept = taken_over(s, args, kwargs)
    assert isinstance(kept, TracedArray)
    if kept.reversed_view is None and kept.tensor.fake.dim() and kept.tensor.fake.is_contiguous():
        return kept
    return kept.view(record(s, "clone", [kept.tensor], {"memory_format": s.const(torch.contiguous_format)}))


IN_C: dict[str, Callable[[CaptureState, Args, Kwargs], Value]] = {
    "concatenate": concatenated,
    "where": chosen,
    "dot": product("dot"),
    "matmul": product("matmul"),
    "asarray": taken_over,
    "asanyarray": taken_over,
    "ascontiguousarray": contiguous,
    "array": copied,
}
"""Functions without a signature."""


def seen(s: CaptureState, value: Value) -> Value:
    """An array of constants whose memory was written through a tensor, as the array that it is now."""
    return value.traced(s) if isinstance(value, KnownArray) and not value.memory.is_known else value


def call_function(s: CaptureState, function: NumpyObject, args: Args, kwargs: Kwargs) -> Value:
    """A call of a function of NumPy."""
    made = of_numbers(s, function, args, kwargs)
    if made is None:
        made = of_sizes(s, function, args, kwargs)
    if made is not None:
        return made
    args = array_in_front(s, args)
    if all(map(is_plain, (*args, *kwargs.values()))):
        return computed(s, function, args, kwargs)
    args = [seen(s, arg) for arg in args]
    found = IN_C.get(function.__name__)
    return found(s, args, kwargs) if found is not None else traced(s, function, args, kwargs)


def called(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """A call of a universal function, or of a function that arrays may override."""
    function = args[0].real()
    assert callable(function)
    s.guard(args[0].source, GuardKind.IS, s.reference(function))
    return call_function(s, function, args[1:], kwargs)


def of_function(function: NumpyObject, order: int = 1) -> Handler:
    """The handler of a function, or of an operator's method with reflected operands (`order` -1)."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        return call_function(s, function, args[::order], kwargs)

    return handler


def in_place(function: NumpyObject) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        target = args[0]
        if isinstance(target, KnownArray) and target.memory.tensor is None and is_plain(args[1]):
            return computed(s, function, args, {"out": target})
        if isinstance(target, KnownArray):
            handler(s, [target.traced(s), *args[1:]], kwargs)
            return target
        if not isinstance(target, TracedArray):
            raise UnsupportedCall(function=f"numpy.{function.__name__}", why="it writes to a scalar")
        target.may_write(s)
        made = call_function(s, function, args, kwargs)
        assert isinstance(made, TracedArray)
        if made.dtype.kind != target.dtype.kind:
            raise UnsupportedCall(function=f"numpy.{function.__name__}", why="the result has another dtype")
        record(s, "copy_", [target.tensor, made.tensor], {})
        return target

    return handler


def as_tensor(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`torch.from_numpy(a)`, in the memory of the array."""
    if len(args) == 1 and isinstance(args[0], KnownArray):
        return args[0].traced(s).tensor
    if len(args) == 1 and isinstance(args[0], TracedArray) and not args[0].is_scalar:
        return args[0].tensor
    return record(s, torch.from_numpy, args, kwargs)


def of_tensor(function: NumpyObject, copies: bool) -> Handler:
    """`torch.as_tensor`, `torch.asarray` and `torch.tensor`, of an array."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        if args and isinstance(args[0], KnownArray):
            args = [args[0].traced(s), *args[1:]]
        if not args or not isinstance(args[0], TracedArray):
            return record(s, function, args, kwargs)
        if len(args) > 1 or kwargs.keys() - {"dtype", "device"}:
            raise UnsupportedCall(function=f"torch.{function.__name__}", why="it gets an array and other arguments")
        tensor: Value = args[0].tensor
        made = record(s, "to", [tensor], kwargs) if kwargs else tensor
        return record(s, "clone", [made], {}) if copies and made is tensor else made

    return handler


def same_dtype(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`a.dtype == np.float64`."""
    left, right = (arg.real() for arg in args)
    if left is MISSING or right is MISSING:
        raise UnsupportedCall(function="dtype.__eq__", why="it compares with an object made in the frame")
    for arg in args:
        if arg.is_constant:
            arg.constant(s)
        else:
            s.guard(arg.source, GuardKind.IS, s.reference(arg.real()))
    return Constant(left == right)


def tensor_as_array(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`tensor.numpy()`: an array in the memory of the tensor."""
    tensor = args[0]
    if not isinstance(tensor, Tensor):
        raise UnsupportedCall(function="Tensor.numpy", why=f"it gets a {tensor.type_name()}")
    usable = tensor.fake.device.type == "cpu" and tensor.fake.dtype in DTYPES.values()
    if tensor.fake.requires_grad or kwargs or args[1:] or not usable:
        raise UnsupportedCall(function="Tensor.numpy", why="it is not on the CPU, or requires gradients")
    array = record(s, "detach", [tensor], {})
    assert isinstance(array, Tensor)
    return TracedArray(array)


DUNDERS = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide",
    "mod": "remainder", "pow": "power", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or",
    "xor": "bitwise_xor",
}  # fmt: skip
COMPARISONS = {
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal", "eq": "equal", "ne": "not_equal",
}  # fmt: skip
UNARY = {"neg": "negative", "pos": "positive", "abs": "absolute", "invert": "invert"}


def register_operators(kind: type) -> None:
    """Operators of arrays, or of a type of scalars."""
    for name, function in DUNDERS.items():
        for method_name, order in ((f"__{name}__", 1), (f"__r{name}__", -1)):
            if hasattr(kind, method_name):
                handles(getattr(kind, method_name))(of_function(getattr(numpy, function), order))
    for name, function in (COMPARISONS | UNARY).items():
        if hasattr(kind, f"__{name}__"):
            handles(getattr(kind, f"__{name}__"))(of_function(getattr(numpy, function)))


def register() -> None:
    """The handlers, if NumPy is there."""
    if numpy is None:
        return
    array = numpy.ndarray
    handles(numpy.ufunc.__call__, type(numpy.prod).__call__)(called)
    handles(torch.from_numpy)(as_tensor)
    handles(torch.Tensor.numpy)(tensor_as_array)
    for name in ("array", "asarray", "asanyarray", "ascontiguousarray"):
        if not isinstance(getattr(numpy, name), type(numpy.prod)):
            handles(getattr(numpy, name))(of_function(getattr(numpy, name)))
    handles(numpy.dtype.__eq__)(same_dtype)
    for kind in (array, *[getattr(numpy, name) for name in DTYPES if name != "bool"], numpy.bool_):
        register_operators(kind)
    for name in DUNDERS:
        handles(getattr(array, f"__i{name}__"))(in_place(getattr(numpy, DUNDERS[name])))


register()
