"""Random plans of kernels, views, ATen steps, reuse and frees over a symbolic number of rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from kiln.plan.plan import Plan, PlanInput, PlanOutput, Ref, Step, SymbolBinding
from kiln.plan.steps import AllocateStep, AtenStep, CopyStep, FreeStep, LaunchStep, ViewStep
from kiln.symbolic import symbol
from kiln.tensor.spec import TensorSpec
from tests.runtime.samples import KERNELS, spec

s0 = symbol("s0")
COLUMNS = 6
ROWS = spec(s0, COLUMNS)
TURNED = spec(COLUMNS, s0, strides=(1, COLUMNS))


class PlanBuilder:
    """Every value is (s0, 6) contiguous, or its transposed view."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.steps: list[Step] = []
        self.specs: dict[int, TensorSpec] = {0: ROWS, 1: ROWS}
        self.base: dict[int, int] = {}
        self.dead: list[int] = []
        self.slots = 3  # slot 2 is the number eps

    def fresh(self, layout: TensorSpec) -> int:
        self.specs[self.slots] = layout
        self.slots += 1
        return self.slots - 1

    def pick(self, layout: TensorSpec = ROWS) -> int:
        return self.random.choice(
            [slot for slot, item in self.specs.items() if item == layout and slot not in self.dead]
        )

    def allocate(self) -> int:
        """New memory, or that of an unused slot."""
        free = [slot for slot in self.specs if self.can_die(slot)]
        reuse = self.random.choice(free) if free and self.random.random() < 0.5 else None
        out = self.fresh(ROWS)
        self.steps.append(AllocateStep(out, ROWS, reuse))
        if reuse is not None:
            self.dead.append(reuse)
        return out

    def can_die(self, slot: int) -> bool:
        family = {item for item, base in self.base.items() if base == slot}
        old = slot < self.slots - 4 and slot > 2 and slot not in self.dead and slot not in self.base
        return old and family <= set(self.dead) and self.specs[slot] == ROWS

    def add(self) -> None:
        left, right = self.pick(), self.pick()
        self.steps.append(
            LaunchStep("k_add", (left, right, self.allocate_after(left, right)), (), (), s0 * COLUMNS, grain=4)
        )

    def scale(self) -> None:
        source = self.pick()
        factor: Any = self.random.choice([0.5, Ref(2)])
        tensors = (source, self.allocate_after(source))
        self.steps.append(LaunchStep("k_scale", tensors, (self.random.choice([1, s0]),), (factor,), s0 * COLUMNS))

    def scale_rows(self) -> None:
        """One launch over a table of independent rows, one of them without units."""
        sources = [self.pick() for _ in range(self.random.choice([1, 3]))]
        targets: list[int] = []
        for _ in sources:
            targets.append(self.allocate_after(*sources, *targets))
        empty = self.random.random() < 0.5
        rows = (*[s0 * COLUMNS] * (len(sources) - 1), s0 * 0 if empty else s0 * COLUMNS)
        if empty:
            self.steps.append(CopyStep(targets[-1], sources[-1]))
        ints: tuple[Any, ...] = tuple([self.random.choice([1, s0]) for _ in sources])
        tensors = tuple([slot for pair in zip(sources, targets, strict=True) for slot in pair])
        self.steps.append(LaunchStep("k_scale", tensors, ints, (0.5,), sum(rows), 4, rows=rows))

    def allocate_after(self, *used: int) -> int:
        """Allocate, but not in the memory of `used`."""
        kept, self.specs = self.specs, {slot: layout for slot, layout in self.specs.items() if slot not in used}
        out = self.allocate()
        self.specs = kept | self.specs
        return out

    def turn(self) -> None:
        base = self.pick()
        out = self.fresh(TURNED)
        self.base[out] = base
        self.steps.append(ViewStep(out, base, TURNED))

    def aten(self) -> None:
        if TURNED in self.specs.values() and self.random.random() < 0.5:
            turned = [slot for slot, layout in self.specs.items() if layout == TURNED and slot not in self.dead]
            if turned:
                source = self.random.choice(turned)
                target, args = "aten.t.default", (Ref(source),)
                out = self.fresh(ROWS)
                self.base[out] = self.base[source]
                self.steps.append(AtenStep(target, args, (), (out,), (ROWS,)))
                return
        args = (Ref(self.pick()), Ref(self.pick()))
        self.steps.append(AtenStep("aten.sub.Tensor", args, (("alpha", 2),), (self.fresh(ROWS),), (ROWS,)))

    def free(self) -> None:
        slots = [slot for slot in self.specs if self.can_die(slot)][:2]
        if slots:
            self.steps.append(FreeStep(tuple(slots)))
            self.dead += slots

    def build(self, steps: int) -> Plan:
        actions: list[Callable[[], None]] = [self.add, self.scale, self.scale_rows, self.turn, self.aten, self.free]
        for _ in range(steps):
            self.random.choice(actions)()
        live = [slot for slot in self.specs if slot > 2 and slot not in self.dead]
        outputs = tuple(PlanOutput(slot=slot) for slot in self.random.sample(live, min(3, len(live))))
        return Plan(
            "random",
            (PlanInput("x", ROWS), PlanInput("y", ROWS), PlanInput("eps", None, "float")),
            (SymbolBinding("s0", "size", 0, 0),),
            tuple(self.steps),
            (*outputs, PlanOutput(value=s0 * 2)),
            KERNELS,
            self.slots,
        )


def random_plan(seed: int, steps: int = 25) -> Plan:
    return PlanBuilder(seed).build(steps)


def random_inputs(rows: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    return torch.randn(rows, COLUMNS), torch.randn(rows, COLUMNS), 0.25
