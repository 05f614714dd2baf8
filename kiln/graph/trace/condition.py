"""Conditions that depend only on integers, booleans and CPU scalars of the caller, which a capture may speculate on.

    if mask.all(): ...          graph(%0: i64[1, 128] "mask"):
                          =>        %1: b8[1, 128] = ne(%0, 0)
                                    %2: b8[] = all(%1)
                                    return %2

Such a graph is small and pure, has no gradient and reads only the caller's tensors, so it can be evaluated on the real
inputs while tracing, and again before each call. Sizes in it may depend on data, which its host reads find.
Floating-point values differ in every call and select no variant; but a float in a CPU tensor of rank 0 is a counter or
a setting, such as the step count of an optimizer, as are those of a small buffer of a module; and floats that are only
compared for equality mark what is padding:

    real = (pixels == 0).sum((1, 2, 3)) != pixels[0].numel()
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import symbols_of
from kiln.graph.prims.table import Kind
from kiln.graph.trace.constant_value import PURE_KINDS, is_pure_call
from kiln.graph.trace.inputs import InputRecord
from kiln.graph.trace.recorder import Recorder
from kiln.plan.overloads import draws
from kiln.runtime.guards.source import DictAttrSource, ItemSource, Source
from kiln.symbolic import Symbol
from kiln.tensor.spec import ScalarSpec, TensorSpec

LARGEST_SETTING = 64
"""Elements of a buffer whose floats a condition may depend on."""
MARKS = frozenset(("eq", "ne", "isnan", "isinf"))
"""Questions about floats whose answers seldom change."""
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""By their bytes."""
MOVES = frozenset((Kind.VIEW, Kind.DATA_MOVEMENT))
LARGEST = 1 << 22
"""Elements of the largest tensor in the computation of a condition."""


def speculative_condition(recorder: Recorder, fake: torch.Tensor) -> Node | None:
    """The node of `fake`, if it is a single truth value that a capture may speculate on."""
    return _value(recorder, fake, 1, scalars=True)


def integer_value(recorder: Recorder, fake: torch.Tensor, largest: int) -> Node | None:
    """The node of `fake`, if it has at most `largest` values, which depend on integer and boolean inputs only."""
    return _value(recorder, fake, largest, scalars=False)


def size_read(recorder: Recorder, symbol: Symbol) -> Node | None:
    """The node whose value is a size that data decide, if it depends on integer and boolean inputs only."""
    read = _host_reads(recorder).get(symbol)
    return _admitted(recorder, read.inputs[0], scalars=False) if read is not None else None


def computed_size(recorder: Recorder, symbol: Symbol) -> Node | None:
    """The node whose value is a size that data decide, floats too, if it can be computed before the region."""
    reads = _host_reads(recorder)
    if symbol not in reads:
        return None
    needed = _dependencies([reads[symbol].inputs[0]], reads)
    if not _is_of_region(recorder, needed):
        return None
    is_drawn = any([record.is_drawn for record in _records(recorder, needed)])
    is_bound = symbols_of(needed) - reads.keys() <= _bound_symbols(recorder.inputs)
    return reads[symbol].inputs[0] if is_bound and not is_drawn and all(map(_is_repeatable, needed)) else None


def _is_repeatable(node: Node) -> bool:
    """Whether to compute a node once more changes nothing: it draws nothing, and has no effect."""
    if node.op.kind is Kind.LIBRARY:
        return not draws(node.attrs["target"], node.attrs["args"], node.attrs["kwargs"])
    return node.op.kind not in (Kind.RANDOM, Kind.EFFECT) or node.op.name == "local_scalar"


def inputs_of(recorder: Recorder, root: Node) -> list[InputRecord]:
    """The inputs that a node is computed from."""
    return _records(recorder, _dependencies([root], _host_reads(recorder)))


def _is_of_region(recorder: Recorder, needed: Iterable[Node]) -> bool:
    """Whether the inputs among some nodes are those of the region, and not what turns of a loop get."""
    known = {record.node for record in recorder.inputs}
    return all([node in known for node in needed if node.op.name == "input"])


def _records(recorder: Recorder, needed: Iterable[Node]) -> list[InputRecord]:
    """The inputs among some nodes, in the order of registration."""
    return [recorder.inputs[number] for number in sorted([n.attrs["index"] for n in needed if n.op.name == "input"])]


def _value(recorder: Recorder, fake: torch.Tensor, largest: int, scalars: bool) -> Node | None:
    root = recorder.node_of(fake)
    size = recorder.env.simplify(root.tensor.numel())
    if not isinstance(size, int) or size > largest:
        return None
    return _admitted(recorder, root, scalars)


