"""`kiln.distributed`: how to spread a model over devices, and its stages.

choice = kiln.distributed.plan(model, mesh, (tokens,))      prints the ways and the one that it takes
model = choice.apply(model)                                 wraps it: DDP, fully_shard, tensor parallel
stages = kiln.distributed.stages(model, (tokens,), 4)       modules for torch.distributed.pipelining
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import cast, final

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from kiln.api.exporting import export
from kiln.graph.ir.flops import numel
from kiln.graph.prims.table import Kind
from kiln.programs.parallel_plan import HEAD, Degrees, Estimate, Machine, StepFacts, devices_of, ranked
from kiln.programs.program import Program
from kiln.programs.stages import Cutter, StageModule, cut_program
from kiln.support.errors import KilnError
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

TensorPlan = Mapping[str, ParallelStyle]
__all__ = ["Degrees", "Machine", "ParallelPlan", "StageModule", "plan", "stages"]
SUSTAINED = 0.45
"""The share of a GPU's peak that training reaches."""
PER_CLOCK = {8: 2048, 9: 4096, 10: 8192}
"""Arithmetic operations of 16 bits per clock and multiprocessor, by the major version of the GPU."""


class NoPlan(KilnError):
    code = "KILN5019"
    what = "the plan cannot be applied to the model"
    why = "{reason}"
    try_ = ("kiln.distributed.stages makes the stages of a pipeline", "wrap the model by hand")


def this_machine() -> Machine:
    """The GPU of this process, or its share of the CPU."""
    if not torch.cuda.is_available():
        return Machine("CPU", 2e10 * torch.get_num_threads(), 2.5e9, 1e-4, 8 * 2**30)
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    clock = getattr(properties, "clock_rate", 1_600_000) * 1e3
    peak = properties.multi_processor_count * clock * PER_CLOCK.get(properties.major, 2048)
    return Machine(properties.name, SUSTAINED * peak, 2e11, 2e-5, properties.total_memory)


@final
@dataclass(frozen=True, slots=True)
class ParallelPlan:
    """What `plan` chose. `estimates`: all ways, the chosen one first. Prints as a table."""

    degrees: Degrees
    estimates: tuple[Estimate, ...]
    machine: Machine
    mesh: DeviceMesh | None = None
    tensor_plan: TensorPlan = field(default_factory=dict)

    def __str__(self) -> str:
        first = self.estimates[0]
        fits = "" if first.memory <= self.machine.memory else "; it does not fit into memory"
        shown = [estimate.row() for estimate in self.estimates[:12]]
        more = len(self.estimates) - len(shown)
        lines = [f"kiln.distributed.plan on {self.machine.name}: {self.degrees}{fits}", HEAD, *shown]
        return "\n".join([*lines, *([f"... and {more} more"] if more > 0 else [])])

    def apply(self, model: nn.Module) -> nn.Module:
        """The model, wrapped. Ranks are in the process group; a pipeline has its stages instead (NoPlan)."""
        degrees = self.degrees
        if degrees.pipeline > 1:
            raise NoPlan(reason="a pipeline runs stages, not the model")
        if refused := self.estimates[0].why_not:
            raise NoPlan(reason=refused)
        names = [role for role in ("data", "shard", "tensor") if getattr(degrees, role) > 1]
        if not names:
            return model
        kind = next(model.parameters()).device.type
        mesh = init_device_mesh(kind, tuple(getattr(degrees, name) for name in names), mesh_dim_names=tuple(names))
        if degrees.tensor > 1:
            for block in blocks_of(model):
                parallelize_module(block, mesh["tensor"], dict(self.tensor_plan))
        if degrees.shard > 1:
            part = mesh[("data", "shard")] if degrees.data > 1 else mesh["shard"]
            for block in blocks_of(model):
                fully_shard(block, mesh=part)
            fully_shard(model, mesh=part)
            return model
        if degrees.data > 1:
            return DistributedDataParallel(model, process_group=mesh["data"].get_group(), gradient_as_bucket_view=True)
        return model


