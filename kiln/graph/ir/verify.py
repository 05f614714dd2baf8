"""The verifier of graphs: a numbered list of rules, then their code in that order.

verify(graph, after="cse")                       raises InvalidGraph with the rule and the neighbourhood
verify(graph, after="cse", rules=STRUCTURE)      V1, V6 and V7 only: a microsecond per node
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kiln.graph.ir.errors import InvalidGraph
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Arg, Node
from kiln.graph.ir.size_oracle import GuardFreeOracle, UnknownRelation
from kiln.graph.ir.text import graph_text
from kiln.graph.prims.meta import CHECKS, META, SUPPLIED
from kiln.graph.prims.table import Kind
from kiln.support.errors import KilnError
from kiln.symbolic import Expr, ShapeEnv
from kiln.tensor.dtypes import DTYPE_NAMES
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec

Problem = tuple[Node | None, str]
GraphRule = Callable[[Graph, ShapeEnv | None], Iterator[Problem]]


def verify(
    graph: Graph, after: str, env: ShapeEnv | None = None, rules: tuple[tuple[str, GraphRule], ...] | None = None
) -> None:
    """Raise InvalidGraph unless

    V1  every input of a node is defined above it, in the same graph, and no node occurs twice;
    V2  inputs and attributes fit the op's row in PRIMS;
    V3  dtype, sizes and device of the spec (for views strides and offset too) are what the shape rule computes;
        the column `checks` accepts the inputs;
    V4  argument templates use every input, and only inputs that exist;
    V5  attributes have types that a graph text can hold, and nested graphs are valid;
    V6  outputs and written values are defined, and writes go to inputs of the same sizes and dtype;
    V7  aliases name an input or an earlier output;
    V8  nested graphs take what their node gives them, and return what it takes over.

    Relations between symbols that are not known pass V3 and V6.
    """
    for name, rule in rules or RULES:
        for node, problem in rule(graph, env):
            around = node if node in graph.nodes else None
            raise InvalidGraph(after=after, rule=name, problem=problem, excerpt=graph_text(graph, around=around))


def defined_above(graph: Graph, env: ShapeEnv | None) -> Iterator[Problem]:
    known = set(graph.inputs)
    for node in graph.nodes:
        if not known.issuperset(node.inputs):
            yield node, f"`{node.op.name}` reads a value that is not defined above it"
        if node in known:
            yield node, f"`{node.op.name}` occurs twice"
        known.add(node)


def fits_row(graph: Graph, env: ShapeEnv | None) -> Iterator[Problem]:
    for node in graph.inputs:
        if node.op.name != "input" or isinstance(node.spec, tuple):
            yield node, "an argument must be an `input` node with one result"
    for node in graph.nodes:
        op = node.op
        if op.inputs is not None and len(node.inputs) != op.inputs:
            yield node, f"`{op.name}` takes {op.inputs} inputs, not {len(node.inputs)}"
        if set(node.attrs) != set(op.attrs):
            yield node, f"`{op.name}` has the attributes {op.attrs}, not {tuple(node.attrs)}"
        if op.name in ON_BOOL and node.inputs[0].tensor.dtype is not torch.bool:
            yield node, f"`{op.name}` takes a bool tensor"
        if op.kind is Kind.POINTWISE and (problem := _pointwise_problem(node)):
            yield node, problem


ON_BOOL = frozenset({"logical_not", "any", "all"})


def _pointwise_problem(node: Node) -> str | None:
    if not all(isinstance(value.spec, TensorSpec) for value in node.inputs):
        return f"`{node.op.name}` takes tensors"
    dtypes = [value.tensor.dtype for value in node.inputs]
    if node.op.name == "where" and dtypes.pop(0) is not torch.bool:
        return "the condition of `where` must be a bool tensor"
    if len(set(dtypes)) > 1:
        return f"`{node.op.name}` has inputs of different dtypes"
    if node.op.floating and not (dtypes[0].is_floating_point or dtypes[0].is_complex):
        return f"`{node.op.name}` is not defined on {DTYPE_NAMES[dtypes[0]]}"
    return None


def spec_is_computed(graph: Graph, env: ShapeEnv | None) -> Iterator[Problem]:
    oracle = GuardFreeOracle(env)
    for node in graph.nodes:
        if node.op.name in SUPPLIED:
            continue
        try:
            specs = [value.spec for value in node.inputs]
            if (check := CHECKS.get(node.op.name)) is not None:
                check(oracle, *specs, **node.attrs)
            expected: Spec = META[node.op.name](oracle, *specs, **node.attrs)
        except UnknownRelation:
            continue
        except (KilnError, ValueError, TypeError, AttributeError, IndexError) as error:
            yield node, f"the shape rule of `{node.op.name}` refuses: {error}"
            continue
        if not same_spec(oracle, expected, node.spec, layout=node.op.kind is Kind.VIEW):
            yield node, f"`{node.op.name}` has the spec {node.spec}, its shape rule gives {expected}"


def same_spec(oracle: GuardFreeOracle, left: Spec, right: Spec, layout: bool) -> bool:
    """Equal dtype, sizes and device; with `layout`, strides and offset too."""
    if isinstance(left, TensorSpec) and isinstance(right, TensorSpec):
        return (
            left.dtype is right.dtype
            and left.device == right.device
            and left.rank == right.rank
            and not any(map(oracle.differ, left.sizes, right.sizes))
            and (not layout or _same_layout(oracle, left, right))
        )
    if isinstance(left, tuple) and isinstance(right, tuple):
        pairs_of_parts = zip(left, right, strict=False)
        return len(left) == len(right) and all(
            a is b is None or (a is not None and b is not None and same_spec(oracle, a, b, layout))
            for a, b in pairs_of_parts
        )
    return isinstance(left, ScalarSpec) and isinstance(right, ScalarSpec) and left.kind is right.kind


def _same_layout(oracle: GuardFreeOracle, left: TensorSpec, right: TensorSpec) -> bool:
    """Equal strides and offset, but for dimensions of size 1; of no elements, any."""
    if 0 in left.sizes:
        return True
    strides = zip(left.strides, right.strides, left.sizes, strict=True)
    return not oracle.differ(left.offset, right.offset) and not any(
        size != 1 and oracle.differ(a, b) for a, b, size in strides
    )


def templates_fit(graph: Graph, env: ShapeEnv | None) -> Iterator[Problem]:
    for node in graph.nodes:
        if "target" not in node.attrs:
            continue
        used: set[int] = set()
        _collect_args((node.attrs["args"], node.attrs["kwargs"]), used)
        if used != set(range(len(node.inputs))):
            yield node, f"the template of `{node.attrs['target']}` uses the inputs {sorted(used)} of {len(node.inputs)}"


def _collect_args(value: object, into: set[int]) -> None:
    if isinstance(value, tuple):
        for part in value:
            _collect_args(part, into)
    elif isinstance(value, Arg):
        into.add(value.index)


# fmt: off
ATTRIBUTE_TYPES = (int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format,
                   Expr, Arg)
# fmt: on


def attributes_are_plain(graph: Graph, env: ShapeEnv | None) -> Iterator[Problem]:
    for node in graph.nodes:
        for key, value in node.attrs.items():
            if isinstance(value, Graph):
                verify(value, f"nested graph `{key}` of `{node.op.name}`", env)
            elif not _is_plain(value):
                yield node, f"attribute `{key}` of `{node.op.name}` has a value of type {type(value).__name__}"


def _is_plain(value: object) -> bool:
    return all(map(_is_plain, value)) if isinstance(value, tuple) else isinstance(value, ATTRIBUTE_TYPES)


def results_are_defined(graph: Graph, env: ShapeEnv | None) -> Iterator[Problem]:
    known = {*graph.inputs, *graph.nodes}
    inputs = set(graph.inputs)
    oracle = GuardFreeOracle(env)
    for root in graph.roots():
        if root not in known:
            yield root, f"an output or written value (`{root.op.name}`) is not in the graph"
    for write in graph.writes:
        if write.target not in inputs:
            yield write.target, "the target of a write must be an input"
        elif not _same_contents(oracle, write.target.tensor, write.value.tensor):
            yield write.target, f"{write.value.spec} is written to an input {write.target.spec}"


def _same_contents(oracle: GuardFreeOracle, target: TensorSpec, value: TensorSpec) -> bool:
    same_rank = target.rank == value.rank and target.dtype is value.dtype
    return same_rank and not any(map(oracle.differ, target.sizes, value.sizes))


def aliases_exist(graph: Graph, env: ShapeEnv | None) -> Iterator[Problem]:
    for number, output in enumerate(graph.outputs):
        alias = output.alias
        if alias is not None and not alias.index < (len(graph.inputs) if alias.of == "input" else number):
            yield output.value, f"output {number} aliases {alias.of} {alias.index}, which does not exist"


def nested_graphs_fit(graph: Graph, env: ShapeEnv | None) -> Iterator[Problem]:
    oracle = GuardFreeOracle(env)
    for node in graph.nodes:
        for name, given, wanted, made in INTERFACES.get(node.op.name, no_interfaces)(node):
            if not same_specs(oracle, given, wanted):
                yield node, f"graph `{name}` takes {texts(wanted)}, and gets {texts(given)}"
            elif made is not None and not same_specs(oracle, *made):
                yield node, f"graph `{name}` returns {texts(made[0])}, not {texts(made[1])}"


Specs = list[Spec]
Interface = tuple[str, Specs, Specs, tuple[Specs, Specs] | None]
"""The name of a nested graph, what it is given and takes, and what it returns and should return."""


def no_interfaces(node: Node) -> Iterator[Interface]:
    return iter(())


def cond_interfaces(node: Node) -> Iterator[Interface]:
    given, true = inputs_of(node)[1:], node.attrs["true"]
    yield "true", given, taken(true), None
    yield "false", given, taken(node.attrs["false"]), (returned(node.attrs["false"]), returned(true))


def while_interfaces(node: Node) -> Iterator[Interface]:
    given, body = inputs_of(node), node.attrs["body"]
    yield "test", given, taken(node.attrs["test"]), None
    yield "body", given, taken(body), (returned(body), given[: len(body.outputs)])


def scan_interfaces(node: Node) -> Iterator[Interface]:
    given, carried, end = inputs_of(node), node.attrs["carried"], node.attrs["carried"] + node.attrs["rows"]
    rows = [spec.with_sizes(spec.sizes[1:]) for spec in given[carried:end] if isinstance(spec, TensorSpec)]
    body = node.attrs["body"]
    yield "body", given[:carried] + rows + given[end:], taken(body), (returned(body)[:carried], given[:carried])


INTERFACES: dict[str, Callable[[Node], Iterator[Interface]]] = {
    "cond": cond_interfaces, "while_loop": while_interfaces, "scan": scan_interfaces,
}  # fmt: skip


def inputs_of(node: Node) -> Specs:
    return [value.spec for value in node.inputs]


def taken(graph: Graph) -> Specs:
    return [value.spec for value in graph.inputs]


def returned(graph: Graph) -> Specs:
    return [output.value.spec for output in graph.outputs]


def same_specs(oracle: GuardFreeOracle, left: Specs, right: Specs) -> bool:
    """Without their strides, which the executor compares when it enters a nested plan."""
    return len(left) == len(right) and all(same_spec(oracle, a, b, False) for a, b in zip(left, right, strict=True))


def texts(specs: Specs) -> str:
    return f"({', '.join(map(str, specs))})"


# fmt: off
RULES: tuple[tuple[str, GraphRule], ...] = (
    ("V1", defined_above),
    ("V2", fits_row),
    ("V3", spec_is_computed),
    ("V4", templates_fit),
    ("V5", attributes_are_plain),
    ("V6", results_are_defined),
    ("V7", aliases_exist),
    ("V8", nested_graphs_fit),
)
# fmt: on
STRUCTURE = tuple(rule for rule in RULES if rule[0] in ("V1", "V6", "V7"))
