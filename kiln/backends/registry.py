"""The registered backends by name."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from kiln.support.errors import KilnError


class UnknownBackend(KilnError):
    code = "KILN5004"
    what = "there is no backend `{name}`"
    why = "the registered backends are {known}"
    try_ = ("{hint}", "pass the compiler itself: backend=my_compiler")


Backend = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
"""(graph, example inputs) -> callable of the same inputs."""

KILN = "kiln"
BACKENDS: dict[str, Backend] = {}


def register_backend(backend: Backend | None = None, name: str | None = None) -> Any:
    """Register `backend` as `name` (default: its `__name__`). A function and a decorator."""
    if backend is None:
        return lambda late: register_backend(late, name)
    BACKENDS[name or backend.__name__] = backend
    return backend


def list_backends() -> list[str]:
    """The names that `backend=` takes, in alphabetical order."""
    return sorted([KILN, *BACKENDS])


def find_backend(backend: str | Backend) -> Backend | None:
    """The backend as a callable; None for Kiln's own compiler.

    Raises:
        UnknownBackend: for a name that is not registered.
    """
    if not isinstance(backend, str):
        return backend
    if backend == KILN:
        return None
    if backend not in BACKENDS:
        near = difflib.get_close_matches(backend, list_backends(), n=1)
        hint = f"did you mean `{near[0]}`?" if near else "kiln.register_backend registers one"
        raise UnknownBackend(name=backend, known=", ".join(list_backends()), hint=hint)
    return BACKENDS[backend]


@register_backend
def eager(module: torch.fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    """Run the captured graph op by op."""
    return module.forward


@register_backend
def inductor(module: torch.fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    """Hand the captured graph to torch's own compiler."""
    compile_fx = importlib.import_module("torch._inductor.compile_fx")
    compiled: Callable[..., object] = compile_fx.compile_fx(module, list(example_inputs))
    return compiled
