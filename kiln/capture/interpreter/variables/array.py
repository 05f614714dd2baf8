"""NumPy arrays and scalars whose numbers are known at run time only: tensors that the program sees as arrays.

    def f(a, w):              a: float64[3] is an input of the region, a tensor in the array's memory
        b = np.sin(a) * 2     recorded as torch.sin and mul
        return b              the result of the region as an array: out.numpy()

A scalar (`b.sum()`) is a tensor of rank 0 that leaves the region as a scalar of NumPy, or a number of the caller
(`np.cos(step)`) that becomes a tensor only where it is used as one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import field
from typing import Any, TypeAlias, final

import torch

from kiln.capture.interpreter.breaks import DataDependentValue, UnsupportedCall
from kiln.capture.interpreter.core import (
    AS_INDEX,
    MISSING,
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Value,
    wraps,
)
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.input_names import InputNames
from kiln.capture.interpreter.variables.object import wrap_object
from kiln.capture.interpreter.variables.sequence import List, Sequence, Slice, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import RegionInput, RegionInputs, Tensor, record
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AnswerSource, ArraySource, Source
from kiln.support.optional import load
from kiln.support.records import dataclass
from kiln.symbolic.env import ShapeEnv
from kiln.symbolic.expr import Expr, Symbol, evaluate
from kiln.symbolic.relation import rel_lt

NumpyObject: TypeAlias = Any
"""An object of NumPy, which may be absent: its types cannot be named."""
numpy: NumpyObject = load("numpy")
DTYPES = {
    name: getattr(torch, name)
    for name in ("float64", "float32", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128")
}
"""By the name of NumPy's dtype."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}
METADATA = frozenset(("ndim", "itemsize", "nbytes"))
METADATA_OF_TENSOR = frozenset(("shape", "size"))
"""Metadata with sizes, which may be symbols."""
ARRAY_METHODS: dict[str, Callable[[CaptureState, TracedArray, Args, Kwargs], Value]] = {}


class ArrayValue(Value):
    """An array of NumPy. `example_of_call`: one with the dtype and the shape of this call."""

    __slots__ = ()

    def example_of_call(self) -> NumpyObject:
        raise NotImplementedError


