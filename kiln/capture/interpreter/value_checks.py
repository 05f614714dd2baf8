"""Errors that values cause in a region that changes inputs, or in results that nothing uses: checks of their own.

    hits.add_(1)            %4 = all(i >= 0 & i < n)
    y = x[i]                assert(%4)                  fails before anything is written: the frame runs in Python
                    =>      %5 = add(hits, 1)
                            %6 = index(x, i)
                            write hits <- %5

    y = x[i]                assert(all(i >= 0 & i < n))
    y.zero_()       =>      %5 = full(0)                no kernel reads x

Else the frame runs again in Python when a kernel has found the error (`side_exits.py`). On a GPU kernels report errors
late, so nothing is checked there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kiln.capture.interpreter.core import CaptureState
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import live_nodes
from kiln.graph.prims.table import Kind
from kiln.graph.trace.fake import FakeTensor
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


def check_values(s: CaptureState, outputs: Sequence[FakeTensor]) -> bool:
    """Record the checks, if there are any."""
    emit = s.recorder.emit
    nodes = nodes_without_reports(s, outputs) if s.policy.own_regions else []
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


def nodes_without_reports(s: CaptureState, outputs: Sequence[FakeTensor]) -> list[Node]:
    """Those whose kernels may not run, or must not be the ones that find a wrong value."""
    recorder = s.recorder
    nodes = [node for node in recorder.nodes if node.origin is None or not node.origin.backward]
    if changes_inputs(recorder.inputs):
        return nodes
    if not s.policy.speculate or not any(map(may_fail, nodes)):
        return []
    live = live_nodes(recorder.nodes, [recorder.node_of(fake) for fake in outputs if not fake.is_outer])
    logged = (node for call in recorder.calls for node in recorder.nodes[slice(*call.nodes)])
    return [node for node in logged if node not in live and not (node.origin and node.origin.backward)]


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
