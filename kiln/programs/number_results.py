"""Floats and truths among the results: computed from sizes, or read from tensors.

def f(x):  return x.sum(), 1 / x.shape[0]          %4: f64[] = div(1.0, s0), an output of the graph
                                                   results: output 0, the number in output 1
def f(x):  return x.shape[0] > 5                   %2: bool[] = le(6 - s0, 0)

The transformed code runs on symbols once, to find where the results come from. It calls functions of numbers
(`math.sqrt`, `float`) that would ask a symbol for its value: `on_symbols` puts others in their places.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import torch

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node
from kiln.graph.ops.emit import CHOICES, REAL_PRIMS, Emit
from kiln.programs.call.errors import UnknownResult
from kiln.symbolic import Int, ShapeEnv, sym_max, sym_min
from kiln.symbolic.node import SymNode, from_sym, to_sym
from kiln.symbolic.relation import Relation, rel_eq, rel_le, rel_ne
from kiln.symbolic.values import IN_FRONT, REAL_OPS, Given, Real, real
from kiln.tensor.spec import CPU

SYMBOLS = (torch.SymInt, torch.SymFloat)
OF_INTEGERS: dict[str, Callable[..., object]] = {
    "add": REAL_OPS["add"],
    "sub": REAL_OPS["sub"],
    "mul": REAL_OPS["mul"],
    "floordiv": REAL_OPS["floordiv"],
    "mod": REAL_OPS["mod"],
    "neg": REAL_OPS["neg"],
    "min": sym_min,
    "max": sym_max,
}
"""What gives an integer of integers."""
RELATIONS: dict[Callable[..., bool], Callable[[Int, Int], Relation | bool]] = {
    operator.eq: rel_eq,
    operator.ne: rel_ne,
    operator.le: rel_le,
    bool: rel_ne,
}
"""How transformed code compares an integer with zero."""
Result = Real | Relation


def on_symbols(function: types.FunctionType, env: ShapeEnv) -> types.FunctionType:
    """`function`, whose functions of numbers stay symbolic."""
    known = [(op, plain) for op, plain in REAL_OPS.items() if op not in IN_FRONT and op != "given"]
    made = {id(plain): symbolic(op, plain, env) for op, plain in (*IN_FRONT.items(), *known)}
    made |= {id(plain): symbolic_truth(plain, relation, env) for plain, relation in RELATIONS.items()}
    constants = tuple([made.get(id(value), value) for value in function.__code__.co_consts])
    code = function.__code__.replace(co_consts=constants)
    found = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    found.__kwdefaults__ = function.__kwdefaults__
    return found


def symbolic(op: str, plain: Callable[..., object], env: ShapeEnv) -> Callable[..., object]:
    def call(*args: object) -> object:
        if not any([isinstance(arg, SYMBOLS) for arg in args]):
            return plain(*args)
        values = [cast(SymNode, arg.node).value if isinstance(arg, SYMBOLS) else arg for arg in args]
        if op in OF_INTEGERS and not any([isinstance(value, float | Real) for value in values]):
            return to_sym(OF_INTEGERS[op](*values), env)  # type: ignore[arg-type]
        return to_sym(real(op, *values), env)  # type: ignore[arg-type]

    return call


def symbolic_truth(
    plain: Callable[..., bool], relation: Callable[[Int, Int], Relation | bool], env: ShapeEnv
) -> Callable[..., object]:
    def call(value: object, *zero: int) -> object:
        return to_sym(relation(from_sym(value), 0), env) if isinstance(value, torch.SymInt) else plain(value, *zero)

    return call


def read(emit: Emit, node: Node, env: ShapeEnv) -> torch.SymFloat:
    """The number in a floating-point tensor of one element."""
    given = Given(f"result{len(emit.givens)}", None)
    element = emit.node("reshape", node, sizes=()) if node.tensor.rank else node
    emit.givens[given] = emit.convert(element, torch.float64)
    made: torch.SymFloat = to_sym(Real("given", (given,)), env)
    return made


def has_form(value: Int | float | Result | Given) -> bool:
    """Whether a graph computes it."""
    if not isinstance(value, Real):
        return True
    return (value.op in REAL_PRIMS or value.op in CHOICES or value.op in ("float", "given")) and all(
        map(has_form, value.args)
    )


def node_of(emit: Emit, value: Result) -> Node:
    """The tensor of a number or a truth."""
    if isinstance(value, Real):
        return emit.number(value, torch.float64, CPU)
    return emit.pointwise(value.kind, emit.number(value.difference, torch.int64, CPU), 0)


def with_numbers(graph: Graph, numbers: Sequence[Result], emit: Emit, function: str) -> Graph:
    """The graph with an output for each number. Raises UnknownResult for one that no graph computes."""
    if not all(map(has_form, numbers)):
        raise UnknownResult(function=function, type="float that is computed by a function without an operator")
    outputs = [Output(node_of(emit, value)) for value in numbers]
    known, missing = {*graph.inputs, *graph.nodes}, set[Node]()
    waiting = [output.value for output in outputs]
    while waiting:
        node = waiting.pop()
        if node not in known:
            known.add(node)
            missing.add(node)
            waiting += node.inputs
    nodes = [*graph.nodes, *[node for node in emit.nodes if node in missing]]
    return replace(graph, nodes=nodes, outputs=(*graph.outputs, *outputs))
