"""Captures a frame: interprets it, collects guards, writes the transformed code.

    capture_frame(f, {"x": x}, Callbacks(compile_region, recorder_factory, ...))  ->  Capture

An attempt interprets the frame up to its return (one region) or to a graph break. If every frame on the stack can be
resumed, the code is the region so far, the instruction itself, and a call of resume functions. Otherwise the capture
restarts, to break in front of an instruction further out.
"""

from __future__ import annotations

import inspect
import operator
import pkgutil
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast, final

import torch

from kiln.capture.bytecode.assemble import Assembler, Label, arguments_of
from kiln.capture.bytecode.resume import origin_of, original_code
from kiln.capture.interpreter.alias_guards import refuse_memory_in_several_storages
from kiln.capture.interpreter.break_codegen import write_break
from kiln.capture.interpreter.breaks import (
    GraphBreak,
    Raised,
    RaisesException,
    SkippedCode,
    UnsupportedCall,
    UnsupportedValue,
)
from kiln.capture.interpreter.builtins import collectives, control_flow_operators
from kiln.capture.interpreter.builtins.fully_sharded import register_fully_sharded
from kiln.capture.interpreter.builtins.function_modes import break_before_modes
from kiln.capture.interpreter.builtins.function_transforms import break_before_levels, close_levels
from kiln.capture.interpreter.builtins.leaf_gradients import dropped_early, forget_gradients
from kiln.capture.interpreter.builtins.numpy_sizes import constant_sizes
from kiln.capture.interpreter.builtins.torch_compiler import refuse_break
from kiln.capture.interpreter.builtins.torch_functions import drop_unchanged_modes, restore_modes
from kiln.capture.interpreter.builtins.triton_kernels import register_triton
from kiln.capture.interpreter.changed_numbers import NumberChanges, PassedNumbers, changed_numbers
from kiln.capture.interpreter.codegen import BINDINGS, CodeWriter, emit_source, write_computed, write_number
from kiln.capture.interpreter.computed_numbers import value_of_number
from kiln.capture.interpreter.core import SPECULATED_VALUES, CaptureState, Effect, Policy, Value
from kiln.capture.interpreter.data_loops import loop_to_take
from kiln.capture.interpreter.data_values import (
    Instruction,
    conditions,
    is_checked,
    refuse_unchecked,
    value_needed,
)
from kiln.capture.interpreter.findings import FINDINGS, WITHOUT_VALUES, Findings
from kiln.capture.interpreter.frame import Computing, SymbolicFrame
from kiln.capture.interpreter.host_draws import Draws, check_read_numbers, planned
from kiln.capture.interpreter.if_conversion import refuse_varying_gradients
from kiln.capture.interpreter.native_calls import release
from kiln.capture.interpreter.object_model import PythonObjectModel
from kiln.capture.interpreter.region_results import write_states
from kiln.capture.interpreter.shape_guards import computed_symbols, finish_guards
from kiln.capture.interpreter.side_exits import (
    Fallback,
    errors_of,
    exit_unless,
    falling_back,
    make_fallback,
    write_draws,
    write_leave,
    write_random_states,
)
from kiln.capture.interpreter.speculation import (
    CompileSpeculation,
    ComputedNumber,
    NumberCheck,
    Prologue,
    Speculation,
    Speculations,
    is_bound,
    make_prologue,
    number_truth,
    run_eagerly,
    write_prologue,
)
from kiln.capture.interpreter.suspension_codegen import write_returned, write_suspension
from kiln.capture.interpreter.value_checks import check_values
from kiln.capture.interpreter.variables.cached_function import InlinedResults
from kiln.capture.interpreter.variables.counted_range import loops_left
from kiln.capture.interpreter.variables.dtensor import register_dtensors
from kiln.capture.interpreter.variables.early_inputs import EarlyInputs
from kiln.capture.interpreter.variables.function import forget_globals, namespace, shared_cell, unguarded_modules
from kiln.capture.interpreter.variables.hashed_key import KeyComparisons
from kiln.capture.interpreter.variables.iterators import forget_callers, is_dropped_late, suspended_generator
from kiln.capture.interpreter.variables.made_class import detach, refuse_stand_ins
from kiln.capture.interpreter.variables.made_matrix import register_made_matrices
from kiln.capture.interpreter.variables.sparse_tensor import register_sparse
from kiln.capture.interpreter.variables.tensor import Overrides, RegionInputs
from kiln.capture.interpreter.variables.weak_references import refuse_late_callbacks
from kiln.capture.interpreter.visible_copies import refuse_asked_copies, refuse_visible_copies
from kiln.graph.autograd.dependencies import in_order_of_history
from kiln.graph.autograd.errors import BackwardRaises
from kiln.graph.autograd.own_leaves import mark_histories
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.history import freed_input, leaves_of_results
from kiln.graph.trace.inputs import Dims, InputRecord
from kiln.graph.trace.nested_graphs import draws_random
from kiln.graph.trace.recorder import Recorder
from kiln.graph.trace.trace import Trace
from kiln.runtime.guards.guard import Guard
from kiln.runtime.guards.source import CellObjectSource, CellSource, LocalSource, Source
from kiln.runtime.leaf_gradients import drop_gradients
from kiln.runtime.numbers import number_tensor
from kiln.support.errors import InternalFault, KilnError, drop_tracebacks
from kiln.support.events import EventSink
from kiln.support.location import is_compiler
from kiln.support.options import Branches
from kiln.support.records import dataclass
from kiln.symbolic import DataDependentSize, NoHint
from kiln.symbolic.values import truth_as_number
from kiln.tensor.spec import ScalarSpec

