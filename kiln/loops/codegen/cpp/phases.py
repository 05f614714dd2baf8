"""One phase in C++: its loops, the statements at each depth, the effects, the accumulators.

    phase (i1: 1000 vector):                 f64v total_p = all(0.0);
        total[] = sum over (i1): load x[i1]  auto step = [&](i64 i1, auto lanes, f64v& total_p) KILN_LAMBDA {
                                               const f32v v0 = load(in0 + i1, lanes);
                                   =>          total_p = total_p + keep(wide_v0, all(0.0), lanes);
                                             };
                                             for (i64 i1 = 0; i1 < 992; i1 += 16) step(i1, full, total_p);
                                             step(992, Part{8}, total_p);
                                             total = (f32)sum_lanes<f64>(total_p);

The body of the vectorised loop is written once; the last step masks the lanes that are not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

from kiln.loops.codegen.cpp.effects import EffectWriter
from kiln.loops.codegen.cpp.reductions import Register
from kiln.loops.codegen.cpp.statements import CppStatements
from kiln.loops.codegen.kernel_writer import Nest, Storage, indented
from kiln.loops.ir.analyses import flops, phase_writes
from kiln.loops.ir.kernel import Accumulate, Phase, Store
from kiln.loops.ir.nodes import Axis
from kiln.symbolic import is_static

ROLLED = "#pragma GCC unroll 1"
"""Constant sizes must not make g++ write a loop out."""
CHEAP, LIGHT = 4, 12
"""Operations per point up to which a reduction is written with four, with two accumulators side by side."""


@final
class PhaseWriter:
    """Writes one phase; `started` holds the accumulators that earlier phases began."""

    def __init__(
        self, phase: Phase, nest: Nest, storages: Mapping[str, Storage], rows: Mapping[str, Storage],
        width: int, started: set[str],
    ) -> None:  # fmt: skip
        """`rows`: memory of row accumulators (by local name, and `name.at` for indices); `width`: lanes."""
        self.phase, self.nest, self.width = phase, nest, width
        unsettled = frozenset(phase_writes(phase)) | _overlapping(phase)
        self.body = CppStatements(nest, storages, unsettled, width)
        self.copies = side_by_side(phase, nest, width)
        self.effects = EffectWriter(self.body, storages, rows, started, self.copies)

    def lines(self) -> list[str]:
        """The whole phase, in a block of its own."""
        results = self.phase.body.run(self.body)
        for effect in self.phase.effects:
            self.effects.add(effect, results[effect.result])
        inner = [*self.effects.before, *self._level(0)]
        return ["{", *indented(inner), "}"]

    # ------------------------------------------------------------------------------------------ loops

    @property
    def depth(self) -> int:
        return len(self.nest.axes)

    def _level(self, depth: int) -> list[str]:
        """Everything inside of the first `depth` loops."""
        lines = list(self.body.lines[depth])
        mine = [one for one in self.effects.registers if one.depth == depth]
        scans = [one for one in self.effects.scans if one.depth == depth and one.row is None]
        lines += [self.effects.declare_scan(one) for one in scans]
        if depth == self.depth:
            return lines + self.effects.lines
        copies = self.copies if any(self._is_split(one) for one in self.effects.registers) else 1
        for one in mine:
            names = [f"{one.name}{copy}" for copy in range(copies)] if self._is_split(one) else [one.name]
            lines += [f"{one.type_name()} {name} = {one.start()};" for name in names]
        lines += self._loop(depth)
        lines += self.effects.after.get(depth, [])
        for one in mine:
            names = [f"{one.name}{copy}" for copy in range(copies)] if self._is_split(one) else [one.name]
            lines += self.effects.finish(one, names)
        return lines

    def _loop(self, depth: int) -> list[str]:
        axis = self.nest.axes[depth]
        if depth == self.nest.vector:
            return self._vector_loop(axis, depth)
        inner = self._level(depth + 1)
        size = self.body.ints().text(axis.size)
        name = axis.symbol.name
        return [ROLLED, f"for (i64 {name} = 0; {name} < {size}; ++{name}) {{", *indented(inner), "}"]

    def _vector_loop(self, axis: Axis, depth: int) -> list[str]:
        inner = self._level(depth + 1)
        name, width = axis.symbol.name, self.width
        split = [one for one in self.effects.registers if self._is_split(one)]
        needs_lanes = any("lanes" in line for line in inner)
        if is_static(axis.size) and axis.size % width == 0 and (not split or self.copies == 1):
            lanes = ["constexpr Full lanes;"] if needs_lanes else []
            head = f"for (i64 {name} = 0; {name} < {axis.size}; {name} += {width}) {{"
            return [ROLLED, head, *indented([*self._aliases(split), *lanes, *inner]), "}"]
        params = "".join(f", {one.type_name()}& {one.name}" for one in split)
        step = f"step_{name}"
        lines = [f"auto {step} = [&](i64 {name}, auto lanes{params}) KILN_LAMBDA {{", *indented(inner), "};"]
        return lines + self._steps(axis, step, split)

    def _aliases(self, split: Sequence[Register]) -> list[str]:
        return [f"auto& {one.name} = {one.name}0;" for one in split]

    def _steps(self, axis: Axis, step: str, split: Sequence[Register]) -> list[str]:
        """Calls of the step: several with accumulators side by side, single ones, the last with fewer lanes."""
        name, width, copies = axis.symbol.name, self.width, self.copies if split else 1

        def call(at: str, lanes: str, copy: int) -> str:
            return f"{step}({at}, {lanes}{''.join(f', {one.name}{copy}' for one in split)});"

        def group(count: int) -> str:
            texts = [call(name if not copy else f"{name} + {copy * width}", "full", copy) for copy in range(count)]
            return " ".join(texts) if count == 1 else "{ " + " ".join(texts) + " }"

        size = self.body.ints().operand(axis.size)
        if is_static(axis.size):
            return self._static_steps(axis, copies, call, group)
        lines = [f"i64 {name} = 0;"]
        if copies > 1:
            lines.append(ROLLED)
            lines.append(f"for (; {name} + {copies * width} <= {size}; {name} += {copies * width}) {group(copies)}")
        lines.append(ROLLED)
        lines.append(f"for (; {name} + {width} <= {size}; {name} += {width}) {group(1)}")
        lines.append(f"if ({name} < {size}) {call(name, f'Part{{{size} - {name}}}', 0)}")
        return lines

    def _static_steps(self, axis: Axis, copies: int, call: object, group: object) -> list[str]:
        assert callable(call) and callable(group) and is_static(axis.size)
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

    def _is_split(self, register: Register) -> bool:
        """May there be several copies, one per step of the vectorised loop?"""
        return register.across and not register.is_index


def side_by_side(phase: Phase, nest: Nest, width: int) -> int:
    """How many accumulators take turns, so that one addition need not wait for the last."""
    vector = nest.vector
    scans = any(isinstance(one, Accumulate) and one.running is not None for one in phase.effects)
    if vector is None or vector != len(nest.axes) - 1 or scans:
        return 1
    size, cost = nest.axes[vector].size, flops(phase.body)
    most = 4 if cost <= CHEAP else 2 if cost <= LIGHT else 1
    return most if not is_static(size) or size >= 2 * most * width else 1


def _overlapping(phase: Phase) -> frozenset[str]:
    """Buffers that the phase combines into."""
    return frozenset(one.target for one in phase.effects if isinstance(one, Store) and one.combine is not None)
