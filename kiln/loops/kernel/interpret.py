"""Running kernels on real tensors: `run_kernel(kernel, memory)` writes into the tensors of `memory`."""

from __future__ import annotations

from dataclasses import replace

import torch

from kiln.loops.body.body import Index
from kiln.loops.body.indexing import symbols_of
from kiln.loops.body.interpret import Read, TorchHandler, axis_values, number
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase, Store
from kiln.loops.program.interpret import Memory
from kiln.loops.program.nodes import ReduceOp
from kiln.loops.program.reductions import COMBINE, SCAN, put, reduced

Tensor = torch.Tensor


def run_kernel(kernel: KernelIR, memory: Memory) -> None:
    """Run all units at once, except along unit axes on which sizes of phases depend."""
    sizes = symbols_of(*(axis.size for phase in kernel.phases for axis in phase.axes))
    for axis in kernel.units:
        if axis.symbol in sizes:
            rest = replace(kernel, units=tuple(unit for unit in kernel.units if unit is not axis))
            for position in range(number(axis.size, memory.sizes)):
                run_kernel(rest, replace(memory, sizes={**memory.sizes, axis.symbol: position}))
            return
    _run_units(kernel, memory)


def _run_units(kernel: KernelIR, memory: Memory) -> None:
    _, extents = axis_values(kernel.units, memory.sizes)
    units = tuple(axis.symbol for axis in kernel.units)
    locals_: dict[str, Tensor] = {}
    for local in kernel.locals:
        shape = extents + tuple(number(axis.size, memory.sizes) for axis in local.axes)
        locals_[local.name] = torch.full(
            shape, float("nan") if local.dtype.is_floating_point else 1, dtype=local.dtype, device="cpu"
        )
    started: set[str] = set()

    def find(name: str) -> tuple[Tensor, Index]:
        return (locals_[name], units) if name in locals_ else memory.read(name)

    for phase in kernel.phases:
        _run_phase(kernel, phase, find, memory, started)


def _run_phase(kernel: KernelIR, phase: Phase, find: Read, memory: Memory, started: set[str]) -> None:
    axes = (*kernel.units, *phase.axes)
    values, extents = axis_values(axes, memory.sizes)
    handler = TorchHandler({**memory.sizes, **values}, find, memory.faults)
    results = [result.expand(extents) for result in phase.body.run(handler)]
    for effect in phase.effects:
        value = results[effect.result]
        if isinstance(effect, Store):
            _store(effect, value, handler)
            continue
        if effect.running is not None:
            dim = axes.index(effect.over[0])
            _store(effect.running, SCAN[effect.op](value, dim=dim), handler)
            continue
        dims = [axes.index(axis) for axis in effect.over]
        _accumulate(effect, value, dims, handler, started)
        if effect.exp_sum is not None:
            top, before = handler.read(effect.target)
            at = handler.coordinates((*before, *effect.index))
            beside = replace(effect, target=effect.exp_sum, op=ReduceOp.SUM, exp_sum=None)
            _accumulate(beside, (value - (top[at] if at else top)).exp(), dims, handler, started)


def _store(effect: Store, value: Tensor, handler: TorchHandler) -> None:
    target, before = handler.read(effect.target)
    put(target, handler.coordinates((*before, *effect.index)), value, effect.combine)


def _accumulate(effect: Accumulate, value: Tensor, dims: list[int], handler: TorchHandler, started: set[str]) -> None:
    target, before = handler.read(effect.target)
    part = reduced(value, effect.op, dims, target.dtype)
    at = handler.coordinates((*before, *effect.index))
    if effect.target in started:
        old = target[at] if at else target
        part = COMBINE[effect.op](old, part.expand(torch.broadcast_shapes(old.shape, part.shape)))
    started.add(effect.target)
    put(target, at, part, None)
