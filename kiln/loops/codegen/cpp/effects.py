"""The effects of a phase in C++: stores, accumulators, scans.

    out[i0, i1] = v2              store(out2 + (64*i0 + i1), v2, lanes);
    total[] = sum over (i1): v0   total_p = total_p + keep(__builtin_convertvector(v0, f64v), all(0.0), lanes);
    low[i1] = amin over (i0): v0  store(low + i1, minimum(load(low + i1, lanes), v0), lanes);

An accumulator whose kept loops are all outside of its reduced ones is a register, declared where the reduced loops
begin and finished where they end; others are rows in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import torch

from kiln.loops.body.indexing import Axis
from kiln.loops.codegen.cpp.blocked_sums import is_short, loop_of_blocks, sums_in_blocks, worth_blocks
from kiln.loops.codegen.cpp.dialect import CPP
from kiln.loops.codegen.cpp.reductions import FIRST_INDEX, Register, accumulated_in, start_text
from kiln.loops.codegen.cpp.statements import LANES, CppStatements
from kiln.loops.codegen.effects import INDEX_OPS, EffectWriter, combined
from kiln.loops.codegen.kernel_writer import NUMBER, Access, AccessPattern, Storage, TextValue
from kiln.loops.kernel.kernel import Accumulate, Store
from kiln.loops.program.nodes import ReduceOp
from kiln.support.records import dataclass
from kiln.symbolic import Int, product


@final
@dataclass(frozen=True, slots=True)
class RunningState:
    """A running combination: its state lives outside of the loop at `depth`, or in a row."""

    effect: Accumulate
    name: str
    dtype: torch.dtype
    depth: int
    lanes: bool
    row: Storage | None


@final
class CppEffects(EffectWriter):
    def __init__(
        self,
        body: CppStatements,
        storages: Mapping[str, Storage],
        rows: Mapping[tuple[str, str], Storage],
        started: set[str],
        copies: int,
    ) -> None:
        """`rows`: memory of "best" values and "block" sums, by local and use; `started`: accumulators that earlier
        phases began; `copies`: registers that take turns in one reduction."""
        self.copies = copies
        self.body, self.nest = body, body.nest
        self.storages, self.rows, self.started = storages, rows, started
        self.registers: list[Register] = []
        self.scans: list[RunningState] = []
        self.before: list[str] = []
        self.lines: list[str] = []
        self.after: dict[int, list[str]] = {}
        self.block_rows: dict[int, list[tuple[Storage, Storage, str]]] = {}
        """By loop: rows, the rows that hold the sum of a block, and how many elements they have."""

    def _access(self, target: str, effect: Store | Accumulate) -> tuple[Storage, Access]:
        storage = self.storages[target]
        return storage, self.nest.access(storage.spec, effect.index)

    def store(self, effect: Store, value: TextValue) -> None:
        storage, access = self._access(effect.target, effect)
        if storage.number:
            self.lines.append(f"{storage.name} = {self._as_stored(value, storage)};")
            return
        self.lines += self._store_lines(storage, access, value, effect.combine)

    def _as_stored(self, value: TextValue, storage: Storage) -> str:
        """The value in the type in which the storage's dtype is computed."""
        dtype = CPP.computed(storage.spec.dtype)
        return value.text if CPP.computed(value.dtype) == dtype else self.body.convert(value, dtype)

    def _store_lines(self, storage: Storage, access: Access, value: TextValue, combine: ReduceOp | None) -> list[str]:
        here = self.body.pointer(storage, access.offset)
        text = self._as_stored(value, storage)
        dtype = CPP.computed(storage.spec.dtype)
        if self.nest.vector is None:
            both = text if combine is None else combined(combine, f"get({here})", text, dtype)
            return [f"put({here}, {both});"]
        vector = text if value.varying else f"all({text})"
        if combine is not None and access.pattern is not AccessPattern.CONTIGUOUS:
            return self._each_lane(storage, access, vector, combine, dtype)
        lanes = "lanes" if combine is None else self._lanes_of(storage, access)
        if combine is not None:
            vector = combined(combine, f"load({here}, {lanes})", vector, dtype)
        if access.pattern is AccessPattern.CONTIGUOUS:
            return [f"store({here}, {vector}, {lanes});"]
        if access.pattern is AccessPattern.STRIDED:
            along = self.body.tile_axis(access)
            if along is not None and combine is None:
                return [self._store_tile(storage, access, along, vector)]
            return [f"store_step({here}, {self.body.ints().text(access.step)}, {vector}, lanes);"]
        if access.pattern is AccessPattern.UNIFORM:
            return [f"store_step({here}, 0, {vector}, lanes);" if value.varying else f"put({here}, {text});"]
        return [f"scatter({storage.name}, {self.body.lane_ints().text(access.offset)}, {vector}, lanes);"]

    def _lanes_of(self, row: Storage, access: Access) -> str:
        """Those of an accumulator in memory: all where nothing ends inside of a vector. What is beyond is not read."""
        vector = self.nest.vector
        return "full" if row.whole and vector is not None and access.offset == self.nest.lane_symbol else "lanes"

    def _store_tile(self, storage: Storage, access: Access, along: Axis, vector: str) -> str:
        """The vectors of the inner loop are collected; after it they are transposed and written in order."""
        name, before, first = self.body.declare_tile(storage, access, along)
        step, rows = self.body.ints().text(access.step), self.body.ints().text(along.size)
        here = self.body.pointer(storage, first)
        self.after.setdefault(before, []).append(f"store_tile({here}, {step}, {rows}, {name}, lanes);")
        return f"store({name} + W*{along.symbol}, {vector}, full);"

    def _each_lane(
        self, storage: Storage, access: Access, vector: str, combine: ReduceOp, dtype: torch.dtype
    ) -> list[str]:
        """Lane by lane, because two lanes may address the same element."""
        same = access.pattern is AccessPattern.UNIFORM
        offset = self.body.ints().operand(access.offset) if same else "at[k]"
        spilled = [f"  alignas(64) i64 at[W];  spill(at, {self.body.lane_ints().text(access.offset)});"]
        held, one = ("i32", "each[k] != 0") if dtype == torch.bool else (CPP.dtype_name(dtype), "each[k]")
        name = CPP.dtype_name(dtype)
        return [
            "{",
            *([] if same else spilled),
            f"  alignas(64) {held} each[W];  spill(each, {vector});",
            "  for (i64 k = 0; k < lanes.n; ++k) {",
            f"    auto* p = {storage.name} + {offset};",
            f"    put(p, ({name})({combined(combine, 'get(p)', f'({name})({one})', dtype)}));",
            "  }",
            "}",
        ]

    def _outer_depth(self, effect: Accumulate) -> int | None:
        """Depth outside of all reduced loops if no kept loop is inside of them, else None."""
        reduced = [position for position, axis in enumerate(self.nest.axes) if axis in effect.over]
        kept = [position for position, axis in enumerate(self.nest.axes) if axis not in effect.over]
        first = min(reduced, default=self.depth)
        return first if all(position < first for position in kept) else None

    def accumulate(self, effect: Accumulate, value: TextValue) -> None:
        dtype = accumulated_in(effect.op, value.dtype)
        depth = self._outer_depth(effect)
        if depth is None:
            self._accumulate_row(effect, value, dtype)
            return
        vector = self.nest.vector
        lanes = vector is not None
        across = vector is not None and self.nest.axes[vector] in effect.over
        given = CPP.computed(value.dtype)
        each = self.body.width * self.copies if across else 1
        if lanes and dtype == torch.float64 and is_short(effect, each):
            dtype = given
        blocked = vector is not None and across and sums_in_blocks(effect.op, given, dtype)
        blocked = blocked and worth_blocks(self.nest.axes, vector or 0, self.body.width * self.copies)
        register = Register(effect, f"{effect.target}_p", dtype, depth, lanes, across, blocked)
        self.registers.append(register)
        dtype = register.step_dtype
        text = self._wide(value, dtype, lanes)
        if register.is_index:
            at = self.body.lane_ints(register.index == "i32") if across else self.body.ints()
            index = at.text(effect.over[0].symbol)
            index = index if across or not lanes else f"all({index})"
            real = "active(lanes)" if lanes else "true"
            self.lines.append(f"take<{register.takes_largest}>({register.name}, {text}, {index}, {real});")
            return
        if across:
            text = f"keep({text}, all({start_text(effect.op, dtype)}), lanes)"
        self.lines.append(f"{register.name} = {combined(effect.op, register.name, text, dtype)};")

    def _wide(self, value: TextValue, dtype: torch.dtype, lanes: bool) -> str:
        """The value in the type of the accumulator, as a vector if `lanes`."""
        text = value.text if CPP.computed(value.dtype) == dtype else self.body.convert(value, dtype)
        return text if value.varying or not lanes else f"all({text})"

    def finish(self, register: Register, copies: list[str]) -> list[str]:
        effect = register.effect
        text = register.merge(copies)
        lanes = register.lanes and not register.across
        if register.across:
            text = register.lanes_combined(text)
        if register.is_index:
            text = f"{text}.at" if " " not in text else f"({text}).at"
        result = torch.int64 if register.is_index else register.dtype
        text = f"({text})" if " " in text else text
        return self._combine_into(effect, TextValue(text, result, LANES if lanes else NUMBER))

    def _combine_into(self, effect: Accumulate, value: TextValue) -> list[str]:
        storage, access = self._access(effect.target, effect)
        started = effect.target in self.started
        if started and effect.op in INDEX_OPS:
            raise CPP.unsupported("an index reduction", "two phases accumulate into it")
        if storage.number:
            text = self._as_stored(value, storage)
            if started:
                text = combined(effect.op, storage.name, text, CPP.computed(storage.spec.dtype))
            return [f"{storage.name} = {text};"]
        if access.pattern is AccessPattern.UNIFORM and not value.varying:
            here, text = self.body.pointer(storage, access.offset), self._as_stored(value, storage)
            if started:
                text = combined(effect.op, f"get({here})", text, CPP.computed(storage.spec.dtype))
            return [f"put({here}, {text});"]
        return self._store_lines(storage, access, value, effect.op if started else None)

    def _accumulate_row(self, effect: Accumulate, value: TextValue, dtype: torch.dtype) -> None:
        """Accumulators in memory, one per point of the kept axes."""
        row, access = self._access(effect.target, effect)
        if effect.op in INDEX_OPS:
            self._accumulate_best(effect, value, row, access)
            return
        held = CPP.computed(row.spec.dtype)
        vector = self.nest.vector
        lanes = vector is not None
        loop = loop_of_blocks(effect, self.nest.axes, vector)
        block = self.rows.get((effect.target, "block"))
        if block is not None and loop is not None and access.pattern is AccessPattern.CONTIGUOUS:
            count = self.body.ints().text(touched(row, access, self.nest.axes[-1]))
            self.block_rows.setdefault(loop, []).append((row, block, count))
            here, real = self.body.pointer(block, access.offset), self._lanes_of(block, access)
            text = self._wide(value, block.spec.dtype, lanes)
            self.lines.append(f"store({here}, load({here}, {real}) + {text}, {real});")
            if effect.target not in self.started:
                self._fill(row, start_text(effect.op, held), count)
            return
        if effect.target not in self.started:
            self._fill(row, start_text(effect.op, held))
        text = self._wide(value, held, lanes)
        if lanes and access.pattern is AccessPattern.UNIFORM:
            register = Register(effect, "", held, 0, True, True)
            text = register.lanes_combined(f"keep({text}, all({start_text(effect.op, held)}), lanes)")
            here = self.body.pointer(row, access.offset)
            self.lines.append(f"put({here}, {combined(effect.op, f'get({here})', text, held)});")
            return
        dims = LANES if lanes else NUMBER
        self.lines += self._store_lines(row, access, TextValue(text, row.spec.dtype, dims), effect.op)

    def _fill(self, row: Storage, start: str, count: str = "") -> None:
        count = count or self.body.ints().text(product(row.spec.sizes))
        name = CPP.dtype_name(row.spec.dtype)
        self.before.append(f"fill({row.name}, {count}, ({name}){start});")

    def _accumulate_best(self, effect: Accumulate, value: TextValue, row: Storage, access: Access) -> None:
        best = self.rows[effect.target, "best"]
        self._fill(best, start_text(effect.op, best.spec.dtype))
        self._fill(row, FIRST_INDEX)
        lanes = self.nest.vector is not None
        if lanes and access.pattern is not AccessPattern.CONTIGUOUS:
            raise CPP.unsupported("an index reduction", "the vector axis is not contiguous in the row")
        read, end = ("load({0}, lanes)", ", lanes") if lanes else ("get({0})", "")
        value_at, index_at = (self.body.pointer(kept, access.offset) for kept in (best, row))
        index = self.body.ints().text(effect.over[0].symbol)
        write = "store" if lanes else "put"
        self.lines += [
            f"Best<decltype({read.format(value_at)}), decltype({read.format(index_at)})> "
            f"{effect.target}_p = {{{read.format(value_at)}, {read.format(index_at)}}};",
            f"take<{'true' if effect.op is ReduceOp.ARGMAX else 'false'}>({effect.target}_p, "
            f"{self._wide(value, best.spec.dtype, lanes)}, {f'all((i64){index})' if lanes else f'(i64){index}'}, "
            f"{'active(lanes)' if lanes else 'true'});",
            f"{write}({value_at}, {effect.target}_p.value{end});",
            f"{write}({index_at}, {effect.target}_p.at{end});",
        ]

    def scan(self, effect: Accumulate, running: Store, value: TextValue) -> None:
        dtype = accumulated_in(effect.op, value.dtype)
        depth = self._outer_depth(effect)
        name = f"{effect.target}_p"
        vector = self.nest.vector
        along = vector is not None and self.nest.axes[vector] in effect.over
        lanes = vector is not None and not along
        row = None if depth is not None else self.storages[effect.target]
        self.scans.append(RunningState(effect, name, dtype, 0 if depth is None else depth, lanes, row))
        storage, access = self._access(running.target, running)
        if along:
            given = CPP.computed(value.dtype)
            one = combined(effect.op, "a", "b", dtype)
            text = self._wide(value, given, True)
            after = f"scan_lanes({text}, {name}, lanes, [](auto a, auto b) {{ return {one}; }})"
            if sums_in_blocks(effect.op, given, dtype) or (effect.op is ReduceOp.SUM and given == dtype == torch.int64):
                after = f"scan_sum({text}, {name}, lanes)"
            result = TextValue(after, value.dtype, LANES)
        else:
            result = self._scan_step(effect, value, dtype, name, row, lanes)
        self.lines += self._store_lines(storage, access, result, None)

    def _scan_step(
        self, effect: Accumulate, value: TextValue, dtype: torch.dtype, name: str, row: Storage | None, lanes: bool
    ) -> TextValue:
        """A step that does not run along the lanes."""
        text = self._wide(value, dtype, lanes)
        if row is None:
            self.lines.append(f"{name} = {combined(effect.op, name, text, dtype)};")
            return TextValue(name, dtype, LANES if lanes else NUMBER)
        held = CPP.computed(row.spec.dtype)
        self._fill(row, start_text(effect.op, held))
        access = self.nest.access(row.spec, effect.index)
        here, real = self.body.pointer(row, access.offset), self._lanes_of(row, access)
        read = f"load({here}, {real})" if lanes else f"get({here})"
        text = self._wide(value, held, lanes)
        kind = CPP.dtype_name(held) + ("v" if lanes else "")
        self.lines.append(f"const {kind} {name} = {combined(effect.op, read, text, held)};")
        self.lines.append(f"store({here}, {name}, {real});" if lanes else f"put({here}, {name});")
        return TextValue(name, row.spec.dtype, LANES if lanes else NUMBER)

    def declare_scan(self, scan: RunningState) -> str:
        value = CPP.dtype_name(scan.dtype)
        start = start_text(scan.effect.op, scan.dtype)
        return f"{value}v {scan.name} = all({start});" if scan.lanes else f"{value} {scan.name} = {start};"


def touched(row: Storage, access: Access, axis: Axis) -> Int:
    """How many elements of a row the loop over `axis` uses: a strip may be shorter than its row."""
    whole = len(row.spec.sizes) != 1 or access.offset != axis.symbol
    return product(row.spec.sizes) if whole else axis.size
