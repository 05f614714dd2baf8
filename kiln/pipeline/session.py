"""Everything that belongs to one `kiln.compile` call: its variants, its report, what happens when a stage fails.

A dispatcher calls `CompileSession.miss` when no variant fits the arguments; the session captures and compiles a new
variant and publishes it. What cannot be compiled runs eager, with a warning that gives the reason (`fullgraph=True`
raises it).
"""

from __future__ import annotations

import dis
import inspect
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, final
from weakref import WeakSet

import torch

from kiln.build.cubins import prepare_compiling
from kiln.capture.interpreter.capture import Capture, capture_frame
from kiln.graph.trace import Recorder, Trace
from kiln.native._frames import BoundCall, Dispatcher, Entry
from kiln.pipeline.backend import Backend, run_backend
from kiln.pipeline.compiled_region import CompiledRegion, put_in
from kiln.pipeline.context import CompileContext
from kiln.pipeline.gc_pause import WITHOUT_COLLECTION
from kiln.pipeline.keys import compile_key, compiler_contents
from kiln.pipeline.modes import (
    UnknownMode,
    mode_guards,
    unknown_mode,
    watch_current_device,
    without_autograd_observers,
)
from kiln.pipeline.raising import ExpectedToRaise
from kiln.pipeline.region import compile_region
from kiln.pipeline.seen_inputs import SizeHistory
from kiln.pipeline.speculation_plan import compile_speculation
from kiln.pipeline.stages import Executable
from kiln.pipeline.variant_sections import load_part, part_writer
from kiln.pipeline.variant_store import VariantStore
from kiln.runtime.cache.key import KeyBuilder
from kiln.runtime.cache.store import Store, default_folder
from kiln.runtime.cuda_graphs.graphs import CudaGraphs
from kiln.runtime.guards.tree import build_tree, tree_rows
from kiln.runtime.variant import Fact, Makers, Variant
from kiln.support.dump import Dump
from kiln.support.errors import InternalFault, KilnError
from kiln.support.events import Event, EventSink
from kiln.support.options import Options
from kiln.support.target import Target
from kiln.symbolic import ShapeEnv
from kiln.symbolic.reference import prove


class TooManyVariants(KilnError):
    code = "KILN1090"
    what = "`{function}` was compiled {count} times for different arguments"
    why = "{reason}"
    try_ = (
        "mark what changes as dynamic: kiln.compile(dynamic=True)",
        "raise the limit: options={{'variants': {more}}}",
    )


class BreaksInLoop(KilnError):
    code = "KILN1092"
    what = "`{function}` breaks the graph in every round of a loop"
    why = "after {rounds} rounds the rest of the loop runs eager (the break is at {place})"
    try_ = ("remove the break", "move the body of the loop to a function and compile that")


class FalseGuard(KilnError):
    code = "KILN9001"
    what = "a guard does not hold of the arguments it was made from: {guard}"
    why = "it found {actual}"
    try_ = ("report this: a fault of the compiler",)


class KilnWarning(UserWarning):
    """A region runs eager; the text names code and reason."""


SIDE_EXITS = "side_exits"
"""Attribute of a dispatcher: how many side exits lead to it."""
RESUMED = "resumed"
"""Attribute of a dispatcher: the places of the graph breaks that lead to it, in order."""
ROUNDS = 4
"""How often one break may lead to itself: each round has a resume function of its own, called by the one before."""


@final
@dataclass(frozen=True)
class SessionSettings:
    """What `kiln.compile` was given, checked. `backend` is None for Kiln's own compiler."""

    options: Options
    backend: Backend | None
    fullgraph: bool
    target: Target
    dump_folder: Path | None


KEPT = frozenset(("graph_break", "region", "kernels", "launches", "library_calls", "traffic", "note"))
"""Kinds of events that tell what a variant is; they are told again when it is loaded."""

Arguments = Mapping[str, Any]


@final
@dataclass(frozen=True)
class Captured:
    """A capture, its regions, and what the report tells of it."""

    capture: Capture
    regions: list[CompiledRegion]
    facts: list[Fact]


def variant_key(settings: SessionSettings, label: str) -> KeyBuilder:
    """A key of what decides how variants are compiled. (A session must not be held by what it holds.)"""
    return compile_key(label, settings.options, settings.target).add("fullgraph", settings.fullgraph)


