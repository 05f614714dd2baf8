"""Numbers that the frame itself changes: they are inputs of the region from the first compile on.

    self.steps += 1              steps is 0 in this call and 1 in the next: a guard on it would hold once
    layer.register_forward_hook  torch counts its handles in an attribute of their class
    while i < n: i += f(i)       the graph breaks in the loop, so `i` is an argument of a resume function

The capture begins again as soon as the guards and the effects of an attempt show such a number. A number or a size
that is a symbol in front of a graph break is one behind it, too, and so is a size that data decide there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from types import CodeType
from typing import final

import torch

from kiln.capture.interpreter.core import CaptureState, Effect, Value
from kiln.capture.interpreter.data_values import DataSizes, Instruction
from kiln.capture.interpreter.effects import ContentsEffect
from kiln.capture.interpreter.variables.class_changes import ClassAttributeEffect
from kiln.capture.interpreter.variables.deferred_text import Deferred
from kiln.capture.interpreter.variables.function import CellEffect
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import AttributeEffect
from kiln.capture.interpreter.variables.sequence import List, Sequence
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import (
    AttrSource,
    DictAttrSource,
    FormulaSource,
    ItemSource,
    LocalSource,
    Source,
    SourceTexts,
)
from kiln.support.records import dataclass
from kiln.symbolic.expr import Expr
from kiln.tensor.spec import ScalarSpec


class NumberChanges(Exception):
    """An attempt guards numbers that the frame changes. `codes`: no code is outlined for that."""

    codes: frozenset[CodeType] = frozenset()


def changed_numbers(s: CaptureState) -> set[str]:
    """The texts of the sources of numbers that are part of the guards and that the frame sets to others."""
    texts = SourceTexts()
    written = {texts.of(source): value for effect in s.effects for source, value in stores(s, effect)}
    written.update(s.part(PassedNumbers).in_loops)
    if not written:
        return set()
    guarded = [guard for guard in s.guards.first(len(s.guards)) if guard.kind is GuardKind.EQUALS]
    found = {texts.of(guard.source): guard.expected for guard in guarded if type(guard.expected) in (int, float)}
    return {text for text, number in found.items() if text in written and differs(written[text], number)}


@final
@dataclass
class PassedNumbers:
    """The texts of the parameters of resume functions, and of items of these, that get a symbol: a number, or these
    sizes of a tensor."""

    dims: dict[str, tuple[int, ...]] = field(default_factory=dict)
    in_loops: dict[str, Value] = field(default_factory=dict)
    """What is passed on to a resume function that leads back to this one, which may change it again."""


def note_passed(s: CaptureState, source: Source, value: Value, *, in_loop: bool = False) -> None:
    """A resume function gets `value` as the parameter `source`."""
    if in_loop:
        s.part(PassedNumbers).in_loops[source.text()] = value
    is_number = isinstance(value, Symbolic) and value.python_type() is not bool
    if is_number or (isinstance(value, Deferred) and value.cls is float):
        s.part(PassedNumbers).dims[source.text()] = ()
    elif isinstance(value, Tensor):
        sizes = enumerate(value.fake.shape)
        if dims := tuple([dim for dim, size in sizes if isinstance(size, torch.SymInt) and is_open(s, size)]):
            s.part(PassedNumbers).dims[source.text()] = dims
    elif isinstance(value, Sequence) and value.source is None:
        for index, item in enumerate(value._items or ()):
            note_passed(s, ItemSource(source, index), item)


def note_longer(s: CaptureState, name: str) -> None:
    """A resume function gets as the parameter `name` what is made of a list whose length changes: a tensor has as many
    rows."""
    s.part(PassedNumbers).dims.setdefault(LocalSource(name).text(), (0,))


def note_set_by_turns(s: CaptureState, variables: Mapping[str, Value]) -> None:
    """These variables are set in each turn of the loop that the graph breaks in: their numbers change."""
    for name, value in variables.items():
        if value.is_constant and type(value.real()) in (int, float):
            s.part(PassedNumbers).dims[LocalSource(name).text()] = ()


def is_open(s: CaptureState, size: torch.SymInt) -> bool:
    return not isinstance(s.recorder.env.simplify(size.node.value), int)


def note_made(s: CaptureState, name: str, at: Instruction) -> None:
    """A resume function gets what the instruction at a graph break makes as the parameter `name`."""
    for place, dims in s.part(DataSizes).known.get(at, {}).items():
        source: Source = LocalSource(name)
        for index in place:
            source = ItemSource(source, index)
        s.part(PassedNumbers).dims[source.text()] = dims


def has_many_values(s: CaptureState, number: Symbolic) -> bool:
    """Whether it is computed from a number from outside that was another one in each of several compiles."""
    value = number.node.node.value
    return isinstance(value, Expr) and have_many_values(s, value.free_symbols())


def have_many_values(s: CaptureState, symbols: Collection[object]) -> bool:
    """The same for what is computed from these symbols."""
    inputs = [(record.source, record.spec) for record in s.recorder.inputs]
    scalars = [(source, spec.value) for source, spec in inputs if isinstance(spec, ScalarSpec)]
    used = [source for source, symbol in scalars if symbol in symbols]
    if any([type(source) is FormulaSource for source in used]):  # computed of some of them
        used = [source for source, _ in scalars]
    return any(map(s.policy.varies, used))


def differs(new: Value, number: object) -> bool:
    if isinstance(new, Symbolic):
        return new.python_type() is not bool
    return new.is_constant and type(new.real()) in (int, float) and new.real() != number


def stores(s: CaptureState, effect: Effect) -> Iterator[tuple[Source, Value]]:
    """What an effect stores in objects from outside, and where."""
    if isinstance(effect, AttributeEffect):
        new = effect.value.attrs.get(effect.name)
        if new is not None and effect.value.source is not None:
            yield AttrSource(effect.value.source, effect.name), new
            yield DictAttrSource(effect.value.source, effect.name), new
    elif isinstance(effect, ClassAttributeEffect):
        path = effect.owner.source or s.classes.sources.get(effect.cls)
        if path is not None:
            yield AttrSource(path, effect.name), s.classes.changed[effect.cls][effect.name]
    elif isinstance(effect, CellEffect):
        if effect.cell.content is not None and effect.cell.source is not None:
            yield effect.cell.source, effect.cell.content
    elif isinstance(effect, ContentsEffect) and effect.value.source is not None:
        if isinstance(effect.value, List):
            for index, item in enumerate(effect.value._items or ()):
                yield ItemSource(effect.value.source, index), item
        elif isinstance(effect.value, Dict):
            items, known = effect.value._items, effect.value._found
            stored = [(key, known[token]) for token, key in effect.value._stored.items()]
            loaded = list(items.values()) if type(items) is dict else []
            for key, item in (*loaded, *stored, *effect.value._pending):
                if key.is_constant:
                    yield ItemSource(effect.value.source, key.real()), item
