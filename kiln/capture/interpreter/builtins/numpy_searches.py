"""NumPy's searches in arrays, and what is computed from neighbours, as torch calls.

np.isin(a, [1, 2])                 torch.isin(a, tensor([1, 2]))
np.digitize(a, edges)              torch.searchsorted(edges, a, right=True)
np.convolve(a, kernel, "same")     torch.conv1d(a, kernel.flip(0), padding=...)[first:last]
"""

from __future__ import annotations

import operator

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.numpy_functions import NumpyCall, dtype_of, numpy, written_as
from kiln.capture.interpreter.core import Value
from kiln.capture.interpreter.variables.array import TracedArray
from kiln.capture.interpreter.variables.known_array import KnownArray
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor


@written_as("isin")
def contained(call: NumpyCall) -> Value:
    call.refuse("kind")
    one, others = [call.tensor(name) for name in ("element", "test_elements")]
    dtype = torch.promote_types(one.fake.dtype, others.fake.dtype)
    pair = [call.call("to", tensor, dtype) for tensor in (one, others)]
    return call.call(torch.isin, *pair, invert=bool(call.given("invert", False)))


def require_known_edges(call: NumpyCall, name: str) -> None:
    """Edges that the program wrote, so that it is known that they are in order and no NaN is among them."""
    value = call.arguments[name]
    if isinstance(value, KnownArray) and not value.memory.is_known:
        raise UnsupportedCall(function=f"numpy.{call.name}", why="its edges are not known")
    edges = numpy.asarray(call.given(name))
    if edges.ndim != 1 or not edges.size or numpy.isnan(edges).any() or (numpy.diff(edges) <= 0).any():
        raise UnsupportedCall(function=f"numpy.{call.name}", why="its edges do not increase")


@written_as("digitize")
def binned(call: NumpyCall) -> Value:
    require_known_edges(call, "bins")
    dtype = numpy.result_type(dtype_of(call.s, call.arguments["x"]), numpy.asarray(call.given("bins")))
    right = not bool(call.given("right", False))
    return call.call(torch.searchsorted, call.tensor("bins", dtype), call.tensor("x", dtype), right=right)


@written_as("diff")
def differences(call: NumpyCall) -> Value:
    if call.given("n", 1) == 0:
        raise UnsupportedCall(function="numpy.diff", why="with n=0 it returns its argument")
    axis, tensor = call.given("axis", -1), call.tensor("a")
    parts = [at_edge(call, name, tensor, axis) for name in ("prepend", "append")]
    joined: Value = tensor
    if any(part is not None for part in parts):
        found: list[Value] = [part for part in (parts[0], tensor, parts[1]) if part is not None]
        joined = call.call(torch.cat, call.s.model.list_of(found), dim=axis)
    return call.call(torch.diff, joined, n=call.given("n", 1), dim=axis)


def at_edge(call: NumpyCall, name: str, tensor: Tensor, axis: int) -> Tensor | None:
    """What lies in front of an array, or behind it, along an axis: a number stands for a row of it."""
    value = call.arguments.get(name)
    if value is None or (value.is_constant and value.real() is not None and is_no_value(value)):
        return None
    given = call.tensor(name)
    if given.fake.dtype is not tensor.fake.dtype:
        if not is_whole(call, name, tensor):
            raise UnsupportedCall(function="numpy.diff", why="what it adds at an edge has another dtype")
        given = call.tensor_made("to", given, tensor.fake.dtype)
    if given.fake.dim():
        return given
    shape = list(tensor.fake.shape)
    shape[axis] = 1
    return call.tensor_made("expand", given, tuple(shape))


def is_no_value(value: Value) -> bool:
    """Whether it is what NumPy has for an argument that is not given."""
    return type(value.real()).__name__ == "_NoValueType"


def is_whole(call: NumpyCall, name: str, tensor: Tensor) -> bool:
    """Whether a number is one of the array's dtype in NumPy, too."""
    number = call.arguments[name].real()
    return type(number) is int or (type(number) is float and tensor.fake.is_floating_point())


@written_as("cross")
def cross_product(call: NumpyCall) -> Value:
    call.refuse("axis")
    pair = [call.computed(name) for name in ("a", "b")]
    plain = all(tensor.fake.shape[-1] == 3 and tensor.fake.dim() == pair[0].fake.dim() for tensor in pair)
    for name in ("axisa", "axisb", "axisc"):
        plain = plain and call.given(name, -1) == -1
    if not plain:
        raise UnsupportedCall(
            function="numpy.cross", why="its vectors are not of three, lie along other axes, or are repeated"
        )
    return call.call(torch.linalg.cross, *pair)


@written_as("convolve")
def convolved(call: NumpyCall) -> Value:
    """The longer array is convolved with the shorter one."""
    long, short = [call.computed(name) for name in ("a", "v")]
    mode = call.given("mode", "full")
    if call.expected.dtype.kind != "f" or mode not in ("full", "same", "valid"):
        raise UnsupportedCall(function="numpy.convolve", why="it gets integers")
    sizes = [int(tensor.fake.shape[0]) for tensor in (long, short)]
    if sizes[0] < sizes[1]:
        long, short, sizes = short, long, sizes[::-1]
    rows = [call.call("reshape", tensor, (1, 1, -1)) for tensor in (long, call.call("flip", short, 0))]
    padding = 0 if mode == "valid" else sizes[1] - 1
    made = call.call("reshape", call.call(torch.conv1d, *rows, padding=padding), (-1,))
    if mode != "same":
        return made
    first = (sizes[1] - 1) // 2
    return call.call(operator.getitem, made, slice(first, first + sizes[0]))


@written_as("gradient")
def gradient(call: NumpyCall) -> Value:
    call.refuse("axis")
    tensor = call.computed("f")
    if call.arguments.get("varargs") or tensor.fake.dim() != 1:
        raise UnsupportedCall(function="numpy.gradient", why="it gets spacings, or more than one dimension")
    made = call.call(torch.gradient, tensor, edge_order=call.given("edge_order", 1))
    return call.call(operator.getitem, made, 0)


@written_as("nonzero")
def places(call: NumpyCall) -> Value:
    """An array of places for each axis, views of one."""
    tensor = call.tensor("a")
    rank = tensor.fake.dim()
    if not rank:
        raise UnsupportedCall(function="numpy.nonzero", why="it gets a scalar")
    rows = call.tensor_made("contiguous", call.call(torch.nonzero, tensor))
    return Tuple([as_array(call.call("select", rows, 1, axis)) for axis in range(rank)])


@written_as("flatnonzero")
def flat_places(call: NumpyCall) -> Value:
    found = call.call(torch.nonzero, call.call("reshape", call.tensor("a"), (-1,)))
    return as_array(call.call("select", found, 1, 0))


@written_as("argwhere")
def rows_of_places(call: NumpyCall) -> Value:
    return as_array(call.call(torch.nonzero, call.tensor("a")))


def as_array(tensor: Value) -> TracedArray:
    """A result whose size data decide."""
    assert isinstance(tensor, Tensor)
    return TracedArray(tensor)
