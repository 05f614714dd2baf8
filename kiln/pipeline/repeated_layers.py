"""Equal layers are compiled once: the plan of a graph with four of them becomes the plan of the full graph.

    graph of 48 layers --short_graph--> graph of 4 layers --stages--> plan --full_plan--> plan of 48 layers

The steps of the short plan repeat too (`support/repetition.py`): after one period come the same steps on the inputs of
the next layer and on slots that were defined one period before.

    %9 = aten.mm(%8, %3)       (layer 1)        %9 = aten.mm(%8, %3)
    launch k0(%9, %4)                           launch k0(%9, %4)
    %10 = aten.mm(%9, %5)      (layer 2)   =>   %10 = aten.mm(%9, %5)        (layer 2)
    launch k0(%10, %6)                          launch k0(%10, %6)
                                                %11 = aten.mm(%10, %7)       (layer 3: the same period again)
                                                ...

Two equal neighbouring periods prove what comes between: what goes from one to the next has the same form at both ends.
If the steps do not repeat, the full graph goes through the stages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import final

from kiln.graph.passes.repeated_layers import HEAD, Layers, ShortGraph
from kiln.plan.plan import Plan, PlanInput, PlanOutput, Slot, Step, SymbolBinding
from kiln.plan.steps import BranchStep, HostReadStep
from kiln.support.records import dataclass
from kiln.support.repetition import longest_run, usual_distance

OwnInput = tuple[int, int]
"""A layer of the short graph, and the number of one of its own inputs."""


@final
@dataclass(frozen=True, slots=True)
class FullPlan:
    """The plan of the full graph. Steps [`first`, `end`) of the short plan occur in it `times` more often."""

    plan: Plan
    first: int
    end: int
    times: int


def full_plan(plan: Plan, short: ShortGraph) -> FullPlan | None:
    """The plan of the graph that `short` was made from; None if the steps of its plan do not repeat."""
    pattern = _StepPattern(plan, short)
    template = pattern.template()
    return None if template is None else _FullPlanWriter(pattern, template).run()


@final
@dataclass(frozen=True, slots=True)
class _Template:
    """Steps [start, middle) and the next `period` ones, up to `end`, are equal."""

    start: int
    period: int

    @property
    def middle(self) -> int:
        return self.start + self.period

    @property
    def end(self) -> int:
        return self.middle + self.period


@final
class _StepPattern:
    """The steps of a plan with their slots taken out, and the slots, so that both can be compared."""

    def __init__(self, plan: Plan, short: ShortGraph) -> None:
        self.plan, self.short = plan, short
        self.own: dict[Slot, OwnInput] = {}
        self.slot_of: dict[OwnInput, Slot] = {}
        slots_of_inputs = {number: slot for slot, number in enumerate(short.inputs)}
        for layer, kept in enumerate(short.layers.kept()):
            for which, number in enumerate(short.layers.own[kept]):
                self.own[slots_of_inputs[number]] = layer, which
                self.slot_of[layer, which] = slots_of_inputs[number]
        self.slots: list[list[Slot]] = []
        self.bare: list[Step] = []
        self.defined: dict[Slot, int] = dict.fromkeys(range(len(plan.inputs)), -1)
        for number, step in enumerate(plan.steps):
            slots: list[Slot] = []
            self.bare.append(step.renamed(partial(_take, slots)))
            self.slots.append(slots)
            for slot in slots:
                self.defined.setdefault(slot, number)

    def template(self) -> _Template | None:
        """Two equal neighbouring periods, near the middle of all that are equal, that can be repeated."""
        period = self._period()
        if period <= 0:
            return None
        run = longest_run(0, len(self.bare), period, lambda _, step: self._equal(step - period, step))
        starts = range(run.start, run.stop - 2 * period + 1)
        if not starts:
            return None
        middle = starts[len(starts) // 2]
        nearest = sorted(starts, key=lambda start: abs(start - middle))
        templates = (_Template(start, period) for start in nearest)
        return next((template for template in templates if self._can_repeat(template)), None)

    def _period(self) -> int:
        """How many steps apart layers 1 and 2 first use their own inputs."""
        first: dict[Slot, int] = {}
        for number, slots in enumerate(self.slots):
            for slot in slots:
                first.setdefault(slot, number)
        pairs = [
            (slot, self.slot_of.get((layer + 1, which)))
            for (layer, which), slot in self.slot_of.items()
            if layer == HEAD - 1
        ]
        return usual_distance(first[after] - first[slot] for slot, after in pairs if slot in first and after in first)

    def _equal(self, before: int, after: int) -> bool:
        """Is step `after` step `before`, one period later?"""
        bare = self.bare[before]
        if bare != self.bare[after] or isinstance(bare, BranchStep | HostReadStep):
            return False
        return all(map(partial(self._corresponds, after - before), self.slots[before], self.slots[after]))

    def _corresponds(self, period: int, before: Slot, after: Slot) -> bool:
        """Is slot `after` slot `before`, one period later: shared, the next layer's own, or moved?"""
        if before == after:
            return before not in self.own
        if before in self.own:
            layer, which = self.own[before]
            return self.own.get(after) == (layer + 1, which)
        made, later = self.defined[before], self.defined[after]
        if made < 0 or later - made != period:
            return False
        return self.slots[made].index(before) == self.slots[later].index(after)

    def _can_repeat(self, template: _Template) -> bool:
        """Can other periods stand between the two of `template`?

        Steps of the second one use its own slots, those of the first as the first uses those before it, and shared
        ones; steps behind use nothing of the first.
        """
        for number in range(template.middle, len(self.bare)):
            behind = number >= template.end
            partner = [] if behind else self.slots[number - template.period]
            for position, slot in enumerate(self.slots[number]):
                made = self.defined[slot]
                of_first = template.start <= made < template.middle
                if of_first and (behind or partner[position] == slot):
                    return False
                if not behind and 0 <= made < template.start and partner[position] != slot:
                    return False
        return self._in_order(template)

    def _in_order(self, template: _Template) -> bool:
        """Steps before the template use no later layer's inputs than it does, those behind no earlier layer's."""
        start, middle, end = template.start, template.middle, template.end
        before, first = self._layers_used(0, start), self._layers_used(start, middle)
        second, behind = self._layers_used(middle, end), self._layers_used(end, len(self.bare))
        return max(before, default=0) <= max(first) and min(behind, default=len(self.bare)) >= min(second)

    def _layers_used(self, start: int, end: int) -> set[int]:
        """The layers whose own inputs steps [start, end) use."""
        return {self.own[slot][0] for slots in self.slots[start:end] for slot in slots if slot in self.own}


