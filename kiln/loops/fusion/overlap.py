"""Collectives run while kernels do: they start as early and are waited for as late as memory allows.

    k0: x -> g                          k0: x -> g
    k1: x -> h                          start: g -> r
    start: g -> r              =>       k1: x -> h
    wait r                              k2: h -> s
    k2: h -> s                          wait r
    k3: r, s -> y                       k3: r, s -> y

Collectives stay in order among each other, which all ranks share, and behind calls with unknown effects. A wait comes
in front of the first step that uses what the collective fills, or writes to what it reads. What was computed since the
last wait and is not needed for a start runs behind it: the gradients of weights, while those of inputs are reduced.

Memory in flight is bounded. Whole parameters are gathered (`unshard`) while those of one block before are in use: such
a start moves up to the wait for the last one, past other collectives. Of reductions that scatter, which hold whole
gradients, `MOST_REDUCTIONS` are under way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kiln.loops.fusion.lifetimes import ScheduledStep
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.program.analyses import memory_of, written
from kiln.loops.program.nodes import WAIT, Buffer, Extern
from kiln.plan.collective_operators import UNSHARD
from kiln.plan.overloads import is_collective

REDUCE_SCATTER = "_c10d_functional.reduce_scatter_tensor"
MOST_REDUCTIONS = 2


def overlapped(steps: Sequence[ScheduledStep], buffers: Mapping[str, Buffer]) -> list[ScheduledStep]:
    """The steps with their collectives moved."""
    if not any(is_start(step) for step in steps):
        return list(steps)
    found = early_starts(steps, buffers)
    waiting: list[ScheduledStep] = []
    ordered: list[ScheduledStep] = []
    reductions: list[set[str]] = []
    for step in found:
        if is_wait(step):
            waiting.append(step)
            continue
        due = [wait for wait in waiting if depend(wait, step, buffers)]
        if starts(step, REDUCE_SCATTER):
            reductions.append(filled(step, buffers))
            ended = set().union(*reductions[:-MOST_REDUCTIONS])
            due = [wait for wait in waiting if wait in due or not ended.isdisjoint(filled(wait, buffers))]
        waiting = [wait for wait in waiting if wait not in due]
        ordered += [*due, step]
    return with_work_behind_starts(ordered + waiting, buffers)


def with_work_behind_starts(steps: Sequence[ScheduledStep], buffers: Mapping[str, Buffer]) -> list[ScheduledStep]:
    """Nothing moves past a wait or a fence, so that what a step reads and makes is not in memory for much longer."""
    ordered: list[ScheduledStep] = []
    between: list[ScheduledStep] = []
    for step in steps:
        if is_wait(step) or (is_fence(step) and not moves(step)):
            ordered += [*starts_first(between, buffers), step]
            between = []
        else:
            between.append(step)
    return ordered + starts_first(between, buffers)


def moves(step: ScheduledStep) -> bool:
    return is_start(step) and not starts(step, UNSHARD)


def starts_first(steps: Sequence[ScheduledStep], buffers: Mapping[str, Buffer]) -> list[ScheduledStep]:
    """Each collective behind what it needs and those before it, then the rest, in the order of `steps`."""
    if not any(moves(step) for step in steps):
        return list(steps)
    before = predecessors(steps, buffers)
    placed: dict[int, None] = {}
    for number, step in enumerate(steps):
        if moves(step):
            needed, waiting = {number}, [number]
            while waiting:
                found = before[waiting.pop()] - needed - placed.keys()
                needed |= found
                waiting += found
            placed |= dict.fromkeys(sorted(needed))
    return [steps[number] for number in (*placed, *(set(range(len(steps))) - placed.keys()))]


def predecessors(steps: Sequence[ScheduledStep], buffers: Mapping[str, Buffer]) -> list[set[int]]:
    """For each step the numbers of those that must stay in front of it; not those that follow from others."""
    found = list[set[int]]()
    writer: dict[str, int] = {}
    readers: dict[str, set[int]] = {}
    for number, step in enumerate(steps):
        touched = {memory_of(name, buffers) for name in step.touched()}
        changed = {memory_of(name, buffers) for name in changes(step)}
        before = {writer[memory] for memory in touched if memory in writer}
        for memory in changed:
            before |= readers.pop(memory, set())
            writer[memory] = number
        for memory in touched - changed:
            readers.setdefault(memory, set()).add(number)
        found.append(before - {number})
    return found


def early_starts(steps: Sequence[ScheduledStep], buffers: Mapping[str, Buffer]) -> list[ScheduledStep]:
    ordered: list[ScheduledStep] = []
    whole: set[str] = set()
    """Memory of gathered parameters."""
    for step in steps:
        place = len(ordered)
        if is_start(step):
            while place and may_pass(step, ordered[place - 1], whole, buffers):
                place -= 1
        if starts(step, UNSHARD):
            whole |= filled(step, buffers)
        ordered.insert(place, step)
    return ordered


def may_pass(start: ScheduledStep, other: ScheduledStep, whole: set[str], buffers: Mapping[str, Buffer]) -> bool:
    """Whether a collective may start in front of the step that comes before it."""
    if depend(other, start, buffers):
        return False
    if not starts(start, UNSHARD):
        return not is_fence(other)
    if is_wait(other):
        return whole.isdisjoint(filled(other, buffers))
    return not is_fence(other) or (is_start(other) and not starts(other, UNSHARD))


def starts(step: ScheduledStep, target: str) -> bool:
    return isinstance(step.step, Extern) and step.step.target.startswith(target)


def filled(step: ScheduledStep, buffers: Mapping[str, Buffer]) -> set[str]:
    """The memory that a collective fills, or for which a wait waits."""
    return {memory_of(name, buffers) for name in changes(step)}


def is_start(step: ScheduledStep) -> bool:
    return isinstance(step.step, Extern) and is_collective(step.step.target)


def is_wait(step: ScheduledStep) -> bool:
    return isinstance(step.step, Extern) and step.step.target == WAIT


def is_fence(step: ScheduledStep) -> bool:
    """Whether no collective may be moved in front of it: checks, numbers read on the host, effects."""
    if isinstance(step.step, KernelLaunch) or is_wait(step):
        return False
    return not isinstance(step.step, Extern) or not step.step.target.startswith("aten.")


def depend(first: ScheduledStep, second: ScheduledStep, buffers: Mapping[str, Buffer]) -> bool:
    """Whether one of two steps writes to memory that the other uses."""
    touched = [{memory_of(name, buffers) for name in step.touched()} for step in (first, second)]
    changed = [{memory_of(name, buffers) for name in changes(step)} for step in (first, second)]
    return not changed[0].isdisjoint(touched[1]) or not changed[1].isdisjoint(touched[0])


def changes(step: ScheduledStep) -> tuple[str, ...]:
    """Names of the buffers that a step writes, or whose memory it takes over."""
    node = step.step
    if isinstance(node, KernelLaunch):
        return (*step.overwriting, *node.written())
    return written(node) if isinstance(node, Extern) else step.touched()
