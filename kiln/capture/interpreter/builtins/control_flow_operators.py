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
import torch.nn.attention.flex_attention

import kiln.capture.interpreter.attention_polyfill as attention_polyfill
import kiln.capture.interpreter.control_flow as control_flow
from kiln.capture.interpreter.breaks import GraphBreak, Raised
from kiln.capture.interpreter.builtins.torch_functions import SETTERS, Scope, Setter, TorchModes
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Kwargs,
    SiteHandler,
    Value,
    handles_at_site,
)
from kiln.capture.interpreter.data_values import ValueNeeded, past_step
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch
from kiln.graph.ops.breaks import TraceBreak
from kiln.graph.prims.meta import equal
from kiln.graph.trace.control_flow import WritesArgument
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import ControlFlow, NestedLog, RegisterHook, TorchCall, leaves
from kiln.graph.trace.nested_graphs import NotNested, input_node
from kiln.graph.trace.recorder import forget_effects
from kiln.graph.trace.set_data import set_data
from kiln.graph.trace.torch_graph import torch_graph
from kiln.runtime.control_flow import run_cond, run_scan, run_while
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

OUTSIDE = frozenset(("requires_grad_", "retain_grad", "backward", "detach_"))
"""Methods that act on the autograd state of a tensor, which a nested graph does not have."""


def arguments(args: Args, kwargs: Kwargs, names: Sequence[str]) -> list[Value]:
    """Bound arguments in order; those at the end that are not given are missing."""
    return [*args, *[kwargs[name] for name in names[len(args) :] if name in kwargs]]


