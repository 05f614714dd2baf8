"""The part of a plan that works on CPU memory runs in front of the part that is recorded.

    plan(%0: f32[768 @cuda:0] "p", %1: f64[] "rate")        host(%0, %1):
        %2 = allocate i64[2]                                    %2 = allocate i64[2]
        launch k_copy(%1, %2)                                   launch k_copy(%1, %2)
        %3 = aten._to_copy(%2, cuda:0)                 =>       %3 = aten._to_copy(%2, cuda:0)
        launch k_update(%3, %0)                                 return %3
        return                                              recorded(%0, %1 = %3): launch k_update(%1, %0)

So the step counts of an optimizer, a learning rate that changes and the checks of such numbers do not stand in the way
of a graph: what the GPU needs of them is sent to it (`loops/fusion/staged_scalars.py`) and is an argument of the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import final

from kiln.plan.overloads import written_arguments
from kiln.plan.plan import Kernel, Plan, PlanInput, PlanOutput, Slot, Step
from kiln.plan.steps import AllocateStep, AtenStep, ConstantStep, FreeStep, HostReadStep, LaunchStep, ViewStep
from kiln.plan.verify import slot_specs
from kiln.runtime.cuda_graphs.recording import Function
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class PartOrder:
    """How the parts are put together. `given`: arguments of the recorded part, before those that the host part passes
    on; `results`: for each result whether it is the recorded part's, and its number there; `kept`: results of the host
    part that it does not pass on."""

    given: tuple[int, ...]
    results: tuple[tuple[bool, int], ...]
    kept: int


@final
@dataclass(frozen=True, slots=True)
class HostPart:
    """A plan in two parts."""

    host: Plan
    recorded: Plan
    order: PartOrder


@final
class HostFirst:
    """Runs both parts."""

    def __init__(self, host: Function, recorded: Function, order: PartOrder) -> None:
        self.host, self.recorded, self.order = host, recorded, order

    def __call__(self, *args: object) -> tuple[object, ...]:
        order = self.order
        done = self.host(*args)
        made = self.recorded(*[args[number] for number in order.given], *done[order.kept :])
        return tuple([(made if is_recorded else done)[number] for is_recorded, number in order.results])


def split_host_part(plan: Plan) -> HostPart | None:
    """The parts of a plan that works on CPU and GPU memory; None where it does not, or they depend on one another."""
    specs = slot_specs(plan)
    on_host = frozenset(slot for slot, spec in specs.items() if spec.device.type == "cpu")
    constants = {step.out for step in plan.steps if isinstance(step, ConstantStep)}
    if not on_host or len(on_host) == len(specs):
        return None
    parts = _Parts(on_host, frozenset(constants))
    if not all([parts.add(step) for step in plan.steps]):
        return None
    return _Splitter(plan, specs, parts).run()


@final
class _Parts:
    """The steps of both parts, and the slots that one passes to the other."""

    def __init__(self, on_host: frozenset[Slot], constants: frozenset[Slot]) -> None:
        self.on_host, self.constants = on_host, constants
        self.host: list[Step] = []
        self.recorded: list[Step] = []
        self.passed: list[Slot] = []

    def add(self, step: Step) -> bool:
        """Whether it belongs to one of the parts."""
        if isinstance(step, FreeStep):
            self._add_free(step)
            return True
        if isinstance(step, ConstantStep):
            self.host.append(step)
            self.recorded.append(step)
            return True
        reads, writes = (
            {slot for slot in slots if slot not in self.constants} for slots in (step.reads(), step.writes())
        )
        if not reads | writes or not (reads | writes) & self.on_host:
            self.recorded.append(step)
            return True
        if isinstance(step, HostReadStep) or not reads <= self.on_host:
            return False
        if not writes <= self.on_host:
            if not isinstance(step, AtenStep) or writes & self.on_host:
                return False
            self.passed += sorted(writes)
        self.host.append(step)
        return True

    def _add_free(self, step: FreeStep) -> None:
        ended = [slot for slot in step.slots if slot not in self.constants and slot not in self.passed]
        for steps, here in ((self.host, True), (self.recorded, False)):
            if slots := tuple([slot for slot in ended if (slot in self.on_host) is here]):
                steps.append(FreeStep(slots))


@final
class _Splitter:
    def __init__(self, plan: Plan, specs: Mapping[Slot, TensorSpec], parts: _Parts) -> None:
        self.plan, self.specs, self.parts = plan, specs, parts
        self.given = tuple([slot for slot in range(len(plan.inputs)) if slot not in parts.on_host])
        self.slots: dict[Slot, Slot] = {slot: place for place, slot in enumerate((*self.given, *parts.passed))}

    def run(self) -> HostPart | None:
        plan, parts = self.plan, self.parts
        for binding in plan.symbols:
            if binding.kind == "unbacked" or (binding.kind != "scalar" and binding.slot in parts.on_host):
                return None  # a size would be known only when the other part has run, or come from CPU memory
        if self._keeps_sent():
            return None  # a graph copies its arguments into memory of its own, which the next call fills again
        results, host_outputs, outputs = self._outputs()
        kept = len(host_outputs)
        host_outputs += [PlanOutput(slot=slot) for slot in parts.passed]
        writes = [
            tuple(self._inputs_of(slots, here))
            for here in (True, False)
            for slots in (plan.mutated, plan.version_bumps)
        ]
        host = replace(
            plan, name=f"{plan.name}_host", steps=tuple(parts.host), outputs=tuple(host_outputs),
            kernels=_launched(plan, parts.host), mutated=writes[0], bumped=writes[1], donated=(),
        )  # fmt: skip
        steps = tuple([step.renamed(self._renamed) for step in parts.recorded])
        inputs = [plan.inputs[slot] for slot in self.given]
        inputs += [PlanInput(f"sent_{place}", self.specs[slot]) for place, slot in enumerate(parts.passed)]
        recorded = replace(
            plan, inputs=tuple(inputs), steps=steps, outputs=tuple(outputs),
            symbols=tuple([replace(binding, slot=self._renamed(binding.slot)) for binding in plan.symbols]),
            kernels=_launched(plan, steps), mutated=writes[2], bumped=writes[3], num_slots=len(self.slots),
            donated=tuple([self.slots[slot] for slot in plan.donated if slot in self.slots]),
        )  # fmt: skip
        return HostPart(host, recorded, PartOrder(self.given, tuple(results), kept))

    def _renamed(self, slot: Slot) -> Slot:
        return slot if slot < 0 else self.slots.setdefault(slot, len(self.slots))

    def _keeps_sent(self) -> bool:
        """Whether the recorded part returns memory that the host part passes on, or works in it."""
        sent, kernels = {*self.parts.passed}, {kernel.symbol: kernel for kernel in self.plan.kernels}
        for step in self.parts.recorded:
            changed: Sequence[Slot | None] = ()
            if isinstance(step, ViewStep) and step.base in sent:
                sent.add(step.out)
            elif isinstance(step, AllocateStep):
                changed = [step.reuse]
            elif isinstance(step, LaunchStep):
                changed = kernels[step.kernel].written(step.tensors)
            elif isinstance(step, AtenStep) and written_arguments(step.target):
                changed = step.reads()
            if not sent.isdisjoint(changed):
                return True
        return any([output.slot in sent for output in self.plan.outputs])

    def _inputs_of(self, slots: Sequence[Slot], here: bool) -> Iterator[Slot]:
        for slot in slots:
            if (slot in self.parts.on_host) is here:
                yield slot if here else self.slots[slot]

    def _outputs(self) -> tuple[list[tuple[bool, int]], list[PlanOutput], list[PlanOutput]]:
        """Where each result comes from, and the results of both parts."""
        results: list[tuple[bool, int]] = []
        host: list[PlanOutput] = []
        recorded: list[PlanOutput] = []
        for output in self.plan.outputs:
            if output.alias_output is not None:
                is_recorded, number = results[output.alias_output]
                output = replace(output, alias_output=number)
            else:
                slot = output.slot if output.alias_input is None else output.alias_input
                is_recorded = slot not in self.parts.on_host
            if is_recorded and output.slot is not None:
                output = replace(output, slot=self._renamed(output.slot))
            if is_recorded and output.alias_input is not None:
                output = replace(output, alias_input=self.slots[output.alias_input])
            part = recorded if is_recorded else host
            results.append((is_recorded, len(part)))
            part.append(output)
        return results, host, recorded


def _launched(plan: Plan, steps: Sequence[Step]) -> tuple[Kernel, ...]:
    used = {step.kernel for step in steps if isinstance(step, LaunchStep)}
    return tuple([kernel for kernel in plan.kernels if kernel.symbol in used])