__all__ = ["Capture", "Region", "capture_frame"]

FOLDERS = [(name, str(Path(__file__).with_name(name))) for name in ("builtins", "opcodes", "variables")]
REGISTERED = tuple(
    import_module(f"kiln.capture.interpreter.{name}.{found.name}")
    for name, folder in FOLDERS
    for found in pkgutil.iter_modules([folder])
)
"""Importing all kinds of values, handlers and opcodes fills their tables."""

MAX_RESTARTS = 32

NoteChanging = Callable[[Mapping[str, tuple[int, ...]]], bool]
"""Is told the sources of numbers, and the dimensions of tensors, that the frame itself changes or passes on to a resume
function; whether they become inputs."""


@final
@dataclass
class Region:
    """A compiled part of the frame: its trace and the callable that runs it."""

    trace: Trace
    callable: Callable[..., object]


@final
@dataclass
class Capture:
    """The result of capturing a frame.

    `function` takes all argument slots positionally and, if `collect` is not empty, the tuple of objects at those
    sources. It may replace the original for arguments that pass the `guards`. If `skipped` is set there is no function
    and the frame runs eager: with `guarded`, for all arguments that pass the guards; with `raises`, it raises for them.
    """

    function: types.FunctionType | None
    guards: list[Guard]
    collect: list[Source] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    breaks: list[GraphBreak] = field(default_factory=list)
    skipped: KilnError | None = None
    steps: int = 0
    asked_is_compiling: bool = False
    speculations: list[Speculation] = field(default_factory=list)
    modules: frozenset[str] = frozenset()
    """The modules of functions and classes that were interpreted and that no guard covers."""
    repeated_steps: int = 0
    """Opcodes of calls that were repeated instead of interpreted; they are not among `steps`."""
    raises: bool = False
    guarded: bool = False
    effects: list[Effect] = field(default_factory=list)
    """The side effects that `function` makes, in order."""
    may_leave: bool = False
    """Whether `function` may go on in code that was not captured: a side exit, or the original."""
    says_is_compiling: bool = False
    """Whether the program was told that it is being compiled, so that it may do other things in eager."""

    @property
    def code(self) -> types.CodeType | None:
        return self.function.__code__ if self.function is not None else None

    @property
    def gave_up(self) -> bool:
        """Whether the other answer to `is_compiling` is to be tried: programs have ways without values for it."""
        return self.function is None and self.skipped is None and not self.breaks


