"""Whether a captured call can be run a second time without the program noticing, and what that takes."""

from __future__ import annotations

from collections.abc import Iterator

from kiln.capture.interpreter.capture import Capture
from kiln.graph.ir import node as ir
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.rewrite import all_nodes
from kiln.graph.prims.table import Kind
from kiln.graph.trace import Trace
from kiln.pipeline.targets import device_of
from kiln.runtime.guards.source import Source
from kiln.runtime.variant import SecondRun
from kiln.tensor.size_hint import size_hint
from kiln.tensor.spec import TensorSpec


def second_run(capture: Capture) -> SecondRun | None:
    """What running a call again takes; None if the program could tell."""
    if capture.breaks or capture.effects or capture.may_leave or capture.says_is_compiling:
        return None
    traces = [region.trace for region in capture.regions]
    gradients = any(trace.needs_grad for trace in traces)
    devices = {device for trace in traces for device in devices_of(trace.graph)}
    gpus = devices - {"cpu"}
    if len(gpus) > 1 or (gradients and len(traces) > 1) or not all(map(is_repeatable, traces)):
        return None
    written = tuple([source for trace in traces for source in written_sources(trace)])
    return SecondRun(written, gradients, gpus.pop() if gpus else "cpu", sum(bytes_of(trace.graph) for trace in traces))


def is_same_in_eager(capture: Capture) -> bool:
    """Whether a call may run in eager instead: the program sees no difference but in the last bits of results."""
    nodes = [node for region in capture.regions for node in nodes_of(region.trace.graph)]
    on_gpu = any(device is not None and device.type != "cpu" for device in (device_of(node.spec) for node in nodes))
    return not on_gpu and not capture.says_is_compiling and not any(node.op.kind is Kind.RANDOM for node in nodes)


def is_repeatable(trace: Trace) -> bool:
    """Whether the same operators run again change nothing but written inputs and the state of generators."""
    return not trace.carried_inputs and all(is_known(node) for node in nodes_of(trace.graph))


def is_known(node: ir.Node) -> bool:
    if node.op.kind is Kind.LIBRARY or node.op.name == "opaque":
        return str(node.attrs["target"]).startswith("aten.")
    return True


def nodes_of(graph: Graph) -> list[ir.Node]:
    return [*graph.inputs, *all_nodes(graph)]


def devices_of(graph: Graph) -> set[str]:
    found = {device_of(node.spec) for node in nodes_of(graph)}
    return {str(device) for device in found if device is not None}


def written_sources(trace: Trace) -> Iterator[Source]:
    targets = {write.target for write in trace.graph.writes}
    return (record.source for record in trace.used_inputs if record.node in targets)


def bytes_of(graph: Graph) -> int:
    specs = [node.spec for node in graph.nodes if isinstance(node.spec, TensorSpec)]
    return sum(size_hint(spec.numel()) * spec.dtype.itemsize for spec in specs)
