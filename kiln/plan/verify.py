"""The plan verifier; runs whenever an executor is made.

verify_plan(plan)      raises InvalidPlan("P1: %7 is used before it is defined, in: launch k0(%7)")
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

from kiln.plan.plan import Plan, Slot, Step
from kiln.plan.steps import (
    AllocateStep,
    AtenStep,
    BranchStep,
    CopyStep,
    FreeStep,
    HandOverStep,
    HostReadStep,
    LaunchStep,
    LoopStep,
    ViewStep,
)
from kiln.plan.text import step_text
from kiln.support.errors import KilnError
from kiln.symbolic import Expr, Relation
from kiln.tensor.spec import TensorSpec


class InvalidPlan(KilnError):
    code = "KILN9401"
    what = "the compiler made an invalid plan `{plan}`"
    why = "{problem}"
    try_ = ("report this with KILN_DUMP: a compiler fault",)


def verify_plan(plan: Plan) -> None:
    """Raise InvalidPlan unless

    P1  a slot is used only after its definition and before its `FreeStep`; it is defined once;
    P2  every symbol is bound by an input, or by a HostReadStep above its use;
    P3  a launched kernel is in the plan and gets as many tensors and numbers as it declares, for each row;
    P4  a step writes an input only if the plan says `mutated` (or `donated`, by reuse);
    P5  memory is reused only when no other slot that is a view of it is live;
    P6  outputs are live slots, earlier outputs, inputs or numbers; nested plans take and return what their step names;
    P7  a C++ kernel works on CPU memory;
    P8  the memory of a result is not used once it is handed over.
    """
    _Verifier(plan).run()


def slot_specs(plan: Plan) -> dict[Slot, TensorSpec]:
    """The planned layout of each tensor slot that has one."""
    found = {slot: declared.spec for slot, declared in enumerate(plan.inputs) if declared.spec is not None}
    for step in plan.steps:
        if isinstance(step, AllocateStep | ViewStep):
            found[step.out] = step.spec
        elif isinstance(step, AtenStep | BranchStep | LoopStep):
            found.update(
                (out, spec)
                for out, spec in zip(step.outs, step.specs, strict=False)
                if out is not None and spec is not None
            )
    return found


def expressions_in(step: Step, seen: set[int]) -> list[Expr | Relation]:
    """All expressions in a step, except in nested plans. Skips layouts whose id is in `seen`."""
    found: list[Expr | Relation] = []
    stack = [getattr(step, name) for name in step.__slots__]
    while stack:
        value = stack.pop()
        kind = type(value)
        if kind is tuple or kind is list:
            stack.extend(value)
        elif kind is TensorSpec:
            if id(value) not in seen:
                seen.add(id(value))
                stack += (value.sizes, value.strides, value.offset)
        elif kind is not int and kind is not str and isinstance(value, Expr | Relation):
            found.append(value)
    return found


@final
class _Verifier:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernels = {kernel.symbol: kernel for kernel in plan.kernels}
        self.specs = slot_specs(plan)
        self.live = set(range(len(plan.inputs)))
        self.defined = set(self.live)
        self.owner: dict[Slot, Slot] = {}
        self.handed_over: set[Slot] = set()
        self.seen: set[int] = set()
        self.symbols = {binding.name for binding in plan.symbols if binding.kind != "unbacked"}
        self.landing = {binding.name: binding.slot for binding in plan.symbols if binding.kind == "unbacked"}

    def fail(self, problem: str, step: Step | None = None) -> None:
        where = f", in: {step_text(step)}" if step is not None else ""
        raise InvalidPlan(plan=self.plan.name, problem=problem + where)

    def run(self) -> None:
        for step in self.plan.steps:
            self.check_reads(step)
            self.check_symbols(step)
            if isinstance(step, LaunchStep):
                self.check_launch(step)
            self.check_writes(step)
            self.define(step)
        self.check_outputs()

    def check_reads(self, step: Step) -> None:
        for slot in step.reads():
            if slot not in self.live:
                state = "after it is freed" if slot in self.defined else "before it is defined"
                self.fail(f"P1: %{slot} is used {state}", step)
            if self.handed_over and self.owner.get(slot, slot) in self.handed_over:
                self.fail(f"P8: %{slot} is used after it is handed over", step)

    def check_symbols(self, step: Step) -> None:
        for expression in expressions_in(step, self.seen):
            for symbol in expression.free_symbols():
                if symbol.name not in self.symbols:
                    self.fail(f"P2: symbol {symbol} is not bound", step)

    def check_launch(self, step: LaunchStep) -> None:
        kernel = self.kernels.get(step.kernel)
        if kernel is None:
            self.fail(f"P3: there is no kernel {step.kernel}", step)
            return
        rows = len(step.rows) or 1
        given = (len(step.tensors), len(step.ints), len(step.floats))
        wanted = (rows * len(kernel.params), rows * kernel.num_ints, kernel.num_floats)
        if given != wanted:
            self.fail(f"P3: the kernel takes {wanted} tensors, ints and floats, not {given}", step)
        self.check_input_writes(kernel.written(step.tensors), step)
        for slot in step.tensors if kernel.language == "cpp" else ():
            if slot in self.specs and self.specs[slot].device.type != "cpu":
                self.fail(f"P7: %{slot} is not in CPU memory", step)

    def check_writes(self, step: Step) -> None:
        if isinstance(step, CopyStep):
            self.check_input_writes([step.target], step)
        reused = step.reuse if isinstance(step, AllocateStep) else None
        if reused is not None and reused < len(self.plan.inputs) and reused not in self.plan.donated:
            self.fail(f"P4: input %{reused} is not donated", step)
        if reused is not None:
            memory = self.owner.get(reused, reused)
            others = [slot for slot in self.live - {reused} if self.owner.get(slot, slot) == memory]
            if others:
                self.fail(f"P5: %{others[0]} is a live view of the memory of %{reused}", step)

    def check_input_writes(self, written: Iterable[Slot], step: Step) -> None:
        for slot in written:
            if slot < len(self.plan.inputs) and slot not in self.plan.mutated:
                self.fail(f"P4: input %{slot} is not among the mutated ones", step)

    def define(self, step: Step) -> None:
        if isinstance(step, HostReadStep):
            if step.kind != "float":
                self.symbols.add(step.symbol)
            if self.landing.get(step.symbol, -1) >= 0:
                self.define_slot(self.landing[step.symbol], step)
        for slot in step.writes():
            self.define_slot(slot, step)
        if isinstance(step, FreeStep):
            self.live.difference_update(step.slots)
        if isinstance(step, HandOverStep):
            slots = [self.plan.outputs[number].slot for number in step.outputs]
            self.handed_over.update(self.owner.get(slot, slot) for slot in slots if slot is not None)
        if isinstance(step, AllocateStep) and step.reuse is not None:
            self.live.discard(step.reuse)
        if isinstance(step, ViewStep):
            self.owner[step.out] = self.owner.get(step.base, step.base)
        if isinstance(step, BranchStep):
            given = len(step.args) + len(step.sizes)
            self.check_nested(step, step.if_true, given, len(step.outs))
            self.check_nested(step, step.if_false, given, len(step.outs))
        if isinstance(step, LoopStep):
            given = len(step.carried) + len(step.args) + len(step.sizes)
            self.check_nested(step, step.body, given + len(step.rows), len(step.outs))
            if step.test is not None:
                self.check_nested(step, step.test, given, 1)

    def check_nested(self, step: Step, plan: Plan, inputs: int, outputs: int) -> None:
        verify_plan(plan)
        if (len(plan.inputs), len(plan.outputs)) != (inputs, outputs):
            self.fail(f"P6: nested plan {plan.name} has another number of inputs or outputs", step)
        if missing := {kernel.symbol for kernel in plan.kernels} - self.kernels.keys():
            self.fail(f"P3: kernels of nested plan {plan.name} are not in the plan: {', '.join(sorted(missing))}", step)

    def define_slot(self, slot: Slot, step: Step) -> None:
        if slot in self.defined:
            self.fail(f"P1: %{slot} is defined twice", step)
        if not 0 <= slot < self.plan.num_slots:
            self.fail(f"P1: there is no slot %{slot}", step)
        self.defined.add(slot)
        self.live.add(slot)

    def check_outputs(self) -> None:
        for position, output in enumerate(self.plan.outputs):
            if output.slot is not None and output.alias_input is None and output.slot not in self.live:
                self.fail(f"P6: output {position} is %{output.slot}, which is not live")
            if output.alias_input is not None and not 0 <= output.alias_input < len(self.plan.inputs):
                self.fail(f"P6: output {position} aliases input {output.alias_input}, which does not exist")
            if output.alias_output is not None and not 0 <= output.alias_output < position:
                self.fail(f"P6: output {position} aliases output {output.alias_output}, which does not come before it")
