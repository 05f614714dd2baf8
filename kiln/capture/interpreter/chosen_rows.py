"""Loops over the indices that a mask has chosen, such as the experts that some token goes to.

    hit = counts.gt(0).nonzero()        for each index of `counts`: is it in `hit`?
    for index in hit:             =>    cond(chosen[0], true=@0, false=@1)
        out.index_add_(...)             cond(chosen[1], ...)

How many turns such a loop makes depends on data, but an index is in the mask, and the indices come in order. So each
index has a turn whose body is one side of a branch, with an index that is known. The different values of indices
(`experts.unique()`) are likewise, and so are the numbers that `tolist()` makes of either.
"""

from __future__ import annotations

from typing import NoReturn, cast, final

import torch

from kiln.capture.interpreter.breaks import DataDependentValue
from kiln.capture.interpreter.core import NOT_RESUMABLE, CallSite, CaptureState, Codegen, Value, will_change
from kiln.capture.interpreter.frame import SymbolicFrame
from kiln.capture.interpreter.variables.deferred_text import Deferred
from kiln.capture.interpreter.variables.tensor import Tensor, record, replaced
from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Kind
from kiln.graph.trace.fake import FakeTensor

MOST_INDICES = 64
"""So many turns are taken at most."""
NamedArguments = tuple[tuple[str, object], ...]
KEEPING = frozenset(("view", "reshape", "squeeze", "unsqueeze", "slice", "select"))
"""Ops of views that keep the order of the elements, if none is left out."""


@final
class ChosenRows(Value):
    """An iterator over the rows of a tensor of indices in ascending order, each below `count`.

    `chosen` says of each index whether it is there; it is on the CPU, where a branch on it can be in the graph. With
    `as_numbers` the program sees the list of the tensor.
    """

    __slots__ = ("as_numbers", "chosen", "count", "index", "tensor")
    cls = type(iter(()))

    def __init__(self, tensor: Tensor, chosen: Tensor, count: int, as_numbers: bool) -> None:
        self.tensor, self.chosen, self.count, self.as_numbers, self.index = tensor, chosen, count, as_numbers, 0

    def turn(self, s: CaptureState) -> Value | None:
        """Whether the next index was chosen, as a tensor; None behind the last."""
        if self.index == self.count:
            return None
        will_change(s, self)
        self.index += 1
        return record(s, "select", [self.chosen, s.const(0), s.const(self.index - 1)], {})

    def row(self, s: CaptureState) -> Value:
        """The row of that index; call it in the side, where it is a constant."""
        if self.as_numbers:
            return s.const(self.index - 1)
        options = {"device": s.const(self.tensor.fake.device)}
        row = record(s, torch.tensor, [s.const(self.index - 1)], options)
        shape = [s.const(1) for _ in range(self.tensor.fake.dim() - 1)]
        return record(s, "reshape", [row, *shape], {}) if shape else row

    def next(self, s: CaptureState) -> NoReturn:
        raise DataDependentValue(operation="iter")

    def iterate(self, s: CaptureState, site: CallSite = NOT_RESUMABLE) -> Value:
        return self

    def emit(self, g: Codegen) -> NoReturn:
        raise self.unsupported("rebuild", "a loop over it is in the graph as a whole")


def chosen_rows(frame: SymbolicFrame, value: Value) -> ChosenRows | None:
    """An iterator for the loop that follows; None if `value` is no such tensor, or if the loop is not in the graph."""
    s, as_numbers = frame.state, False
    if isinstance(value, Deferred) and value.make is torch.Tensor.tolist and value.is_unchanged(s):
        value, as_numbers = value.args[0], True
    if not isinstance(value, Tensor) or type(value.fake) is not FakeTensor or not value.fake.dim():
        return None
    if not isinstance(value.fake.shape[0], torch.SymInt) or replaced(s, value, "__iter__"):
        return None
    is_loop = frame.decoded.instruction(frame.ip).name == "FOR_ITER"
    if not is_loop or (frame.code, frame.ip) in s.needed or s.function_modes or s.policy.control_flow == "python":
        return None
    tensor, count = value, number_of_indices(s, s.recorder.node_of(value.fake))
    if count is None or any(size != 1 for size in value.fake.shape[1:]) or (as_numbers and value.fake.dim() > 1):
        return None
    while value.fake.dim() > 1:
        value = tensor_of(record(s, "squeeze", [value, s.const(-1)], {}))
    made = record(
        s, torch.zeros, [s.const(count)], {"dtype": s.const(torch.bool), "device": s.const(value.fake.device)}
    )
    filled = record(s, "index_fill", [made, s.const(0), value, s.const(True)], {})
    return ChosenRows(tensor, tensor_of(record(s, "cpu", [filled], {})), count, as_numbers)


def tensor_of(value: Value) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def number_of_indices(s: CaptureState, node: Node) -> int | None:
    """A number above all that `node` holds, if these are different indices in ascending order; None otherwise."""
    while node.op.name in KEEPING and node.tensor.numel() == node.inputs[0].tensor.numel():
        node = node.inputs[0]
    sizes: tuple[object, ...] = ()
    if node.attrs.get("target") == "aten.nonzero.default":
        sizes = node.inputs[0].tensor.sizes
    elif node in s.recorder.distinct:
        sizes = (indexed_size(s.recorder.distinct[node]),)
    count = sizes[0] if len(sizes) == 1 else None
    return count if isinstance(count, int) and count <= MOST_INDICES else None


def indexed_size(node: Node) -> object:
    """The size of the dimension into which an operator has made these indices."""
    while node.op.kind is Kind.VIEW:
        node = node.inputs[0]
    if node.op.name in ("argmax", "argmin"):
        (axis,) = cast(tuple[int, ...], node.attrs["axes"])
        return node.inputs[0].tensor.sizes[axis]
    if node.op.name != "item" or node.attrs["index"] != 1 or node.inputs[0].attrs.get("target") != "aten.topk.default":
        return None
    call = node.inputs[0]
    args, kwargs = cast(tuple[object, ...], call.attrs["args"]), dict(cast(NamedArguments, call.attrs["kwargs"]))
    dim = args[2] if len(args) > 2 else kwargs.get("dim", -1)
    sizes = call.inputs[0].tensor.sizes
    return sizes[dim] if isinstance(dim, int) and sizes else None
