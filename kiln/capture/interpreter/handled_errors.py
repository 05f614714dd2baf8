"""Errors of kernels that the program handles, in a region that changes inputs: checks of the values in front of it.

    hits.add_(1)                       %4 = all(i >= 0 & i < n)
    try:                               assert(%4)            fails before anything is written: the frame runs in Python
        y = x[i]                =>     %5 = add(hits, 1)
    except IndexError:                 %6 = index(x, i)
        y = x[0]                       write hits <- %5

Without such writes the frame runs again in Python when a kernel has found the error (`side_exits.py`). On a GPU kernels
report errors late, so nothing is checked there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import final

from kiln.capture.interpreter.core import CaptureState
from kiln.capture.interpreter.frame import SymbolicFrame
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.graph.ir.node import Node
from kiln.graph.trace.finish import changes_inputs
from kiln.plan.errors import ASSUMED
from kiln.support.records import dataclass
from kiln.symbolic import Int

DIVISIONS = ("floor_div", "trunc_div", "remainder", "fmod")
INDEXED = ("gather", "index", "scatter", "index_put")
FAILING = (*INDEXED, *DIVISIONS, "assert")
"""Primitives whose kernels find wrong values: indices out of range, integers divided by zero, failed checks."""


def may_fail(node: Node) -> bool:
    """Whether the kernel of a node may find wrong values."""
    return node.op.name in FAILING and not (node.op.name in DIVISIONS and node.tensor.dtype.is_floating_point)


@final
@dataclass
class HandledCalls:
    """The torch calls of one capture, by their numbers in the log, whose errors the program handles."""

    numbers: list[int] = field(default_factory=list)


def note_handled(s: CaptureState, frame: SymbolicFrame | None) -> None:
    """Note the call that comes next if it stands in a `try`, or a `with` of the program, of a frame or its callers."""
    while frame is not None:
        handler = frame.decoded.handlers[frame.at]
        if handler is not None and not passes_on(frame, handler.target, handler.depth):
            s.part(HandledCalls).numbers.append(len(s.recorder.calls))
            return
        frame = frame.parent


def passes_on(frame: SymbolicFrame, target: int, depth: int) -> bool:
    """Whether the handler is torch's or leaves a context manager of torch's: they let errors pass."""
    if str(frame.globals.dictionary.get("__name__")).startswith("torch."):
        return True
    if frame.decoded.instruction(target + 1).name != "WITH_EXCEPT_START":
        return False
    leave = frame.stack[depth - 1] if depth <= len(frame.stack) else None
    name = getattr(leave.function.real(), "__module__", None) if isinstance(leave, BoundMethod) else None
    return isinstance(name, str) and name.startswith("torch.")


def check_handled(s: CaptureState) -> bool:
    """Record the checks, if there are any."""
    recorder, emit = s.recorder, s.recorder.emit
    numbers, count = s.part(HandledCalls).numbers, len(recorder.nodes)
    if not numbers or not s.policy.own_regions or not changes_inputs(recorder.inputs):
        return False
    calls = [recorder.calls[number] for number in numbers if number < len(recorder.calls)]
    for node in [node for call in calls for node in recorder.nodes[slice(*call.nodes)]]:
        for values, size in checked_values(node):
            if values.tensor.device.type != "cpu":
                continue
            if size is None:
                inside = emit.pointwise("ne", values, 0)
            else:
                end = emit.number(size, values.tensor.dtype, values.tensor.device)
                below = emit.pointwise("lt", values, end)
                inside = emit.pointwise("bitwise_and", emit.pointwise("ge", values, 0), below)
            inside = emit.node("all", inside, axes=tuple(range(inside.tensor.rank))) if inside.tensor.rank else inside
            emit.node("assert", inside, message=f"{ASSUMED}: the program handles an error of {call_name(node)}")
    return len(recorder.nodes) > count


def call_name(node: Node) -> str:
    return node.origin.call if node.origin is not None else node.op.name


def checked_values(node: Node) -> Iterator[tuple[Node, Int | None]]:
    """The indices of a node with what they must be less than, and divisors, with None."""
    if node.op.name in DIVISIONS:
        if not node.tensor.dtype.is_floating_point:
            yield node.inputs[1], None
    elif node.op.name in INDEXED:
        sizes = node.inputs[0].tensor.sizes
        axes = node.attrs["axes"] if "axes" in node.attrs else (node.attrs["axis"],)
        for number, axis in enumerate(axes if sizes else ()):
            yield node.inputs[1 + number], sizes[axis]
