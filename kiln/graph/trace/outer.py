"""Wrapper subclasses under autograd: fakes without memory, of tensors that have memory.

    z = torch.mul(w, 2)      w, z: outer fakes        log: one call, on wrappers       graph: mul of the inner tensors

Autograd runs on the outer fakes as eager's does on wrappers. What is inside of one only the capture knows, which
interprets the `__torch_dispatch__` of its class. In a plan an outer tensor has no data: as an input, it only receives
a gradient; as a result, its node is a number expanded to its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch

from kiln.graph.ir.node import Node
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.mode import RecordingMode
from kiln.runtime.subclasses import WrapperLayout


class OuterTensors(Protocol):
    """What the capture knows of outer fakes."""

    def backward(self) -> AbstractContextManager[None]:
        """While it is entered, operators on outer fakes are interpreted as a part of the backward."""
        ...

    def parts(self, outer: FakeTensor) -> Sequence[FakeTensor]:
        """The tensors inside, in the order of the layout."""
        ...

    def layout(self, outer: FakeTensor) -> WrapperLayout: ...

    def bare_layout(self, outer: FakeTensor) -> WrapperLayout:
        """Without what is inside."""
        ...

    def tangent(self, outer: FakeTensor, fresh: Callable[[FakeTensor], FakeTensor]) -> FakeTensor:
        """A tangent for `outer` of `fresh` tensors: a wrapper like it, or a plain tensor where such a wrapper can
        be no gradient."""
        ...


def make_outer(like: torch.Tensor, requires_grad: bool = False) -> FakeTensor:
    """An outer fake with the metadata of `like`."""
    made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
        FakeTensor, tuple(like.shape), strides=like.stride(), storage_offset=like.storage_offset(), dtype=like.dtype,
        device=like.device, requires_grad=requires_grad,
    )  # fmt: skip
    assert isinstance(made, FakeTensor)
    made.is_outer = True
    return made


def outer_node(mode: RecordingMode, outer: FakeTensor) -> Node:
    """The node of a result."""
    emit = mode.emit
    number = emit.full(0, (1,) * outer.dim(), outer.dtype, outer.device)
    return emit.node("expand", number, sizes=tuple(outer.shape)) if outer.dim() else number
