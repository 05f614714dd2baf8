"""Captures a call as one whole graph: breaks, changed objects and unknown results are errors.

whole = capture_whole(model, (x,), {"mask": mask}, table)
whole.trace.graph         the primitives
whole.result              the result of the call: containers of `OutputMark`s, inputs, sizes, constants
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from typing import cast, final

import torch
from torch import nn

from kiln.capture.interpreter.breaks import DataDependentBranch, DataDependentValue, SideEffectCall, TorchCallFailed
from kiln.capture.interpreter.builtins.torch_functions import ModeEffect
from kiln.capture.interpreter.capture import Callbacks, Capture, capture_frame
from kiln.capture.interpreter.core import MISSING, Effect, Value
from kiln.capture.interpreter.effects import ContentsEffect
from kiln.capture.interpreter.host_draws import DRAWN
from kiln.capture.interpreter.speculation import Speculation
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.object import AttributeEffect
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.graph.autograd.joint import JointGraph, make_joint
from kiln.graph.ir.node import Node
from kiln.graph.ops.eager_kernels import EagerKernels
from kiln.graph.ops.emit import Emit
from kiln.graph.trace import InputRecord, Recorder, Trace
from kiln.graph.trace.condition import inputs_of
from kiln.pipeline.modes import UnknownMode, unknown_mode, watch_current_device, without_autograd_observers
from kiln.programs.call.errors import BadExportArgument, ExportChangesObject
from kiln.programs.call.tree import flatten
from kiln.programs.dims import DimTable
from kiln.programs.memos import ComparedCall, is_same_program, undone
from kiln.programs.number_results import on_symbols, read
from kiln.programs.output_mark import OutputMark
from kiln.runtime.guards.source import DictAttrSource, Source
from kiln.support.errors import KilnError
from kiln.support.events import EventSink
from kiln.support.gc_pause import GC_PAUSE
from kiln.support.records import dataclass
from kiln.symbolic import DimChoice, ShapeEnv
from kiln.symbolic.node import to_sym
from kiln.symbolic.reference import prove
from kiln.tensor.spec import ScalarSpec, TensorSpec


@final
@dataclass
class WholeCapture:
    """A captured call. `joint` of a training export."""

    trace: Trace
    emit: Emit
    result: object
    steps: int
    joint: JointGraph | None = None
    torch_module: torch.fx.GraphModule | None = None
    buffers: list[tuple[torch.Tensor, Node]] = field(default_factory=list)
    """Buffers for which the call stores other tensors (`self.mean = ...`), and these."""


@final
@dataclass(frozen=True, slots=True)
class Kinds:
    """What kind of program is asked for.

    `training`: with gradients; `keep_calls`: with the graph of torch calls; `strict`: ATen's operators stay calls of
    eager's kernels, unless what they are made of gives the same bits.
    """

    training: bool = False
    keep_calls: bool = False
    strict: bool = False


@final
@dataclass
class RegionKeeper:
    """What the capture hands over instead of compiling: recorder and trace, and the joint graph."""

    table: DimTable
    kinds: Kinds
    arguments: frozenset[int]
    """By `id`: the tensors that the program is given; it carries all others."""
    assumes: bool = False
    """Let numbers in arguments that Python cannot do without be what they are in this call; the program checks it."""
    recorder: Recorder | None = None
    trace: Trace | None = None
    joint: JointGraph | None = None
    torch_module: torch.fx.GraphModule | None = None
    events: EventSink = field(default_factory=EventSink)

    def make_recorder(self) -> Recorder:
        env = self.table.env(lambda: ShapeEnv(prover=prove))
        env.taken = []
        kernels = EagerKernels(random=True, strict=self.kinds.strict)
        self.recorder = Recorder(env=env, events=self.events, kernels=kernels)
        self.trace = self.joint = self.torch_module = None
        return self.recorder

    def keep(self, recorder: Recorder, trace: Trace) -> Callable[..., object]:
        self.trace = trace
        if self.kinds.keep_calls:
            self.torch_module = trace.torch_graph()  # before the backward is recorded
        if self.kinds.training and trace.needs_grad:
            self.joint = make_joint(recorder, trace)
        values = integers_read(trace)
        outputs = trace.graph.outputs
        sizes = [output.value.spec.sizes if isinstance(output.value.spec, TensorSpec) else () for output in outputs]
        syms = [tuple([to_sym(size, trace.env) for size in each]) for each in sizes]
        marks = tuple(
            [
                OutputMark(number, syms[number], values.get(output.value), reader(recorder, output.value))
                for number, output in enumerate(outputs)
            ]
        )
        return lambda *inputs: marks

    def carries(self, tensor: torch.Tensor, needed: bool) -> bool:
        return id(tensor) not in self.arguments or (self.assumes and needed)

    def dims(self, tensor: torch.Tensor, source: object) -> tuple[DimChoice, ...]:
        return self.table.choose(tensor)


def reader(recorder: Recorder, node: Node) -> Callable[[], torch.SymFloat] | None:
    """What reads the number in a result of the region, if it may be a float."""
    is_float = isinstance(node.spec, TensorSpec) and node.spec.dtype.is_floating_point
    return functools.partial(read, recorder.emit, node, recorder.env) if is_float else None


def integers_read(trace: Trace) -> dict[Node, torch.SymInt]:
    """The symbols for integers that the graph reads from tensors, by the tensor."""
    found: dict[Node, torch.SymInt] = {}
    for node in trace.graph.nodes:
        if node.op.name == "local_scalar" and isinstance(node.spec, ScalarSpec) and node.spec.value is not None:
            made = to_sym(node.spec.value, trace.env)
            if isinstance(made, torch.SymInt):
                found[node.inputs[0]] = made
    return found


def entry_of(target: object) -> tuple[types.FunctionType, tuple[object, ...]]:
    """The Python function that a call of `target` runs, and the arguments that come first."""
    if isinstance(target, nn.Module):
        call = type(target).__call__
        if isinstance(call, types.FunctionType):
            return call, (target,)
    if isinstance(target, functools.partial):
        return cast(types.FunctionType, call_partial), (target,)
    if isinstance(target, types.MethodType) and isinstance(target.__func__, types.FunctionType):
        return target.__func__, (target.__self__,)
    if isinstance(target, types.FunctionType):
        return target, ()
    called = type(target).__call__
    if isinstance(called, types.FunctionType) and not isinstance(target, type):
        return called, (target,)
    raise BadExportArgument(
        name="target", value=target, allowed="an nn.Module, a Python function, a method or a partial"
    )


def call_partial(target: Callable[..., object], /, *args: object, **kwargs: object) -> object:
    return target(*args, **kwargs)


def user_signature(target: object) -> inspect.Signature:
    """The signature that users know: of a module, that of `forward`."""
    entry_of(target)
    return inspect.signature(target.forward if isinstance(target, nn.Module) else target)  # type: ignore[arg-type]


def name_of(target: object) -> str:
    if isinstance(target, functools.partial):
        return name_of(target.func)
    return getattr(target, "__qualname__", type(target).__qualname__)


def slots_of(function: types.FunctionType, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
    """The argument slots by name, `*args` and `**kwargs` as one each, in the order of the code object."""
    bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    bound.apply_defaults()
    code = function.__code__
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return {name: bound.arguments[name] for name in code.co_varnames[:count]}


def capture_whole(
    target: object,
    args: tuple[object, ...],
    kwargs: Mapping[str, object],
    table: DimTable,
    kinds: Kinds,
) -> WholeCapture:
    """Capture a call. Raises KilnError with the user's line where it is not one graph."""
    watch_current_device()
    if mode := unknown_mode():
        raise UnknownMode(function=name_of(target), mode=mode)
    call = WholeCall(target, args, kwargs, table, kinds)
    first = call.capture()
    changes = call.refused(first)
    if changes and (whole := call.second_capture(first)) is not None:
        return whole
    if changes:
        raise ExportChangesObject(function=name_of(target), what_changes=described(changes[0]))
    return call.whole(first, *call.results(first))


