"""Results written over arguments that nobody reads afterwards.

    y[i0] = exp(load x[i0])      x is dead after this kernel        =>    x[i0] = exp(load x[i0]), y is x's memory

A result that is written back to an argument of the region takes over just that one.

A result takes over an argument if it is stored once, at the index at which the argument is loaded, and not before its
last load; and if the argument has memory of its own that the region made, or that it overwrites (`lifetimes.py`). The
result's buffer becomes a view of the argument's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kiln.loops.body.body import BodyOp, Index, Load
from kiln.loops.fusion.kernel_draft import KernelDraft
from kiln.loops.kernel.kernel import Accumulate, Phase


def take_over(draft: KernelDraft) -> KernelDraft:
    """The draft with results written over its dying arguments."""
    overwrites: dict[str, str] = {}
    for result, number, index in _single_stores(draft):
        if draft.buffers[result].is_part or result in draft.memory.placed:
            continue
        landing = draft.memory.landing.get(result)
        for name in draft.memory.dying if landing is None else (landing,):
            if name not in overwrites.values() and _fits(draft, name, result, number, index):
                overwrites[result] = name
                break
    if not overwrites:
        return draft
    phases = tuple(_renamed(phase, overwrites) for phase in draft.phases)
    views = {name: view for name, view in draft.views.items() if name not in overwrites}
    return replace(draft, phases=phases, views=views, overwrites=overwrites)


def _single_stores(draft: KernelDraft) -> Iterator[tuple[str, int, Index]]:
    """Results that one plain store writes: name, number of the phase, index."""
    stores: dict[str, list[tuple[int, Index] | None]] = {}
    for number, phase in enumerate(draft.phases):
        for effect in phase.effects:
            if isinstance(effect, Accumulate):
                if effect.running is not None:
                    stores.setdefault(effect.running.target, []).append(None)
            else:
                plain = effect.combine is None
                stores.setdefault(effect.target, []).append((number, effect.index) if plain else None)
    for name, found in stores.items():
        if name in draft.views and len(found) == 1 and found[0] is not None:
            yield name, *found[0]


def _fits(draft: KernelDraft, argument: str, result: str, number: int, index: Index) -> bool:
    """Is each element of `argument` read, in phase `number` or before, where that of `result` is then written?"""
    if argument not in draft.views or draft.views[argument].spec != draft.views[result].spec:
        return False
    for position, phase in enumerate(draft.phases):
        if any(effect.target == argument for effect in phase.effects):
            return False
        loads = [op for op in phase.body.ops if isinstance(op, Load) and op.buffer == argument]
        if any(position > number or load.index != index or load.mask is not None for load in loads):
            return False
    return True


def _renamed(phase: Phase, names: Mapping[str, str]) -> Phase:
    def renamed_load(op: BodyOp) -> BodyOp:
        return replace(op, buffer=names.get(op.buffer, op.buffer)) if isinstance(op, Load) else op

    # Accumulators are locals, which are not overwritten.
    effects = tuple([replace(effect, target=names.get(effect.target, effect.target)) for effect in phase.effects])
    return replace(phase, body=phase.body.mapped(renamed_load), effects=effects)
