"""The backends by name: those of this package, those that are registered, those of torch's entry point group.

find_backend("onnxrt")         kiln.backends.onnxrt is imported now
find_backend("tvm")            whatever a package offers as entry point `tvm` of `torch_dynamo_backends`
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import torch

from kiln.graph.offload.part import Backend, GraphBackend
from kiln.support.errors import KilnError
from kiln.support.target import KernelLanguage


class UnknownBackend(KilnError):
    code = "KILN5004"
    what = "there is no backend `{name}`"
    why = "the registered backends are {known}"
    try_ = ("{hint}", "pass the compiler itself: backend=my_compiler")


KILN = "kiln"
GROUP = "torch_dynamo_backends"
BACKENDS: dict[str, Backend] = {}
OWN = {name: f"kiln.backends.{name}" for name in ("halide", "iree", "onnxrt", "openvino", "xla")}
"""Modules that register a backend when they are imported, by its name."""


def register_backend(backend: Backend | None = None, name: str | None = None) -> Any:
    """Register `backend` as `name` (default: its own name). A function and a decorator."""
    if backend is None:
        return lambda late: register_backend(late, name)
    BACKENDS[name or (backend.name if isinstance(backend, GraphBackend | KernelLanguage) else backend.__name__)] = (
        backend
    )
    return backend


def list_backends() -> list[str]:
    """The names that `backend=` takes, in alphabetical order."""
    return sorted({KILN, *BACKENDS, *OWN, *offered()})


def offered() -> dict[str, EntryPoint]:
    """What installed packages offer to torch.compile; Kiln itself is among it."""
    return {entry.name: entry for entry in entry_points(group=GROUP) if entry.name != KILN}


def find_backend(backend: str | Backend) -> Backend | None:
    """The backend itself; None for Kiln's own compiler.

    Raises:
        UnknownBackend: for a name that is not registered.
    """
    if not isinstance(backend, str):
        return backend
    if backend == KILN:
        return None
    if backend in OWN and backend not in BACKENDS:
        importlib.import_module(OWN[backend])
    if backend not in BACKENDS:
        others = offered()
        if backend in others:
            loaded: Backend = others[backend].load()
            return loaded
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
