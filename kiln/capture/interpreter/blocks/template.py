"""What a call asked of its module, as guards on any module: made once, checked by a native tree.

    guards of the call                                          template
    m.__dict__['_modules']['0']: type_is Layer                  module: type_is Layer
    m.__dict__['_modules']['0'].__dict__['scale']: equals 2     module.__dict__['scale']: equals 2

Sound for the reason for which guards are: whatever object passes them, the program does the same. Two things are
asked that guards leave out: each attribute that was read is there, with its type; and parameters are what they were
down to the offset. Objects that were reached for the first time in the recorded call must be new in the other one,
those that were known (a shared config) the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, final

from kiln.capture.guards.collector import GuardCollector
from kiln.capture.interpreter.blocks.recording import Recording
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.variables.mapping import ABSENT, Dict, dict_get
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.native import _frames
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.guard import Guard, GuardKind, tensor_expectation
from kiln.runtime.guards.source import (
    AttrSource,
    DefaultSource,
    DictAttrSource,
    ItemSource,
    LocalSource,
    MethodFuncSource,
    MethodSelfSource,
    Source,
    TypeSource,
)
from kiln.runtime.guards.tree import BadGuard, build_tree
from kiln.tensor.spec import TensorSpec

Step = Callable[[Source, Any], Source]

STEPS: dict[type[Source], Step] = {
    AttrSource: lambda base, step: AttrSource(base, step.name),
    DictAttrSource: lambda base, step: DictAttrSource(base, step.name),
    ItemSource: lambda base, step: ItemSource(base, step.key),
    DefaultSource: lambda base, step: DefaultSource(base, step.key),
    MethodFuncSource: lambda base, step: MethodFuncSource(base),
    MethodSelfSource: lambda base, step: MethodSelfSource(base),
}
"""How the step of a path is taken from another base. Cells and keys are not among them: they are shared and ordered."""

COMPILED_CALL = "_compiled_call_impl"


class NotRepeatable(Exception):
    """The recorded call did something that has no counterpart in another module; the text says what."""


@final
class Paths:
    """The steps of all paths that begin at the module, each once, bases first; number 0 is the module."""

    def __init__(self, root: Source) -> None:
        self.steps: list[tuple[int, Step, Source]] = []
        self._known: dict[int, int | None] = {id(root): 0}

    def number(self, source: Source | None) -> int | None:
        """None for what does not begin at the module. A class is read once per capture, whatever object led there."""
        if source is None or type(source) is TypeSource:
            return None
        if id(source) in self._known:
            return self._known[id(source)]
        base = self.number(source.parent)
        found: int | None = None
        if base is not None:
            take = STEPS.get(type(source))
            if take is None:
                raise NotRepeatable(f"it reads {source.text()}")
            self.steps.append((base, take, source))
            found = len(self.steps)
        self._known[id(source)] = found
        return found

    def based(self, root: Source) -> list[Source]:
        """All paths from another module."""
        made = [root]
        for base, take, step in self.steps:
            made.append(take(made[base], step))
        return made


@final
@dataclass(slots=True)
class Template:
    """`guards` are (number of the path, guard of the recorded call, whether the line of the call asked for it).

    `objects` are (number of the path, value in the recorded call); an alias also has the path it must lead to.
    """

    paths: Paths
    guards: list[tuple[int, Guard, bool]] = field(default_factory=list)
    objects: list[tuple[int, Value]] = field(default_factory=list)
    aliases: list[tuple[int, int | None, Value]] = field(default_factory=list)
    tree: _frames.GuardTree | None = None

    def find(self, module: object) -> list[Any] | None:
        """The objects of another module at `objects` and `aliases`, where all guards hold of it."""
        assert self.tree is not None
        if not self.tree.check([module]):
            return None
        return list(self.tree.bindings or ())


def make_template(s: CaptureState, recording: Recording) -> Template:
    """Raises `NotRepeatable`."""
    root = recording.module.source
    assert root is not None
    made = Template(Paths(root))
    collect_guards(s, recording, made)
    collect_objects(s, recording, made)
    if any(call.kind == "setstate" or gives_numbers(call.result) for call in recording.calls):
        raise NotRepeatable("it changes a mode of torch or gets a number from a torch call")
    for record in s.recorder.inputs[recording.start.inputs : recording.end.inputs]:
        if record.real is None and made.paths.number(record.source) is not None:
            raise NotRepeatable("a number of it is an input")
    made.tree = make_tree(s, made)
    return made


def gives_numbers(result: object) -> bool:
    """Does a torch call give what the program can branch on?"""
    if isinstance(result, list | tuple):
        return any(gives_numbers(one) for one in result)
    return result is not None and not hasattr(result, "storage_view")


def collect_guards(s: CaptureState, recording: Recording, made: Template) -> None:
    """All guards on the module, those from before the call too: their answers were used."""
    for guard in s.guards.first(recording.end.guards):
        number = made.paths.number(guard.source)
        if number is not None:
            made.guards.append((number, guard, guard.location == recording.place))


def collect_objects(s: CaptureState, recording: Recording, made: Template) -> None:
    start, end = recording.start, recording.end
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
    """Memory of its own and no symbol in its sizes."""
    record = s.recorder.table.record_of(value.fake)
    assert record is not None and isinstance(record.spec, TensorSpec)
    spec, view = record.spec, record.leaf.storage_view
    numbers = (*spec.sizes, *spec.strides, spec.offset)
    return view.step is None and not view.storage.tangled and all(type(one) is int for one in numbers)


def make_tree(s: CaptureState, made: Template) -> _frames.GuardTree:
    """The native check of all that is asked."""
    paths = made.paths.based(LocalSource("module"))
    asked = GuardCollector()
    for number, guard, _ in made.guards:
        asked.add(paths[number], guard.kind, guard.expected)
    for number, value in made.objects:
        ask_presence(s, asked, paths[number], value)
    collect = [paths[number] for number, _ in made.objects] + [paths[number] for number, _, _ in made.aliases]
    try:
        return build_tree(asked.finish(), collect=collect, function=PROBE)
    except BadGuard as problem:
        raise NotRepeatable(str(problem)) from problem


PROBE: Any = lambda module: None  # noqa: E731
"""Its argument is the root of the paths of a template."""


def ask_presence(s: CaptureState, asked: GuardCollector, path: Source, value: Any) -> None:
    """That what was read of an object is there, with its type."""
    if isinstance(value, Tensor):
        assert value.original is not None
        asked.add(path, GuardKind.TENSOR, tensor_expectation(value.original, is_leaf=True))
        return
    asked.add(path, GuardKind.TYPE_IS, s.reference(type(value.original)))
    if isinstance(value, Object):
        content = object.__getattribute__(value.original, "__dict__")
        for name in value.attrs:
            if name in content:
                asked.add(DictAttrSource(path, name), GuardKind.TYPE_IS, s.reference(type(content[name])))
    elif isinstance(value, Dict):
        for token, item in value._found.items():
            if item is not ABSENT and is_constant(token):
                kind = type(dict_get(value.original, token))
                asked.add(ItemSource(path, token), GuardKind.TYPE_IS, s.reference(kind))


def is_counterpart(value: Value, real: Any) -> bool:
    """What a native guard cannot ask."""
    if isinstance(value, Tensor):
        assert value.original is not None
        return bool(real.storage_offset() == value.original.storage_offset())
    if isinstance(value, Object):
        return not getattr(real, "__dict__", {}).get(COMPILED_CALL)
    return True
