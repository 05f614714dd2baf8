"""Loops over the indices that a mask has chosen, such as the experts that some token goes to.

    hit = counts.gt(0).nonzero()        for each index of `counts`: is it in `hit`?
    for index in hit:             =>    cond(chosen[0], true=@0, false=@1)
        out.index_add_(...)             cond(chosen[1], ...)

How many turns such a loop makes depends on data, but an index is in the mask, and the indices come in order. So each
index has a turn whose body is one side of a branch, with an index that is known.
"""

from __future__ import annotations

from typing import NoReturn, final

import torch

from kiln.capture.interpreter.breaks import DataDependentValue
from kiln.capture.interpreter.core import NOT_RESUMABLE, CallSite, CaptureState, Codegen, Value, will_change
from kiln.capture.interpreter.frame import SymbolicFrame
from kiln.capture.interpreter.variables.tensor import Tensor, record, replaced
from kiln.graph.ir.node import Node
from kiln.graph.trace.fake import FakeTensor

MOST_INDICES = 64
"""So many turns are taken at most."""
KEEPING = frozenset(("reshape", "squeeze", "unsqueeze", "slice", "select"))
"""Ops of views that keep the order of the elements, if none is left out."""


@final
class ChosenRows(Value):
    """An iterator over the rows of a tensor of indices in ascending order, each below `count`.

    `chosen` says of each index whether it is there; it is on the CPU, where a branch on it can be in the graph.
    """

    __slots__ = ("chosen", "count", "index", "tensor")

    def __init__(self, tensor: Tensor, chosen: Tensor, count: int) -> None:
        self.tensor, self.chosen, self.count, self.index = tensor, chosen, count, 0
        self.source = None

    def python_type(self) -> type:
        return type(iter(()))

    def turn(self, s: CaptureState) -> Value | None:
        """Whether the next index was chosen, as a tensor; None behind the last."""
        if self.index == self.count:
            return None
        will_change(s, self)
        self.index += 1
        return record(s, "select", [self.chosen, s.const(0), s.const(self.index - 1)], {})

    def row(self, s: CaptureState) -> Value:
        """The row of that index; call it in the side, where it is a constant."""
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
    s = frame.state
    if not isinstance(value, Tensor) or type(value.fake) is not FakeTensor or not value.fake.dim():
        return None
    if not isinstance(value.fake.shape[0], torch.SymInt) or replaced(s, value, "__iter__"):
        return None
    is_loop = frame.decoded.instruction(frame.ip).name == "FOR_ITER"
    if not is_loop or (frame.code, frame.ip) in s.needed or s.function_modes or s.policy.control_flow == "python":
        return None
    tensor, count = value, mask_size(s.recorder.node_of(value.fake))
    if count is None or any(size != 1 for size in value.fake.shape[1:]):
        return None
    while value.fake.dim() > 1:
        value = tensor_of(record(s, "squeeze", [value, s.const(-1)], {}))
    made = record(
        s, torch.zeros, [s.const(count)], {"dtype": s.const(torch.bool), "device": s.const(value.fake.device)}
    )
    filled = record(s, "index_fill", [made, s.const(0), value, s.const(True)], {})
    return ChosenRows(tensor, tensor_of(record(s, "cpu", [filled], {})), count)


def tensor_of(value: Value) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def mask_size(node: Node) -> int | None:
    """How many elements the mask has whose indices are in `node`; None if it holds something else."""
    while node.op.name in KEEPING and node.tensor.numel() == node.inputs[0].tensor.numel():
        node = node.inputs[0]
    if node.attrs.get("target") != "aten.nonzero.default":
        return None
    sizes = node.inputs[0].tensor.sizes
    count = sizes[0] if len(sizes) == 1 else None
    return count if isinstance(count, int) and count <= MOST_INDICES else None