class CompileSession:
    """The compiled variants of one function (and of its resume functions) and what is known of them."""

    def __init__(self, name: str, settings: SessionSettings, events: EventSink) -> None:
        self.name = name
        self.settings = settings
        self.events = events
        self.store = Store(settings.options.cache_dir or default_folder())
        self.sizes = SizeHistory(settings.options.dynamic)
        self.graphs = CudaGraphs(events) if settings.options.cuda_graphs else None
        self.stored: VariantStore | None = None
        """Variants on disk; a user's backend gives callables that cannot be written."""
        if settings.options.cache and settings.backend is None:
            self.stored = VariantStore(self.store, events, partial(variant_key, settings))
            compiler_contents()  # read now: the first call waits for nothing that is known before
        self._dispatchers: WeakSet[Dispatcher] = WeakSet()
        self._lock = threading.RLock()
        self._warned: set[str] = set()

    def dispatcher(self, function: FunctionType) -> Dispatcher:
        """A dispatcher of `function` whose misses come here."""
        made = Dispatcher(function, self.miss)
        self._dispatchers.add(made)
        return made

    def _side_exit(self, origin: Dispatcher) -> Callable[[FunctionType], Dispatcher] | None:
        """Makes what a variant of `origin` calls where a speculation fails; None where enough follow one another."""
        depth = origin.__dict__.get(SIDE_EXITS, 0) + 1
        if depth >= self.settings.options.variants:
            return None

        def make(function: FunctionType) -> Dispatcher:
            made = self.dispatcher(function)
            made.__dict__[SIDE_EXITS] = depth
            return made

        return make

    def _remember_break(self, origin: Dispatcher, made: list[Dispatcher], facts: Iterable[Fact]) -> None:
        """Resume functions know the breaks that lead to them: the line, and those of the calls that led there."""
        breaks = [data for kind, data in facts if kind == "graph_break"]
        places = [
            tuple([str(line).partition(", in ")[0] for line in (data.get("at", ""), *data.get("called", ()))])
            for data in breaks
        ]
        for resume in made if places else ():
            resume.__dict__[RESUMED] = (*origin.__dict__.get(RESUMED, ()), places[-1])

    def _resume(self, made: list[Dispatcher]) -> Callable[[FunctionType], Dispatcher]:
        def make(function: FunctionType) -> Dispatcher:
            made.append(self.dispatcher(function))
            return made[-1]

        return make

    def reset(self) -> None:
        """Forget all variants and what was observed."""
        with self._lock:
            self.sizes = SizeHistory(self.settings.options.dynamic)
            self._warned.clear()
            if self.graphs is not None:
                self.graphs.clear()
            for dispatcher in list(self._dispatchers):
                dispatcher.set_entries([])

    def miss(self, dispatcher: Dispatcher, arguments: dict[str, Any]) -> Entry | None:
        """A new variant for these arguments, published; None: run the original this time."""
        watch_current_device()
        if mode := unknown_mode():
            self._tell(UnknownMode(function=original_of(dispatcher).__qualname__, mode=mode))
            return None
        with (
            self._lock,
            WITHOUT_COLLECTION(),
            without_autograd_observers(),
            self.events.stage("compile", function=original_of(dispatcher).__qualname__),
        ):
            try:
                entry = self._new_variant(dispatcher, arguments)
            except KilnError as problem:
                entry = self._run_eager(dispatcher, problem)
            except Exception as fault:
                ours = InternalFault(stage=self.events.failed_stage, problem=_last_line(fault))
                entry = self._run_eager(dispatcher, ours, cause=fault)
            if entry is not None:
                dispatcher.set_entries([*dispatcher.entries, entry])
            return entry

    def _new_variant(self, dispatcher: Dispatcher, arguments: dict[str, Any]) -> Entry:
        function, options = original_of(dispatcher), self.settings.options
        places = dispatcher.__dict__.get(RESUMED, ())
        if places and places.count(places[-1]) > ROUNDS:
            raise BreaksInLoop(function=self.name, rounds=ROUNDS, place=places[-1][0])
        if len(dispatcher.entries) >= options.variants:
            raise TooManyVariants(
                function=function.__qualname__,
                count=len(dispatcher.entries),
                reason=self._why_missed(dispatcher, arguments),
                more=options.variants * 2,
            )
        entry = self._load(dispatcher, arguments)
        return entry if entry is not None else self._compile(dispatcher, arguments)

    def _load(self, dispatcher: Dispatcher, arguments: Arguments) -> Entry | None:
        """A variant that an earlier process left on disk."""
        if self.stored is None:
            return None
        function, exits = original_of(dispatcher), dispatcher.__dict__.get(SIDE_EXITS, 0)
        context = self._context(function)
        resumes: list[Dispatcher] = []
        makers = Makers(
            part=lambda data: load_part(data, context),
            resume=self._resume(resumes),
            side_exit=self._side_exit(dispatcher) or self.dispatcher,
        )
        with self.events.stage("warm"):
            entry = self.stored.load(function, exits, arguments, makers)
        if entry is not None:
            self._remember_break(dispatcher, resumes, entry.info.facts)
            self.events.emit("loaded", function=function.__qualname__)
            for kind, data in entry.info.facts:
                self.events.emit(kind, **data)
            self.sizes.remember(entry.info.seen)
        return entry

    def _compile(self, dispatcher: Dispatcher, arguments: Arguments) -> Entry:
        function = original_of(dispatcher)
        self.events.emit("compile", function=function.__qualname__)
        if self.settings.backend is None:
            prepare_compiling(self.settings.options.compile_workers)
        captured = self._capture(dispatcher, arguments)
        capture = captured.capture
        if capture.function is None:
            assert capture.skipped is not None
            if capture.raises:
                return self._raising(function, capture, arguments)
            raise capture.skipped
        if capture.breaks and self.settings.fullgraph:
            raise capture.breaks[0]
        with self.events.stage("guards"):
            rows = tree_rows(capture.guards, collect=capture.collect, function=function)
            tree = rows.tree()
        self.events.emit("guards", count=len(capture.guards))
        self.sizes.fixed(capture.guards)
        failed = tree.explain(list(arguments.values()), function.__globals__, function.__closure__)
        if failed is not None:
            raise FalseGuard(guard=capture.guards[failed[0]].text(), actual=failed[1])
        facts = [*captured.facts, ("guards", {"count": len(capture.guards)})]
        variant = Variant(capture.function, capture.guards, capture.collect, capture.modules, facts, self.sizes.seen())
        if self.stored is not None:
            with self.events.stage("save"):
                exits, part = dispatcher.__dict__.get(SIDE_EXITS, 0), part_writer(captured.regions)
                self.stored.save(function, exits, arguments, variant, rows, part)
        put_in(capture.function, captured.regions)
        run: Any = BoundCall(tree, capture.function, spread=False) if capture.collect else capture.function
        return Entry(tree, run, variant)  # the capture itself holds the arguments of this call

    def _raising(self, function: FunctionType, capture: Capture, arguments: Arguments) -> Entry:
        """Eager, for the arguments that lead to the exception of the program."""
        assert capture.skipped is not None
        tree = build_tree(capture.guards, collect=(), function=function)
        if tree.explain(list(arguments.values()), function.__globals__, function.__closure__) is not None:
            raise capture.skipped
        self.sizes.fixed(capture.guards)
        variant = Variant(function, capture.guards, [], frozenset(), [], {})
        return Entry(tree, ExpectedToRaise(taking_slots(function), self._tell, capture.skipped), variant)

    def _capture(self, dispatcher: Dispatcher, arguments: Arguments) -> Captured:
        """Capture with eager's answer to `is_compiling`; where that breaks the graph, with True; keep the better."""
        policy = self.settings.options.is_compiling
        first = self._capture_once(dispatcher, arguments, is_compiling=policy == "true")
        if policy != "auto" or not first.capture.breaks or not first.capture.asked_is_compiling:
            return first
        second = self._capture_once(dispatcher, arguments, is_compiling=True)
        better = second if len(second.capture.breaks) < len(first.capture.breaks) else first
        text = f"is_compiling() answers {better is second}: {len(better.capture.breaks)} breaks"
        self.events.emit("note", text=text)
        better.facts.append(("note", {"text": text}))
        return better

    def _context(self, function: FunctionType) -> CompileContext:
        dump = Dump(self.settings.dump_folder, function.__qualname__)
        host = replace(self.settings.target, deterministic=torch.are_deterministic_algorithms_enabled())
        return CompileContext(
            self.settings.options, host, host, self.events, dump, self.store, graphs=self.graphs, tell=self._tell
        )

    def _capture_once(self, dispatcher: Dispatcher, arguments: Arguments, *, is_compiling: bool) -> Captured:
        function = original_of(dispatcher)
        context = self._context(function)
        regions: list[CompiledRegion] = []
        facts: list[Fact] = []
        resumes: list[Dispatcher] = []

        def compile_trace(recorder: Recorder, trace: Trace) -> Executable:
            if self.settings.backend is not None:
                return run_backend(self.settings.backend, trace, context)
            regions.append(compile_region(recorder, trace, context))
            return regions[-1]

        mine = threading.get_ident()  # another thread may compile a backward meanwhile

        def keep(event: Event) -> None:
            if event.kind in KEPT and threading.get_ident() == mine:
                facts.append((event.kind, event.data))

        stop = self.events.listen(keep)
        try:
            capture = capture_frame(
                function,
                arguments,
                compile_region=compile_trace,
                recorder_factory=lambda: Recorder(env=ShapeEnv(prover=prove), events=self.events),
                events=self.events,
                make_resume=self._resume(resumes),
                dims=self.sizes.dims,
                scalars=self.sizes.scalars(),
                is_compiling=is_compiling,
                make_exit=self._side_exit(dispatcher),
                compile_speculation=lambda graph, constants: compile_speculation(graph, constants, context),
            )
        finally:
            stop()
        self._remember_break(dispatcher, resumes, facts)
        capture.guards.extend(mode_guards())
        context.dump.write("bytecode", lambda: "\n".join(disassembled(capture)))
        context.dump.write("guards", lambda: "\n".join(guard.text() for guard in capture.guards))
        return Captured(capture, regions, facts)

    def _why_missed(self, dispatcher: Dispatcher, arguments: Arguments) -> str:
        """What the last variant asked for and did not find."""
        entry, function = dispatcher.entries[-1], original_of(dispatcher)
        values = [arguments[name] for name in arguments]
        failed = entry.tree.explain(values, function.__globals__, function.__closure__) if entry.tree else None
        if failed is None:
            return "its guards differ"
        index, actual = failed
        return f"the last variant asks that {entry.info.guards[index].text()}, and found {actual}"

    def _run_eager(self, dispatcher: Dispatcher, problem: KilnError, cause: Exception | None = None) -> Entry:
        """Publish a variant without guards that is the original function."""
        self._tell(problem, cause)
        return Entry(None, taking_slots(original_of(dispatcher)), problem)

    def _tell(self, problem: KilnError, cause: Exception | None = None) -> None:
        """Say, once per code, that a call runs eager; with `fullgraph` raise the reason."""
        if self.settings.fullgraph:
            raise problem from cause or problem.__cause__
        self.events.emit("eager", code=problem.code, reason=problem.reason)
        if problem.code not in self._warned:
            self._warned.add(problem.code)
            trace = "".join(traceback.format_exception(cause)) if cause else ""
            self.events.emit("fault", text=trace or problem.render())
            warnings.warn(f"`{self.name}` runs eager: {problem.render()}", KilnWarning, stacklevel=4)