@final
class TracedArray(ArrayValue):
    """An array, or with `is_scalar` a scalar of NumPy; its numbers are those of `tensor`."""

    __slots__ = ("_tensor", "is_scalar", "number", "original", "reversed_view", "source")

    takes_symbols = True

    def __init__(
        self,
        tensor: Tensor | Callable[[], Tensor],
        is_scalar: bool = False,
        source: Source | None = None,
        original: object = MISSING,
        number: Symbolic | None = None,
    ) -> None:
        self._tensor = tensor
        self.number = number
        self.is_scalar = is_scalar
        self.source = source
        self.original = original
        self.reversed_view: ReversedView | None = None

    @property
    def tensor(self) -> Tensor:
        view = self.reversed_view
        if view is not None and view.version != version_of(view.base):
            raise UnsupportedCall(function="ndarray.__getitem__", why="the array was changed since it was reversed")
        return self._tensor if isinstance(self._tensor, Tensor) else self._tensor()

    @property
    def dtype(self) -> NumpyObject:
        """NumPy's."""
        return numpy.dtype(NAMES[self.tensor.fake.dtype] if self.number is None else self.number.python_type())

    def example(self) -> NumpyObject:
        """An array of this dtype and shape, which is guarded; its elements share memory."""
        return self.of_shape(tuple([int(size) for size in self.tensor.fake.shape]))

    def example_of_call(self) -> NumpyObject:
        """As `example`, without a guard: other calls may have other sizes."""
        return self.of_shape(shape_in_call(self.tensor) if self.number is None else ())

    def of_shape(self, shape: tuple[int, ...]) -> NumpyObject:
        one = numpy.ones((), self.dtype)
        return one[()] if self.is_scalar else numpy.broadcast_to(one, shape)

    def python_type(self) -> type:
        made: type = self.dtype.type if self.is_scalar else numpy.ndarray
        return made

    def real(self) -> object:
        return self.original

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name in METADATA_OF_TENSOR:
            return self.metadata(s, name)
        if name in METADATA:
            return s.wrap(getattr(self.example(), name), None)
        if name == "dtype":
            return s.wrap(self.dtype, None)
        if name == "T":
            order = tuple(reversed(range(self.tensor.fake.dim())))
            return self.view(record(s, "permute", [self.tensor, s.const(order)], {}))
        if name in ARRAY_METHODS:
            return TracedMethod(self, name)
        raise UnsupportedCall(function=f"ndarray.{name}", why="it is not written as torch calls")

    def metadata(self, s: CaptureState, name: str) -> Value:
        if name == "shape":
            shape = self.tensor.get_attr(s, "shape")
            assert isinstance(shape, Tuple)
            return Tuple(shape.items(s))
        return self.tensor.get_attr(s, "numel").call(s, [], {})

    def view(self, tensor: Value) -> TracedArray:
        assert isinstance(tensor, Tensor)
        return TracedArray(tensor)

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        index = plain_index(s, key)
        if is_reversed(index):
            return reversed_view(s, self, index)
        try:
            found = self.example_of_call()[index]
        except (IndexError, TypeError, ValueError) as error:
            if has_open_size(self):
                raise self.unsupported("indexing", "its sizes come from data") from None
            raise s.error(type(error), *error.args) from None
        made = self.tensor.get_item(s, tensor_index(s, key), site)
        assert isinstance(made, Tensor)
        array = TracedArray(made, isinstance(found, numpy.generic))
        fits = made.fake.dim() == found.ndim if has_open_size(array) else shape_in_call(made) == found.shape
        if not fits:
            raise self.unsupported("indexing", f"torch gives the shape {tuple(made.fake.shape)}")
        return array

    def set_item(self, s: CaptureState, key: Value, value: Value, site: CallSite = NOT_RESUMABLE) -> None:
        self.may_write(s)
        if is_reversed(plain_index(s, key)):
            raise self.unsupported("item assignment", "a slice has a negative step")
        new = value.tensor if isinstance(value, TracedArray) else value
        if not isinstance(new, Tensor) and not (new.is_constant and isinstance(new.real(), int | float)):
            raise self.unsupported("item assignment", f"it is set to a {value.type_name()}")
        self.tensor.set_item(s, tensor_index(s, key), new, site)

    def may_write(self, s: CaptureState) -> None:
        """Break for an array that may share memory with others unseen, and for a scalar."""
        if self.reversed_view is not None:
            raise self.unsupported("item assignment", "a slice with a negative step is a copy in torch")
        root = self.tensor.fake.storage_view.storage.root
        if self.is_scalar or root is None:
            raise self.unsupported("item assignment", "it is a scalar")
        if root.node.op.name == "input":
            s.part(OuterArrays).write(s, self)

    def length(self, s: CaptureState) -> int:
        if self.is_scalar or self.tensor.fake.dim() == 0:
            raise s.error(TypeError, "len() of unsized object")
        return int(self.tensor.fake.shape[0])

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return List([self.get_item(s, s.const(number)) for number in range(self.length(s))]).iterate(s)

    def truth(self, s: CaptureState) -> bool:
        if self.number is not None:
            return self.number.truth(s)
        if self.tensor.fake.numel() != 1:
            raise self.unsupported("a truth test", "an array of several elements has none")
        return self.tensor.truth(s)

    def constant(self, s: CaptureState) -> object:
        raise DataDependentValue(operation="an array")

    def torch_arg(self, s: CaptureState) -> object:
        """Torch takes a scalar for a number, that of a truth for a float."""
        if self.is_scalar and self.tensor.fake.dtype is torch.bool:
            return record(s, "double", [self.tensor], {}).get_attr(s, "item").call(s, [], {}).torch_arg(s)
        if self.is_scalar:
            return index_of_array(s, self).torch_arg(s)
        raise UnsupportedCall(function="torch", why="it gets an array of NumPy")

    def emit(self, g: Codegen) -> None:
        if self.reversed_view is not None:
            g.make(self, operator.getitem, self.reversed_view.base, self.reversed_view.index)
            return
        if self.number is not None:
            g.make(self, self.dtype.type, self.number)
            return
        g.emit(self.tensor)
        g.body.attr("numpy").call(0)
        if self.is_scalar:
            g.body.const(()).op("BINARY_SUBSCR")
        g.remember(self)


def index_of_array(s: CaptureState, array: Value) -> Value:
    """A scalar as a number, another array as a tensor."""
    assert isinstance(array, TracedArray)
    if array.number is not None:
        return array.number
    return array.tensor.get_attr(s, "item").call(s, [], {}) if array.is_scalar else array.tensor


AS_INDEX[TracedArray] = index_of_array


@final
class TracedMethod(NamedMethod):
    """A bound method of an array."""

    __slots__ = ()
    owner: TracedArray

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return ARRAY_METHODS[self.name](s, self.owner, args, kwargs)