@final
@dataclass(frozen=True)
class Callbacks:
    """Functions given by the caller of the capture, and what it may do."""

    compile_region: Callable[[Recorder, Trace], Callable[..., object]]
    """(recorder, finished trace) -> callable that runs the region: used inputs -> tuple of outputs."""
    recorder_factory: Callable[[], Recorder]
    """Makes a recorder for each attempt."""
    make_resume: Callable[[types.FunctionType], Callable[..., object]] = lambda function: function
    """Makes a dispatcher of a resume function."""
    dims: Callable[[torch.Tensor, Source], Dims] = lambda real, source: None
    """Which sizes of a new input become symbols."""
    scalars: Callable[[int | float, Source], bool] | None = None
    """Which Python numbers become inputs; None: none."""
    make_exit: Callable[[types.FunctionType], Callable[..., object]] | None = None
    """Makes the function to call if a speculation fails; None: do not speculate."""
    compile_speculation: CompileSpeculation = run_eagerly
    """Compiles the graph of the speculated conditions, given its constants."""
    check_time: Callable[[], None] = lambda: None
    """Called often; raises a KilnError, which ends the capture."""
    speculate_values: int = SPECULATED_VALUES
    """For so many side exits, speculate on the values of small integer tensors, too."""
    control_flow: Branches = "auto"
    """Which `if` on a tensor becomes a branch in the graph, see `Policy`; so are the next four."""
    own_regions: bool = True
    carries: Callable[[torch.Tensor, bool], bool] | None = None
    note_changing: NoteChanging = lambda dims: False
    varies: Callable[[Source], bool] = lambda source: False
    varying: frozenset[str] = frozenset()
    assumes_likely: bool = True


def capture_frame(
    function: types.FunctionType,
    locals: Mapping[str, object],
    callbacks: Callbacks,
    *,
    events: EventSink | None = None,
    is_compiling: bool = False,
    until_values: bool = False,
) -> Capture:
    """Capture a call of `function` with the arguments `locals` (by name, `*args` and `**kwargs` as they are bound).

    Args:
        is_compiling: what `torch.compiler.is_compiling()` answers.
        until_values: give up where values are needed and the program has asked `is_compiling`, see `gave_up`.
    """
    sink = events or EventSink()
    found = Findings()
    stops = found.stops
    with sink.stage("capture", function=function.__qualname__):
        for _ in range(MAX_RESTARTS):
            state = new_state(function, callbacks, sink, is_compiling, stops, dict(found.needed))
            try:
                return attempt(found.given_to(state), function, locals, callbacks)
            except (*FINDINGS, NoHint, DataDependentSize) as finding:
                drop_tracebacks(finding)
                if until_values and state.asked_is_compiling and not isinstance(finding, WITHOUT_VALUES):
                    return Capture(None, [], asked_is_compiling=True)
                made = value_needed(state, finding) if isinstance(finding, KilnError) else finding
                if made is None:
                    return skip(function, cast(KilnError, finding), state)
                found.add(made, state)
            except GraphBreak as stop:
                drop_tracebacks(stop)
                key = (stop.frames[0].number, stop.frames[0].step) if stop.frames else None
                if callbacks.carries is not None or key is None or key in stops:
                    return skip(function, stop, state) if callbacks.carries is None else broken(stop, state)
                stops[key] = stop
            except Raised as raised:
                drop_tracebacks(raised)
                if control_flow_operators.stop_at_operator(state, raised, stops):
                    continue
                reason = RaisesException(function=function.__qualname__, exception=describe(raised))
                return raising(state, function, reason)
            except KilnError as error:
                drop_tracebacks(error)
                return (skip_guarded if isinstance(error, BackwardRaises) else skip)(function, error, state)
            except Exception as fault:
                return skip(function, internal_fault(function, fault, state), state)
            finally:
                found.asked_is_compiling = state.asked_is_compiling
                leave(state)
    return skip(function, SkippedCode(function=function.__qualname__, why="too many graph breaks"), state)


