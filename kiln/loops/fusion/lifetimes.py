"""The life of buffers: where memory is made, which may be taken over, after which step it is dead.

    steps    k0: x -> a      k1: a -> b      k2: b -> c
    made     a before 0      b before 1      c before 2 (in the memory of a)
    dead     -               a after 1       b after 2

Memory of extern results is made by the call. Inputs, constants, results of the region and contents of writes are
never freed. A buffer with a `base` is a view: it keeps the memory of its base alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from kiln.loops.kernel.launches.program import Allocation, KernelLaunch
from kiln.loops.program.analyses import buffer_args
from kiln.loops.program.nodes import Buffer, Extern, LoopOutput

Step = KernelLaunch | Extern


@final
@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step, and the results that it writes over its arguments."""

    step: Step
    over: tuple[str, ...] = ()

    def touched(self) -> tuple[str, ...]:
        """Names of all buffers that the step reads or writes."""
        step = self.step
        if isinstance(step, KernelLaunch):
            return (*step.args, *self.over)
        outs = (out.name for out in step.outs if out is not None)
        return tuple(dict.fromkeys((*outs, *step.mutates, *(arg.name for arg in buffer_args(step)))))


def allocations(
    steps: Sequence[ScheduledStep], known: frozenset[str], buffers: Mapping[str, Buffer]
) -> tuple[Allocation, ...]:
    """Memory for every buffer that a kernel writes first; `known` are those that have theirs (inputs, constants)."""
    made, found = set(known), []
    for place, placed in enumerate(steps):
        if isinstance(placed.step, Extern):
            made.update(out.name for out in placed.step.outs if out is not None)
            continue
        for name in placed.touched():
            if name not in made:
                found.append(Allocation(buffers[name], place))
                made.add(name)
    return tuple(found)


def frees(
    steps: Sequence[ScheduledStep], kept: frozenset[str], buffers: Mapping[str, Buffer]
) -> tuple[tuple[str, ...], ...]:
    """For each step the buffers that nothing uses after it; `kept` outlive the region."""
    last: dict[str, int] = {}
    for place, placed in enumerate(steps):
        for name in placed.touched():
            below: str | None = name
            while below is not None:
                # A part that is written later needs the memory that it is a part of.
                last[below] = place
                below = buffers[below].base if below in buffers else None
    dead: list[list[str]] = [[] for _ in steps]
    for name, place in last.items():
        if name not in kept and name in buffers:
            dead[place].append(name)
    return tuple(map(tuple, dead))


def kept_alive(outputs: Sequence[LoopOutput], writes: Sequence[tuple[str, str]]) -> frozenset[str]:
    """Buffers that the region gives back or writes from at its end."""
    named = {one.buffer for one in outputs if one.buffer is not None}
    return frozenset(named | {name for pair in writes for name in pair})
