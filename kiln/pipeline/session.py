"""One `kiln.compile` call: its variants, its report, and what happens when a stage fails.

    dispatcher calls `miss` --> load a variant from disk, or capture and compile one --> publish it

What cannot be compiled runs eager, with a warning that gives the reason (`fullgraph=True` raises it).
"""

from __future__ import annotations

import inspect
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, final
from weakref import WeakSet, WeakValueDictionary

from torch import nn

from kiln.capture.bytecode.resume import assembled, origin_of
from kiln.capture.guards.explanation import UNKNOWN, Failure, differences, explain_failure
from kiln.native._frames import Dispatcher, Entry, hook_supported
from kiln.pipeline.compile_budget import CompileBudget, CompileBudgetSpent
from kiln.pipeline.compile_key import compile_key, compiler_contents
from kiln.pipeline.context import CompileContext
from kiln.pipeline.dispatchers import (
    Arguments,
    MakeDispatcher,
    RunsInPython,
    breaks_before,
    collecting,
    forget_calls,
    has_resume,
    original_of,
    remember_break,
    shared_resumes,
    side_exit_maker,
    side_exits,
    standing,
)
from kiln.pipeline.eager_callees import CalleeCompiler
from kiln.pipeline.failed_checks import run_in_place, watch_failures
from kiln.pipeline.growing_lists import wait_for_length
from kiln.pipeline.modes import UnknownMode, mode_to_run_eager, watch_current_device, without_autograd_observers
from kiln.pipeline.original import in_python, taking_slots
from kiln.pipeline.second_run import EagerTrial
from kiln.pipeline.seen_inputs import SeenInputs
from kiln.pipeline.shared_compiles import shared_compiles
from kiln.pipeline.speed_check import Round, SpeedCheck, slower_than_eager
from kiln.pipeline.stance import runs_eager
from kiln.pipeline.stopwatch import Clock
from kiln.pipeline.switched_off import switched_off, target_for
from kiln.pipeline.turns import Turns, slower_in_turns
from kiln.pipeline.variant_sections import load_part
from kiln.pipeline.variant_store import VariantStore
from kiln.runtime.cache.key_builder import KeyBuilder
from kiln.runtime.cache.store import DiskStore, default_folder
from kiln.runtime.cuda_graphs.graphs import CudaGraphs
from kiln.runtime.guards.guard import Guard, GuardKind, ShapeRelation
from kiln.runtime.guards.reference import TWIN_OF
from kiln.runtime.guards.tree import build_tree, extent_of, is_extent
from kiln.runtime.variant import Makers, Variant
from kiln.support.dump import Dump
from kiln.support.errors import InternalFault, KilnError, drop_tracebacks
from kiln.support.events import EventSink
from kiln.support.frame_room import with_frame_room
from kiln.support.gc_pause import GC_PAUSE
from kiln.support.late import late
from kiln.support.location import user_stacklevel
from kiln.support.options import Options
from kiln.support.real_builtins import real_builtins, replaced_builtins
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.support.torch_settings import warn_of_settings

if TYPE_CHECKING:
    from kiln.graph.offload.part import OtherCompiler
    from kiln.pipeline.gradient_compile import compile_gradients
    from kiln.pipeline.python_stretches import plain_beginning, plain_stretch, python_stretch
    from kiln.pipeline.variant_compile import compile_variant
else:
    compile_gradients = late("kiln.pipeline.gradient_compile", "compile_gradients")
    plain_beginning = late("kiln.pipeline.python_stretches", "plain_beginning")
    plain_stretch = late("kiln.pipeline.python_stretches", "plain_stretch")
    python_stretch = late("kiln.pipeline.python_stretches", "python_stretch")
    compile_variant = late("kiln.pipeline.variant_compile", "compile_variant")


class TooManyVariants(KilnError):
    code = "KILN1090"
    what = "`{function}` was compiled {count} times for different arguments"
    why = "{reason}"
    try_ = (
        "{advice}",
        "raise the limit: options={{'variants': {more}}}",
    )


class TooManyBreaks(KilnError):
    code = "KILN1095"
    what = "`{function}` breaks the graph {count} times in one call"
    why = "each part between breaks costs a compile and an entry; the rest of the call runs eager (from {place})"
    try_ = ("remove the breaks that the report lists", "compile the functions that compute instead of their caller")


