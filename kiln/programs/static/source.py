"""The C++ source of a static library: the plan's kernels, kernels for its ATen calls, and one function that runs it.

    extern "C" int net_run(const net_inputs* in, const net_outputs* out, void* memory, size_t bytes) {
      i64 n[1];
      if (int problem = solve(in, n)) return problem;
      ...
      products(1, n_batch, 128, 64, {(f32*)((u8*)in->x.data), 0, 64, 1}, {(f32*)(weights + 0), ..}, ..);
      k_12ab_::k_12ab(tensors, ints, floats, 0, n_batch, scratch, &status);
      ...
      return 0;
    }

The source needs libc and libm only, and has no symbols but those of the header.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import final

from kiln.loops.codegen.cpp.prelude import namespace, prelude_for
from kiln.loops.codegen.cpp.writer import EXPORTED
from kiln.loops.codegen.sections import Sections
from kiln.plan.plan import Ref, Slot
from kiln.plan.steps import (
    AllocateStep,
    AtenStep,
    CheckStep,
    ConstantStep,
    CopyStep,
    FreeStep,
    HostReadStep,
    LaunchStep,
    ViewStep,
)
from kiln.plan.text import step_text
from kiln.programs.static.calls import Refused, statements
from kiln.programs.static.errors import NoStaticLibrary
from kiln.programs.static.header import C_TYPES, Field
from kiln.programs.static.memory import ALIGNMENT
from kiln.programs.static.places import Places
from kiln.programs.static.weights import Weights
from kiln.support.records import dataclass
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec

KERNELS = Path(__file__).parent / "kernels"
EMBEDDED = """\
extern "C" __attribute__((visibility("hidden"))) const unsigned char {prefix}_weights[];
asm(".pushsection .rodata\\n.balign 64\\n{prefix}_weights:\\n.incbin \\"weights\\"\\n.popsection");"""
_WORD = re.compile(r"\w+")
_DEFINED = re.compile(r"^(?:template .*\n?)?(?:static|struct|constexpr|KILN_INLINE)[\w<> ]*? (\w+)[({ ]", re.MULTILINE)


@final
@dataclass(frozen=True, slots=True)
class LibrarySource:
    """`text` includes the file `weights`, unless the caller gives them; a call needs `arena` bytes."""

    text: str
    weights: Weights
    arena: Int


@final
class SourceWriter:
    def __init__(self, places: Places, lanes: int) -> None:
        self.places, self.plan, self.interface, self.lanes = places, places.plan, places.interface, lanes
        self.number, self.printer = places.number, places.printer
        self.sizes = [binding for binding in places.plan.symbols if binding.kind == "size"]
        self.kernels = {kernel.symbol: kernel for kernel in places.plan.kernels}

    def source(self) -> LibrarySource:
        """Raises NoStaticLibrary."""
        body = [*self._steps(), *self._copies()]
        total = self.places.arena.total + -(-self.places.scratch_bytes // ALIGNMENT) * ALIGNMENT
        self.interface.bound(total)
        prefix = self.interface.prefix
        run = [
            f'extern "C" int {prefix}_run(const {prefix}_inputs* in, const {prefix}_outputs* out,',
            "    void* memory, size_t size) {",
            *indented([*self._solved(), *self._pointers_checked()]),
            *indented(self._blocks(total)),
            *indented([self._weights(), "i64 status = 0;"]),
            *indented(body),
            "  return 0;",
            "}",
        ]
        text = "\n".join([*self._solve(), *self._plan(total), *self._reset(), *run])
        used = Sections.read(KERNELS, "*.h", "//@", _DEFINED.findall).used(_WORD.findall(text))
        own = "\n".join(section.text for section in used)
        functions = prelude_for(f"{own}\n{text} floor_div floor_mod min max", self.lanes)
        kernels = "\n".join(kernel.source.replace(EXPORTED, "static") for kernel in self.kernels.values())
        opened = f"namespace {{\nusing namespace {namespace(self.lanes)};"
        embedded = "" if self.interface.mapped else EMBEDDED.format(prefix=prefix)
        whole = "\n".join([embedded, functions, kernels, opened, own, *self._messages(), "}", text])
        return LibrarySource(whole + "\n", self.places.weights, total)

    def _solve(self) -> list[str]:
        """Binds the symbols and checks every size: each check has a status of its own."""
        lines = []
        for number, binding in enumerate(self.sizes):
            name, field = self.interface.symbols[binding.name], self.interface.inputs[binding.slot]
            lines.append(f"const i64 {name} = n[{number}] = in->{field.name}.sizes[{binding.dim}];")
        for free, within in self.interface.ranges.items():
            name, message = self.number(free), f"{free.name} is not in {within.lo}..{within.hi}"
            lines.append(f"if ({name} < {within.lo} || {name} > {within.hi}) return {self.interface.status(message)};")
        for field in self.interface.inputs.values():
            for axis, size in enumerate(() if field.is_state else field.spec.sizes):
                status = self.interface.status(f"{field.name}: size {axis} is not {size}")
                lines.append(f"if (in->{field.name}.sizes[{axis}] != {self.number(size)}) return {status};")
        for step in self.plan.steps:
            if isinstance(step, CheckStep) and self._is_of_sizes(step):
                lines += self._check(step)
        head = f"static int solve(const {self.interface.prefix}_inputs* in, i64* n) {{"
        return [f"using namespace {namespace(self.lanes)};", head, *indented(lines), "  return 0;", "}"]

    def _solved(self) -> list[str]:
        names = [self.interface.symbols[binding.name] for binding in self.sizes]
        bound = [f"const i64 {name} = n[{number}];" for number, name in enumerate(names)]
        return [f"i64 n[{len(names) or 1}];", "if (int problem = solve(in, n)) return problem;", *bound]

    def _is_of_sizes(self, step: CheckStep) -> bool:
        """Whether it can be checked before anything is computed."""
        bound = {binding.name for binding in self.sizes}
        return step.relation is not None and bound >= {each.name for each in step.relation.free_symbols()}

    def _check(self, step: CheckStep) -> list[str]:
        if step.relation is not None:
            holds = self.printer.relation(step.relation)
        else:
            assert step.condition is not None
            holds = f"*({self.places.address(step.condition)})"
        return [f"if (!{holds}) return {self.interface.status(step.message)};"]

    def _reset(self) -> list[str]:
        """The function that gives states their first values."""
        states = self.interface.states()
        if not states:
            return []
        prefix = self.interface.prefix
        checked = [f"if (!in->{each.name}.data) return 3;" for each in states]
        lines = [line for each in states for line in
                 self._copy(self.places.address(each.slot), each.spec, f"weights + {self.places.initial(each.slot)}",
                            each.spec.with_sizes(each.spec.sizes))]  # fmt: skip
        head = f'extern "C" int {prefix}_reset(const {prefix}_inputs* in) {{'
        return [head, *indented([self._weights(), *checked, *lines, "return 0;"]), "}"]

    def _weights(self) -> str:
        given = "in->weights" if self.interface.mapped else f"{self.interface.prefix}_weights"
        return f"u8* const weights = (u8*){given};"

    def _plan(self, total: Int) -> list[str]:
        lines = self._solved()
        for field in self.interface.outputs:
            for axis, size in enumerate(field.spec.sizes):
                lines.append(f"out->{field.name}.sizes[{axis}] = {self.number(size)};")
        lines.append(f"*arena_bytes = {self.number(total)};")
        prefix = self.interface.prefix
        head = f'extern "C" int {prefix}_plan(const {prefix}_inputs* in, {prefix}_outputs* out, size_t* arena_bytes) {{'
        return [head, *indented(lines), "  return 0;", "}"]

    def _pointers_checked(self) -> list[str]:
        pointers = [("in", field) for field in self.interface.inputs.values()]
        pointers += [("out", field) for field in self.interface.outputs]
        lines = [f"if (!{of}->{field.name}.data && {self._bytes(field)} > 0) return 3;" for of, field in pointers]
        return lines + (["if (!in->weights || (uintptr_t)in->weights % 64) return 3;"] if self.interface.mapped else [])

    def _bytes(self, field: Field) -> str:
        return self.printer.operand(field.spec.numel())

    def _blocks(self, total: Int) -> list[str]:
        lines = [
            f"if (size < (size_t)({self.number(total)}) || (uintptr_t)memory % {ALIGNMENT}) return 4;",
            "u8* const arena = (u8*)memory;",
        ]
        end = "0"
        for block, size in enumerate(self.places.arena.sizes):
            lines.append(f"const i64 at{block} = {end};")
            end = f"at{block} + {self.printer.operand(size)}"
        return [*lines, f"u8* const scratch = arena + {end};"]

    def _steps(self) -> list[str]:
        lines: list[str] = []
        problems: list[str] = []
        for step in self.plan.steps:
            try:
                match step:
                    case LaunchStep():
                        lines += self._launch(step)
                    case AtenStep():
                        lines += [f"// {step.origin or step.target}".replace("\\", "/"), *statements(step, self.places)]
                    case ViewStep() | AllocateStep() | ConstantStep() | FreeStep():
                        pass
                    case CheckStep():
                        lines += [] if self._is_of_sizes(step) else self._check(step)
                    case CopyStep():
                        target, source = self.places.spec(step.target), self.places.spec(step.source)
                        lines += self._copy(self.places.address(step.target), target, self.places.address(step.source),
                                            source)  # fmt: skip
                    case HostReadStep() if step.kind == "int":
                        kind = C_TYPES[self.places.spec(step.source).dtype]
                        at = self.places.address(step.source)
                        lines.append(f"const i64 {self.interface.symbols[step.symbol]} = *({kind}*)({at});")
                    case _:
                        raise Refused("no kernel")
            except Refused as reason:
                name = step.target if isinstance(step, AtenStep) else f"`{step_text(step)}`"
                problems.append(f"{name} ({reason}{f'; {step.origin}' if step.origin else ''})")
        if problems:
            raise NoStaticLibrary(problems="; ".join(dict.fromkeys(problems)))
        return lines

    def _launch(self, step: LaunchStep) -> list[str]:
        if any(isinstance(value, Ref) for value in step.floats):
            raise Refused("it takes a number that changes")
        return [line for slots, ints, units in step.each_row() for line in self._launch_row(step, slots, ints, units)]

    def _launch_row(self, step: LaunchStep, slots: Sequence[Slot], sizes: Sequence[Int], units: Int) -> list[str]:
        kernel = self.kernels[step.kernel]
        tensors = ", ".join(self.places.address(slot) for slot in slots)
        ints = ", ".join(self.number(value) for value in sizes)
        floats = ", ".join(float_text(value) if isinstance(value, float) else self.number(value)  # type: ignore[arg-type]
                           for value in step.floats)  # fmt: skip
        scratch = self.places.scratch(kernel.scratch_bytes + step.scratch_bytes)
        return [
            "{",
            f"  void* const tensors[] = {{{tensors}}};",
            f"  const i64 ints[] = {{{ints or 0}}};",
            f"  const f64 floats[] = {{{floats or 0}}};",
            f"  const i64 units = {self.number(units)};",
            f"  {step.kernel}_::{step.kernel}(tensors, ints, floats, 0, units, {scratch}, &status);",
            "  if (status) return (int)status;",
            "}",
        ]

    def _copies(self) -> list[str]:
        """Results that are not computed where the caller wants them."""
        lines = []
        for field in self.interface.outputs:
            if field.name in self.places.direct.values():
                continue
            spec, to = field.spec, f"(u8*)out->{field.name}.data"
            lines += self._copy(to, spec.with_sizes(spec.sizes), self.places.shifted(field.slot, spec), spec)
        return lines

    def _copy(self, to: str, target: TensorSpec, source: str, spec: TensorSpec) -> list[str]:
        texts = [", ".join(map(self.number, numbers)) or "0" for numbers in (spec.sizes, spec.strides, target.strides)]
        names = ("sizes", "from", "to")
        return [
            "{",
            *[f"  const i64 {name}[] = {{{text}}};" for name, text in zip(names, texts, strict=True)],
            f"  copy_elements({to}, to, {source}, from, sizes, {spec.rank}, {spec.dtype.itemsize});",
            "}",
        ]

    def _messages(self) -> list[str]:
        texts = [f'    "{message}",'.replace("\\", "/") for message in self.interface.messages]
        prefix = self.interface.prefix
        return [
            "const char* const messages[] = {",
            *texts,
            "};",
            "}",
            f'extern "C" const char* {prefix}_status(int status) {{',
            f'  return status < 0 || status >= {len(texts)} ? "unknown" : messages[status];',
            "}",
            "namespace {",
        ]


def float_text(value: float) -> str:
    if value != value:
        return '__builtin_nan("")'
    return repr(value) if abs(value) != float("inf") else f"{'-' if value < 0 else ''}__builtin_inf()"


def indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]
