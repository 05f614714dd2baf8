"""Calling a module: where an equal one was called before, what that call did is done again for this one.

    for layer in self.layers:      layer 0 is interpreted
        x = layer(x, mask)         layers 1 to 47: guards with other paths, inputs, torch calls on other fakes

A class keeps its last recordings. A call is repeated only if its arguments pair with the recorded ones, the module
passes the template's guards, and nothing was changed meanwhile. Else it is interpreted, and recorded in its turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

from kiln.capture.interpreter.blocks.pairing import Pairing
from kiln.capture.interpreter.blocks.recording import Recording, lasting_effects, modes
from kiln.capture.interpreter.blocks.template import NotRepeatable, Template, is_counterpart, make_template
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.runtime.guards.source import FIELDS, Source

KEPT = 4
"""Recordings per class: blocks of several kinds may alternate."""
PATIENCE = 6
"""A class whose calls differed so often without one repetition is no longer recorded."""


@final
@dataclass(slots=True)
class Family:
    """Calls of modules of one class, the latest last."""

    recordings: list[Recording] = field(default_factory=list)
    misses: int = 0

    @property
    def hopeless(self) -> bool:
        return self.misses >= PATIENCE


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
    families = s.part(Families).by_class
    family = families.get(module.cls)
    if family is None:
        family = families[module.cls] = Family()
    if family.hopeless:
        return interpret()
    for recording in reversed(family.recordings):
        result = repeated(s, recording, module, args, kwargs)
        if result is not None:
            family.misses = 0
            return result
    family.misses += bool(family.recordings)
    recording = Recording.begin(s, module, args, kwargs)
    result = interpret()
    if recording.ended(s, result):
        family.recordings = [*family.recordings[1 - KEPT :], recording]
    return result


def repeated(s: CaptureState, recording: Recording, module: Object, args: Args, kwargs: Kwargs) -> Value | None:
    """The result where the recorded call can be repeated for `module`."""
    if recording.module is module or recording.modes != modes() or recording.effects != lasting_effects(s):
        return None
    pairing = pair_arguments(recording, args, kwargs)
    if pairing is None:
        return None
    template = template_of(s, recording)
    if template is None:
        return None
    reals = template.find(module.original)
    if reals is None or not is_new(s, template, module, reals):
        return None
    if not adopt(s, template, module, reals, pairing):
        return None
    for value in pairing.asked:
        value.constant(s)
    s.recorder.repeat(
        recording.calls, pairing.fakes, running_frame(s).locations(), recording.depth, recording.start.writes
    )
    s.counters.frames += recording.end.frames - recording.start.frames
    s.counters.repeated_steps += recording.steps
    return pairing.result(s, recording.result)


def pair_arguments(recording: Recording, args: Args, kwargs: Kwargs) -> Pairing | None:
    if len(args) != len(recording.args) or list(kwargs) != list(recording.kwargs):
        return None
    pairing = Pairing(recording.tensors)
    old, new = (*recording.args, *recording.kwargs.values()), (*args, *kwargs.values())
    return pairing if all(pairing.pair(a, b) for a, b in zip(old, new, strict=True)) else None


def template_of(s: CaptureState, recording: Recording) -> Template | None:
    if recording.template is None:
        try:
            recording.template = make_template(s, recording)
        except NotRepeatable:
            recording.template = False
    return recording.template or None


def is_new(s: CaptureState, template: Template, module: Object, reals: list[Any]) -> bool:
    """Whether the objects of this module are as distinct, and as shared with others, as those of the recorded one."""
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


def leads(template: Template, number: int, module: Object, source: Source | None) -> bool:
    """Whether `source` is path `number` from `module`."""
    while number and source is not None:
        base, _, step = template.paths.steps[number - 1]
        if type(source) is not type(step):
            return False
        if any(getattr(source, name) != getattr(step, name) for name in FIELDS[type(step)] if name != "base"):
            return False
        number, source = base, source.parent
    return source is module.source or (source is not None and source == module.source)


def adopt(s: CaptureState, template: Template, module: Object, reals: list[Any], pairing: Pairing) -> bool:
    """Guards and objects of this module as if it had been interpreted; False where an input turns out different."""
    assert module.source is not None
    paths = template.paths.based(module.source)
    here = s.location()
    for number, guard, by_caller in template.guards:
        at = here if by_caller else guard.location
        s.guards.add(paths[number], guard.kind, guard.expected, at, guard.reason)
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
    """An input of the same sizes, in memory of its own."""
    view, first, second = new.fake.storage_view, *map(s.recorder.table.record_of, (old.fake, new.fake))
    assert first is not None and second is not None
    return first.spec == second.spec and view.step is None and not view.storage.tangled