def leave(state: CaptureState) -> None:
    """What an attempt has changed in the process is put back."""
    state.part(Draws).put_back()
    close_levels(state)
    release(state)
    forget_gradients(state)
    restore_modes(state)
    detach(state)
    forget_callers(state)
    forget_globals(state)
    state.close()


def new_state(
    function: types.FunctionType,
    callbacks: Callbacks,
    sink: EventSink,
    is_compiling: bool,
    stops: Mapping[tuple[int, int], GraphBreak],
    needed: Mapping[Instruction, str],
) -> CaptureState:
    speculate = callbacks.make_exit is not None
    policy = Policy(
        callbacks.dims,
        callbacks.scalars,
        is_compiling,
        speculate,
        (speculate and callbacks.speculate_values) or int(callbacks.carries is not None),
        callbacks.check_time,
        callbacks.control_flow,
        *(callbacks.own_regions, callbacks.carries, callbacks.varies, callbacks.varying, callbacks.assumes_likely),
    )
    collectives.register_functional()
    register_fully_sharded()
    register_dtensors()
    register_sparse()
    register_made_matrices()
    register_triton()
    recorder = callbacks.recorder_factory()
    recorder.env.assumes_data = policy.assumes
    state = CaptureState(PythonObjectModel(), recorder, sink, function.__globals__, policy, stops, needed)
    state.part(Overrides).disabled = state.global_state.torch_function_off != 0
    recorder.env.assume_number = partial(number_truth, state)
    recorder.env.number_in_front = partial(value_of_number, state)
    return state


CAPTURE = str(Path(__file__).parent.parent)


def describe(raised: Raised) -> str:
    value: Any = raised.value
    args = value.attrs.get("args") if hasattr(value, "attrs") else None
    items = [repr(arg.real()) if arg.is_constant else "..." for arg in (args._items or [])] if args else []
    return f"{value.type_name()}({', '.join(items)})"


def internal_fault(function: types.FunctionType, fault: Exception, state: CaptureState) -> KilnError:
    """An internal error: the frame runs eager and the report says where. A program that recurses has done so here."""
    if isinstance(fault, RecursionError):
        return SkippedCode(function=function.__qualname__, why="it recurses too deeply")
    if isinstance(fault, KeyError | RuntimeError) and state.part(KeyComparisons).vary:
        return SkippedCode(function=function.__qualname__, why="keys of its containers answer differently each time")
    if (where := outside_of_compiler(fault)) is not None:
        why = f"{where}, which was run while tracing, raises {type(fault).__name__}"
        return SkippedCode(function=function.__qualname__, why=why)
    reason = InternalFault(stage="capture", problem="".join(traceback.format_exception_only(fault)).strip())
    reason.__cause__ = fault
    return reason


def outside_of_compiler(fault: Exception) -> str | None:
    """The function of the program or of Python's library that the capture called and that raised, if one did."""
    codes = [frame.f_code for frame, _ in traceback.walk_tb(fault.__traceback__)]
    ours = [code.co_filename for code in codes if is_compiler(code.co_filename)]
    if not codes or is_compiler(codes[-1].co_filename) or not ours[-1].startswith(CAPTURE):
        return None
    return codes[-1].co_qualname


def raising(s: CaptureState, function: types.FunctionType, reason: RaisesException) -> Capture:
    """The guards under which the exception is raised; not if that depends on what a prologue checks."""
    if s.part(Speculations):
        return skip(function, reason, s)
    return Capture(None, finish_guards(s), skipped=reason, steps=s.counters.steps, raises=True)


def skip_guarded(function: types.FunctionType, reason: KilnError, state: CaptureState) -> Capture:
    """Eager under the guards of the whole frame, such as that gradients are enabled."""
    skipped = skip(function, reason, state)
    if not state.part(Speculations):
        skipped.guards, skipped.guarded = finish_guards(state), True
    return skipped


def skip(function: types.FunctionType, reason: KilnError, state: CaptureState) -> Capture:
    at = reason.at.text() if reason.at else ""
    refuse_break(state, reason)
    state.events.emit("skipped_frame", function=function.__qualname__, code=reason.code, reason=reason.reason, at=at)
    return Capture(None, [], skipped=reason, steps=state.counters.steps)


