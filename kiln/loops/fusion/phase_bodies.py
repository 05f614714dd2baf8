"""From the phases of a group to its kernel: bodies, locals, stores.

    phase (g1): t, total       t[g1] = exp(load x[g0, g1])        t is a row: a later phase loads it
                               total[] += exp(..)                 forwarded within the point
    phase (g1): out            out[g0, g1] = div(load t[g1], load total[])

Indices are still those of the program's buffers; `views.py` merges dimensions afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol, final

import torch

from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.body import Index
from kiln.loops.body.builder import BodyBuilder, Inline
from kiln.loops.body.indexing import Axis, symbols_of
from kiln.loops.fusion.group import Member, MemberAccess
from kiln.loops.fusion.phases import PhasePlan, PhasePlans, is_cheap
from kiln.loops.fusion.single_kernel import accumulator_dtype, converted
from kiln.loops.kernel.kernel import Accumulate, Local, Phase, Store
from kiln.loops.program.nodes import Buffer, Pointwise, Reduction, Scan
from kiln.symbolic import Int, Symbol, is_static
from kiln.tensor.size_hint import size_hint

Effect = Store | Accumulate
REGISTER_POINTS = 4096
"""Elements of a row that the registers of a GPU's program have room for besides all else."""


@final
class KernelBuilder:
    """Phases and locals of one group. `order`: all symbols, outermost first; `stored`: buffers that others read."""

    def __init__(
        self,
        plans: PhasePlans,
        order: list[Symbol],
        stored: frozenset[str],
        buffers: Mapping[str, Buffer],
        policy: KeepPolicy,
    ) -> None:
        self.plans, self.group, self.buffers, self.policy = plans, plans.group, buffers, policy
        self.rank = {one: place for place, one in enumerate(order)}
        found = _values_read_later(plans, stored, policy)
        self.rows = frozenset(name for name in found if policy.in_row(plans, name))
        self.stored = stored | (found - self.rows)
        self.locals: dict[tuple[str, str], Local] = {}
        """By buffer and use: a scan has an accumulator and a row."""

    def axes(self, symbols: Iterable[Symbol]) -> tuple[Axis, ...]:
        """Axes of group symbols, outermost first."""
        return tuple(Axis(one, self.group.sizes[one]) for one in sorted(symbols, key=self.rank.__getitem__))

    def local_axes(self, symbols: Iterable[Symbol]) -> tuple[Axis, ...]:
        """Axes of a local: blocks have their full size."""
        ragged = self.group.ragged
        return tuple(Axis(axis.symbol, ragged.get(axis.symbol, axis.size)) for axis in self.axes(symbols))

    def phases(self) -> tuple[Phase, ...]:
        return tuple(_PhaseBody(self, place, phase).finish() for place, phase in enumerate(self.plans.phases))

    def accumulator(self, member: Member) -> Local:
        """The local that a reduction or scan accumulates in, indexed by its kept inner symbols."""
        key = (member.out, "accumulator")
        if key not in self.locals:
            out = member.node.out.spec.dtype
            assert isinstance(member.node, Reduction | Scan)
            dtype = accumulator_dtype(member.node.op, out) if isinstance(member.node, Reduction) else out
            reduced = member.reduced()
            kept = [one for one in self.group.inner(member) if one not in reduced]
            self.locals[key] = Local(f"{member.out}_sum", dtype, self.local_axes(kept))
        return self.locals[key]

    def row(self, member: Member) -> Local:
        """The local that keeps a value for later phases."""
        key = (member.out, "row")
        if key not in self.locals:
            axes = self.local_axes(self.group.inner(member))
            self.locals[key] = Local(f"{member.out}_row", member.node.out.spec.dtype, axes)
        return self.locals[key]

    def row_index(self, member: Member, local: Local, access: MemberAccess) -> Index:
        """Where in the local stands what `access` reads from the buffer of `member`.

        Mostly the symbol of the digit that was written. Fusion may have split an axis of the writer without that of
        a reader in another loop: then the digit is computed from the address.
        """
        assert access.form is not None and member.write.form is not None
        group, written = self.group, member.write.form.strides
        digits: dict[tuple[Int, Int], Int] = {}
        address: Int = 0
        for one, stride in access.form.strides.items():
            if one not in group.units:
                digits[stride, group.ragged.get(one, group.sizes[one])] = one
                address = address + one * stride
        top = max((size_hint(stride) for one, stride in written.items() if one not in group.units), default=0)
        index: list[Int] = []
        for axis in local.axes:
            stride = written.get(axis.symbol, 0)
            if axis.size == 1 or (is_static(stride) and stride == 0):
                index.append(0)  # the stride of an axis of size 1 may be that of another axis
                continue
            found = digits.get((stride, axis.size))
            if found is None:
                found = address // stride
                found = found if size_hint(stride) == top else found % axis.size
            index.append(found)
        return tuple(index)


