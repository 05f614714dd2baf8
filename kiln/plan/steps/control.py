"""Steps at which the host looks at values: reads, checks, branches.

u0 = read int %2
check u0 <= 8 else 'too many rows'
%5 = branch %4(%0, %1)
"""

from __future__ import annotations

from typing import Literal, final

from kiln.plan.errors import check_error
from kiln.plan.plan import Plan, PlanEncoder, PlanPrinter, PlanRun, Slot, Step
from kiln.plan.program_format import BRANCH, CHECK_RELATION, CHECK_TENSOR, HOST_READ, Record, RelationKind, ScalarKind
from kiln.plan.text import plan_text, slots_text
from kiln.support.records import dataclass
from kiln.symbolic import Relation

NUMBER_TYPES = {"int": int, "float": float, "bool": bool}


@final
@dataclass(frozen=True, slots=True)
class HostReadStep(Step):
    """Read the one element of `source` on the host and bind it to `symbol`, or to its slot (see `SymbolBinding`)."""

    symbol: str
    source: Slot
    kind: Literal["int", "float", "bool"]

    uses = ("source",)

    def reads_host(self) -> bool:
        return True

    def text(self) -> str:
        return f"{self.symbol} = read {self.kind} %{self.source}"

    def python(self, printer: PlanPrinter) -> str:
        landing = printer.plan.landing_slot(self.symbol)
        targets = self.symbol if landing is None else f"{self.symbol} = {printer.names[landing]}"
        return f"{targets} = read({self.kind}, {printer.names[self.source]})"

    def native(self, encoder: PlanEncoder) -> Record:
        kind = ScalarKind[self.kind.upper()]
        target, segment = encoder.host_scalar(self.symbol, kind)
        return Record(HOST_READ, source=self.source, kind=kind, target=target, segment=segment)

    def run(self, run: PlanRun) -> None:
        value = NUMBER_TYPES[self.kind](run.values[self.source].item())
        if self.kind != "float":
            run.symbols[self.symbol] = int(value)
        landing = run.plan.landing_slot(self.symbol)
        if landing is not None:
            run.values[landing] = value


@final
@dataclass(frozen=True, slots=True)
class CheckStep(Step):
    """Stop with `message` unless `relation` holds (or the bool tensor in slot `condition` is true)."""

    relation: Relation | None
    condition: Slot | None
    message: str

    uses = ("condition",)

    def reads_host(self) -> bool:
        return self.condition is not None

    def text(self) -> str:
        what = f"%{self.condition}" if self.relation is None else str(self.relation)
        return f"check {what} else {self.message!r}"

    def python(self, printer: PlanPrinter) -> str:
        condition = str(self.relation) if self.condition is None else printer.names[self.condition]
        return f"check({condition}, {self.message!r})"

    def native(self, encoder: PlanEncoder) -> Record:
        if self.relation is None:
            return Record(CHECK_TENSOR, condition=self.condition, message=self.message)
        kind, difference = RelationKind[self.relation.kind.upper()], self.relation.difference
        return Record(CHECK_RELATION, relation=kind, difference=difference, message=self.message)

    def run(self, run: PlanRun) -> None:
        if self.relation is not None and not self.relation.evaluate(run.symbols):
            raise check_error(self.message)
        if self.condition is not None and not run.values[self.condition].item():
            raise check_error(self.message)


@final
@dataclass(frozen=True, slots=True)
class BranchStep(Step):
    """Run one of two nested plans, by the bool tensor in `condition`, on `args`. Nested plans have their own slots."""

    condition: Slot
    if_true: Plan
    if_false: Plan
    args: tuple[Slot, ...]
    outs: tuple[Slot, ...]

    uses, defines = ("condition", "args"), ("outs",)

    def reads_host(self) -> bool:
        return True

    def text(self) -> str:
        lines = [f"{slots_text(self.outs)} = branch %{self.condition}({slots_text(self.args)})"]
        for name, plan in (("true", self.if_true), ("false", self.if_false)):
            lines += [f"    {name}:", plan_text(plan, indent="        ")]
        return "\n".join(lines)

    def python(self, printer: PlanPrinter) -> str:
        names = ", ".join([printer.nested(plan) for plan in (self.if_true, self.if_false)])
        call = f"branch({printer.names[self.condition]}, {names})(*{printer.slots(self.args)})"
        return f"{printer.slots(self.outs)} = {call}"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(
            BRANCH, condition=self.condition, args=self.args, outs=self.outs,
            if_true=self.if_true, if_false=self.if_false,
        )  # fmt: skip

    def run(self, run: PlanRun) -> None:
        plan = self.if_true if run.values[self.condition].item() else self.if_false
        results = run.nested(plan, [run.values[slot] for slot in self.args])
        for slot, value in zip(self.outs, results, strict=True):
            run.values[slot] = value
