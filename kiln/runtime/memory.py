"""Which buffers of a plan need no tensor: they live in one arena per call.

    %2 = allocate f32[s0, 768]        only kernels touch %2: raw, bytes at an offset of the arena
    %3 = allocate f32[s0, 768]        an ATen step reads %3: a tensor of its own

A slot is raw when every use is a kernel argument, a view that is raw itself, or `Free`. The executor places raw
buffers by their lives (first step, last step) when sizes are known; two whose lives do not meet may share memory, so
`reuse` between raw slots needs no step.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import final

from kiln.runtime.plan import Allocate, Free, Launch, Plan, Slot, Step, View
from kiln.runtime.verify_plan import slots_read, slots_written


@final
@dataclass(frozen=True, slots=True)
class RawBuffer:
    """Life of a raw allocation: from step `first` to step `last`, both included."""

    slot: Slot
    first: int
    last: int


@final
@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`buffers`: raw allocations in the order of their steps. `views`: raw views, which are only pointers."""

    buffers: tuple[RawBuffer, ...]
    views: frozenset[Slot]


def plan_memory(plan: Plan) -> MemoryPlan:
    allocated = {step.out: place for place, step in enumerate(plan.steps) if isinstance(step, Allocate)}
    cpu = {step.out for step in plan.steps if isinstance(step, Allocate) and step.spec.device.type == "cpu"}
    base_of = {step.out: step.base for step in plan.steps if isinstance(step, View)}
    needs_tensor = _needs_tensor(plan)
    for view, base in reversed(base_of.items()):
        if view in needs_tensor:
            needs_tensor.add(base)
    last = _last_uses(plan)
    raw = {slot for slot in allocated if slot in cpu and slot not in needs_tensor}
    views: set[Slot] = set()
    for view, base in base_of.items():
        if view not in needs_tensor and (base in raw or base in views):
            views.add(view)
    for view in reversed(base_of):
        if view in views:
            base = base_of[view]
            last[base] = max(last[base], last[view])
    buffers = tuple(RawBuffer(slot, place, last[slot]) for slot, place in allocated.items() if slot in raw)
    return MemoryPlan(buffers, frozenset(views))


def _needs_tensor(plan: Plan) -> set[Slot]:
    """Slots with a use that wants a tensor object, or that leave the plan."""
    found = {output.slot for output in plan.outputs if output.slot is not None}
    for step in plan.steps:
        if not isinstance(step, Launch | View | Free | Allocate):
            found.update(slots_read(step))
    return found


def _last_uses(plan: Plan) -> dict[Slot, int]:
    """The last step that reads or defines each slot; `Free` and `reuse` are no uses of the contents."""
    last: dict[Slot, int] = {}
    for place, step in enumerate(plan.steps):
        if isinstance(step, Allocate | View):
            last[step.out] = place
        if not isinstance(step, Free | Allocate):
            for slot in slots_read(step):
                last[slot] = place
    return last


def with_frees(plan: Plan) -> Plan:
    """The plan with a `Free` after the last use of every slot that has none: arguments that the callee owns, too."""
    kept = {output.slot for output in plan.outputs} | {output.alias_input for output in plan.outputs}
    last: dict[Slot, int] = {slot: -1 for slot in range(len(plan.inputs))}
    gone: set[Slot | None] = set()
    for place, step in enumerate(plan.steps):
        last.update((slot, place) for slot in (*slots_read(step), *slots_written(step)))
        gone.update(step.slots if isinstance(step, Free) else ())
        gone.add(step.reuse if isinstance(step, Allocate) else None)
    ending: defaultdict[int, list[Slot]] = defaultdict(list)
    for slot, place in last.items():
        if slot not in kept and slot not in gone and (slot >= len(plan.inputs) or plan.inputs[slot].spec is not None):
            ending[place].append(slot)
    steps: list[Step] = [Free(tuple(ending[-1]))] if ending[-1] else []
    for place, step in enumerate(plan.steps):
        steps.append(step)
        if ending[place]:
            steps.append(Free(tuple(ending[place])))
    return replace(plan, steps=tuple(steps))
