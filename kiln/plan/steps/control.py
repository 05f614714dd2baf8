"""Steps that decide what runs: reads of values on the host, checks, branches, loops.

u0 = read int %2
check u0 <= 8 else 'too many rows'
%5 = branch %4(%0, %1)
%6 = loop while test from (%5) with (%0; s0)
"""

from __future__ import annotations

from typing import Literal, final

from kiln.plan.errors import check_error
from kiln.plan.plan import Plan, PlanEncoder, PlanPrinter, PlanRun, Slot, Step
from kiln.plan.program_format import (
    BRANCH,
    CHECK_RELATION,
    CHECK_TENSOR,
    HOST_READ,
    LOOP,
    Record,
    RelationKind,
    ScalarKind,
)
from kiln.plan.text import plan_text, slots_text
from kiln.support.records import dataclass
from kiln.symbolic import Int, Relation
from kiln.tensor.spec import TensorSpec

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
    """Run one of two nested plans, by the bool tensor in `condition`, on `args`, then on the numbers `sizes`.

    Nested plans have slots of their own. `specs` are the layouts of `outs`.
    """

    condition: Slot
    if_true: Plan
    if_false: Plan
    args: tuple[Slot, ...]
    outs: tuple[Slot, ...]
    specs: tuple[TensorSpec, ...] = ()
    sizes: tuple[Int, ...] = ()
    origin: str = ""

    uses, defines = ("condition", "args"), ("outs",)

    def reads_host(self) -> bool:
        return True

    def text(self) -> str:
        call = f"branch %{self.condition}({numbers_text(self.args, self.sizes)})"
        lines = [f"{slots_text(self.outs)} = {call}" if self.outs else call]
        return "\n".join([*lines, *nested_text(true=self.if_true, false=self.if_false)])

    def python(self, printer: PlanPrinter) -> str:
        names = ", ".join([printer.nested(plan) for plan in (self.if_true, self.if_false)])
        call = f"branch({printer.names[self.condition]}, {names})(*{printer.slots(self.args)}{star(self.sizes)})"
        return f"{printer.slots(self.outs)} = {call}" if self.outs else call

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(
            BRANCH, condition=self.condition, args=self.args, sizes=self.sizes, num_sizes=len(self.sizes),
            outs=self.outs, if_true=self.if_true, if_false=self.if_false,
        )  # fmt: skip

    def run(self, run: PlanRun) -> None:
        plan = self.if_true if run.values[self.condition].item() else self.if_false
        results = run.nested(plan, [*[run.values[slot] for slot in self.args], *run.numbers(self.sizes)])
        for slot, value in zip(self.outs, results, strict=True):
            run.values[slot] = value


@final
@dataclass(frozen=True, slots=True)
class LoopStep(Step):
    """Repeat the nested plan `body` while the nested plan `test` gives true, or `count` times if there is no test.

    Both take the carried values, (the body) one row of each tensor of `rows`, `args` and the numbers `sizes`. The body
    returns the next carried values, then what is stacked along a new first dimension. `outs` are the last carried
    values and the stacked ones, `specs` their layouts.
    """

    test: Plan | None
    body: Plan
    count: Int
    carried: tuple[Slot, ...]
    rows: tuple[Slot, ...]
    args: tuple[Slot, ...]
    outs: tuple[Slot, ...]
    specs: tuple[TensorSpec, ...]
    sizes: tuple[Int, ...] = ()
    origin: str = ""

    uses, defines = ("carried", "rows", "args"), ("outs",)

    def reads_host(self) -> bool:
        """Always said, so that no CUDA graph is recorded: nobody has looked at the steps of the nested plans."""
        return True

    def text(self) -> str:
        rows = f" for rows of {slots_text(self.rows)}" if self.rows else ""
        times = "while test" if self.test is not None else f"{self.count} times"
        carried, given = slots_text(self.carried), numbers_text(self.args, self.sizes)
        head = f"{slots_text(self.outs)} = loop {times} from ({carried}){rows} with ({given})"
        plans = {"body": self.body} if self.test is None else {"test": self.test, "body": self.body}
        return "\n".join([head, *nested_text(**plans)])

    def python(self, printer: PlanPrinter) -> str:
        test = "None" if self.test is None else printer.nested(self.test)
        groups = ", ".join(map(printer.slots, (self.carried, self.rows)))
        given = f"(*{printer.slots(self.args)}{star(self.sizes)},)"
        call = f"loop({test}, {printer.nested(self.body)}, {self.count}, {groups}, {given})"
        return f"{printer.slots(self.outs)} = {call}"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(
            LOOP, test=() if self.test is None else (self.test,), body=self.body, count=self.count,
            carried=self.carried, rows=self.rows, args=self.args, sizes=self.sizes, num_sizes=len(self.sizes),
            outs=self.outs, layouts=self.specs,
        )  # fmt: skip

    def run(self, run: PlanRun) -> None:
        carried, rows = [run.values[slot] for slot in self.carried], [run.values[slot] for slot in self.rows]
        given = [*[run.values[slot] for slot in self.args], *run.numbers(self.sizes)]
        stacked = [run.empty(spec) for spec in self.specs[len(carried) :]]
        count, turn = run.number(self.count), 0
        while self.goes_on(run, turn, count, [*carried, *given]):
            results = run.nested(self.body, [*carried, *[whole[turn] for whole in rows], *given])
            carried = list(results[: len(carried)])
            for whole, row in zip(stacked, results[len(carried) :], strict=True):
                whole[turn].copy_(row)
            turn += 1
        last = (
            carried
            if turn
            else [run.empty(spec).copy_(value) for spec, value in zip(self.specs, carried, strict=False)]
        )
        for slot, value in zip(self.outs, [*last, *stacked], strict=True):
            run.values[slot] = value

    def goes_on(self, run: PlanRun, turn: int, count: int, given: list[object]) -> bool:
        return turn < count if self.test is None else bool(run.nested(self.test, given)[0])


def numbers_text(slots: tuple[Slot, ...], numbers: tuple[Int, ...]) -> str:
    return f"{slots_text(slots)}; {', '.join(map(str, numbers))}" if numbers else slots_text(slots)


def nested_text(**plans: Plan) -> list[str]:
    return [line for name, plan in plans.items() for line in (f"    {name}:", plan_text(plan, indent="        "))]


def star(numbers: tuple[Int, ...]) -> str:
    """Further arguments of a Python call."""
    return "".join([f", {number}" for number in numbers])
