"""A plan with its kernels and constants: it becomes an executor now, and a bundle for later processes.

compiled = compile_plan(plan, constants, context)
run = compiled.executor()                 # in this process
run = load_plan(compiled.bundle())        # in another one (kiln/runtime/loader.py)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import final

import torch

from kiln.build.cpp_compile import Compilation, start_compile
from kiln.build.limits import CompileLimits
from kiln.pipeline.context import CompileContext
from kiln.plan.encode import encode_program
from kiln.plan.plan import Plan
from kiln.plan.python_view import plan_python
from kiln.runtime.cuda_graphs.facts import graph_facts, seeded_plan
from kiln.runtime.cuda_graphs.graphs import CudaGraphs
from kiln.runtime.cuda_graphs.host_part import HostFirst, split_host_part
from kiln.runtime.executor import Executable, make_executor
from kiln.runtime.kernels import Libraries
from kiln.runtime.loader import save_bundle
from kiln.support.events import EventSink
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True)
class CompiledPlan:
    """`program`: the plan as the native executor reads it.

    `adapt`: inputs that are copied into the planned layout when they arrive in another one (tangents).
    """

    plan: Plan
    program: bytes
    started: Compilation
    constants: Mapping[str, torch.Tensor]
    events: EventSink
    adapt: Collection[int] = ()

    @property
    def libraries(self) -> Libraries:
        """The compiled kernels; waits for them. Raises KilnError."""
        if self.started.waited:
            return self.started.wait()
        with self.events.stage("kernels"):
            return self.started.wait()

    def executor(self, graphs: CudaGraphs | None = None, *, standalone: bool = True) -> Executable:
        """The native executor, recorded as CUDA graphs if `graphs` is given and the plan allows it.

        `standalone`: its results go to the caller as they are.
        """
        constants = [self.constants[key] for key in self.plan.constants]
        plain = make_executor(self.plan, self.libraries, constants, self.adapt, self.program)
        if graphs is None:
            return plain
        parts = None if self.adapt else split_host_part(self.plan)
        if parts is None:
            return self._graphed(self.plan, plain, graphs, constants, standalone)
        recorded = make_executor(parts.recorded, self.libraries, constants)
        graphed = self._graphed(parts.recorded, recorded, graphs, constants, standalone)
        if graphed is recorded:
            return plain
        return HostFirst(make_executor(parts.host, self.libraries, constants), graphed, parts.order)

    def _graphed(
        self, plan: Plan, plain: Executable, graphs: CudaGraphs, constants: Sequence[torch.Tensor], standalone: bool
    ) -> Executable:
        def make_seeded(all_constants: Sequence[torch.Tensor]) -> Executable:
            return make_executor(seeded_plan(plan), self.libraries, all_constants, self.adapt)

        return graphs.wrap(plain, make_seeded, graph_facts(plan), constants, standalone=standalone)

    def bundle(self) -> bytes:
        """The file that `load_plan` reads."""
        constants = {key: self.constants[key] for key in self.plan.constants}
        return save_bundle(self.plan, self.libraries, constants, adapt=self.adapt, program=self.program)


def compile_plan(
    plan: Plan, constants: Mapping[str, torch.Tensor], context: CompileContext, adapt: Collection[int] = ()
) -> CompiledPlan:
    """Start to compile the kernels missing in the store, and encode the plan meanwhile."""
    context.dump.write("plan_python", lambda: plan_python(plan))
    context.dump.write("kernels", lambda: "\n".join(kernel.source for kernel in plan.kernels))
    with context.events.stage("kernels"):
        options = context.options
        limits = CompileLimits(options.compile_seconds, options.compile_megabytes)
        started = start_compile(plan.kernels, context.store, context.events, options.compile_workers, limits)
    with context.events.stage("encode"):
        program = encode_program(plan, adapt)
    return CompiledPlan(plan, program, started, constants, context.events, adapt)
