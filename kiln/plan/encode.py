"""The plan as flat words for the native executor: what `csrc/executor/program.h` reads.

    encode_program(plan)  ->  bytes: a header, 64-bit words, a table of strings

Everything that can be decided ahead is decided here: registers of all size expressions (`registers.py`), which
buffers need a tensor (`memory.py`), which layout each slot has. The executor and a package need nothing else of a
plan, so these bytes are also what an ahead-of-time package carries. The order of the words is the order of the reads
in `program.cpp`; both carry FORMAT, which changes with them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

import torch

from kiln.plan.arena import MemoryPlan, plan_memory, with_frees
from kiln.plan.device_copies import launch_device, with_device_copies
from kiln.plan.plan import (
    Allocate,
    Branch,
    CallAten,
    Check,
    Constant,
    Copy,
    Free,
    HostRead,
    Launch,
    Plan,
    PlanOutput,
    RandomSeed,
    Ref,
    Slot,
    View,
)
from kiln.plan.registers import RegisterFile
from kiln.plan.verify import slot_specs, verify_plan
from kiln.symbolic import Expr, Int, symbol
from kiln.tensor.dtypes import SCALAR_TYPE_NUMBERS
from kiln.tensor.spec import TensorSpec

MAGIC = 0x4E4C494B  # "KILN"
FORMAT = 2
NONE = -1

# fmt: off
(ALLOCATE, ALLOCATE_REUSE, RAW_ALLOCATE, LAUNCH, CALL_ATEN, VIEW, RAW_VIEW, COPY, CONSTANT, HOST_READ, CHECK_RELATION,
 CHECK_TENSOR, RANDOM_SEED, FREE, BRANCH) = range(15)
(ARG_NONE, ARG_SLOT, ARG_INT, ARG_INT_REGISTER, ARG_FLOAT, ARG_FLOAT_REGISTER, ARG_BOOL, ARG_BOOL_REGISTER, ARG_STRING,
 ARG_DTYPE, ARG_DEVICE, ARG_LIST, ARG_INTS, ARG_MEMORY_FORMAT, ARG_LAYOUT) = range(15)
(OUT_NONE, OUT_SLOT, OUT_INT, OUT_FLOAT, OUT_BOOL, OUT_INPUT, OUT_OUTPUT) = range(7)
BINDING_KINDS = {"size": 0, "stride": 1, "offset": 2}
SCALAR_KINDS = {"int": 0, "float": 1, "bool": 2}
RELATION_KINDS = {"eq": 0, "ne": 1, "le": 2}
DEVICE_TYPES = {"cpu": 0, "cuda": 1}
# c10::MemoryFormat and c10::Layout
MEMORY_FORMATS = {torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2,
                  torch.channels_last_3d: 3}
LAYOUTS = {torch.strided: 0, torch.sparse_coo: 1}
# fmt: on


def encode_program(plan: Plan, adapt: Collection[int] = ()) -> bytes:
    """`adapt`: inputs that are copied into the planned layout when they come in another one (tangents).

    A plan that has some is a backward: autograd hands it its inputs, and each is freed at its last use.
    Raises InvalidPlan.
    """
    verify_plan(plan)
    plan = with_device_copies(plan)
    if adapt:
        plan = with_frees(plan)
    strings = Strings()
    words = ProgramEncoder(plan, strings, adapt).encode()
    data = array("q", [MAGIC, FORMAT, len(words), len(strings.texts), *words]).tobytes()
    return data + strings.encode()


@final
class Strings:
    """Each distinct string once, by number."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def encode(self) -> bytes:
        return b"".join(struct.pack("<q", len(data)) + data for data in (text.encode() for text in self.texts))


def float_word(value: float) -> int:
    """The bits of a double as a signed word."""
    word: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return word


def counted(lists: Sequence[Sequence[int]]) -> list[int]:
    """Each list behind its length."""
    return [word for items in lists for word in (len(items), *items)]


def device_words(device: torch.device) -> list[int]:
    """Type and index; no index is that of the device which is current when the plan runs."""
    return [DEVICE_TYPES[device.type], NONE if device.index is None else device.index]


