"""Operands of steps as words of the native program: layouts, registers, arguments of operators.

operands.layout(f32[s0, 8])          3: the layout's number; its sizes are in registers
operands.argument(Ref(2))            [ArgumentKind.SLOT, 2]
operands.argument((s0, 8))           [ArgumentKind.INTS, 5, 2]: two registers from the fifth on
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from kiln.plan.plan import Ref, Slot
from kiln.plan.program_format import NONE, ArgumentKind, ScalarKind
from kiln.plan.registers import RegisterFile
from kiln.symbolic import Expr, Int
from kiln.tensor.dtypes import SCALAR_TYPE_NUMBERS
from kiln.tensor.spec import TensorSpec, eager_strides

DEVICE_TYPES = {"cpu": 0, "cuda": 1}
# c10::MemoryFormat and c10::Layout
MEMORY_FORMATS = {
    torch.contiguous_format: 0, torch.preserve_format: 1, torch.channels_last: 2, torch.channels_last_3d: 3
}  # fmt: skip
LAYOUT_NUMBERS = {torch.strided: 0, torch.sparse_coo: 1}


def float_word(value: float) -> int:
    """The bits of a double as a signed word."""
    word: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return word


def counted(items: Sequence[int]) -> list[int]:
    return [len(items), *items]


def or_none(number: int | None) -> int:
    return NONE if number is None else number


def device_words(device: torch.device) -> list[int]:
    """Type and index; without an index it is the device that is current when the plan runs."""
    return [DEVICE_TYPES[device.type], or_none(device.index)]


@final
class Operands:
    """Tables that the steps of a plan refer to by number; nested plans share only the strings."""

    def __init__(self, specs: Mapping[Slot, TensorSpec], strings: dict[str, int]) -> None:
        self.specs = specs
        self.strings = strings
        self.registers = RegisterFile()
        self.layouts: dict[TensorSpec, int] = {}
        self.layout_words: list[int] = []
        self.scalar_slots: dict[Slot, tuple[ScalarKind, int]] = {}

    def string(self, text: str) -> int:
        """The number of the text; equal texts are stored once."""
        return self.strings.setdefault(text, len(self.strings))

    def new_register(self, kind: ScalarKind) -> int:
        return self.registers.new_float() if kind is ScalarKind.FLOAT else self.registers.new_int()

    def layout(self, spec: TensorSpec | None) -> int:
        """The number of the layout: dtype, device, rank, registers of sizes, strides, offset and bytes."""
        if spec is None:
            return NONE
        if spec not in self.layouts:
            self.layouts[spec] = len(self.layouts)
            num_bytes = self.registers.scalar(spec.storage_elements() * spec.dtype.itemsize)
            self.layout_words += [
                SCALAR_TYPE_NUMBERS[spec.dtype], *device_words(spec.device),
                len(spec.sizes), self.registers.vector(spec.sizes), self.registers.vector(eager_strides(spec)),
                self.registers.scalar(spec.offset), num_bytes,
            ]  # fmt: skip
        return self.layouts[spec]

    def view_layout(self, spec: TensorSpec, base: Slot) -> TensorSpec:
        """The layout of a view of a slot's tensor, with eager's strides."""
        return replace(spec, strides=eager_strides(spec, self.specs.get(base)))

    def offset_in(self, slot: Slot, dtype: torch.dtype) -> Int:
        """The planned offset of the slot's tensor, in elements of `dtype`."""
        spec = self.specs.get(slot)
        return 0 if spec is None else spec.offset * spec.dtype.itemsize // dtype.itemsize

    def floats(self, values: Iterable[object]) -> int:
        """The first of the float registers that hold the values."""
        return self.registers.float_vector([self.float_source(value) for value in values])

    def float_source(self, value: Any) -> tuple[str, float | int]:
        if isinstance(value, Ref):
            kind, register = self.scalar_slots[value.slot]
            return ("float" if kind is ScalarKind.FLOAT else "int"), register
        return ("int", self.registers.scalar(value)) if isinstance(value, Expr) else ("constant", float(value))

    def argument(self, value: object) -> list[int]:
        for kind, encode in ARGUMENT_WORDS:
            if isinstance(value, kind):
                return encode(self, value)
        raise TypeError(f"a plan cannot carry an argument of type {type(value).__name__}")

    def reference(self, slot: Slot) -> list[int]:
        if slot not in self.scalar_slots:
            return [ArgumentKind.SLOT, slot]
        kind, register = self.scalar_slots[slot]
        return [ArgumentKind[f"{kind.name}_REGISTER"], register]

    def list_argument(self, values: Sequence[Any]) -> list[int]:
        symbolic = any(isinstance(value, Expr) for value in values)
        if symbolic and all(type(value) is int or isinstance(value, Expr) for value in values):
            return [ArgumentKind.INTS, self.registers.vector(values), len(values)]
        return [ArgumentKind.LIST, len(values), *self.arguments(values)]

    def arguments(self, values: Iterable[object]) -> list[int]:
        return [word for value in values for word in self.argument(value)]

    def keywords(self, items: Sequence[tuple[str, object]]) -> list[int]:
        words = [len(items)]
        for name, value in items:
            words += [self.string(name), *self.argument(value)]
        return words


# fmt: off
ARGUMENT_WORDS: tuple[tuple[type, Callable[[Operands, Any], list[int]]], ...] = (
    (Ref,                 lambda at, value: at.reference(value.slot)),
    (type(None),          lambda at, value: [ArgumentKind.NONE]),
    (bool,                lambda at, value: [ArgumentKind.BOOL, int(value)]),
    (int,                 lambda at, value: [ArgumentKind.INT, value]),
    (Expr,                lambda at, value: [ArgumentKind.INT_REGISTER, at.registers.scalar(value)]),
    (float,               lambda at, value: [ArgumentKind.FLOAT, float_word(value)]),
    (str,                 lambda at, value: [ArgumentKind.STRING, at.string(value)]),
    (tuple,               lambda at, value: at.list_argument(value)),
    (list,                lambda at, value: at.list_argument(value)),
    (torch.dtype,         lambda at, value: [ArgumentKind.DTYPE, SCALAR_TYPE_NUMBERS[value]]),
    (torch.device,        lambda at, value: [ArgumentKind.DEVICE, *device_words(value)]),
    (torch.memory_format, lambda at, value: [ArgumentKind.MEMORY_FORMAT, MEMORY_FORMATS[value]]),
    (torch.layout,        lambda at, value: [ArgumentKind.LAYOUT, LAYOUT_NUMBERS[value]]),
)
# fmt: on