def _admitted(recorder: Recorder, root: Node, scalars: bool) -> Node | None:
    """`root`, if it can be computed before the region."""
    reads = _host_reads(recorder)
    needed = _dependencies([root], reads)
    if not _is_of_region(recorder, needed):
        return None
    if any([record.is_drawn for record in _records(recorder, needed)]):
        return None
    if not all(_is_admitted(node, scalars) for node in needed) or not _marks_only(recorder, needed, scalars):
        return None
    symbols = symbols_of(needed) - reads.keys()
    return root if not symbols or symbols <= _bound_symbols(recorder.inputs) else None


def condition_graph(recorder: Recorder, roots: Sequence[Node]) -> tuple[Graph, list[InputRecord]]:
    """The graph of `roots`, and its inputs."""
    reads = _host_reads(recorder)
    needed = _dependencies(roots, reads)
    kept = [node for node in needed if node.op.name != "input"]
    records = _records(recorder, needed)
    missing = symbols_of(needed) - _bound_symbols(records) - reads.keys()
    for record in recorder.inputs if missing else ():
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
    """A node: whether all elements of `root` are those of `value`; of floats also the sign of zero, and NaN."""
    emit, dtype = recorder.emit, root.tensor.dtype
    if dtype.is_floating_point:
        integers = INTEGERS[dtype.itemsize]
        root, value = emit.node("bitcast", root, dtype=integers), value.view(integers)
    same = emit.pointwise("eq", root, recorder.node_of(recorder.add_constant(value.to(root.tensor.device).clone())))
    return emit.node("all", same, axes=tuple(range(root.tensor.rank))) if root.tensor.rank else same


def _host_reads(recorder: Recorder) -> dict[Symbol, Node]:
    """The nodes that read numbers on the host, by the symbol of the number."""
    if not recorder.env.unbacked:
        return {}
    reads = [(node.spec, node) for node in recorder.nodes if node.op.name == "local_scalar"]
    return {spec.value: node for spec, node in reads if isinstance(spec, ScalarSpec) and isinstance(spec.value, Symbol)}


def _dependencies(roots: Sequence[Node], reads: Mapping[Symbol, Node]) -> dict[Node, None]:
    """The roots and all that they are computed from, with the reads of their sizes; each node behind its inputs."""
    found: dict[Node, None] = {}
    opened = set[Node]()
    pending = list(reversed(roots))
    while pending:
        node = pending[-1]
        if node in opened:
            found[pending.pop()] = None
            continue
        opened.add(node)
        pending += [value for value in node.inputs if value not in opened]
        if reads:
            sizes = [reads[symbol] for symbol in symbols_of([node]) if symbol in reads]
            pending += [read for read in sizes if read not in opened]
    return found


def _is_admitted(node: Node, scalars: bool) -> bool:
    spec = node.spec
    if node.op.name == "local_scalar":
        return True
    if isinstance(spec, tuple):
        return is_pure_call(node)
    if not isinstance(spec, TensorSpec) or node.op.name == "empty":
        return False
    size = spec.numel()
    if isinstance(size, int) and size > LARGEST:
        return False
    if node.op.name == "input":
        return not spec.dtype.is_complex
    return node.op.kind in PURE_KINDS or node.op.name in ("constant_tensor", "item") or is_pure_call(node)


def _marks_only(recorder: Recorder, needed: Mapping[Node, None], scalars: bool) -> bool:
    """Whether floats of the inputs, but for settings, are moved and compared for equality, and no more."""
    varying = set[Node]()
    for record in _records(recorder, needed):
        spec = record.spec
        if not isinstance(spec, TensorSpec) or not spec.dtype.is_floating_point:
            continue
        if not (scalars and _is_setting(record, spec)):
            varying.add(record.node)
    for node in needed if varying else ():
        if not varying.intersection(node.inputs) or node.op.name in MARKS:
            continue
        if node.op.kind not in MOVES and node.op.name != "convert":
            return False
        varying.add(node)
    return True


def _is_setting(record: InputRecord, spec: TensorSpec) -> bool:
    """Whether floats decide the same in most calls: a number on the CPU, or a small buffer, such as a running range."""
    if not spec.rank and spec.device.type == "cpu":
        return True
    count = spec.numel()
    return isinstance(count, int) and count <= LARGEST_SETTING and is_buffer(record.source)


def is_buffer(source: Source | None) -> bool:
    return isinstance(source, ItemSource) and isinstance(source.base, DictAttrSource) and source.base.name == "_buffers"


def _bound_symbols(records: Iterable[InputRecord]) -> frozenset[Symbol]:
    """The symbols that sizes and strides of these inputs determine."""
    specs = [record.spec for record in records if isinstance(record.spec, TensorSpec)]
    return frozenset(size for spec in specs for size in (*spec.sizes, *spec.strides) if isinstance(size, Symbol))
