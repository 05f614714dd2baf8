"""The loop IR as text, in the forms that the docstrings of its data show; `parse.py` reads it back.

    mean: f32[4096] = reduction sum over (i1: 1024) keeping (i0: 4096): load x[i0, i1]

    kernel centre(x: f32[4096, 1024] -> out: f32[4096, 1024]) units (i0: 4096)
        local total: f32
        phase (i1: 1024):
            total[] = sum over (i1): load x[i0, i1]
        phase (i1: 1024 vector):
            v0 = load x[i0, i1]
            v1 = mul(load total[], f32(0.0009765625))
            out[i0, i1] = sub(v0, v1)

A value that is used once is written where it is used, if the line stays short; others are named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch

from kiln.loops.body.body import (
    BodyOp,
    Compute,
    Const,
    Index,
    IndexValue,
    Indirect,
    Load,
    LoopBody,
    Random,
    Test,
)
from kiln.loops.body.builder import operands_of
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase, Store
from kiln.loops.kernel.scheduled import Launch, ScheduledProgram
from kiln.loops.program.nodes import (
    Axis,
    Buffer,
    BufferArg,
    Extern,
    LoopNode,
    LoopOutput,
    LoopProgram,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
)
from kiln.symbolic import Expr, Symbol
from kiln.tensor.dtypes import DTYPE_NAMES

MAX_NESTED, MAX_RESULT = 72, 100
"""Longest expression that is written where it is used: as an operand, as a result."""
INDENT = "    "


class BodyText:
    """Lines that name values, and the expressions of the results."""

    def __init__(self, body: LoopBody, results: Sequence[int] | None = None) -> None:
        """`results`: the number of each result as often as it is used; None: each once."""
        self.lines: list[str] = []
        self._exprs: list[str] = []
        uses = Counter(place for op in body.ops for place in operands_of(op))
        uses.update(body.results if results is None else (body.results[one] for one in results))
        for place, op in enumerate(body.ops):
            self._exprs.append(self._write(op, uses[place], MAX_RESULT if place in body.results else MAX_NESTED))
        self.results = tuple(self._exprs[place] for place in body.results)

    def _write(self, op: BodyOp, uses: int, limit: int) -> str:
        """The text by which later ops know the value; a line of its own where it is not written in place."""
        text = self._expr(op)
        if isinstance(op, Indirect):
            self.lines.append(f"{op.symbol} = {text}")
            return op.symbol.name
        if isinstance(op, Const) or (uses == 1 and len(text) <= limit):
            return text
        name = f"v{sum(line.startswith('v') for line in self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def _expr(self, op: BodyOp) -> str:
        match op:
            case Load(buffer, index, _, mask):
                condition = "" if mask is None else f" if {self._exprs[mask]}"
                return f"load {access_text(buffer, index)}{condition}"
            case Const(value, dtype):
                return f"{DTYPE_NAMES[dtype]}({number_text(value)})"
            case IndexValue(expr, dtype):
                return f"index({expr}, {DTYPE_NAMES[dtype]})"
            case Test(relation):
                return f"test({relation})"
            case Compute(prim, operands, dtype):
                extra = f", {DTYPE_NAMES[dtype]}" if prim.result == "attr" else ""
                return f"{prim.name}({', '.join(self._exprs[one] for one in operands)}{extra})"
            case Indirect(_, operand, size, check):
                return f"indirect({self._exprs[operand]}, {size}{'' if check else ', unchecked'})"
            case Random(distribution, seed, counter, dtype):
                return f"random_{distribution}({self._exprs[seed]}, {counter}, {DTYPE_NAMES[dtype]})"


def number_text(value: bool | int | float) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def access_text(buffer: str, index: Index) -> str:
    return f"{buffer}[{', '.join(map(str, index))}]"


def axes_text(axes: Sequence[Axis], vector: int | None = None) -> str:
    marks = ["" if place != vector else " vector" for place in range(len(axes))]
    return f"({', '.join(f'{axis.symbol}: {axis.size}{mark}' for axis, mark in zip(axes, marks, strict=True))})"


def buffer_text(buffer: Buffer) -> str:
    base = "" if buffer.base is None else f" in {buffer.base}"
    return f"{buffer.name}: {buffer.spec}{base}"


def body_text(body: LoopBody) -> str:
    """The ops of a body and what it gives."""
    text = BodyText(body)
    return "\n".join([*text.lines, f"-> {', '.join(text.results)}"])


# --------------------------------------------------------------------------------------- programs


def node_text(node: LoopNode) -> str:
    """One node; its body on the same line where it is a single expression."""
    if isinstance(node, Extern):
        return _extern_text(node) + _comment(node.origin)
    body = BodyText(node.body)
    head = f"{buffer_text(node.out)} = {_node_head(node)}:"
    if not body.lines:
        return f"{head} {body.results[0]}{_comment(node.origin)}"
    lines = [head + _comment(node.origin), *(INDENT + line for line in body.lines), f"{INDENT}-> {body.results[0]}"]
    return "\n".join(lines)


def _node_head(node: Pointwise | Reduction | Scan | Scatter) -> str:
    match node:
        case Pointwise():
            return f"pointwise {axes_text(node.axes)}"
        case Reduction():
            return f"reduction {node.op.value} over {axes_text(node.reduced)} keeping {axes_text(node.kept)}"
        case Scan():
            return f"scan {node.op.value} along {node.axes[node.along].symbol} of {axes_text(node.axes)}"
        case Scatter():
            combine = "" if node.combine is None else f" {node.combine.value}"
            return f"scatter{combine} into {node.init} at {access_text('', node.index)} of {axes_text(node.axes)}"


def _extern_text(node: Extern) -> str:
    outs = ", ".join("_" if out is None else buffer_text(out) for out in node.outs)
    args = [argument_text(arg) for arg in node.args]
    args += [f"{name}={argument_text(value)}" for name, value in node.kwargs]
    mutates = f" writes {', '.join(node.mutates)}" if node.mutates else ""
    return f"{outs or '_'} = extern {node.target}({', '.join(args)}){mutates}"


def argument_text(value: Any) -> str:
    """An argument of an extern call; strings are quoted, buffers are not."""
    if isinstance(value, BufferArg):
        return value.name if value.spec is None else f"{value.name} as {value.spec}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(argument_text(one) for one in value)}]"
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES[value]
    return repr(value) if isinstance(value, str) else str(value)


def _comment(origin: str) -> str:
    return f"  # {origin}" if origin else ""


def program_text(program: LoopProgram) -> str:
    """All of a `LoopProgram`."""
    lines = [f"loops {program.name}"]
    lines += _arguments_text(program)
    for node in program.nodes:
        lines += node_text(node).split("\n")
    lines += _results_text(program)
    return "\n".join([lines[0], *(INDENT + line for line in lines[1:])])


def _arguments_text(program: LoopProgram | ScheduledProgram) -> list[str]:
    lines = []
    for place, given in enumerate(program.inputs):
        name = f"{given}: size" if isinstance(given, Symbol) else buffer_text(given)
        lines.append(f"{name} = input {place}")
    return lines + [f"{buffer_text(buffer)} = constant {key}" for buffer, key in program.constants]


def _results_text(program: LoopProgram | ScheduledProgram) -> list[str]:
    lines = [f"write {target} = {source}" for target, source in program.writes]
    return [*lines, f"return {', '.join(map(_output_text, program.outputs))}"]


def _output_text(output: LoopOutput) -> str:
    view = "" if output.view is None else f" as {output.view}"
    if output.buffer is not None:
        return output.buffer + view
    if output.alias_input is not None:
        return f"alias of input {output.alias_input}{view}"
    if output.alias_output is not None:
        return f"alias of output {output.alias_output}{view}"
    return str(output.value) if isinstance(output.value, Expr) else repr(output.value)


def scheduled_text(program: ScheduledProgram) -> str:
    """All of a `ScheduledProgram`: its kernels, then allocations, launches, calls and frees in order."""
    lines = [line for kernel in distinct_kernels(program) for line in kernel_text(kernel).split("\n")]
    lines += _arguments_text(program)
    for place, step in enumerate(program.steps):
        for made in program.allocations:
            if made.before == place:
                reuse = "" if made.reuse is None else f" reusing {made.reuse}"
                lines.append(f"allocate {buffer_text(made.buffer)}{reuse}")
        lines += (launch_text(step) if isinstance(step, Launch) else node_text(step)).split("\n")
        if program.frees[place]:
            lines.append(f"free {', '.join(program.frees[place])}")
    lines += _results_text(program)
    return "\n".join([f"schedule {program.name}", *(INDENT + line for line in lines)])


def distinct_kernels(program: ScheduledProgram) -> tuple[KernelIR, ...]:
    """The kernels of a program, each once, in order of their first launch."""
    launched = (step.kernel for step in program.steps if isinstance(step, Launch))
    return tuple({id(kernel): kernel for kernel in launched}.values())


def launch_text(launch: Launch) -> str:
    """`launch norm(x, w -> out; s0)`."""
    writes = launch.kernel.writes
    pairs = [(name, param.name in writes) for param, name in zip(launch.kernel.params, launch.args, strict=True)]
    read, written = (", ".join(name for name, is_written in pairs if is_written is side) for side in (False, True))
    ints = f"; {', '.join(map(str, launch.ints))}" if launch.ints else ""
    return f"launch {launch.kernel.name}({read} -> {written}{ints})" + _comment(launch.origin)


# --------------------------------------------------------------------------------------- kernels


def kernel_text(kernel: KernelIR) -> str:
    """A kernel: parameters, locals, phases."""
    read = [buffer_text(one) for one in kernel.params if one.name not in kernel.writes]
    written = [buffer_text(one) for one in kernel.params if one.name in kernel.writes]
    ints = f"; {', '.join(map(str, kernel.ints))}" if kernel.ints else ""
    head = f"kernel {kernel.name}({', '.join(read)} -> {', '.join(written)}{ints}) units {axes_text(kernel.units)}"
    grain = "" if kernel.grain == 1 else f" grain {kernel.grain}"
    strip = "" if kernel.strip == 0 else f" strip {kernel.strip}"
    lines = [head + strip + grain + _comment(kernel.origin)]
    for local in kernel.locals:
        row = axes_text(local.axes) if local.axes else ""
        lines.append(f"{INDENT}local {local.name}{row}: {DTYPE_NAMES[local.dtype]}")
    for phase in kernel.phases:
        lines += [INDENT + line for line in phase_lines(phase)]
    return "\n".join(lines)


def phase_lines(phase: Phase) -> list[str]:
    """A phase: its axes, the named values of its body, its effects."""
    body = BodyText(phase.body, [effect.result for effect in phase.effects])
    lines = [f"phase {axes_text(phase.axes, phase.vector)}:", *(INDENT + line for line in body.lines)]
    for effect in phase.effects:
        text = _store_text(effect, body) if isinstance(effect, Store) else _accumulate_text(effect, body)
        lines.append(INDENT + text)
    return lines


def _store_text(effect: Store, body: BodyText) -> str:
    combine = "" if effect.combine is None else f"{effect.combine.value} "
    return f"{access_text(effect.target, effect.index)} {combine}= {body.results[effect.result]}"


def _accumulate_text(effect: Accumulate, body: BodyText) -> str:
    over = ", ".join(axis.symbol.name for axis in effect.over)
    head = f"{access_text(effect.target, effect.index)} = {effect.op.value} over ({over})"
    if effect.running is not None:
        head += f" to {access_text(effect.running.target, effect.running.index)}"
    if effect.exp_sum is not None:
        head += f" with {effect.exp_sum} of exp"
    return f"{head}: {body.results[effect.result]}"
