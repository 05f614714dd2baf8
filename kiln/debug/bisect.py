"""Finds the part of the compiler that makes a program differ from eager.

1  a reproducer (a region that differs, `verify="first"`), or a script that fails only when it is compiled
2  which stage: capture, trace, autograd, or the first form of the graph whose interpreter gives something else
3  which switch of that stage makes the difference go away, by halving
4  the smallest graph that differs

StageFault and the switch say where to look; the graph is a test.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import cast, final

import torch

from kiln.debug.reduce import smallest
from kiln.debug.stage_results import wrong_stage
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.pipeline.differences import differences
from kiln.pipeline.observation import Run, observe
from kiln.pipeline.reproduce import Constants, graph_difference, graph_reference, program_difference, with_tangents
from kiln.pipeline.switches import OTHERS, SWITCHES
from kiln.support.records import dataclass

Options = Mapping[str, object]
Compile = Callable[[Run, Options], Run]
Differs = Callable[[Sequence[str]], bool]
"""Whether there is still a difference with these switches off."""

BY_STAGE: Mapping[str, tuple[str, ...]] = {
    "passes": ("rewrite rule", "graph pass"),
    "lowering": (),
    "loop_passes": ("loop pass",),
    "schedule": ("memory-reuse", "fusion rule"),
    "kernels": ("kernel pass", "fusion rule"),
    "executor": ("memory-reuse", "fusion rule"),
}
"""Kinds of switches, and switches, that may heal a stage; the first kind that does is taken."""
STAGES_ONLY = ("compile", "capture")


@final
@dataclass(frozen=True)
class BisectResult:
    """`stage`: at fault. `switch`: its part that makes the difference; `graph`: the smallest that shows it."""

    stage: str
    difference: str
    switch: str = ""
    kernel: str = ""
    graph: Graph | None = None

    def text(self) -> str:
        lines = [f"stage: {self.stage}", f"difference: {self.difference}"]
        if self.switch:
            kind = "switch" if self.switch in OTHERS else SWITCHES[self.switch]
            lines.append(f"{kind}: {self.switch} (without it nothing differs)")
        if self.kernel:
            lines.append(f"kernel: {self.kernel}")
        if self.graph is not None:
            lines += ["smallest graph that differs:", graph_text(self.graph, origins=False)]
        return "\n".join(lines)


@final
@dataclass(frozen=True)
class Reproduction:
    """What a reproducer script holds."""

    program: Run
    inputs: Sequence[object]
    places: Sequence[int | None]
    graph: Graph
    constants: Constants
    options: Options

    @staticmethod
    def of_script(names: Mapping[str, object]) -> Reproduction:
        """`names`: the globals of the script."""
        return Reproduction(
            cast(Run, names["program"]),
            cast(Sequence[object], names["INPUTS"]),
            cast(Sequence[int | None], names["PLACES"]),
            parse_graph(str(names["GRAPH"]).strip()),
            cast(Constants, names["CONSTANTS"]),
            cast(Options, names["OPTIONS"]),
        )

    def graph_differs(self, graph: Graph, inputs: Sequence[object], without: Sequence[str] = ()) -> str:
        return graph_difference(graph, inputs, self.with_switches(without), self.constants)

    def program_differs(self, compile: Compile, without: Sequence[str] = ()) -> str:
        given = [None if place is None else self.inputs[place] for place in self.places]
        compiled = compile(self.program, {**self.with_switches(without), "cache": False})
        return program_difference(self.program, compiled, given)

    def with_switches(self, without: Sequence[str]) -> Options:
        return {**self.options, "disable": "+".join(without)} if without else self.options


def bisect_reproduction(case: Reproduction, compile: Compile) -> BisectResult | None:
    """Where `case` goes wrong; None if it does not."""
    fault = wrong_stage(case.graph, case.inputs, case.options, case.constants)
    if fault is not None:
        switch = first_healing(
            BY_STAGE[fault.stage], lambda names: bool(case.graph_differs(case.graph, case.inputs, names))
        )
        graph, _ = smallest(
            case.graph, case.inputs, case.constants, lambda graph, inputs: bool(case.graph_differs(graph, inputs))
        )
        return BisectResult(fault.stage, fault.difference, switch, fault.kernel, graph)
    difference = case.program_differs(compile)
    if not difference:
        return None
    if case.program_differs(compile, ["compile"]):
        return BisectResult("capture", difference)
    if problem := trace_difference(case):
        return BisectResult("trace", problem)
    switch = healing_switch(every_switch(), lambda names: bool(case.program_differs(compile, names)))
    return BisectResult("partition" if switch == "recompute" else "autograd", difference, switch)


def trace_difference(case: Reproduction) -> str:
    """How the results of the recorded graph, run by its interpreter, differ from those of the torch calls."""
    given = [None if place is None else case.inputs[place] for place in case.places]
    with torch.no_grad():
        expected = observe(case.program, given)
        found = observe(graph_reference(case.graph, case.constants), with_tangents(case.graph, case.inputs))
    if found.error is not None or expected.error is not None:
        return differences(found, expected, None)
    count = len(expected.results)
    for number, (ours, eager) in enumerate(zip(found.results[:count], expected.results, strict=False)):
        if isinstance(eager, torch.Tensor) and isinstance(ours, torch.Tensor):
            scale = float(eager.abs().max()) if eager.is_floating_point() and eager.numel() else 1.0
            if not torch.allclose(ours, eager, 1e-3, 1e-4 * scale, equal_nan=True):
                return f"result {number} of the recorded graph is not that of the torch calls"
    return ""


def bisect_script(differs: Differs) -> BisectResult | None:
    """For a script that fails when it is compiled, though each region is as eager when it first runs."""
    if not differs([]):
        return None
    if differs(["capture"]):
        return BisectResult("the program itself", "it fails without the compiler too")
    if differs(["compile"]):
        return BisectResult("capture", "it fails if eager runs the captured regions")
    switch = healing_switch(every_switch(), differs)
    return BisectResult("compile", "it fails if the captured regions are compiled", switch)


def first_healing(kinds: Sequence[str], differs: Differs) -> str:
    """The healing switch of the first kind that has one."""
    found = (healing_switch([name for name, of in SWITCHES.items() if kind in (of, name)], differs) for kind in kinds)
    return next(filter(None, found), "")


def every_switch() -> list[str]:
    return [name for name in SWITCHES if name not in STAGES_ONLY]


def healing_switch(names: Sequence[str], differs: Differs) -> str:
    """A switch that alone makes the difference go away; "" if there is none, or only several do together."""
    names = list(names)
    if not names or differs(names):
        return ""
    while len(names) > 1:
        half = names[: len(names) // 2]
        if not differs(half):
            names = half
        elif not differs(rest := names[len(half) :]):
            names = rest
        else:
            return ""
    return names[0]
