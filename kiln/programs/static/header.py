"""The C header of a static library, and what its source and its header must agree on.

typedef struct {
  struct { const float *data; int64_t sizes[2]; } x;   /* float32 [batch, 64] */
} net_inputs;
int net_plan(const net_inputs *in, net_outputs *out, size_t *arena_bytes);
int net_run(const net_inputs *in, const net_outputs *out, void *arena, size_t arena_bytes);
const char *net_status(int status);
"""

from __future__ import annotations

from dataclasses import field
from typing import final

import torch

from kiln.plan.plan import Plan, Slot
from kiln.plan.verify import slot_specs
from kiln.programs.call.interface import CallInterface
from kiln.programs.onnx_file import leaf_paths
from kiln.programs.static.errors import NoStaticLibrary
from kiln.programs.static.names import Names
from kiln.support.records import dataclass
from kiln.symbolic import BoundAnalysis, Int, Range, Symbol, symbol
from kiln.tensor.spec import TensorSpec

C_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.int64: "int64_t", torch.int32: "int32_t",
    torch.int16: "int16_t", torch.int8: "int8_t", torch.uint8: "uint8_t", torch.bool: "uint8_t",
    torch.bfloat16: "uint16_t", torch.float16: "uint16_t",
}  # fmt: skip
MESSAGES = ("done", "an index is out of range", "division by zero", "a pointer is missing or not aligned",
            "the arena is too small, or not aligned to 64 bytes")  # fmt: skip
LARGEST = 1 << 60  # bytes; sums of several have 64 bits
UNBOUNDED = (1 << 31, 1 << 24, 1 << 20, 1 << 16, 1 << 12)
"""The largest value of symbols whose range has no end: the first for which no number of bytes overflows."""


@final
@dataclass(frozen=True, slots=True)
class Field:
    """A tensor of the caller: its name in C, its slot, and the layout that the plan has it in.

    `is_state`: the program's own, of a fixed size, which a call changes in the caller's memory.
    """

    name: str
    slot: Slot
    spec: TensorSpec
    is_state: bool = False

    def declaration(self, const: str, note: str = "") -> str:
        kind, sizes = C_TYPES[self.spec.dtype], ", ".join(map(str, self.spec.sizes))
        name = str(self.spec.dtype).removeprefix("torch.")
        strides = "" if self.spec.is_contiguous() else f", strides [{', '.join(map(str, self.spec.strides))}]"
        given = "" if self.is_state else f" int64_t sizes[{max(1, self.spec.rank)}];"
        member = f"struct {{ {const}{kind} *data;{given} }} {self.name};"
        return f"    {member}  /* {name} [{sizes}]{strides}{note} */"


