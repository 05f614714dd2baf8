"""Ops that write to memory which they also read.

x[1:].add_(x[:-1])                   RuntimeError, as in eager
torch.sum(x, 0, out=x[0])            left to eager: it adds up what it has just written
x[x[:2]] = 1                         left to eager, which refuses it
x[:, 0].add_(x[:, 1])                different elements: nothing to refuse
x.add_(x)                            the same elements in a pointwise op: nothing to refuse
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch._ops import OpOverload

from kiln.graph.ops.breaks import UnsupportedMutation
from kiln.graph.trace.mode import RecordingMode
from kiln.graph.trace.storage_view import StorageView, overlaps_partially, same_elements, shares_elements
from kiln.tensor.spec import TensorSpec

ViewsByStorage = Mapping[int, Sequence[StorageView]]


def by_storage(mode: RecordingMode, args: Iterable[object]) -> ViewsByStorage:
    """The views that the tensors among `args` are, by the identity of their storage."""
    found: dict[int, list[StorageView]] = {}
    for arg in tensors_in(args):
        view = mode.view_of(arg)
        found.setdefault(id(view.storage), []).append(view)
    return found


def refuse_shared_memory(
    mode: RecordingMode, op: OpOverload, written: object, read: ViewsByStorage, *, pointwise: bool | None = None
) -> None:
    """Pointwise ops refuse, as in eager, to write to a part of the memory of an argument; all of it may be written.

    Other ops refuse it in eager, or compute with what they have just written, in an order of their own: they are left
    to eager. `pointwise`: whether this is such an op; by default torch's tag tells.
    """
    if pointwise is None:
        pointwise = torch.Tag.pointwise in op.tags
    target = mode.view_of(written)
    for other in read.get(id(target.storage), ()):
        if pointwise and overlaps_partially(target.spec, other.spec):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single"
                " memory location. Please clone() the tensor before performing the operation."
            )
        same = not pointwise and target.spec.numel() != 0 and same_elements(target.spec, other.spec)
        if same or shares_elements(with_hints(mode, target.spec), with_hints(mode, other.spec)):
            raise UnsupportedMutation(op=str(op), reason="it writes to a part of the memory that it reads")


def with_hints(mode: RecordingMode, spec: TensorSpec) -> TensorSpec:
    """`spec` with the sizes and strides of this call."""
    hints = mode.symbols.hints
    return spec.with_view(hints(spec.sizes), hints(spec.strides), mode.symbols.hint(spec.offset))


def tensors_in(args: Iterable[object]) -> Iterator[torch.Tensor]:
    for arg in args:
        if isinstance(arg, torch.Tensor):
            yield arg
        elif isinstance(arg, list | tuple):
            yield from tensors_in(arg)
