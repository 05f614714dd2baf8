"""Fake tensors: metadata of a tensor on its real device, and the place where its value is.

A fake goes through torch's own Python functions, argument parser, composite ops and autograd; what they
call in the end arrives at the recording mode, which makes the results. Used outside of a recording it raises.
"""

from __future__ import annotations

from typing import Any, final

import torch

from kiln.graph.trace.breaks import FakeEscaped
from kiln.graph.trace.place import Place

_make_wrapper: Any = torch.Tensor._make_wrapper_subclass


@final
class FakeTensor(torch.Tensor):
    """Made by `make_fake`. A fake of an `nn.Parameter` carries `_is_param`, which its `isinstance` asks for."""

    place: Place
    _is_param: bool

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise FakeEscaped(op=str(func))

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"FakeTensor({self.place.spec})"

    def __deepcopy__(self, memo: Any) -> Any:
        raise FakeEscaped(op="copy.deepcopy")


def make_fake(place: Place, requires_grad: bool = False) -> FakeTensor:
    """A fake tensor at `place`."""
    spec = place.spec
    fake: FakeTensor = _make_wrapper(
        FakeTensor,
        spec.sizes,
        spec.strides,
        spec.offset,
        None,
        spec.dtype,
        torch.strided,
        spec.device,
        False,
        requires_grad,
    )
    fake.place = place
    return fake
