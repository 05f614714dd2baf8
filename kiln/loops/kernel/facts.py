"""Facts that the choice of blocks rests on: which axes occur together, how accesses are laid out in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import final

from kiln.loops.body.analyses import accesses
from kiln.loops.body.body import Index, Load
from kiln.loops.body.indexing import Axis, stride_along, symbols_of
from kiln.loops.kernel.analyses import phase_stores
from kiln.loops.kernel.atomics import runs_in_order
from kiln.loops.kernel.kernel import Accumulate, KernelIR
from kiln.symbolic import BoundAnalysis, Range, Symbol
from kiln.tensor.size_hint import size_hint
from kiln.tensor.spec import TensorSpec

LINE_BYTES = 128
"""What memory hands over at once."""


@final
class KernelFacts:
    """Questions about one kernel, answered when asked."""

    def __init__(self, kernel: KernelIR) -> None:
        self.kernel = kernel
        self.specs = {one.name: one.spec for one in kernel.params}
        sized = symbols_of(*(axis.size for phase in kernel.phases for axis in phase.axes))
        self.fixed_units = tuple(axis for axis in kernel.units if axis.symbol in sized)
        """Units on which sizes of phases depend: one value per program."""
        self.free_units = tuple(axis for axis in kernel.units if axis.symbol not in sized)

    @cached_property
    def bounds(self) -> BoundAnalysis:
        """Axes run below their sizes, sizes are not negative."""
        return BoundAnalysis(self.ranges)

    @cached_property
    def ranges(self) -> dict[Symbol, Range]:
        ranges = {one: Range(0) for one in symbols_of(*self.kernel.ints)}
        for axes in (self.kernel.units, *(phase.axes for phase in self.kernel.phases)):
            for axis in axes:
                top = BoundAnalysis(ranges).of(axis.size).hi
                ranges.setdefault(axis.symbol, Range(0, None if top is None else max(top - 1, 0)))
        return ranges

    @cached_property
    def serial(self) -> frozenset[Symbol]:
        """Inner axes of phases that combine in memory without atomic operations."""
        found: set[Symbol] = set()
        for phase in self.kernel.phases:
            if any(runs_in_order(store, self.specs) for store in phase_stores(phase)):
                found |= {axis.symbol for axis in phase.axes}
        return frozenset(found)

    def inner_groups(self) -> tuple[tuple[Axis, ...], ...]:
        """Inner axes that occur together in phases, locals and reductions: each group becomes one dimension."""
        groups: dict[tuple[object, ...], dict[Axis, None]] = {}
        for phase in self.kernel.phases:
            for axis in phase.axes:
                groups.setdefault(self._company(axis), {})[axis] = None
        return tuple(tuple(group) for group in groups.values())

    def _company(self, axis: Axis) -> tuple[object, ...]:
        phases = tuple(place for place, phase in enumerate(self.kernel.phases) if axis in phase.axes)
        locals_ = tuple(one.name for one in self.kernel.locals if any(axis.symbol is a.symbol for a in one.axes))
        over = tuple(
            (place, number)
            for place, phase in enumerate(self.kernel.phases)
            for number, effect in enumerate(phase.effects)
            if isinstance(effect, Accumulate) and axis in effect.over
        )
        alone = axis.symbol if axis.symbol in self._ragged or self._indexes_best(axis) else None
        return (phases, locals_, over, alone)

    def _indexes_best(self, axis: Axis) -> bool:
        """Does its value matter in itself: is it that of an index reduction, or does a scan run along it?"""
        effects = (one for phase in self.kernel.phases for one in phase.effects if isinstance(one, Accumulate))
        along = (one for one in effects if axis in one.over)
        return any(one.running is not None or one.op.value.startswith("arg") for one in along)

    @cached_property
    def _ragged(self) -> frozenset[Symbol]:
        """Axes whose size depends on the unit."""
        units = {axis.symbol for axis in self.kernel.units}
        return frozenset(
            axis.symbol for phase in self.kernel.phases for axis in phase.axes if symbols_of(axis.size) & units
        )

    # ------------------------------------------------------------------------------------------ what is kept

    def is_kept(self, axes: tuple[Axis, ...]) -> bool:
        """Is there a local with a value per point of these axes?"""
        symbols = {axis.symbol for axis in axes}
        return any(axis.symbol in symbols for one in self.kernel.locals for axis in one.axes)

    def shared_phases(self, axes: tuple[Axis, ...]) -> range | None:
        """The phases over `axes` if one loop can hold them: nothing that it makes point by point is used outside,
        nothing that it combines is used inside."""
        places = [place for place, phase in enumerate(self.kernel.phases) if set(axes) <= set(phase.axes)]
        if not places or places != list(range(places[0], places[-1] + 1)):
            return None
        inside = range(places[0], places[-1] + 1)
        symbols = {axis.symbol for axis in axes}
        pointwise = {one.name for one in self.kernel.locals if any(axis.symbol in symbols for axis in one.axes)}
        combined = {
            effect.target
            for place in inside
            for effect in self.kernel.phases[place].effects
            if isinstance(effect, Accumulate) and set(axes) & set(effect.over)
        }
        for place, phase in enumerate(self.kernel.phases):
            loaded = {op.buffer for op in phase.body.ops if isinstance(op, Load)}
            if loaded & (combined if place in inside else pointwise):
                return None
        return inside

    def share_a_phase(self, one: tuple[Axis, ...], other: tuple[Axis, ...]) -> bool:
        return any({*one, *other} <= set(phase.axes) for phase in self.kernel.phases)

    # ------------------------------------------------------------------------------------------ memory

    def touched(self) -> Iterator[tuple[TensorSpec, Index, int]]:
        """Accesses of memory: layout, index, about how many bytes of it the loops around touch."""
        for phase in self.kernel.phases:
            axes = (*self.kernel.units, *phase.axes)
            found = [(one.buffer, one.index) for one in accesses(phase.body)]
            found += [(store.target, store.index) for store in phase_stores(phase)]
            for name, index in found:
                if name in self.specs:
                    used = symbols_of(*index)
                    by_data = not used <= {axis.symbol for axis in axes} | self._sizes
                    along = [self.length(axis) for axis in axes if by_data or axis.symbol in used]
                    yield self.specs[name], index, self.specs[name].dtype.itemsize * prod(along)

    def length(self, axis: Axis) -> int:
        """About how many points an axis has; for most units the most where it depends on the unit."""
        top = self.bounds.of(axis.size).hi if axis.symbol in self._ragged else None
        return size_hint(axis.size) if top is None else top

    @cached_property
    def _sizes(self) -> frozenset[Symbol]:
        return symbols_of(*self.kernel.ints)

    def _axes(self) -> set[Symbol]:
        inner = {axis.symbol for phase in self.kernel.phases for axis in phase.axes}
        return inner | {axis.symbol for axis in self.kernel.units}

    def contiguous(self) -> Symbol | None:
        """The axis with neighbours in memory in most accesses, large accesses first."""
        votes: dict[Symbol, int] = {}
        for spec, index, size in self.touched():
            for one in self._axes():
                if stride_along(spec, index, one) == 1:
                    votes[one] = votes.get(one, 0) + size
        return max(votes, key=lambda one: votes[one], default=None)

    def tile_axes(self, units: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Unit axes along which accesses have neighbours in memory, those of most accesses first; at most three."""
        found: list[Axis] = []
        rest = [(spec, index, size) for spec, index, size in self.touched()]
        while rest and len(found) < 3:
            votes = {
                axis: sum(size for spec, index, size in rest if stride_along(spec, index, axis.symbol) == 1)
                for axis in units
                if axis not in found
            }
            best = max(votes, key=lambda axis: votes[axis], default=None)
            if best is None or not votes[best]:
                break
            found.append(best)
            rest = [
                (spec, index, size)
                for spec, index, size in rest
                if stride_along(spec, index, best.symbol) not in (0, 1)
            ]
        return tuple(found)

    def narrowest_bytes(self) -> int:
        return min((param.spec.dtype.itemsize for param in self.kernel.params), default=4)

    def line_elements(self) -> int:
        """Elements of a line of memory, of the narrowest accesses."""
        return max(16, min(LINE_BYTES // self.narrowest_bytes(), 64))

    def loaded_bytes(self) -> int:
        """Bytes per point that a kernel loads from what is as large as its space."""
        found: dict[str, int] = {}
        spaces = [(*self.kernel.units, *phase.axes) for phase in self.kernel.phases]
        space = max(prod(map(self.length, axes)) for axes in spaces)
        for axes, phase in zip(spaces, self.kernel.phases, strict=True):
            for one in accesses(phase.body):
                used = symbols_of(*one.index)
                points = prod(self.length(axis) for axis in axes if axis.symbol in used)
                if one.buffer in self.specs and 2 * points > space:
                    found[one.buffer] = one.dtype.itemsize
        return sum(found.values())


def is_read_again(kernel: KernelIR, axes: tuple[Axis, ...]) -> bool:
    """Does more than one phase load the same buffer along these axes?"""
    symbols, buffers = {axis.symbol for axis in axes}, {one.name for one in kernel.params}
    readers = Counter(
        name
        for phase in kernel.phases
        for name in {one.buffer for one in accesses(phase.body) if symbols & symbols_of(*one.index)}
        if name in buffers
    )
    return any(count > 1 for count in readers.values())