class KilnWarning(UserWarning):
    """A region runs eager; the text gives code and reason."""


MOST_BREAKS = 512
"""How many different breaks may follow one another: each costs a compile. Loops lead back to theirs."""


@final
@dataclass(frozen=True)
class SessionSettings:
    """The checked arguments of `kiln.compile`. `backend` is None for Kiln's own compiler."""

    options: Options
    backend: OtherCompiler | None
    fullgraph: bool
    target: Target
    dump_folder: Path | None


def variant_key(settings: SessionSettings, label: str) -> KeyBuilder:
    """A key of everything that decides how variants are compiled. (A function: the store must not hold a session.)"""
    return compile_key(label, settings.options, settings.target).add("fullgraph", settings.fullgraph)


def is_module_call(function: FunctionType) -> bool:
    """Whether it is the `__call__` of modules, whose arguments are `*args` of the module's `forward`."""
    return function.__code__ is nn.Module._wrapped_call_impl.__code__


def shown_name(function: FunctionType, name: str) -> str:
    """The name of a function for users; `name` is that of the session."""
    return f"{name}.forward" if is_module_call(function) else function.__qualname__


Scope = tuple[list[object], dict[str, object], tuple[object, ...] | None]
"""Values of the arguments, globals and closure of a function."""


def value_at(guard: Guard, function: FunctionType, scope: Scope) -> object:
    """What a guard on one object, or on one number of a tensor, sees; UNKNOWN where there are several or none."""
    if guard.kind in (GuardKind.GLOBAL_STATE, GuardKind.TENSOR_ALIASES):
        return UNKNOWN
    if isinstance(guard.expected, ShapeRelation) and len(guard.expected.names) != 1:
        return UNKNOWN
    owner = guard.source.parent if is_extent(guard.source) else guard.source
    assert owner is not None, "an extent is one of a tensor"
    reader = build_tree((), collect=(owner,), function=function)
    if not reader.check(*scope) or not reader.bindings:
        return UNKNOWN
    found = reader.bindings[0]
    return found if owner is guard.source else extent_of(guard.source, found)


def argument_names(function: FunctionType, arguments: Arguments) -> Sequence[str]:
    """What the program calls the items of `args` of a compiled module."""
    module = arguments.get("self")
    if not is_module_call(function) or not isinstance(module, nn.Module):
        return ()
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code.co_varnames[1 : code.co_argcount] if code is not None else ()


