"""Ops that write to memory which they also read.

x[1:].add_(x[:-1])                   RuntimeError, as in eager
torch.sum(x, 0, out=x[0])            left to eager: it adds up what it has just written
x[x[:2]] = 1                         left to eager, which refuses it
x[:, 0].add_(x[:, 1])                different elements: nothing to refuse
x.add_(x)                            the same elements in a pointwise op: nothing to refuse
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast

import torch
from torch._ops import OpOverload

from kiln.graph.ops.breaks import UnsupportedMutation
from kiln.graph.trace.mode import RecordingMode
from kiln.graph.trace.storage_view import StorageView, extent, overlaps_partially, same_elements, shares_elements
from kiln.symbolic import Expr, Int
from kiln.symbolic.expr import polynomial_quotient
from kiln.symbolic.relation import rel_le
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
        left, right = for_these_sizes(mode, target.spec, other.spec)
        if pointwise and overlaps_partially(left, right):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single"
                " memory location. Please clone() the tensor before performing the operation."
            )
        same = not pointwise and left.numel() != 0 and same_elements(left, right)
        if same or shares_elements(left, right):
            raise UnsupportedMutation(op=str(op), reason="it writes to a part of the memory that it reads")


def for_these_sizes(mode: RecordingMode, left: TensorSpec, right: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    """Two views of a storage with the sizes of this call; guards hold what these say of their distance."""
    concrete = with_hints(mode, left), with_hints(mode, right)
    numbers = [*left.sizes, *left.strides, left.offset, *right.sizes, *right.strides, right.offset]
    if same_elements(left, right) or not any(isinstance(number, Expr) for number in numbers):
        return concrete
    if 0 in (*left.sizes, *right.sizes):  # without elements, whatever the other sizes are
        return concrete
    env, where = mode.symbols.env, mode.symbols.location
    (start, end), (other_start, other_end) = [cast("tuple[int, int]", extent(spec)) for spec in concrete]
    if start < end <= other_start:
        env.decide(rel_le(end_of(left), right.offset), where)
    elif other_start < other_end <= start:
        env.decide(rel_le(end_of(right), left.offset), where)
    elif shares_elements(*concrete) or not are_interleaved(mode, left, right):
        for number in numbers:
            env.specialise(number, where)
    return concrete


def are_interleaved(mode: RecordingMode, left: TensorSpec, right: TensorSpec) -> bool:
    """Whether guards hold that the views are parts of the same periods: columns of a matrix, or `x[::2]` and `x[1::2]`.

    A period is one of their strides; of the others, the larger ones are multiples of it.
    """
    hint, decide, where = mode.symbols.hint, mode.symbols.env.decide, mode.symbols.location
    first, second = sorted((left, right), key=lambda spec: hint(spec.offset))
    if 0 in (*mode.symbols.hints(left.sizes), *mode.symbols.hints(right.sizes)):
        return False
    for period in sorted({*left.strides, *right.strides}, key=hint):
        if hint(period) < 2:
            continue
        distance = second.offset - first.offset
        count = polynomial_quotient(distance, period)
        begin = second.offset - (count + hint(distance) // hint(period) - hint(count)) * period
        in_order = (
            rel_le(first.offset + reach(first, period) + 1, begin),
            rel_le(begin + reach(second, period) + 1, first.offset + period),
        )
        if all([decide(relation, where) for relation in in_order]):
            return True
    return False


def reach(spec: TensorSpec, period: Int) -> Int:
    """From the first to the last element within a period."""
    pairs = [(size, stride) for size, stride in zip(spec.sizes, spec.strides, strict=True) if size != 1]
    return sum([(size - 1) * stride for size, stride in pairs if stride % period != 0], 0)


def end_of(spec: TensorSpec) -> Int:
    """The element behind the last; not of an empty tensor."""
    return sum([(size - 1) * stride for size, stride in zip(spec.sizes, spec.strides, strict=True)], spec.offset) + 1


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