@final
@dataclass
class Interface:
    """`symbols`: identifiers of the plan's symbols; `mapped`: the caller gives the weights."""

    prefix: str
    inputs: dict[Slot, Field]
    outputs: list[Field]
    symbols: dict[str, str]
    ranges: dict[Symbol, Range]
    mapped: bool
    written: tuple[Slot, ...] = ()
    messages: list[str] = field(default_factory=lambda: list(MESSAGES))

    def status(self, message: str) -> int:
        """The number of the message."""
        if message not in self.messages:
            self.messages.append(message)
        return self.messages.index(message)

    def states(self) -> list[Field]:
        return [each for each in self.inputs.values() if each.is_state]

    def bound(self, total: Int) -> None:
        """Limit symbols so that no number of bytes overflows. Raises NoStaticLibrary."""
        for limit in UNBOUNDED:
            ranges = {size: within if within.hi is not None else Range(min(within.lo, limit), limit)
                      for size, within in self.ranges.items()}  # fmt: skip
            bounds = BoundAnalysis(ranges)
            sizes = [total, *[each.spec.numel() * 8 for each in (*self.inputs.values(), *self.outputs)]]
            if all((high := bounds.of(size).hi) is not None and high < LARGEST for size in sizes):
                self.ranges.update(ranges)
                return
        raise NoStaticLibrary(problems="sizes without an upper bound, which kiln.Dim(..., max=...) gives")

    def header(self, arena: Int, weights: int) -> str:
        """The text of the header."""
        prefix, guard = self.prefix, f"KILN_{self.prefix.upper()}_H"
        mapped = ["    const void *weights;  /* the file of weights in memory, aligned to 64 bytes */"] * self.mapped
        inputs = [each.declaration(*("", ", changed") if each.slot in self.written else ("const ",))
                  for each in self.inputs.values()]  # fmt: skip
        reset = ["/* Gives the program's own tensors that a call changes the values that they begin with. */",
                 f"int {prefix}_reset(const {prefix}_inputs *in);"] if self.states() else []  # fmt: skip
        return "\n".join([
            f"/* {prefix}: written by Kiln. Tensors are row-major unless strides are given.",
            " * `data` is the first element. Needs libc and libm.",
            " * No global state: calls with an arena each may run at the same time. */",
            f"#ifndef {guard}", f"#define {guard}", "#include <stddef.h>", "#include <stdint.h>",
            "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
            f"enum {{ {prefix}_weights_bytes = {weights} }};" if weights < 1 << 31 else "",
            "typedef struct {", *mapped, *inputs,
            *(["    int unused;"] if not self.inputs and not self.mapped else []), f"}} {prefix}_inputs;",
            "typedef struct {", *[each.declaration("") for each in self.outputs], f"}} {prefix}_outputs;", "", *reset,
            "/* Checks the sizes of the inputs; fills in those of the outputs and the bytes of the arena:",
            f" * {arena}. */",
            f"int {prefix}_plan(const {prefix}_inputs *in, {prefix}_outputs *out, size_t *arena_bytes);",
            "/* Computes. The arena is aligned to 64 bytes; inputs, outputs and arena do not overlap. */",
            f"int {prefix}_run(const {prefix}_inputs *in, const {prefix}_outputs *out,",
            "    void *arena, size_t arena_bytes);",
            "/* What a status means; 0: done. */",
            f"const char *{prefix}_status(int status);", "",
            "#ifdef __cplusplus", "}", "#endif", "#endif", "",
        ])  # fmt: skip


def interface_in_c(plan: Plan, call: CallInterface, prefix: str, mapped: bool) -> Interface:
    """Raises NoStaticLibrary."""
    problems: list[str] = []
    states, specs = len(call.signature.states), slot_specs(plan)
    names = Names(["weights"])
    inputs: dict[Slot, Field] = {}
    for slot, given in enumerate(plan.inputs[states:], states):
        if given.spec is None:
            problems.append(f"the number `{given.name}`")
        else:
            inputs[slot] = Field(names.name(given.name), slot, given.spec)
    for slot in plan.mutated:
        if slot < states:
            inputs[slot] = Field(names.name(plan.inputs[slot].name), slot, specs[slot], is_state=True)
    outputs: list[Field] = []
    names = Names()
    for leaf, place in zip(call.signature.results, leaf_paths(call.signature.out_tree), strict=True):
        if leaf.kind in ("argument", "state"):
            number = leaf.number if leaf.kind == "state" else call.signature.arguments[leaf.number].number
            if number is None or plan.inputs[number].spec is None:
                problems.append(f"the result {place}, which is an input that is not used")
            else:
                outputs.append(Field(names.name(place), number, specs[number]))
        if not leaf.is_in_output:
            continue
        made = plan.outputs[leaf.number]
        of_output = None if made.alias_output is None else plan.outputs[made.alias_output].slot
        slots = [slot for slot in (made.slot, made.alias_input, of_output) if slot is not None]
        if slots:
            outputs.append(Field(names.name(place), slots[0], made.view or specs[slots[0]]))
        else:
            problems.append(f"the result {place}, which is a number")
    for each in (*inputs.values(), *outputs):
        if each.spec.dtype not in C_TYPES:
            problems.append(f"`{each.name}`, which is {each.spec.dtype}")
    for binding in plan.symbols:
        if binding.kind != "unbacked" and (binding.kind != "size" or binding.slot not in inputs):
            problems.append(f"the size {binding.name}, which depends on data")
    if problems:
        raise NoStaticLibrary(problems="; ".join(problems))
    ranges = {symbol(each.name): Range(each.low, each.high) for each in call.rules.ranges}
    taken = Names()
    symbols = {binding.name: taken.name(f"n_{binding.name}") for binding in plan.symbols}
    read = {binding.name for binding in plan.symbols if binding.kind == "unbacked"}
    ranges = {size: within for size, within in ranges.items() if size.name in symbols.keys() - read}
    return Interface(prefix, inputs, outputs, symbols, ranges, mapped, plan.mutated)