class KeepPolicy(Protocol):
    """What becomes of a value that a later phase of the kernel reads."""

    def recomputes(self, plans: PhasePlans, writer: Member, reader: Member, access: MemberAccess, stored: bool) -> bool:
        """Is it computed again? `stored`: it is in memory anyway."""

    def in_row(self, plans: PhasePlans, name: str) -> bool:
        """Is it kept in a local? It goes through memory otherwise."""


@final
class KeepInCache(KeepPolicy):
    """A CPU keeps values in rows on the stack, unless computing them is as cheap as a load."""

    def recomputes(self, plans: PhasePlans, writer: Member, reader: Member, access: MemberAccess, stored: bool) -> bool:
        return not stored and is_cheap(writer, plans.group.inner(writer)) and plans.forwards(writer, reader, access)

    def in_row(self, plans: PhasePlans, name: str) -> bool:
        return True


@final
class KeepInRegisters(KeepPolicy):
    """A GPU computes a value again wherever the reader is at its point.

    Where the whole row is in registers, the printer finds that it has the value already; where it is too long, reading
    the inputs again is what there is to do. Running sums stay in registers if a row of them fits.
    """

    def recomputes(self, plans: PhasePlans, writer: Member, reader: Member, access: MemberAccess, stored: bool) -> bool:
        if not isinstance(writer.node, Pointwise) or writer.write.form is None:
            return False
        inner, outer = plans.group.inner(writer).keys(), plans.group.inner(reader).keys()
        return writer.write.form == access.form and inner <= outer

    def in_row(self, plans: PhasePlans, name: str) -> bool:
        writer = plans.writer(name)
        assert writer is not None
        points = plans.group.points(plans.group.inner(writer))
        own = all(access.form == writer.write.form for _, access in plans.users(name))
        return own and is_static(points) and points <= REGISTER_POINTS


def _values_read_later(plans: PhasePlans, stored: frozenset[str], policy: KeepPolicy) -> frozenset[str]:
    """Values that a later phase reads and does not compute again."""
    found: set[str] = set()

    def visit(reader: Member, place: int) -> None:
        for access in reader.reads:
            writer = plans.writer(access.buffer)
            if writer is None or plans.place[writer.out] == place or not isinstance(writer.node, Pointwise | Scan):
                continue
            if policy.recomputes(plans, writer, reader, access, writer.out in stored):
                visit(writer, place)
            elif writer.out not in stored:
                found.add(writer.out)

    for member in plans.group.members:
        visit(member, plans.place[member.out])
    return frozenset(found)


