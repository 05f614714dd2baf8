"""One phase in C++: its loops, the statements at each depth, the effects, the accumulators.

    phase (i1: 1000 vector):                 f64v total_p = all(0.0);
        total[] = sum over (i1): load x[i1]  auto step = [&](i64 i1, auto lanes, f64v& total_p) KILN_LAMBDA {
                                               const f32v v0 = load(in0 + i1, lanes);
                                   =>          total_p = total_p + keep(wide_v0, all(0.0), lanes);
                                             };
                                             for (i64 i1 = 0; i1 < 992; i1 += 16) step(i1, full, total_p);
                                             step(992, Part{8}, total_p);
                                             total = (f32)sum_lanes<f64>(total_p);

The body of the vectorised loop is written once; the last step masks the missing lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import final

from kiln.loops.body.analyses import flops
from kiln.loops.body.indexing import Axis
from kiln.loops.codegen.cpp.blocked_sums import BLOCK, ROW_BLOCK
from kiln.loops.codegen.cpp.effects import CppEffects
from kiln.loops.codegen.cpp.reductions import Register
from kiln.loops.codegen.cpp.statements import CppStatements
from kiln.loops.codegen.kernel_writer import Nest, Storage, indented
from kiln.loops.kernel.analyses import phase_writes
from kiln.loops.kernel.cuts import only_moves
from kiln.loops.kernel.kernel import Accumulate, Phase
from kiln.symbolic import is_static

ROLLED = "#pragma GCC unroll 1"
"""Keeps g++ from unrolling loops of constant size."""
UNROLLED = "#pragma GCC unroll 16"
CHEAP, LIGHT = 4, 12
"""Operations per point up to which a reduction has four, or two, accumulators side by side."""


@final
class CppPhaseWriter:
    def __init__(
        self, phase: Phase, nest: Nest, storages: Mapping[str, Storage], rows: Mapping[tuple[str, str], Storage],
        width: int, started: set[str],
    ) -> None:  # fmt: skip
        """`rows`: memory of "best" values and "block" sums, by local and use; `width`: lanes; `started`: accumulators
        that earlier phases began."""
        self.phase, self.nest, self.width = phase, nest, width
        self.body = CppStatements(nest, storages, frozenset(phase_writes(phase)), width)
        self.copies = side_by_side(phase, nest, width)
        self.effects = CppEffects(self.body, storages, rows, started, self.copies)

    def lines(self) -> list[str]:
        results = self.phase.body.run(self.body)
        for effect in self.phase.effects:
            self.effects.add(effect, results[effect.result])
        inner = [*self.effects.before, *self._level(0)]
        return ["{", *indented(inner), "}"]

    @property
    def depth(self) -> int:
        return len(self.nest.axes)

    def _level(self, depth: int) -> list[str]:
        lines = list(self.body.lines[depth])
        mine = [register for register in self.effects.registers if register.depth == depth]
        scans = [scan for scan in self.effects.scans if scan.depth == depth and scan.row is None]
        lines += [self.effects.declare_scan(scan) for scan in scans]
        if depth == self.depth:
            return lines + self.effects.lines
        copies = self.copies if any(register.is_split for register in self.effects.registers) else 1
        for register in mine:
            lines += [f"{register.type_name()} {name} = {register.start()};" for name in self._names(register, copies)]
        lines += self._loop(depth)
        lines += self.effects.after.get(depth, [])
        for register in mine:
            lines += self.effects.finish(register, self._names(register, copies))
        return lines

    def _names(self, register: Register, copies: int) -> list[str]:
        """The variables of a register around its loops."""
        if register.blocked:
            return [f"{register.name}_all"]
        return [f"{register.name}{copy}" for copy in range(copies)] if register.is_split else [register.name]

    def _loop(self, depth: int) -> list[str]:
        axis = self.nest.axes[depth]
        if depth == self.nest.vector:
            return self._vector_loop(axis, depth)
        inner = self._level(depth + 1)
        size = self.body.ints().text(axis.size)
        name = axis.symbol.name
        rows = self.effects.block_rows.get(depth)
        if not rows:
            head = f"for (i64 {name} = 0; {name} < {size}; ++{name}) {{"
            return [self._rolled(axis, depth), head, *indented(inner), "}"]
        lines = [_cleared(block, count) for _, block, count in rows]
        lines.append(f"const i64 to_{name} = min({self.body.ints().operand(axis.size)}, from_{name} + {ROW_BLOCK});")
        lines += [ROLLED, f"for (i64 {name} = from_{name}; {name} < to_{name}; ++{name}) {{", *indented(inner), "}"]
        lines += [f"add_row({row.name}, {block.name}, {count});" for row, block, count in rows]
        head = f"for (i64 from_{name} = 0; from_{name} < {size}; from_{name} += {ROW_BLOCK}) {{"
        return [ROLLED, head, *indented(lines), "}"]

    def _rolled(self, axis: Axis, depth: int) -> str:
        """A few steps for each vector are written one after the other."""
        few = is_static(axis.size) and axis.size <= self.width
        return UNROLLED if few and self.nest.vector is not None and depth > self.nest.vector else ROLLED

    def _vector_loop(self, axis: Axis, depth: int) -> list[str]:
        inner = self._level(depth + 1)
        name, width = axis.symbol.name, self.width
        split = [register for register in self.effects.registers if register.is_split]
        needs_lanes = any("lanes" in line for line in inner)
        plain = not any(register.blocked for register in split) and (not split or self.copies == 1)
        plain = plain and not self.nest.cuts
        if is_static(axis.size) and axis.size % width == 0 and plain:
            lanes = ["constexpr Full lanes;"] if needs_lanes else []
            head = f"for (i64 {name} = 0; {name} < {axis.size}; {name} += {width}) {{"
            aliases = [f"auto& {register.name} = {register.name}0;" for register in split]
            return [ROLLED, head, *indented([*aliases, *lanes, *inner]), "}"]
        params = "".join(f", {register.type_name(step=True)}& {register.name}" for register in split)
        step = f"step_{name}"
        lines = [f"auto {step} = [&](i64 {name}, auto lanes{params}) KILN_LAMBDA {{", *indented(inner), "};"]
        return lines + (self._cut_steps(axis, step) if self.nest.cuts else self._steps(axis, step, split))

    def _cut_steps(self, axis: Axis, step: str) -> list[str]:
        """The steps of each part between cuts; the last one moves some numbers again, or has fewer lanes."""
        name, width, ints = axis.symbol.name, self.width, self.body.ints()
        end = f"end_{name}"
        cuts = [f"{end} = cut({name}, {ints.text(cut)}, {end});" for cut in self.nest.cuts]
        last = f"{step}({name}, Part{{{end} - {name}}});"
        if only_moves(self.phase):
            last = f"{end} - from_{name} < {width} ? {last[:-1]} : {step}({end} - {width}, full);"
        part = [
            f"const i64 from_{name} = {name};", f"i64 {end} = {ints.text(axis.size)};", *cuts, ROLLED,
            f"for (; {name} + {width} <= {end}; {name} += {width}) {step}({name}, full);",
            f"if ({name} < {end}) {last}",
            f"{name} = {end};",
        ]  # fmt: skip
        return [ROLLED, f"for (i64 {name} = 0; {name} < {ints.text(axis.size)};) {{", *indented(part), "}"]

    def _steps(self, axis: Axis, step: str, split: Sequence[Register]) -> list[str]:
        """Calls of the step: several with accumulators side by side, single ones, the last with fewer lanes."""
        name, width, copies = axis.symbol.name, self.width, self.copies if split else 1

        def call(at: str, lanes: str, copy: int) -> str:
            return f"{step}({at}, {lanes}{''.join(f', {register.name}{copy}' for register in split)});"

        def group(count: int) -> str:
            texts = [call(name if not copy else f"{name} + {copy * width}", "full", copy) for copy in range(count)]
            return " ".join(texts) if count == 1 else "{ " + " ".join(texts) + " }"

        size, points = self.body.ints().operand(axis.size), BLOCK * copies * width
        blocked = [register for register in split if register.blocked]
        cleared = [f"f32v {register.name}{copy} = all(0.0f);" for register in blocked for copy in range(copies)]
        ends = [self._end_of_block(register, copies) for register in blocked]
        if is_static(axis.size) and (not blocked or axis.size <= points):
            return [*cleared, *self._static_steps(axis, copies, call, group), *ends]
        start, end = ("from", "to") if blocked else ("0", size)
        lines = [*cleared, f"i64 {name} = {start};"]
        if copies > 1:
            lines.append(ROLLED)
            lines.append(f"for (; {name} + {copies * width} <= {end}; {name} += {copies * width}) {group(copies)}")
        lines.append(ROLLED)
        lines.append(f"for (; {name} + {width} <= {end}; {name} += {width}) {group(1)}")
        lines.append(f"if ({name} < {end}) {call(name, f'Part{{{end} - {name}}}', 0)}")
        if not blocked:
            return lines
        head = f"for (i64 from = 0; from < {size}; from += {points}) {{"
        return [ROLLED, head, *indented([f"const i64 to = min({size}, from + {points});", *lines, *ends]), "}"]

    def _end_of_block(self, register: Register, copies: int) -> str:
        total = register.merge([f"{register.name}{copy}" for copy in range(copies)])
        return f"{register.name}_all = {register.name}_all + __builtin_convertvector({total}, f64v);"

    def _static_steps(
        self, axis: Axis, copies: int, call: Callable[[str, str, int], str], group: Callable[[int], str]
    ) -> list[str]:
        assert is_static(axis.size)
        name, width, size = axis.symbol.name, self.width, axis.size
        lines, at = [], 0
        for count in dict.fromkeys((copies, 1)):
            end = at + (size - at) // (count * width) * (count * width)
            if end - at == count * width:
                lines.append(f"{{ constexpr i64 {name} = {at}; {group(count)} }}")
            elif end > at:
                lines.append(ROLLED)
                lines.append(f"for (i64 {name} = {at}; {name} < {end}; {name} += {count * width}) {group(count)}")
            at = end
        if at < size:
            lines.append(call(str(at), f"Part{{{size - at}}}", 0))
        return lines


def _cleared(block: Storage, count: str) -> str:
    return f"clear_row({block.name}, {count});" if len(block.spec.sizes) == 1 else f"fill({block.name}, {count}, 0.0f);"


def side_by_side(phase: Phase, nest: Nest, width: int) -> int:
    """How many accumulators take turns, so that an addition need not wait for the previous one."""
    vector = nest.vector
    scans = any(isinstance(effect, Accumulate) and effect.running is not None for effect in phase.effects)
    if vector is None or vector != len(nest.axes) - 1 or scans:
        return 1
    size, cost = nest.axes[vector].size, flops(phase.body)
    most = 4 if cost <= CHEAP else 2 if cost <= LIGHT else 1
    return most if not is_static(size) or size >= 2 * most * width else 1
