"""The text of a graph; `parse.py` reads it back.

    graph(%0: f32[4, 8] "x", %1: f32[8] "self.bias"):
        %2: f32[4, 8] = add(%0, %1)  # torch.add [3] at model.py:41, in Net.forward
        %3: f32[4, 4] = aten.mm.default(%2, %0)
        %4: (f32[4, 4],) = region(%3, body=@0, tag="checkpoint")
            @0 = graph(%0: f32[4, 4] "y"):
                %1: f32[4, 4] = neg(%0)
                return %1
        write %0 <- %2
        return %3 requires_grad, %2 is input 0, %2 views input 0 as f32[8, 4]

Values are numbered in order; a nested graph starts again at 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

import torch

from kiln.graph.ir.graph import Alias, Graph, Output, Write
from kiln.graph.ir.node import Arg, Attr, Node, Origin
from kiln.graph.prims.table import Kind
from kiln.symbolic import Expr, Relation
from kiln.tensor.dtypes import DTYPE_NAMES
from kiln.tensor.spec import ScalarSpec, Spec

INDENT = "    "


def graph_text(graph: Graph, around: Node | None = None, lines: int = 5, origins: bool = True) -> str:
    """The whole text, or the neighbourhood of a node: `lines` nodes before and after."""
    names = value_names(graph)
    body = [(node, node_lines(node, names, origins)) for node in graph]
    if around is not None:
        at = next((i for i, (node, _) in enumerate(body) if node is around), None)
        if at is not None:
            body = body[max(0, at - lines) : at + lines + 1]
    inputs = ", ".join(input_text(node, names) for node in graph.inputs)
    title = "graph" if graph.name == "graph" else f"graph {graph.name}"
    text = [f"{title}({inputs}):"]
    text += [INDENT + line for _, node in body for line in node]
    text += [f"{INDENT}{write_text(write, names)}" for write in graph.writes]
    text.append(INDENT + ("return " + ", ".join(output_text(output, names) for output in graph.outputs)).rstrip())
    return "\n".join(text)


def write_text(write: Write, names: Mapping[Node, str]) -> str:
    versions = "" if write.versions == 1 else f" versions={write.versions}"
    return f"write {names[write.target]} <- {names[write.value]}{versions}"


class _ValueNames(dict[Node, str]):
    """Names of values; a value that is not in the graph gets a name that says so."""

    def __missing__(self, node: Node) -> str:
        return f"%<{node.op.name} from outside>"


def value_names(graph: Graph) -> Mapping[Node, str]:
    """`%0`, `%1`, ... in order."""
    return _ValueNames({node: f"%{i}" for i, node in enumerate((*graph.inputs, *graph.nodes))})


def input_text(node: Node, names: Mapping[Node, str]) -> str:
    return f"{names[node]}: {spec_text(node.spec)} {json.dumps(node.attrs['name'])}"


def output_text(output: Output, names: Mapping[Node, str]) -> str:
    text = names[output.value]
    if output.alias is not None:
        text += " " + alias_text(output.alias)
    text += " requires_grad" if output.requires_grad else ""
    return text + f" versions={output.versions}" if output.versions else text


def alias_text(alias: Alias) -> str:
    if alias.view is None:
        return f"is {alias.of} {alias.index}"
    return f"views {alias.of} {alias.index} as {alias.view}"


def spec_text(spec: Spec | None) -> str:
    if isinstance(spec, tuple):
        inside = ", ".join(spec_text(part) for part in spec)
        return f"({inside},)" if len(spec) == 1 else f"({inside})"
    return "none" if spec is None else str(spec)


def node_lines(node: Node, names: Mapping[Node, str], origins: bool = True) -> Iterator[str]:
    """The line of a node, followed by its nested graphs."""
    nested: list[Graph] = []
    line = f"{names[node]}: {spec_text(node.spec)} = {call_text(node, names, nested)}"
    if origins and node.origin is not None:
        line += f"  # {origin_text(node.origin)}"
    yield line
    for number, graph in enumerate(nested):
        first, *rest = graph_text(graph, origins=origins).split("\n")
        yield f"{INDENT}@{number} = {first}"
        yield from (INDENT + inner for inner in rest)


def call_text(node: Node, names: Mapping[Node, str], nested: list[Graph]) -> str:
    """`sum(%0, axes=(1,))`, or `aten.mm.default(%0, %1)` for a library op."""
    inputs = [names[value] for value in node.inputs]
    if "target" not in node.attrs:
        parts = inputs + [f"{key}={value_text(value, inputs, nested)}" for key, value in node.attrs.items()]
        return f"{node.op.name}({', '.join(parts)})"
    parts = [value_text(value, inputs, nested) for value in node.attrs["args"]]
    parts += [f"{key}={value_text(value, inputs, nested)}" for key, value in node.attrs["kwargs"]]
    prefix = "" if node.op.name == "aten" else f"{node.op.name} "
    return f"{prefix}{node.attrs['target']}({', '.join(parts)})"


def origin_text(origin: Origin) -> str:
    text = f"{origin.call} [{origin.number}]"
    if origin.location is not None:
        text += f" at {origin.location.text()}"
    return text + " (backward)" if origin.backward else text


def failed_check(node: Node, relation: Relation | bool) -> str:
    """The message of a check of the number that `node` reads."""
    origin, name = node.origin, argument_read(node)
    place = f" in {origin.call} at {origin.location.text()}" if origin is not None and origin.location else ""
    read = f", where {node.spec.value} is the number in `{name}`" if name and isinstance(node.spec, ScalarSpec) else ""
    return f"{relation} does not hold{place}{read}"


def argument_read(node: Node) -> str:
    """The name of the argument whose only element `node` reads, "" of another number."""
    source = node.inputs[0]
    while source.op.kind is Kind.VIEW and source.inputs[0].tensor.numel() == 1:
        source = source.inputs[0]
    return str(source.attrs.get("name", "")) if source.op.name == "input" else ""


def value_text(value: Attr, inputs: list[str], nested: list[Graph]) -> str:
    """The text of an attribute."""
    if isinstance(value, tuple):
        inside = ", ".join(value_text(part, inputs, nested) for part in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, Graph):
        nested.append(value)
        return f"@{len(nested) - 1}"
    if isinstance(value, Arg):
        return inputs[value.index]
    writer = WRITERS.get(type(value))
    if writer is None and isinstance(value, Expr):
        writer = str
    if writer is None:
        raise TypeError(f"attributes cannot be of type {type(value).__name__}: {value!r}")
    return writer(value)


def _complex_text(value: complex) -> str:
    return f"complex({value.real!r}, {value.imag!r})"


# fmt: off
WRITERS: dict[type, Callable[..., str]] = {
    int: str, float: repr, bool: str, type(None): str, str: json.dumps, complex: _complex_text,
    torch.dtype: DTYPE_NAMES.__getitem__, torch.device: str, torch.layout: str, torch.memory_format: str,
}
# fmt: on