def in_place_of(replacement: Callable[..., object]) -> SiteHandler:
    """Python code that is interpreted instead."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        return s.wrap(replacement, None).call(s, args, kwargs, site)

    return handler


def nested_or_plain(s: CaptureState, nest: Callable[[], Value], plain: Callable[[], Value]) -> Value:
    """`nest()`, unless this attempt or an earlier one found that it cannot be a nested graph: then `plain()`."""
    frame = program_frame(s)
    here = (frame.code, frame.at), past_step(frame)
    if here[0] in s.needed or s.function_modes:
        return plain()
    try:
        return nest()
    except (NotNested, TraceBreak):
        raise ValueNeeded(*here) from None


def program_frame(s: CaptureState) -> SymbolicFrame:
    """The frame of the program that calls the operator."""
    frame = running_frame(s)
    while frame.code.co_filename == control_flow.__file__ and frame.parent is not None:
        frame = frame.parent
    return frame


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


@handles_at_site(torch._higher_order_ops.while_loop, torch.ops.higher_order.while_loop)
def while_loop(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    given = arguments(args, kwargs, ("cond_fn", "body_fn", "carried_inputs"))
    plain = partial(s.wrap(control_flow.while_loop, None).call, s, given[:3], {}, site)
    if len(given) < 3 or not isinstance(given[2], Tuple | List):
        return plain()
    carried = flat(s, Tuple([*given[2].items(s), *(given[3].items(s) if len(given) > 3 else [])]))  # type: ignore[attr-defined]
    if not carried.leaves or not all_tensors(carried):
        return plain()
    return nested_or_plain(s, partial(nested_while, s, given[0], given[1], carried), plain)


def nested_while(s: CaptureState, test: Value, body: Value, carried: Flat) -> Value:
    states = [placeholder(s, tensor.fake.storage_view.spec) for tensor in carried.tensors]
    given = rebuilt(carried, states)
    assert isinstance(given, Tuple)
    done = [interpreted(s, function, given.items(s)) for function in (test, body)]
    answer, found = done[0].result, done[1].result
    if not all_tensors(answer) or len(answer.leaves) != 1:
        raise NotNested("its condition is no tensor")
    spec = answer.tensors[0].fake.storage_view.spec
    if spec.dtype is not torch.bool or spec.rank:
        raise s.error(RuntimeError, f"cond_fn must return a boolean scalar tensor or a boolean but got {spec}")
    require_like(s, "body_fn output and carried_inputs", found.leaves, carried.leaves)
    fakes = [state.fake for state in states]
    captured = captured_by(done, fakes)
    logs = tuple([function.log([*fakes, *captured]) for function in done])
    target = ControlFlow("while_loop", logs, run_while, carried=len(fakes))
    return rebuilt(carried, record(s, target, [*[tensor.fake for tensor in carried.tensors], *captured]))


@handles_at_site(control_flow.scanned)
def scanned(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    function, init, xs = args[0], flat(s, args[1]), flat(s, args[2])
    plain = partial(s.wrap(control_flow.unrolled, None).call, s, args, kwargs, site)
    if not all_tensors(init) or not all_tensors(xs):
        return plain()
    return nested_or_plain(s, partial(nested_scan, s, function, init, xs), plain)


def nested_scan(s: CaptureState, function: Value, init: Flat, xs: Flat) -> Value:
    states = [placeholder(s, tensor.fake.storage_view.spec) for tensor in init.tensors]
    rows = [placeholder(s, row_of(tensor.fake.storage_view.spec)) for tensor in xs.tensors]
    done = interpreted(s, function, [rebuilt(init, states), rebuilt(xs, rows)])
    pair = done.parts
    if len(pair) != 2 or not all_tensors(done.result):
        raise NotNested("it does not return carried values and a row")
    require_like(s, "init and carry", pair[0].leaves, init.leaves)
    fakes = [value.fake for value in (*states, *rows)]
    captured = captured_by([done], fakes)
    target = ControlFlow("scan", (done.log([*fakes, *captured]),), run_scan, carried=len(states), rows=len(rows))
    given = [tensor.fake for tensor in (*init.tensors, *xs.tensors)]
    results = record(s, target, [*given, *captured])
    return Tuple([rebuilt(init, results[: len(states)]), rebuilt(pair[1], results[len(states) :])])


def placeholder(s: CaptureState, spec: TensorSpec) -> Tensor:
    """A tensor of which a turn of a loop knows nothing but its layout."""
    node = input_node(0, "turn", spec.with_sizes(spec.sizes))
    return Tensor(s.recorder.fake_of(node))


def row_of(spec: TensorSpec) -> TensorSpec:
    return spec.with_sizes(spec.sizes[1:])


def all_tensors(value: Flat) -> bool:
    return all(isinstance(leaf, Tensor) and type(leaf.fake) is FakeTensor for leaf in value.leaves)


def require_like(s: CaptureState, what: str, found: Sequence[Value], wanted: Sequence[Value]) -> None:
    """What a turn returns is what the next one takes."""
    if len(found) != len(wanted):
        raise s.error(
            RuntimeError, f"Expected {what} to have same number of outputs but got {len(found)} and {len(wanted)}"
        )
    for left, right in zip(found, wanted, strict=True):
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            raise NotNested("a carried value is no tensor")
        a, b = left.fake.storage_view.spec, right.fake.storage_view.spec
        if a.dtype is not b.dtype or a.device != b.device or not same_sizes(s, a, b):
            raise s.error(RuntimeError, f"Expected {what} to have same metadata but found {a} and {b}")


def same_sizes(s: CaptureState, a: TensorSpec, b: TensorSpec) -> bool:
    """Guarded where that depends on the sizes of this call."""
    return a.rank == b.rank and all(map(partial(equal, s.recorder.symbols), a.sizes, b.sizes))


for _original, _replacement in (
    (torch._higher_order_ops.map, control_flow.mapped),
    (torch._higher_order_ops.scan, control_flow.scan),
    (torch._higher_order_ops.associative_scan, control_flow.associative_scan),
    (torch.nn.attention.flex_attention.flex_attention, attention_polyfill.flex_attention),
):
    handles_at_site(_original)(in_place_of(_replacement))


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
    parts: list[Flat]
    """The items of a result that is a tuple or list."""

    def log(self, captured: Sequence[FakeTensor]) -> NestedLog:
        outputs = tuple([tensor.fake for tensor in self.result.tensors])
        inputs = [(f"arg_{number}", fake) for number, fake in enumerate(captured)]
        made = cache(partial(torch_graph, self.calls, inputs, outputs, all_inputs=True))
        return NestedLog(self.calls, tuple(captured), outputs, made)


def interpreted(s: CaptureState, function: Value, operands: list[Value]) -> Interpreted:
    """Interpret a call of `function`, whose torch calls leave the log. Raises NotNested."""
    recorder = s.recorder
    mark, first = recorder.mark(), len(recorder.nodes)
    if issubclass(function.python_type(), torch.fx.GraphModule):  # of a graph that torch.compile hands over
        function = function.get_attr(s, "forward")
    with without_effects(s, [function, *operands]):
        try:
            returned = function.call(s, operands, {})
        except (GraphBreak, Raised) as problem:
            raise NotNested("it cannot be traced") from problem
    calls, result = tuple(recorder.calls[mark:]), flat(s, returned)
    parts = [flat(s, item) for item in returned.items(s)] if isinstance(returned, Tuple | List) else []
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
    return Interpreted(calls, result, parts)


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
