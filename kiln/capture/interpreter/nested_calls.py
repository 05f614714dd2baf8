"""Functions and parts of frames that are interpreted for a nested graph: their torch calls leave the log.

    with without_effects(s, [function, *operands]):     x.sin(), y + 1      its result, with its containers
        function.call(s, operands, {})                  [sin, add]          its calls, taken out of the log

What a nested graph reads and did not make is captured. What cannot be in one (a graph break, an exception, a change of
an object of the program) raises `NotNested`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar, final

import torch

from kiln.capture.interpreter.breaks import GraphBreak, Raised
from kiln.capture.interpreter.builtins.leaf_gradients import gradients_kept
from kiln.capture.interpreter.builtins.torch_functions import SETTERS, Scope, Setter, TorchModes
from kiln.capture.interpreter.core import MISSING, CaptureState, StateChange, Value
from kiln.capture.interpreter.data_values import DataValues, is_needed
from kiln.capture.interpreter.effects import SideEffect
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.host_draws import Draws
from kiln.capture.interpreter.side_changes import CHANGES, Place
from kiln.capture.interpreter.variables.function import Namespace
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch, note_data_sizes
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.gradients import hooked_values
from kiln.graph.trace.log import ControlFlow, NestedLog, OperatorKind, RegisterHook, TorchCall, leaves
from kiln.graph.trace.nested_graphs import NotNested
from kiln.graph.trace.recorder import forget_effects
from kiln.graph.trace.set_data import set_data
from kiln.graph.trace.torch_graph import numbers_from_outside, torch_graph
from kiln.support.records import dataclass
from kiln.symbolic import Expr
from kiln.symbolic.values import Real

OUTSIDE = frozenset(("requires_grad_", "retain_grad", "backward", "detach_", set_data, hooked_values))
"""Methods and functions that act on the autograd state of a tensor, which a nested graph does not have."""
Made = TypeVar("Made")
Calls = tuple[TorchCall, ...]


def is_single(condition: Tensor) -> bool:
    return type(condition.fake) is FakeTensor and condition.fake.numel() == 1


def record(s: CaptureState, target: ControlFlow, args: Sequence[FakeTensor]) -> list[Value]:
    """One call in the log. Sizes that are not the same on both sides of a branch are numbers from data."""
    target = replace(target, same_sizes=is_needed(s))
    before = len(s.recorder.env.unbacked)
    results = s.recorder.call(target, args, {}, stack=running_frame(s).locations())
    note_data_sizes(s, results, s.recorder.env.unbacked[before:])
    return [from_torch(s, result) for result in results]  # type: ignore[attr-defined]


@final
@dataclass(frozen=True, eq=False)
class Interpreted:
    """A function that was interpreted for a nested graph: its torch calls and its result."""

    calls: Calls
    result: Flat
    parts: list[Flat]
    """The items of a result that is a tuple or list."""

    @property
    def side(self) -> tuple[Calls, list[FakeTensor]]:
        """Its calls and the tensors of its result."""
        return self.calls, [tensor.fake for tensor in self.result.tensors]


def operator_of(
    kind: OperatorKind,
    sides: Sequence[tuple[Calls, Sequence[FakeTensor]]],
    captured: Sequence[FakeTensor],
    run: Callable[..., tuple[torch.Tensor, ...]],
    *,
    carried: int = 0,
    rows: int = 0,
    lets_gradients_be_absent: bool = False,
    changes: tuple[int, ...] = (),
) -> ControlFlow:
    """An operator whose nested logs are the calls and outputs of `sides`."""
    found = [number for calls, _ in sides for number in numbers_from_outside(calls, captured)]
    numbers = tuple(dict.fromkeys(found))
    logs = tuple([logged(calls, captured, outputs, numbers) for calls, outputs in sides])
    return ControlFlow(kind, logs, run, carried, rows, lets_gradients_be_absent, numbers, changes)


def logged(
    calls: Calls, captured: Sequence[FakeTensor], outputs: Sequence[FakeTensor], numbers: Sequence[Expr | Real]
) -> NestedLog:
    inputs = [(f"arg_{number}", fake) for number, fake in enumerate(captured)]
    made = cache(partial(torch_graph, calls, inputs, tuple(outputs), all_inputs=True, numbers=numbers))
    return NestedLog(calls, tuple(captured), tuple(outputs), made)


def interpreted(s: CaptureState, function: Value, operands: list[Value]) -> Interpreted:
    """Interpret a call of `function`, whose torch calls leave the log. Raises NotNested."""
    roots = [*frame_values(s), function, *operands]
    calls, returned = taken_from_log(s, without_effects(s, roots), lambda: function.call(s, operands, {}))
    result = flat(s, returned)
    parts = [flat(s, item) for item in returned.items(s)] if isinstance(returned, Tuple | List) else []
    if not all(isinstance(leaf, Tensor) or leaf.is_constant for leaf in result.leaves):
        raise NotNested("its result has other parts than tensors")
    if not all(type(tensor.fake) is FakeTensor for tensor in result.tensors):
        raise NotNested("its result is a tensor of a function transform")
    return Interpreted(calls, result, parts)


def taken_from_log(
    s: CaptureState, effects: AbstractContextManager[None], interpret: Callable[[], Made]
) -> tuple[Calls, Made]:
    """The torch calls of `interpret()`, which leave the log, and its result. `effects` says what becomes of others."""
    recorder, data = s.recorder, s.part(DataValues)
    mark, first, items = recorder.mark(), len(recorder.nodes), dict(data.items)
    with gradients_kept(s), effects:
        s.counters.nested += 1
        try:
            result = interpret()
        except GraphBreak as stop:
            where = f"at {stop.at.text()}, " if stop.at is not None else ""
            inner = stop.details.get("sides", "")
            raise NotNested(f"{where}{str(inner).rpartition(': ')[2] or stop.reason}") from stop
        except Raised as raised:
            raise NotNested("it raises an exception") from raised
        finally:
            s.counters.nested -= 1
            data.items = items
    calls = tuple(recorder.calls[mark:])
    if any(isinstance(call.target, RegisterHook) or call.target in OUTSIDE for call in calls):
        raise NotNested("it changes how autograd sees a tensor")
    del recorder.calls[mark:]
    forget_effects(recorder._mode, first)
    return calls, result


@contextmanager
def without_effects(s: CaptureState, roots: Sequence[object]) -> Iterator[None]:
    """Raise NotNested if the program changes an object that it had before, found from `roots`, or a mode."""
    outer, changed = s.counters.changed, dict[Place, StateChange]()
    before = s.effects.changes
    s.counters.changed = changed
    try:
        with without_progress(s):
            yield
    finally:
        s.counters.changed = outer
        s.counters.has_changed(changed.values())
    if s.effects.changes != before:
        raise NotNested(CHANGES)
    if changed and not {value for value, _ in changed}.isdisjoint(reachable(roots)):
        raise NotNested(CHANGES)


@contextmanager
def without_progress(s: CaptureState) -> Iterator[None]:
    """Raise NotNested if items of an iterator of the program are taken, or a mode is changed."""
    before, modes = effects_so_far(s), mode_values(s)
    yield
    if effects_so_far(s) != before or changed_modes(s, modes):
        raise NotNested(CHANGES)


def effects_so_far(s: CaptureState) -> tuple[int, int, int]:
    """What grows with each effect: items taken, numbers drawn by Python, assumptions on values."""
    return (
        s.counters.consumed - s.counters.changes,
        len(s.part(Draws).calls),
        len(s.part(DataValues).assumptions),
    )


Modes = dict[tuple[Setter, Scope], object]
"""Values of torch's modes."""


