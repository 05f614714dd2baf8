"""The check of speculations in front of a region, as a plan of library calls: g++ compiles nothing for it.

    %1: b8[1, 128] = convert(%0, dtype=b8)             %1 = aten._to_copy.default(%0, dtype=bool)
    %2: b8[] = all(%1, axes=(0, 1))             =>     %2 = aten.all.dims(%1, (0, 1))
    return %2                                          u0 = read bool %2
                                                       return u0

The tensors are small, so a library call costs less than compiling a kernel would. An op without a single equivalent
call stays a primitive and gets a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kiln.graph.ir.build import to_template
from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Attr, Node
from kiln.graph.ir.single_call import single_call
from kiln.graph.passes import run_passes
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.table import Kind
from kiln.pipeline.compiled_plan import compile_plan
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import graph_to_plan
from kiln.runtime.speculation_check import SpeculationPlan
from kiln.symbolic import symbol
from kiln.tensor.spec import ScalarSpec, TensorSpec

CALLABLE_KINDS = frozenset({Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN})


def compile_speculation(
    graph: Graph, constants: Mapping[str, torch.Tensor], context: CompileContext
) -> SpeculationPlan:
    """Computes the outputs of `graph`, truth values of rank 0, as Python bools."""
    passed = run_passes(graph, context.events)
    compiled = compile_plan(graph_to_plan(with_host_reads(with_calls(passed)), context, "check"), constants, context)
    return SpeculationPlan(compiled.executor(), compiled.bundle)


def with_calls(graph: Graph) -> Graph:
    """Nodes that a single ATen call computes become that call."""
    made: dict[Node, Node] = {}
    for node in graph.nodes:
        inputs = tuple([made.get(operand, operand) for operand in node.inputs])
        made[node] = as_call(node, inputs) or Node(node.op, inputs, node.attrs, node.spec, node.origin)
    outputs = tuple([Output(made.get(output.value, output.value)) for output in graph.outputs])
    return Graph(graph.inputs, [made[node] for node in graph.nodes], outputs, (), graph.name)


def as_call(node: Node, inputs: tuple[Node, ...]) -> Node | None:
    """The call that computes `node`; None where there is no single one."""
    if node.op.kind not in CALLABLE_KINDS or not isinstance(node.spec, TensorSpec):
        return None
    call = single_call(node, inputs)
    if call is None:
        return None
    used: list[Node] = []
    args = to_template(call.args, used)
    kwargs = tuple([(name, to_template(value, used)) for name, value in call.kwargs])
    attrs = {"target": call.target, "args": args, "kwargs": kwargs}
    return Node(PRIMS["aten"], tuple(used), attrs, node.spec, node.origin)


def with_host_reads(graph: Graph) -> Graph:
    """`graph` with its outputs read on the host."""
    attrs: dict[str, Attr] = {"kind": "bool", "checks": ()}
    reads = [
        Node(PRIMS["local_scalar"], (output.value,), attrs, ScalarSpec(bool, symbol(f"truth_{number}")))
        for number, output in enumerate(graph.outputs)
    ]
    return Graph(graph.inputs, [*graph.nodes, *reads], tuple(map(Output, reads)), (), graph.name)
