"""Results written over arguments that nobody reads afterwards.

    y[i0] = exp(load x[i0])      x is dead after this kernel        =>    x[i0] = exp(load x[i0]), y is x's memory

A result takes over an argument if it is stored once, at the places where the argument is loaded and not before it is
loaded for the last time, and if the argument has memory of its own that the region made. The result's buffer becomes
a view of the argument's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

from kiln.loops.body.body import Index, Load, LoopBody
from kiln.loops.fusion.dependencies import Dependencies
from kiln.loops.fusion.group import Group
from kiln.loops.fusion.views import KernelLoops
from kiln.loops.kernel.kernel import Accumulate, Phase, Store
from kiln.loops.program.analyses import reads, written
from kiln.loops.program.nodes import Buffer, Extern
from kiln.plan.overloads import find_overload


def take_over(
    loops: KernelLoops, dying: Collection[str], buffers: Mapping[str, Buffer]
) -> tuple[KernelLoops, dict[str, str]]:
    """The loops with results written over arguments in `dying`; the argument that each such result took over.

    `buffers`: those of the program, of which the loops see views.
    """
    pairs: dict[str, str] = {}
    for result, place, index in _single_stores(loops):
        if buffers[result].base is not None or buffers[result].spec.offset != 0:
            continue
        for name in dying:
            if name not in pairs.values() and _fits(loops, name, result, place, index):
                pairs[result] = name
                break
    return (_renamed(loops, pairs) if pairs else loops), pairs


def _single_stores(loops: KernelLoops) -> Iterator[tuple[str, int, Index]]:
    """Results that one plain store writes: name, phase, index."""
    stores: dict[str, list[tuple[int, Index] | None]] = {}
    for place, phase in enumerate(loops.phases):
        for effect in phase.effects:
            if isinstance(effect, Accumulate):
                if effect.running is not None:
                    stores.setdefault(effect.running.target, []).append(None)
            else:
                plain = effect.combine is None
                stores.setdefault(effect.target, []).append((place, effect.index) if plain else None)
    for name, found in stores.items():
        if name in loops.buffers and len(found) == 1 and found[0] is not None:
            yield name, *found[0]


def _fits(loops: KernelLoops, argument: str, result: str, place: int, index: Index) -> bool:
    """Is everything of `argument` read at the places of `result`, before these are written?"""
    if argument not in loops.buffers or loops.buffers[argument].spec != loops.buffers[result].spec:
        return False
    for number, phase in enumerate(loops.phases):
        for op in phase.body.ops:
            if isinstance(op, Load) and op.buffer == argument and not _reads_before(op, number, place, index):
                return False
        if any(effect.target == argument for effect in phase.effects):
            return False
    return True


def _reads_before(load: Load, phase: int, place: int, index: Index) -> bool:
    """Is it a plain load of the place `index`, in phase `place` or earlier?"""
    return phase <= place and load.index == index and load.mask is None


def _renamed(loops: KernelLoops, names: Mapping[str, str]) -> KernelLoops:
    phases = tuple(_renamed_phase(phase, names) for phase in loops.phases)
    buffers = {name: buffer for name, buffer in loops.buffers.items() if name not in names}
    return replace(loops, phases=phases, buffers=buffers)


def _renamed_phase(phase: Phase, names: Mapping[str, str]) -> Phase:
    ops = [
        replace(op, buffer=names[op.buffer]) if isinstance(op, Load) and op.buffer in names else op
        for op in phase.body.ops
    ]
    effects = [
        replace(one, target=names[one.target]) if isinstance(one, Store) and one.target in names else one
        for one in phase.effects
    ]
    return replace(phase, body=LoopBody(tuple(ops), phase.body.results), effects=tuple(effects))


# --------------------------------------------------------------------------------------- which arguments are dead


@final
class LastUses:
    """Which buffers have memory of their own that the region made, and the group that uses each last."""

    def __init__(self, groups: Sequence[Group], graph: Dependencies, buffers: Mapping[str, Buffer]) -> None:
        self.graph = graph
        self._last: dict[str, Group] = {}
        made: set[str] = set()
        for group in groups:
            made.update(_made(group))
            for name in _read(group):
                self._last[name] = group
        self._own = {name for name in made if graph.is_plain(name) and buffers[name].spec.offset == 0}

    def dying(self, group: Group) -> tuple[str, ...]:
        """Arguments of `group` whose memory it may write over."""
        return tuple(name for name in dict.fromkeys(_read(group)) if self._dies(name, group))

    def _dies(self, name: str, group: Group) -> bool:
        return name in self._own and self._last[name] is group and not self.graph.uses[name].kept


def _read(group: Group) -> Iterator[str]:
    if group.step is not None:
        for access in reads(group.step):
            yield access.buffer
    for member in group.members:
        for read in member.reads:
            yield read.buffer


def _made(group: Group) -> Iterator[str]:
    """Buffers with fresh memory."""
    if isinstance(group.step, Extern):
        if _gives_fresh_memory(group.step):
            yield from (out.name for out in group.step.outs if out is not None)
    elif group.step is not None:
        yield from written(group.step)
    for member in group.members:
        yield member.out if member.partial is None else member.partial.buffer.name


def _gives_fresh_memory(step: Extern) -> bool:
    """Is no result a view of an argument? By the schema of the overload."""
    if step.target.startswith("kiln."):
        return step.target == "kiln.empty"
    return all(one.alias_info is None for one in find_overload(step.target)._schema.returns)
