"""The effects of a phase in Triton: stores, accumulators, scans.

    out[i0, i1] = v2              tl.store(out2 + (768*i0 + i1), v2, mask=has_i1)
    total[] = sum over (i1): v0   total = tl.sum(tl.where(has_i1, v0, 0.0), 1, keep_dims=True)
    table[j0] sum = v0            tl.atomic_add(table1 + j0, v0, mask=has_i0, sem="relaxed")

A reduction over a loop keeps a block of partial results and combines it after the loop: as many short sums as the block
has points, added as a tree, are as accurate as eager's pairwise sums.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import final

import torch

from kiln.loops.codegen.effects import INDEX_OPS, EffectWriter, combined, on_dtype
from kiln.loops.codegen.kernel_writer import Dims, TextValue
from kiln.loops.codegen.triton.dialect import TRITON
from kiln.loops.codegen.triton.statements import (
    Held,
    TritonStatements,
    block_index,
    literal,
    mask_argument,
    require_own_element,
)
from kiln.loops.kernel.atomics import ATOMICS, runs_in_order
from kiln.loops.kernel.kernel import Accumulate, Local, Store
from kiln.loops.program.nodes import ReduceOp
from kiln.loops.program.reductions import reduce_start
from kiln.support.records import dataclass

_FUNCTIONS: Mapping[ReduceOp, str] = {
    ReduceOp.SUM: "add",
    ReduceOp.PROD: "multiply",
    ReduceOp.MAX: "maximum",
    ReduceOp.MIN: "minimum",
    ReduceOp.ANY: "either",
    ReduceOp.ALL: "both",
}
_BEST: Mapping[ReduceOp, str] = {ReduceOp.ARGMAX: "first_largest", ReduceOp.ARGMIN: "first_smallest"}
_NEXT: Mapping[ReduceOp, str] = {ReduceOp.ARGMAX: "next_largest", ReduceOp.ARGMIN: "next_smallest"}
"""Where the second index is the greater one."""


@final
@dataclass(frozen=True, slots=True)
class BlockAccumulator:
    """An accumulator that `depth` loops are around: a block over `dims`, of which `over` are combined at the end."""

    effect: Accumulate
    local: Local
    dtype: torch.dtype
    depth: int
    dims: Dims
    over: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.effect.target}_parts"

    @property
    def at(self) -> str:
        return f"{self.effect.target}_at"


@final
class TritonEffects(EffectWriter):
    def __init__(self, body: TritonStatements, locals_: Mapping[str, Local], started: set[str]) -> None:
        """`started`: accumulators that earlier phases began."""
        self.body, self.nest, self.frame = body, body.nest, body.frame
        self.locals, self.started = locals_, started
        self.lines: list[str] = []
        self.before: dict[int, list[str]] = {}
        self.after: dict[int, list[str]] = {}

    def store(self, effect: Store, value: TextValue) -> None:
        local = self.locals.get(effect.target)
        if local is not None:
            require_own_element(local, effect.index)
            self._hold(local, value.text, value.dtype, value.dims, self.depth, self.lines)
            return
        if effect.combine is not None:
            self._combine(effect, effect.combine, value)
            return
        storage = self.frame.storages[effect.target]
        access = self.nest.access(storage.spec, effect.index)
        if not value.dims <= access.dims:
            raise TRITON.unsupported("a store", "several points store to one element")
        pointer = self.body.pointer(storage, access.offset, access.dims, access.dims)
        mask = mask_argument(self.frame.points_text(access.dims))
        arguments = [pointer, self._stored(value, storage.spec.dtype), *mask]
        self.lines.append(f"tl.store({', '.join(arguments)})")
        self.frame.forget(self.depth, storage.name)

    def _stored(self, value: TextValue, dtype: torch.dtype) -> str:
        """The value in a type that a store converts to that of memory."""
        return value.text if TRITON.computed(value.dtype) == TRITON.computed(dtype) else self.body.convert(value, dtype)

    def _combine(self, effect: Store, op: ReduceOp, value: TextValue) -> None:
        """Every point of the block takes part, also where neither index nor value varies."""
        storage = self.frame.storages[effect.target]
        access, dtype = self.nest.access(storage.spec, effect.index), storage.spec.dtype
        self.frame.forget(self.depth, storage.name)
        shape = frozenset(range(len(self.nest.blocks)))
        pointer = self.body.pointer(storage, access.offset, access.dims, shape)
        mask = mask_argument(self.frame.points_text(shape))
        text = self._stored(value, dtype)
        if runs_in_order(effect, {effect.target: storage.spec}):
            widened = ".to(tl.float32)" if TRITON.computed(dtype) != dtype else ""
            before = f"tl.load({', '.join([pointer, *mask])}){widened}"
            both = combined(op, before, text, TRITON.computed(dtype))
            self.lines += [f"tl.store({', '.join([pointer, both, *mask])})", "tl.debug_barrier()"]
            return
        value_text = f"({text})" if " " in text else text
        if dtype != TRITON.computed(dtype) or value.constant is not None:
            kind = TRITON.dtypes[dtype]
            value_text = f"{value_text}.to({kind})" if value.constant is None else f"tl.full([], {text}, {kind})"
        if value.dims != shape:
            value_text = f"tl.broadcast_to({value_text}, {self.frame.block_shape(shape)})"
        name, _ = ATOMICS[op]
        self.lines.append(f'{name}({", ".join([pointer, value_text, *mask])}, sem="relaxed")')

    def _hold(self, local: Local, text: str, dtype: torch.dtype, dims: Dims, depth: int, lines: list[str]) -> None:
        """The local is this value from here on."""
        lines.append(f"{local.name} = {text}")
        self.frame.forget(self.depth, local.name)
        # The value is used after the loops of this phase; only a loop around several phases is still open.
        shared = self.frame.tiling.shared
        in_shared = shared is not None and bool(self.nest.axes) and self.nest.axes[0].symbol is shared.symbol
        value = TextValue(local.name, dtype, dims, min(depth, int(in_shared)))
        self.frame.held[local.name] = Held(local, value)

    def _over(self, effect: Accumulate) -> tuple[int, ...]:
        """Dimensions of the block that are combined, the last first."""
        positions = {self.frame.tiling.dim_of(axis) for axis in effect.over}
        return tuple(sorted((position for position in positions if position is not None), reverse=True))

    def accumulate(self, effect: Accumulate, value: TextValue) -> None:
        local, over = self.locals[effect.target], self._over(effect)
        require_own_element(local, effect.index)
        dtype = torch.bool if effect.op in (ReduceOp.ANY, ReduceOp.ALL) else TRITON.computed(value.dtype)
        dims = value.dims | frozenset(over)
        loops = {axis.symbol: position for position, axis in enumerate(self.nest.axes)}
        dims_over = [self.frame.tiling.dims[position] for position in over]
        reduced = [loops[dim.symbol] for dim in dims_over if dim.looped]
        accumulator = BlockAccumulator(effect, local, dtype, min(reduced, default=self.depth), dims, over)
        if reduced:
            self._accumulate_block(accumulator, value)
            return
        index_of = self._index_text(effect) if effect.op in INDEX_OPS else ""
        text = self._full(self._masked(value, dtype, effect.op, over), value, dims, over)
        self._finish(accumulator, text, index_of, self.lines)

    def _masked(self, value: TextValue, dtype: torch.dtype, op: ReduceOp, over: Sequence[int]) -> str:
        """The value where a point exists, the start value elsewhere."""
        text = value.text if TRITON.computed(value.dtype) == dtype else self.body.convert(value, dtype)
        masks = self.frame.points_text(frozenset(over))
        return f"tl.where({' & '.join(masks)}, {text}, {start_text(op, dtype)})" if masks else text

    def _full(self, text: str, value: TextValue, dims: Dims, over: Sequence[int]) -> str:
        """As a block over all of `dims`."""
        masked = {position for position in over if not self.frame.tiling.dims[position].exact}
        if value.dims | masked == dims:
            return text
        if value.constant is not None and not masked:
            kind = TRITON.dtype_name(TRITON.computed(value.dtype))
            return f"tl.full({self.frame.block_shape(dims)}, {text}, {kind})"
        return f"tl.broadcast_to({text}, {self.frame.block_shape(dims)})"

    def _index_text(self, effect: Accumulate) -> str:
        return self.body.ints.text(self.nest.expr(effect.over[0].symbol))

    def _accumulate_block(self, accumulator: BlockAccumulator, value: TextValue) -> None:
        effect, shape = accumulator.effect, self.frame.block_shape(accumulator.dims)
        kind = TRITON.dtype_name(accumulator.dtype)
        start = f"tl.full({shape}, {start_text(effect.op, accumulator.dtype)}, {kind})"
        self.before.setdefault(accumulator.depth, []).append(f"{accumulator.name} = {start}")
        text = self._masked(value, accumulator.dtype, effect.op, accumulator.over)
        after = self.after.setdefault(accumulator.depth, [])
        if effect.op in INDEX_OPS:
            (position,) = accumulator.over
            first = block_index(self.frame, position)
            self.before[accumulator.depth].append(f"{accumulator.at} = tl.broadcast_to({first}, {shape})")
            at = f"tl.broadcast_to({self._index_text(effect)}, {shape})"
            call = f"{_NEXT[effect.op]}({accumulator.name}, {accumulator.at}, tl.broadcast_to({text}, {shape}), {at})"
            self.lines.append(f"{accumulator.name}, {accumulator.at} = {call}")
        else:
            self.lines.append(f"{accumulator.name} = {combined(effect.op, accumulator.name, text, accumulator.dtype)}")
        self._finish(accumulator, accumulator.name, accumulator.at, after)

    def maximum_and_exp_sum(self, effect: Accumulate, exp_sum: str, value: TextValue) -> None:
        """One pair of both per `layers` points of a block, which a thread holds in registers together."""
        local, beside, dims = self.locals[effect.target], self.locals[exp_sum], self.frame.tiling.dims
        if len(dims) != 1 or not dims[0].looped or self._over(effect) != (0,) or local.dtype != torch.float32:
            raise TRITON.unsupported("a sum of exp beside its maximum", "no loop goes through the row")
        depth = [axis.symbol for axis in self.nest.axes].index(dims[0].symbol)
        block, layers = frozenset({0}), self.frame.tiling.layers
        top, total = f"{local.name}_parts", f"{beside.name}_parts"
        shape, least = f"[{dims[0].name} // {layers}]", start_text(ReduceOp.MAX, local.dtype)
        self.before.setdefault(depth, []).extend([
            f"{top} = tl.full({shape}, {least}, tl.float32)", f"{total} = tl.full({shape}, 0.0, tl.float32)"
        ])  # fmt: skip
        text = self._full(self._masked(value, local.dtype, effect.op, (0,)), value, block, (0,))
        self.lines.append(f"{top}, {total} = with_exp_sum({top}, {total}, {text}, {layers})")
        after = self.after.setdefault(depth, [])
        self._finish(BlockAccumulator(effect, local, local.dtype, depth, block, (0,)), top, "", after)
        sum_ = replace(effect, target=exp_sum, op=ReduceOp.SUM, exp_sum=None)
        text = f"{total} * tl.exp({top} - {local.name})"
        self._finish(BlockAccumulator(sum_, beside, local.dtype, depth, block, (0,)), text, "", after)

    def _finish(self, accumulator: BlockAccumulator, text: str, index: str, lines: list[str]) -> None:
        """Combine the block `text`, of the form of `accumulator`, into the local."""
        effect, local, dtype, depth = accumulator.effect, accumulator.local, accumulator.dtype, accumulator.depth
        over, left = accumulator.over, accumulator.dims - frozenset(accumulator.over)
        if effect.op in INDEX_OPS:
            if effect.target in self.started:
                raise TRITON.unsupported("an index reduction", "two phases accumulate into it")
            if index == self._index_text(effect):
                index = f"tl.broadcast_to({index}, {self.frame.block_shape(accumulator.dims)})"
            (axis,) = over
            call = f"tl.reduce(({text}, {index}), {axis}, {_BEST[effect.op]}{', keep_dims=True' if left else ''})"
            lines.append(f"{local.name}_best, {local.name} = {call}")
            text = local.name
            for _ in self._empty(over, left):
                text = f"tl.sum({text}, 0)"
            self._hold(local, f"{text}.to(tl.int64)", torch.int64, left, depth, lines)
            return
        for axis in sorted({*over, *self._empty(over, left)}, reverse=True):
            text = reduced_text(effect.op, text, axis, dtype, keep=bool(left))
        if effect.target in self.started:
            text = combined(effect.op, self.frame.held[local.name].value.text, text, dtype)
        self._hold(local, text, dtype, left, depth, lines)

    def _empty(self, over: Sequence[int], left: Dims) -> list[int]:
        """Dimensions of size 1 that are reduced too, so that the result is a scalar."""
        return [] if left else [position for position in range(len(self.frame.tiling.dims)) if position not in over]

    def scan(self, effect: Accumulate, running: Store, value: TextValue) -> None:
        """One operation within a block; a loop carries the combination of earlier blocks.

        The block has only the dimensions of the value: Triton scans those of size 1 wrongly that others are wider than.
        """
        (axis,) = self._over(effect)
        dim = self.frame.tiling.dims[axis]
        dtype = TRITON.computed(value.dtype)
        dims = value.dims | {axis}
        present = sorted(dims)
        place, left = present.index(axis), [position for position in present if position != axis]
        function = function_of(effect.op, dtype)
        text = self._full(self._masked(value, dtype, effect.op, (axis,)), value, dims, (axis,))
        name = f"{effect.target}_run"
        squeezed = len(present) < len(self.frame.tiling.dims)
        if squeezed:
            text = f"tl.reshape({text}, [{', '.join([self.frame.tiling.dims[position].name for position in present])}])"
        if not dim.looped:
            self.lines.append(f"{name} = tl.associative_scan({text}, {place}, {function})")
        else:
            depth = [axis.symbol for axis in self.nest.axes].index(dim.symbol)
            carry, block = f"{effect.target}_carry", f"{effect.target}_block"
            sizes = ["1" if position == axis else self.frame.tiling.dims[position].name for position in present]
            shape = f"[{', '.join(sizes)}]" if left else "[]"
            start = f"tl.full({shape}, {start_text(effect.op, dtype)}, {TRITON.dtype_name(dtype)})"
            self.before.setdefault(depth, []).append(f"{carry} = {start}")
            total = reduced_text(effect.op, block, place, dtype, keep=bool(left))
            self.lines += [
                f"{block} = {text}",
                f"{name} = tl.associative_scan({block}, {place}, {function})",
                f"{name} = {combined(effect.op, carry, name, dtype)}",
                f"{carry} = {combined(effect.op, carry, total, dtype)}",
            ]
        if squeezed:
            self.lines.append(f"{name} = tl.reshape({name}, {self.frame.block_shape(dims)})")
        self.store(running, TextValue(name, value.dtype, dims, self.depth))


def function_of(op: ReduceOp, dtype: torch.dtype) -> str:
    return _FUNCTIONS[on_dtype(op, dtype)]


def reduced_text(op: ReduceOp, text: str, axis: int, dtype: torch.dtype, *, keep: bool) -> str:
    """The block `text` combined along `axis`, which `keep` leaves with size 1."""
    keeps = ", keep_dims=True" if keep else ""
    if op is ReduceOp.SUM and dtype in (torch.float32, torch.float64, torch.int64, torch.int32):
        return f"tl.sum({text}, {axis}{keeps})"
    return f"tl.reduce({text}, {axis}, {function_of(op, dtype)}{keeps})"


def start_text(op: ReduceOp, dtype: torch.dtype) -> str:
    return literal(reduce_start(op, dtype), dtype)