def changed_modes(s: CaptureState, before: Modes) -> Modes:
    entry = s.part(TorchModes).at_entry
    return {key: value for key, value in mode_values(s).items() if before.get(key, entry[key]) != value}


def modes_before(s: CaptureState, changed: Modes, before: Modes) -> Modes:
    return {key: before.get(key, s.part(TorchModes).at_entry[key]) for key in changed}


def mode_values(s: CaptureState) -> Modes:
    return {(setter, scope): SETTERS[setter][1](*scope) for setter, scope in s.part(TorchModes).at_entry}


def frame_values(s: CaptureState, innermost: object = MISSING) -> Iterator[object]:
    """What the running frames hold, from `innermost` on, if it is given."""
    frame = s.frame if innermost is MISSING else innermost
    while isinstance(frame, SymbolicFrame):
        yield frame
        frame = frame.parent


def all_values(s: CaptureState) -> Iterator[object]:
    """What the running frames and the capture hold."""
    yield from frame_values(s)
    yield from s.effects
    for part in s._parts.values():
        yield from getattr(part, "__dict__", {}).values()


def reachable(roots: Iterable[object]) -> set[int]:
    """The `id`s of values that are found from `roots` through attributes of values and frames, and containers."""
    found: set[int] = set()
    seen: dict[int, object] = {}
    slots: dict[type, tuple[str, ...]] = {}
    waiting = list(roots)
    while waiting:
        item = waiting.pop()
        if id(item) in seen:
            continue
        seen[id(item)] = item
        if isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, CONTAINERS):
            waiting.extend(item)  # type: ignore[arg-type]
        elif isinstance(item, HOLDERS):
            found.add(id(item))
            kind = type(item)
            if kind not in slots:
                names = [name for cls in kind.__mro__ for name in getattr(cls, "__slots__", ()) if name != "state"]
                slots[kind] = tuple(names)
            waiting.extend([getattr(item, name, None) for name in slots[kind]])
            waiting.extend(getattr(item, "__dict__", {}).values())
    return found


