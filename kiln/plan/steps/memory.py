"""Steps that make, share and end memory.

%2 = allocate f32[s0, 768] in memory of %0
%3 = view %2 as f32[768, s0 | 1, 768]
copy %3 into %1
free %2, %3
hand over results 0, 2
"""

from __future__ import annotations

from typing import final

from kiln.plan.plan import PlanEncoder, PlanPrinter, PlanRun, Slot, Step
from kiln.plan.program_format import ALLOCATE, CONSTANT, COPY, FREE, HAND_OVER, RAW_ALLOCATE, VIEW, Record
from kiln.plan.python_view import layout_python
from kiln.plan.text import slots_text
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


@final
@dataclass(frozen=True, slots=True)
class AllocateStep(Step):
    """A fresh buffer; with `reuse`, the memory of that slot (dead from here on, at least as many bytes)."""

    out: Slot
    spec: TensorSpec
    reuse: Slot | None = None

    uses, defines = ("reuse",), ("out",)

    def text(self) -> str:
        reuse = f" in memory of %{self.reuse}" if self.reuse is not None else ""
        return f"%{self.out} = allocate {self.spec}{reuse}"

    def python(self, printer: PlanPrinter) -> str:
        name = printer.names[self.out]
        if self.reuse is None:
            return f"{name} = empty({layout_python(self.spec)})"
        old = printer.names[self.reuse]
        return f"{name} = over({old}, {layout_python(self.spec)}); del {old}"

    def native(self, encoder: PlanEncoder) -> Record:
        if encoder.is_raw(self.out):
            buffer = encoder.raw_buffer(self.out)
            return Record(RAW_ALLOCATE, out=self.out, layout=self.spec, ended=self.reuse, buffer=buffer)
        reuse = None if self.reuse is None or encoder.is_raw(self.reuse) else self.reuse
        return Record(ALLOCATE, out=self.out, layout=self.spec, reuse=reuse)

    def run(self, run: PlanRun) -> None:
        reused = None
        if self.reuse is not None:
            if self.reuse >= len(run.plan.inputs):  # the caller holds the inputs
                reused = run.values[self.reuse]
            run.values[self.reuse] = None
        needed = run.number(self.spec.storage_elements()) * self.spec.dtype.itemsize
        if reused is not None and reused.untyped_storage().nbytes() >= needed:
            run.values[self.out] = run.over_storage(reused, self.spec, run.number(self.spec.offset))
        else:
            run.values[self.out] = run.empty(self.spec)


@final
@dataclass(frozen=True, slots=True)
class ViewStep(Step):
    """`out` is `base`'s storage under other sizes, strides and offset (offset counts from the storage's start)."""

    out: Slot
    base: Slot
    spec: TensorSpec

    uses, defines = ("base",), ("out",)

    def text(self) -> str:
        return f"%{self.out} = view %{self.base} as {self.spec}"

    def python(self, printer: PlanPrinter) -> str:
        return f"{printer.names[self.out]} = over({printer.names[self.base]}, {layout_python(self.spec)})"

    def native(self, encoder: PlanEncoder) -> Record:
        shift = self.spec.offset - encoder.offset_in(self.base, self.spec.dtype)
        return Record(VIEW, out=self.out, base=self.base, layout=encoder.view_layout(self.spec, self.base), shift=shift)

    def run(self, run: PlanRun) -> None:
        base, planned = run.values[self.base], run.specs.get(self.base)
        run.values[self.out] = run.over_storage(base, self.spec, run.shifted(base, self.spec, planned), planned)


@final
@dataclass(frozen=True, slots=True)
class CopyStep(Step):
    """Write the contents of `source` into `target` (an input that the region mutates)."""

    target: Slot
    source: Slot

    uses = ("target", "source")

    def text(self) -> str:
        return f"copy %{self.source} into %{self.target}"

    def python(self, printer: PlanPrinter) -> str:
        return f"{printer.names[self.target]}.copy_({printer.names[self.source]})"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(COPY, target=self.target, source=self.source)

    def run(self, run: PlanRun) -> None:
        run.values[self.target].copy_(run.values[self.source])


@final
@dataclass(frozen=True, slots=True)
class ConstantStep(Step):
    """Slot `out` is the plan's constant number `index`."""

    out: Slot
    index: int

    defines = ("out",)

    def text(self) -> str:
        return f"%{self.out} = constant {self.index}"

    def python(self, printer: PlanPrinter) -> str:
        return f"{printer.names[self.out]} = constants[{self.index}]"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(CONSTANT, out=self.out, index=self.index)

    def run(self, run: PlanRun) -> None:
        run.values[self.out] = run.constants[self.index]


@final
@dataclass(frozen=True, slots=True)
class FreeStep(Step):
    """The slots are not used any more."""

    slots: tuple[Slot, ...]

    uses = ("slots",)

    def text(self) -> str:
        return f"free {slots_text(self.slots)}"

    def python(self, printer: PlanPrinter) -> str:
        return f"del {', '.join(printer.names[slot] for slot in self.slots)}"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(FREE, slots=self.slots)

    def run(self, run: PlanRun) -> None:
        for slot in self.slots:
            run.values[slot] = None


@final
@dataclass(frozen=True, slots=True)
class HandOverStep(Step):
    """The caller may take these outputs now, before the plan ends (`kiln/plan/hand_over.py`)."""

    outputs: tuple[int, ...]

    def text(self) -> str:
        return f"hand over results {', '.join(map(str, self.outputs)) or 'none'}"

    def python(self, printer: PlanPrinter) -> str:
        return f"# {self.text()}"

    def native(self, encoder: PlanEncoder) -> Record:
        return Record(HAND_OVER, outputs=self.outputs)

    def run(self, run: PlanRun) -> None:
        """The reference returns all at the end."""
