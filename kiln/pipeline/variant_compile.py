"""Captures and compiles a variant: what `session.py` calls when no variant fits, in this process or on disk."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType

from kiln.build.cubins import prepare_compiling
from kiln.capture.bytecode.resume import assembled
from kiln.capture.interpreter.breaks import NotYet, RaisesException, as_raised
from kiln.capture.interpreter.capture import Capture
from kiln.graph.offload.part import OtherCompiler
from kiln.native._frames import BoundCall, Dispatcher, Entry, ExpectedToRaise
from kiln.pipeline.captured import Captured, FrameCapture
from kiln.pipeline.compiled_region import finish_regions
from kiln.pipeline.context import CompileContext
from kiln.pipeline.dispatchers import Arguments, MakeDispatcher, original_of, standing
from kiln.pipeline.original import taking_slots
from kiln.pipeline.repeatable import is_same_in_eager, second_run
from kiln.pipeline.seen_inputs import SeenInputs
from kiln.pipeline.variant_sections import part_writer
from kiln.pipeline.variant_store import Standing, VariantStore
from kiln.runtime.guards.tree import build_tree, tree_rows
from kiln.runtime.variant import Variant
from kiln.support.errors import KilnError


class FalseGuard(KilnError):
    code = "KILN9001"
    what = "a guard does not hold for the arguments it was made from: {guard}"
    why = "it found {actual}"
    try_ = ("report this: it is a fault of the compiler",)


def compile_variant(
    dispatcher: Dispatcher,
    arguments: Arguments,
    context: CompileContext,
    backend: OtherCompiler | None,
    seen: SeenInputs,
    make_resume: MakeDispatcher,
    make_exit: MakeDispatcher | None,
    *,
    fullgraph: bool,
    stored: VariantStore | None,
) -> Entry | None:
    """A new variant, also written to `stored`; None: this call runs eager, later ones may be compiled."""
    function = original_of(dispatcher)
    context.events.emit("compile", function=function.__qualname__)
    if backend is None:
        prepare_compiling(context.options.compile_workers)
    imported = len(sys.modules)
    captured = FrameCapture(dispatcher, arguments, context, backend, seen, make_resume, make_exit).best()
    capture = captured.capture
    if capture.function is None:
        assert capture.skipped is not None
        if capture.raises or capture.guarded:
            return eager_entry(function, capture, arguments, context, seen)
        of_program = fullgraph and isinstance(capture.skipped, RaisesException)  # it is raised again, by the program
        if of_program or isinstance(capture.skipped, NotYet):
            context.events.emit("eager", code=capture.skipped.code, reason=capture.skipped.reason)
            return None
        raise capture.skipped
    if capture.breaks and (fullgraph or capture.breaks[0].forbidden):
        raise as_raised(capture.breaks[0])
    try:
        return compiled_entry(
            function, capture.function, captured, arguments, context, seen, stored, standing(dispatcher)
        )
    except FalseGuard:
        if len(sys.modules) == imported:
            raise
    # A module that torch imported meanwhile has changed what the program reads, such as a registry of torch's.
    makers = make_resume, make_exit
    return compile_variant(dispatcher, arguments, context, backend, seen, *makers, fullgraph=fullgraph, stored=stored)


def compiled_entry(
    function: FunctionType,
    transformed: FunctionType,
    captured: Captured,
    arguments: Arguments,
    context: CompileContext,
    seen: SeenInputs,
    stored: VariantStore | None,
    standing: Standing,
) -> Entry:
    """The entry that runs `transformed`, the code of the capture. Raises FalseGuard."""
    capture, events = captured.capture, context.events
    with events.stage("guards"):
        rows = tree_rows(capture.guards, collect=capture.collect, function=function)
        tree = rows.tree()
    events.emit("guards", count=len(capture.guards))
    seen.add_guarded(capture.guards)
    failed = tree.explain(list(arguments.values()), function.__globals__, function.__closure__)
    if failed is not None:
        raise FalseGuard(guard=capture.guards[failed[0]].text(), actual=failed[1])
    facts = [*captured.facts, ("guards", {"count": len(capture.guards)})]
    variant = Variant(
        *(transformed, capture.guards, capture.collect, capture.modules, facts, seen.data()),
        second_run=second_run(capture),
        same_in_eager=is_same_in_eager(capture),
    )
    if stored is not None:
        with events.stage("save"):
            stored.save(function, standing, arguments, variant, rows, part_writer(captured.regions))
    finish_regions(transformed, captured.regions)
    run: Callable[..., object] = BoundCall(tree, transformed) if capture.collect else transformed
    return Entry(tree, run, variant)  # not the capture, which holds the arguments of this call


def eager_entry(
    function: FunctionType, capture: Capture, arguments: Arguments, context: CompileContext, seen: SeenInputs
) -> Entry:
    """Eager, for arguments that pass the guards, be it that they lead to an exception of the program."""
    assert capture.skipped is not None and context.report_eager is not None
    tree = build_tree(capture.guards, collect=(), function=function)
    if tree.explain(list(arguments.values()), function.__globals__, function.__closure__) is not None:
        raise capture.skipped
    run = taking_slots(assembled(function))
    if capture.raises:
        seen.add_guarded(capture.guards)
        run = ExpectedToRaise(run, partial(context.report_eager, capture.skipped))
    else:
        context.report_eager(capture.skipped)
    return Entry(tree, run, Variant(function, capture.guards, [], frozenset(), [], {}))
