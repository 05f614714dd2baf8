"""Can a plan be recorded as a CUDA graph, and what does its recording need?

    graph_facts(plan).refusal        "reads a value on the host"; "" where the plan can be recorded
    seeded_plan(plan)                the plan as it is recorded, where it draws random seeds:

        %3 = seed cuda:0 + 4096      =>      %3 = constant 2        (an int64[2] on the device, filled before a replay)
        return %5                            return %5, 4096        (how far the generator's offset moves)

All this is read off the plan. What shows only while recording (a third-party operator that waits for the device) makes
the recording fail, see `graphed.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import final

import torch

from kiln.plan.device_copies import device_of
from kiln.plan.overloads import draws, is_collective
from kiln.plan.plan import Plan, PlanOutput, Step, slots_in
from kiln.plan.steps import AtenStep, ConstantStep, LaunchStep, RandomSeedStep
from kiln.plan.transfer_operators import TRANSFER
from kiln.plan.verify import slot_specs
from kiln.support.records import dataclass
from kiln.tensor.spec import CPU, TensorSpec

WAITING = frozenset((
    "_local_scalar_dense", "_unique", "_unique2", "bincount", "equal", "is_nonzero", "item", "masked_select", "nonzero",
    "nonzero_numpy", "repeat_interleave", "unique_consecutive", "unique_dim", "unique_dim_consecutive",
))  # fmt: skip
"""ATen operators that wait for the device to learn a size or a value."""

INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"))
"""Operators that wait for the device where an index is a mask."""


@final
@dataclass(frozen=True, slots=True)
class GraphFacts:
    """`device`: where the plan runs. `mutated`: inputs that it writes to. `bumped`: see `Plan`. `seeds`: how many
    random seeds it draws."""

    name: str
    device: str
    refusal: str = ""
    mutated: tuple[int, ...] = ()
    bumped: tuple[int, ...] = ()
    seeds: int = 0


def graph_facts(plan: Plan) -> GraphFacts:
    specs = slot_specs(plan)
    device = device_of(specs, specs) or CPU
    refusal = next(_refusals(plan, device, specs), "")
    seeds = sum(isinstance(step, RandomSeedStep) for step in plan.steps)
    bumped = tuple([slot for slot in plan.version_bumps if slot < len(plan.inputs)])  # results have their versions
    return GraphFacts(plan.name, str(device), refusal, plan.mutated, bumped, seeds)


def _refusals(plan: Plan, device: torch.device, specs: Mapping[int, TensorSpec]) -> Iterator[str]:
    """Reasons why the plan cannot be recorded."""
    if not any(isinstance(step, LaunchStep | AtenStep) for step in plan.steps):
        yield "it launches nothing"
    for binding in plan.symbols:
        if binding.kind in ("offset", "unbacked"):
            yield f"size {binding.name} is {SYMBOL_FROM[binding.kind]}"
    for spec in specs.values():
        if spec.device.type != device.type or (spec.device.index or 0) != (device.index or 0):
            yield f"a tensor is on {spec.device}, others are on {device}"
    language = "cpp" if device.type == "cpu" else "triton"
    for kernel in plan.kernels:
        if kernel.language != language:
            yield f"kernel {kernel.symbol} runs on the host"
    for step in plan.steps:
        if step.reads_host():
            yield f"{type(step).__name__} reads a value on the host"
        if isinstance(step, AtenStep):
            yield from _unrecordable(step, specs)


SYMBOL_FROM = {"offset": "the offset of an argument", "unbacked": "known from data only"}


def _unrecordable(step: AtenStep, specs: Mapping[int, TensorSpec]) -> Iterator[str]:
    namespace, _, rest = step.target.partition(".")
    name = rest.partition(".")[0]
    if is_collective(step.target):
        yield f"{step.target} is a collective"
    if step.target == TRANSFER:
        yield "values are moved to the host"
    if draws(step.target, step.args, step.kwargs):
        yield f"{step.target} draws from torch's generator"
    if namespace == "aten" and name in WAITING:
        yield f"{step.target} waits for the device"
    if namespace == "aten" and name in INDEXING:
        masks = (specs[slot] for slot in slots_in(step.args, [], refs_only=True) if slot in specs)
        if any(spec.dtype in (torch.bool, torch.uint8) for spec in list(masks)[1:]):
            yield f"{step.target} with a mask waits for the device"


def seeded_plan(plan: Plan) -> Plan:
    """The plan with its seeds as constants number `len(plan.constants)` and up; their increments are returned last."""
    steps: list[Step] = []
    increments: list[PlanOutput] = []
    for step in plan.steps:
        if not isinstance(step, RandomSeedStep):
            steps.append(step)
            continue
        position = len(plan.constants) + len(increments)
        increments.append(PlanOutput(value=step.increment))
        steps.append(ConstantStep(step.out, position))
    keys = tuple(f"seed/{number}" for number in range(len(increments)))
    return replace(
        plan,
        steps=tuple(steps),
        outputs=(*plan.outputs, *increments),
        constants=(*plan.constants, *keys),
    )
