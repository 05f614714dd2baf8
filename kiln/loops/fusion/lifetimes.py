"""Lifetimes of buffers: where memory is made, after which step it is dead, which may be written over.

    steps    k0: x -> a      k1: a -> b      k2: b -> c
    made     a before 0      b before 1      c before 2 (in the memory of a)
    dead     -               a after 1       b after 2

Memory of extern results is made by the call. Inputs, constants, results of the region and contents of writes are
never freed. A buffer with a `base` is a view: it keeps the memory of its base alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from kiln.loops.fusion.dependencies import Dependencies
from kiln.loops.fusion.group import Group
from kiln.loops.kernel.launches.program import Allocation, KernelLaunch
from kiln.loops.program.analyses import buffer_args, outs, reads, written
from kiln.loops.program.nodes import Buffer, Extern
from kiln.plan.overloads import find_overload


@final
@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step, and the results that it writes over its arguments."""

    step: KernelLaunch | Extern
    overwriting: tuple[str, ...] = ()

    def touched(self) -> tuple[str, ...]:
        """Names of all buffers that the step reads or writes."""
        step = self.step
        if isinstance(step, KernelLaunch):
            return (*step.args, *self.overwriting)
        made = (out.name for out in outs(step))
        return tuple(dict.fromkeys((*made, *step.mutates, *(arg.name for arg in buffer_args(step)))))


def allocations(
    steps: Sequence[ScheduledStep], existing: frozenset[str], buffers: Mapping[str, Buffer]
) -> tuple[Allocation, ...]:
    """Memory for every buffer that a kernel writes first; inputs and constants are `existing`."""
    made, found = set(existing), []
    for position, scheduled in enumerate(steps):
        if isinstance(scheduled.step, Extern):
            made.update(out.name for out in outs(scheduled.step))
            continue
        for name in scheduled.touched():
            if name not in made:
                found.append(Allocation(buffers[name], position))
                made.add(name)
    return tuple(found)


def frees(
    steps: Sequence[ScheduledStep], kept: frozenset[str], buffers: Mapping[str, Buffer]
) -> tuple[tuple[str, ...], ...]:
    """For each step the buffers that nothing uses after it; `kept` outlive the region."""
    last: dict[str, int] = {}
    for position, scheduled in enumerate(steps):
        for name in scheduled.touched():
            # A view that is written later needs the memory of its base.
            below: str | None = name
            while below is not None:
                last[below] = position
                below = buffers[below].base if below in buffers else None
    dead: list[list[str]] = [[] for _ in steps]
    for name, position in last.items():
        if name not in kept and name in buffers:
            dead[position].append(name)
    return tuple(map(tuple, dead))


@final
class LastUses:
    """Buffers with memory of their own that the region made, and the group that uses each last."""

    def __init__(self, groups: Sequence[Group], graph: Dependencies, buffers: Mapping[str, Buffer]) -> None:
        self.graph = graph
        self._last = {name: group for group in groups for name in _read(group)}
        made = {name for group in groups for name in _made(group)}
        self._own = {name for name in made if graph.has_own_memory(name) and buffers[name].spec.offset == 0}

    def dying(self, group: Group) -> tuple[str, ...]:
        """Arguments of `group` whose memory it may write over."""
        last = (name for name in dict.fromkeys(_read(group)) if name in self._own and self._last[name] is group)
        return tuple(name for name in last if not self.graph.uses[name].kept)


def _read(group: Group) -> Iterator[str]:
    if group.step is not None:
        yield from (access.buffer for access in reads(group.step))
    for member in group.members:
        yield from (access.buffer for access in member.reads)


def _made(group: Group) -> Iterator[str]:
    """Buffers with fresh memory."""
    if isinstance(group.step, Extern):
        if _gives_fresh_memory(group.step):
            yield from (out.name for out in outs(group.step))
    elif group.step is not None:
        yield from written(group.step)
    for member in group.members:
        yield member.out if member.partial is None else member.partial.buffer.name


def _gives_fresh_memory(step: Extern) -> bool:
    """Is no result a view of an argument? By the schema of the overload."""
    if step.target.startswith("kiln."):
        return step.target == "kiln.empty"
    return all(result.alias_info is None for result in find_overload(step.target)._schema.returns)