class CompileSession:
    """The compiled variants of one function (and of its resume functions) and what is known of them."""

    def __init__(self, name: str, settings: SessionSettings, events: EventSink) -> None:
        self.name = name
        self.settings = settings
        self.events = events
        self.store = DiskStore(settings.options.cache_dir or default_folder())
        self.seen = SeenInputs(settings.options.dynamic, breaks=not settings.fullgraph)
        self.graphs = CudaGraphs(events) if settings.options.cuda_graphs else None
        self.stored: VariantStore | None = None
        """Variants on disk; none for a user's backend, nor while a fault is looked for (`verify`, `disable`)."""
        if (
            settings.options.cache
            and settings.backend is None
            and settings.options.verify == "off"
            and not settings.options.disable
        ):
            self.stored = VariantStore(self.store, events, partial(variant_key, settings))
            compiler_contents()  # read now, so that the first call does not wait for it
        self.budget = self._new_budget()
        self.owners: WeakSet[object] = WeakSet()
        """The modules or optimizers whose method this is, each of which may have as many variants as one function."""
        self.twins: WeakValueDictionary[int, nn.Module] = WeakValueDictionary()
        """The compiled modules by identity: not all can be hashed."""
        self._dispatchers: WeakSet[Dispatcher] = WeakSet()
        self._lock = threading.RLock()
        self._warned: set[str] = set()
        self.captures = True
        """Whether Kiln itself reads the program: behind torch.compile it compiles the graphs of another capture."""
        self.clock: Clock = time.perf_counter
        """Times compiled and eager calls."""
        self.resets = 0
        """How often `reset` was called."""
        self.report: Callable[[], object] | None = None
        """Gives the report; what is compiled has it as a method."""

    def dispatcher(self, function: FunctionType) -> Dispatcher:
        """A dispatcher of `function` that calls `miss` of this session."""
        made = Dispatcher(function, self.miss)
        self._dispatchers.add(made)
        return made

    def reset(self) -> None:
        """Forget all variants and all seen inputs."""
        with self._lock:
            self.resets += 1
            self.seen.clear()
            self.budget = self._new_budget()
            self._warned.clear()
            if self.graphs is not None:
                self.graphs.clear()
            for dispatcher in list(self._dispatchers):
                dispatcher.set_entries([])
                forget_calls(dispatcher)

    def _new_budget(self) -> CompileBudget:
        return CompileBudget(self.name, 0 if self.settings.fullgraph else self.settings.options.compile_budget)

    @with_frame_room
    def miss(self, dispatcher: Dispatcher, arguments: dict[str, object]) -> Entry | None:
        """A new variant for these arguments, published; None: run the original this time."""
        if replaced := replaced_builtins():
            with real_builtins():
                mode = f"another `builtins.{min(replaced)}`"
                self.report_eager(UnknownMode(function=original_of(dispatcher).__qualname__, mode=mode))
            return None
        if self.captures:
            warn_of_settings()
        for twin in list(self.twins.values()):
            type(twin).__dict__[TWIN_OF].follow(twin)
        eager = "capture" in switched_off(self.settings.options)
        if eager or runs_eager(dispatcher, arguments, self.seen):
            return None
        watch_current_device()
        if refusal := mode_to_run_eager(original_of(dispatcher).__qualname__):
            self.report_eager(refusal)
            return None
        if self.budget.is_spent():
            if problem := self.budget.news():
                self.report_eager(problem)
            return None
        with (
            self._lock,
            GC_PAUSE(),
            without_autograd_observers(),
            self.events.stage("compile", function=original_of(dispatcher).__qualname__),
        ):
            try:
                if not self.settings.fullgraph and (growing := wait_for_length(dispatcher, arguments)) is not None:
                    if growing.is_news:
                        self.report_eager(growing)
                    return Entry(None, taking_slots(assembled(in_python(original_of(dispatcher)))), growing)
                with self.budget.compiling():
                    entry = self._new_variant(dispatcher, arguments)
            except CompileBudgetSpent:
                return None  # the next call says so
            except KilnError as problem:
                entry = self._run_eager(dispatcher, problem)
                drop_tracebacks(problem)
            except Exception as fault:
                text = traceback.format_exception_only(fault)[-1].strip()
                internal = InternalFault(stage=self.events.failed_stage, problem=text)
                entry = self._run_eager(dispatcher, internal, cause=fault)
                drop_tracebacks(fault)
            if entry is not None:
                watch_failures(dispatcher, entry, self._lock, not self.settings.fullgraph, self.report_eager)
                self._check_speed(dispatcher, entry)
                others = dispatcher.entries if entry.tree or not isinstance(entry.info, RunsInPython) else []
                dispatcher.set_entries([*others, entry])
            return entry

    def _check_speed(self, dispatcher: Dispatcher, entry: Entry) -> None:
        """Have calls of a new variant compared with eager, if they can be."""
        settings = self.settings
        asked = settings.options.speed_check and not settings.fullgraph and settings.backend is None
        if not asked or not isinstance(entry.info, Variant):
            return
        function = original_of(dispatcher)
        eager = taking_slots(in_python(function))
        if entry.info.second_run is not None:
            trial = EagerTrial(entry.info.second_run, function, eager)
            on_slow = partial(self._put_to_eager, slower_than_eager)
            SpeedCheck(entry, trial, on_slow, self.clock).start(dispatcher, entry)
        elif origin_of(function) is None:
            on_slow = partial(self._put_to_eager, slower_in_turns)
            Turns(entry, eager, is_fit=self._is_same_in_eager, on_slow=on_slow, clock=self.clock).start(
                dispatcher, entry
            )

    def _is_same_in_eager(self) -> bool:
        """Whether a call of any variant may run in eager instead."""
        found = [entry.info for dispatcher in list(self._dispatchers) for entry in dispatcher.entries]
        return all(info.same_in_eager for info in found if isinstance(info, Variant))

    def _put_to_eager(
        self, describe: Callable[[str, Round], KilnError], dispatcher: Dispatcher, slow: Entry, shortest: Round
    ) -> None:
        """Replace an entry that is slower than eager."""
        if run_in_place(dispatcher, slow, self._lock):
            self.report_eager(describe(shown_name(original_of(dispatcher), self.name), shortest))

    def _new_variant(self, dispatcher: Dispatcher, arguments: Arguments) -> Entry | None:
        function, options = original_of(dispatcher), self.settings.options
        breaks = breaks_before(dispatcher)
        if len(breaks) >= MOST_BREAKS:
            raise TooManyBreaks(function=self.name, count=MOST_BREAKS, place=breaks[-1][0])
        is_first = not dispatcher.entries
        if is_first and (loaded := self._load(dispatcher, arguments)) is not None:
            return loaded  # the compiler need not be loaded
        if (stretch := self._python_stretch(dispatcher, arguments)) is not None:
            return stretch
        if len(dispatcher.entries) >= options.variants * max(len(self.owners), 1):
            failed = self._why_missed(dispatcher, arguments)
            raise TooManyVariants(
                function=function.__qualname__,
                count=len(dispatcher.entries),
                reason=failed.text() if failed is not None else "the guards of its variants differ",
                advice=(failed.hint if failed is not None else "") or "keep what the variants of the report differ in",
                more=options.variants * 2,
            )
        self._report_recompile(dispatcher, arguments)
        entry = None if is_first else self._load(dispatcher, arguments)
        return entry if entry is not None else self._compile_for_ranks(dispatcher, arguments)

    def _python_stretch(self, dispatcher: Dispatcher, arguments: Arguments) -> Entry | None:
        """What runs in Python up to where the program computes; None if that is to be compiled."""
        if not self.captures or self.settings.fullgraph:
            return None
        make_resume, is_known = shared_resumes(dispatcher, self.dispatcher), partial(has_resume, dispatcher)
        found = None
        if dispatcher.entries or side_exits(dispatcher):
            found = python_stretch(dispatcher, make_resume, is_known)
        if found is None and not side_exits(dispatcher):
            found = plain_stretch(dispatcher, arguments, make_resume, is_known, self.seen)
        if found is None and dispatcher.entries and not side_exits(dispatcher):
            failed = self._nearest_failure(dispatcher, arguments)
            guard = failed[0] if failed is not None else None
            found = plain_beginning(dispatcher, arguments, make_resume, is_known, self.seen, guard)
        return found

    def _compile_for_ranks(self, dispatcher: Dispatcher, arguments: Arguments) -> Entry | None:
        """A variant that another rank compiles, where there are others; else one compiled here."""
        compile_here = partial(self._compile, dispatcher, arguments)
        ranks = shared_compiles(str(self.store.folder), self.events) if self.stored is not None else None
        if ranks is None or self.stored is None:
            return compile_here()
        stored, function = self.stored, original_of(dispatcher)
        key = stored.key(function, standing(dispatcher), arguments).digest()
        load = partial(self._load, dispatcher, arguments)
        return ranks.compiled(function.__qualname__, key, load, compile_here, lambda: stored.outcome)

    def _compile(self, dispatcher: Dispatcher, arguments: Arguments) -> Entry | None:
        context = self.context(original_of(dispatcher).__qualname__)
        return compile_variant(
            dispatcher,
            arguments,
            context,
            self.settings.backend,
            self.seen,
            shared_resumes(dispatcher, self.dispatcher),
            self._side_exit_maker(dispatcher),
            fullgraph=self.settings.fullgraph,
            stored=self.stored,
        )

    def _side_exit_maker(self, origin: Dispatcher) -> MakeDispatcher | None:
        return side_exit_maker(origin, self.dispatcher, self.settings.options.variants)

    def _load(self, dispatcher: Dispatcher, arguments: Arguments) -> Entry | None:
        """A variant that an earlier process left on disk."""
        if self.stored is None:
            return None
        function = original_of(dispatcher)
        context = self.context(function.__qualname__)
        resumes: list[Dispatcher] = []
        makers = Makers(
            part=lambda data: load_part(data, context),
            resume=collecting(shared_resumes(dispatcher, self.dispatcher), resumes),
            side_exit=self._side_exit_maker(dispatcher) or self.dispatcher,
        )
        with self.events.stage("warm"):
            entry = self.stored.load(function, standing(dispatcher), arguments, makers)
        if entry is not None:
            remember_break(dispatcher, resumes, entry.info.facts)
            self.events.emit("loaded", function=function.__qualname__)
            for kind, data in entry.info.facts:
                self.events.emit(kind, **data)
            self.seen.merge(entry.info.seen)
        return entry

    def context(self, name: str) -> CompileContext:
        """What the stages of a compile get; `name`: of the function, for dumps."""
        dump = Dump(self.settings.dump_folder, name)
        host = target_for(self.settings.options, self.settings.target)
        return CompileContext(
            options=self.settings.options,
            host=host,
            target=host,
            events=self.events,
            dump=dump,
            store=self.store,
            graphs=self.graphs,
            report_eager=self.report_eager,
            check_time=self.budget.check,
            counting=self.budget.counting,
            compile_gradients=compile_gradients,
        )

    def _why_missed(self, dispatcher: Dispatcher, arguments: Arguments) -> Failure | None:
        found, function = self._nearest_failure(dispatcher, arguments), original_of(dispatcher)
        return None if found is None else explain_failure(*found, argument_names(function, arguments))

    def _nearest_failure(self, dispatcher: Dispatcher, arguments: Arguments) -> tuple[Guard, str, object] | None:
        """Which guard fails, and on what: of the variant that is nearest to the call, the last of equal ones."""
        function = original_of(dispatcher)
        scope = [*arguments.values()], function.__globals__, function.__closure__
        nearest, found = (-1.0, 0), None
        for entry in dispatcher.entries:
            if entry.tree is None or (failed := entry.tree.explain(*scope)) is None:
                continue
            guard: Guard = entry.info.guards[failed[0]]
            value = value_at(guard, function, scope)
            near = failed[0] / len(entry.info.guards), -differences(guard, value)
            if near >= nearest:
                nearest, found = near, (guard, failed[1], value)
        return found

    def _report_recompile(self, dispatcher: Dispatcher, arguments: Arguments) -> None:
        """Say why no variant of the function fits."""
        failed = self._why_missed(dispatcher, arguments) if dispatcher.entries else None
        if failed is not None:
            at = failed.location.text() if failed.location is not None else ""
            function, count = shown_name(original_of(dispatcher), self.name), len(dispatcher.entries)
            self.events.emit(
                "recompile", function=function, reason=failed.text(), at=at, hint=failed.hint, variants=count
            )

    def _run_eager(self, dispatcher: Dispatcher, problem: KilnError, cause: Exception | None = None) -> Entry:
        """A variant without guards that is the original function."""
        self.report_eager(problem, cause)
        function = assembled(in_python(original_of(dispatcher)))
        run = taking_slots(function)
        resumed = origin_of(original_of(dispatcher)) is not None  # the only owner of its arguments, which it may drop
        limited = isinstance(problem, TooManyVariants | TooManyBreaks)
        if not self.captures or not hook_supported or resumed or limited:
            return Entry(None, run, problem)

        def settle(run: Callable[..., object]) -> None:
            with self._lock:
                settled = Entry(None, run, problem)
                dispatcher.set_entries([settled if found is entry else found for found in dispatcher.entries])

        entry = Entry(None, CalleeCompiler(function, self.dispatcher).trial(run, settle), problem)
        return entry

    def report_eager(self, problem: KilnError, cause: Exception | None = None) -> None:
        """Warn, once per code, that a call runs eager; raise the reason with `fullgraph` or if the program says so."""
        if self.settings.fullgraph or problem.forbidden:
            raise problem from cause or problem.__cause__
        at = problem.at.text() if problem.at is not None else ""
        self.events.emit("eager", code=problem.code, reason=problem.reason, at=at, hint=problem.hint)
        if problem.code not in self._warned:
            self._warned.add(problem.code)
            origin = cause or problem.__cause__
            trace = "".join(traceback.format_exception(origin)) if origin else ""
            self.events.emit("fault", text=trace or problem.render())
            text = f"`{self.name}` runs eager: {problem.render()}"
            warnings.warn(text, KilnWarning, stacklevel=user_stacklevel())
