"""Sparse matrices that the frame makes: their indices and values, which are tensors of the graph.

    a = torch.sparse_coo_tensor(places, weights, (n, n))       MadeMatrix(places, weights, (n, n))
    torch.sparse.mm(a, x), a @ x, a.t() @ x                     made_product(places, weights, n, n, ..., x)
    a.to_dense()                                                zeros(n * n).index_add(0, ..., weights)
    dense.to_sparse()                                           places and values of what is not zero

The gradients of weights and `x` are those of eager. Other calls break the graph, in front of which the matrix is
made for it; so it is where it leaves the frame.
"""

from __future__ import annotations

from functools import partial
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedAttribute, UnsupportedCall
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Codegen,
    Kwargs,
    Value,
    handles,
)
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.sparse_tensor import KNOWN, PRODUCTS, REAL, WHY, holds, require_product
from kiln.capture.interpreter.variables.subclass import INTERCEPTORS, call
from kiln.capture.interpreter.variables.tensor import FinalCheck, Overrides, RegionInputs, Tensor, here, record
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import Target, target_name
from kiln.graph.trace.sparse_products import dense_matrix, elements, made_product
from kiln.runtime.sparse_tensors import made_matrix, summed

OTHER_OPTIONS = {"dtype": None, "device": None, "requires_grad": False, "pin_memory": False, "check_invariants": None}
"""Arguments of `torch.sparse_coo_tensor` that must be left out, or be these."""


@final
class MadeMatrix(Value):
    """A COO matrix; `of`: the one of which it is the transpose, or whose equal elements are to be added (`sums`)."""

    __slots__ = ("coalesced", "indices", "of", "sizes", "sums", "values")
    cls = torch.Tensor

    def __init__(self, indices: Tensor, values: Tensor, sizes: tuple[Value, Value], coalesced: bool) -> None:
        self.indices, self.values, self.sizes, self.coalesced = indices, values, sizes, coalesced
        self.of: MadeMatrix | None = None
        self.sums = False

    def python_type(self) -> type:
        return torch.Tensor

    def torch_arg(self, s: CaptureState) -> object:
        raise UnsupportedCall(function="a torch function", why=WHY)

    def truth(self, s: CaptureState) -> bool:
        raise UnsupportedCall(function="bool", why=WHY)

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        if name == "shape":
            return Tuple([*self.sizes], torch.Size)
        if name == "T":
            return self.transposed()
        if name in KNOWN:
            known = {"layout": torch.sparse_coo, "ndim": 2, "is_sparse": True, "is_sparse_csr": False}
            return s.wrap(known[name] if name in known else getattr(self.values.fake, name), None)
        if callable(getattr(torch.Tensor, name, None)):
            return MatrixMethod(self, name)
        raise UnsupportedAttribute(name=name, type="sparse tensor", why=WHY)

    def derived(self, sizes: tuple[Value, Value], sums: bool) -> MadeMatrix:
        made = MadeMatrix(self.indices, self.values, sizes, self.coalesced)
        made.of, made.sums = self, sums
        return made

    def transposed(self) -> MadeMatrix:
        if self.of is not None and not self.sums:
            return self.of
        return self.derived((self.sizes[1], self.sizes[0]), sums=False)

    def is_transposed(self) -> bool:
        """Whether rows and columns of what was made at first are exchanged in it."""
        return self.of is not None and self.of.is_transposed() is self.sums

    def base_sizes(self) -> tuple[Value, Value]:
        return self.sizes[::-1] if self.is_transposed() else self.sizes  # type: ignore[return-value]

    def emit(self, g: Codegen) -> None:
        if self.of is not None:
            g.make(self, summed if self.sums else torch.Tensor.t, self.of)
        else:
            g.make(self, made_matrix, self.indices, self.values, *self.sizes, g.state.const(self.coalesced))