@final
@dataclass
class OuterArrays:
    """Arrays from outside. Once one of them is written, each must have memory of its own, and be another object."""

    found: list[TracedArray] = field(default_factory=list)
    written: bool = False

    def add(self, s: CaptureState, array: TracedArray) -> None:
        self.found.append(array)
        if self.written:
            require_own_memory(s, array)

    def write(self, s: CaptureState, view: TracedArray) -> None:
        storage = view.tensor.fake.storage_view.storage
        if not any(array.tensor.fake.storage_view.storage is storage for array in self.found):
            raise view.unsupported("item assignment", "its memory is that of a tensor from outside")
        if not self.written:
            self.written = True
            for array in self.found:
                require_own_memory(s, array)


def owns_memory(array: NumpyObject) -> bool:
    return isinstance(array, numpy.generic) or (type(array) is numpy.ndarray and array.base is None)


def require_own_memory(s: CaptureState, array: TracedArray) -> None:
    if array.source is None or not owns_memory(array.original):
        raise array.unsupported("item assignment", "an array from outside may share memory with others")
    s.guard(AnswerSource(array.source, s.reference(owns_memory)), GuardKind.EQUALS, True)


def shape_in_call(tensor: Tensor) -> tuple[int, ...]:
    """The sizes in the call that is captured."""
    return tuple([size_in_call(size) if isinstance(size, torch.SymInt) else size for size in tensor.fake.shape])


MADE_UP = 5
"""What stands for a number of elements that data decide, where it is not known to be at least another."""


def size_in_call(size: torch.SymInt) -> int:
    node = size.node
    if node.has_hint():
        return int(node.hint)
    env, value = node.env, node.env.simplify(node.value)
    symbols = value.free_symbols() if isinstance(value, Expr) else ()
    return evaluate(value, {symbol: typical(env, symbol) for symbol in symbols})


def typical(env: ShapeEnv, symbol: Symbol) -> int:
    """Of `np.bincount(a, minlength=n)`, n."""
    return env.hint(symbol) if env.has_hint(symbol) else int(env.range_of(symbol).lo or MADE_UP)


def has_open_size(value: Value) -> bool:
    """Whether it is an array, or a list of arrays, with a size that data decide."""
    if isinstance(value, Sequence):
        return any([has_open_size(item) for item in value._items or ()])
    if not isinstance(value, TracedArray) or value.number is not None:
        return False
    return any([isinstance(size, torch.SymInt) and not size.node.has_hint() for size in value.tensor.fake.shape])


def plain_index(s: CaptureState, key: Value) -> NumpyObject:
    """An index, with examples for arrays of integers and masks."""
    if isinstance(key, Tuple):
        index = tuple([plain_index(s, part) for part in key.items(s)])
        refuse_apart(index)
        return index
    if isinstance(key, ArrayValue):
        example = key.example_of_call()
        if example.dtype.kind not in "iub" or (not example.ndim and example.dtype.kind == "b"):
            raise UnsupportedCall(function="ndarray.__getitem__", why=f"it gets a scalar, or a {example.dtype}")
        return example if example.dtype.kind == "b" else example * 0
    if isinstance(key, Slice):
        return slice(*[plain_index(s, part) for part in key.parts])
    if isinstance(key, Symbolic) and key.node.node.has_hint():
        return key.node.node.hint
    if not key.is_constant:
        raise UnsupportedCall(function="ndarray.__getitem__", why=f"the index is a {key.type_name()}")
    return key.constant(s)


def refuse_apart(index: tuple[NumpyObject, ...]) -> None:
    """Break for numbers and arrays with something in between: NumPy puts what they select first, torch selects by the
    numbers first."""
    places = [place for place, part in enumerate(index) if isinstance(part, numpy.ndarray | numpy.integer | int)]
    arrays = [place for place in places if isinstance(index[place], numpy.ndarray)]
    if arrays and len(arrays) < len(places) and places[-1] - places[0] >= len(places):
        raise UnsupportedCall(function="ndarray.__getitem__", why="numbers and arrays of indices are mixed")


@final
@dataclass(frozen=True)
class ReversedView:
    """What an array with a negative step is a view of: torch has copies only, right as long as nobody writes."""

    base: TracedArray
    index: NumpyObject
    version: int


def version_of(array: TracedArray) -> int:
    return array.tensor.fake.storage_view.storage.version


def is_reversed(index: NumpyObject) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any([isinstance(part, slice) and part.step is not None and part.step < 0 for part in parts])