def _take(slots: list[Slot], slot: Slot) -> Slot:
    slots.append(slot)
    return 0


@final
class _FullPlanWriter:
    """Writes the steps up to the middle of the template, its second period once per layer left out, and the rest."""

    def __init__(self, pattern: _StepPattern, template: _Template) -> None:
        self.pattern, self.template = pattern, template
        self.plan, self.short = pattern.plan, pattern.short
        self.layers: Layers = pattern.short.layers
        self.num_slots = len(self.short.inputs) + self.layers.left_out * len(self.layers.own[0])
        self.steps: list[Step] = []
        self.renamings: list[dict[Slot, Slot]] = []
        """New slots by old: of the steps up to the middle, of each copy of the second period, and of the rest."""
        self.partner = {
            before: after
            for number in range(template.start, template.middle)
            for before, after in zip(pattern.slots[number], pattern.slots[number + template.period], strict=True)
            if pattern.defined[before] == number
        }

    def run(self) -> FullPlan | None:
        template, times = self.template, self.layers.left_out
        self._write(0, template.middle, 0)
        for shift in range(times):
            self._write(template.middle, template.end, shift)
        self._write(template.middle, len(self.plan.steps), times)
        outputs = self._outputs()
        if outputs is None:
            return None
        inputs = self._inputs()
        symbols = tuple(map(self._binding, self.plan.symbols))
        mutated = tuple([self.short.inputs[slot] for slot in self.plan.mutated])
        steps = tuple(self.steps)
        plan = replace(
            self.plan, inputs=inputs, symbols=symbols, steps=steps, outputs=outputs, num_slots=self.num_slots,
            mutated=mutated,
        )  # fmt: skip
        return FullPlan(plan, template.middle, template.end, times)

    # Steps.

    def _write(self, start: int, end: int, shift: int) -> None:
        """Steps [start, end) for the layers `shift` further on."""
        rename = self._renamer(shift)
        for step in self.plan.steps[start:end]:
            self.steps.append(step.renamed(rename))

    def _renamer(self, shift: int) -> Callable[[Slot], Slot]:
        made: dict[Slot, Slot] = {}
        before = self.renamings[-1] if self.renamings else made
        beginning = self.renamings[0] if self.renamings else made
        after_copy = len(self.renamings) > 1
        self.renamings.append(made)

        def rename(slot: Slot) -> Slot:
            if slot < len(self.plan.inputs):
                return self._input(slot, shift)
            defined = self.pattern.defined[slot]
            if beginning is not made and defined < self.template.middle:
                if defined < self.template.start:
                    return beginning[slot]
                return before[self.partner[slot] if after_copy else slot]
            found = made.get(slot)
            if found is None:
                found = made[slot] = self.num_slots
                self.num_slots += 1
            return found

        return rename

    def _input(self, slot: Slot, shift: int) -> Slot:
        own = self.pattern.own.get(slot)
        if own is None:
            return self.short.inputs[slot]
        return self.layers.own[own[0] + shift][own[1]]

    # Ends.

    def _inputs(self) -> tuple[PlanInput, ...]:
        """Those of the short plan at their numbers in the full one; an input left out is like that of layer 1."""
        found = dict(zip(self.short.inputs, self.plan.inputs, strict=True))
        for layer in range(HEAD, HEAD + self.layers.left_out):
            for which, number in enumerate(self.layers.own[layer]):
                found[number] = found[self.layers.own[HEAD - 1][which]]
        inputs = [(number, found[number]) for number in range(len(found))]
        return tuple([input if input.spec is None else replace(input, name=f"a{n}") for n, input in inputs])

    def _binding(self, binding: SymbolBinding) -> SymbolBinding:
        return binding if binding.slot < 0 else replace(binding, slot=self.short.inputs[binding.slot])

    def _outputs(self) -> tuple[PlanOutput, ...] | None:
        """None if the value of an output is unknown."""
        found: dict[int, PlanOutput | None] = {}
        of_layers = {number for outputs in self.layers.outputs for _, number in outputs}
        for number, output in zip(self.short.outputs, self.plan.outputs, strict=False):
            if number not in of_layers:
                found[number] = self._outer_output(output)
        for layer, outputs in enumerate(self.layers.outputs):
            for node, number in outputs:
                found[number] = self._layer_output(layer, node)
        in_order = [found[number] for number in range(len(found))]
        known = tuple([output for output in in_order if output is not None])
        return known if len(known) == len(in_order) else None

    def _outer_output(self, output: PlanOutput) -> PlanOutput | None:
        """An output that no layer computes."""
        if output.alias_input is not None:
            return replace(output, alias_input=self.short.inputs[output.alias_input])
        if output.alias_output is not None:
            return replace(output, alias_output=self.short.outputs[output.alias_output])
        slot = output.slot
        if slot is None:
            return output
        if slot < len(self.plan.inputs):
            return replace(output, slot=self.short.inputs[slot])
        made = self.pattern.defined[slot]
        if self.template.start <= made < self.template.middle:
            return None
        return replace(output, slot=self.renamings[0 if made < self.template.start else -1][slot])

    def _layer_output(self, layer: int, node: int) -> PlanOutput | None:
        """The value of a node of a layer: that of a layer of the short plan, renamed."""
        for number, kept in enumerate(self.layers.kept()):
            full_number = dict(self.layers.outputs[kept]).get(node)
            if full_number is None:
                continue
            output = self.plan.outputs[self.short.outputs.index(full_number)]
            if output.slot is None or output.slot < len(self.plan.inputs) or output.view is not None:
                return None
            found = self._slot_in_layer(output.slot, layer - number)
            if found is not None:
                return replace(output, slot=found)
        return None

    def _slot_in_layer(self, slot: Slot, shift: int) -> Slot | None:
        """The slot of a value `shift` layers further on; None where no copy of the period defines it."""
        made, template = self.pattern.defined[slot], self.template
        if made < template.middle:
            return self.renamings[0][slot] if shift == 0 else None
        if shift == self.layers.left_out:
            return self.renamings[-1][slot]
        return self.renamings[1 + shift][slot] if made < template.end and 0 <= shift < self.layers.left_out else None