@final
class MatrixMethod(NamedMethod):
    """A method of such a matrix."""

    __slots__ = ()
    owner: MadeMatrix

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        x, name = self.owner, self.name
        if name == "size" and len(args) <= 1 and not kwargs:
            sizes = x.get_attr(s, "shape")
            return sizes.get_item(s, args[0]) if args else sizes
        if not args and not kwargs:
            if name == "dim":
                return s.const(2)
            if name == "t":
                return x.transposed()
            if name == "is_coalesced" and x.of is None:
                return s.const(x.coalesced)
            if name == "coalesce":
                return x if x.sums or (x.coalesced and x.of is None) else x.derived(x.sizes, sums=True)
            if name == "to_dense":
                return record(s, dense_matrix, [x.indices, x.values, *x.base_sizes(), s.const(x.is_transposed())], {})
            if x.of is None and name in (("indices", "values") if x.coalesced else ("_indices", "_values")):
                return record(s, "detach" if name[0] == "_" else "alias", [getattr(x, name.strip("_"))], {})
        return record(s, name, [x, *args], kwargs)


def matrix_call(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value | None:
    """What a torch call on a matrix that was made gives; None if there is none among the arguments."""
    if not any([holds(MadeMatrix, value) for value in (*args, *kwargs.values())]):
        return None
    [a, x] = args if len(args) == 2 and not kwargs else [None, None]
    if not isinstance(a, MadeMatrix) or not isinstance(x, Tensor) or target not in PRODUCTS:
        raise UnsupportedCall(function=target_name(target), why=WHY)
    require_product(target, a.values.fake, a.sizes[1].torch_arg(s), x.fake)
    flags = s.const(a.coalesced), s.const(a.is_transposed())
    return record(s, made_product, [a.indices, a.values, *a.base_sizes(), *flags, x], {})


@handles(torch.sparse_coo_tensor)
def sparse_coo_tensor(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    given = dict(kwargs)
    coalesced = given.pop("is_coalesced", s.const(None))
    named = {**dict(zip(("indices", "values", "size"), args, strict=False)), **given}
    indices, values, size = [named.pop(name, None) for name in ("indices", "values", "size")]
    plain = all(s.is_none(value, OTHER_OPTIONS.get(name, ...)) or s.is_none(value) for name, value in named.items())
    sizes = size.items(s) if isinstance(size, List | Tuple) else []
    if not (plain and coalesced.is_constant and is_dense(indices) and is_dense(values) and len(sizes) == 2):
        return record(s, torch.sparse_coo_tensor, args, kwargs)
    assert isinstance(indices, Tensor) and isinstance(values, Tensor)
    places, weights = indices.fake, values.fake
    fits = places.dtype is torch.int64 and places.dim() == 2 and weights.dim() == 1 and weights.dtype in REAL
    if not fits or places.shape[0] != 2 or places.shape[1] != weights.shape[0] or places.device != weights.device:
        return record(s, torch.sparse_coo_tensor, args, kwargs)
    if weights.requires_grad and not torch.is_grad_enabled():
        values = as_tensor(record(s, "detach", [values], {}))
    elif weights.requires_grad:
        ask = partial(is_changed, weights, weights.storage_view.storage.version)
        s.part(RegionInputs).final_checks.append(FinalCheck(ask, "torch.sparse_coo_tensor", here(s)))
    s.part(Overrides).call = call
    return MadeMatrix(indices, values, (sizes[0], sizes[1]), coalesced.constant(s) is True)


@handles(torch.Tensor.to_sparse)
def to_sparse(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    x = args[0]
    if not is_dense(x) or len(args) > 1 or kwargs or x.fake.dim() != 2 or x.fake.dtype not in REAL:  # type: ignore[attr-defined]
        return record(s, "to_sparse", args, kwargs)
    parts = record(s, elements, [x], {})
    indices, values = [as_tensor(part) for part in parts.items(s)]  # type: ignore[attr-defined]
    rows, columns = [x.get_attr(s, "shape").get_item(s, s.const(dim)) for dim in (0, 1)]
    s.part(Overrides).call = call
    return MadeMatrix(indices, values, (rows, columns), True)


def is_changed(weights: FakeTensor, version: int, outputs: list[FakeTensor]) -> str:
    """The matrix shares their memory, but not what autograd knows of later changes."""
    if weights.storage_view.storage.version == version:
        return ""
    return "its values have gradients and are changed in place later"


def is_dense(value: Value | None) -> bool:
    return isinstance(value, Tensor) and type(value.fake) is FakeTensor and value.fake.layout is torch.strided


def as_tensor(value: Value) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def register_made_matrices() -> None:
    if matrix_call not in INTERCEPTORS:
        INTERCEPTORS.append(matrix_call)
