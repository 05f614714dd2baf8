"""`Program.save_onnx`: the program as an ONNX model that other runtimes read.

    program.save_onnx("net.onnx")      inputs and weights under their names, sizes free as they are in the program

A result is called by its place among the results: `logits`, `0.hidden`; a result alone `output`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from kiln.graph.ir.graph import Output
from kiln.onnx import NoOnnxForm, OnnxModel, to_onnx, write_model
from kiln.programs.call.tree import Tree
from kiln.programs.program_parts import ProgramParts
from kiln.tensor.spec import TensorSpec


def save_onnx(program: ProgramParts, path: str | os.PathLike[str]) -> None:
    """Write the file, and `<path>.data` beside it where the weights take 2 GB or more. Raises NoOnnxForm."""
    write_model(onnx_model(program), path)


def onnx_model(program: ProgramParts) -> OnnxModel:
    graph, signature = program.graph, program.interface.signature
    names = [str(node.attrs["name"]) for node in graph.inputs]
    if graph.writes:
        changed = ", ".join(str(write.target.attrs["name"]) for write in graph.writes)
        raise NoOnnxForm(op=program.name, reason=f"a call changes {changed}, which a model cannot")
    for node, name in zip(graph.inputs, names, strict=True):
        if not isinstance(node.spec, TensorSpec):
            raise NoOnnxForm(op=name, reason="it is a number, and not a tensor")
    results: dict[int, str] = {}
    outputs: list[Output] = []
    for leaf, place in zip(signature.results, leaf_paths(signature.out_tree), strict=True):
        if leaf.kind == "constant" and leaf.value is None:
            continue
        if leaf.kind != "output":
            raise NoOnnxForm(op=f"result {place}", reason=f"it is not computed: it is a {leaf.kind}")
        results[len(outputs)] = place if place not in names else f"output.{place}"
        outputs.append(graph.outputs[leaf.number])
    weights = {state.name: program.state[state.name] for state in signature.states}
    shown = replace(graph, outputs=tuple(outputs), name=program.name)
    return to_onnx(shown, program.constants, names, weights, outputs=list(results.values()))


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
