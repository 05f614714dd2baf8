"""`kiln.compile` and its companions, with the signatures and meanings of `torch.compile`."""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast, overload
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim import Optimizer

from kiln.api.arguments import CompileArguments, check_arguments, check_callable
from kiln.api.break_cost import break_seconds
from kiln.api.module import MARK, compile_module, disabled_module
from kiln.api.pickling import register_pickling
from kiln.api.shared_sessions import SharedDispatchers
from kiln.api.streaming import streamed
from kiln.backends import Backend
from kiln.native._frames import Dispatcher, forget_codes, set_enabled
from kiln.pipeline.dispatchers import calling, original_of
from kiln.pipeline.session import CompileSession, SessionSettings
from kiln.pipeline.switched_off import switched_off
from kiln.report import ProgressBar, Report, log_names, log_stages
from kiln.support.compiling import DISABLED, is_compiling
from kiln.support.events import Event, EventSink
from kiln.support.late import late
from kiln.support.opaque import why_opaque
from kiln.support.optional import check_installed
from kiln.support.options import Options
from kiln.support.target import KernelLanguage, host_cpu
from kiln.support.torch_settings import is_torch_compiler_loaded

if TYPE_CHECKING:
    from kiln.pipeline.switches import pass_names
else:
    pass_names = late("kiln.pipeline.switches", "pass_names")

REPORTS: WeakKeyDictionary[CompileSession, Report] = WeakKeyDictionary()
"""The report of each live session."""
KEPT: list[list[Report]] = []
"""Lists to which the report of each new session is added."""

SHARED = SharedDispatchers()
"""The dispatchers of methods of modules."""

__all__ = ["compile", "disable", "explain", "is_compiling", "keep_reports", "report_of", "reset", "session_of"]

AnyCallable = TypeVar("AnyCallable", bound=Callable[..., Any])
Parameters = ParamSpec("Parameters")


@overload
def compile(model: AnyCallable, **arguments: Unpack[CompileArguments]) -> AnyCallable: ...
@overload
def compile(model: None = None, **arguments: Unpack[CompileArguments]) -> Callable[[AnyCallable], AnyCallable]: ...
def compile(
    model: Callable[..., object] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "kiln",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
) -> object:
    """Make `model` faster without changing what it does. A function and a decorator.

    Args:
        model: a function, a method, or an `nn.Module`. A module gives a module that shares its parameters, attributes,
            hooks and training mode; it pickles as the original.
        fullgraph: raise at a graph break instead of running it in Python.
        dynamic: which sizes are symbols: all (True), none (False), those that changed (None).
        backend: `"kiln"`, another name of `kiln.list_backends()`, or a callable
            `(torch.fx.GraphModule, example inputs) -> callable`.
        mode: a named set of options: "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs".
        options: values for the fields of `kiln.Options`.
        disable: return `model` as it is.

    Returns:
        The compiled callable. It compiles at its first call, and again for arguments that no variant fits.

    Raises:
        KilnError: KILN50xx for a wrong argument.
    """
    arguments: CompileArguments = {
        "fullgraph": fullgraph, "dynamic": dynamic, "backend": backend, "mode": mode, "options": options,
        "disable": disable,
    }  # fmt: skip
    chosen, found = check_arguments(**arguments)
    switched_off(chosen)  # an unknown name is an error here, not at the first call
    if model is None:
        return lambda late: compile(late, **arguments)
    if isinstance(model, staticmethod):
        return staticmethod(compile(model.__func__, **arguments))
    check_callable(model)
    return model if disable else _compile(model, chosen, found, fullgraph, SHARED)


def _compile(
    model: Callable[..., object],
    options: Options,
    backend: Backend | None,
    fullgraph: bool,
    known: SharedDispatchers,
) -> object:
    """`model` compiled; it shares the sessions of equal modules among `known`."""
    make_session = functools.partial(new_session, _name(model), options, backend, fullgraph)

    def shared(owner: nn.Module | Optimizer, function: types.FunctionType) -> Dispatcher:
        settings = _settings(options, backend, fullgraph)
        return known.find(owner, function, settings, lambda: _function(function, make_session()))

    if isinstance(model, nn.Module):
        return compile_module(model, lambda owner, function: calls_of_objects(shared(owner, function), function))
    function, owner = (model.__func__, model.__self__) if isinstance(model, types.MethodType) else (None, None)
    # A bound `__call__` stays what it is: see `calls_of_objects`.
    is_call = isinstance(owner, nn.Module) and function is type(owner).__call__
    if isinstance(function, types.FunctionType) and isinstance(owner, nn.Module | Optimizer) and not is_call:
        return types.MethodType(streamed(shared(owner, function)), owner)
    return _wrap(model, make_session())


