"""Results that the caller gets before the plan ends: gradients, whose reduction over ranks then overlaps with the rest.

    launch k_0(%0, %3)                          launch k_0(%0, %3)
    launch k_1(%1, %4)                          hand over results 1
    return %4, %3                     =>        launch k_1(%1, %4)
                                                return %4, %3

`parts`: for each result the number of its part. There is a step for each part but the last, which ends with the plan; a
part is handed over behind the last step that uses memory of its results, or of those of earlier parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kiln.plan.overloads import returns_views
from kiln.plan.plan import Plan, Slot, Step
from kiln.plan.steps import AtenStep, BranchStep, HandOverStep, LoopStep, ViewStep


def with_hand_overs(plan: Plan, parts: Sequence[int]) -> Plan:
    """The plan with its steps; unchanged where results of different parts share memory."""
    last_part = max(parts, default=0)
    if not last_part or len(plan.outputs) != len(parts) or shares_memory(plan, parts):
        return plan
    used = last_uses(plan)
    ready = [-1] * last_part
    for output, part in zip(plan.outputs, parts, strict=True):
        slot = output.slot if output.alias_input is None else output.alias_input
        for behind in range(part, last_part):
            ready[behind] = max(ready[behind], used.get(slot, -1) if slot is not None else -1)
    members = [tuple([n for n, part in enumerate(parts) if part == number]) for number in range(last_part)]
    steps: list[Step] = []
    for position in range(-1, len(plan.steps)):
        steps += [plan.steps[position]] if position >= 0 else []
        steps += [HandOverStep(members[part]) for part in range(last_part) if ready[part] == position]
    return replace(plan, steps=tuple(steps))


def shares_memory(plan: Plan, parts: Sequence[int]) -> bool:
    """Whether a result is a view of one of another part."""
    aliases = [(number, output.alias_output) for number, output in enumerate(plan.outputs)]
    return any(base is not None and parts[number] != parts[base] for number, base in aliases)


def last_uses(plan: Plan) -> dict[Slot, int]:
    """For each slot the last step that uses its memory."""
    groups: dict[Slot, list[Slot]] = {}
    for step in plan.steps:
        if isinstance(step, ViewStep):
            join(groups, step.out, step.base)
        elif may_return_arguments(step):
            for out in step.writes():
                for slot in step.reads():
                    join(groups, out, slot)
    found: dict[Slot, int] = {}
    for position, step in enumerate(plan.steps):
        for slot in (*step.reads(), *step.writes()):
            for other in groups.get(slot, (slot,)):
                found[other] = position
    return found


def join(groups: dict[Slot, list[Slot]], first: Slot, second: Slot) -> None:
    """Two slots may share memory."""
    one, other = groups.setdefault(first, [first]), groups.setdefault(second, [second])
    if one is not other:
        one += other
        groups.update(dict.fromkeys(other, one))


def may_return_arguments(step: Step) -> bool:
    return isinstance(step, BranchStep | LoopStep) or (isinstance(step, AtenStep) and returns_views(step.target))
