"""The canonical form of a kernel, which makes equal kernels equal data.

    canonical(kernel)    the kernel with buffers in0, out1.., locals sum0.., axes i0.., indirect j0.., sizes n0..,
                         and its key

Kernels with equal keys are one kernel called with other arguments: the key ignores names, origins and the order of
independent ops.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from kiln.loops.body.analyses import moved, operands_of, symbols_used
from kiln.loops.body.body import Indirect, LoopBody
from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.rename import Renaming, rename_body
from kiln.loops.kernel.analyses import kernel_reads
from kiln.loops.kernel.kernel import Accumulate, Effect, KernelIR, Local, Phase, Store
from kiln.loops.kernel.text import kernel_text
from kiln.loops.program.nodes import Buffer
from kiln.symbolic import Int, Symbol, symbol


def rename_kernel(kernel: KernelIR, by: Renaming) -> KernelIR:
    return replace(
        kernel,
        units=by.axes(kernel.units),
        phases=tuple(rename_phase(phase, by) for phase in kernel.phases),
        locals=tuple(Local(by.name(local.name), local.dtype, by.axes(local.axes)) for local in kernel.locals),
        params=tuple(_rename_buffer(param, by) for param in kernel.params),
        writes=frozenset(map(by.name, kernel.writes)),
        ints=by.index(kernel.ints),
        grain=by.value(kernel.grain),
    )


def _rename_buffer(buffer: Buffer, by: Renaming) -> Buffer:
    base = None if buffer.base is None else by.name(buffer.base)
    return Buffer(by.name(buffer.name), by.spec(buffer.spec), base)


def rename_phase(phase: Phase, by: Renaming) -> Phase:
    effects = tuple(_rename_effect(effect, by) for effect in phase.effects)
    return replace(phase, axes=by.axes(phase.axes), body=rename_body(phase.body, by), effects=effects)


def _rename_store(store: Store, by: Renaming) -> Store:
    return replace(store, target=by.name(store.target), index=by.index(store.index))


def _rename_effect(effect: Effect, by: Renaming) -> Effect:
    if isinstance(effect, Store):
        return _rename_store(effect, by)
    return replace(
        effect,
        target=by.name(effect.target),
        over=by.axes(effect.over),
        index=by.index(effect.index),
        running=None if effect.running is None else _rename_store(effect.running, by),
        exp_sum=None if effect.exp_sum is None else by.name(effect.exp_sum),
    )


def canonical(kernel: KernelIR) -> tuple[KernelIR, str]:
    """The kernel under canonical names, and a key that equal kernels share (64 hexadecimal digits).

    Parameter i of the kernel is parameter i of its canonical form, size argument i its size argument i.
    """
    ordered = replace(kernel, phases=tuple(map(_ordered_phase, kernel.phases)), name="kernel", origin="")
    made = rename_kernel(ordered, Renaming(_canonical_names(ordered), _canonical_symbols(ordered)))
    access = "".join("w" if param.name in made.writes else "r" for param in made.params)
    return made, hashlib.sha256(f"{access}\n{kernel_text(made)}".encode()).hexdigest()


def _canonical_names(kernel: KernelIR) -> dict[str, str]:
    """Parameters in0, out1, io2 by use; locals sum0, amax1, row2 by contents."""
    reads, names = kernel_reads(kernel), {}
    for position, param in enumerate(kernel.params):
        kind = "in" if param.name not in kernel.writes else "io" if param.name in reads else "out"
        names[param.name] = f"{kind}{position}"
    effects = [effect for phase in kernel.phases for effect in phase.effects]
    combined = {effect.target: effect.op.value for effect in effects if isinstance(effect, Accumulate)}
    combined |= {effect.exp_sum: "sum" for effect in effects if isinstance(effect, Accumulate) and effect.exp_sum}
    for position, local in enumerate(kernel.locals):
        names[local.name] = f"{combined.get(local.name, 'row' if local.axes else 'number')}{position}"
    return names


def _canonical_symbols(kernel: KernelIR) -> dict[Symbol, Int]:
    """Axes in order of appearance i0.., bound symbols j0.., size arguments n0.."""
    nests = (kernel.units, *(phase.axes for phase in kernel.phases), *(local.axes for local in kernel.locals))
    loops = dict.fromkeys(axis.symbol for axes in nests for axis in axes)
    ops = (op for phase in kernel.phases for op in phase.body.ops)
    data = dict.fromkeys(op.symbol for op in ops if isinstance(op, Indirect))
    renamed: dict[Symbol, Int] = {}
    for prefix, group in (("i", loops), ("j", data)):
        renamed |= {old: symbol(f"{prefix}{position}") for position, old in enumerate(group)}
    for position, given in enumerate(kernel.ints):
        if isinstance(given, Symbol):
            renamed[given] = symbol(f"n{position}")
    return renamed


def _ordered_phase(phase: Phase) -> Phase:
    """The ops in the order in which the effects need them, results numbered by the effects."""
    builder = BodyBuilder()
    positions: dict[int, int] = {}
    binders = {op.symbol: position for position, op in enumerate(phase.body.ops) if isinstance(op, Indirect)}

    def need_symbols(symbols: frozenset[Symbol]) -> None:
        for bound in sorted(symbols & binders.keys(), key=lambda bound: binders[bound]):
            need(binders[bound])

    def need(position: int) -> None:
        if position in positions:
            return
        op = phase.body.ops[position]
        for operand in operands_of(op):
            need(operand)
        need_symbols(symbols_used(op))
        positions[position] = builder.append(moved(op, positions))

    results: list[int] = []
    effects: list[Effect] = []
    for effect in phase.effects:
        position = phase.body.results[effect.result]
        need(position)
        for at in effect.index:
            need_symbols(at.free_symbols() if not isinstance(at, int) else frozenset())
        if positions[position] not in results:
            results.append(positions[position])
        number = results.index(positions[position])
        changed = replace(effect, result=number)
        if isinstance(changed, Accumulate) and changed.running is not None:
            changed = replace(changed, running=replace(changed.running, result=number))
        effects.append(changed)
    return replace(phase, body=LoopBody(tuple(builder.ops), tuple(results)), effects=tuple(effects))