def plan(
    model: nn.Module,
    mesh: DeviceMesh | Sequence[int] | int,
    args: Sequence[object],
    kwargs: Mapping[str, object] | None = None,
    *,
    tensor_plan: TensorPlan | None = None,
    micro_batches: int = 8,
    machine: Machine | None = None,
    verbose: bool = True,
) -> ParallelPlan:
    """Chooses how a training step is spread over devices; nothing is computed, and the model is not changed.

    Args:
        model: not wrapped yet.
        mesh: a `DeviceMesh`, its sizes, or a number of devices. A dimension gets one role (data, shard, tensor or
            pipeline); a mesh of one dimension may be divided among several.
        args, kwargs: a call of the model on the whole batch; its tensors may be on the meta device's shapes only.
        tensor_plan: what `parallelize_module` takes, for each block of the model; without it no tensor parallelism.
        micro_batches: of a pipeline.
        machine: one device; by default that of this process.
        verbose: print the table.

    Raises:
        KilnError: the call is not one graph (`kiln.export`).
    """
    sizes = (mesh,) if isinstance(mesh, int) else tuple(mesh.shape if isinstance(mesh, DeviceMesh) else mesh)
    machine = machine or this_machine()
    program = export(model, args, kwargs)
    facts = facts_of(model, program, tensor_plan or {}, devices_of(sizes))
    estimates = ranked(facts, sizes, machine, micro_batches)
    at = mesh if isinstance(mesh, DeviceMesh) else None
    made = ParallelPlan(estimates[0].degrees, tuple(estimates), machine, at, tensor_plan or {})
    if verbose:
        print(made, flush=True)
    return made


def facts_of(model: nn.Module, program: Program, tensor_plan: TensorPlan, devices: int) -> StepFacts:
    kept = 0
    for node in program.graph.nodes:
        if node.op.kind is Kind.LIBRARY and isinstance(node.spec, TensorSpec):
            kept += int(cast(int, numel(node.spec))) * node.spec.dtype.itemsize
    blocks = blocks_of(model)
    rows = [name for name, style in tensor_plan.items() if isinstance(style, RowwiseParallel)]
    reduced = result_bytes(program, [f".{name}.weight" for name in rows])
    stages = Cutter(
        program.graph, dict(zip(program.graph.inputs, map(str, range(len(program.signature.states))), strict=False)), ()
    )
    return StepFacts(
        flops=float(cast(int, program.flops())),
        parameters=float(sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())),
        activations=float(kept),
        reduced=float(reduced),
        rows=len(rows) * len(blocks),
        stages=min(devices, len(stages.crossing) + 1),
        blocks=max(len(blocks), 1),
    )


def result_bytes(program: Program, ends: Sequence[str]) -> int:
    """Bytes of the results of products with parameters whose names end so."""
    names = [state.name for state in program.signature.states]
    chosen = {node for node, name in zip(program.graph.inputs, names, strict=False) if f".{name}".endswith(tuple(ends))}
    total = 0
    for node in program.graph.nodes:
        views = {value.inputs[0] if value.op.kind is Kind.VIEW and value.inputs else value for value in node.inputs}
        if node.op.kind is Kind.LIBRARY and not chosen.isdisjoint(views) and isinstance(node.spec, TensorSpec):
            total += int(cast(int, numel(node.spec))) * node.spec.dtype.itemsize
    return total


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The items of the module list with the most parameters: what is sharded, or divided, as a whole."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential) and len(module)]
    if not lists:
        return []
    largest = max(lists, key=lambda module: sum(parameter.numel() for parameter in module.parameters()))
    return list(largest)


def stages(
    model: nn.Module, args: Sequence[object], count: int, kwargs: Mapping[str, object] | None = None
) -> list[StageModule]:
    """Cuts a model into `count` stages of about equal work, for the schedules of `torch.distributed.pipelining`.

    Args:
        model: its parameters become those of the stages, under the same names.
        args, kwargs: a call on one micro-batch.
        count: how many stages.

    Returns:
        Modules; each takes what the one before returns. `stage.inputs` and `stage.outputs` are what
        `PipelineStage` takes as `input_args` and `output_args`. Each can be compiled.

    Raises:
        NoStages: where the model cannot be cut.
        KilnError: the call is not one graph.
    """
    program = export(model, args, kwargs)
    tensors: dict[str, torch.Tensor] = {**dict(model.named_buffers()), **dict(model.named_parameters())}
    return cut_program(program, count, tensors)
