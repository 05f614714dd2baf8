"""Plans as Python that can be read and run.

    def add_norm(x, weight):
        s0 = x.size(0)
        v2 = empty(torch.float32, (s0, 768), (768, 1))
        launch("k0", (x, weight, v2), (s0,), (), s0)
        v3 = torch.ops.aten.mm.default(v2, weight)
        del v2
        return (v3,)

The free names (`FREE_NAMES`) do what a step of the executor does; `tests/runtime` defines them and runs the text.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import final

import torch

from kiln.plan.plan import Plan, PlanOutput, Ref, Slot
from kiln.tensor.spec import CPU, TensorSpec


def plan_python(plan: Plan) -> str:
    """A function named as the plan, below those of its nested plans."""
    return PythonPrinter(plan).text()


@final
class PythonPrinter:
    """Implements `PlanPrinter`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.names = _slot_names(plan)
        self.above: list[str] = []
        self.lines: list[str] = []

    def text(self) -> str:
        for binding in self.plan.symbols:
            if binding.kind != "unbacked":
                self.lines.append(f"{binding.name} = {_BINDINGS[binding.kind](self.names[binding.slot], binding.dim)}")
        for step in self.plan.steps:
            self.lines.append(step.python(self) + (f"  # {step.origin}" if step.origin else ""))
        self.lines += [f"bump({self.names[slot]})" for slot in self.plan.version_bumps]
        self.lines += self.results()
        head = f"def {identifier(self.plan.name)}({', '.join(self.names[: len(self.plan.inputs)])}):"
        return "\n".join([*self.above, head, *(f"    {line}" for line in self.lines)])

    def results(self) -> list[str]:
        lines = [f"out{position} = {self.result(output)}" for position, output in enumerate(self.plan.outputs)]
        return [*lines, f"return {tuple_python(f'out{position}' for position in range(len(self.plan.outputs)))}"]

    def result(self, output: PlanOutput) -> str:
        base = None
        if output.alias_input is not None:
            base = self.names[output.alias_input]
        elif output.alias_output is not None:
            base = f"out{output.alias_output}"
        if base is not None:
            return base if output.view is None else f"rebuild({base}, {layout_python(output.view)})"
        return self.names[output.slot] if output.slot is not None else str(output.value)

    def slots(self, slots: Iterable[Slot]) -> str:
        return tuple_python(self.names[slot] for slot in slots)

    def nested(self, plan: Plan) -> str:
        self.above.append(plan_python(plan) + "\n")
        return identifier(plan.name)

    def argument(self, value: object) -> str:
        if isinstance(value, Ref):
            return self.names[value.slot]
        if isinstance(value, tuple | list):
            return "[" + ", ".join(map(self.argument, value)) + "]"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        return repr(value) if isinstance(value, str) else str(value)


def identifier(text: str) -> str:
    """A Python name like `text`."""
    name = re.sub(r"\W", "_", text) or "_"
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def _slot_names(plan: Plan) -> list[str]:
    taken = {binding.name for binding in plan.symbols} | {identifier(plan.name)} | FREE_NAMES
    names = []
    for slot, declared in enumerate(plan.inputs):
        name = identifier(declared.name.rpartition(".")[2])
        names.append(f"{name}_{slot}" if name in taken else name)
        taken.add(names[-1])
    return names + [f"v{slot}" for slot in range(len(names), plan.num_slots)]


def tuple_python(items: Iterable[object]) -> str:
    texts = list(map(str, items))
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def layout_python(spec: TensorSpec) -> str:
    device = f", {str(spec.device)!r}" if spec.device != CPU else ""
    offset = f", {spec.offset}" if spec.offset != 0 or device else ""
    return f"{spec.dtype}, {tuple_python(spec.sizes)}, {tuple_python(spec.strides)}{offset}{device}"


FREE_NAMES = {
    "empty", "over", "launch", "as_planned", "constants", "seed", "check", "read", "branch", "loop", "rebuild", "bump",
    "torch", "float", "int", "bool",
}  # fmt: skip
_BINDINGS: Mapping[str, Callable[[str, int], str]] = {
    "size": lambda name, dim: f"{name}.size({dim})",
    "stride": lambda name, dim: f"{name}.stride({dim})",
    "offset": lambda name, dim: f"{name}.storage_offset()",
    "scalar": lambda name, dim: f"int({name})",
}
