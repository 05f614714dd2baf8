"""Whether a program from a file knows all its symbols: each is a size of an argument, or comes from data.

f32[s0, 16] "x"            binds s0
%3: int(u0) = local_scalar(...)    binds u0
view(%1, sizes=(s7,))      DamagedProgram: nothing says what s7 is
"""

from __future__ import annotations

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import symbols_in
from kiln.graph.prims.meta import SUPPLIED
from kiln.programs.call.errors import DamagedProgram
from kiln.programs.call.shapes import ShapeRules
from kiln.programs.call.signature import ProgramSignature
from kiln.symbolic import Symbol, symbol
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec


def check_symbols(graph: Graph, signature: ProgramSignature, rules: ShapeRules) -> None:
    """Raises DamagedProgram for a symbol that nothing binds."""
    states, arguments = graph.inputs[: len(signature.states)], graph.inputs[len(signature.states) :]
    if any(symbols_in(node.spec) for node in states):
        raise DamagedProgram(problem="a parameter or buffer has a symbolic size")
    bound = {found for node in arguments for found in plain_symbols(node.spec)}
    known = {symbol(each.name) for each in rules.ranges} & bound
    if len(known) != len(rules.ranges):
        raise DamagedProgram(problem="a range is of no size, or of one twice")
    needed = [symbols_in(node.spec) for node in arguments]
    needed += [constraint.relation.free_symbols() for constraint in rules.constraints]
    require_known(bound, frozenset().union(*needed))
    check_nodes(graph.nodes, bound)
    sizes = [symbols_in(leaf.value) for leaf in signature.results if leaf.kind == "size"]
    views = [symbols_in(output.alias.view) for output in graph.outputs if output.alias and output.alias.view]
    require_known(bound, frozenset().union(*sizes, *views))


def check_nodes(nodes: list[Node], bound: set[Symbol]) -> None:
    """Adds the symbols that nodes bind to `bound`."""
    for node in nodes:
        require_known(bound, symbols_in(tuple(value for key, value in node.attrs.items() if key != "checks")))
        if node.op.name in SUPPLIED:
            bound |= plain_symbols(node.spec)
        require_known(bound, symbols_in((node.spec, *node.attrs.values())))
        for value in node.attrs.values():
            if isinstance(value, Graph):
                inner = bound | {found for each in value.inputs for found in plain_symbols(each.spec)}
                check_nodes(value.nodes, inner)


def require_known(bound: set[Symbol], needed: frozenset[Symbol]) -> None:
    if unknown := sorted(needed - bound, key=str):
        raise DamagedProgram(problem=f"nothing says what the size {unknown[0]} is")


def plain_symbols(spec: Spec | None) -> set[Symbol]:
    """The symbols that a value with this spec binds."""
    if isinstance(spec, tuple):
        return {found for part in spec for found in plain_symbols(part)}
    if isinstance(spec, ScalarSpec):
        return {spec.value} if isinstance(spec.value, Symbol) else set()
    if isinstance(spec, TensorSpec):
        return {size for size in spec.sizes if isinstance(size, Symbol)}
    return set()