CONTAINERS = (list, tuple, set, frozenset)
HOLDERS = (Value, SymbolicFrame, Namespace, SideEffect)


def captured_by(done: Sequence[tuple[Calls, Sequence[FakeTensor]]], known: Iterable[FakeTensor]) -> list[FakeTensor]:
    """The tensors that calls, or the outputs behind them, use and did not make, besides those `known`."""
    found: dict[int, FakeTensor] = {}
    own = {id(fake) for fake in known}
    for calls, outputs in done:
        made = set(own)
        for call in calls:
            note_used(leaves([call.args, call.kwargs]), made, found)
            made.update(id(leaf) for leaf in leaves(call.result) if id(leaf) not in found)
        note_used(outputs, made, found)
    return list(found.values())


def note_used(used: Iterable[object], made: set[int], found: dict[int, FakeTensor]) -> None:
    for leaf in used:
        if id(leaf) in made:
            continue
        if type(leaf) is FakeTensor:
            found[id(leaf)] = leaf
        elif isinstance(leaf, torch.Tensor):
            raise NotNested("it uses a tensor of a function transform")


# Containers of results.


@final
@dataclass(frozen=True, eq=False)
class Flat:
    """A value as its leaves in order, and the containers around them: equal for values of equal structure."""

    leaves: tuple[Value, ...]
    containers: object
    rebuild: Callable[[Iterable[Value]], Value]

    @property
    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in self.leaves if isinstance(leaf, Tensor)]

    @property
    def constants(self) -> list[tuple[type, object]]:
        found = [leaf.real() for leaf in self.leaves if not isinstance(leaf, Tensor)]
        return [(type(constant), constant) for constant in found]


def flat(s: CaptureState, value: Value) -> Flat:
    if isinstance(value, Dict) and value.cls is dict:
        items = value.items(s)
        parts = [flat(s, item) for _, item in items.values()]
        keys = [(token, key) for token, (key, _) in items.items()]
        return joined(
            parts,
            (dict, tuple([token for token, _ in keys])),
            lambda made: Dict({token: (key, item) for (token, key), item in zip(keys, made, strict=True)}),
        )
    if isinstance(value, List):
        return joined([flat(s, item) for item in value.items(s)], list, List)
    if isinstance(value, Tuple):
        return joined([flat(s, item) for item in value.items(s)], value.cls, lambda made: Tuple(made, value.cls))
    return Flat((value,), isinstance(value, Tensor), lambda made: next(iter(made)))


def joined(parts: Sequence[Flat], kind: object, build: Callable[[list[Value]], Value]) -> Flat:
    def rebuild(made: Iterable[Value]) -> Value:
        rest = iter(made)
        return build([part.rebuild([next(rest) for _ in part.leaves]) for part in parts])

    leaves = tuple([leaf for part in parts for leaf in part.leaves])
    return Flat(leaves, (kind, tuple([part.containers for part in parts])), rebuild)


def rebuilt(like: Flat, tensors: Iterable[Value]) -> Value:
    """The value with other tensors."""
    made = iter(tensors)
    return like.rebuild([next(made) if isinstance(leaf, Tensor) else leaf for leaf in like.leaves])
