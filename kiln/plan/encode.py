"""The plan as flat words for the native executor; `csrc/executor/program.cpp` reads them.

    encode_program(plan)  ->  bytes: a header, 64-bit words, a table of strings

All that does not depend on a call is decided here: registers of size expressions (`registers.py`), which buffers need a
tensor (`arena.py`), the layout of each slot. The executor needs nothing else of a plan, so packages carry the same
bytes. Each step fills a record (its method `native` in `kiln/plan/steps`); `program_format.py` declares the fields of
all records, and `tools/plan_header.py` writes their C++ structs. FORMAT changes with any declaration; change WORDS with
the order of other words.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, final

import torch

from kiln.plan import program_format
from kiln.plan.arena import MemoryPlan, plan_memory, with_frees
from kiln.plan.device_copies import device_of, with_device_copies
from kiln.plan.operands import Operands, counted, device_words, float_word, or_none
from kiln.plan.plan import Kernel, Plan, PlanOutput, Slot
from kiln.plan.program_format import (
    ENUMS,
    MAGIC,
    NATIVE_STEPS,
    NONE,
    BindingKind,
    FieldKind,
    OutputKind,
    Record,
    ScalarKind,
)
from kiln.plan.verify import slot_specs, verify_plan
from kiln.symbolic import Int, symbol
from kiln.tensor.spec import TensorSpec

WORDS = 3
FORMAT = zlib.crc32(
    repr((WORDS, [list(kinds) for kinds in ENUMS], [(step.name, step.encoded) for step in NATIVE_STEPS])).encode()
)
STEP_NUMBERS = {kind: number for number, kind in enumerate(NATIVE_STEPS)}


def encode_program(plan: Plan, adapt: Collection[int] = ()) -> bytes:
    """`adapt`: inputs that are copied into the planned layout if they have another one (tangents). A plan with such
    inputs is a backward: it owns its inputs, and frees each at its last use.

    Raises InvalidPlan.
    """
    verify_plan(plan)
    plan = with_device_copies(plan)
    if adapt:
        plan = with_frees(plan)
    strings: dict[str, int] = {}
    words = ProgramEncoder(plan, strings, adapt).encode()
    data = array("q", [MAGIC, FORMAT, len(words), len(strings), *words]).tobytes()
    return data + b"".join(struct.pack("<q", len(text)) + text for text in map(str.encode, strings))


@final
class ProgramEncoder:
    """One plan; implements `PlanEncoder`. Nested plans get encoders of their own that share the strings."""

    def __init__(self, plan: Plan, strings: dict[str, int], adapt: Collection[int] = ()) -> None:
        self.plan = plan
        self.adapt = frozenset(adapt)
        self.specs = slot_specs(plan)
        self.operands = Operands(self.specs, strings)
        self.registers, self.string = self.operands.registers, self.operands.string
        self.memory: MemoryPlan = plan_memory(plan)
        self.raw_numbers = {buffer.slot: number for number, buffer in enumerate(self.memory.buffers)}
        self.kernel_numbers = {kernel.symbol: n for n, kernel in enumerate(plan.kernels)}

    def encode(self) -> list[int]:
        inputs = self.input_words()
        bindings = self.binding_words()
        steps = self.step_words()
        outputs = self.output_words()
        buffers = self.buffer_words()
        head = [self.string(self.plan.name), self.plan.num_slots, len(self.plan.constants)]
        layouts = [len(self.operands.layouts), *self.operands.layout_words]
        parts = [head, inputs, bindings, layouts, self.kernel_words(), buffers, steps, outputs]
        parts += [self.register_words(), counted(self.plan.mutated), counted(self.plan.donated)]
        parts += [counted(self.plan.version_bumps)]
        return [word for part in parts for word in part]

    # Inputs, symbols, layouts.

    def input_words(self) -> list[int]:
        words = [len(self.plan.inputs)]
        for slot, declared in enumerate(self.plan.inputs):
            name = self.string(declared.name)
            if declared.spec is None:
                kind = ScalarKind[str(declared.scalar).upper()]
                self.operands.scalar_slots[slot] = (kind, self.operands.new_register(kind))
                words += [name, *self.operands.scalar_slots[slot]]
            else:
                words += [name, ScalarKind.TENSOR, int(slot in self.adapt)]
        return words

    def binding_words(self) -> list[int]:
        words: list[int] = []
        for binding in self.plan.symbols:
            if binding.kind == "scalar":
                self.registers.bind(symbol(binding.name), self.operands.scalar_slots[binding.slot][1])
            elif binding.kind != "unbacked":
                register = self.registers.new_int()
                self.registers.bind(symbol(binding.name), register)
                words += [BindingKind[binding.kind.upper()], binding.slot, binding.dim, register]
        layouts = [self.operands.layout(declared.spec) for declared in self.plan.inputs]
        return [len(words) // 4, *words, *layouts]

    def register_words(self) -> list[int]:
        file = self.registers
        words = [*counted(file.ints), *counted([*map(float_word, file.floats)]), len(file.segments)]
        for segment in file.segments:
            words += [len(segment), *(word for operation in segment for word in operation)]
        return words

    def kernel_words(self) -> list[int]:
        words = [len(self.plan.kernels)]
        for kernel in self.plan.kernels:
            written = [int(param.access != "read") for param in kernel.params]
            words += [self.string(kernel.symbol), int(kernel.language == "triton"), *counted(written)]
        return words

    def buffer_words(self) -> list[int]:
        words = [len(self.memory.buffers)]
        for buffer in self.memory.buffers:
            words += [buffer.first, buffer.last, self.operands.layout(self.specs[buffer.slot])]
        return words

    # Steps.

    def step_words(self) -> list[int]:
        words = [len(self.plan.steps)]
        for step in self.plan.steps:
            words += [self.string(step.origin), *self.record(step.native(self))]
        return words

    def record(self, record: Record) -> list[int]:
        words = [STEP_NUMBERS[record.kind]]
        for name, kind in record.kind.encoded:
            words += FIELD_WORDS[kind](self, record.values[name])
        return words

    def is_raw(self, slot: Slot) -> bool:
        """Is the slot only a pointer into the arena?"""
        return slot in self.raw_numbers or slot in self.memory.views

    def raw_buffer(self, slot: Slot) -> int:
        return self.raw_numbers[slot]

    def offset_in(self, slot: Slot, dtype: torch.dtype) -> Int:
        return self.operands.offset_in(slot, dtype)

    def view_layout(self, spec: TensorSpec, base: Slot) -> TensorSpec:
        return self.operands.view_layout(spec, base)

    def kernel(self, symbol: str) -> Kernel:
        return self.plan.kernels[self.kernel_numbers[symbol]]

    def launch_device(self, tensors: Iterable[Slot]) -> torch.device | None:
        return device_of(tensors, self.specs)

    def host_scalar(self, name: str, kind: ScalarKind) -> tuple[int, int]:
        """Register and segment of a number that is read on the host from here on."""
        segment = self.registers.start_segment()
        register = self.operands.new_register(kind)
        if kind is not ScalarKind.FLOAT:
            self.registers.bind(symbol(name), register)
        landing = self.plan.landing_slot(name)
        if landing is not None:
            self.operands.scalar_slots[landing] = (kind, register)
        return register, segment

    def nested(self, plan: Plan) -> list[int]:
        return counted(ProgramEncoder(with_device_copies(plan), self.operands.strings).encode())

    # Outputs.

    def output_words(self) -> list[int]:
        words = [len(self.plan.outputs)]
        for output in self.plan.outputs:
            words += self.output(output)
        return words

    def output(self, output: PlanOutput) -> list[int]:
        """Kind, operand, layout of the view, register of its offset from the base's."""
        if output.alias_input is not None:
            return [OutputKind.INPUT, output.alias_input, *self.rebuilt(output.view, output.alias_input)]
        if output.alias_output is not None:
            base = or_none(self.plan.outputs[output.alias_output].slot)
            return [OutputKind.OUTPUT, output.alias_output, *self.rebuilt(output.view, base)]
        if output.slot is not None:
            if output.slot in self.operands.scalar_slots:
                kind, register = self.operands.scalar_slots[output.slot]
                return [OutputKind[kind.name], register, NONE, 0]
            return [OutputKind.SLOT, output.slot, NONE, 0]
        if output.value is None:
            return [OutputKind.NONE, 0, NONE, 0]
        if isinstance(output.value, float):
            return [OutputKind.FLOAT, self.registers.new_float(output.value), NONE, 0]
        if isinstance(output.value, bool):
            return [OutputKind.BOOL, self.registers.scalar(int(output.value)), NONE, 0]
        return [OutputKind.INT, self.registers.scalar(output.value), NONE, 0]

    def rebuilt(self, view: TensorSpec | None, base: Slot) -> list[int]:
        if view is None:
            return [NONE, 0]
        shift = view.offset - self.operands.offset_in(base, view.dtype)
        return [self.operands.layout(self.operands.view_layout(view, base)), self.registers.scalar(shift)]