def original_of(dispatcher: Dispatcher) -> FunctionType:
    """The function that a dispatcher stands for (a type checker takes the attribute for a method)."""
    found: Any = dispatcher.function
    assert isinstance(found, FunctionType)
    return found


def taking_slots(function: FunctionType) -> Callable[..., Any]:
    """`function` as an entry calls it: every argument slot positionally, `*args` and `**kwargs` as one slot each."""
    code = function.__code__
    positional, named_only = code.co_argcount, code.co_kwonlyargcount
    if not named_only and not code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return function
    names = code.co_varnames[positional : positional + named_only]

    def call(*slots: Any) -> Any:
        args, rest = slots[:positional], list(slots[positional + named_only :])
        named = dict(zip(names, slots[positional:], strict=False))
        if code.co_flags & inspect.CO_VARARGS:
            args += rest.pop(0)
        if code.co_flags & inspect.CO_VARKEYWORDS:
            named.update(rest.pop(0))
        return function(*args, **named)

    return call


def disassembled(capture: Capture) -> Iterator[str]:
    """The transformed code, an instruction per line."""
    for one in dis.get_instructions(capture.code) if capture.code else ():
        yield f"{one.offset:>5} {one.opname:<24} {one.argrepr or ('' if one.arg is None else one.arg)}"


def _last_line(fault: Exception) -> str:
    return traceback.format_exception_only(fault)[-1].strip()
