"""Plans as Python that can be read and run.

    def add_norm(x, weight):
        s0 = x.size(0)
        v2 = empty(torch.float32, (s0, 768), (768, 1))
        launch("k0", (x, weight, v2), (s0,), (), s0)
        v3 = torch.ops.aten.mm.default(v2, weight)
        del v2
        return (v3,)

The free names `empty`, `over`, `launch`, `as_planned`, `constants`, `seed`, `check`, `read`, `branch`, `rebuild` and
`bump` stand for what one step of the executor does; `tests/runtime` runs the text with plain definitions of them.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    PlanOutput,
    RandomSeed,
    Ref,
    Slot,
    View,
)
from kiln.tensor.spec import CPU, TensorSpec


def plan_python(plan: Plan) -> str:
    """A function `plan.name`; nested plans stand above it."""
    return _Printer(plan).text()


class _Printer:
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
            origin = getattr(step, "origin", "")
            self.lines.append(STEP_PYTHON[type(step)](self, step) + (f"  # {origin}" if origin else ""))
        self.lines += [f"bump({self.names[slot]})" for slot in self.plan.mutated]
        self.lines += self.results()
        head = f"def {identifier(self.plan.name)}({', '.join(self.names[: len(self.plan.inputs)])}):"
        return "\n".join([*self.above, head, *(f"    {line}" for line in self.lines)])

    def results(self) -> list[str]:
        lines = [f"out{place} = {self.result(output)}" for place, output in enumerate(self.plan.outputs)]
        return [*lines, f"return {_tuple(f'out{place}' for place in range(len(self.plan.outputs)))}"]

    def result(self, output: PlanOutput) -> str:
        base = None
        if output.alias_input is not None:
            base = self.names[output.alias_input]
        elif output.alias_output is not None:
            base = f"out{output.alias_output}"
        if base is not None:
            return base if output.view is None else f"rebuild({base}, {_layout(output.view)})"
        return self.names[output.slot] if output.slot is not None else str(output.value)

    def slots(self, slots: Iterable[Slot]) -> str:
        return _tuple(self.names[slot] for slot in slots)

    def argument(self, value: Any) -> str:
        if isinstance(value, Ref):
            return self.names[value.slot]
        if isinstance(value, tuple | list):
            return "[" + ", ".join(map(self.argument, value)) + "]"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        return f"float({str(value)!r})" if value in (float("inf"), float("-inf")) or value != value else _literal(value)


def _literal(value: Any) -> str:
    return repr(value) if isinstance(value, str | float) else str(value)


def identifier(text: str) -> str:
    """A Python name like `text`."""
    name = re.sub(r"\W", "_", text) or "_"
    return f"_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name


def _slot_names(plan: Plan) -> list[str]:
    taken = {binding.name for binding in plan.symbols} | {identifier(plan.name)} | FREE_NAMES
    names = []
    for slot, one in enumerate(plan.inputs):
        name = identifier(one.name.rpartition(".")[2])
        names.append(f"{name}_{slot}" if name in taken else name)
        taken.add(names[-1])
    return names + [f"v{slot}" for slot in range(len(names), plan.num_slots)]


def _tuple(items: Iterable[Any]) -> str:
    texts = list(map(str, items))
    return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"


def _layout(spec: TensorSpec) -> str:
    device = f", {str(spec.device)!r}" if spec.device != CPU else ""
    offset = f", {spec.offset}" if spec.offset != 0 or device else ""
    return f"{spec.dtype}, {_tuple(spec.sizes)}, {_tuple(spec.strides)}{offset}{device}"


def _allocate(at: _Printer, step: Allocate) -> str:
    if step.reuse is None:
        return f"{at.names[step.out]} = empty({_layout(step.spec)})"
    old = at.names[step.reuse]
    return f"{at.names[step.out]} = over({old}, {_layout(step.spec)}); del {old}"


def _launch(at: _Printer, step: Launch) -> str:
    floats = _tuple(map(at.argument, step.floats))
    over = f"grid={_tuple(step.grid)}" if step.grid else str(step.units)
    return f"launch({step.kernel!r}, {at.slots(step.tensors)}, {_tuple(step.ints)}, {floats}, {over})"


def _call(at: _Printer, step: CallAten) -> str:
    args = [at.argument(arg) for arg in step.args]
    args += [f"{name}={at.argument(value)}" for name, value in step.kwargs]
    call = f"torch.ops.{step.target}({', '.join(args)})"
    if len(step.outs) == 1 and step.outs[0] is not None and step.specs[0] is not None:
        return f"{at.names[step.outs[0]]} = as_planned({call}, {_layout(step.specs[0])})"
    outs = ["_" if out is None else at.names[out] for out in step.outs]
    return f"{', '.join(outs)} = {call}" if outs else call


def _branch(at: _Printer, step: Branch) -> str:
    plans: Sequence[Plan] = (step.if_true, step.if_false)
    at.above += [plan_python(plan) + "\n" for plan in plans]
    names = ", ".join(identifier(plan.name) for plan in plans)
    return f"{at.slots(step.outs)} = branch({at.names[step.condition]}, {names})(*{at.slots(step.args)})"


def _check(at: _Printer, step: Check) -> str:
    condition = str(step.relation) if step.condition is None else at.names[step.condition]
    return f"check({condition}, {step.message!r})"


def _host_read(at: _Printer, step: HostRead) -> str:
    landing = [at.names[one.slot] for one in at.plan.symbols if one.name == step.symbol and one.slot >= 0]
    targets = " = ".join([step.symbol, *landing])
    return f"{targets} = read({step.kind}, {at.names[step.source]})"


FREE_NAMES = {
    "empty", "over", "launch", "as_planned", "constants", "seed", "check", "read", "branch", "rebuild", "bump", "torch",
    "float", "int", "bool",
}  # fmt: skip
_BINDINGS: Mapping[str, Callable[[str, int], str]] = {
    "size": lambda name, dim: f"{name}.size({dim})",
    "stride": lambda name, dim: f"{name}.stride({dim})",
    "offset": lambda name, dim: f"{name}.storage_offset()",
    "scalar": lambda name, dim: f"int({name})",
}
# fmt: off
STEP_PYTHON: Mapping[type, Callable[[_Printer, Any], str]] = {
    Allocate:   _allocate,
    Launch:     _launch,
    CallAten:   _call,
    View:       lambda at, step: f"{at.names[step.out]} = over({at.names[step.base]}, {_layout(step.spec)})",
    Copy:       lambda at, step: f"{at.names[step.target]}.copy_({at.names[step.source]})",
    Constant:   lambda at, step: f"{at.names[step.out]} = constants[{step.index}]",
    HostRead:   _host_read,
    Check:      _check,
    RandomSeed: lambda at, step: f"{at.names[step.out]} = seed({str(step.device)!r}, {step.increment})",
    Free:       lambda at, step: f"del {', '.join(at.names[slot] for slot in step.slots)}",
    Branch:     _branch,
}
# fmt: on
