"""`torch.cond` and its kin with tensors that decide: nested graphs of the region.

    torch.cond(x.sum() > 0, double, negate, (x,))

Both branches are interpreted; their torch calls leave the log, which gets one call of a `ControlFlow` instead. What
cannot be in a nested graph (a graph break, an exception, a side effect) is interpreted again as plain Python, which
takes one branch: `control_flow.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import final

import torch

import kiln.capture.interpreter.control_flow as control_flow
from kiln.capture.interpreter.breaks import GraphBreak, Raised
from kiln.capture.interpreter.builtins.torch_functions import SETTERS, Scope, Setter, TorchModes
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Kwargs, Value, handles_at_site
from kiln.capture.interpreter.data_values import ValueNeeded, is_needed, past_step
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch
from kiln.graph.ops.breaks import TraceBreak
from kiln.graph.trace.control_flow import WritesArgument
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import ControlFlow, NestedLog, RegisterHook, TorchCall, leaves
from kiln.graph.trace.nested_graphs import NotNested
from kiln.graph.trace.recorder import forget_effects
from kiln.graph.trace.set_data import set_data
from kiln.graph.trace.torch_graph import torch_graph
from kiln.runtime.control_flow import run_cond
from kiln.support.records import dataclass

OUTSIDE = frozenset(("requires_grad_", "retain_grad", "backward", "detach_"))
"""Methods that act on the autograd state of a tensor, which a nested graph does not have."""


def arguments(args: Args, kwargs: Kwargs, names: Sequence[str]) -> list[Value]:
    """Bound arguments in order; those at the end that are not given are missing."""
    return [*args, *[kwargs[name] for name in names[len(args) :] if name in kwargs]]


def nested_or_plain(s: CaptureState, nest: Callable[[], Value], plain: Callable[[], Value]) -> Value:
    """`nest()`, unless this attempt or an earlier one found that it cannot be a nested graph: then `plain()`."""
    if is_needed(s) or s.function_modes:
        return plain()
    frame = running_frame(s)
    here = (frame.code, frame.at), past_step(frame)
    try:
        return nest()
    except (NotNested, TraceBreak):
        raise ValueNeeded(*here) from None


COND = ("pred", "true_fn", "false_fn", "operands")


@handles_at_site(torch.cond, torch.ops.higher_order.cond)
def cond(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    given, plain = arguments(args, kwargs, COND), partial(s.wrap(control_flow.cond, None).call, s, args, kwargs, site)
    if len(given) < len(COND):
        given.append(Tuple([]))
    condition, true, false, operands = given
    if not isinstance(condition, Tensor) or not isinstance(operands, Tuple | List) or not is_single(condition):
        return plain()
    if not all(isinstance(leaf, Tensor) for leaf in flat(s, operands).leaves):
        return plain()
    return nested_or_plain(s, partial(nested_cond, s, condition, (true, false), operands.items(s)), plain)


def is_single(condition: Tensor) -> bool:
    return type(condition.fake) is FakeTensor and condition.fake.numel() == 1


def nested_cond(s: CaptureState, condition: Tensor, branches: Sequence[Value], operands: list[Value]) -> Value:
    done = [interpreted(s, branch, operands) for branch in branches]
    true, false = [branch.result for branch in done]
    if true.containers != false.containers:
        raise s.error(RuntimeError, "torch.cond: the branches return other containers, or another number of results")
    for left, right in zip(true.tensors, false.tensors, strict=True):
        a, b = left.fake.storage_view.spec, right.fake.storage_view.spec
        if a.dtype is not b.dtype or a.rank != b.rank or a.device != b.device:
            raise s.error(RuntimeError, f"torch.cond: the branches return other tensors: {a} and {b}")
    if true.constants != false.constants:
        raise NotNested("the branches return other constants")
    captured = captured_by(done, ())
    target = ControlFlow("cond", tuple([branch.log(captured) for branch in done]), run_cond)
    return rebuilt(true, record(s, target, [condition.fake, *captured]))


def record(s: CaptureState, target: ControlFlow, args: Sequence[FakeTensor]) -> list[Value]:
    """One call in the log."""
    try:
        results = s.recorder.call(target, args, {}, stack=running_frame(s).locations())
    except WritesArgument:
        if not torch.is_grad_enabled():
            raise
        text = f"torch.{target.kind}: a function changes a tensor from outside in place, which has no gradient"
        raise s.error(RuntimeError, text) from None
    return [from_torch(s, result) for result in results]  # type: ignore[attr-defined]


# Functions that become nested graphs.


@final
@dataclass(frozen=True, eq=False)
class Interpreted:
    """A function that was interpreted for a nested graph: its torch calls and its result."""

    calls: tuple[TorchCall, ...]
    result: Flat

    def log(self, captured: Sequence[FakeTensor]) -> NestedLog:
        outputs = tuple([tensor.fake for tensor in self.result.tensors])
        inputs = [(f"arg_{number}", fake) for number, fake in enumerate(captured)]
        made = cache(partial(torch_graph, self.calls, inputs, outputs, all_inputs=True))
        return NestedLog(self.calls, tuple(captured), outputs, made)


def interpreted(s: CaptureState, function: Value, operands: list[Value]) -> Interpreted:
    """Interpret a call of `function`, whose torch calls leave the log. Raises NotNested."""
    recorder = s.recorder
    mark, first = recorder.mark(), len(recorder.nodes)
    with without_effects(s, [function, *operands]):
        try:
            result = flat(s, function.call(s, operands, {}))
        except (GraphBreak, Raised) as problem:
            raise NotNested("it cannot be traced") from problem
    calls = tuple(recorder.calls[mark:])
    if any(
        isinstance(call.target, RegisterHook) or call.target in OUTSIDE or call.target is set_data for call in calls
    ):
        raise NotNested("it changes how autograd sees a tensor")
    if not all(isinstance(leaf, Tensor) or leaf.is_constant for leaf in result.leaves):
        raise NotNested("its result has other parts than tensors")
    if not all(type(tensor.fake) is FakeTensor for tensor in result.tensors):
        raise NotNested("its result is a tensor of a function transform")
    del recorder.calls[mark:]
    forget_effects(recorder._mode, first)
    return Interpreted(calls, result)


@contextmanager
def without_effects(s: CaptureState, given: Sequence[Value]) -> Iterator[None]:
    """Raise NotNested if the program changes an object that it had before, or a mode. `given` are arguments."""
    outer, changed = s.counters.changed, list[Value]()
    before, modes = (s.counters.consumed, s.effects.changes), mode_values(s)
    s.counters.changed = changed
    try:
        yield
    finally:
        s.counters.changed = outer
        if outer is not None:
            outer += changed
    now = {
        key: value for key, value in mode_values(s).items() if modes.get(key, s.part(TorchModes).at_entry[key]) != value
    }
    if (s.counters.consumed, s.effects.changes) != before or now:
        raise NotNested("it changes objects of the program")
    if changed and not {id(value) for value in changed}.isdisjoint(reachable([*frame_values(s), *given])):
        raise NotNested("it changes objects of the program")


def mode_values(s: CaptureState) -> dict[tuple[Setter, Scope], object]:
    return {(setter, scope): SETTERS[setter][1](*scope) for setter, scope in s.part(TorchModes).at_entry}


def frame_values(s: CaptureState) -> Iterator[object]:
    """What the running frames hold."""
    frame = s.frame
    while isinstance(frame, SymbolicFrame):
        yield frame
        frame = frame.parent


def reachable(roots: Iterable[object]) -> set[int]:
    """The `id`s of values that are found from `roots` through attributes of values and frames, and containers."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        item = waiting.pop()
        if id(item) in found:
            continue
        if isinstance(item, list | tuple | set | frozenset):
            waiting += item
        elif isinstance(item, dict):
            waiting += item.values()
        elif isinstance(item, Value | SymbolicFrame):
            found.add(id(item))
            slots = [name for cls in type(item).__mro__ for name in getattr(cls, "__slots__", ())]
            waiting += [getattr(item, name, None) for name in slots if name != "state"]
            waiting += getattr(item, "__dict__", {}).values()
    return found


def captured_by(done: Iterable[Interpreted], known: Iterable[FakeTensor]) -> list[FakeTensor]:
    """The tensors that functions use and did not make, besides those `known`."""
    found: dict[int, FakeTensor] = {}
    own = {id(fake) for fake in known}
    for function in done:
        made = set(own)
        for call in function.calls:
            note_used(leaves([call.args, call.kwargs]), made, found)
            made.update(id(leaf) for leaf in leaves(call.result) if id(leaf) not in found)
        note_used([tensor.fake for tensor in function.result.tensors], made, found)
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
