"""The plan of a backward: the gradients that are needed, for the tangents that arrive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import compress

import torch

from kiln.graph.autograd.partition import backward_for
from kiln.graph.autograd.tangents import without_inputs, without_tangents
from kiln.graph.ir.graph import Graph
from kiln.graph.trace.absent_gradients import with_existence
from kiln.pipeline.compiled_plan import CompiledPlan, compile_plan
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import graph_to_plan
from kiln.plan.arena import with_donations
from kiln.plan.hand_over import with_hand_overs
from kiln.plan.plan import Plan, PlanOutput
from kiln.plan.signature import SavedTensor, Signature


def compile_backward(
    full: Graph,
    signature: Signature,
    grads: Sequence[int | None],
    constants: Mapping[str, torch.Tensor],
    context: CompileContext,
    needed: Sequence[bool],
    given: Sequence[bool],
) -> CompiledPlan:
    """Start to compile `full` without what no needed gradient reads."""
    full, absent = without_tangents(full, given)
    saved = [not isinstance(value, SavedTensor) or value.read_with(given) for value in signature.saved]
    full = without_inputs(full, [number for number, read in enumerate(saved) if not read])
    signature = replace(signature, saved=tuple(compress(signature.saved, saved)))
    needed = [need and gradient not in absent for need, gradient in zip(needed, grads, strict=True)]
    graph = backward_for(full, grads, needed)
    graph, existence = with_existence(graph, graph.inputs[len(graph.inputs) - sum(given) :])
    # Without the environment: it may name a size by an equal symbol, which is no input of the backward.
    plan = graph_to_plan(graph, replace(context, env=None), "backward")
    plan = backward_plan(plan, signature, needed, existence, donates="memory-reuse" not in context.without)
    # Tangents arrive in any layout, and so do saved values that a hook of the user has stored elsewhere.
    return compile_plan(plan, constants, context, range(len(plan.inputs)))


def backward_plan(
    plan: Plan,
    signature: Signature,
    needed: Sequence[bool],
    existence: Sequence[int | None],
    *,
    donates: bool = True,
) -> Plan:
    """`plan` with an output per input of the forward: its gradient, or None.

    `existence`: for each gradient the output that says whether it exists. If there are such, an output per input that
    says so follows, or None. `donates`: it may overwrite saved values.
    """
    inputs = [number for number in signature.gradients if needed[number]]
    first_extra = signature.num_outputs + len(signature.carried)
    donated = [
        number
        for number, saved in enumerate(signature.saved)
        if isinstance(saved, SavedTensor) and saved.of == "output" and saved.index >= first_extra
    ]
    plan = with_donations(plan, donated) if donates else plan
    outputs = [PlanOutput()] * signature.num_inputs
    for number, gradient in zip(inputs, plan.outputs, strict=False):
        # A tensor may be the gradient of several inputs; `alias_output` counts gradients, not inputs.
        shared = gradient.alias_output
        outputs[number] = gradient if shared is None else replace(gradient, alias_output=inputs[shared])
    existing = existence_outputs(plan, inputs, existence, signature.num_inputs)
    plan = replace(plan, outputs=(*outputs, *existing))
    return plan if existing else with_hand_overs(plan, signature.parts)


def existence_outputs(
    plan: Plan, inputs: Sequence[int], existence: Sequence[int | None], count: int
) -> list[PlanOutput]:
    outputs = [PlanOutput()] * count
    first: dict[int, int] = {}
    for number, answer in zip(inputs, existence, strict=True):
        if answer is not None:
            owner = first.setdefault(answer, count + number)
            shared = None if owner == count + number else owner
            outputs[number] = replace(plan.outputs[answer], alias_output=shared)
    return outputs if first else []
