"""Transfers to and from the host's memory run while kernels do, and hold little of the device's.

    k0: x -> a                     k0: x -> a                k0: g -> b                start: h -> a'
    k1: a -> b                     start: a -> h             start: h -> a'            k0: g -> b
    k2: b -> c              =>     k1: a -> b                wait a'            =>     k1: b -> c
    start: a -> h                  wait h holding a          k1: b -> c                wait a'
    wait h holding a               k2: b -> c                k2: a', c -> d            k2: a', c -> d

To the host, a transfer starts behind what computes its source, and is waited for where it will have ended: from there
on the source's memory is free. Back, it is waited for in front of the first reader, and starts as long before as it
takes. How long is estimated: by bytes over the link, and by the bytes and products of the steps in between. The link
carries one transfer after the other. `MOST_UNDER_WAY` are in flight each way, however slow it is, so that memory stays
bounded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import final

from kiln.loops.fusion.call_flops import call_flops
from kiln.loops.fusion.lifetimes import ScheduledStep
from kiln.loops.fusion.overlap import changes, is_wait
from kiln.loops.program.analyses import memory_of
from kiln.loops.program.nodes import Buffer, Extern
from kiln.plan.transfer_operators import TRANSFER
from kiln.support.host_link import GPU_LINK
from kiln.support.records import dataclass
from kiln.tensor.size_hint import size_hint

MOST_UNDER_WAY = 3

Pair = tuple[ScheduledStep, ScheduledStep]
"""The start of a transfer, and the wait for it."""


@final
@dataclass(frozen=True, slots=True)
class Placed:
    """The numbers of the other steps in front of which a transfer starts, and is waited for."""

    start: ScheduledStep
    wait: ScheduledStep
    first: int
    last: int


@final
class _Steps:
    """The steps that are no transfers, and their times, as bytes that the device moves meanwhile."""

    def __init__(self, steps: Sequence[ScheduledStep], buffers: Mapping[str, Buffer]) -> None:
        self.steps = steps
        self.buffers = buffers
        self.touched = [{memory_of(name, buffers) for name in step.touched()} for step in steps]
        self.changed = [{memory_of(name, buffers) for name in changes(step)} for step in steps]
        self.clock = list(accumulate(map(self.time, steps), initial=0))
        """When each step begins, and when the last has ended."""

    def time(self, step: ScheduledStep) -> int:
        moved = sum(map(self.size, dict.fromkeys(step.touched())))
        flops = size_hint(call_flops(step.step, self.buffers)) if isinstance(step.step, Extern) else 0
        return moved + flops // GPU_LINK.flops

    def size(self, name: str) -> int:
        spec = self.buffers[name].spec
        return size_hint(spec.numel()) * spec.dtype.itemsize

    def time_on_link(self, start: ScheduledStep) -> int:
        return GPU_LINK.moved * sum(map(self.size, changes(start)))

    def dependent(self, other: ScheduledStep) -> list[int]:
        """The numbers of the steps that write what `other` uses, or use what it writes."""
        touched = {memory_of(name, self.buffers) for name in other.touched()}
        changed = {memory_of(name, self.buffers) for name in changes(other)}
        memory = zip(self.touched, self.changed, strict=True)
        return [n for n, (used, made) in enumerate(memory) if made & touched or used & changed]

    def use(self, start: ScheduledStep) -> bool:
        """Whether any reads what a transfer makes; what goes to the host is only returned."""
        made = {memory_of(name, self.buffers) for name in changes(start)}
        return not all(map(made.isdisjoint, self.touched))

    def with_transfers(self, placed: Sequence[Placed]) -> list[ScheduledStep]:
        ordered: list[ScheduledStep] = []
        for place in range(len(self.steps) + 1):
            ordered += [each.wait for each in placed if each.first < each.last == place]
            ordered += [each.start for each in placed if each.first == place]
            ordered += [each.wait for each in placed if each.first == each.last == place]
            ordered += self.steps[place : place + 1]
        return ordered


def with_transfers_spread(steps: Sequence[ScheduledStep], buffers: Mapping[str, Buffer]) -> list[ScheduledStep]:
    """The steps with their transfers moved."""
    starts = [step for step in steps if is_transfer(step)]
    if not starts:
        return list(steps)
    waits = {name: step for step in steps if is_wait(step) for name in changes(step)}
    pairs = [(start, waits[name]) for start in starts for name in changes(start)]
    moved = {id(step) for pair in pairs for step in pair}
    others = _Steps([step for step in steps if id(step) not in moved], buffers)
    away = to_host([pair for pair in pairs if not others.use(pair[0])], others)
    back = to_device([pair for pair in pairs if others.use(pair[0])], others)
    return others.with_transfers([*away, *back])


def to_host(pairs: Sequence[Pair], others: _Steps) -> list[Placed]:
    """Each in flight until it will have ended, somebody writes to its source, or `MOST_UNDER_WAY` others follow."""
    ready = [((others.dependent(start) or [-1])[-1] + 1, start, wait) for start, wait in pairs]
    ready.sort(key=lambda entry: entry[0])
    placed: list[Placed] = []
    free_at = 0
    for count, (first, start, wait) in enumerate(ready):
        free_at = max(others.clock[first], free_at) + others.time_on_link(start)
        ends = [bisect_left(others.clock, free_at, hi=len(others.steps))]
        ends += [place for place in others.dependent(wait) if place >= first]
        ends += [place for place, _, _ in ready[count + MOST_UNDER_WAY :][:1]]
        placed.append(Placed(start, wait, first, max(first, min(ends))))
    return placed


def to_device(pairs: Sequence[Pair], others: _Steps) -> list[Placed]:
    """Each as late as it may start to be there in time, and behind the wait for the one `MOST_UNDER_WAY` before."""
    uses = [((others.dependent(wait) or [len(others.steps)])[0], start, wait) for start, wait in pairs]
    uses.sort(key=lambda entry: entry[0])
    begins: list[int] = []
    free_at = others.clock[-1]
    for last, start, _ in reversed(uses):
        free_at = min(others.clock[last], free_at) - others.time_on_link(start)
        begins.append(max(bisect_right(others.clock, free_at) - 1, 0))
    placed: list[Placed] = []
    for count, (begin, (last, start, wait)) in enumerate(zip(reversed(begins), uses, strict=True)):
        room = placed[count - MOST_UNDER_WAY].last if count >= MOST_UNDER_WAY else 0
        placed.append(Placed(start, wait, min(max(begin, room), last), last))
    return placed


def is_transfer(step: ScheduledStep) -> bool:
    return isinstance(step.step, Extern) and step.step.target == TRANSFER
