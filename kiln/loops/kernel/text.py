"""Kernels as text.

kernel centre(x: f32[4096, 1024] -> out: f32[4096, 1024]) units (i0: 4096)
    local total: f32
    phase (i1: 1024):
        total[] = sum over (i1): load x[i0, i1]
    phase (i1: 1024 vector):
        v0 = load x[i0, i1]
        v1 = mul(load total[], f32(0.0009765625))
        out[i0, i1] = sub(v0, v1)
"""

from __future__ import annotations

from kiln.loops.body.text import INDENT, BodyText, access_text, axes_text
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase, Store
from kiln.loops.program.text import buffer_text, origin_comment
from kiln.tensor.dtypes import DTYPE_NAMES


def kernel_text(kernel: KernelIR) -> str:
    """A kernel: parameters, locals, phases."""
    read = [buffer_text(one) for one in kernel.params if one.name not in kernel.writes]
    written = [buffer_text(one) for one in kernel.params if one.name in kernel.writes]
    ints = f"; {', '.join(map(str, kernel.ints))}" if kernel.ints else ""
    head = f"kernel {kernel.name}({', '.join(read)} -> {', '.join(written)}{ints}) units {axes_text(kernel.units)}"
    grain = "" if kernel.grain == 1 else f" grain {kernel.grain}"
    strip = "" if kernel.strip == 0 else f" strip {kernel.strip}"
    lines = [head + strip + grain + origin_comment(kernel.origin)]
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
