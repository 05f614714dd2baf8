"""Plans as text: one line per step, for people, golden files and diffs.

    plan add_norm(%0: f32[s0, 768] "x", %1: f32[768] "self.weight")  where s0 = %0.size(0)
        %2 = allocate f32[s0, 768]
        launch k0(%0, %1, %2; s0) over s0
        %3 = aten.mm.default(%2, %1) -> f32[s0, 768]
        free %2
        return %3

The same plan as Python is in `plan_python.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from kiln.plan.plan import (
    Allocate,
    Branch,
    CallAten,
    Check,
    Constant,
    Copy,
    Free,
    HostRead,
    Launch,
    Plan,
    PlanInput,
    PlanOutput,
    RandomSeed,
    Ref,
    Step,
    SymbolBinding,
    View,
)
from kiln.tensor.dtypes import DTYPE_NAMES


def plan_text(plan: Plan, indent: str = "") -> str:
    """The plan, its steps and nested plans; ends without a newline."""
    inputs = ", ".join(f"%{slot}: {_input(one)}" for slot, one in enumerate(plan.inputs))
    where = ", ".join(_binding(binding) for binding in plan.symbols)
    lines = [f"plan {plan.name}({inputs})" + (f"  where {where}" if where else "")]
    lines += [f"    {line}" for step in plan.steps for line in step_text(step).split("\n")]
    lines.append("    return " + ", ".join(_output(output) for output in plan.outputs))
    for name, slots in (("mutates", plan.mutated), ("may reuse", plan.donated)):
        if slots:
            lines.append(f"    {name} {_slots(slots)}")
    return "\n".join(indent + line for line in lines)


def step_text(step: Step) -> str:
    """One step; a branch takes several lines."""
    text = STEP_TEXT[type(step)](step)
    origin = getattr(step, "origin", "")
    return f"{text}  # {origin}" if origin else text


def _input(one: PlanInput) -> str:
    kind = one.spec if one.spec is not None else str(one.scalar)
    return f'{kind} "{one.name}"'


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


def _slots(slots: Iterable[int | None]) -> str:
    return ", ".join("_" if slot is None else f"%{slot}" for slot in slots)


def argument_text(value: Any) -> str:
    """An argument of an ATen step."""
    if isinstance(value, Ref):
        return f"%{value.slot}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(map(argument_text, value)) + "]"
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES[value]
    return repr(value) if isinstance(value, str | float) else str(value)


def _allocate(step: Allocate) -> str:
    reuse = f" in memory of %{step.reuse}" if step.reuse is not None else ""
    return f"%{step.out} = allocate {step.spec}{reuse}"


def _launch(step: Launch) -> str:
    numbers = ", ".join([*map(str, step.ints), *map(argument_text, step.floats)])
    text = f"launch {step.kernel}({_slots(step.tensors)}{'; ' + numbers if numbers else ''}) over {step.units}"
    if step.grain != 1:
        text += f" by {step.grain}"
    if step.scratch_bytes != 0:
        text += f" scratch {step.scratch_bytes}"
    return text + (f" grid ({', '.join(map(str, step.grid))})" if step.grid else "")


def _call(step: CallAten) -> str:
    args = [argument_text(arg) for arg in step.args]
    args += [f"{name}={argument_text(value)}" for name, value in step.kwargs]
    specs = ", ".join("none" if spec is None else str(spec) for spec in step.specs)
    outs = f"{_slots(step.outs)} = " if any(out is not None for out in step.outs) else ""
    return f"{outs}{step.target}({', '.join(args)})" + (f" -> {specs}" if specs else "")


def _branch(step: Branch) -> str:
    lines = [f"{_slots(step.outs)} = branch %{step.condition}({_slots(step.args)})"]
    for name, plan in (("true", step.if_true), ("false", step.if_false)):
        lines += [f"    {name}:", plan_text(plan, indent="        ")]
    return "\n".join(lines)


def _check(step: Check) -> str:
    what = str(step.relation) if step.relation is not None else f"%{step.condition}"
    return f"check {what} else {step.message!r}"


# fmt: off
STEP_TEXT: Mapping[type, Callable[[Any], str]] = {
    Allocate:   _allocate,
    Launch:     _launch,
    CallAten:   _call,
    View:       lambda step: f"%{step.out} = view %{step.base} as {step.spec}",
    Copy:       lambda step: f"copy %{step.source} into %{step.target}",
    Constant:   lambda step: f"%{step.out} = constant {step.index}",
    HostRead:   lambda step: f"{step.symbol} = read {step.kind} %{step.source}",
    Check:      _check,
    RandomSeed: lambda step: f"%{step.out} = seed {step.device} + {step.increment}",
    Free:       lambda step: f"free {_slots(step.slots)}",
    Branch:     _branch,
}
# fmt: on
