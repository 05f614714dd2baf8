"""A region whose outputs need gradients: two plans behind one autograd node.

    joint graph --passes--> partition --> forward plan, now
                                      --> backward plan, when a backward first runs, for the inputs that need it

The forward plan returns the user's results, the new contents of inputs that autograd must see changed, and what is
only saved; `Partition.signature` says which is which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
import torch

from kiln.graph.autograd import Partition, make_joint, partition
from kiln.graph.ir.text import graph_text
from kiln.graph.passes import JOINT_PASSES, run_passes
from kiln.graph.trace import Recorder, Trace
from kiln.pipeline.context import CompileContext
from kiln.pipeline.stages import Executable, graph_to_plan, plan_to_executor
from kiln.runtime.autograd import RegionSpec, Saved, make_region, saved_extra
from kiln.runtime.plan import Plan, PlanOutput, SymbolBinding
from kiln.runtime.signature import Signature
from kiln.symbolic import symbol


def compile_differentiable(recorder: Recorder, trace: Trace, context: CompileContext) -> Executable:
    """The region of a trace with gradients; the backward is recorded here, while the recorder is open."""
    with context.events.stage("joint"):
        joint = make_joint(recorder, trace)
        joint = replace(joint, graph=run_passes(joint.graph, context.events, env=trace.env, passes=JOINT_PASSES))
    context.dump.write("joint", lambda: graph_text(joint.graph))
    with context.events.stage("partition"):
        halves = partition(joint, recompute=context.options.recompute == "cheap")
    return differentiable_region(halves, trace.constants, context)


def differentiable_region(
    halves: Partition, constants: Mapping[str, torch.Tensor], context: CompileContext
) -> Executable:
    """Forward now, backward when it is first needed."""
    signature = halves.signature
    plan = forward_plan(graph_to_plan(halves.forward, context, "forward"), signature)
    forward = plan_to_executor(plan, constants, context)

    def compile_backward(needed: tuple[bool, ...]) -> Executable:
        graph = halves.backward_for(needed)
        made = backward_plan(graph_to_plan(graph, context, "backward"), signature, needed)
        tangents = range(len(made.inputs) - len(signature.tangents), len(made.inputs))
        return plan_to_executor(made, constants, context, adapt=tangents)

    region = make_region(forward, compile_backward, region_spec(plan, signature))
    if not signature.carried:
        return region
    count = signature.num_outputs
    return lambda *inputs: region(*inputs)[:count]


def forward_plan(plan: Plan, signature: Signature) -> Plan:
    """Numbers that backward needs are returned behind everything else."""
    numbers = [PlanOutput(value=symbol(one.name)) for one in signature.saved if isinstance(one, SymbolBinding)]
    return replace(plan, outputs=(*plan.outputs, *numbers)) if numbers else plan


def region_spec(plan: Plan, signature: Signature) -> RegionSpec:
    """What the runtime has to know of the forward plan."""
    count = signature.num_outputs + len(signature.carried)
    tangent_of = {one.output for one in signature.tangents}
    return RegionSpec(
        num_inputs=signature.num_inputs,
        outputs=plan.outputs[:count],
        differentiable=tuple(place in tangent_of for place in range(count)),
        saved=tuple(saved_values(plan, signature, count)),
        mutated=plan.mutated,
        written=tuple((one.input, one.output) for one in signature.carried),
    )


def saved_values(plan: Plan, signature: Signature, count: int) -> Sequence[Saved]:
    """The entry of each saved value; outputs behind the first `count` are extras."""
    entries: list[Saved] = []
    next_number = len(plan.outputs) - sum(isinstance(one, SymbolBinding) for one in signature.saved)
    for one in signature.saved:
        if isinstance(one, SymbolBinding):
            entries.append(Saved("extra", next_number))
            next_number += 1
        elif one.of == "input":
            entries.append(Saved("input", one.index))
        elif one.index < count and plan.outputs[one.index].alias_input is None:
            entries.append(Saved("output", one.index))
        else:
            entries.append(saved_extra(plan, one.index))
    return entries


def backward_plan(plan: Plan, signature: Signature, needed: Sequence[bool]) -> Plan:
    """One gradient per input of the forward: None where it is not needed or there is none."""
    places = [place for place in signature.gradients if needed[place]]
    outputs = [PlanOutput()] * signature.num_inputs
    for place, gradient in zip(places, plan.outputs, strict=True):
        # One tensor may be the gradient of several inputs: the plan counts the gradients that there are.
        shared = gradient.alias_output
        outputs[place] = gradient if shared is None else replace(gradient, alias_output=places[shared])
    return replace(plan, outputs=tuple(outputs))