def broken(stop: GraphBreak, s: CaptureState) -> Capture:
    """Of a capture that is to be whole, so that nothing is resumed: the first break is the reason."""
    report_break(s, stop)
    return Capture(None, [], breaks=[stop], steps=s.counters.steps, asked_is_compiling=s.asked_is_compiling)


def root_frame(s: CaptureState, function: types.FunctionType, locals: Mapping[str, object]) -> SymbolicFrame:
    code = function.__code__
    if code.co_flags & inspect.CO_ASYNC_GENERATOR:
        raise SkippedCode(function=function.__qualname__, why="asynchronous generators are not captured")
    frame = SymbolicFrame(s, original_code(function), None, namespace(s, function.__globals__), None)
    origin = origin_of(function)
    passed = origin.entry.locals if origin is not None else ()
    for name in arguments_of(code):
        if name in passed and name in locals:
            frame.unread[name] = locals[name]
        elif name in locals:
            frame.locals[name] = s.wrap(locals[name], LocalSource(name))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        frame.cells[name] = shared_cell(s, cell, name, CellSource(name), CellObjectSource(name))
    if origin is not None:
        frame.enter(origin)
    return frame


def attempt(
    s: CaptureState, function: types.FunctionType, locals: Mapping[str, object], callbacks: Callbacks
) -> Capture:
    """Interpret once; a break that cannot be resumed is raised."""
    frame = root_frame(s, function, locals)
    writer = CodeWriter(s, function.__code__)
    result: Value | None = None
    stop: GraphBreak | None = None
    s.part(EarlyInputs).read(s)
    try:
        result = frame.run()
    except GraphBreak as raised:
        if not raised.resumable or callbacks.carries is not None:
            raise
        drop_tracebacks(raised)
        if (constant := constant_sizes(s)) is not None:
            raise constant from None
        if (left := loops_left(s, raised.frames)) is not None:
            raise left from None
        if (loop := loop_to_take(s, raised)) is not None:
            raise loop from None
        stop = raised
    if (outside := break_before_modes(s) or break_before_levels(s)) is not None:
        raise outside
    if (unfinished := collectives.unfinished(s)) is not None:
        raise unfinished
    generator, why = suspended_generator(s), "it leaves a generator suspended in a `try` or `with`"
    if is_dropped_late(s, stop) if stop is not None else generator is not None:
        raise SkippedCode(function=function.__qualname__, why=why)
    if generator is not None:
        raise UnsupportedValue(type="generator", why=why).before(generator.made_at)
    drop_unchanged_modes(s)
    if stop is None and not frame.finished:
        assert result is not None
        write_suspension(s, writer, frame, result, callbacks.make_resume, origin_of(function) is not None)
    elif stop is None:
        assert result is not None
        refuse_late_callbacks(s, result)
        write_return(s, writer, result, frame.is_generator)
    else:
        write_break(s, writer, stop, callbacks.make_resume, origin_of(function) is not None)
    s.part(InlinedResults).refuse_seen(writer.is_built, seen_by_program(writer))
    refuse_asked_copies(s)
    if callbacks.note_changing(dict.fromkeys(changed_numbers(s), ())):
        raise NumberChanges
    callbacks.note_changing(s.part(PassedNumbers).dims)
    return finish(s, function, writer, stop, callbacks)


def write_return(s: CaptureState, writer: CodeWriter, result: Value, is_generator: bool) -> None:
    """The result is built before the effects, which may change what it is built from."""
    name = writer.store(result)
    write_effects(s, writer)
    if is_generator:
        write_returned(writer, name)
    else:
        writer.body.op("LOAD_FAST", name).op("RETURN_VALUE")


def write_effects(s: CaptureState, writer: CodeWriter) -> None:
    for effect in s.effects:
        effect.emit(writer)


def report_break(s: CaptureState, stop: GraphBreak) -> None:
    refuse_break(s, stop)
    at = stop.explained().place
    called = [frame.location().text() for frame in stop.frames[1:]]
    s.events.emit("graph_break", code=stop.code, reason=stop.reason, at=at, called=called, hint=stop.hint)


