"""From the phases of a group to bodies, locals and stores.

    phase (g1): t, total       t[g1] = exp(load x[g0, g1])        t is a row: a later phase loads it
                               total[] += exp(..)                 forwarded within the point
    phase (g1): out            out[g0, g1] = div(load t[g1], load total[])

Indices are still those of the program's buffers; `merge_axes.py` merges dimensions afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import Index
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import Axis, symbols_of
from kiln.loops.fusion.group import Member, MemberAccess
from kiln.loops.fusion.phases import PhasePlan, PhasePlans
from kiln.loops.fusion.reuse import is_recomputed, stays_in_row, values_read_later
from kiln.loops.kernel.kernel import Accumulate, Effect, Local, Phase, Store
from kiln.loops.program.nodes import Pointwise, Reduction, Scan
from kiln.loops.program.reductions import accumulator_dtype
from kiln.support.target import Target
from kiln.symbolic import Int, Symbol, is_static
from kiln.tensor.size_hint import size_hint


@final
class PhaseBodies:
    """Phases and locals of one group. `order`: all symbols, outermost first; `stored`: results that others read."""

    def __init__(self, plans: PhasePlans, order: list[Symbol], stored: frozenset[str], target: Target) -> None:
        self.plans, self.group, self.target = plans, plans.group, target
        self.rank = {symbol: rank for rank, symbol in enumerate(order)}
        found = values_read_later(plans, stored, target)
        self.rows = frozenset(name for name in found if stays_in_row(plans, name, target))
        self.stored = stored | (found - self.rows)
        self.locals: dict[tuple[str, str], Local] = {}
        """By buffer and use: a scan has an accumulator and a row."""

    def axes(self, symbols: Iterable[Symbol]) -> tuple[Axis, ...]:
        """Axes of group symbols, outermost first."""
        return tuple(Axis(symbol, self.group.sizes[symbol]) for symbol in sorted(symbols, key=self.rank.__getitem__))

    def phases(self) -> tuple[Phase, ...]:
        return tuple(_PhaseBody(self, number, plan).finish() for number, plan in enumerate(self.plans.phases))

    def accumulator(self, member: Member) -> Local:
        """The local that a reduction or scan accumulates in, indexed by its kept inner symbols."""
        out, reduced = member.node.out.spec.dtype, member.reduced()
        dtype = accumulator_dtype(member.node.op, out) if isinstance(member.node, Reduction) else out
        kept = [symbol for symbol in self.group.inner(member) if symbol not in reduced]
        return self._local(member, "sum", dtype, kept)

    def row(self, member: Member) -> Local:
        """The local that keeps a value for later phases."""
        return self._local(member, "row", member.node.out.spec.dtype, self.group.inner(member))

    def _local(self, member: Member, use: str, dtype: torch.dtype, symbols: Iterable[Symbol]) -> Local:
        key = (member.out, use)
        if key not in self.locals:
            ragged = self.group.ragged  # blocks have their full size
            axes = tuple(Axis(axis.symbol, ragged.get(axis.symbol, axis.size)) for axis in self.axes(symbols))
            self.locals[key] = Local(f"{member.out}_{use}", dtype, axes)
        return self.locals[key]

    def row_index(self, member: Member, local: Local, access: MemberAccess) -> Index:
        """Where in the local stands what `access` reads from the buffer of `member`.

        Mostly the symbol of equal stride and size. Fusion may have split an axis of the writer without that of a reader
        in another loop: then the index is computed from the address.
        """
        assert access.form is not None and member.write.form is not None
        group, written = self.group, member.write.form.strides
        symbols: dict[tuple[Int, Int], Int] = {}
        address: Int = 0
        for symbol, stride in access.form.strides.items():
            if symbol not in group.units:
                symbols[stride, group.ragged.get(symbol, group.sizes[symbol])] = symbol
                address = address + symbol * stride
        top = max((size_hint(stride) for symbol, stride in written.items() if symbol not in group.units), default=0)
        index: list[Int] = []
        for axis in local.axes:
            stride = written.get(axis.symbol, 0)
            if axis.size == 1 or (is_static(stride) and stride == 0):
                index.append(0)  # the stride of an axis of size 1 may be that of another axis
                continue
            found = symbols.get((stride, axis.size))
            if found is None:
                found = address // stride
                found = found if size_hint(stride) == top else found % axis.size
            index.append(found)
        return tuple(index)


@final
class _PhaseBody:
    """One phase while its body is made."""

    def __init__(self, bodies: PhaseBodies, number: int, plan: PhasePlan) -> None:
        self.bodies, self.number, self.plan = bodies, number, plan
        self.builder = BodyBuilder()
        self.values: dict[str, int] = {}
        self.results: list[int] = []
        self.effects: list[Effect] = []

    def finish(self) -> Phase:
        for member in self.plan.members:
            self._add(member)
        for member in self.plan.finishing:
            self._store_total(member)
        used = symbols_of(*(at for effect in self.effects for at in effect.index))
        body = self.builder.finish(*self.results, used=used)
        return Phase(self.bodies.axes(self.plan.axes), body, tuple(self.effects))

    def value(self, member: Member) -> int:
        """The position of a member's value at this point."""
        found = self.values.get(member.out)
        if found is None:
            values = {axis: member.value(axis) for axis in member.axis_terms}
            # Loads come in the order of the accesses.
            accesses = iter(member.reads)

            def on_load(buffer: str, index: Index, dtype: torch.dtype, mask: int | None) -> int | None:
                access, writer = next(accesses), self.bodies.plans.writers.get(buffer)
                return None if writer is None else self._from_member(writer, member, access, mask)

            (found,) = member.node.body.run(Inline(self.builder, values, on_load))
            if isinstance(member.node, Pointwise):
                found = self.builder.convert(found, member.node.out.spec.dtype)
            self.values[member.out] = found
        return found

    def _from_member(self, writer: Member, reader: Member, access: MemberAccess, mask: int | None) -> int | None:
        """The position of what `reader` reads of `writer`; None: from memory."""
        bodies, plans = self.bodies, self.bodies.plans
        if isinstance(writer.node, Pointwise):
            here, stored = plans.phase_of[writer.out] == self.number, writer.out in bodies.stored
            if here or is_recomputed(plans, writer, reader, access, stored, bodies.target):
                return self._masked(self.value(writer), mask)
        if isinstance(writer.node, Reduction):
            local = bodies.accumulator(writer)
        elif writer.out in bodies.rows:
            local = bodies.row(writer)
        else:
            return None
        position = self.builder.load(local.name, bodies.row_index(writer, local, access), local.dtype, mask)
        return self.builder.convert(position, writer.node.out.spec.dtype)

    def _masked(self, value: int, mask: int | None) -> int:
        if mask is None:
            return value
        dtype = self.builder.dtype_of(value)
        return self.builder.pointwise(PRIMS["where"], dtype, mask, value, self.builder.constant(0, dtype))

    def _result(self, position: int) -> int:
        if position not in self.results:
            self.results.append(position)
        return self.results.index(position)

    def _add(self, member: Member) -> None:
        node, bodies = member.node, self.bodies
        result = self._result(self.value(member))
        if isinstance(node, Pointwise):
            if member.out in bodies.stored or member.out in bodies.rows:
                self.effects.append(self._store(member, result))
            return
        local, reduced = bodies.accumulator(member), member.reduced()
        over = tuple(axis for axis in bodies.axes(self.plan.axes) if axis.symbol in reduced)
        running = self._store(member, result) if isinstance(node, Scan) else None
        self.effects.append(Accumulate(local.name, node.op, over, _own_index(local), result, running))

    def _store(self, member: Member, result: int) -> Store:
        """To memory where something else reads it, else to a row."""
        if member.out in self.bodies.stored:
            return Store(member.out, _written_at(member), result)
        row = self.bodies.row(member)
        return Store(row.name, _own_index(row), result)

    def _store_total(self, member: Member) -> None:
        """The finished value of a reduction, or of a block of it, to memory."""
        local = self.bodies.accumulator(member)
        position = self.builder.load(local.name, _own_index(local), local.dtype)
        name, index = member.out, _written_at(member)
        if member.partial is None:
            position = self.builder.convert(position, member.node.out.spec.dtype)
        else:
            name, index = member.partial.buffer.name, (*member.partial.dims, *index)
        self.effects.append(Store(name, index, self._result(position)))


def _own_index(local: Local) -> Index:
    return tuple(axis.symbol for axis in local.axes)


def _written_at(member: Member) -> Index:
    """Index of the result's element at this point."""
    node = member.node
    axes = node.kept if isinstance(node, Reduction) else node.axes
    return tuple(member.value(axis.symbol) for axis in axes)
