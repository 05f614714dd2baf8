"""The template of a recorded call: its guards on its module, as guards on any module, checked by a native tree.

    guards of the call                                          template
    m.__dict__['_modules']['0']: type_is Layer                  module: type_is Layer
    m.__dict__['_modules']['0'].__dict__['scale']: equals 2     module.__dict__['scale']: equals 2

This is sound for the reason guards are: for any module that passes them the program does the same. Two checks are added
to the guards: each attribute that was read exists and has its type, and parameters are equal down to the storage
offset. Objects that the recorded call was the first to reach (own ones) must be new in the other call, those reached
before (a shared config) the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from itertools import islice
from types import FunctionType
from typing import NamedTuple, cast, final

import torch

from kiln.capture.guards.collector import GuardCollector
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.repeated_layers.recorded_call import RecordedCall
from kiln.capture.interpreter.variables.mapping import ABSENT, Dict, dict_get
from kiln.capture.interpreter.variables.object import Object, plain_dict
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.native import _frames
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.guard import Guard, GuardKind, tensor_expectation
from kiln.runtime.guards.source import (
    FIELDS,
    AttrSource,
    DefaultSource,
    DictAttrSource,
    ItemSource,
    LocalSource,
    MethodFuncSource,
    MethodSelfSource,
    Source,
    TypeSource,
    ValuesSource,
)
from kiln.runtime.guards.tree import BadGuard, build_tree
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

REBASABLE = (AttrSource, DictAttrSource, ItemSource, DefaultSource, MethodFuncSource, MethodSelfSource, ValuesSource)
"""Steps that can be taken from another base. Cells and keys are not among them: they are shared and ordered."""

COMPILED_CALL = "_compiled_call_impl"


class NotRepeatable(Exception):
    """The recorded call did something that has no counterpart in another module; the text says what."""


class PathStep(NamedTuple):
    """`kind(base path, *fields)`."""

    base: int
    kind: Callable[..., Source]
    fields: tuple[object, ...]


@final
class ModulePaths:
    """The steps of all paths that begin at the module, each once, bases first; path 0 is the module."""

    def __init__(self, root: Source) -> None:
        self.steps: list[PathStep] = []
        self._known: dict[int, int | None] = {id(root): 0}

    def number(self, source: Source | None) -> int | None:
        """None if the path does not begin at the module, or leads through a class, which a capture reads only once."""
        if source is None or type(source) is TypeSource:
            return None
        if id(source) in self._known:
            return self._known[id(source)]
        base = self.number(source.parent)
        found: int | None = None
        if base is not None:
            if not isinstance(source, REBASABLE):
                raise NotRepeatable(f"it reads {source.text()}")
            self.steps.append(PathStep(base, type(source), step_fields(source)))
            found = len(self.steps)
        self._known[id(source)] = found
        return found

    def based(self, root: Source) -> list[Source]:
        """All paths from another module."""
        made = [root]
        for base, kind, fields in self.steps:
            made.append(kind(made[base], *fields))
        return made


def step_fields(source: Source) -> tuple[object, ...]:
    """The fields of a source besides its base."""
    return tuple([getattr(source, name) for name in FIELDS[type(source)] if name != "base"])


@final
@dataclass(slots=True)
class CallTemplate:
    """`guards` are (path, guard of the recorded call, whether the line of the call asked for it).

    `objects` are (path, value in the recorded call); an alias also has the path that it must be equal to.
    """

    paths: ModulePaths
    guards: list[tuple[int, Guard, bool]] = field(default_factory=list)
    objects: list[tuple[int, Value]] = field(default_factory=list)
    aliases: list[tuple[int, int | None, Value]] = field(default_factory=list)
    tree: _frames.GuardTree | None = None

    def find(self, module: object) -> list[object] | None:
        """The objects of another module at `objects` and `aliases`; None if a guard does not hold of it."""
        assert self.tree is not None
        if not self.tree.check([module]):
            return None
        return list(self.tree.bindings or ())


def make_template(s: CaptureState, recorded: RecordedCall) -> CallTemplate:
    """Raises `NotRepeatable`."""
    root = recorded.module.source
    assert root is not None
    made = CallTemplate(ModulePaths(root))
    collect_guards(s, recorded, made)
    collect_objects(s, recorded, made)
    if any(call.kind == "setstate" or gives_numbers(call.result) for call in recorded.calls):
        raise NotRepeatable("it changes a mode of torch or gets a number from a torch call")
    tensors = [value for _, value in made.objects if isinstance(value, Tensor)]
    paired = {id(s.recorder.table.record_of(tensor.fake)) for tensor in tensors}
    for record in s.recorder.inputs[: recorded.end.inputs]:
        if id(record) not in paired and made.paths.number(record.source) is not None:
            raise NotRepeatable("a number or an array that it reads is an input")
    made.tree = make_tree(s, made)
    return made


def gives_numbers(result: object) -> bool:
    """Whether the result of a torch call has values that the program can branch on."""
    if isinstance(result, list | tuple):
        return any(map(gives_numbers, result))
    return result is not None and not hasattr(result, "storage_view")


def collect_guards(s: CaptureState, recorded: RecordedCall, made: CallTemplate) -> None:
    """All guards on the module; the call relies on earlier ones too."""
    for guard in s.guards.first(recorded.end.guards):
        number = made.paths.number(guard.source)
        if number is not None:
            made.guards.append((number, guard, guard.location == recorded.location))


def collect_objects(s: CaptureState, recorded: RecordedCall, made: CallTemplate) -> None:
    start, end = recorded.start, recorded.end
    for position, value in enumerate(islice(s.identities.objects.values(), end.objects)):
        number = made.paths.number(value.source)
        if number is None:
            continue
        if isinstance(value, Tensor) and (position < start.objects or not is_plain_input(s, value)):
            raise NotRepeatable("a parameter was used before, has a symbolic size, or shares memory")
        made.objects.append((number, value))
    for value, source in s.identities.other_paths[: end.aliases]:
        number = made.paths.number(source)
        if number is not None:
            made.aliases.append((number, made.paths.number(value.source), value))
    if any(made.paths.number(source) is not None for paths in s.identities.cell_paths.values() for source in paths):
        raise NotRepeatable("it reads a cell")


def is_plain_input(s: CaptureState, value: Tensor) -> bool:
    """A tensor with its own memory and static sizes."""
    record = s.recorder.table.record_of(value.fake)
    assert record is not None and isinstance(record.spec, TensorSpec)
    spec, view = record.spec, record.view
    numbers = (*spec.sizes, *spec.strides, spec.offset)
    return view.step is None and not view.storage.unwritable and all(type(number) is int for number in numbers)


def make_tree(s: CaptureState, made: CallTemplate) -> _frames.GuardTree:
    """The native tree of all guards and checks."""
    paths = made.paths.based(LocalSource("module"))
    guards = GuardCollector()
    for number, guard, _ in made.guards:
        guards.add(paths[number], guard.kind, guard.expected)
    for number, value in made.objects:
        add_presence_guards(s, guards, paths[number], value)
    collect = [paths[number] for number, _ in made.objects] + [paths[number] for number, _, _ in made.aliases]
    try:
        return build_tree(guards.finish(), collect=collect, function=cast(FunctionType, _probe))
    except BadGuard as problem:
        raise NotRepeatable(str(problem)) from problem


def _probe(module: object) -> None:
    """Its argument is the root of the paths of a template."""


def add_presence_guards(s: CaptureState, guards: GuardCollector, path: Source, value: Value) -> None:
    """Guards that what was read of an object exists and has its type."""
    if isinstance(value, Tensor):
        assert value.original is not None
        guards.add(path, GuardKind.TENSOR, tensor_expectation(value.original, is_leaf=True))
        return
    original: object = value.original  # type: ignore[attr-defined]
    guards.add(path, GuardKind.TYPE_IS, s.reference(type(original)))
    if isinstance(value, Object):
        content = plain_dict(value.original)
        for name in value.attrs:
            if name in content:
                guards.add(DictAttrSource(path, name), GuardKind.TYPE_IS, s.reference(type(content[name])))
    elif isinstance(value, Dict):
        for token, item in value._found.items():
            if item is not ABSENT and is_constant(token):
                kind = type(dict_get(value.original, token))
                guards.add(ItemSource(path, token), GuardKind.TYPE_IS, s.reference(kind))


def is_counterpart(value: Value, real: object) -> bool:
    """What native guards cannot check."""
    if isinstance(value, Tensor):
        assert value.original is not None and isinstance(real, torch.Tensor)
        return real.storage_offset() == value.original.storage_offset()
    if isinstance(value, Object):
        return not getattr(real, "__dict__", {}).get(COMPILED_CALL)
    return True
