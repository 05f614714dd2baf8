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
from kiln.loops.kernel.mapped import MappedKernel, UnitRun
from kiln.loops.kernel.tiling import BlockDim, Tiling
from kiln.loops.program.text import buffer_text, origin_comment
from kiln.tensor.dtypes import DTYPE_NAMES


def kernel_text(kernel: KernelIR) -> str:
    return "\n".join([_head(kernel), *_inside(kernel)])


def mapped_kernel_text(mapped: MappedKernel) -> str:
    """A kernel and how its points map to the machine."""
    run = [] if mapped.run is None else [INDENT + _run_text(mapped.run)]
    tiling = [] if mapped.tiling is None else [INDENT + _tiling_text(mapped.tiling)]
    lanes = [f"{INDENT}lanes {mapped.lanes}"] if mapped.lanes else []
    return "\n".join([_head(mapped.kernel), *lanes, *run, *tiling, *_inside(mapped.kernel)])


def _head(kernel: KernelIR) -> str:
    read = [buffer_text(param) for param in kernel.params if param.name not in kernel.writes]
    written = [buffer_text(param) for param in kernel.params if param.name in kernel.writes]
    ints = f"; {', '.join(map(str, kernel.ints))}" if kernel.ints else ""
    head = f"kernel {kernel.name}({', '.join(read)} -> {', '.join(written)}{ints}) units {axes_text(kernel.units)}"
    grain = "" if kernel.grain == 1 else f" grain {kernel.grain}"
    strip = "" if kernel.strip == 0 else f" strip {kernel.strip}"
    return head + strip + grain + origin_comment(kernel.origin)


def _run_text(run: UnitRun) -> str:
    """`run k_i1 < count_i1 <= 256 of i1, row_i0 < rows_i0 <= 16 of i0`."""
    longest = f" <= {run.longest}" if run.longest else ""
    rows = run.rows
    beside = "" if rows is None else f", {rows.row} < {rows.rows} <= {rows.longest} of {rows.axis.symbol}"
    return f"run {run.lane} < {run.count}{longest} of {run.axis.symbol}{beside}"


def _tiling_text(tiling: Tiling) -> str:
    """`block (i0: 64 by XBLOCK 8, i1: 50257 by RBLOCK 4096 looped) numbers (i2) stages 3 layers 4 warps 8`."""
    parts = [f"block ({', '.join(_dim_text(dim) for dim in tiling.dims)})"]
    if tiling.numbers:
        parts.append(f"numbers ({', '.join(axis.symbol.name for axis in tiling.numbers)})")
    if tiling.serial:
        parts.append(f"serial ({', '.join(sorted(symbol.name for symbol in tiling.serial))})")
    parts += [f"{name} {dim.symbol}" for name, dim in (("shared", tiling.shared), ("unmasked", tiling.unmasked)) if dim]
    if any(dim.looped for dim in tiling.dims):
        parts.append(f"stages {tiling.stages} layers {tiling.layers}")
    return " ".join([*parts, f"warps {tiling.warps}"])


def _dim_text(dim: BlockDim) -> str:
    flat = "" if len(dim.axes) == 1 else f" = {' '.join(axis.symbol.name for axis in dim.axes)}"
    return f"{dim.symbol}{flat}: {dim.size} by {dim.name} {dim.block}{' looped' if dim.looped else ''}"


def _inside(kernel: KernelIR) -> list[str]:
    lines = []
    for local in kernel.locals:
        row = axes_text(local.axes) if local.axes else ""
        lines.append(f"{INDENT}local {local.name}{row}: {DTYPE_NAMES[local.dtype]}")
    for phase in kernel.phases:
        lines += [INDENT + line for line in phase_lines(phase)]
    return lines


def phase_lines(phase: Phase) -> list[str]:
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
