"""What is compared: eager, torch.compile, Kiln."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import final

import torch

import kiln.api as api
from kiln.cli.bench.task import Finding
from kiln.support.optional import load


def _nothing() -> None:
    pass


def _no_facts(compiled: object) -> Finding:
    return {}


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run a model; `prepare` imports what its first call would, `facts` describes the compile."""

    compile: Callable[[Callable[..., object]], Callable[..., object]]
    prepare: Callable[[], None] = _nothing
    facts: Callable[[object], Finding] = field(default=_no_facts)


def _import_peer() -> None:
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codegen.cpp"):
        importlib.import_module(name)


def _import_kiln() -> None:
    if torch.cuda.is_available():
        load("triton")


def _kiln_facts(compiled: object) -> Finding:
    report = api.report_of(compiled)
    return {"regions": report.regions, "breaks": len(report.breaks), "kernels": report.kernels}


def candidate(name: str, mode: str | None) -> Candidate:
    """Eager, or a compiler under a `mode` that both know."""
    return CANDIDATES[name](mode)


CANDIDATES: Mapping[str, Callable[[str | None], Candidate]] = {
    "eager": lambda mode: Candidate(lambda model: model),
    "torch.compile": lambda mode: Candidate(lambda model: torch.compile(model, mode=mode), _import_peer),
    "kiln": lambda mode: Candidate(lambda model: api.compile(model, mode=mode), _import_kiln, _kiln_facts),
}
