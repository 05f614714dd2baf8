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
from kiln.programs.call.interface import CallInterface, require_known
from kiln.programs.call.specs import bound_by
from kiln.symbolic import Symbol
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec


def check_symbols(graph: Graph, interface: CallInterface) -> None:
    """Raises DamagedProgram for a symbol that nothing binds."""
    bound = interface.bound_symbols()
    check_nodes(graph.nodes, bound)
    sizes = [symbols_in(leaf.value) for leaf in interface.signature.results if leaf.kind == "size"]
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


def plain_symbols(spec: Spec | None) -> set[Symbol]:
    """The symbols that a value with this spec binds."""
    if isinstance(spec, tuple):
        return {found for part in spec for found in plain_symbols(part)}
    return bound_by(spec) if isinstance(spec, TensorSpec | ScalarSpec) else set()
