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
from dataclasses import dataclass
from typing import final

import torch

from kiln.loops.codegen.cpp.dialect import CPP
from kiln.loops.codegen.cpp.reductions import INDEX_OPS, NO_INDEX, Register, accumulated_in, combined, start_text
from kiln.loops.codegen.cpp.statements import CppStatements
from kiln.loops.codegen.dialect import UnsupportedInKernel
from kiln.loops.codegen.kernel_writer import Nest, Place, Storage, Value, Way, indented
from kiln.loops.ir.analyses import flops, phase_writes
from kiln.loops.ir.kernel import Accumulate, Phase, Store
from kiln.loops.ir.nodes import Axis, ReduceOp
from kiln.symbolic import is_static, product

CHEAP, LIGHT = 4, 12
"""Operations per point up to which a reduction is written with four, with two accumulators side by side."""


@final
@dataclass(frozen=True, slots=True)
class Scan:
    """A running combination: its state lives outside of the loop at `depth`, or in a row."""

    effect: Accumulate
    name: str
    dtype: torch.dtype
    depth: int
    lanes: bool
    row: Storage | None


@final
class PhaseWriter:
    """Writes one phase; `started` holds the accumulators that earlier phases began."""

    def __init__(
        self, phase: Phase, nest: Nest, storages: Mapping[str, Storage], rows: Mapping[str, Storage],
        width: int, started: set[str],
    ) -> None:  # fmt: skip
        """`rows`: memory of row accumulators (by local name, and `name.at` for indices); `width`: lanes."""
        self.phase, self.nest, self.storages, self.rows = phase, nest, storages, rows
        self.width, self.started = width, started
        unsettled = frozenset(phase_writes(phase)) | _overlapping(phase)
        self.body = CppStatements(CPP, nest, storages, unsettled)
        self.registers: list[Register] = []
        self.scans: list[Scan] = []
        self.before: list[str] = []
        self.effects: list[str] = []

    def lines(self) -> list[str]:
        """The whole phase, in a block of its own."""
        results = self.phase.body.run(self.body)
        for effect in self.phase.effects:
            self._effect(effect, results[effect.result])
        inner = [*self.before, *self._level(0)]
        return ["{", *indented(inner), "}"]

    # ------------------------------------------------------------------------------------------ loops

    @property
    def depth(self) -> int:
        return len(self.nest.axes)

    def _level(self, depth: int) -> list[str]:
        """Everything inside of the first `depth` loops."""
        lines = list(self.body.lines[depth])
        mine = [one for one in self.registers if one.depth == depth]
        scans = [one for one in self.scans if one.depth == depth and one.row is None]
        lines += [self._declare_scan(one) for one in scans]
        if depth == self.depth:
            return lines + self.effects
        copies = self._copies() if any(self._is_split(one) for one in self.registers) else 1
        for one in mine:
            names = [f"{one.name}{copy}" for copy in range(copies)] if self._is_split(one) else [one.name]
            lines += [f"{one.type_name()} {name} = {one.start()};" for name in names]
        lines += self._loop(depth)
        for one in mine:
            names = [f"{one.name}{copy}" for copy in range(copies)] if self._is_split(one) else [one.name]
            lines += self._finish(one, names)
        return lines

    def _loop(self, depth: int) -> list[str]:
        axis = self.nest.axes[depth]
        if depth == self.nest.vector:
            return self._vector_loop(axis, depth)
        inner = self._level(depth + 1)
        size = self.body.ints().text(axis.size)
        name = axis.symbol.name
        return [f"for (i64 {name} = 0; {name} < {size}; ++{name}) {{", *indented(inner), "}"]

    def _vector_loop(self, axis: Axis, depth: int) -> list[str]:
        inner = self._level(depth + 1)
        name, width = axis.symbol.name, self.width
        split = [one for one in self.registers if self._is_split(one)]
        needs_lanes = any("lanes" in line for line in inner)
        if is_static(axis.size) and axis.size % width == 0 and (not split or self._copies() == 1):
            lanes = ["constexpr Full lanes;"] if needs_lanes else []
            head = f"for (i64 {name} = 0; {name} < {axis.size}; {name} += {width}) {{"
            return [head, *indented([*self._aliases(split), *lanes, *inner]), "}"]
        params = "".join(f", {one.type_name()}& {one.name}" for one in split)
        step = f"step_{name}"
        lines = [f"auto {step} = [&](i64 {name}, auto lanes{params}) KILN_LAMBDA {{", *indented(inner), "};"]
        return lines + self._steps(axis, step, split)

    def _aliases(self, split: Sequence[Register]) -> list[str]:
        return [f"auto& {one.name} = {one.name}0;" for one in split]

    def _steps(self, axis: Axis, step: str, split: Sequence[Register]) -> list[str]:
        """Calls of the step: several with accumulators side by side, single ones, the last with fewer lanes."""
        name, width, copies = axis.symbol.name, self.width, self._copies() if split else 1

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
            lines.append(f"for (; {name} + {copies * width} <= {size}; {name} += {copies * width}) {group(copies)}")
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
                lines.append(f"for (i64 {name} = {at}; {name} < {end}; {name} += {count * width}) {group(count)}")
            at = end
        if at < size:
            lines.append(call(str(at), f"Part{{{size - at}}}", 0))
        return lines

    # ------------------------------------------------------------------------------------------ stores

    def _effect(self, effect: Store | Accumulate, value: Value) -> None:
        if isinstance(effect, Store):
            self._store(effect, value)
        elif effect.running is not None:
            self._scan(effect, effect.running, value)
        else:
            self._accumulate(effect, value)

    def _place(self, target: str, effect: Store | Accumulate) -> tuple[Storage, Place]:
        storage = self.storages[target]
        return storage, self.nest.place(storage.spec, effect.index)

    def _store(self, effect: Store, value: Value) -> None:
        storage, place = self._place(effect.target, effect)
        if storage.number:
            self.effects.append(f"{storage.name} = {self._as_stored(value, storage)};")
            return
        self.effects += self._store_lines(storage, place, value, effect.combine)

    def _as_stored(self, value: Value, storage: Storage) -> str:
        """The value in the type that the storage's dtype is computed in."""
        dtype = CPP.computed(storage.spec.dtype)
        return value.text if CPP.computed(value.dtype) == dtype else self.body.convert(value, dtype)

    def _store_lines(self, storage: Storage, place: Place, value: Value, combine: ReduceOp | None) -> list[str]:
        here = self.body.pointer(storage, place.offset)
        text = self._as_stored(value, storage)
        dtype = CPP.computed(storage.spec.dtype)
        if self.nest.vector is None:
            both = text if combine is None else combined(combine, f"get({here})", text, dtype)
            return [f"put({here}, {both});"]
        vector = text if value.varying else f"all({text})"
        if combine is not None and place.way is not Way.NEXT:
            return self._each_lane(storage, place, vector, combine, dtype)
        if combine is not None:
            vector = combined(combine, f"load({here}, lanes)", vector, dtype)
        if place.way is Way.NEXT:
            return [f"store({here}, {vector}, lanes);"]
        if place.way is Way.STEP:
            return [f"store_step({here}, {self.body.ints().text(place.step)}, {vector}, lanes);"]
        if place.way is Way.ONE:
            return [f"store_step({here}, 0, {vector}, lanes);" if value.varying else f"put({here}, {text});"]
        return [f"scatter({storage.name}, {self.body.lane_ints().text(place.offset)}, {vector}, lanes);"]

    def _each_lane(
        self, storage: Storage, place: Place, vector: str, combine: ReduceOp, dtype: torch.dtype
    ) -> list[str]:
        """Combine lane by lane, because two lanes may hit one place."""
        at = self.body.ints() if place.way is Way.ONE else self.body.lane_ints()
        offset = at.operand(place.offset) if place.way is Way.ONE else f"({at.text(place.offset)})[k]"
        one = "each[k] != 0" if dtype == torch.bool else "each[k]"
        name = CPP.dtype_name(dtype)
        return [
            "for (i64 k = 0; k < lanes.n; ++k) {",
            f"  const auto each = {vector};",
            f"  auto* p = {storage.name} + {offset};",
            f"  put(p, ({name})({combined(combine, 'get(p)', f'({name})({one})', dtype)}));",
            "}",
        ]

    # ------------------------------------------------------------------------------------------ accumulators

    def _outer_depth(self, effect: Accumulate) -> int | None:
        """Depth outside of all reduced loops if no kept loop runs inside of them, else None."""
        reduced = [place for place, axis in enumerate(self.nest.axes) if axis in effect.over]
        kept = [place for place, axis in enumerate(self.nest.axes) if axis not in effect.over]
        first = min(reduced, default=self.depth)
        return first if all(place < first for place in kept) else None

    def _is_split(self, register: Register) -> bool:
        """May there be several copies, one per step of the vectorised loop?"""
        return register.across and not register.is_index

    def _copies(self) -> int:
        """Accumulators side by side, so that one addition need not wait for the last."""
        vector = self.nest.vector
        if vector is None or vector != self.depth - 1 or self.scans:
            return 1
        size = self.nest.axes[vector].size
        cost = flops(self.phase.body)
        most = 4 if cost <= CHEAP else 2 if cost <= LIGHT else 1
        return most if not is_static(size) or size >= 2 * most * self.width else 1

    def _accumulate(self, effect: Accumulate, value: Value) -> None:
        dtype = accumulated_in(effect.op, value.dtype)
        depth = self._outer_depth(effect)
        if depth is None:
            self._accumulate_row(effect, value, dtype)
            return
        vector = self.nest.vector
        lanes = vector is not None
        across = vector is not None and self.nest.axes[vector] in effect.over
        register = Register(effect, f"{effect.target}_p", dtype, depth, lanes, across)
        self.registers.append(register)
        text = self._wide(value, dtype, lanes)
        if register.is_index:
            at = self.body.lane_ints() if across else self.body.ints()
            index = at.text(effect.over[0].symbol)
            index = index if across or not lanes else f"all({index})"
            real = "active(lanes)" if lanes else "true"
            self.effects.append(f"take<{register.largest}>({register.name}, {text}, {index}, {real});")
            return
        if across:
            text = f"keep({text}, all({start_text(effect.op, dtype)}), lanes)"
        self.effects.append(f"{register.name} = {combined(effect.op, register.name, text, dtype)};")

    def _wide(self, value: Value, dtype: torch.dtype, lanes: bool) -> str:
        """The value as it is accumulated, as a vector if `lanes`."""
        text = value.text if CPP.computed(value.dtype) == dtype else self.body.convert(value, dtype)
        return text if value.varying or not lanes else f"all({text})"

    def _finish(self, register: Register, copies: list[str]) -> list[str]:
        """Store the accumulated value into its local."""
        effect = register.effect
        text = register.merge(copies)
        lanes = register.lanes and not register.across
        if register.across:
            text = register.lanes_combined(text)
        if register.is_index:
            text = f"{text}.at" if " " not in text else f"({text}).at"
        result = torch.int64 if register.is_index else register.dtype
        return self._combine_into(effect, Value(f"({text})" if " " in text else text, result, lanes))

    def _combine_into(self, effect: Accumulate, value: Value) -> list[str]:
        storage, place = self._place(effect.target, effect)
        started = effect.target in self.started
        if started and effect.op in INDEX_OPS:
            raise UnsupportedInKernel(language="C++", thing="an index reduction", reason="two phases feed it")
        if storage.number:
            text = self._as_stored(value, storage)
            if started:
                text = combined(effect.op, storage.name, text, CPP.computed(storage.spec.dtype))
            return [f"{storage.name} = {text};"]
        if place.way is Way.ONE and not value.varying:
            here, text = self.body.pointer(storage, place.offset), self._as_stored(value, storage)
            if started:
                text = combined(effect.op, f"get({here})", text, CPP.computed(storage.spec.dtype))
            return [f"put({here}, {text});"]
        return self._store_lines(storage, place, value, effect.op if started else None)

    def _accumulate_row(self, effect: Accumulate, value: Value, dtype: torch.dtype) -> None:
        """Accumulators in memory, one per point of the kept axes."""
        row, place = self._place(effect.target, effect)
        if effect.op in INDEX_OPS:
            self._accumulate_best(effect, value, row, place)
            return
        held = CPP.computed(row.spec.dtype)
        if effect.target not in self.started:
            self._fill(row, start_text(effect.op, held))
        vector = self.nest.vector
        lanes = vector is not None
        text = self._wide(value, held, lanes)
        if lanes and place.way is Way.ONE:
            register = Register(effect, "", held, 0, True, True)
            text = register.lanes_combined(f"keep({text}, all({start_text(effect.op, held)}), lanes)")
            here = self.body.pointer(row, place.offset)
            self.effects.append(f"put({here}, {combined(effect.op, f'get({here})', text, held)});")
            return
        self.effects += self._store_lines(row, place, Value(text, row.spec.dtype, lanes), effect.op)

    def _fill(self, row: Storage, start: str) -> None:
        count = self.body.ints().text(product(row.spec.sizes))
        name = CPP.dtype_name(row.spec.dtype)
        self.before.append(f"fill({row.name}, {count}, ({name}){start});")

    def _accumulate_best(self, effect: Accumulate, value: Value, row: Storage, place: Place) -> None:
        """Rows of the best value and its index."""
        best = self.rows[f"{effect.target}.best"]
        self._fill(best, start_text(effect.op, best.spec.dtype))
        self._fill(row, NO_INDEX)
        lanes = self.nest.vector is not None
        if lanes and place.way is not Way.NEXT:
            raise UnsupportedInKernel(language="C++", thing="an index reduction", reason="its lanes are mixed")
        read, end = ("load({0}, lanes)", ", lanes") if lanes else ("get({0})", "")
        value_at, index_at = (self.body.pointer(one, place.offset) for one in (best, row))
        index = self.body.ints().text(effect.over[0].symbol)
        write = "store" if lanes else "put"
        self.effects += [
            f"Best<decltype({read.format(value_at)}), decltype({read.format(index_at)})> "
            f"{effect.target}_p = {{{read.format(value_at)}, {read.format(index_at)}}};",
            f"take<{'true' if effect.op is ReduceOp.ARGMAX else 'false'}>({effect.target}_p, "
            f"{self._wide(value, best.spec.dtype, lanes)}, {f'all((i64){index})' if lanes else f'(i64){index}'}, "
            f"{'active(lanes)' if lanes else 'true'});",
            f"{write}({value_at}, {effect.target}_p.value{end});",
            f"{write}({index_at}, {effect.target}_p.at{end});",
        ]

    # ------------------------------------------------------------------------------------------ scans

    def _scan(self, effect: Accumulate, running: Store, value: Value) -> None:
        dtype = accumulated_in(effect.op, value.dtype)
        depth = self._outer_depth(effect)
        name = f"{effect.target}_p"
        vector = self.nest.vector
        along = vector is not None and self.nest.axes[vector] in effect.over
        lanes = vector is not None and not along
        row = None if depth is not None else self.storages[effect.target]
        self.scans.append(Scan(effect, name, dtype, 0 if depth is None else depth, lanes, row))
        storage, place = self._place(running.target, running)
        if along:
            one = combined(effect.op, "a", "b", dtype)
            text = self._wide(value, CPP.computed(value.dtype), True)
            after = f"scan_lanes({text}, {name}, lanes, [](auto a, auto b) {{ return {one}; }})"
            result = Value(after, value.dtype, True)
        else:
            result = self._scan_step(effect, value, dtype, name, row, lanes)
        self.effects += self._store_lines(storage, place, result, None)

    def _scan_step(
        self, effect: Accumulate, value: Value, dtype: torch.dtype, name: str, row: Storage | None, lanes: bool
    ) -> Value:
        """One step that does not run along the lanes; the value after it."""
        text = self._wide(value, dtype, lanes)
        if row is None:
            self.effects.append(f"{name} = {combined(effect.op, name, text, dtype)};")
            return Value(name, dtype, lanes)
        held = CPP.computed(row.spec.dtype)
        self._fill(row, start_text(effect.op, held))
        here = self.body.pointer(row, self.nest.place(row.spec, effect.index).offset)
        read = f"load({here}, lanes)" if lanes else f"get({here})"
        text = self._wide(value, held, lanes)
        kind = CPP.dtype_name(held) + ("v" if lanes else "")
        self.effects.append(f"const {kind} {name} = {combined(effect.op, read, text, held)};")
        self.effects.append(f"store({here}, {name}, lanes);" if lanes else f"put({here}, {name});")
        return Value(name, row.spec.dtype, lanes)

    def _declare_scan(self, scan: Scan) -> str:
        value = CPP.dtype_name(scan.dtype)
        start = start_text(scan.effect.op, scan.dtype)
        return f"{value}v {scan.name} = all({start});" if scan.lanes else f"{value} {scan.name} = {start};"


def _overlapping(phase: Phase) -> frozenset[str]:
    """Buffers that the phase combines into."""
    return frozenset(one.target for one in phase.effects if isinstance(one, Store) and one.combine is not None)
