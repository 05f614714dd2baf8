"""The recorder: runs torch calls on fake tensors and records them at two levels.

    recorder = Recorder(env=env, events=events)
    x = recorder.add_tensor(real, "x", LocalSource("x"))
    y = recorder.call(torch.abs, (x,), {}, stack=(location,))
    trace = recorder.finish([y])

The levels are the log of torch calls and the functional graph of primitives, whose nodes refer to their call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar, cast, final

import torch
from torch.autograd.function import BackwardCFunction
from torch.utils.hooks import RemovableHandle

from kiln.graph.ir.node import Node, Origin
from kiln.graph.ir.rewrite import has_effect
from kiln.graph.ops import Emit
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.ops.eager_kernels import OWN_KERNELS, EagerKernels
from kiln.graph.trace.autocast import Casts, is_any_autocast_enabled, no_autocast
from kiln.graph.trace.autograd_edges import edge_of, edges_behind
from kiln.graph.trace.breaks import UnsupportedInput
from kiln.graph.trace.composites import CHECKED, COMPOSITES, PUBLIC, has_symbols
from kiln.graph.trace.constant_value import constant_value
from kiln.graph.trace.constants import Constants
from kiln.graph.trace.control_flow import record_control_flow
from kiln.graph.trace.custom_function import Backward, InterpretedFunction, attach, called_by_autograd
from kiln.graph.trace.fake import FakeTensor, innermost, is_wrapped
from kiln.graph.trace.finish import build_graph, refuse_lost_history
from kiln.graph.trace.fused_optimizers import FUSED
from kiln.graph.trace.gradients import BACKWARDS, accumulated_gradients
from kiln.graph.trace.inputs import Dims, InputTable
from kiln.graph.trace.log import NOWHERE, CallKind, ControlFlow, Target, TorchCall, target_name
from kiln.graph.trace.mode import RecordingMode, SavePolicy
from kiln.graph.trace.number_calls import NUMBER_CALLS
from kiln.graph.trace.outer import OuterTensors
from kiln.graph.trace.repeated_calls import CallCopies
from kiln.graph.trace.resolve import resolve
from kiln.graph.trace.set_data import set_data
from kiln.graph.trace.storage_view import new_storage
from kiln.graph.trace.successors import Successors
from kiln.graph.trace.symbols import TraceSymbols
from kiln.graph.trace.tagged_numbers import has_symbolic_numbers, has_symbols_among, tagging
from kiln.graph.trace.trace import Trace
from kiln.runtime.eager_replay import ambient_state
from kiln.runtime.guards.source import Source
from kiln.support.errors import InternalFault
from kiln.support.events import EventSink
from kiln.support.location import Location
from kiln.symbolic import ShapeEnv, Symbol
from kiln.symbolic.relation import rel_eq
from kiln.symbolic.tags import UnknownNumber
from kiln.symbolic.values import Given, Real
from kiln.tensor.spec import ScalarSpec, TensorSpec

Kwargs = dict[str, object]
_push, _pop = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack
T = TypeVar("T")
_run_backward = torch.autograd.Variable._execution_engine.run_backward


def _call(target: Target, args: Sequence[object], kwargs: Kwargs, strict: bool) -> object:
    target = PUBLIC.get(target, target)
    composite = COMPOSITES.get(target)
    if composite is not None and has_symbols((*args, *kwargs.values())):
        return composite(*args, **kwargs)
    numbered = NUMBER_CALLS.get(target)
    if numbered is not None and kwargs.get("out") is None and has_symbols_among((*args, *kwargs.values())):
        return numbered(*args, **kwargs)
    if not strict and (fused := FUSED.get(target)) is not None:
        return fused(*args, **kwargs)
    if (checked := CHECKED.get(target)) is not None:
        return checked(*args, **kwargs)
    if isinstance(target, str):
        method: Callable[..., object] = getattr(args[0], target)
        return method(*args[1:], **kwargs)
    return target(*args, **kwargs)


def refuse_real(result: object, name: str) -> None:
    """A tensor made outside of the recording (from an array or a generator's state) is not a constant."""
    if isinstance(result, list | tuple):
        for part in result:
            refuse_real(part, name)
    elif isinstance(result, torch.Tensor) and type(innermost(result)) is not FakeTensor:
        raise UnsupportedOp(op=name, reason="it returned a tensor that was made outside of the recording")


def alike(old: object, new: object, env: ShapeEnv) -> bool:
    """Whether two results are tensors of equal specs, as far as is known now, in equal containers."""
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return len(old) == len(new) and all(alike(a, b, env) for a, b in zip(old, new, strict=True))
    if isinstance(old, FakeTensor) and isinstance(new, FakeTensor):
        return same_layout(old.storage_view.spec, new.storage_view.spec, env)
    return old is None and new is None


def same_layout(old: TensorSpec, new: TensorSpec, env: ShapeEnv) -> bool:
    """Whether specs are equal, or their numbers are by what has been found out since the first was made."""
    if old == new or (old.dtype, old.device, old.rank) != (new.dtype, new.device, new.rank):
        return old == new
    pairs = zip((*old.sizes, *old.strides, old.offset), (*new.sizes, *new.strides, new.offset), strict=True)
    return all([a == b or env.known(rel_eq(a, b)) is True for a, b in pairs])


def changes_state(target: Target) -> bool:
    """Whether, by its name, it changes a tensor: `detach_`, `requires_grad_`, `register_hook`."""
    if not isinstance(target, str):
        return target is set_data or target is accumulated_gradients
    in_place = target.endswith("_") and not target.endswith("__")
    return in_place or target in ("retain_grad", "register_hook")


def forget_effects(mode: RecordingMode, first: int) -> None:
    """Of a call that failed: nothing reads its other nodes, but draws, checks and host reads would stay.

    What it counted is counted again where it is needed.
    """
    nodes = mode.emit.nodes
    read = {node.spec.value for node in nodes[first:] if isinstance(node.spec, ScalarSpec) and has_effect(node)}
    nodes[first:] = [node for node in nodes[first:] if not has_effect(node)]
    for mask in [mask for mask, count in mode.counts.items() if count in read]:
        del mode.counts[mask]
    mode.forgotten.update(symbol for symbol in read if isinstance(symbol, Symbol))


@final
class Recorder:
    """A trace in progress. After `finish` it may go on to record the backward.

    `calls` is the log, `inputs` has all inputs in the order of registration, `nodes` all nodes so far, dead ones too.
    `writes` counts the calls with effects; `wrote_and_failed`: a call failed after its first write to a fake, or in a
    backward, which frees the graph of autograd.
    `symbols.location` is the user's line for guards on sizes.
    """

    def __init__(self, *, env: ShapeEnv, events: EventSink, kernels: EagerKernels = OWN_KERNELS) -> None:
        self.env = env
        self._resolve = partial(resolve, kernels=kernels)
        self.strict = kernels.strict
        self.is_differentiating = False
        """The gradients of the region are being recorded, not those that the program asks for."""
        self.may_be_absent = False
        """Gradients of a side of a branch are being recorded, of which data may decide which there are."""
        self.may_lack_tangents = False
        """They are those of several results, of which a loss may use some."""
        self.events = events
        self.outer: OuterTensors | None = None
        """What the capture knows of wrappers, once there are gradients through one."""
        self.unmaterialised: list[tuple[list[FakeTensor], Callable[[str], None]]] = []
        """Outputs of each `autograd.Function` whose backward may get None, and what refuses it."""
        self.nonlinear: set[object] = set()
        """Classes of functions and hooks that the recorded backward has called and that are not linear in gradients."""
        self.saved_hooks: list[tuple[Callable[..., object], Callable[..., torch.Tensor]]] = []
        """Pairs of functions that pack and unpack what autograd saves; the last one is active."""
        self.to_host = False
        """Whether what is saved of the next calls waits in the host's memory."""
        self.held: list[object] = []
        """What the graph of autograd behind the fakes calls (`called_by_autograd`)."""
        self.region = 0
        """The checkpoint region of the next calls; 0 outside of any."""
        self._outer: Origin | None = None
        """The origin of the call that the next calls are nested in."""
        self.grad_at_start = torch.is_grad_enabled()
        self.state_at_start = ambient_state()
        self.calls: list[TorchCall] = []
        self.writes = 0
        self.wrote_and_failed = False
        self.symbols = TraceSymbols(self.env)
        self.emit = Emit(self.symbols, self.symbols.specialise, self.symbols.compare)
        self._constants = Constants()
        self.constants = self._constants.tensors
        self._mode = RecordingMode(self.emit, self._constants, self._resolve, self.symbols)
        self.table = InputTable(self._mode)
        self.inputs = self.table.records
        self.forgotten = self._mode.forgotten
        self.distinct, self.conjugates = self._mode.distinct, self._mode.conjugates
        self.counted_twice, self.versioned = self._mode.counted_twice, self._mode.versioned
        self.nodes = self.emit.nodes
        self._casts = Casts()
        self._names: dict[Target, str] = {}
        self._baked: list[tuple[torch.Tensor, torch.Tensor]] = []

    # Inputs.

    def add_tensor(
        self, real: torch.Tensor, name: str, source: Source, dims: Dims = None, subclass: bool = False
    ) -> torch.Tensor:
        """The fake of an input; the same real tensor gives the same fake. `subclass`: its class does not matter."""
        record = self.table.find(real)
        if record is None:
            self.table.accept(real, name, subclass)
            record = self.table.add(real, name, source, self.table.spec(real, dims))
        return cast(FakeTensor, record.fake)

    def add_scalar(
        self, value: int | float, name: str, source: Source, formula: Real | None = None
    ) -> torch.SymInt | torch.SymFloat:
        """A number that may differ in the next call; by a formula, it is computed in front of the region."""
        if type(value) is float:
            given = Given(name, value, formula=formula)
            return cast(torch.SymFloat, self.table.add_float(given, name, source).fake)
        if type(value) is not int:
            raise UnsupportedInput(name=name, reason=f"a {type(value).__name__} cannot be a symbol")
        self._mode.symbolic = True
        record = self.table.add_scalar(value, name, source)
        return cast(torch.SymInt, record.fake - record.offset if record.offset else record.fake)  # type: ignore[operator]

    def add_constant(self, real: torch.Tensor) -> torch.Tensor:
        """The fake of a tensor whose values are known at compile time."""
        fake = self._mode.fake(self._constants.bake(self.emit, real))
        self._baked.append((real, fake))
        return fake

    # Calls.

    def call(
        self, target: Target, args: Sequence[object], kwargs: Kwargs, *, stack: tuple[Location, ...] = ()
    ) -> object:
        """Run a torch call on fakes; a string names a method. `stack`: the user's lines, innermost last."""
        location = stack[-1] if stack else None
        name = self._names.get(target)
        if name is None:
            name = self._names[target] = target_name(target)
        outer = self._outer
        self.emit.origin = (
            Origin(name, len(self.calls), location, target in BACKWARDS, region=self.region, to_host=self.to_host)
            if outer is None
            else replace(outer, call=name, location=location)
        )
        self.symbols.location = location
        mutations, first = self._mode.mutations, len(self.nodes)
        _push(self._mode)
        try:
            if type(target) is ControlFlow:
                if self.saved_hooks:
                    raise UnsupportedOp(op=name, reason="it is called within `saved_tensors_hooks`")
                result: object = record_control_flow(self, partial(replayed_calls, self), target, args)
            else:
                with self.outer.backward() if self.outer is not None and target in BACKWARDS else nullcontext():
                    result = self._numeric_call(target, args, kwargs)
        except BaseException:
            forget_effects(self._mode, first)
            self.wrote_and_failed |= self._mode.mutations != mutations or target in BACKWARDS  # it frees the graph
            raise
        finally:
            _pop(None)
        if type(result) is not FakeTensor:
            refuse_real(result, name)
        elif target is getattr and args[1] == "data":
            result.is_data = True
        kind: CallKind = "method" if isinstance(target, str) else "function"
        effects = self._mode.mutations != mutations or changes_state(target)
        self.writes += effects
        where, nodes = location or NOWHERE, (first, len(self.nodes))
        self.calls.append(
            TorchCall(len(self.calls), kind, target, tuple(args), kwargs, result, where, stack, effects, nodes)
        )
        return result

    def _numeric_call(self, target: Target, args: Sequence[object], kwargs: Kwargs) -> object:
        """Numbers that C++ takes as doubles stay symbolic where that is possible."""
        mode, values = self._mode, (*args, *kwargs.values())
        if self.env.assume_number is None or not has_symbolic_numbers(values):
            return self._plain_call(target, args, kwargs)
        mutations, first = mode.mutations, len(self.nodes)
        try:
            with tagging(self.env, mode.tags, values):
                return self._plain_call(target, args, kwargs)
        except (UnknownNumber, TypeError) as lost:
            if mode.mutations != mutations:
                raise UnsupportedOp(
                    op=target_name(target), reason="it writes while it computes with a number"
                ) from lost
            forget_effects(mode, first)
            return self._plain_call(target, args, kwargs)

    def _plain_call(self, target: Target, args: Sequence[object], kwargs: Kwargs) -> object:
        env = self.env
        outer, env.asked_by_torch = env.asked_by_torch, True
        env.in_store = env.taken is not None and target is operator.setitem
        try:
            with packing(*self.saved_hooks[-1]) if self.saved_hooks else nullcontext():
                if is_any_autocast_enabled():
                    return self._autocast_call(target, args, kwargs)
                return _call(target, args, kwargs, self.strict)
        finally:
            env.in_store, env.asked_by_torch = False, outer

    def _autocast_call(self, target: Target, args: Sequence[object], kwargs: Kwargs) -> object:
        cached = torch.is_autocast_cache_enabled()
        args, kwargs, done = self._casts.arguments(target, args, kwargs)
        torch.set_autocast_cache_enabled(False)
        outside, self._mode.autocast = self._mode.autocast, True
        try:
            with no_autocast() if done else nullcontext():
                return _call(target, args, kwargs, self.strict)
        finally:
            self._mode.autocast = outside
            torch.set_autocast_cache_enabled(cached)

    def repeat(
        self, calls: Sequence[TorchCall], successors: Successors, stack: tuple[Location, ...], depth: int, writes: int
    ) -> None:
        """Repeat calls of the log on the successors of what they used; `stack` replaces the first `depth` lines.

        `writes`: `self.writes` before the first of them.
        """
        gradients = self.grad_at_start or torch.is_grad_enabled()
        plain = not (gradients or self._mode.symbolic or is_any_autocast_enabled())
        copies = CallCopies(self.nodes, calls, successors) if plain and writes == self.writes else None
        for call in calls:
            lines = (*stack, *call.stack[depth:])
            if copies is not None and copies.possible:
                made, entry = copies.call(call, len(self.calls), lines)
                self.nodes.extend(made)
                self.calls.append(entry)
                continue
            result = self.call(call.target, successors.of(call.args), successors.of(call.kwargs), stack=lines)
            if not alike(call.result, result, self.env):
                raise InternalFault(stage="trace", problem=f"{call.name} returned another result when repeated")
            successors.add(call.result, result)

    def set_state(self, kind: str, value: object, *, stack: tuple[Location, ...] = ()) -> None:
        """Log a change of mode, which the caller makes."""
        if kind == "autocast_nesting" and value == 0:
            self._casts.forget()
        location = stack[-1] if stack else NOWHERE
        self.calls.append(TorchCall(len(self.calls), "setstate", kind, (value,), {}, None, location, stack))

    def run_backward(
        self,
        outputs: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor],
        inputs: Sequence[torch.Tensor],
        retain_graph: bool = False,
    ) -> list[torch.Tensor | None]:
        """Gradients of `inputs`, recorded as nodes of the backward direction. What was frozen since has one as well."""
        frozen = [x for x in inputs if x.is_leaf and not x.requires_grad]
        self.emit.origin = Origin("backward", len(self.calls), None, backward=True)
        self.is_differentiating, self.may_lack_tangents = True, len(outputs) > 1
        _push(self._mode)
        try:
            for leaf in frozen:
                leaf.requires_grad_()
            if self.may_lack_tangents:
                self._join(outputs)
            with (
                self.outer.backward() if self.outer is not None else nullcontext(),
                asked_by_torch(self.env),
                no_autocast(),
            ):
                grads = _run_backward(
                    tuple(outputs),
                    tuple(tangents),
                    retain_graph,
                    False,
                    tuple(inputs),
                    allow_unreachable=True,
                    accumulate_grad=False,
                )
        finally:
            for leaf in frozen:
                leaf.requires_grad_(False)
            _pop(None)
            self.is_differentiating = self.may_lack_tangents = False
        return list(grads)

    def _join(self, outputs: Sequence[torch.Tensor]) -> None:
        """See to it that functions in Python that run as they are (the backward of a custom operator) get zeros for
        missing gradients, and give all of theirs if one arrives."""
        before = RemovableHandle.next_id  # the program may see it
        hold = partial(called_by_autograd, self.held)
        for function, _ in edges_behind(map(edge_of, outputs)):
            if isinstance(function, BackwardCFunction) and not isinstance(function, InterpretedFunction._backward_cls):
                function.register_prehook(hold(lambda grads: tuple(self.materialised(grads, grads))))
                function.register_hook(hold(lambda made, grads: tuple(self.materialised(made, grads))))
        RemovableHandle.next_id = before

    def materialised(self, values: Sequence[T], grads: Sequence[object]) -> list[T]:
        """`values` of a backward in Python, or of a hook, which exist if one of the `grads` that it gets does."""
        nodes = [self.node_of(grad) for grad in grads if type(grad) is FakeTensor and not grad.is_outer]
        made: list[object] = list(values)
        for place, value in enumerate(made if self.may_lack_tangents and nodes else ()):
            if type(value) is FakeTensor and not value.is_outer:
                made[place] = self.fake_of(self.emit.node("materialised", self.node_of(value), *nodes))
        return cast(list[T], made)

    def fake_of(self, node: Node) -> FakeTensor:
        """A fresh fake tensor with the value of `node`, such as a tangent."""
        return self._mode.fake(new_storage(node))

    # Queries.

    def is_fake(self, value: object) -> bool:
        return type(value) is FakeTensor or (type(value) is torch.Tensor and is_wrapped(value))

    def node_of(self, fake: torch.Tensor) -> Node:
        """The node of the present value."""
        return self._mode.memory.read(self._mode.view_of(fake))

    def constant_value(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The value of a tensor computed from constants alone."""
        return constant_value(self.node_of(fake), self._constants.tensors)

    def real_of(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The tensor of an input or a constant."""
        record = self.table.record_of(fake)
        if record is not None:
            return record.real
        return next((real for real, other in self._baked if other is fake), None)

    def mark(self) -> int:
        """The position in the log of the next call."""
        return len(self.calls)

    def finish(self, outputs: Sequence[FakeTensor]) -> Trace:
        """The trace with these results."""
        self.emit.origin = None
        refuse_lost_history(self._mode, outputs)
        graph = build_graph(self._mode, self.inputs, list(outputs))
        with recording(self):  # autograd computes the gradient function of a view on demand
            leaves = tuple([fake.is_leaf for fake in outputs])
        return Trace(
            list(self.calls),
            list(self.inputs),
            graph,
            list(outputs),
            self.env,
            leaves,
            protected_views(outputs),
            self._constants.tensors,
        )


@contextmanager
def asked_by_torch(env: ShapeEnv, value: bool = True) -> Iterator[None]:
    """Questions about sizes within come from torch's C++ code, or (`value`: not) from Python that it calls back."""
    outer, env.asked_by_torch = env.asked_by_torch, value
    try:
        yield
    finally:
        env.asked_by_torch = outer


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """What is done within belongs to the recording, and to no call of the log."""
    _push(recorder._mode)
    try:
        yield
    finally:
        _pop(None)


@contextmanager
def checkpointed(recorder: Recorder, region: int, saves: SavePolicy | None) -> Iterator[None]:
    """Calls within belong to a checkpoint region (0: to none), of which `saves` keeps results."""
    outer, policy = recorder.region, recorder._mode.saves
    recorder.region, recorder._mode.saves = region, saves
    try:
        yield
    finally:
        recorder.region, recorder._mode.saves = outer, policy


@contextmanager
def packing(pack: Callable[..., object], unpack: Callable[..., torch.Tensor]) -> Iterator[None]:
    """Autograd calls the hooks of the recording, those of the caller are hidden from it."""
    hidden = torch._C._autograd._saved_tensors_hooks_set_tracing(False)
    torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
    try:
        yield
    finally:
        torch._C._autograd._pop_saved_tensors_default_hooks()
        torch._C._autograd._saved_tensors_hooks_set_tracing(hidden)


@contextmanager
def nested_calls(recorder: Recorder) -> Iterator[None]:
    """Calls within are nodes of the present call, or of the backward, and no entries of the log."""
    outer, origin, location = recorder._outer, recorder.emit.origin, recorder.symbols.location
    mark = recorder.mark()
    recorder._outer = origin
    try:
        with asked_by_torch(recorder.env, False):
            yield
    finally:
        del recorder.calls[mark:]
        recorder._outer, recorder.emit.origin, recorder.symbols.location = outer, origin, location


@contextmanager
def replayed_calls(recorder: Recorder) -> Iterator[None]:
    """The same, where the mode is on: each call turns it on for itself, and handlers compute with real tensors."""
    with nested_calls(recorder):
        mode = _pop(None)
        try:
            yield
        finally:
            _push(mode)


def protected_views(outputs: Sequence[FakeTensor]) -> tuple[tuple[int, int], ...]:
    """The outputs that eager forbids to change in place, such as those of `split`, and torch's reason."""
    views = [(number, fake) for number, fake in enumerate(outputs) if fake._is_view()]
    creations = [(number, torch._C._autograd._get_creation_meta(fake).value) for number, fake in views]
    return tuple([(number, creation) for number, creation in creations if creation])


def replace_calls(
    recorder: Recorder,
    mark: int,
    target: Target,
    args: Sequence[object],
    kwargs: Kwargs,
    result: object,
    *,
    stack: tuple[Location, ...] = (),
) -> None:
    """Replace the calls since `mark`, such as those on the tensors inside of wrappers, by one of `target`."""
    effects = any(call.effects for call in recorder.calls[mark:])
    del recorder.calls[mark:]
    kind: CallKind = "method" if isinstance(target, str) else "function"
    location = stack[-1] if stack else NOWHERE
    recorder.calls.append(TorchCall(mark, kind, target, tuple(args), kwargs, result, location, stack, effects))


def record_effect(recorder: Recorder, target: Target, args: Sequence[object], stack: tuple[Location, ...]) -> None:
    """Log a call that is not made on fakes."""
    location = stack[-1] if stack else NOWHERE
    number = len(recorder.calls)
    recorder.calls.append(TorchCall(number, "function", target, tuple(args), {}, None, location, stack, True))


def record_function(
    recorder: Recorder,
    mark: int,
    target: Target,
    args: Sequence[object],
    outputs: Sequence[object],
    plain: Collection[int],
    backward: Backward,
    *,
    single: bool,
    stack: tuple[Location, ...] = (),
) -> list[object]:
    """Replace the calls since `mark`, which computed `outputs` without autograd, by a call of `target(*args)`.

    The resulting tensors get an autograd node with this backward, except those numbered in `plain`.
    `single`: it returns its only output, not a tuple.
    """
    inputs = [arg for arg in args if type(arg) is FakeTensor]
    tensors = {number: output for number, output in enumerate(outputs) if type(output) is FakeTensor}
    marked = [order for order, number in enumerate(tensors) if number in plain]
    results = list(outputs)
    with recording(recorder):
        attached = attach(recorder.held, inputs, list(tensors.values()), marked, backward)
    for number, fake in zip(tensors, attached, strict=True):
        results[number] = fake
    replace_calls(recorder, mark, target, args, {}, results[0] if single else tuple(results), stack=stack)
    return results
