"""What is compared: eager, torch.compile, Kiln; as exporters Kiln and torch.export with AOTInductor."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import cast, final

import torch
from torch import nn
from torch.utils import _pytree as pytree

import kiln.api as api
from kiln.api.exporting import export
from kiln.packages.loader import load_package
from kiln.programs.dims import Dim
from kiln.programs.program import Program
from kiln.support.optional import load
from kiln.support.records import dataclass
from kiln_bench.models import Case
from kiln_bench.task import Finding


def _nothing() -> None:
    pass


def _no_facts(compiled: object) -> Finding:
    return {}


@final
@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to run a model.

    `prepare` imports what its first call would, `facts` describes what it compiled since `forget`.
    """

    compile: Callable[[Callable[..., object]], Callable[..., object]]
    prepare: Callable[[], None] = _nothing
    forget: Callable[[], None] = _nothing
    facts: Callable[[object], Finding] = field(default=_no_facts)
    in_parts: bool = False
    """Whether it compiles the model and the optimizer, not the whole step."""

    def compile_case(self, case: Case) -> Callable[..., object]:
        if self.in_parts and case.optimizer is not None:
            return case.whole_step(self.compile(case.model), self.compile(case.optimizer.step))
        return self.compile(case.subject)


def _import_peer() -> None:
    for name in ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.codegen.cpp"):
        importlib.import_module(name)


def _forget_peer() -> None:
    importlib.import_module("torch._dynamo.utils").counters.clear()


def peer_graphs() -> tuple[int, list[str]]:
    """The graphs that torch.compile made since `forget`, and why it broke them."""
    counters = importlib.import_module("torch._dynamo.utils").counters
    return counters["stats"]["unique_graphs"], [str(reason) for reason in counters["graph_break"]]


def _peer_facts(compiled: object) -> Finding:
    """It always answers True to `is_compiling`."""
    counters = importlib.import_module("torch._dynamo.utils").counters
    breaks = sum(counters["graph_break"].values())
    return {"regions": counters["stats"]["unique_graphs"], "breaks": breaks, "answer": True}


def export_by_torch(model: nn.Module, inputs: Mapping[str, object], shapes: object) -> object:
    """Export a call. Of `shapes` it understands dicts of `Dim.AUTO`."""
    auto = torch.export.Dim.AUTO
    theirs = pytree.tree_map(lambda leaf: auto if leaf == Dim.AUTO else leaf, shapes)
    return torch.export.export(model, (), dict(inputs), dynamic_shapes=theirs)


def _import_kiln() -> None:
    if torch.cuda.is_available():
        load("triton")


def _kiln_facts(compiled: object) -> Finding:
    report = api.report_of(compiled)
    answer = any(note.startswith("is_compiling() answers True") for note in report.notes)
    return {"regions": report.regions, "breaks": len(report.breaks), "kernels": report.kernels, "answer": answer}


def _kiln_that_answers(answer: bool) -> Callable[[str | None], Candidate]:
    def facts(compiled: object) -> Finding:
        return {**_kiln_facts(compiled), "answer": answer}

    options = {"is_compiling": str(answer).lower()}
    return lambda mode: Candidate(
        lambda model: api.compile(model, mode=mode, options=options), _import_kiln, facts=facts
    )


@final
@dataclass(frozen=True, slots=True)
class ExportCandidate:
    """A way to make a program of a call, a package of the program, and a function of the package."""

    export: Callable[[nn.Module, tuple[object, ...], dict[str, object]], object]
    package: Callable[[object, Path], object]
    load: Callable[[Path], Callable[..., object]]
    suffix: str


def _peer_package(program: object, path: Path) -> object:
    return importlib.import_module("torch._inductor").aoti_compile_and_package(program, package_path=str(path))


def _peer_load(path: Path) -> Callable[..., object]:
    loaded: Callable[..., object] = importlib.import_module("torch._inductor").aoti_load_package(str(path))
    return loaded


EXPORTERS: Mapping[str, ExportCandidate] = {
    "kiln": ExportCandidate(export, lambda program, path: cast(Program, program).package(path), load_package, "kiln"),
    "torch": ExportCandidate(
        lambda model, args, kwargs: torch.export.export(model, args, kwargs), _peer_package, _peer_load, "pt2"
    ),
}


def candidate(name: str, mode: str | None) -> Candidate:
    """Eager, or a compiler under a `mode` that both know; another name is one of Kiln's back ends.

    `kiln:reduce-overhead` has a mode of its own.
    """
    name, _, own_mode = name.partition(":")
    mode = own_mode or mode
    if name not in CANDIDATES:
        return Candidate(lambda model: api.compile(model, backend=name), facts=_kiln_facts)
    return CANDIDATES[name](mode)


CANDIDATES: Mapping[str, Callable[[str | None], Candidate]] = {
    "eager": lambda mode: Candidate(lambda model: model),
    "torch.compile": lambda mode: Candidate(
        lambda model: torch.compile(model, mode=mode), _import_peer, _forget_peer, _peer_facts, in_parts=True
    ),
    "kiln": lambda mode: Candidate(lambda model: api.compile(model, mode=mode), _import_kiln, facts=_kiln_facts),
    "kiln, True": _kiln_that_answers(True),
    "kiln, False": _kiln_that_answers(False),
}
"""The last two answer `is_compiling()` as their name says, where a program asks."""
ANSWERS = {"kiln, True": True, "kiln, False": False}