@final
@dataclass
class CapturedCall:
    """`own`: variables of the call that are attributes of modules."""

    keeper: RegionKeeper
    capture: Capture
    trace: Trace
    own: list[AttributeEffect]


@final
class WholeCall:
    """A call that is captured, twice if it remembers something (see `memos.py`)."""

    def __init__(
        self, target: object, args: tuple[object, ...], kwargs: Mapping[str, object], table: DimTable, kinds: Kinds
    ) -> None:
        self.target, self.args, self.kwargs, self.table, self.kinds = target, args, kwargs, table, kinds
        self.function, self.first = entry_of(target)
        self.slots = slots_of(self.function, (*self.first, *args), kwargs)
        self.given = frozenset(map(id, flatten((args, dict(kwargs)))[1]))
        self.name = name_of(target)

    def capture(self) -> CapturedCall:
        fused = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)  # nn.MultiheadAttention and the like by their parts
        try:
            with GC_PAUSE(), without_autograd_observers():
                keeper = RegionKeeper(self.table, self.kinds, self.given)
                keeper, capture = _captured_in_mode(self.function, self.slots, keeper)
        finally:
            torch.backends.mha.set_fastpath_enabled(fused)
        assert keeper.recorder is not None and capture.function is not None
        if keeper.trace is None:
            keeper.trace = keeper.recorder.finish([])
        own = own_variables(capture, keeper.trace, modules_of(self.first))
        return CapturedCall(keeper, capture, keeper.trace, own)

    def refused(self, call: CapturedCall) -> list[Effect]:
        """The changes that a program cannot make."""
        known = {id(buffers) for buffers in buffer_dicts(self.first)}
        effects = [each for each in call.capture.effects if each not in call.own]
        effects = [each for each in effects if not is_store_of_buffers(each, known)]
        return [each for each in effects if (each.writes and not is_restored(each)) or isinstance(each, ModeEffect)]

    def results(self, call: CapturedCall) -> tuple[object, list[tuple[torch.Tensor | None, object]]]:
        with unchanged(call.own):
            return _result(call.capture, self.slots, call.trace, buffer_dicts(self.first))

    def whole(
        self, call: CapturedCall, result: object, stored: list[tuple[torch.Tensor | None, object]]
    ) -> WholeCapture:
        keeper, trace = call.keeper, call.trace
        assert keeper.recorder is not None
        buffers = [stored_buffer(old, new, trace, self.name) for old, new in stored]
        refuse_moving(call.capture.speculations, keeper, buffers, self.name)
        if self.kinds.training and buffers:
            raise ExportChangesObject(function=self.name, what_changes="a buffer, which it stores anew")
        return WholeCapture(
            trace, keeper.recorder.emit, result, call.capture.steps, keeper.joint, keeper.torch_module, buffers
        )

    def second_capture(self, first: CapturedCall) -> WholeCapture | None:
        """The program of the call after an eager one, if it is the same, and what `first` changes was remembered."""
        written = [record.real for record in first.trace.inputs if is_written(record, first.trace)]
        tensors = [tensor for tensor in written if tensor is not None]
        effects = [each for each in first.capture.effects if each.writes or isinstance(each, ModeEffect)]
        with undone(effects, tensors) as changes:
            if changes is None:
                return None
            try:
                before = ComparedCall(first.trace, *self.results(first))
                if changes.are_none():
                    return self.whole(first, before.result, [*before.stored])
                changes.undo()
                self.run_eager()
                second = self.capture()
                if self.refused(second):
                    return None
                after = ComparedCall(second.trace, *self.results(second))
                same = is_same_program(before, after, self.given)
            except Exception:
                return None  # it is refused for what it changes
            return self.whole(second, after.result, [*after.stored]) if same else None

    def run_eager(self) -> None:
        """One call on copies of the arguments."""
        tree, leaves = flatten((tuple(self.args), dict(self.kwargs)))
        copies = [leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = cast(tuple[tuple[object, ...], dict[str, object]], tree.build(copies))
        buffers = buffer_dicts(self.first)
        before = [dict(each) for each in buffers]
        try:
            with torch.set_grad_enabled(self.kinds.training):
                cast(Callable[..., object], self.target)(*args, **kwargs)
        finally:
            for kept, now in zip(before, buffers, strict=True):
                now.clear()
                now.update(kept)


def _captured_in_mode(
    function: types.FunctionType, slots: Mapping[str, object], keeper: RegionKeeper
) -> tuple[RegionKeeper, Capture]:
    """The capture without gradients, unless they are exported; with them where the program itself needs them."""
    with torch.set_grad_enabled(keeper.kinds.training):
        try:
            return _captured(function, slots, keeper)
        except TorchCallFailed as failed:
            if keeper.kinds.training:
                raise
            first = failed
    with torch.enable_grad():
        try:
            return _captured(function, slots, replace(keeper, recorder=None))
        except KilnError:
            raise first from first.__cause__


def _captured(
    function: types.FunctionType, slots: Mapping[str, object], keeper: RegionKeeper
) -> tuple[RegionKeeper, Capture]:
    """The capture with eager's answer to `is_compiling`, or, where that needs values or breaks the graph, with True;
    then the same with numbers in arguments that Python cannot do without taken as they are in this call."""
    capture = _attempt(function, slots, keeper, is_compiling=False, until_values=True)
    if capture.gave_up:
        capture = _attempt(function, slots, keeper, is_compiling=True)
        if capture.breaks or capture.skipped:
            capture = _attempt(function, slots, keeper, is_compiling=False)
    asks, reads = (
        capture.asked_is_compiling,
        any([isinstance(found, (DataDependentBranch, DataDependentValue)) for found in capture.breaks[:1]]),
    )
    others = [(False, True)] * asks + [(True, False)] * reads + [(True, True)] * (asks and reads)
    for assumes, is_compiling in others if capture.breaks or capture.skipped else ():
        other = replace(keeper, recorder=None, assumes=assumes)
        second = _attempt(function, slots, other, is_compiling=is_compiling)
        if not second.breaks and not second.skipped:
            keeper, capture = other, second
            break
    if capture.skipped is not None:
        raise capture.skipped
    if capture.breaks:
        raise capture.breaks[0]
    if any([str(found.argval).startswith(DRAWN) for found in dis.get_instructions(capture.function)]):  # type: ignore[arg-type]
        raise SideEffectCall(function="random", why="it draws a number that is a result")
    return keeper, capture


def _attempt(
    function: types.FunctionType,
    slots: Mapping[str, object],
    keeper: RegionKeeper,
    *,
    is_compiling: bool,
    until_values: bool = False,
) -> Capture:
    callbacks = Callbacks(keeper.keep, keeper.make_recorder, dims=keeper.dims, carries=keeper.carries)
    return capture_frame(
        function, slots, callbacks, events=keeper.events, is_compiling=is_compiling, until_values=until_values
    )


def modules_of(arguments: tuple[object, ...]) -> list[nn.Module]:
    """The module that is called, and those in it."""
    return [*arguments[0].modules()] if arguments and isinstance(arguments[0], nn.Module) else []


def buffer_dicts(arguments: tuple[object, ...]) -> list[dict[str, torch.Tensor | None]]:
    return [module._buffers for module in modules_of(arguments)]


def own_variables(capture: Capture, trace: Trace, modules: list[nn.Module]) -> list[AttributeEffect]:
    """Attributes of modules that the call stores, but does not read before: the weight that a hook of
    `torch.nn.utils.weight_norm` or `prune` computes, the sizes of the last call. No later call depends on them.

    A tensor that the call itself does not read is stored for the user, who would miss it.
    """
    known = set(map(id, modules))
    found = [effect for effect in capture.effects if isinstance(effect, AttributeEffect)]
    found = [effect for effect in found if id(effect.value.real()) in known]
    found = [effect for effect in found if effect.is_read or are_numbers(effect.value.attrs.get(effect.name))]
    sources = [guard.source for guard in capture.guards] + [record.source for record in trace.inputs] if found else []
    before = {step for source in sources for step in steps_of(source)}
    return [effect for effect in found if DictAttrSource(source_of(effect), effect.name) not in before]


def are_numbers(value: Value | None) -> bool:
    """Whether it is a number or another constant, or a tuple of such."""
    if isinstance(value, Tuple):
        return value._items is not None and all(map(are_numbers, value._items))
    return isinstance(value, Constant | Symbolic)


def source_of(effect: AttributeEffect) -> Source:
    assert effect.value.source is not None
    return effect.value.source


def steps_of(source: Source | None) -> Iterator[Source]:
    """It, and what its path goes through."""
    while source is not None:
        yield source
        source = source.parent


@contextmanager
def unchanged(effects: list[AttributeEffect]) -> Iterator[None]:
    """Their attributes are afterwards what they were before."""
    places = [(vars(effect.value.real()), effect.name) for effect in effects]
    before = [(content, name, content.get(name, MISSING)) for content, name in places]
    try:
        yield
    finally:
        for content, name, value in before:
            if value is MISSING:
                content.pop(name, None)
            else:
                content[name] = value


def is_store_of_buffers(effect: Effect, known: set[int]) -> bool:
    """Whether it stores tensors in one of the dicts `known` (by `id`)."""
    return isinstance(effect, ContentsEffect) and id(effect.value.real()) in known


def stored_buffer(old: torch.Tensor | None, new: object, trace: Trace, function: str) -> tuple[torch.Tensor, Node]:
    """A buffer and the value that it gets. Raises ExportChangesObject for one of another kind."""
    records = [record.node for record in trace.inputs if record.fake is new or record.real is new]
    node = trace.graph.outputs[new.number].value if isinstance(new, OutputMark) else next(iter(records), None)
    if old is None or node is None or (node.tensor.dtype, node.tensor.sizes) != (old.dtype, tuple(old.shape)):
        raise ExportChangesObject(function=function, what_changes="a buffer, which gets another size, dtype or kind")
    return old, node


def refuse_moving(
    decided: list[Speculation], keeper: RegionKeeper, stored: list[tuple[torch.Tensor, Node]], function: str
) -> None:
    """Raise ExportChangesObject where the program changes a tensor that has decided what it does."""
    assert keeper.recorder is not None and keeper.trace is not None
    changed = {id(old) for old, _ in stored}
    changed |= {id(record.real) for record in keeper.trace.inputs if is_written(record, keeper.trace)}
    for each in decided:
        for record in inputs_of(keeper.recorder, each.node):
            if id(record.real) in changed:
                what = f"`{record.source.text()}`, whose value decides at {each.location.text()}"
                raise ExportChangesObject(function=function, what_changes=what)


def is_written(record: InputRecord, trace: Trace) -> bool:
    return any(write.target is record.node for write in trace.graph.writes)


def is_restored(effect: Effect) -> bool:
    """Whether an attribute gets the value that it had before the call."""
    if not isinstance(effect, AttributeEffect):
        return False
    last = effect.value.attrs.get(effect.name)
    before = getattr(effect.value.real(), "__dict__", {}).get(effect.name, MISSING)
    return last is not None and before is not MISSING and last.real() is before


def described(effect: Effect) -> str:
    """What an effect changes, as a user would name it."""
    name = getattr(effect, "name", None)
    changed = getattr(effect, "value", None) or getattr(effect, "cell", None)
    source = getattr(changed, "source", None)
    place = source.text() if source is not None else ""
    if isinstance(effect, ModeEffect):
        return "a mode of torch, such as the grad mode"
    if name is not None:
        return f"`{place}.{name}`" if place else f"the variable or attribute `{name}`"
    return f"the contents of `{place}`" if place else "an object that exists outside of it"


def _result(
    capture: Capture, slots: Mapping[str, object], trace: Trace, dicts: list[dict[str, torch.Tensor | None]]
) -> tuple[object, list[tuple[torch.Tensor | None, object]]]:
    """The result of the transformed code on fakes, where sizes are symbols and region outputs are marks.

    Also the buffers in `dicts` for which it stored others; they are there again afterwards.
    """
    assert capture.function is not None
    fakes = {id(record.real): record.fake for record in trace.inputs if record.real is not None}
    tree, leaves = flatten(tuple(slots.values()))
    values = tree.build([fakes.get(id(leaf), leaf) for leaf in leaves])
    assert isinstance(values, tuple)
    extra = ((None,) * len(capture.collect),) if capture.collect else ()
    before = [dict(buffers) for buffers in dicts]
    try:
        result: object = on_symbols(capture.function, trace.env)(*values, *extra)
        names = [(kept, now, name) for kept, now in zip(before, dicts, strict=True) for name in kept | now]
        pairs = [(kept.get(name), now.get(name)) for kept, now, name in names]
    finally:
        for kept, now in zip(before, dicts, strict=True):
            now.clear()
            now.update(kept)
    return result, [
        (old, new) for old, new in pairs if old is not None and new is not old and new is not fakes.get(id(old), old)
    ]
