"""Equal blocks are compiled once: the plan of a graph with four of them becomes the plan of the whole graph.

    graph of 48 blocks --short_graph--> graph of 4 blocks --stages--> plan --with_all_blocks--> plan of 48 blocks

The steps of the short plan repeat too: after one period come the same steps on the inputs of the next block and on
slots that were defined one period before.

    %9 = aten.mm(%8, %3)       (block 1)        %9 = aten.mm(%8, %3)
    launch k0(%9, %4)                           launch k0(%9, %4)
    %10 = aten.mm(%9, %5)      (block 2)   =>   %10 = aten.mm(%9, %5)        (block 2)
    launch k0(%10, %6)                          launch k0(%10, %6)
                                                %11 = aten.mm(%10, %7)       (block 3: the same period again)
                                                ...

Two periods that are alike prove what comes between: what goes from one to the next has the same form at both ends. A
plan whose steps do not repeat so is given up, and the whole graph goes through the stages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import final

from kiln.graph.passes.blocks import HEAD, Blocks, ShortGraph
from kiln.plan.plan import Branch, HostRead, Plan, PlanInput, PlanOutput, Slot, Step, SymbolBinding
from kiln.plan.rename import with_slots

Own = tuple[int, int]
"""A block of the short graph, and which of its own inputs."""


@final
@dataclass(frozen=True, slots=True)
class Repeated:
    """The plan of the whole graph. Steps [`first`, `end`) of the short plan stand in it `times` times more."""

    plan: Plan
    first: int
    end: int
    times: int


def with_all_blocks(plan: Plan, short: ShortGraph) -> Repeated | None:
    """The plan of the graph that `short` is taken from; None where the steps of its plan do not repeat."""
    form = _PlanForm(plan, short)
    period = form.period()
    return None if period is None else _Repetition(form, period).run()


@final
@dataclass(frozen=True, slots=True)
class _Period:
    """Steps [start, start + length) and the next `length` ones are alike."""

    start: int
    length: int

    @property
    def middle(self) -> int:
        return self.start + self.length

    @property
    def end(self) -> int:
        return self.middle + self.length


@final
class _PlanForm:
    """What can be compared of the steps of a plan: each with its slots taken out, and the slots."""

    def __init__(self, plan: Plan, short: ShortGraph) -> None:
        self.plan, self.short = plan, short
        self.own: dict[Slot, Own] = {}
        self.slot_of: dict[Own, Slot] = {}
        places = {whole: slot for slot, whole in enumerate(short.inputs)}
        for number, block in enumerate(short.blocks.kept()):
            for which, whole in enumerate(short.blocks.own[block]):
                self.own[places[whole]] = number, which
                self.slot_of[number, which] = places[whole]
        self.slots: list[list[Slot]] = []
        self.bare: list[Step] = []
        self.defined: dict[Slot, int] = dict.fromkeys(range(len(plan.inputs)), -1)
        for place, step in enumerate(plan.steps):
            slots: list[Slot] = []
            self.bare.append(with_slots(step, partial(_take, slots)))
            self.slots.append(slots)
            for slot in slots:
                self.defined.setdefault(slot, place)

    def period(self) -> _Period | None:
        """Two neighbouring periods that are alike, in the middle of all that are, where the plan may be opened."""
        length = self._length()
        if length is None:
            return None
        start, best = 0, range(0)
        for place in range(len(self.bare) - length + 1):
            if place + length == len(self.bare) or not self._alike(place, place + length):
                best = max(best, range(start, place), key=len)
                start = place + 1
        if len(best) < length:
            return None
        starts = range(best.start, best.stop - length + 1)
        middle = starts[len(starts) // 2]
        nearest = sorted(starts, key=lambda start: abs(start - middle))
        return next((one for start in nearest if self._closed(one := _Period(start, length))), None)

    def _length(self) -> int | None:
        """How many steps apart block 1 and block 2 first use the inputs of their own."""
        first: dict[Slot, int] = {}
        for place, slots in enumerate(self.slots):
            for slot in slots:
                first.setdefault(slot, place)
        gaps: Counter[int] = Counter()
        for (block, which), slot in self.slot_of.items():
            after = self.slot_of.get((block + 1, which))
            if block == HEAD - 1 and slot in first and after in first:
                gaps[first[after] - first[slot]] += 1
        ((length, _),) = gaps.most_common(1) or ((0, 0),)
        return length if length > 0 else None

    def _alike(self, before: int, after: int) -> bool:
        """Is step `after` what step `before` is, one period later?"""
        one, other = self.bare[before], self.bare[after]
        if one != other or isinstance(one, Branch | HostRead):
            return False
        return all(map(partial(self._moved, after - before), self.slots[before], self.slots[after]))

    def _moved(self, length: int, before: Slot, after: Slot) -> bool:
        """Is slot `after` slot `before` one period later: the same value for all, the next block's, or made then?"""
        if before == after:
            return before not in self.own
        if before in self.own:
            block, which = self.own[before]
            return self.own.get(after) == (block + 1, which)
        made, later = self.defined[before], self.defined[after]
        if made < 0 or later - made != length:
            return False
        return self.slots[made].index(before) == self.slots[later].index(after)

    def _closed(self, period: _Period) -> bool:
        """Can the periods stand apart?

        Steps of the second one use its own slots, those of the first as the first uses those before it, and what is
        the same for all blocks; steps behind use nothing of the first.
        """
        for place in range(period.middle, len(self.bare)):
            behind = place >= period.end
            partner = [] if behind else self.slots[place - period.length]
            for number, slot in enumerate(self.slots[place]):
                made = self.defined[slot]
                of_first = period.start <= made < period.middle
                if of_first and (behind or partner[number] == slot):
                    return False
                if not behind and 0 <= made < period.start and partner[number] != slot:
                    return False
        return self._in_order(period)

    def _in_order(self, period: _Period) -> bool:
        """Nothing before the periods uses inputs of a later block than they do, nothing behind of an earlier one."""
        before, first = self._blocks_used(0, period.start), self._blocks_used(period.start, period.middle)
        second, behind = self._blocks_used(period.middle, period.end), self._blocks_used(period.end, len(self.bare))
        return max(before, default=0) <= max(first) and min(behind, default=len(self.bare)) >= min(second)

    def _blocks_used(self, start: int, end: int) -> set[int]:
        """The blocks whose own inputs steps [start, end) use."""
        return {self.own[slot][0] for slots in self.slots[start:end] for slot in slots if slot in self.own}