def finish(
    s: CaptureState, function: types.FunctionType, writer: CodeWriter, stop: GraphBreak | None, callbacks: Callbacks
) -> Capture:
    """Close the recording, compile the region, assemble."""
    recorder = s.recorder
    head = Assembler(function.__code__.co_firstlineno)
    if function.__code__.co_freevars:
        head.op("COPY_FREE_VARS", len(function.__code__.co_freevars))
    head.op("RESUME", 0)
    regions, collect = list[Region](), list[Source]()
    prologue = None
    if callbacks.make_exit is not None:
        prologue = make_prologue(s, function, callbacks.make_exit, callbacks.compile_speculation)
    checks = [(writer.output(condition), expected) for condition, expected in conditions(s)]
    may_fail = check_values(s, writer.outputs) or is_checked(s)
    if writer.outputs or has_effects(recorder) or may_fail:
        writer.outputs = in_order_of_history(recorder, writer.outputs)
        trace = recorder.finish(writer.outputs)
        mark_histories(recorder, trace)
        refuse_unchecked(s, trace.graph)
        refuse_own_leaves(s, trace)
        refuse_writes(s, trace)
        make_final_checks(s, seen_by_program(writer))
        refuse_visible_copies(s, writer.outputs)
        refuse_varying_gradients(s, writer.outputs)
        regions.append(Region(trace, compiled_region(s, trace, callbacks, stop)))
        may_fail = may_fail or is_checked(s)
        collect = bound_sources(trace, prologue)
    leave = partial(write_leave, s, head, function.__code__)
    if (draws := planned(s)) is not None:
        assert callbacks.make_exit is not None, "random numbers are drawn where a side exit can be made"
        write_draws(head, writer, draws, s.part(Draws), callbacks.make_exit(function), function.__code__)
    check_read_numbers(s)
    if numbers := [*s.part(Speculations).numbers, *relations_of_computed(s)]:
        assert callbacks.make_exit is not None, "numbers are speculated on where a side exit can be made"
        write_number_checks(head, writer, numbers, partial(leave, callbacks.make_exit(function)))
    if prologue is not None:
        collect = collect or prologue.sources()
        write_unbound = partial(write_argument, head, writer)
        write_prologue(head, prologue, leave, BINDINGS, collect, write_unbound)
    exits: Callable[[], None] | None = partial(leave, function) if may_fail else None
    if exits is not None and draws_random(recorder.nodes):
        exits = write_random_states(s, head, exits)
    for made_region in regions:
        dropped = exits is None and write_dropped_gradients(s, head, writer, made_region.trace.used_inputs)
        errors = None if dropped else errors_of(made_region.trace.graph, exits is not None, callbacks.own_regions)
        fallback = errors and make_fallback(s, errors, exits, partial(leave, function))
        write_region_call(head, writer, made_region, len(collect), fallback)
    for name, expected in checks:
        assert exits is not None
        head.op("LOAD_FAST", name)
        exit_unless(head, exits, expected)
    head.extend(writer.loads)
    head.extend(writer.body)
    refuse_stand_ins(s, head)
    arguments = arguments_of(function.__code__) + ((BINDINGS,) if collect else ())
    code = head.finish(function.__code__, arguments, (), function.__code__.co_freevars)
    made = types.FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
    if stop is not None:
        report_break(s, stop)
    s.events.emit("captured", steps=s.counters.steps)
    breaks = [stop] if stop is not None else []
    guards = finish_guards(s)
    speculations = list(s.part(Speculations).assumed.values())
    return Capture(
        made,
        guards,
        collect,
        regions,
        breaks,
        None,
        s.counters.steps,
        s.asked_is_compiling,
        speculations,
        unguarded_modules(s),
        s.counters.repeated_steps,
        effects=list(s.effects),
        may_leave=prologue is not None or exits is not None or bool(numbers) or draws is not None,
        says_is_compiling=s.says_is_compiling,
    )


