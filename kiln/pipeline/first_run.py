"""`options={"verify": "first"}`: the first run of each compiled region is compared with eager.

    first call     eager on copies, compiled on copies; equal: compiled runs on the inputs, and from then on
                   different: a warning with a reproducer (`reproducer.py`), eager runs from then on

Eager is the log of torch calls, called one by one. The caller's tensors are used once, by the run whose results are
returned. Regions that set hooks are not compared: eager would set them too.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.rewrite import has_effect
from kiln.graph.prims.table import Kind
from kiln.graph.trace import Trace
from kiln.pipeline.compiled_region import CompiledRegion
from kiln.pipeline.context import CompileContext
from kiln.pipeline.differences import differences
from kiln.pipeline.observation import Observation, observe, same_modes
from kiln.pipeline.reproducer import Reproducer
from kiln.runtime.executor import Executable
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

HOOKS = frozenset(("register_hook", "register_post_accumulate_grad_hook", "retain_grad"))


class DiffersFromEager(KilnError):
    code = "KILN4030"
    what = "a compiled region of `{function}` differs from eager: {difference}"
    why = "its first run was compared with eager, which now runs instead (verify='first')"
    try_ = (
        "{reproduce}",
        "python -m kiln bisect program.py    # finds the stage",
        "report it with that file",
    )


@final
@dataclass(frozen=True)
class TorchProgram:
    """The torch calls of a region, with the inputs of the region.

    `places`: for each input of the module its number among those of the region; `absent`: values of those that the
    region does not have, as the capture saw them.
    """

    module: torch.fx.GraphModule
    places: Sequence[int | None]
    absent: Sequence[object]

    def __call__(self, *inputs: object) -> tuple[object, ...]:
        given = [
            value if place is None else inputs[place] for place, value in zip(self.places, self.absent, strict=True)
        ]
        with same_modes():
            return tuple(self.module(*given))

    def in_double(self) -> TorchProgram:
        """With its constants in float64."""
        absent = [
            value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for value in self.absent
        ]
        return replace(self, module=deepcopy(self.module).double(), absent=absent)


def torch_program(trace: Trace, module: torch.fx.GraphModule) -> TorchProgram:
    """`module`: of `trace.torch_graph()`."""
    numbers = {record.name: number for number, record in enumerate(trace.used_inputs)}
    reals = {record.name: record.real for record in trace.inputs}
    names = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
    places = [numbers.get(name) for name in names]
    absent = [reals.get(name) if place is None else None for name, place in zip(names, places, strict=True)]
    return TorchProgram(module, places, absent)


def verified(
    region: CompiledRegion, trace: Trace, module: torch.fx.GraphModule, graph: Graph, context: CompileContext
) -> CompiledRegion:
    """`region`, whose first run is compared. `graph`: what was compiled, for the reproducer."""
    if any(call.target in HOOKS for call in trace.calls):
        context.events.emit("note", text="not compared with eager: the region sets hooks")
        return region
    program = torch_program(trace, module)
    reproducer = Reproducer(context.dump.name, graph, module, program.places, trace.constants, context.options)
    draws = any(node.op.kind is Kind.RANDOM or has_effect(node) for node in trace.graph.nodes)

    def finish() -> Executable:
        return FirstRun(PendingComparison(region.finish(), program, reproducer, context, draws))

    return CompiledRegion(finish)


@final
@dataclass(frozen=True)
class PendingComparison:
    """A compiled region and all that is needed to compare it with eager."""

    compiled: Executable
    program: TorchProgram
    reproducer: Reproducer
    context: CompileContext
    draws: bool
    """Whether it may draw random numbers: those of float64 are others, so there is no referee."""

    def difference(self, inputs: Sequence[object]) -> str:
        """How the compiled region differs from eager on copies of `inputs`."""
        expected, found = observe(self.program, inputs), observe(self.compiled, inputs)

        def referee() -> Observation:
            return observe(self.program.in_double(), inputs, torch.float64)

        exact = self.context.options.numerics == "strict"
        return differences(found, expected, None if self.draws else referee, exact=exact)

    def report(self, inputs: Sequence[object], difference: str) -> None:
        """Say how the comparison ended."""
        name, events = self.context.dump.name, self.context.events
        if not difference:
            events.emit("verified", function=name)
            return
        events.emit("differs", function=name, difference=difference)
        reproduce = self.reproduce(inputs, difference)
        if self.context.report_eager is not None:
            problem = DiffersFromEager(function=name, difference=difference, reproduce=reproduce)
            self.context.report_eager(problem, None)

    def reproduce(self, inputs: Sequence[object], difference: str) -> str:
        """Write a script that shows the difference again; the command that runs it."""
        root, differs = self.context.dump.root, lambda other: bool(self.difference(other))
        try:
            script = self.reproducer.write(inputs, difference, root, differs)
        except Exception as fault:  # a full disk, or a fault of the compiler: the program goes on
            self.context.events.emit("fault", text="".join(traceback.format_exception(fault)))
            return f"(no script could be written: {type(fault).__name__}: {fault})"
        return f"python {script}    # shows it again"


@final
class FirstRun:
    """A compiled region that is compared with eager when it is first called."""

    def __init__(self, comparison: PendingComparison) -> None:
        self.comparison: PendingComparison | None = comparison
        """Until the first run: it holds the graph and the constants of the region."""
        self.chosen: Executable | None = None
        self.lock = threading.RLock()

    def __call__(self, *inputs: object) -> tuple[object, ...]:
        if self.chosen is None:
            with self.lock:
                if self.comparison is not None:
                    self.choose(self.comparison, inputs)
        assert self.chosen is not None
        return self.chosen(*inputs)

    def choose(self, comparison: PendingComparison, inputs: Sequence[object]) -> None:
        with comparison.context.events.stage("verify"):
            found = comparison.difference(inputs)
        self.chosen = comparison.program if found else comparison.compiled
        self.comparison = None
        comparison.report(inputs, found)
