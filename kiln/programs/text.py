"""The head of a program's text: inputs, constraints, results.

parameter fc.weight: f32[8, 16]
buffer calls: f32[], written
argument x: f32[batch, 16]
1 <= batch <= 64
checks values at net.py:12, in Net.forward
returns dict(logits=*, rows=*): output 0, 2*batch
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import is_assumption
from kiln.graph.ir.text import failed_check, spec_text
from kiln.plan.errors import ASSUMED
from kiln.programs.call.shapes import ShapeRules
from kiln.programs.call.signature import ArgumentLeaf, ProgramSignature, ResultLeaf
from kiln.symbolic.relation import relate


def head(graph: Graph, signature: ProgramSignature, rules: ShapeRules) -> Iterator[str]:
    """A line for each input, constraint and gradient, and one for the results."""
    written = {write.target for write in graph.writes}
    for state, node in zip(signature.states, graph.inputs, strict=False):
        yield f"{state.kind} {state.name}: {input_text(node, written)}"
    for leaf in signature.arguments:
        yield f"argument {leaf.name}{argument_text(leaf, graph, written)}"
    yield from rules.lines()
    yield from checks(graph)
    results = [result_text(leaf, graph, signature) for leaf in signature.results]
    yield f"returns {signature.out_tree}: " + ", ".join(results)
    yield from [f"gradient of {name}" for name in signature.gradients]


def checks(graph: Graph) -> Iterator[str]:
    """What values must be, which the program checks when it runs."""
    for node in graph.nodes:
        if is_assumption(node):
            yield f"checks values{node.attrs['message'][len(ASSUMED) :]}"
        for kind, difference in node.attrs["checks"] if node.op.name == "local_scalar" else ():
            yield "checks that " + failed_check(node, relate(kind, difference)).replace(" does not hold", "", 1)


def input_text(node: Node, written: Collection[Node]) -> str:
    return spec_text(node.spec) + ", written" * (node in written)


def argument_text(leaf: ArgumentLeaf, graph: Graph, written: Collection[Node]) -> str:
    if leaf.unused:
        return ", unused"
    if leaf.number is None:
        return f" = {leaf.value!r}"
    return ": " + input_text(graph.inputs[leaf.number], written)


def result_text(leaf: ResultLeaf, graph: Graph, signature: ProgramSignature) -> str:
    match leaf.kind:
        case "output":
            alias = graph.outputs[leaf.number].alias
            shared = f" (memory of {alias.of} {alias.index})" if alias else ""
            return f"output {leaf.number}{shared}"
        case "number":
            return f"the number in output {leaf.number}"
        case "argument":
            return f"`{signature.arguments[leaf.number].name}`"
        case "state":
            return f"`{signature.states[leaf.number].name}`"
    return repr(leaf.value) if leaf.kind == "constant" else str(leaf.value)
