"""NumPy arrays that the frame makes of constants: real ones, on which NumPy works while tracing.

    out = np.zeros((2, 3)); out[:, 1] = 5        done at once: nobody else has the array
    even = out[::2]                              a view of it, and still one where both leave the frame
    t = torch.from_numpy(out); t.add_(1)         from the write on its numbers are those of a tensor
    out[0] = a                                   likewise, `a` being an array of unknown numbers

Arrays that are views of each other have one `ArrayMemory`. A tensor that shares it is made once, of all its elements.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import field
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import AS_INDEX, NOT_RESUMABLE, Args, CallSite, CaptureState, Codegen, Kwargs, Value
from kiln.capture.interpreter.operations import ERRORS
from kiln.capture.interpreter.variables.array import DTYPES, ArrayValue, NumpyObject, TracedArray
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.mapping import fresh
from kiln.capture.interpreter.variables.sequence import List, Sequence, Slice, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.runtime.guards.guard import GuardKind
from kiln.support.optional import load
from kiln.support.records import dataclass

numpy: NumpyObject = load("numpy")
METADATA = frozenset(("shape", "ndim", "size", "dtype", "itemsize", "nbytes", "strides"))
VIEWS = frozenset(("T", "mT", "real", "imag"))
NOT_CALLED = frozenset(("dump", "dumps", "getfield", "newbyteorder", "resize", "setfield", "setflags", "tofile"))
"""Methods that do more than compute."""
LARGEST = 1 << 16
"""Elements of an array that is computed while tracing."""


@final
class ArrayMemory(Value):
    """What views of each other share: `root` owns it; `tensor` has its elements in order, once a tensor shares it."""

    __slots__ = ("root", "tensor", "version")

    def __init__(self, root: NumpyObject) -> None:
        self.root = root
        self.tensor: Tensor | None = None
        self.version = 0

    @property
    def is_known(self) -> bool:
        """Whether nothing was written through a tensor."""
        return self.tensor is None or self.tensor.fake.storage_view.storage.version == self.version

    def shared(self, s: CaptureState) -> Tensor:
        """The tensor of all elements."""
        if self.tensor is None:
            flat = self.root.ravel(order="K")
            dtype = DTYPES.get(flat.dtype.name)
            if dtype is None or not flat.dtype.isnative:
                raise UnsupportedCall(function="numpy", why=f"it gets the dtype {flat.dtype}")
            made = record(s, torch.tensor, [s.const(flat.tolist())], {"dtype": s.const(dtype)})
            assert isinstance(made, Tensor)
            self.tensor, self.version = made, made.fake.storage_view.storage.version
        return self.tensor

    def emit(self, g: Codegen) -> None:
        if self.tensor is None:
            g.make(self, numpy.array, self.root.ravel(order="K"))
            return
        g.emit(self.tensor)
        g.body.attr("numpy").call(0)
        g.remember(self)


@final
@dataclass
class KnownArrays:
    """Those of one capture, by the `id` of the array and of the root of its memory."""

    values: dict[int, KnownArray] = field(default_factory=dict)
    memories: dict[int, ArrayMemory] = field(default_factory=dict)


@final
@dataclass(frozen=True, slots=True, eq=False)
class KnownArray(ArrayValue):
    """An array that the program made of constants."""

    array: NumpyObject
    memory: ArrayMemory

    def python_type(self) -> type:
        return type(self.array)

    def example_of_call(self) -> NumpyObject:
        return self.array

    def constant(self, s: CaptureState) -> NumpyObject:
        if not self.memory.is_known:
            return self.traced(s).constant(s)
        return self.array

    def traced(self, s: CaptureState) -> TracedArray:
        """The same memory as a tensor."""
        flat = self.memory.shared(s)
        array, item = self.array, self.array.itemsize
        if array.flags.c_contiguous and array.size == self.memory.root.size:
            made = record(s, "view", [flat, s.const(array.shape)], {})
        elif any(stride < 0 or stride % item for stride in array.strides):
            raise self.unsupported("a view as a tensor", "its strides are negative")
        else:
            strides = tuple([stride // item for stride in array.strides])
            place = array.shape, strides, self._offset() // item
            made = record(s, torch.as_strided, [flat, *map(s.const, place)], {})
        assert isinstance(made, Tensor)
        return TracedArray(made)

    def _offset(self) -> int:
        """Of its first element in the memory, in bytes."""
        return int(self.array.ctypes.data - self.memory.root.ctypes.data)

    def torch_arg(self, s: CaptureState) -> object:
        return self.traced(s).torch_arg(s)

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name in METADATA:
            return s.wrap(getattr(self.array, name), None)
        if name in VIEWS:
            return computed(s, getattr, [self, s.const(name)], {})
        if not self.memory.is_known:
            return self.traced(s).get_attr(s, name, site)
        if name in NOT_CALLED or not callable(getattr(self.array, name, None)):
            raise UnsupportedCall(function=f"ndarray.{name}", why="it is not computed on constants")
        return KnownMethod(self, name)

    def get_item(self, s: CaptureState, key: Value, site: CallSite = NOT_RESUMABLE) -> Value:
        if self.memory.is_known and is_plain(key):
            return computed(s, operator.getitem, [self, key], {})
        return self.traced(s).get_item(s, key, site)

    def set_item(self, s: CaptureState, key: Value, value: Value, site: CallSite = NOT_RESUMABLE) -> None:
        if self.memory.tensor is None and is_plain(key) and is_plain(value):
            computed(s, operator.setitem, [self, key, value], {})
        else:
            self.traced(s).set_item(s, key, value)

    def length(self, s: CaptureState) -> int:
        if not self.array.ndim:
            raise s.error(TypeError, "len() of unsized object")
        return len(self.array)

    def truth(self, s: CaptureState) -> bool:
        return bool(computed(s, bool, [self], {}).constant(s)) if self.memory.is_known else self.traced(s).truth(s)

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        if not self.array.ndim:
            raise s.error(TypeError, "iteration over a 0-d array")
        return List([self.get_item(s, s.const(number)) for number in range(len(self.array))]).iterate(s)

    def emit(self, g: Codegen) -> None:
        """The root of a memory that has no other arrays is a copy; others are views of what all share."""
        array, memory = self.array, self.memory
        others = [value for value in g.state.part(KnownArrays).values.values() if value.memory is memory]
        if memory.tensor is None and array is memory.root and len(others) == 1 and array.flags.owndata:
            g.make(self, numpy.array, array)
        else:
            place = array.dtype, array.shape, array.strides, self._offset()
            g.make(self, view_of_memory, memory, array.flags.writeable, *place)


def index_of_array(s: CaptureState, array: Value) -> Value:
    assert isinstance(array, KnownArray)
    return array.traced(s).tensor


AS_INDEX[KnownArray] = index_of_array


def view_of_memory(flat: NumpyObject, writeable: bool, *place: object) -> NumpyObject:
    """`place`: dtype, shape, strides and offset in bytes."""
    dtype, shape, strides, offset = place
    made = numpy.ndarray(shape, dtype, flat, offset, strides)
    made.flags.writeable = writeable
    return made


@final
class KnownMethod(NamedMethod):
    """A bound method of an array of constants."""

    __slots__ = ()
    owner: KnownArray

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        if not self.owner.memory.is_known or not all(map(is_plain, (*args, *kwargs.values()))):
            return self.owner.traced(s).get_attr(s, self.name).call(s, args, kwargs)
        return computed(s, getattr(type(self.owner.array), self.name), [self.owner, *args], kwargs)


def known_array(s: CaptureState, array: NumpyObject) -> KnownArray:
    """The one value of an array that NumPy has made."""
    found = s.part(KnownArrays)
    value = found.values.get(id(array))
    if value is None:
        root = root_of(array)
        memory = found.memories.get(id(root))
        if memory is None:
            memory = found.memories[id(root)] = ArrayMemory(root)
        value = found.values[id(array)] = KnownArray(array, memory)
    return value


def root_of(array: NumpyObject) -> NumpyObject:
    """The array that has all of the memory. Views made with other strides have an object in between."""
    while array.base is not None:
        base = array.base if isinstance(array.base, numpy.ndarray) else getattr(array.base, "base", None)
        if not isinstance(base, numpy.ndarray):
            break
        array = base
    return array


def is_plain(value: Value) -> bool:
    """Whether NumPy can take it while tracing."""
    if isinstance(value, Sequence):
        return all([is_plain(item) for item in value._items or ()])
    if isinstance(value, KnownArray):
        return value.memory.is_known
    return not isinstance(value, TracedArray | Tensor)


def plain(s: CaptureState, value: Value) -> object:
    """A constant as NumPy takes it."""
    if isinstance(value, Sequence):
        items = [plain(s, item) for item in value.items(s)]
        return tuple(items) if isinstance(value, Tuple) else items
    if isinstance(value, KnownArray | Symbolic | Slice):
        return value.constant(s)
    if isinstance(value.real(), numpy.dtype):
        if value.source is not None:
            s.guard(value.source, GuardKind.IS, s.reference(value.real()))
        return value.real()
    if not value.is_constant and not isinstance(value.real(), type):
        raise UnsupportedCall(function="numpy", why=f"it gets a {value.type_name()}, which is not a constant")
    return value.constant(s)


def computed(s: CaptureState, function: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """The result of `function` on constants. It may write to arrays that no tensor shares."""
    name = getattr(function, "__name__", "numpy")
    plain_args, named = [plain(s, arg) for arg in args], {key: plain(s, arg) for key, arg in kwargs.items()}
    s.counters.consumed += 1
    try:
        result = function(*plain_args, **named)
    except ERRORS as error:
        raise s.error(type(error), *error.args) from None
    if (result is None or "out" in kwargs) and has_shared([*args, *kwargs.values()]):
        raise UnsupportedCall(function=name, why="it may write to an array in the memory of a tensor")
    if not isinstance(result, type) and getattr(result, "size", 0) > LARGEST:
        raise UnsupportedCall(function=name, why="its result is large")
    return lifted(s, result)


def has_shared(values: list[Value]) -> bool:
    return any(isinstance(value, KnownArray) and value.memory.tensor is not None for value in values)


def lifted(s: CaptureState, result: object) -> Value:
    """The value of what NumPy has returned."""
    if isinstance(result, numpy.ndarray):
        return known_array(s, result)
    if type(result) is tuple:
        return Tuple([lifted(s, item) for item in result])
    return List([lifted(s, item) for item in result]) if type(result) is list else fresh(s, result)