class ProgramEncoder:
    """One plan; nested plans get encoders of their own that share the strings."""

    def __init__(self, plan: Plan, strings: Strings, adapt: Collection[int] = ()) -> None:
        self.plan = plan
        self.strings = strings
        self.adapt = frozenset(adapt)
        self.registers = RegisterFile()
        self.specs = slot_specs(plan)
        self.memory: MemoryPlan = plan_memory(plan)
        self.raw = {buffer.slot for buffer in self.memory.buffers} | self.memory.views
        self.kernel_numbers = {kernel.symbol: n for n, kernel in enumerate(plan.kernels)}
        self.layouts: dict[TensorSpec, int] = {}
        self.layout_words: list[int] = []
        self.scalar_slots: dict[Slot, tuple[str, int]] = {}

    def encode(self) -> list[int]:
        inputs = self.input_words()
        bindings = self.binding_words()
        steps = self.step_words()
        outputs = self.output_words()
        kernels = self.kernel_words()
        head = [self.strings.number(self.plan.name), self.plan.num_slots, len(self.plan.constants)]
        parts = [head, inputs, bindings, self.layout_table(), kernels, self.raw_words(), steps, outputs]
        parts += [self.register_words(), counted([self.plan.mutated, self.plan.donated])]
        return [word for part in parts for word in part]

    # Inputs, symbols, layouts.

    def input_words(self) -> list[int]:
        words = [len(self.plan.inputs)]
        for slot, one in enumerate(self.plan.inputs):
            if one.spec is None:
                kind = str(one.scalar)
                register = self.registers.new_float() if kind == "float" else self.registers.new_int()
                self.scalar_slots[slot] = (kind, register)
                words += [self.strings.number(one.name), SCALAR_KINDS[kind], register]
            else:
                words += [self.strings.number(one.name), NONE, int(slot in self.adapt)]
        return words

    def binding_words(self) -> list[int]:
        words: list[int] = []
        for binding in self.plan.symbols:
            if binding.kind == "scalar":
                self.registers.bind(symbol(binding.name), self.scalar_slots[binding.slot][1])
            elif binding.kind != "unbacked":
                register = self.registers.new_int()
                self.registers.bind(symbol(binding.name), register)
                words += [BINDING_KINDS[binding.kind], binding.slot, binding.dim, register]
        input_layouts = [NONE if one.spec is None else self.layout(one.spec) for one in self.plan.inputs]
        return [len(words) // 4, *words, *input_layouts]

    def layout(self, spec: TensorSpec) -> int:
        """The number of the layout: dtype, device, rank, registers of sizes, strides, offset and bytes."""
        if spec not in self.layouts:
            self.layouts[spec] = len(self.layouts)
            num_bytes = self.registers.scalar(spec.storage_elements() * spec.dtype.itemsize)
            self.layout_words += [
                SCALAR_TYPE_NUMBERS[spec.dtype], *device_words(spec.device),
                len(spec.sizes), self.registers.vector(spec.sizes), self.registers.vector(spec.strides),
                self.registers.scalar(spec.offset), num_bytes,
            ]  # fmt: skip
        return self.layouts[spec]

    def layout_table(self) -> list[int]:
        return [len(self.layouts), *self.layout_words]

    def register_words(self) -> list[int]:
        file = self.registers
        words = [len(file.ints), *file.ints, len(file.floats), *map(float_word, file.floats), len(file.segments)]
        for segment in file.segments:
            words += [len(segment.operations), *(word for operation in segment.operations for word in operation)]
        return words

    def kernel_words(self) -> list[int]:
        words = [len(self.plan.kernels)]
        for kernel in self.plan.kernels:
            written = [int(param.access != "read") for param in kernel.params]
            words += [self.strings.number(kernel.symbol), int(kernel.language == "triton"), len(written), *written]
        return words

    def raw_words(self) -> list[int]:
        words = [len(self.memory.buffers)]
        for buffer in self.memory.buffers:
            words += [buffer.slot, buffer.first, buffer.last]
        return words

    # Steps.

    def step_words(self) -> list[int]:
        words = [len(self.plan.steps)]
        for step in self.plan.steps:
            origin = getattr(step, "origin", "")
            words += [self.strings.number(origin), *STEP_WORDS[type(step)](self, step)]
        return words

    def argument(self, value: Any) -> list[int]:
        """An argument of an ATen step: a tag, then what the tag asks for."""
        if isinstance(value, Ref):
            return self.reference(value.slot)
        if isinstance(value, tuple | list):
            return self.list_argument(value)
        if isinstance(value, torch.device):
            return [ARG_DEVICE, *device_words(value)]
        for kind, encode in ARGUMENT_WORDS:
            if isinstance(value, kind):
                return encode(self, value)
        raise TypeError(f"a plan cannot carry an argument of type {type(value).__name__}")

    def reference(self, slot: Slot) -> list[int]:
        if slot not in self.scalar_slots:
            return [ARG_SLOT, slot]
        kind, register = self.scalar_slots[slot]
        return [{"int": ARG_INT_REGISTER, "float": ARG_FLOAT_REGISTER, "bool": ARG_BOOL_REGISTER}[kind], register]

    def list_argument(self, values: Sequence[Any]) -> list[int]:
        if any(isinstance(value, Expr) for value in values) and all(
            type(v) is int or isinstance(v, Expr) for v in values
        ):
            return [ARG_INTS, self.registers.vector(values), len(values)]
        return [ARG_LIST, len(values), *(word for value in values for word in self.argument(value))]

    def float_source(self, value: Any) -> tuple[str, float | int]:
        if isinstance(value, Ref):
            kind, register = self.scalar_slots[value.slot]
            return ("float" if kind == "float" else "int"), register
        return ("int", self.registers.scalar(value)) if isinstance(value, Expr) else ("constant", float(value))

    def device_of(self, step: Launch) -> int:
        """Index of the device that the kernel runs on."""
        device = launch_device(step, self.specs)
        return NONE if device is None else device_words(device)[1]

    def planned_offset(self, slot: Slot, dtype: torch.dtype) -> Int:
        """Where slot's tensor begins, in elements of `dtype`."""
        spec = self.specs.get(slot)
        return 0 if spec is None else spec.offset * spec.dtype.itemsize // dtype.itemsize

    # Outputs.

    def output_words(self) -> list[int]:
        words = [len(self.plan.outputs)]
        for output in self.plan.outputs:
            words += self.output(output)
        return words

    def output(self, output: PlanOutput) -> list[int]:
        """Kind, operand, layout of the view, register of the offset relative to the base."""
        if output.alias_input is not None:
            return [OUT_INPUT, output.alias_input, *self.rebuilt(output.view, output.alias_input)]
        if output.alias_output is not None:
            base = self.plan.outputs[output.alias_output].slot
            return [OUT_OUTPUT, output.alias_output, *self.rebuilt(output.view, NONE if base is None else base)]
        if output.slot is not None:
            if output.slot in self.scalar_slots:
                kind, register = self.scalar_slots[output.slot]
                return [{"int": OUT_INT, "float": OUT_FLOAT, "bool": OUT_BOOL}[kind], register, NONE, 0]
            return [OUT_SLOT, output.slot, NONE, 0]
        if output.value is None:
            return [OUT_NONE, 0, NONE, 0]
        if isinstance(output.value, float):
            return [OUT_FLOAT, self.registers.new_float(output.value), NONE, 0]
        if isinstance(output.value, bool):
            return [OUT_BOOL, self.registers.scalar(int(output.value)), NONE, 0]
        return [OUT_INT, self.registers.scalar(output.value), NONE, 0]

    def rebuilt(self, view: TensorSpec | None, base: Slot) -> list[int]:
        if view is None:
            return [NONE, 0]
        return [self.layout(view), self.registers.scalar(view.offset - self.planned_offset(base, view.dtype))]


def _allocate(at: ProgramEncoder, step: Allocate) -> list[int]:
    if step.out in at.raw:
        return [RAW_ALLOCATE, step.out, at.layout(step.spec), NONE if step.reuse is None else step.reuse]
    if step.reuse is not None and step.reuse not in at.raw:
        return [ALLOCATE_REUSE, step.out, at.layout(step.spec), step.reuse]
    return [ALLOCATE, step.out, at.layout(step.spec)]


def _launch(at: ProgramEncoder, step: Launch) -> list[int]:
    floats = [at.float_source(value) for value in step.floats]
    number = at.kernel_numbers[step.kernel]
    scratch = at.plan.kernels[number].scratch_bytes + step.scratch_bytes
    words = [LAUNCH, number, len(step.tensors), *step.tensors]
    words += [at.registers.vector(step.ints), at.registers.float_vector(floats)]
    words += [at.registers.scalar(value) for value in (step.units, step.grain, scratch)]
    return [*words, at.registers.vector(step.grid), len(step.grid), len(step.ints), at.device_of(step)]


def _call(at: ProgramEncoder, step: CallAten) -> list[int]:
    words = [CALL_ATEN, at.strings.number(step.target), len(step.args)]
    words += [word for arg in step.args for word in at.argument(arg)]
    words.append(len(step.kwargs))
    for name, value in step.kwargs:
        words += [at.strings.number(name), *at.argument(value)]
    words.append(len(step.outs))
    for out, spec in zip(step.outs, step.specs, strict=True):
        words += [NONE if out is None else out, NONE if spec is None else at.layout(spec)]
    return words


def _view(at: ProgramEncoder, step: View) -> list[int]:
    shift = at.registers.scalar(step.spec.offset - at.planned_offset(step.base, step.spec.dtype))
    return [RAW_VIEW if step.out in at.memory.views else VIEW, step.out, step.base, at.layout(step.spec), shift]


def _host_read(at: ProgramEncoder, step: HostRead) -> list[int]:
    landing = next((one.slot for one in at.plan.symbols if one.name == step.symbol), NONE)
    segment = at.registers.start_segment()
    register = at.registers.new_float() if step.kind == "float" else at.registers.new_int()
    if step.kind != "float":
        at.registers.bind(symbol(step.symbol), register)
    if landing >= 0:
        at.scalar_slots[landing] = (step.kind, register)
    return [HOST_READ, step.source, SCALAR_KINDS[step.kind], register, segment]


def _check(at: ProgramEncoder, step: Check) -> list[int]:
    message = at.strings.number(step.message)
    if step.relation is not None:
        difference = at.registers.scalar(step.relation.difference)
        return [CHECK_RELATION, RELATION_KINDS[step.relation.kind], difference, message]
    return [CHECK_TENSOR, NONE if step.condition is None else step.condition, message]


def _branch(at: ProgramEncoder, step: Branch) -> list[int]:
    words = [BRANCH, step.condition, *counted([step.args, step.outs])]
    for plan in (step.if_true, step.if_false):
        nested = ProgramEncoder(with_device_copies(plan), at.strings).encode()
        words += [len(nested), *nested]
    return words


# fmt: off
STEP_WORDS: Mapping[type, Callable[[ProgramEncoder, Any], list[int]]] = {
    Allocate:   _allocate,
    Launch:     _launch,
    CallAten:   _call,
    View:       _view,
    Copy:       lambda at, step: [COPY, step.target, step.source],
    Constant:   lambda at, step: [CONSTANT, step.out, step.index],
    HostRead:   _host_read,
    Check:      _check,
    RandomSeed: lambda at, step: [RANDOM_SEED, step.out, *device_words(step.device),
                                  at.registers.scalar(step.increment)],
    Free:       lambda at, step: [FREE, *counted([step.slots])],
    Branch:     _branch,
}
ARGUMENT_WORDS: tuple[tuple[type, Callable[[ProgramEncoder, Any], list[int]]], ...] = (
    (type(None),          lambda at, value: [ARG_NONE]),
    (bool,                lambda at, value: [ARG_BOOL, int(value)]),
    (int,                 lambda at, value: [ARG_INT, value]),
    (Expr,                lambda at, value: [ARG_INT_REGISTER, at.registers.scalar(value)]),
    (float,               lambda at, value: [ARG_FLOAT, float_word(value)]),
    (str,                 lambda at, value: [ARG_STRING, at.strings.number(value)]),
    (torch.dtype,         lambda at, value: [ARG_DTYPE, SCALAR_TYPE_NUMBERS[value]]),
    (torch.memory_format, lambda at, value: [ARG_MEMORY_FORMAT, MEMORY_FORMATS[value]]),
    (torch.layout,        lambda at, value: [ARG_LAYOUT, LAYOUTS[value]]),
)
# fmt: on
