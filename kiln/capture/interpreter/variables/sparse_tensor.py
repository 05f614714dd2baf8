"""Sparse tensors from outside: matrices by which dense tensors are multiplied in the graph; all else breaks the graph.

    torch.sparse.mm(adjacency, x)      product(<parts of adjacency>, x), with the gradient of `x`
    adjacency @ x, adjacency.t() @ x   the same
    adjacency.to_dense()               a graph break: eager calls it

The parts (indices and values) are inputs of the region, found by functions of `runtime/sparse_tensors.py`; the kind is
guarded, sizes and the number of elements become symbols when they change.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedAttribute, UnsupportedCall
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Codegen, Kwargs, Value
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.subclass import INTERCEPTORS, call
from kiln.capture.interpreter.variables.tensor import OF_LAYOUT, Overrides, Tensor, record
from kiln.graph.trace.autocast import is_any_autocast_enabled
from kiln.graph.trace.breaks import UnsupportedInput
from kiln.graph.trace.log import Target, target_name
from kiln.graph.trace.sparse_products import product
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AnswerSource, Source
from kiln.runtime.sparse_tensors import PARTS, column_indices, columns, indices, kind, row_starts, rows, values

PRODUCTS: frozenset[Target] = frozenset(
    (torch.sparse.mm, torch.mm, torch.spmm, torch.matmul, torch.mv, operator.matmul, "mm", "matmul", "mv", "__matmul__")
)
KNOWN = frozenset(("dtype", "device", "layout", "ndim", "requires_grad", "is_sparse", "is_sparse_csr", "is_cuda"))
READERS = {
    "_indices": indices,
    "_values": values,
    "crow_indices": row_starts,
    "col_indices": column_indices,
}
"""Methods that return parts."""
REAL = (torch.float32, torch.float64)
WHY = "it gets a sparse tensor"


@final
class SparseTensor(Value):
    """A sparse tensor from outside, or the transpose of one (`of`)."""

    __slots__ = ("of", "original", "source")

    def __init__(self, original: torch.Tensor, source: Source | None, of: SparseTensor | None = None) -> None:
        self.original = original
        self.source = source
        self.of = of

    def python_type(self) -> type:
        return type(self.original)

    def torch_arg(self, s: CaptureState) -> object:
        raise UnsupportedCall(function="a torch function", why=WHY)

    def truth(self, s: CaptureState) -> bool:
        raise UnsupportedCall(function="bool", why=WHY)

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name == "shape":
            return self.sizes(s)
        if name in KNOWN:
            return s.wrap(getattr(self.original, name), None)
        if name == "T":
            return transposed(self)
        if callable(getattr(torch.Tensor, name, None)):
            return SparseMethod(self, name)
        raise UnsupportedAttribute(name=name, type="sparse tensor", why=WHY)

    def sizes(self, s: CaptureState) -> Value:
        return Tuple([size_of(s, self, dim) for dim in range(self.original.dim())], torch.Size)

    def is_matrix(self) -> bool:
        """Whether products with it are in the graph."""
        x = self.original
        return x.layout in PARTS and x.dim() == x.sparse_dim() == 2 and x.dtype in REAL and not x.requires_grad

    def emit(self, g: Codegen) -> None:
        g.make(self, torch.Tensor.t, self.of)


def size_of(s: CaptureState, x: SparseTensor, dim: int) -> Value:
    if x.original.dim() != 2:
        raise UnsupportedAttribute(name="shape", type="sparse tensor", why=WHY)
    base, place = (x, dim) if x.of is None else (x.of, 1 - dim)
    assert base.source is not None
    return s.wrap(base.original.size(place), AnswerSource(base.source, s.reference((rows, columns)[place])))


def transposed(x: SparseTensor) -> SparseTensor:
    if x.original.dim() != 2:
        raise UnsupportedCall(function="Tensor.t", why=WHY)
    return x.of if x.of is not None else SparseTensor(x.original, None, x)


@final
class SparseMethod(NamedMethod):
    """A method of a sparse tensor."""

    __slots__ = ()
    owner: SparseTensor

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        x, name = self.owner, self.name
        if name == "size" and len(args) <= 1 and not kwargs:
            return x.sizes(s) if not args else x.sizes(s).get_item(s, args[0])
        if name == "dim" and not args:
            return s.const(x.original.dim())
        if name == "t" and not args:
            return transposed(x)
        if name == "coalesce" and x.of is None and x.original.layout is torch.sparse_coo and x.original.is_coalesced():
            return x
        reader = READERS.get(name)
        if name in ("indices", "values") and (x.original.layout is not torch.sparse_coo or x.original.is_coalesced()):
            reader = indices if name == "indices" else values
        if reader is not None and not args and x.of is None and reader in PARTS.get(x.original.layout, ()):
            return part(s, x, reader)
        return record(s, name, [x, *args], kwargs)


def part(s: CaptureState, x: SparseTensor, read: Callable[[torch.Tensor], torch.Tensor]) -> Value:
    """One of the dense tensors that it consists of."""
    assert x.source is not None
    return s.wrap(read(x.original), AnswerSource(x.source, s.reference(read)))


def multiplied(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value | None:
    """What a torch call on a sparse tensor gives; None if there is none among the arguments."""
    if not any([holds(SparseTensor, value) for value in (*args, *kwargs.values())]):
        return None
    [x, y] = args if len(args) == 2 and not kwargs else [None, None]
    known = target in PRODUCTS and isinstance(x, SparseTensor) and x.is_matrix() and isinstance(y, Tensor)
    if not known:
        raise UnsupportedCall(function=target_name(target), why=WHY)
    assert isinstance(x, SparseTensor) and isinstance(y, Tensor)
    require_product(target, x.original, size_of(s, x, 1).torch_arg(s), y.fake)
    base = x if x.of is None else x.of
    return record(s, product, [matrix_of(s, base), s.const(x.of is not None), y], {})


def holds(kind: type[Value], value: Value) -> bool:
    """Whether it is a value of this kind, or a list or tuple that has one."""
    if isinstance(value, List | Tuple) and value._items is not None:
        return any([holds(kind, item) for item in value._items])
    return isinstance(value, kind)


def require_product(target: Target, like: torch.Tensor, inner: object, y: torch.Tensor) -> None:
    """Break the graph unless eager has the product of a sparse matrix with `inner` columns, of the dtype and device
    of `like`, and the dense `y`."""
    vectors = y.dim() == 1 and target not in (torch.sparse.mm, torch.mm, torch.spmm, "mm")
    matrices = y.dim() == 2 and target not in (torch.mv, "mv")
    same = y.dtype is like.dtype and y.device == like.device and y.layout is torch.strided
    if is_any_autocast_enabled() or not (vectors or matrices) or not same or y.shape[0] != inner:
        raise UnsupportedCall(function=target_name(target), why="eager may refuse the product of a sparse tensor")


def matrix_of(s: CaptureState, x: SparseTensor) -> Value:
    """The first argument of `product`."""
    real = x.original
    parts = [part(s, x, read) for read in PARTS[real.layout]]
    layout = "coo" if real.layout is torch.sparse_coo else "csr"
    coalesced = layout == "coo" and real.is_coalesced()
    return Tuple([Tuple(parts), size_of(s, x, 0), size_of(s, x, 1), s.const(layout), s.const(coalesced)])


def wrap_sparse(s: CaptureState, real: torch.Tensor, source: Source | None) -> Value:
    if source is None or type(real) is not torch.Tensor:
        raise UnsupportedInput(name="a tensor", reason=f"its layout is {real.layout}")
    s.guard(AnswerSource(source, s.reference(kind)), GuardKind.EQUALS, kind(real))
    s.part(Overrides).call = call
    return SparseTensor(real, source)


SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def register_sparse() -> None:
    if multiplied not in INTERCEPTORS:
        INTERCEPTORS.append(multiplied)
        OF_LAYOUT.update(dict.fromkeys(SPARSE, wrap_sparse))