def _name(model: object) -> str:
    """What reports and warnings call it; `module.compile()` hands over a method that all modules have."""
    if isinstance(model, types.MethodType) and model.__func__ is nn.Module._call_impl:
        model = model.__self__
    if hasattr(type(model), "__getattr__"):  # which the program may have written
        return type(model).__qualname__
    return str(getattr(model, "__qualname__", type(model).__qualname__))


def compile_graph(
    module: torch.fx.GraphModule, name: str, options: Options, symbolic: Mapping[str, tuple[int, ...]]
) -> Callable[..., object]:
    """The `forward` of a graph that another capture made; `symbolic` names the inputs that change."""
    _ = module.code  # a lazy graph module writes its `forward` when it is asked for the text
    session = new_session(name, options, None, fullgraph=False)
    session.captures = False
    session.seen.add_symbolic(symbolic)
    return cast(Callable[..., object], _wrap(module.forward, session))


def _settings(options: Options, backend: Backend | None, fullgraph: bool) -> SessionSettings:
    dump = os.environ.get("KILN_DUMP")
    if dump:  # what is loaded from disk goes through no stages
        options = replace(options, cache=False)
    target = host_cpu(torch.get_num_threads())
    if isinstance(backend, KernelLanguage):
        check_installed(backend.package, purpose=f"the backend `{backend.name}`")
        target, backend = replace(target, language=backend), None
    return SessionSettings(options, backend, fullgraph, target, Path(dump) if dump else None)


def new_session(name: str, options: Options, backend: Backend | None, fullgraph: bool) -> CompileSession:
    settings, events = _settings(options, backend, fullgraph), EventSink()
    session, report = CompileSession(name, settings, events), Report(name)
    events.listen(report.record)
    if stages := os.environ.get("KILN_LOG"):
        events.listen(log_stages(log_names(stages, pass_names())))
    if settings.options.progress:
        events.listen(_progress(name))
    REPORTS[session] = report
    session.report = lambda: report  # which a compiled function that is gone leaves behind
    for reports in KEPT:
        reports.append(report)
    return session


def _progress(name: str) -> Callable[[Event], None]:
    """One bar per compile, from its beginning to its end."""
    bars: list[ProgressBar] = []

    def listen(event: Event) -> None:
        if event.stage != "compile":
            for bar in bars:
                bar(event)
        elif event.kind == "begin":
            bars.append(ProgressBar(name))
        elif event.kind == "stage":
            bars.pop().close()

    return listen


def _wrap(model: Callable[..., object], session: CompileSession) -> object:
    if isinstance(model, types.MethodType):
        return types.MethodType(streamed(_function(model.__func__, session)), model.__self__)
    if isinstance(model, Dispatcher):
        return streamed(_function(original_of(model), session))
    if isinstance(model, types.FunctionType):
        return streamed(_function(model, session))
    called = type(model).__call__
    if isinstance(called, types.FunctionType):
        return types.MethodType(streamed(calls_of_objects(_function(called, session), called)), model)
    return _function(model, session)


def calls_of_objects(dispatcher: Dispatcher, function: types.FunctionType) -> Dispatcher:
    """The dispatcher of the `__call__` of a class, for calls of its objects: if the class gets another `__call__`, that
    is compiled in its place."""
    made: dict[object, Callable[..., object]] = {}
    session = cast(CompileSession, dispatcher.__dict__["session"])

    def call(called: Callable[..., object], *args: object, **kwargs: object) -> object:
        function = inspect.getattr_static(type(called), "__call__")
        if not isinstance(function, types.FunctionType):
            return called(*args, **kwargs)
        if function not in made:
            made[function] = streamed(_function(function, session))
        return made[function](called, *args, **kwargs)

    if original_of(dispatcher) is function:
        dispatcher.moved = call
    return dispatcher