def reversed_view(s: CaptureState, array: TracedArray, index: NumpyObject) -> TracedArray:
    """`a[::-1]`: the same elements in order, flipped."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all([isinstance(part, slice) for part in parts]):
        raise array.unsupported("indexing", "a slice has a negative step")
    ordered, turned = list[slice](), list[int]()
    for dim, (part, size) in enumerate(zip(parts, array.tensor.fake.shape, strict=False)):
        if part == slice(None, None, -1):  # of any size
            turned.append(dim)
            ordered.append(slice(None))
            continue
        places = range(int(size))[part]
        if places.step < 0:
            turned.append(dim)
            places = places[::-1]
        ordered.append(slice(places.start, places.stop, places.step))
    made = record(s, operator.getitem, [array.tensor, s.const(tuple(ordered))], {})
    found = array.view(record(s, "flip", [made, s.const(tuple(turned))], {}))
    found.reversed_view = ReversedView(array, index, version_of(array))
    return found


def tensor_index(s: CaptureState, key: Value) -> Value:
    """An index as torch takes it."""
    if isinstance(key, Tuple):
        return Tuple([tensor_index(s, part) for part in key.items(s)])
    return AS_INDEX[type(key)](s, key) if isinstance(key, ArrayValue) else key


def is_usable(real: NumpyObject) -> bool:
    """Whether a tensor can share its memory."""
    return real.dtype.name in DTYPES and real.dtype.isnative and real.__array__().flags.writeable


def wrap_array(s: CaptureState, real: NumpyObject, source: Source | None) -> Value:
    """An array from outside is an input of the region, whose shape is guarded."""
    if source is None or not is_usable(real) or any(stride < 0 or stride % real.itemsize for stride in real.strides):
        return wrap_object(s, real, source)
    return s.identities.same_object(real, source, lambda: array_input(s, real, source))


def array_input(s: CaptureState, real: NumpyObject, source: Source) -> TracedArray:
    """An array or a scalar from outside."""
    inputs, path = s.part(RegionInputs), ArraySource(source)
    tensor = torch.from_numpy(real.__array__())
    dims = s.policy.dims(tensor, path) if tensor.numel() else None
    fake = s.recorder.add_tensor(tensor, s.part(InputNames).name(path), path, dims)
    for size in fake.shape:
        if isinstance(size, torch.SymInt):
            s.recorder.env.assume(rel_lt(0, size.node.value))  # NumPy's errors for empty arrays are others
    value = inputs.by_fake[id(fake)] = Tensor(fake, path, tensor)
    inputs.tensors.append(RegionInput(value.fake, path, tensor))
    made = TracedArray(value, isinstance(real, numpy.generic), source, real)
    s.guard_type(made)
    s.part(OuterArrays).add(s, made)
    return made


def of_result(s: CaptureState, tensor: Value, expected: NumpyObject) -> Value:
    """A result of torch calls as the array or scalar that NumPy returns for such arguments."""
    assert isinstance(tensor, Tensor)
    if shape_in_call(tensor) != expected.shape:
        raise UnsupportedCall(function="numpy", why=f"torch gives the shape {tuple(tensor.fake.shape)}")
    return TracedArray(converted(s, tensor, expected.dtype), isinstance(expected, numpy.generic))


def scalar_of(s: CaptureState, number: Symbolic) -> TracedArray:
    """A number of the caller as a scalar of NumPy, an int64 or a float64."""

    def as_tensor() -> Tensor:
        dtype = torch.int64 if number.python_type() is int else torch.float64
        made = record(s, torch.tensor, [number], {"dtype": s.const(dtype)})
        assert isinstance(made, Tensor)
        return made

    return TracedArray(as_tensor, is_scalar=True, number=number)


def as_python_number(value: Value) -> Value:
    """A scalar of NumPy that is a number of the caller, as that; else the value."""
    return value.number if isinstance(value, TracedArray) and value.number is not None else value


def converted(s: CaptureState, tensor: Tensor, dtype: NumpyObject) -> Tensor:
    """`tensor` in one of NumPy's dtypes."""
    wanted = DTYPES.get(dtype.name)
    if wanted is None:
        raise UnsupportedCall(function="numpy", why=f"its result has the dtype {dtype}")
    if tensor.fake.dtype is wanted:
        return tensor
    made = record(s, "to", [tensor, s.const(wanted)], {})
    assert isinstance(made, Tensor)
    return made


def number_of(value: Value) -> NumpyObject:
    """The number of a constant, None for anything else."""
    real = value.real() if isinstance(value, Constant) else None
    return real if type(real) in (int, float, complex) else None


if numpy is not None:
    wraps(numpy.ndarray)(wrap_array)
