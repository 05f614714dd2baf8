"""The API without a usable native layer: arguments are checked, programs run eager.

kiln.compile(model) is model          True; the first such call warns with the reason
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, Unpack

import torch

import kiln.native as native
from kiln.api.arguments import CompileArguments, check_arguments, check_callable
from kiln.report import Report
from kiln.support.compiling import is_compiling
from kiln.support.errors import KilnError
from kiln.support.events import Event
from kiln.support.location import user_stacklevel
from kiln.support.options import Options

__all__ = [
    "analyze",
    "compile",
    "compile_backward",
    "disable",
    "explain",
    "export",
    "is_compiling",
    "keep_reports",
    "report_of",
    "reset",
    "session_of",
]


class NativeLayerMissing(KilnError):
    code = "KILN5011"
    what = "kiln.compile does nothing in this process"
    why = "{problem}"
    try_ = ("build Kiln against this torch: pip install . --no-build-isolation; in a checkout: make build",)


class RunsEager(UserWarning):
    """Nothing is compiled; the text says why."""


def compile(model: Callable[..., object] | None = None, **arguments: Unpack[CompileArguments]) -> Any:
    """`model` as it is. Raises KilnError for a wrong argument."""
    check_arguments(**arguments)
    if model is None:
        return compile
    check_callable(model)
    if not arguments.get("disable"):
        warn_once()
    return model


def compile_backward(
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> AbstractContextManager[None]:
    """A context that changes nothing. Raises KilnError for a wrong argument."""
    check_arguments(fullgraph, dynamic, mode=mode, options=options)
    warn_once()
    return nullcontext()


def compile_graph(
    module: torch.fx.GraphModule, name: str, options: Options, symbolic: Mapping[str, tuple[int, ...]]
) -> Callable[..., object]:
    """The `forward` of a graph, as it is."""
    warn_once()
    forward: Callable[..., object] = module.forward
    return forward


@functools.lru_cache(maxsize=1)
def warn_once() -> None:
    problem = NativeLayerMissing(problem=native.problem())
    warnings.warn(problem.render(), RunsEager, stacklevel=user_stacklevel())


def report_of(compiled: object) -> Report:
    """A report that says why nothing was compiled."""
    report = Report(getattr(compiled, "__qualname__", type(compiled).__qualname__), eager=1)
    report.record(Event("note", "", 0.0, {"text": NativeLayerMissing(problem=native.problem()).reason}))
    return report


def session_of(compiled: object) -> NoReturn:
    """Raises TypeError: there is none."""
    raise TypeError(f"{compiled!r} was not compiled: {native.problem()}")


def explain(function: Callable[..., object], **arguments: Any) -> Callable[..., Report]:
    """Calls `function` and returns a report that says why nothing was compiled."""
    compiled = compile(function, **arguments)

    def call(*args: object, **kwargs: object) -> Report:
        compiled(*args, **kwargs)
        return report_of(function)

    return call


def disable(
    function: Callable[..., object] | None = None, *, recursive: bool = True, reason: str | None = None
) -> object:
    """`function` as it is."""
    return disable if function is None else function


def keep_reports() -> list[Report]:
    """Stays empty: nothing is compiled."""
    return []


def export(
    target: object, args: Sequence[object], kwargs: Mapping[str, object] | None = None, **options: object
) -> object:
    """Raises NativeLayerMissing: a program is captured by the native layer. `kiln.load_program` works without it."""
    raise NativeLayerMissing(problem=native.problem())


def analyze(target: object, *, dynamic_shapes: object = None) -> Callable[..., object]:
    """Raises NativeLayerMissing."""
    raise NativeLayerMissing(problem=native.problem())


def reset() -> None:
    """Nothing to forget."""