def compiled_region(
    s: CaptureState, trace: Trace, callbacks: Callbacks, stop: GraphBreak | None
) -> Callable[..., object]:
    """The region of a trace; what recording its backward has assumed is refused like the rest."""
    s.part(Computing).remember(stop)
    assumed = len(s.recorder.env.checks)
    region = callbacks.compile_region(s.recorder, trace)
    if len(s.recorder.env.checks) != assumed:
        refuse_unchecked(s, trace.graph)
    return region


def write_number_checks(
    head: Assembler,
    writer: CodeWriter,
    numbers: Iterable[NumberCheck | ComputedNumber],
    leave: Callable[[], None],
) -> None:
    """`if not divisor != 0: return side_exit(<all arguments>)`, where the division raises as in the program.

    Numbers that the region takes are computed, likewise.
    """
    for check in numbers:
        passed = Label()
        if check.under and isinstance(check, ComputedNumber):
            head.const(None).op("STORE_FAST", writer.computed_name(check.name))
        for truth in check.under:
            write_number(head, writer, truth_as_number(truth))
            head.jump_if(False, passed)
        expected = True
        if isinstance(check, ComputedNumber):
            write_computed(head, writer, check)
        else:
            head.const(check.compare)
            write_number(head, writer, check.left)
            write_number(head, writer, check.right)
            head.call(2)
            expected = check.expected
        head.jump_if(expected, passed)
        leave()
        head.op("RETURN_VALUE")
        head.label(passed)


def relations_of_computed(s: CaptureState) -> Iterator[NumberCheck]:
    """What holds of sizes and integers that are computed in front of the region, which no guard can ask."""
    names = computed_symbols(s.recorder.inputs)
    for guard in s.recorder.env.guards if names else ():
        if not names.isdisjoint(guard.relation.free_symbols()):
            relation = guard.relation.readable
            yield NumberCheck(getattr(operator, relation.op), relation.lhs, relation.rhs)


def refuse_own_leaves(s: CaptureState, trace: Trace) -> None:
    """Break where a leaf is made that alone makes results require gradients, or one that Python sees (also an input
    that begins to require gradients) behind results: those computed inside of the region would not reach it."""
    leaves = s.part(RegionInputs).leaves
    if not leaves or not trace.needs_grad:
        return
    known = s.part(RegionInputs).by_fake.values()
    seen = {id(tensor.fake) for tensor in known if tensor.original is not None and not tensor.original.requires_grad}
    seen.update(map(id, trace.fake_outputs))
    seen &= leaves_of_results(s.recorder, trace)
    enough = any([record.fake.requires_grad for record in trace.used_inputs if isinstance(record.fake, torch.Tensor)])
    own = [step for leaf, step in leaves if leaf.is_leaf and (id(leaf) in seen or (leaf.requires_grad and not enough))]
    if own:
        why = "results of the region have gradients for what it makes"
        raise UnsupportedCall(function="requires_grad_", why=why).before(own[0])


def seen_by_program(writer: CodeWriter) -> list[FakeTensor]:
    """The outputs that the program gets as tensors."""
    return [fake for fake in writer.outputs if id(fake) not in writer.for_numbers]


def make_final_checks(s: CaptureState, outputs: list[FakeTensor]) -> None:
    """Break before a call that turns out not to belong in the region. `outputs`: those that the program sees."""
    for check in s.part(RegionInputs).final_checks:
        if why := check.ask(outputs):
            raise UnsupportedCall(function=check.function, why=why).before(check.step)


def refuse_writes(s: CaptureState, trace: Trace) -> None:
    """Break before in-place calls that give inputs a history which nothing outside of the region can give them, or that
    write to memory of which the recorder does not know that it is another input's."""
    refuse_memory_in_several_storages(s)
    refuse_shared_history(s, trace)
    refuse_freed_history(s, trace)


