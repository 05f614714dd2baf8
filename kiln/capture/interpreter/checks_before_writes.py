"""Errors that values cause in a region that changes inputs: checks in front of the writes.

    hits.add_(1)            %4 = all(i >= 0 & i < n)
    y = x[i]                assert(%4)                  fails before anything is written: the frame runs in Python
                    =>      %5 = add(hits, 1)
                            %6 = index(x, i)
                            write hits <- %5

Without writes the frame runs again in Python when a kernel has found the error (`side_exits.py`). On a GPU kernels
report errors late, so nothing is checked there.
"""

from __future__ import annotations

from collections.abc import Iterator

from kiln.capture.interpreter.core import CaptureState
from kiln.graph.ir.node import Node, base_of
from kiln.graph.prims.table import Kind
from kiln.graph.trace.finish import changes_inputs
from kiln.plan.errors import ASSUMED
from kiln.symbolic import Int

DIVISIONS = ("floor_div", "trunc_div", "remainder", "fmod")
INDEXED = ("gather", "index", "scatter", "index_put")
FAILING = (*INDEXED, *DIVISIONS, "assert")
"""Primitives whose kernels find wrong values: indices out of range, integers divided by zero, failed checks."""


def may_fail(node: Node) -> bool:
    """Whether the kernel of a node may find wrong values."""
    return node.op.name in FAILING and not (node.op.name in DIVISIONS and node.tensor.dtype.is_floating_point)


def check_before_writes(s: CaptureState) -> bool:
    """Record the checks, if there are any."""
    recorder, emit = s.recorder, s.recorder.emit
    if not s.policy.own_regions or not changes_inputs(recorder.inputs):
        return False
    nodes = [node for node in recorder.nodes if node.origin is None or not node.origin.backward]
    checked = {
        (values, size): node
        for node in reversed(nodes)
        for values, size in checked_values(node)
        if values.tensor.device.type == "cpu" and not is_valid(values)
    }
    for (values, size), node in reversed(checked.items()):
        if size is None:
            inside = emit.pointwise("ne", values, 0)
        else:
            end = emit.number(size, values.tensor.dtype, values.tensor.device)
            below = emit.pointwise("lt", values, end)
            inside = emit.pointwise("bitwise_and", emit.pointwise("ge", values, 0), below)
        inside = emit.node("all", inside, axes=tuple(range(inside.tensor.rank))) if inside.tensor.rank else inside
        emit.node("assert", inside, message=f"{ASSUMED}: {call_name(node)} raises no error of values")
    return bool(checked)


def is_valid(values: Node) -> bool:
    """Whether indices or divisors are numbers of the program, or places that an operator such as `topk` has found."""
    found = base_of(values)
    return found.op.kind is Kind.LIBRARY or found.op.name in ("argmax", "argmin", "iota", "constant")


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