# fmt: off
FIELD_WORDS: Mapping[FieldKind, Callable[[ProgramEncoder, Any], list[int]]] = {
    program_format.SLOT:      lambda at, value: [or_none(value)],
    program_format.SLOTS:     lambda at, value: counted([*map(or_none, value)]),
    program_format.INDEX:     lambda at, value: [value],
    program_format.INDICES:   lambda at, value: counted(value),
    program_format.LAYOUT:    lambda at, value: [at.operands.layout(value)],
    program_format.LAYOUTS:   lambda at, value: counted([*map(at.operands.layout, value)]),
    program_format.KERNEL:    lambda at, value: [at.kernel_numbers[value]],
    program_format.REGISTER:  lambda at, value: [value],
    program_format.SIZE:      lambda at, value: [at.registers.scalar(value)],
    program_format.SIZES:     lambda at, value: [at.registers.vector(value)],
    program_format.FLOATS:    lambda at, value: [at.operands.floats(value)],
    program_format.DEVICE:    lambda at, value: [NONE if value is None else or_none(value.index)],
    program_format.PLACE:     lambda at, value: device_words(value),
    program_format.TEXT:      lambda at, value: [at.operands.string(value)],
    program_format.RELATION:  lambda at, value: [value],
    program_format.SCALAR:    lambda at, value: [value],
    program_format.ARGUMENTS: lambda at, value: [len(value), *at.operands.arguments(value)],
    program_format.KEYWORDS:  lambda at, value: at.operands.keywords(value),
    program_format.PLAN:      lambda at, value: at.nested(value),
    program_format.PLANS:     lambda at, value: [len(value), *(word for plan in value for word in at.nested(plan))],
}
# fmt: on