def refuse_shared_history(s: CaptureState, trace: Trace) -> None:
    """Break before an in-place call that changes the autograd history of several inputs in one memory."""
    found: dict[int, list[FakeTensor]] = {}
    for value in s.part(RegionInputs).tensors:
        found.setdefault(id(value.fake.storage_view.storage), []).append(value.fake)
    shared = {id(fake) for group in found.values() if len(group) > 1 for fake in group}
    if any(record.has_history and id(record.fake) in shared for record in trace.inputs):
        why = "another input of the region has its memory"
        raise UnsupportedCall(function="in-place operation", why=why).before(s.part(RegionInputs).in_place[0])


def refuse_freed_history(s: CaptureState, trace: Trace) -> None:
    """Break where an input is changed whose history a backward in the region frees."""
    if (fake := freed_input(s.recorder, trace)) is not None:
        why = "a backward in the region frees what an input that it changes is computed from"
        step = s.part(RegionInputs).changed_at[id(fake.storage_view.storage)]
        raise UnsupportedCall(function="in-place operation", why=why).before(step)


def has_effects(recorder: Recorder) -> bool:
    """Whether its calls change something: memory, or the state of a random generator."""
    return any(getattr(call, "effects", False) for call in recorder.calls) or draws_random(recorder.nodes)


def bound_sources(trace: Trace, prologue: Prologue | None) -> list[Source]:
    """The sources that the guards collect: inputs of the region in order, then what only the prologue needs."""
    collect = [record.source for record in trace.used_inputs if is_bound(record)]
    return collect + [source for source in (prologue.sources() if prologue else ()) if source not in collect]


def write_dropped_gradients(s: CaptureState, head: Assembler, writer: CodeWriter, records: list[InputRecord]) -> bool:
    """Free the gradients that the program drops before it computes others, if any. The original cannot run then."""
    bound = [record for record in records if is_bound(record)]
    if dropped := dropped_early(s, bound, writer.sources):
        head.const(drop_gradients).op("LOAD_FAST", BINDINGS).const(tuple(dropped)).call(2).op("POP_TOP")
    return bool(dropped)


def write_region_call(
    head: Assembler, writer: CodeWriter, region: Region, total: int, fallback: Fallback | None
) -> None:
    """Call the region with its inputs and keep its outputs; `total` is the number of bindings."""
    records = region.trace.used_inputs
    with falling_back(head, fallback):
        head.const(region.callable)
        if not any(is_bound(record) for record in records):
            for record in records:
                write_argument(head, writer, record)
            head.call(len(records))
        else:
            head.null_for_callable()
            write_argument_list(head, records, total, writer)
            head.call_spread()
    names = writer.output_names()
    if not names:
        head.op("POP_TOP")
        return
    head.op("UNPACK_SEQUENCE", len(names))
    for name in names:
        head.op("STORE_FAST", name)
    write_states(head, region.trace, names, writer.outputs)


def write_argument(head: Assembler, writer: CodeWriter, record: InputRecord) -> None:
    """Push an input that is not bound."""
    if record.given is not None:
        head.const(number_tensor)
        write_number(head, writer, record.given)
        head.call(1)
    elif record.offset:
        assert isinstance(record.spec, ScalarSpec)
        write_number(head, writer, record.spec.value)
    else:
        emit_source(head, record.source, writer)


def write_argument_list(head: Assembler, records: list[InputRecord], total: int, writer: CodeWriter) -> None:
    """Push the inputs: arguments and bindings in order; runs of bindings are slices of their tuple."""
    if len(records) == total and all(is_bound(record) for record in records):
        head.op("LOAD_FAST", BINDINGS)
        return
    head.op("BUILD_LIST", 0)
    taken = index = 0
    while index < len(records):
        if not is_bound(records[index]):
            write_argument(head, writer, records[index])
            head.op("LIST_APPEND", 1)
            index += 1
            continue
        start = index
        while index < len(records) and is_bound(records[index]):
            index += 1
        count = index - start
        head.op("LOAD_FAST", BINDINGS)
        if count != total:
            head.const(slice(taken, taken + count)).op("BINARY_SUBSCR")
        head.op("LIST_EXTEND", 1)
        taken += count
    head.op("LIST_TO_TUPLE")