def _function(function: Callable[..., object], session: CompileSession) -> Dispatcher:
    if not isinstance(function, types.FunctionType) or why_opaque(function):
        function = calling(function)
    dispatcher = session.dispatcher(function)
    for name in functools.WRAPPER_ASSIGNMENTS:  # `__wrapped__` is the dispatcher's own
        dispatcher.__dict__[name] = getattr(function, name)
    dispatcher.__dict__["session"] = session
    dispatcher.__dict__["report"] = session.report
    return dispatcher


def session_of(compiled: object) -> CompileSession:
    """The session of something that `compile` returned.

    Raises:
        TypeError: when it was not compiled by Kiln.
    """
    if isinstance(compiled, nn.Module) and MARK in type(compiled).__dict__:
        found: object = type(compiled).__dict__[MARK]
    else:
        called = getattr(compiled, "_compiled_call_impl", None) or compiled  # what `module.compile()` has set
        found = getattr(getattr(called, "__func__", called), "__dict__", {}).get("session")
    if not isinstance(found, CompileSession):
        raise TypeError(f"{compiled!r} was not compiled by kiln.compile")
    return found


def report_of(compiled: object) -> Report:
    """What the compiler has done so far for a compiled callable."""
    return REPORTS[session_of(compiled)]


def explain(
    function: Callable[Parameters, object],
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "kiln",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Callable[Parameters, Report]:
    """`kiln.explain(fn)(*args, **kwargs)` compiles `fn`, calls it once and returns the report.

    The report says what was compiled, what runs eager, what was compiled again and where the graph breaks, each with
    its reason, advice and cost; `.to_json()` gives all of it. The arguments are those of `kiln.compile`. What equal
    modules have compiled is not used: the report is about this call alone.
    """
    chosen, found = check_arguments(fullgraph, dynamic, backend, mode, options)
    switched_off(chosen)
    check_callable(function)
    compiled = cast(Callable[..., object], _compile(function, chosen, found, fullgraph, SharedDispatchers()))

    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Report:
        compiled(*args, **kwargs)
        report = report_of(compiled)
        if report.breaks:
            report.break_seconds = break_seconds()
        return report

    return call


def keep_reports() -> list[Report]:
    """A list that gets the report of everything that is compiled from now on, and keeps it."""
    KEPT.append([])
    return KEPT[-1]


def reset() -> None:
    """Forget all compiled variants, seen inputs and reports; the next calls compile again."""
    for session, report in list(REPORTS.items()):
        session.reset()
        report.reset()
    SHARED.clear()
    forget_codes()


def follow_torch_reset() -> None:
    """Make `torch.compiler.reset` forget what Kiln has compiled, too."""
    torch_reset = torch.compiler.reset

    @functools.wraps(torch_reset)
    def reset_both() -> None:
        reset()
        if is_torch_compiler_loaded():  # else torch has compiled nothing, and would be loaded for it
            torch_reset()

    torch.compiler.reset = reset_both


def rebuild(function: types.FunctionType, options: Options, backend: Backend | None, fullgraph: bool) -> Dispatcher:
    """The compiled function that was pickled in another process."""
    return _function(function, new_session(_name(function), options, backend, fullgraph))


follow_torch_reset()
register_pickling(rebuild)


@overload
def disable(function: AnyCallable, *, recursive: bool = True, reason: str | None = None) -> AnyCallable: ...
@overload
def disable(
    function: None = None, *, recursive: bool = True, reason: str | None = None
) -> Callable[[AnyCallable], AnyCallable]: ...
def disable(function: Callable[..., Any] | None = None, *, recursive: bool = True, reason: str | None = None) -> object:
    """Run `function` (or the `forward` of a module) in Python where compiled code calls it. A decorator.

    With `recursive`, compiled functions that it calls run in Python too. `reason` documents the call. Functions are
    marked as `torch.compiler.disable` marks them.
    """
    if function is None:
        return lambda late: disable(late, recursive=recursive, reason=reason)
    if isinstance(function, nn.Module):
        return disabled_module(function, lambda forward: disable(forward, recursive=recursive))
    check_callable(function)

    @functools.wraps(function)
    def run(*args: object, **kwargs: object) -> object:
        if not recursive:
            return function(*args, **kwargs)
        before = set_enabled(False)
        try:
            return function(*args, **kwargs)
        finally:
            set_enabled(before)

    setattr(run, DISABLED, True)
    return run
