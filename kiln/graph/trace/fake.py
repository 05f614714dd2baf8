"""Fake tensors: metadata of a tensor on its real device, and the view where its value is.

A fake goes through torch's own Python functions, argument parser, composite ops and autograd; what they
call in the end arrives at the recording mode, which makes the results. Used outside of a recording it answers
questions about its metadata and raises at anything else.

A fake with symbolic sizes holds numbers in C++ and asks Python for every size (`dispatch_sizes_strides_policy`):
four times cheaper than symbolic sizes in C++, which then computes all layout questions in advance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch

from kiln.graph.prims.meta import is_contiguous, is_dense, is_in_format
from kiln.graph.trace.breaks import FakeEscaped
from kiln.graph.trace.storage_view import StorageView
from kiln.graph.trace.symbols import TraceSymbols

_make_wrapper: Any = torch.Tensor._make_wrapper_subclass
_strided = torch.strided


@final
class FakeTensor(torch.Tensor):
    """Made by `make_fake`. A fake of an `nn.Parameter` carries `_is_param`, which its `isinstance` asks for.

    `symbols` is None where all sizes are numbers.
    """

    storage_view: StorageView
    symbols: TraceSymbols | None
    is_input = False
    _is_param: bool

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        question = QUESTIONS.get(str(func))
        if question is None:
            raise FakeEscaped(op=str(func))
        return question(*args, **(kwargs or {}))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"FakeTensor({self.storage_view.spec})"

    def __deepcopy__(self, memo: Any) -> Any:
        raise FakeEscaped(op="copy.deepcopy")


def make_fake(view: StorageView, requires_grad: bool = False) -> FakeTensor:
    """A fake tensor at `view`, whose sizes are numbers."""
    spec = view.spec
    fake: FakeTensor = _make_wrapper(
        FakeTensor, spec.sizes, spec.strides, spec.offset, None, spec.dtype, _strided, spec.device, False, requires_grad
    )
    fake.storage_view = view
    fake.symbols = None
    return fake


def make_symbolic_fake(view: StorageView, symbols: TraceSymbols, requires_grad: bool = False) -> FakeTensor:
    """A fake tensor at `view`, some of whose sizes, strides or offset are expressions."""
    spec = view.spec
    fake: FakeTensor = _make_wrapper(
        FakeTensor, symbols.hints(spec.sizes), symbols.hints(spec.strides), symbols.hint(spec.offset), None, spec.dtype,
        _strided, spec.device, False, requires_grad, "sizes",
    )  # fmt: skip
    fake.storage_view = view
    fake.symbols = symbols
    return fake


# What C++ asks of a fake with symbolic sizes. Plain numbers (`size`, not `sym_size`) specialise.


def _symbols(fake: FakeTensor) -> TraceSymbols:
    assert fake.symbols is not None
    return fake.symbols


def _in_format(fake: FakeTensor, memory_format: torch.memory_format = torch.contiguous_format) -> bool:
    spec, symbols = fake.storage_view.spec, _symbols(fake)
    if memory_format is torch.contiguous_format:
        return is_contiguous(symbols, spec.sizes, spec.strides)
    layout: Any = "channels_last" if memory_format is torch.channels_last else "channels_last_3d"
    return is_in_format(symbols, spec.sizes, spec.strides, layout)


def _is_dense(fake: FakeTensor) -> bool:
    spec = fake.storage_view.spec
    return is_dense(_symbols(fake), spec.sizes, spec.strides)


def _plain(part: str) -> Callable[[FakeTensor], Any]:
    def question(fake: FakeTensor) -> Any:
        value = getattr(fake.storage_view.spec, part)
        specialise = _symbols(fake).specialise
        return [specialise(one) for one in value] if isinstance(value, tuple) else specialise(value)

    return question


# fmt: off
QUESTIONS: dict[str, Callable[..., Any]] = {
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
