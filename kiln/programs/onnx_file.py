"""`Program.save_onnx`: the program as an ONNX model that other runtimes read.

    program.save_onnx("net.onnx")      inputs and weights under their names, sizes free as they are in the program

A result is called by its place among the results: `logits`, `0.hidden`; a result alone `output`. What a call changes
is an input, and a result `<name>.next`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import torch

from kiln.graph.ir.graph import Output
from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.onnx import NoOnnxForm, OnnxModel, to_onnx, write_model
from kiln.programs.call.tree import Tree
from kiln.programs.program_parts import ProgramParts
from kiln.symbolic import Expr
from kiln.tensor.spec import TensorSpec

NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}


def save_onnx(program: ProgramParts, path: str | os.PathLike[str]) -> None:
    """Write the file, and `<path>.data` beside it where the weights take 2 GB or more. Raises NoOnnxForm."""
    write_model(onnx_model(program), path)


def onnx_model(program: ProgramParts) -> OnnxModel:
    graph, signature = program.graph, program.interface.signature
    names = [str(node.attrs["name"]) for node in graph.inputs]
    for node, name in zip(graph.inputs, names, strict=True):
        if not isinstance(node.spec, TensorSpec):
            raise NoOnnxForm(op=name, reason="it is a number, and not a tensor")
    contents: dict[Node, Node] = {write.target: write.value for write in graph.writes}
    nodes, results, outputs = [*graph.nodes], list[str](), list[Output]()
    for leaf, place in zip(signature.results, leaf_paths(signature.out_tree), strict=True):
        number = signature.arguments[leaf.number].number if leaf.kind == "argument" else leaf.number
        if leaf.is_in_output:
            value = graph.outputs[leaf.number].value
        elif leaf.kind in ("argument", "state") and number is not None:
            value = contents.get(graph.inputs[number], graph.inputs[number])
        elif type(leaf.value) in NUMBERS or isinstance(leaf.value, Expr):
            value = number_node(leaf.value)
            nodes.append(value)
        elif leaf.value is None:
            continue
        else:
            raise NoOnnxForm(op=f"result {place}", reason=f"it is {leaf.value!r}, and not a tensor")
        results.append(place if place not in names else f"output.{place}")
        outputs.append(Output(value))
    weights = {state.name: program.state[state.name] for state in signature.states}
    shown = replace(graph, nodes=nodes, outputs=tuple(outputs), name=program.name)
    return to_onnx(shown, program.constants, names, weights, outputs=results)


def number_node(value: object) -> Node:
    """A number among the results, as a tensor of rank 0."""
    dtype = NUMBERS.get(type(value), torch.int64)
    spec = TensorSpec(dtype, (), ())
    return Node(PRIMS["constant"], (), {"value": value, "dtype": dtype, "device": spec.device}, spec)  # type: ignore[dict-item]


def leaf_paths(tree: Tree, path: str = "") -> Iterator[str]:
    """Where each leaf stands: keys, fields and numbers."""
    if tree.type is None:
        yield path or "output"
        return
    fields = tree.context if isinstance(tree.context, list | tuple) else tree.keys
    names = [str(field) for field in fields] if len(fields) == len(tree.children) else []
    for number, child in enumerate(tree.children):
        name = names[number] if names else str(number)
        yield from leaf_paths(child, f"{path}.{name}" if path else name)
