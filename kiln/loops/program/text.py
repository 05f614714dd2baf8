"""Loop programs as text, in the forms that the docstring of `nodes.py` shows.

mean: f32[4096] = reduction sum over (i1: 1024) keeping (i0: 4096): load x[i0, i1]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kiln.loops.body.text import INDENT, BodyText, access_text, axes_text
from kiln.loops.program import nodes
from kiln.symbolic import Expr, Symbol
from kiln.tensor.dtypes import DTYPE_NAMES


def buffer_text(buffer: nodes.Buffer) -> str:
    base = "" if buffer.base is None else f" in {buffer.base}"
    return f"{buffer.name}: {buffer.spec}{base}"


def node_text(node: nodes.LoopNode) -> str:
    """A node; on one line if its body is a single expression."""
    if isinstance(node, nodes.Extern):
        nested = [INDENT + line for inner in node.nested for line in program_text(inner).split("\n")]
        return "\n".join([_extern_text(node) + origin_comment(node.origin), *nested])
    body, origin = BodyText(node.body), origin_comment(node.origin)
    head = f"{buffer_text(node.out)} = {_node_head(node)}:"
    if not body.lines:
        return f"{head} {body.results[0]}{origin}"
    return "\n".join([head + origin, *(INDENT + line for line in body.lines), f"{INDENT}-> {body.results[0]}"])


def _node_head(node: nodes.Pointwise | nodes.Reduction | nodes.Scan | nodes.Scatter) -> str:
    match node:
        case nodes.Pointwise():
            return f"pointwise {axes_text(node.axes)}"
        case nodes.Reduction():
            return f"reduction {node.op.value} over {axes_text(node.reduced)} keeping {axes_text(node.kept)}"
        case nodes.Scan():
            return f"scan {node.op.value} along {node.axes[node.along].symbol} of {axes_text(node.axes)}"
        case nodes.Scatter():
            combine = "" if node.combine is None else f" {node.combine.value}"
            return f"scatter{combine} into {node.init} at {access_text('', node.index)} of {axes_text(node.axes)}"


def _extern_text(node: nodes.Extern) -> str:
    outs = ", ".join("_" if out is None else buffer_text(out) for out in node.outs)
    args = [argument_text(arg) for arg in node.args]
    args += [f"{name}={argument_text(value)}" for name, value in node.kwargs]
    mutates = f" writes {', '.join(node.mutates)}" if node.mutates else ""
    return f"{outs or '_'} = extern {node.target}({', '.join(args)}){mutates}"


def argument_text(value: object) -> str:
    """An argument of an extern call; strings are quoted, buffers are not."""
    if isinstance(value, nodes.BufferArg):
        return value.name if value.spec is None else f"{value.name} as {value.spec}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(argument_text(item) for item in value)}]"
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES[value]
    return repr(value) if isinstance(value, str) else str(value)


def origin_comment(origin: str) -> str:
    return f"  # {origin}" if origin else ""


def program_text(program: nodes.LoopProgram) -> str:
    lines = [f"loops {program.name}"]
    lines += arguments_text(program.inputs, program.constants)
    for node in program.nodes:
        lines += node_text(node).split("\n")
    lines += results_text(program.writes, program.outputs)
    return "\n".join([lines[0], *(INDENT + line for line in lines[1:])])


def arguments_text(inputs: Sequence[nodes.Buffer | Symbol], constants: Sequence[tuple[nodes.Buffer, str]]) -> list[str]:
    lines = []
    for position, given in enumerate(inputs):
        name = f"{given}: size" if isinstance(given, Symbol) else buffer_text(given)
        lines.append(f"{name} = input {position}")
    return lines + [f"{buffer_text(buffer)} = constant {key}" for buffer, key in constants]


def results_text(writes: Sequence[tuple[str, str]], outputs: Sequence[nodes.LoopOutput]) -> list[str]:
    lines = [f"write {target} = {source}" for target, source in writes]
    return [*lines, f"return {', '.join(map(_output_text, outputs))}"]


def _output_text(output: nodes.LoopOutput) -> str:
    view = "" if output.view is None else f" as {output.view}"
    if output.buffer is not None:
        return output.buffer + view
    if output.alias_input is not None:
        return f"alias of input {output.alias_input}{view}"
    if output.alias_output is not None:
        return f"alias of output {output.alias_output}{view}"
    return str(output.value) if isinstance(output.value, Expr) else repr(output.value)
