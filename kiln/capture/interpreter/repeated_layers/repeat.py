"""Calls a module: if an equal one was called before, that call is repeated instead of interpreted.

    for layer in self.layers:      layer 0 is interpreted
        x = layer(x, mask)         layers 1 to 47: its guards on other paths, its torch calls on other fakes

A class keeps its last recorded calls. One is repeated if the arguments pair with the recorded ones, the module passes
the template's guards, and nothing has changed since. Otherwise the call is interpreted and recorded.
`support/repetition.py` explains repeated layers as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Literal, final

import torch

from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.repeated_layers.pairing import Pairing
from kiln.capture.interpreter.repeated_layers.recorded_call import RecordedCall, modes
from kiln.capture.interpreter.repeated_layers.template import (
    CallTemplate,
    NotRepeatable,
    is_counterpart,
    make_template,
    step_fields,
)
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.runtime.guards.source import Source
from kiln.support.records import dataclass

KEPT = 4
"""Calls recorded per class, whose layers may alternate between several kinds."""
PATIENCE = 6
"""A class is no longer recorded after so many calls in a row that repeated none."""


@final
@dataclass(slots=True)
class RepeatableCall:
    """A recorded call with its template, made when it is first needed; None if there cannot be one."""

    recorded: RecordedCall
    template: CallTemplate | Literal["unmade"] | None = "unmade"


@final
@dataclass(slots=True)
class Family:
    """Calls of modules of one class, the latest last."""

    calls: list[RepeatableCall] = field(default_factory=list)
    misses: int = 0


@final
@dataclass
class Families:
    """By class of the modules."""

    by_class: dict[type, Family] = field(default_factory=dict)


def call_repeatable(
    s: CaptureState, module: Object, args: Args, kwargs: Kwargs, interpret: Callable[[], Value]
) -> Value:
    """`module(*args, **kwargs)`; `interpret` is the call of it opcode by opcode."""
    if module.source is None or module.original is MISSING or s.effects.wrote_outside:
        return interpret()
    if torch._C._functorch.maybe_current_level() is not None:  # tensors of a transform are wrappers, not fakes
        return interpret()
    families = s.part(Families).by_class
    family = families.get(module.cls)
    if family is None:
        family = families[module.cls] = Family()
    if family.misses >= PATIENCE:
        return interpret()
    for call in reversed(family.calls):
        result = repeated(s, call, module, args, kwargs)
        if result is not None:
            family.misses = 0
            return result
    family.misses += bool(family.calls)
    recorded = RecordedCall.begin(s, module, args, kwargs)
    result = interpret()
    if recorded.end_with(s, result):
        family.calls = [*family.calls[1 - KEPT :], RepeatableCall(recorded)]
    return result


def repeated(s: CaptureState, call: RepeatableCall, module: Object, args: Args, kwargs: Kwargs) -> Value | None:
    """The result, if the recorded call can be repeated for `module`."""
    recorded = call.recorded
    if recorded.module is module or recorded.modes != modes() or recorded.effects != s.effects.lasting():
        return None
    pairing = pair_arguments(recorded, args, kwargs)
    if pairing is None:
        return None
    template = template_of(s, call)
    if template is None:
        return None
    reals = template.find(module.original)
    if reals is None or not is_new(s, template, module, reals):
        return None
    if not adopt(s, template, module, reals, pairing):
        return None
    for value in pairing.constants:
        value.constant(s)
    s.recorder.repeat(
        recorded.calls, pairing.fakes, running_frame(s).locations(), recorded.depth, recorded.start.writes
    )
    s.counters.frames += recorded.end.frames - recorded.start.frames
    s.counters.repeated_steps += recorded.steps
    return pairing.result(s, recorded.result)


def pair_arguments(recorded: RecordedCall, args: Args, kwargs: Kwargs) -> Pairing | None:
    if len(args) != len(recorded.args) or list(kwargs) != list(recorded.kwargs):
        return None
    pairing = Pairing(recorded.tensors)
    old, new = (*recorded.args, *recorded.kwargs.values()), (*args, *kwargs.values())
    return pairing if all(pairing.pair(a, b) for a, b in zip(old, new, strict=True)) else None


def template_of(s: CaptureState, call: RepeatableCall) -> CallTemplate | None:
    if call.template == "unmade":
        try:
            call.template = make_template(s, call.recorded)
        except NotRepeatable:
            call.template = None
    return call.template


def is_new(s: CaptureState, template: CallTemplate, module: Object, reals: list[object]) -> bool:
    """Whether this module shares objects, within itself and with others, exactly as the recorded one does."""
    count = len(template.objects)
    here: dict[int, object] = {0: module.original}
    seen: set[int] = set()
    for (number, value), real in zip(template.objects, reals, strict=False):
        if id(real) in seen or not is_counterpart(value, real):
            return False
        known = s.identities.objects.get(id(real))
        if known is not None and (isinstance(value, Tensor) or not leads(template, number, module, known.source)):
            return False
        seen.add(id(real))
        here[number] = real
    for (_, inside, value), real in zip(template.aliases, reals[count:], strict=True):
        expected = here.get(inside, MISSING) if inside is not None else value.original  # type: ignore[attr-defined]
        if real is not expected:
            return False
    return True


def leads(template: CallTemplate, number: int, module: Object, source: Source | None) -> bool:
    """Whether `source` is path `number` from `module`."""
    while number and source is not None:
        base, kind, fields = template.paths.steps[number - 1]
        if type(source) is not kind or step_fields(source) != fields:
            return False
        number, source = base, source.parent
    return source is module.source or (source is not None and source == module.source)


def adopt(s: CaptureState, template: CallTemplate, module: Object, reals: list[object], pairing: Pairing) -> bool:
    """Guards and objects of this module as if it had been interpreted; False if an input turns out to differ."""
    assert module.source is not None
    paths = template.paths.based(module.source)
    here = s.location()
    for number, guard, by_caller in template.guards:
        at = here if by_caller else guard.location
        s.guards.add(paths[number], guard.kind, guard.expected, at)
    fitting = True
    count = len(template.objects)
    for (number, old), real in zip(template.objects, reals, strict=False):
        if id(real) in s.identities.objects:
            continue
        new = s.wrap(real, paths[number])
        if isinstance(old, Tensor) and isinstance(new, Tensor):
            fitting &= same_input(s, old, new) and pairing.pair_fakes(old, new)
    if not fitting:
        return False
    for (number, _, _), real in zip(template.aliases, reals[count:], strict=True):
        s.wrap(real, paths[number])
    return True


def same_input(s: CaptureState, old: Tensor, new: Tensor) -> bool:
    """Whether `new` is an input of the same layout with its own memory."""
    view, first, second = new.fake.storage_view, *map(s.recorder.table.record_of, (old.fake, new.fake))
    assert first is not None and second is not None
    return first.spec == second.spec and view.step is None and not view.storage.unwritable
