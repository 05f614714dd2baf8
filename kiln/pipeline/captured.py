"""Captures a call for a session and compiles its regions.

found = FrameCapture(dispatcher, arguments, context, ...).best()
found.capture      transformed code, guards
found.regions      compiled, their kernels perhaps still at the compiler
found.facts        events for the report, emitted again when the variant is loaded from disk
"""

from __future__ import annotations

import dis
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import final

from kiln.capture.interpreter.breaks import TorchCallFailed
from kiln.capture.interpreter.capture import Callbacks, Capture, capture_frame
from kiln.capture.interpreter.core import SPECULATED_VALUES
from kiln.graph.offload.part import GraphBackend, OtherCompiler
from kiln.graph.ops.eager_kernels import EagerKernels
from kiln.graph.trace import Recorder, Trace
from kiln.native._frames import Dispatcher
from kiln.pipeline.backend import run_backend, uncompiled
from kiln.pipeline.compiled_region import CompiledRegion
from kiln.pipeline.context import CompileContext
from kiln.pipeline.dispatchers import (
    Arguments,
    MakeDispatcher,
    assumes_likely,
    collecting,
    original_of,
    remember_break,
    side_exits,
)
from kiln.pipeline.growing_lists import varying_arguments
from kiln.pipeline.modes import mode_guards
from kiln.pipeline.offload import Offload
from kiln.pipeline.region import compile_region
from kiln.pipeline.seen_inputs import SeenInputs
from kiln.pipeline.speculation_plan import compile_speculation
from kiln.runtime.executor import Executable
from kiln.runtime.variant import Fact
from kiln.support.dump import Dump
from kiln.support.events import Event
from kiln.support.options import Branches, Options
from kiln.support.records import dataclass
from kiln.symbolic import ShapeEnv
from kiln.symbolic.reference import prove

FACTS = frozenset(("graph_break", "region", "kernels", "launches", "library_calls", "traffic", "note"))
"""Kinds of events that describe a variant."""

CHEAP_CONDITIONS = 3
"""As many conditions in front of a region cost less than capturing and compiling it again, with another answer."""


@final
@dataclass(frozen=True)
class Captured:
    """A capture, its regions, and what the report says of them."""

    capture: Capture
    regions: list[CompiledRegion]
    facts: list[Fact]


@final
@dataclass(frozen=True)
class FrameCapture:
    """One call to capture. `backend` is None for Kiln's own compiler; `make_exit` None: do not speculate."""

    dispatcher: Dispatcher
    arguments: Arguments
    context: CompileContext
    backend: OtherCompiler | None
    seen: SeenInputs
    make_dispatcher: MakeDispatcher
    make_exit: MakeDispatcher | None

    def best(self) -> Captured:
        """Capture with eager's answer to `is_compiling`; if that has a cost, also with True; keep the better."""
        policy = self.context.options.is_compiling
        first = self.capture(is_compiling=policy == "true")
        costs = first.capture.breaks or len(first.capture.speculations) > CHEAP_CONDITIONS
        if policy != "auto" or not costs or not first.capture.asked_is_compiling:
            return first
        second = self.capture(is_compiling=True)
        better = second if is_cheaper(second.capture, first.capture) else first
        worse, behind = (first, len(second.capture.breaks)) if better is second else (second, 0)
        self.context.events.emit("forget_breaks", count=len(worse.capture.breaks), behind=behind)
        text = f"is_compiling() answers {better is second}: {len(better.capture.breaks)} breaks"
        self.context.events.emit("note", text=text)
        better.facts.append(("note", {"text": text}))
        return better

    def capture(self, *, is_compiling: bool) -> Captured:
        dump = Dump(self.context.dump.root, self.context.dump.name)  # a folder for each attempt
        context, events = replace(self.context, dump=dump), self.context.events
        kernels = eager_kernels(self.context.options)
        regions: list[CompiledRegion] = []
        facts: list[Fact] = []
        resumes: list[Dispatcher] = []

        def compile_trace(recorder: Recorder, trace: Trace) -> Executable:
            backend = self.backend
            if "compile" in context.without:
                backend = uncompiled
            if isinstance(backend, GraphBackend):
                offload = Offload(backend, trace.constants)
                regions.append(compile_region(recorder, trace, replace(context, offload=offload)))
            elif backend is not None:
                return run_backend(backend, trace, context)
            else:
                regions.append(compile_region(recorder, trace, context))
            return regions[-1]

        this_thread = threading.get_ident()  # meanwhile another thread may compile a backward

        def keep_fact(event: Event) -> None:
            if event.kind in FACTS and threading.get_ident() == this_thread:
                facts.append((event.kind, event.data))

        stop = events.listen(keep_fact)
        try:
            callbacks = Callbacks(
                compile_region=compile_trace,
                recorder_factory=lambda: Recorder(env=ShapeEnv(prover=prove), events=events, kernels=kernels),
                make_resume=collecting(self.make_dispatcher, resumes),
                dims=self.seen.dims,
                scalars=self.seen.is_symbol,
                note_changing=self.seen.note_changing,
                varies=partial(self.seen.varies, is_last=len(self.dispatcher.entries) + 1 >= context.options.variants),
                make_exit=self.make_exit,
                speculate_values=max(0, SPECULATED_VALUES - side_exits(self.dispatcher)),
                compile_speculation=lambda graph, constants: compile_speculation(graph, constants, context),
                check_time=context.check_time,
                control_flow=branches(context.options),
                own_regions=self.backend is None,
                varying=varying_arguments(self.dispatcher, self.arguments),
                assumes_likely=assumes_likely(self.dispatcher),
            )
            function = original_of(self.dispatcher)
            capture = capture_frame(function, self.arguments, callbacks, events=events, is_compiling=is_compiling)
        finally:
            stop()
        remember_break(self.dispatcher, resumes, facts)
        capture.guards.extend(mode_guards())
        context.dump.write("bytecode", lambda: "\n".join(disassembled(capture)))
        context.dump.write("guards", lambda: "\n".join(guard.text() for guard in capture.guards))
        return Captured(capture, regions, facts)


def is_cheaper(capture: Capture, other: Capture) -> bool:
    """Whether it breaks the graph less often, or as often and with fewer conditions to check in front of it.

    Not if torch refuses one of its calls: eager, which gets another answer, may not make that call.
    """
    if capture.function is None or any([isinstance(found, TorchCallFailed) for found in capture.breaks]):
        return False
    count = lambda found: (len(found.breaks), len(found.speculations))  # noqa: E731
    return count(capture) < count(other)


def branches(options: Options) -> Branches:
    """Which branches are in the graph; the regions on both sides of one that is not can be CUDA graphs."""
    return "cpu" if options.cuda_graphs and options.control_flow == "auto" else options.control_flow


def eager_kernels(options: Options) -> EagerKernels:
    """The kernels of eager that `options` ask for: runs can only be compared on the same random numbers."""
    strict = options.numerics == "strict"
    return EagerKernels(random=strict or options.random == "eager" or options.verify == "first", strict=strict)


def disassembled(capture: Capture) -> Iterator[str]:
    """The transformed code, an instruction per line."""
    for instruction in dis.get_instructions(capture.code) if capture.code else ():
        argument = instruction.argrepr or ("" if instruction.arg is None else instruction.arg)
        yield f"{instruction.offset:>5} {instruction.opname:<24} {argument}"
