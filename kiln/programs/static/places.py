"""Where a static library has the values of a plan: in its weights, the arena, or the caller's memory.

places.address(7)        "arena + at2 + 0"                 a buffer of the plan
places.address(4)        "(u8*)in->x.data"                 an argument
places.address(8)        "weights + 512 + 0"               a weight, which is then part of the library
places.packed(5)         "weights + 1024"                  the panels of a weight, for a product
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch

from kiln.loops.codegen.cpp.dialect import CPP_INTEGERS
from kiln.loops.codegen.integers import IntPrinter
from kiln.plan.plan import Plan, Slot
from kiln.plan.steps import AllocateStep, AtenStep, ConstantStep, FreeStep, ViewStep
from kiln.plan.verify import slot_specs
from kiln.programs.package_writer import memory_of
from kiln.programs.static.header import Interface
from kiln.programs.static.memory import Arena, LiveBuffer, plan_arena
from kiln.programs.static.weights import Weights, panels_of
from kiln.symbolic import BoundAnalysis, Int, Range, Symbol, is_static, sym_max, symbol
from kiln.tensor.spec import TensorSpec


@final
class Places:
    """Addresses are text of type `u8*`. `tensors`: weights by slot, constants by key; `lanes` of a vector."""

    def __init__(
        self, plan: Plan, interface: Interface, tensors: Mapping[Slot | str, torch.Tensor], lanes: int
    ) -> None:
        self.plan, self.interface, self.tensors = plan, interface, tensors
        self.panel = 2 * lanes  # columns of a panel: NR of kernels/product.h
        self.specs = slot_specs(plan)
        self.weights = Weights()
        self.base_of = {step.out: step.base for step in plan.steps if isinstance(step, ViewStep)}
        self.constant_of = {
            step.out: plan.constants[step.index] for step in plan.steps if isinstance(step, ConstantStep)
        }
        self.direct = direct_outputs(plan, self.specs, interface, self.base_of)
        self.last = last_uses(plan, self.base_of, interface)
        ranges, names = interface.ranges, {symbol(name): text for name, text in interface.symbols.items()}
        self.scratch_bytes: Int = 0
        self.arena = self._arena({size: typical(within) for size, within in ranges.items()})
        self.printer = IntPrinter(BoundAnalysis(ranges), CPP_INTEGERS, names)

    def spec(self, slot: Slot) -> TensorSpec:
        return self.specs[slot]

    def number(self, value: Int) -> str:
        return self.printer.text(value)

    def is_read(self, slot: Slot) -> bool:
        return slot in self.last

    def scratch(self, size: Int) -> str:
        self.scratch_bytes = sym_max(self.scratch_bytes, size)
        return "scratch"

    def address(self, slot: Slot) -> str:
        """Of the first element."""
        spec = self.specs[slot]
        if slot in self.base_of:
            return self.shifted(self.base_of[slot], spec)
        if slot in self.direct:
            return f"(u8*)out->{self.direct[slot]}.data"
        offset = self.printer.operand(spec.offset * spec.dtype.itemsize)
        if slot in self.arena.block_of:
            return f"arena + at{self.arena.block_of[slot]} + {offset}"
        if slot in self.interface.inputs:
            return f"(u8*)in->{self.interface.inputs[slot].name}.data"
        place = self.weights.place(f"%{slot}", memory_of(f"%{slot}", self._tensor(slot), spec))
        return f"weights + {place} + {offset}"

    def initial(self, slot: Slot) -> int:
        """Where the first value of a state lies in the weights, in row-major order."""
        return self.weights.place(f"%{slot}", self.tensors[slot])

    def packed(self, slot: Slot, *, transposed: bool = False) -> str | None:
        matrix = self._fixed(slot)
        if matrix is None:
            return None
        panels = panels_of(matrix.float().T if transposed else matrix.float(), self.panel)
        return f"weights + {self.weights.place(f'panels of %{slot}{transposed}', panels)}"

    def channels_last(self, slot: Slot, *, packed: bool) -> str | None:
        """The weight of a convolution as a matrix: a row for each place in the window and channel of the input."""
        weight = self._fixed(slot)
        if weight is None:
            return None
        matrix = weight.float().movedim(0, -1).movedim(0, -2).reshape(-1, weight.shape[0])
        matrix = panels_of(matrix, self.panel) if packed else matrix
        return f"weights + {self.weights.place(f'channels of %{slot}', matrix)}"

    def contiguous(self, slot: Slot) -> str | None:
        tensor = self._fixed(slot)
        return None if tensor is None else f"weights + {self.weights.place(f'elements of %{slot}', tensor.float())}"

    def _tensor(self, slot: Slot) -> torch.Tensor:
        return self.tensors[self.constant_of.get(slot, slot)]

    def _fixed(self, slot: Slot) -> torch.Tensor | None:
        """The value of a weight, or of a view of one."""
        root = slot
        while root in self.base_of:
            root = self.base_of[root]
        if root in self.interface.written or (root not in self.constant_of and root not in self.tensors):
            return None
        spec, whole = self.specs[slot], self.specs[root]
        memory = memory_of(f"%{root}", self._tensor(root), whole).detach()
        flat = torch.as_strided(memory, (memory.numel(),), (1,))
        if flat.dtype != spec.dtype or not all(map(is_static, (*spec.sizes, *spec.strides, spec.offset))):
            return None
        start = flat.storage_offset() + spec.offset
        return flat.as_strided(spec.sizes, spec.strides, start)  # type: ignore[arg-type]

    def shifted(self, base: Slot, spec: TensorSpec) -> str:
        of = self.specs[base]
        shift = spec.offset * spec.dtype.itemsize - of.offset * of.dtype.itemsize
        return f"{self.address(base)} + {self.printer.operand(shift)}" if shift != 0 else self.address(base)

    def _arena(self, typical_sizes: Mapping[Symbol, int]) -> Arena:
        buffers: list[LiveBuffer] = []
        for position, step in enumerate(self.plan.steps):
            if isinstance(step, AllocateStep | AtenStep):
                for slot in step.writes():
                    if slot not in self.direct and (self.is_read(slot) or isinstance(step, AllocateStep)):
                        spec = self.specs[slot]
                        size = spec.storage_elements() * spec.dtype.itemsize
                        buffers.append(LiveBuffer(slot, size, position, self.last.get(slot, position)))
        return plan_arena(buffers, typical_sizes)


def typical(within: Range) -> int:
    low = max(within.lo, 8)
    return low if within.hi is None else min(low, within.hi)


def last_uses(plan: Plan, base_of: Mapping[Slot, Slot], interface: Interface) -> dict[Slot, int]:
    """The last step that uses each slot or a view of it; those that nothing uses are missing."""
    last: dict[Slot, int] = {}

    def use(slot: Slot, position: int) -> None:
        while True:
            last[slot] = max(position, last.get(slot, 0))
            if slot not in base_of:
                return
            slot = base_of[slot]

    for position, step in enumerate(plan.steps):
        if not isinstance(step, FreeStep | AllocateStep | ViewStep):
            for slot in step.reads():
                use(slot, position)
    for field in interface.outputs:
        use(field.slot, len(plan.steps))
    return last


def direct_outputs(
    plan: Plan, specs: Mapping[Slot, TensorSpec], interface: Interface, base_of: Mapping[Slot, Slot]
) -> dict[Slot, str]:
    """Buffers that can be the caller's memory of a result, with its name."""
    made = {slot for step in plan.steps if isinstance(step, AllocateStep | AtenStep) for slot in step.writes()}
    found: dict[Slot, str] = {}
    for field in interface.outputs:
        root = field.slot
        while root in base_of:
            root = base_of[root]
        whole = specs[root]
        size = whole.storage_elements() * whole.dtype.itemsize
        fills = field.spec.is_contiguous() and field.spec.offset == 0 and whole.offset == 0
        if root in made and root not in found and fills and size == field.spec.numel() * field.spec.dtype.itemsize:
            found[root] = field.name
    return found
