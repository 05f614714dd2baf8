"""Memory planning: which buffers live in the arena of a call, which reuse the memory of inputs.

    %2 = allocate f32[s0, 768]        only kernels use %2: raw, an offset into the arena
    %3 = allocate f32[s0, 768]        an ATen step reads %3: a tensor of its own

A slot is raw when it is used only by kernels, `FreeStep`s and raw views. The executor lays out raw buffers by their
live ranges once sizes are known; buffers with disjoint live ranges may share memory, so `reuse` between raw slots needs
no step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import final

import torch

from kiln.plan.plan import Plan, Slot, Step
from kiln.plan.steps import AllocateStep, FreeStep, LaunchStep, ViewStep
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class RawBuffer:
    """Live range of a raw allocation: steps `first` to `last`, inclusive."""

    slot: Slot
    first: int
    last: int


@final
@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """`buffers`: raw allocations in the order of their steps. `views`: raw views."""

    buffers: tuple[RawBuffer, ...]
    views: frozenset[Slot]


def plan_memory(plan: Plan) -> MemoryPlan:
    allocated = {step.out: position for position, step in enumerate(plan.steps) if isinstance(step, AllocateStep)}
    cpu = {step.out for step in plan.steps if isinstance(step, AllocateStep) and step.spec.device.type == "cpu"}
    base_of = {step.out: step.base for step in plan.steps if isinstance(step, ViewStep)}
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
    buffers = tuple(RawBuffer(slot, position, last[slot]) for slot, position in allocated.items() if slot in raw)
    return MemoryPlan(buffers, frozenset(views))


def _needs_tensor(plan: Plan) -> set[Slot]:
    """Slots that are outputs or have a use that needs a tensor object."""
    found = {output.slot for output in plan.outputs if output.slot is not None}
    found.update(step.out for step in plan.steps if isinstance(step, AllocateStep) and step.reuse in plan.donated)
    for step in plan.steps:
        if not isinstance(step, LaunchStep | ViewStep | FreeStep | AllocateStep):
            found.update(step.reads())
    return found


def _last_uses(plan: Plan) -> dict[Slot, int]:
    """The last step that reads or defines each slot; `FreeStep` and `reuse` do not use the contents."""
    last: dict[Slot, int] = {}
    for position, step in enumerate(plan.steps):
        if isinstance(step, AllocateStep | ViewStep):
            last[step.out] = position
        if not isinstance(step, FreeStep | AllocateStep):
            for slot in step.reads():
                last[slot] = position
    return last


def with_frees(plan: Plan) -> Plan:
    """The plan with a `FreeStep` after the last use of every slot without one, owned arguments included."""
    kept = {output.slot for output in plan.outputs} | {output.alias_input for output in plan.outputs}
    last: dict[Slot, int] = {slot: -1 for slot in range(len(plan.inputs))}
    ended: set[Slot | None] = set()
    for position, step in enumerate(plan.steps):
        last.update((slot, position) for slot in (*step.reads(), *step.writes()))
        ended.update(step.slots if isinstance(step, FreeStep) else ())
        ended.add(step.reuse if isinstance(step, AllocateStep) else None)
    ending: defaultdict[int, list[Slot]] = defaultdict(list)
    for slot, position in last.items():
        if slot not in kept and slot not in ended and (slot >= len(plan.inputs) or plan.inputs[slot].spec is not None):
            ending[position].append(slot)
    steps: list[Step] = [FreeStep(tuple(ending[-1]))] if ending[-1] else []
    for position, step in enumerate(plan.steps):
        steps.append(step)
        if ending[position]:
            steps.append(FreeStep(tuple(ending[position])))
    return replace(plan, steps=tuple(steps))


SMALLEST_DONATED = 32 * 1024
"""Below this many bytes, checking that the memory is unused costs more than it saves."""


def with_donations(plan: Plan, owned: Iterable[Slot]) -> Plan:
    """The plan with large buffers in the memory of inputs that are dead by then.

        launch k_1(%0, %2)                            launch k_1(%0, %2)
        %3 = allocate f32[128, 256]            =>     %3 = allocate f32[128, 256] in memory of %0

    `owned`: inputs that only the plan may hold. Each call checks that: with retain_graph=True, or if a hook keeps the
    tensor, the buffer gets memory of its own.
    """
    last, views = _ends(plan)
    kept = {output.slot for output in plan.outputs} | {output.alias_input for output in plan.outputs}
    waiting: dict[Slot, tuple[int, torch.device]] = {}  # bytes and device
    for slot in owned:
        spec = plan.inputs[slot].spec
        if spec is not None and _num_bytes(spec) >= SMALLEST_DONATED and kept.isdisjoint((slot, *views[slot])):
            waiting[slot] = _num_bytes(spec), spec.device
    freed = {slot for step in plan.steps if isinstance(step, FreeStep) for slot in step.slots}
    steps: list[Step] = []
    donated: list[Slot] = []
    for position, step in enumerate(plan.steps):
        if isinstance(step, AllocateStep) and step.reuse is None:
            size = _num_bytes(step.spec)
            dead = ((slot, *memory) for slot, memory in waiting.items() if last[slot] < position and slot not in freed)
            fitting = [slot for slot, most, device in dead if most >= size and device == step.spec.device]
            if fitting and size >= SMALLEST_DONATED:
                found = min(fitting, key=waiting.__getitem__)
                del waiting[found]
                donated.append(found)
                live_views = tuple(view for view in views[found] if view not in freed)
                steps += [FreeStep(live_views)] if live_views else []
                step = replace(step, reuse=found)
        steps.append(step)
    return replace(plan, steps=tuple(steps), donated=(*plan.donated, *donated)) if donated else plan


def _ends(plan: Plan) -> tuple[dict[Slot, int], defaultdict[Slot, list[Slot]]]:
    """For each input, the last step that uses it or a view of it, and its views."""
    owner: dict[Slot, Slot] = {slot: slot for slot in range(len(plan.inputs))}
    last: dict[Slot, int] = dict.fromkeys(owner, -1)
    views: defaultdict[Slot, list[Slot]] = defaultdict(list)
    for position, step in enumerate(plan.steps):
        if isinstance(step, ViewStep) and step.base in owner:
            owner[step.out] = owner[step.base]
            views[owner[step.base]].append(step.out)
        for slot in (*step.reads(), *step.writes()):
            if slot in owner:
                last[owner[slot]] = position
    return last, views


def _num_bytes(spec: TensorSpec) -> int:
    """Of a contiguous tensor at the start of its memory; 0 for others and for symbolic sizes."""
    if spec.offset != 0 or not spec.is_contiguous():
        return 0
    elements = spec.numel()
    return elements * spec.dtype.itemsize if isinstance(elements, int) else 0