@final
class _PhaseBody:
    """One phase while its body is made."""

    def __init__(self, kernel: KernelBuilder, place: int, plan: PhasePlan) -> None:
        self.kernel, self.place, self.plan = kernel, place, plan
        self.builder = BodyBuilder()
        self.values: dict[str, int] = {}
        self.results: list[int] = []
        self.effects: list[Effect] = []

    def finish(self) -> Phase:
        for member in self.plan.members:
            self._add(member)
        for member in self.plan.finishing:
            self._store_result(member)
        used = symbols_of(*(at for effect in self.effects for at in effect.index))
        body = self.builder.finish(*self.results, used=used)
        return Phase(self.kernel.axes(self.plan.axes), body, tuple(self.effects))

    def value(self, member: Member) -> int:
        """The place of a member's value at this point."""
        found = self.values.get(member.out)
        if found is None:
            values = {own: member.value(own) for own in member.axis_terms}
            # Loads come in the order of the accesses.
            accesses = iter(member.reads)

            def on_load(buffer: str, index: Index, dtype: torch.dtype, mask: int | None) -> int | None:
                access, writer = next(accesses), self.kernel.plans.writer(buffer)
                return None if writer is None else self._inside(writer, member, access, mask)

            (found,) = member.node.body.run(Inline(self.builder, values, on_load))
            if isinstance(member.node, Pointwise):
                found = converted(self.builder, found, member.node.out.spec.dtype)
            self.values[member.out] = found
        return found

    def _inside(self, writer: Member, reader: Member, access: MemberAccess, mask: int | None) -> int | None:
        """The place of what `reader` reads of `writer`; None: from memory."""
        plans = self.kernel.plans
        if isinstance(writer.node, Pointwise):
            here, stored = plans.place[writer.out] == self.place, writer.out in self.kernel.stored
            if here or self.kernel.policy.recomputes(plans, writer, reader, access, stored):
                return self._masked(self.value(writer), mask)
        if isinstance(writer.node, Reduction):
            local = self.kernel.accumulator(writer)
        elif writer.out in self.kernel.rows:
            local = self.kernel.row(writer)
        else:
            return None
        place = self.builder.load(local.name, self.kernel.row_index(writer, local, access), local.dtype, mask)
        return converted(self.builder, place, writer.node.out.spec.dtype)

    def _masked(self, value: int, mask: int | None) -> int:
        if mask is None:
            return value
        dtype = self.builder.dtype_of(value)
        return self.builder.pointwise(PRIMS["where"], dtype, mask, value, self.builder.constant(0, dtype))

    def _result(self, place: int) -> int:
        if place not in self.results:
            self.results.append(place)
        return self.results.index(place)

    def _add(self, member: Member) -> None:
        node, kernel = member.node, self.kernel
        result = self._result(self.value(member))
        if isinstance(node, Pointwise):
            if member.out in kernel.stored:
                self.effects.append(Store(member.out, _written_at(member), result))
            elif member.out in kernel.rows:
                self.effects.append(self._row_store(member, result))
            return
        local = kernel.accumulator(member)
        reduced = member.reduced()
        over = tuple(axis for axis in kernel.axes(self.plan.axes) if axis.symbol in reduced)
        index = tuple(axis.symbol for axis in local.axes)
        running = None
        if isinstance(node, Scan):
            kept = member.out in kernel.stored
            running = Store(member.out, _written_at(member), result) if kept else self._row_store(member, result)
        self.effects.append(Accumulate(local.name, node.op, over, index, result, running))

    def _row_store(self, member: Member, result: int) -> Store:
        row = self.kernel.row(member)
        return Store(row.name, tuple(axis.symbol for axis in row.axes), result)

    def _store_result(self, member: Member) -> None:
        """The finished value of a reduction, or of a block of it, to memory."""
        local = self.kernel.accumulator(member)
        index = tuple(axis.symbol for axis in local.axes)
        place = self.builder.load(local.name, index, local.dtype)
        if member.partial is not None:
            at = (*member.partial.dims, *_written_at(member))
            self.effects.append(Store(member.partial.buffer.name, at, self._result(place)))
            return
        place = converted(self.builder, place, member.node.out.spec.dtype)
        self.effects.append(Store(member.out, _written_at(member), self._result(place)))


def _written_at(member: Member) -> tuple[Int, ...]:
    """Index of the result's element at this point."""
    node = member.node
    axes = node.kept if isinstance(node, Reduction) else node.axes
    return tuple(member.value(axis.symbol) for axis in axes)
