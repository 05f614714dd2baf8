"""Plans as text: one line per step, for people, golden files and diffs.

plan add_norm(%0: f32[s0, 768] "x", %1: f32[768] "self.weight")  where s0 = %0.size(0)
    %2 = allocate f32[s0, 768]
    launch k0(%0, %1, %2; s0) over s0
    %3 = aten.mm.default(%2, %1) -> f32[s0, 768]
    free %2
    return %3
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kiln.plan.plan import Plan, PlanInput, PlanOutput, Ref, Slot, Step, SymbolBinding
from kiln.tensor.dtypes import DTYPE_NAMES


def plan_text(plan: Plan, indent: str = "") -> str:
    """The plan, its steps and nested plans; ends without a newline."""
    inputs = ", ".join(f"%{slot}: {_input(declared)}" for slot, declared in enumerate(plan.inputs))
    where = ", ".join(_binding(binding) for binding in plan.symbols)
    lines = [f"plan {plan.name}({inputs})" + (f"  where {where}" if where else "")]
    lines += [f"    {line}" for step in plan.steps for line in step_text(step).split("\n")]
    lines.append("    return " + ", ".join(_output(output) for output in plan.outputs))
    bumped = None if plan.version_bumps == plan.mutated else plan.bumped
    for name, slots in (("mutates", plan.mutated), ("raises the versions of", bumped), ("may reuse", plan.donated)):
        if slots:
            lines.append(f"    {name} {slots_text(slots)}")
    return "\n".join(indent + line for line in lines)


def step_text(step: Step) -> str:
    """One step and the user's line."""
    return f"{step.text()}  # {step.origin}" if step.origin else step.text()


def argument_text(value: object) -> str:
    """An argument of an ATen step."""
    if isinstance(value, Ref):
        return f"%{value.slot}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(argument_text, value)) + "]"
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES[value]
    return repr(value) if isinstance(value, str | float) else str(value)


def slots_text(slots: Iterable[Slot | None]) -> str:
    return ", ".join("_" if slot is None else f"%{slot}" for slot in slots)


def _input(declared: PlanInput) -> str:
    return f'{declared.spec or declared.scalar} "{declared.name}"'


def _binding(binding: SymbolBinding) -> str:
    if binding.kind in ("size", "stride"):
        return f"{binding.name} = %{binding.slot}.{binding.kind}({binding.dim})"
    if binding.kind == "unbacked":
        return f"{binding.name} from data" + (f" in %{binding.slot}" if binding.slot >= 0 else "")
    return f"{binding.name} = %{binding.slot}" + (".offset" if binding.kind == "offset" else "")


def _output(output: PlanOutput) -> str:
    view = f" as {output.view}" if output.view is not None else ""
    if output.alias_input is not None:
        return f"input {output.alias_input}{view}"
    if output.alias_output is not None:
        return f"output {output.alias_output}{view}"
    return f"%{output.slot}" if output.slot is not None else str(output.value)
