"""Fake tensors: metadata of a tensor on its real device, and the storage view with its value.

    x = make_fake(view)         torch.nn.functional.linear(x, w)      the mode receives aten.mm of the fakes

A fake goes through torch's own Python functions, argument parser, composite ops and autograd; the resulting ATen ops
arrive at the recording mode. Outside of a recording it answers queries of its metadata and raises for anything else.

A fake with symbolic sizes has hints in C++, which asks Python for every size (`dispatch_sizes_strides_policy`): four
times cheaper than symbolic sizes in C++, which computes all layout properties in advance. Where Python asks, the fake
answers itself: outside of a mode, C++ would first import `torch.distributed.tensor` (one second), to see if it is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast, final

import torch

from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.prims.meta import MemoryFormat, is_contiguous, is_dense, is_in_format
from kiln.graph.trace.breaks import FakeEscaped
from kiln.graph.trace.storage_view import StorageView
from kiln.graph.trace.symbols import TraceSymbols

make_fake_wrapper = cast(Callable[..., "FakeTensor"], torch.Tensor._make_wrapper_subclass)
_strided = torch.strided
shape_of = cast(Callable[[torch.Tensor], torch.Size], torch.Tensor.shape.__get__)  # type: ignore[attr-defined]


@final
class FakeTensor(torch.Tensor):
    """Made by `make_fake`. `_is_param` makes a fake an instance of `nn.Parameter`.

    `symbols` is None if all sizes are integers.
    """

    storage_view: StorageView
    symbols: TraceSymbols | None = None
    is_input = False
    is_outer = False
    """Whether it stands for a wrapper (`outer.py`): it has no `storage_view`."""
    is_data = False
    """Whether it is the `.data` of another, which has a version of its own."""
    _is_param: bool

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: object, types: Iterable[type], args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        query = QUERIES.get(str(func))
        if query is None:
            if any(kind is not FakeTensor for kind in types):
                return NotImplemented  # a wrapper of torch among the arguments is asked next
            raise FakeEscaped(op=str(func))
        return query(*args, **(kwargs or {}))

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        if self.symbols is None:
            return shape_of(self)
        return torch.Size(cast(list[int], self.symbols.syms(self.storage_view.spec.sizes)))

    @property
    def ndim(self) -> int:  # type: ignore[override]
        return self.dim()

    def dim(self) -> int:
        return torch.Tensor.dim(self) if self.symbols is None else self.storage_view.spec.rank

    def numel(self) -> int:
        if self.symbols is None:
            return torch.Tensor.numel(self)
        return cast(int, self.symbols.sym(self.storage_view.spec.numel()))

    def __repr__(self, **_: object) -> str:  # type: ignore[override]
        return f"FakeTensor({self.storage_view.spec})"

    def __deepcopy__(self, memo: object) -> FakeTensor:
        raise FakeEscaped(op="copy.deepcopy")


def make_fake(view: StorageView, requires_grad: bool = False) -> FakeTensor:
    """A fake tensor of `view`, whose sizes are integers."""
    spec = view.spec
    try:
        fake = make_fake_wrapper(
            FakeTensor, spec.sizes, spec.strides, spec.offset, None, spec.dtype, _strided, spec.device, False,
            requires_grad,
        )  # fmt: skip
    except TypeError as problem:
        raise UnsupportedOp(op="a view", reason=f"its sizes or strides exceed 64 bits: {spec.sizes}") from problem
    fake.storage_view = view
    fake.symbols = None
    return fake


def is_apart(fake: torch.Tensor) -> bool:
    """Whether autograd does not see its changes: it is the `.data` of another tensor, or a view of that."""
    owner = fake if fake._base is None else fake._base
    return isinstance(owner, FakeTensor) and owner.is_data


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """Below the levels of function transforms: the tensor that `torch.func` wraps."""
    while type(tensor) is torch.Tensor and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether it is a fake at a level of a function transform."""
    return type(tensor) is torch.Tensor and type(innermost(tensor)) is FakeTensor


def make_symbolic_fake(view: StorageView, symbols: TraceSymbols, requires_grad: bool = False) -> FakeTensor:
    """A fake tensor of `view`, with expressions among sizes, strides and offset."""
    spec = view.spec
    fake = make_fake_wrapper(
        FakeTensor, symbols.hints(spec.sizes), symbols.hints(spec.strides), symbols.hint(spec.offset), None, spec.dtype,
        _strided, spec.device, False, requires_grad, "sizes",
    )  # fmt: skip
    fake.storage_view = view
    fake.symbols = symbols
    return fake


# Queries of C++ for a fake with symbolic sizes. Plain integers (`size`, not `sym_size`) specialise.


def _symbols(fake: FakeTensor) -> TraceSymbols:
    assert fake.symbols is not None
    return fake.symbols


def _in_format(fake: FakeTensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    spec, symbols = fake.storage_view.spec, _symbols(fake)
    if memory_format is torch.contiguous_format:
        return is_contiguous(symbols, spec.sizes, spec.strides) or symbols.is_empty(spec.sizes)
    layout: MemoryFormat = "channels_last" if memory_format is torch.channels_last else "channels_last_3d"
    return is_in_format(symbols, spec.sizes, spec.strides, layout)


def _is_dense(fake: FakeTensor) -> bool:
    spec = fake.storage_view.spec
    return is_dense(_symbols(fake), spec.sizes, spec.strides) or _symbols(fake).is_empty(spec.sizes)


def _plain(part: str) -> Callable[[FakeTensor], object]:
    def query(fake: FakeTensor) -> object:
        value = getattr(fake.storage_view.spec, part)
        specialise = _symbols(fake).specialise
        return list(map(specialise, value)) if isinstance(value, tuple) else specialise(value)

    return query


# fmt: off
QUERIES: dict[str, Callable[..., object]] = {
    "aten.sym_size.default":                  lambda fake: _symbols(fake).syms(fake.storage_view.spec.sizes),
    "aten.sym_stride.default":                lambda fake: _symbols(fake).syms(fake.storage_view.spec.strides),
    "aten.sym_storage_offset.default":        lambda fake: _symbols(fake).sym(fake.storage_view.spec.offset),
    "aten.sym_numel.default":                 lambda fake: _symbols(fake).sym(fake.storage_view.spec.numel()),
    "aten.size.default":                      _plain("sizes"),
    "aten.stride.default":                    _plain("strides"),
    "aten.storage_offset.default":            _plain("offset"),
    "aten.numel.default":                     lambda fake: _symbols(fake).specialise(fake.storage_view.spec.numel()),
    "aten.dim.default":                       lambda fake: fake.storage_view.spec.rank,
    "aten.is_contiguous.default":             _in_format,
    "aten.is_contiguous.memory_format":       _in_format,
    "aten.sym_is_contiguous.default":         _in_format,
    "aten.is_strides_like_format.default":    _in_format,
    "aten.is_non_overlapping_and_dense.default": _is_dense,
}
# fmt: on