def _take(slots: list[Slot], slot: Slot) -> Slot:
    slots.append(slot)
    return 0


@final
class _Repetition:
    """The whole plan while it is written: the first period, the second one again and again, the rest."""

    def __init__(self, form: _PlanForm, period: _Period) -> None:
        self.form, self.period = form, period
        self.plan, self.short = form.plan, form.short
        self.blocks: Blocks = form.short.blocks
        self.num_slots = len(self.short.inputs) + self.blocks.left_out * len(self.blocks.own[0])
        self.steps: list[Step] = []
        self.passes: list[dict[Slot, Slot]] = []
        """New slots by old: of the beginning up to the second period, of each copy of it, and of the rest."""
        self.partner = {
            before: after
            for place in range(period.start, period.middle)
            for before, after in zip(form.slots[place], form.slots[place + period.length], strict=True)
            if form.defined[before] == place
        }

    def run(self) -> Repeated | None:
        period, times = self.period, self.blocks.left_out
        self._write(0, period.middle, 0)
        for shift in range(times):
            self._write(period.middle, period.end, shift)
        self._write(period.middle, len(self.plan.steps), times)
        outputs = self._outputs()
        if outputs is None:
            return None
        inputs = self._inputs()
        symbols = tuple([self._binding(one) for one in self.plan.symbols])
        mutated = tuple([self.short.inputs[slot] for slot in self.plan.mutated])
        steps = tuple(self.steps)
        plan = replace(
            self.plan, inputs=inputs, symbols=symbols, steps=steps, outputs=outputs, num_slots=self.num_slots,
            mutated=mutated,
        )  # fmt: skip
        return Repeated(plan, period.middle, period.end, times)

    # Steps.

    def _write(self, start: int, end: int, shift: int) -> None:
        """Steps [start, end) on the inputs of the blocks `shift` further."""
        rename = self._rename(shift)
        for step in self.plan.steps[start:end]:
            self.steps.append(with_slots(step, rename))

    def _rename(self, shift: int) -> Callable[[Slot], Slot]:
        made: dict[Slot, Slot] = {}
        before = self.passes[-1] if self.passes else made
        begin = self.passes[0] if self.passes else made
        again = len(self.passes) > 1
        self.passes.append(made)

        def rename(slot: Slot) -> Slot:
            if slot < len(self.plan.inputs):
                return self._input(slot, shift)
            defined = self.form.defined[slot]
            if begin is not made and defined < self.period.middle:
                if defined < self.period.start:
                    return begin[slot]
                return before[self.partner[slot] if again else slot]
            found = made.get(slot)
            if found is None:
                found = made[slot] = self.num_slots
                self.num_slots += 1
            return found

        return rename

    def _input(self, slot: Slot, shift: int) -> Slot:
        own = self.form.own.get(slot)
        if own is None:
            return self.short.inputs[slot]
        return self.blocks.own[own[0] + shift][own[1]]

    # Ends.

    def _inputs(self) -> tuple[PlanInput, ...]:
        """Those of the short plan at their places; an input that was left out is like that of block 1."""
        places = {whole: one for whole, one in zip(self.short.inputs, self.plan.inputs, strict=True)}
        for block in range(HEAD, HEAD + self.blocks.left_out):
            for which, whole in enumerate(self.blocks.own[block]):
                places[whole] = places[self.blocks.own[HEAD - 1][which]]
        named = [places[number] for number in range(len(places))]
        return tuple([one if one.spec is None else replace(one, name=f"a{n}") for n, one in enumerate(named)])

    def _binding(self, one: SymbolBinding) -> SymbolBinding:
        return one if one.slot < 0 else replace(one, slot=self.short.inputs[one.slot])

    def _outputs(self) -> tuple[PlanOutput, ...] | None:
        """None where it cannot be told which value an output is."""
        found: dict[int, PlanOutput | None] = {}
        inside = {number for one in self.blocks.outputs for _, number in one}
        wholes = dict(enumerate(self.short.outputs))
        for place, output in enumerate(self.plan.outputs):
            if wholes[place] not in inside:
                found[wholes[place]] = self._outer_output(output)
        for block, numbers in enumerate(self.blocks.outputs):
            for place, number in numbers:
                found[number] = self._block_output(block, place)
        outputs = [found[number] for number in range(len(found))]
        return None if any(one is None for one in outputs) else tuple([one for one in outputs if one is not None])

    def _outer_output(self, output: PlanOutput) -> PlanOutput | None:
        """An output that no block computes."""
        if output.alias_input is not None:
            return replace(output, alias_input=self.short.inputs[output.alias_input])
        if output.alias_output is not None:
            return replace(output, alias_output=self.short.outputs[output.alias_output])
        slot = output.slot
        if slot is None:
            return output
        if slot < len(self.plan.inputs):
            return replace(output, slot=self.short.inputs[slot])
        made = self.form.defined[slot]
        if self.period.start <= made < self.period.middle:
            return None
        return replace(output, slot=self.passes[0 if made < self.period.start else -1][slot])

    def _block_output(self, block: int, place: int) -> PlanOutput | None:
        """The value of node `place` of a block: that of a block of the short plan, in the pass that stands for it."""
        for number, kept in enumerate(self.blocks.kept()):
            whole = dict(self.blocks.outputs[kept]).get(place)
            if whole is None:
                continue
            output = self.plan.outputs[self.short.outputs.index(whole)]
            if output.slot is None or output.slot < len(self.plan.inputs) or output.view is not None:
                return None
            found = self._slot_in_block(output.slot, block - number)
            if found is not None:
                return replace(output, slot=found)
        return None

    def _slot_in_block(self, slot: Slot, shift: int) -> Slot | None:
        """The slot of a value `shift` blocks further; None where no pass makes it."""
        made, period = self.form.defined[slot], self.period
        if made < period.middle:
            return self.passes[0][slot] if shift == 0 else None
        if shift == self.blocks.left_out:
            return self.passes[-1][slot]
        return self.passes[1 + shift][slot] if made < period.end and 0 <= shift < self.blocks.left_out else None
