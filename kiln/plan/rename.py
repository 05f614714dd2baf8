"""The same step on other slots.

    with_slots(Launch("k0", (1, 5), ...), {1: 3, 5: 9}.__getitem__)   ->   Launch("k0", (3, 9), ...)

`rename` is called for every mention of a slot, in an order that only the kind of step decides: so the mentions of two
steps of one form can be compared one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kiln.plan.plan import (
    Allocate,
    Branch,
    CallAten,
    Check,
    Constant,
    Copy,
    Free,
    HostRead,
    Launch,
    RandomSeed,
    Ref,
    Slot,
    Step,
    View,
)

Rename = Callable[[Slot], Slot]


def with_slots(step: Step, rename: Rename) -> Step:
    """`step` with `rename` applied to all that it reads and defines; nested plans have slots of their own."""
    made: Step = RENAMED[type(step)](step, rename)
    return made


def _in_value(value: Any, rename: Rename) -> Any:
    if isinstance(value, Ref):
        return Ref(rename(value.slot))
    if isinstance(value, tuple):
        return tuple([_in_value(item, rename) for item in value])
    return value


def _each(slots: tuple[Slot, ...], rename: Rename) -> tuple[Slot, ...]:
    return tuple([rename(slot) for slot in slots])


def _maybe(slot: Slot | None, rename: Rename) -> Slot | None:
    return None if slot is None else rename(slot)


def _call(step: CallAten, rename: Rename) -> CallAten:
    args = _in_value(step.args, rename)
    kwargs = tuple([(name, _in_value(value, rename)) for name, value in step.kwargs])
    outs = tuple([_maybe(out, rename) for out in step.outs])
    return CallAten(step.target, args, kwargs, outs, step.specs, step.origin)


def _launch(step: Launch, rename: Rename) -> Launch:
    return replace(step, tensors=_each(step.tensors, rename), floats=_in_value(step.floats, rename))


def _branch(step: Branch, rename: Rename) -> Branch:
    condition, args = rename(step.condition), _each(step.args, rename)
    return replace(step, condition=condition, args=args, outs=_each(step.outs, rename))


# fmt: off
RENAMED: Mapping[type, Callable[[Any, Rename], Any]] = {
    Allocate:   lambda step, rename: Allocate(rename(step.out), step.spec, _maybe(step.reuse, rename)),
    Launch:     _launch,
    CallAten:   _call,
    View:       lambda step, rename: View(rename(step.out), rename(step.base), step.spec),
    Copy:       lambda step, rename: Copy(rename(step.target), rename(step.source)),
    Constant:   lambda step, rename: Constant(rename(step.out), step.index),
    HostRead:   lambda step, rename: HostRead(step.symbol, rename(step.source), step.kind),
    Check:      lambda step, rename: Check(step.relation, _maybe(step.condition, rename), step.message),
    RandomSeed: lambda step, rename: RandomSeed(rename(step.out), step.device, step.increment),
    Free:       lambda step, rename: Free(_each(step.slots, rename)),
    Branch:     _branch,
}
# fmt: on
