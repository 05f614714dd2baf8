"""Conditions that depend only on integers, booleans and CPU scalars of the caller, which a capture may speculate on.

    if mask.all(): ...          graph(%0: i64[1, 128] "mask"):
                          =>        %1: b8[1, 128] = ne(%0, 0)
                                    %2: b8[] = all(%1)
                                    return %2

Such a graph is small and pure, has no gradient and reads only the caller's tensors, so it can be evaluated on the real
inputs while tracing, and again before each call. Floating-point values differ in every call and select no variant; but
a float in a CPU tensor of rank 0 is a counter or a setting, such as the step count of an optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import symbols_of
from kiln.graph.trace.constant_value import PURE_KINDS
from kiln.graph.trace.inputs import InputRecord
from kiln.graph.trace.recorder import Recorder
from kiln.symbolic import Symbol
from kiln.tensor.spec import TensorSpec

LARGEST = 1 << 22
"""Elements of the largest tensor in the computation of a condition."""


def speculative_condition(recorder: Recorder, fake: torch.Tensor) -> Node | None:
    """The node of `fake`, if it is a single truth value that a capture may speculate on."""
    return _value(recorder, fake, 1, scalars=True)


def integer_value(recorder: Recorder, fake: torch.Tensor, largest: int) -> Node | None:
    """The node of `fake`, if it has at most `largest` values, which depend on integer and boolean inputs only."""
    return _value(recorder, fake, largest, scalars=False)


def _value(recorder: Recorder, fake: torch.Tensor, largest: int, scalars: bool) -> Node | None:
    root = recorder.node_of(fake)
    size = root.tensor.numel()
    if not isinstance(size, int) or not 0 < size <= largest:
        return None
    needed = _dependencies([root])
    if not all(_is_admitted(node, scalars) for node in needed):
        return None
    symbols = symbols_of(needed)  # a size that depends on data has no number yet
    return root if not symbols or symbols <= _bound_symbols(recorder.inputs) else None


def condition_graph(recorder: Recorder, roots: Sequence[Node]) -> tuple[Graph, list[InputRecord]]:
    """The graph of `roots`, and its inputs."""
    needed = _dependencies(roots)
    kept = [node for node in recorder.nodes if node in needed]
    records = [record for record in recorder.inputs if record.node in needed]
    missing = symbols_of(needed) - _bound_symbols(records)
    for record in recorder.inputs:
        if record.node not in needed and missing & _bound_symbols([record]):
            records.append(record)
            missing -= _bound_symbols([record])
    inputs = tuple([record.node for record in records])
    return Graph(inputs, kept, tuple([Output(root) for root in roots]), name="condition"), records


def evaluate_condition(recorder: Recorder, root: Node) -> bool:
    """The truth value of `root` for the inputs of this capture."""
    return bool(evaluate(recorder, root))


def evaluate(recorder: Recorder, root: Node) -> torch.Tensor:
    """The value of `root` for the inputs of this capture."""
    graph, records = condition_graph(recorder, [root])
    with torch.no_grad():
        run = interpret(graph, [record.real for record in records], constants=recorder.constants)
    value = run.outputs[0]
    assert isinstance(value, torch.Tensor)
    return value


def equality(recorder: Recorder, root: Node, value: torch.Tensor) -> Node:
    """A node: whether all elements of `root` equal those of `value`."""
    emit = recorder.emit
    same = emit.pointwise("eq", root, recorder.node_of(recorder.add_constant(value.to(root.tensor.device).clone())))
    return emit.node("all", same, axes=tuple(range(root.tensor.rank))) if root.tensor.rank else same


def _dependencies(roots: Sequence[Node]) -> dict[Node, None]:
    """The roots and all that they are computed from."""
    found: dict[Node, None] = {}
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending += node.inputs
    return found


def _is_admitted(node: Node, scalars: bool) -> bool:
    spec = node.spec
    if not isinstance(spec, TensorSpec) or node.op.name == "empty":
        return False
    size = spec.numel()
    if isinstance(size, int) and size > LARGEST:
        return False
    if node.op.name == "input":
        scalar = scalars and not spec.rank and spec.device.type == "cpu"
        return not (spec.dtype.is_complex or (spec.dtype.is_floating_point and not scalar))
    return node.op.kind in PURE_KINDS or node.op.name == "constant_tensor"


def _bound_symbols(records: Iterable[InputRecord]) -> frozenset[Symbol]:
    """The symbols that sizes and strides of these inputs determine."""
    specs = [record.spec for record in records if isinstance(record.spec, TensorSpec)]
    return frozenset(size for spec in specs for size in (*spec.sizes, *spec.strides) if isinstance(size, Symbol))
