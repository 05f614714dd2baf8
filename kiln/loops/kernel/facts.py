"""Facts that the choice of blocks rests on: which axes occur together, how accesses are laid out in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from math import gcd, prod
from typing import final

from kiln.loops.body.analyses import accesses
from kiln.loops.body.body import Compute, Index, Load, Test
from kiln.loops.body.indexing import Axis, add_ranges, stride_along, symbols_of
from kiln.loops.kernel.analyses import phase_accesses, phase_stores, size_arguments
from kiln.loops.kernel.atomics import runs_in_order
from kiln.loops.kernel.kernel import Accumulate, KernelIR
from kiln.symbolic import BoundAnalysis, Range, Symbol
from kiln.tensor.size_hint import size_hint
from kiln.tensor.spec import TensorSpec

LINE_BYTES = 128
"""A line of the cache."""
VECTOR_BYTES = 16
"""The widest access of a thread."""
LONG_CODE = {name: 4 for name in ("sin", "cos", "tan", "pow", "erfinv", "lgamma", "digamma")}
"""How often the code of these functions is as long as that of an exponential, in CUDA's library."""
FUNCTION_FLOPS = 10
"""Of an exponential; what takes less is a few instructions."""


def loop_ranges(kernel: KernelIR, sizes: Range) -> dict[Symbol, Range]:
    """The ranges of a kernel's size arguments, which are all `sizes`, and of its axes."""
    ranges = dict.fromkeys(size_arguments(kernel), sizes)
    for axes in (kernel.units, *(phase.axes for phase in kernel.phases)):
        add_ranges(ranges, axes)
    return ranges


@final
class KernelFacts:
    """Facts of one kernel, computed on demand."""

    def __init__(self, kernel: KernelIR) -> None:
        self.kernel = kernel
        self.specs = {param.name: param.spec for param in kernel.params}
        sized = symbols_of(*(axis.size for phase in kernel.phases for axis in phase.axes))
        self.fixed_units = tuple(axis for axis in kernel.units if axis.symbol in sized)
        """Units on which sizes of phases depend: one value per program."""
        self.free_units = tuple(axis for axis in kernel.units if axis.symbol not in sized)

    @cached_property
    def bounds(self) -> BoundAnalysis:
        return BoundAnalysis(self.ranges)

    @cached_property
    def ranges(self) -> dict[Symbol, Range]:
        return loop_ranges(self.kernel, Range(0))

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
        phases = tuple(position for position, phase in enumerate(self.kernel.phases) if axis in phase.axes)
        locals_ = tuple(local.name for local in self.kernel.locals if any(axis.symbol is a.symbol for a in local.axes))
        over = tuple(
            (position, number)
            for position, phase in enumerate(self.kernel.phases)
            for number, effect in enumerate(phase.effects)
            if isinstance(effect, Accumulate) and axis in effect.over
        )
        alone = axis.symbol if axis.symbol in self._ragged or self._indexes_best(axis) else None
        return (phases, locals_, over, alone)

    def _indexes_best(self, axis: Axis) -> bool:
        """Is it the axis of an index reduction, or does a scan run along it?"""
        effects = (effect for phase in self.kernel.phases for effect in phase.effects if isinstance(effect, Accumulate))
        along = (effect for effect in effects if axis in effect.over)
        return any(effect.running is not None or effect.op.value.startswith("arg") for effect in along)

    @cached_property
    def _ragged(self) -> frozenset[Symbol]:
        """Axes whose size depends on the unit."""
        units = {axis.symbol for axis in self.kernel.units}
        inner = (axis for phase in self.kernel.phases for axis in phase.axes)
        return frozenset(axis.symbol for axis in inner if symbols_of(axis.size) & units)

    def is_kept(self, axes: tuple[Axis, ...]) -> bool:
        """Has some local a value per point of these axes?"""
        symbols = {axis.symbol for axis in axes}
        return any(axis.symbol in symbols for local in self.kernel.locals for axis in local.axes)

    def shared_phases(self, axes: tuple[Axis, ...]) -> range | None:
        """The phases over `axes` if one loop can hold them: nothing pointwise in it is used outside, nothing reduced
        inside."""
        positions = [position for position, phase in enumerate(self.kernel.phases) if set(axes) <= set(phase.axes)]
        if not positions or positions != list(range(positions[0], positions[-1] + 1)):
            return None
        inside = range(positions[0], positions[-1] + 1)
        symbols = {axis.symbol for axis in axes}
        pointwise = {local.name for local in self.kernel.locals if any(axis.symbol in symbols for axis in local.axes)}
        combined = {
            effect.target
            for position in inside
            for effect in self.kernel.phases[position].effects
            if isinstance(effect, Accumulate) and set(axes) & set(effect.over)
        }
        for position, phase in enumerate(self.kernel.phases):
            loaded = {op.buffer for op in phase.body.ops if isinstance(op, Load)}
            if loaded & (combined if position in inside else pointwise):
                return None
        return inside

    def share_a_phase(self, left: tuple[Axis, ...], right: tuple[Axis, ...]) -> bool:
        return any({*left, *right} <= set(phase.axes) for phase in self.kernel.phases)

    def choosing_units(self) -> tuple[Axis, ...]:
        """Units by whose number alone bodies choose what to load: if one program has one, it chooses once."""
        tests = [op.relation for phase in self.kernel.phases for op in phase.body.ops if isinstance(op, Test)]
        chosen = {test.lhs for test in tests if test.op == "eq" and not symbols_of(test.rhs)}
        along = self.contiguous()
        return tuple(axis for axis in self.free_units if axis.symbol in chosen and axis.symbol is not along)

    def touched(self) -> Iterator[tuple[TensorSpec, Index, int]]:
        """Accesses of memory: layout, index, and about how many of its bytes the loops around touch."""
        for phase in self.kernel.phases:
            axes = (*self.kernel.units, *phase.axes)
            for name, index in phase_accesses(phase):
                if name in self.specs:
                    used = symbols_of(*index)
                    by_data = not used <= {axis.symbol for axis in axes} | symbols_of(*self.kernel.ints)
                    along = [self.length(axis) for axis in axes if by_data or axis.symbol in used]
                    yield self.specs[name], index, self.specs[name].dtype.itemsize * prod(along)

    def length(self, axis: Axis) -> int:
        """About how many points an axis has; if that depends on the unit, the most."""
        top = self.bounds.of(axis.size).hi if axis.symbol in self._ragged else None
        return size_hint(axis.size) if top is None else top

    def contiguous(self) -> Symbol | None:
        """The axis that is contiguous in memory in most accesses, weighted by size."""
        votes = contiguous_accesses(self)
        return max(votes, key=lambda axis: votes[axis], default=None)

    def tile_axes(self, units: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """Unit axes that are contiguous in some access, those of most accesses first; at most three."""
        found: list[Axis] = []
        rest = list(self.touched())
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
            rest = [access for access in rest if stride_along(*access[:2], best.symbol) not in (0, 1)]
        return tuple(found)

    def access_elements(self) -> int:
        """Elements that a thread may load at once along the contiguous axis: as many as divide all other strides."""
        along, found = self.contiguous(), VECTOR_BYTES
        axes = {axis.symbol for phase in self.kernel.phases for axis in phase.axes}
        axes |= {axis.symbol for axis in self.kernel.units}
        for spec, index, _ in self.touched():
            if along is None or stride_along(spec, index, along) != 1:
                continue
            for axis in axes - {along}:
                stride = stride_along(spec, index, axis)
                found = gcd(found, stride) if isinstance(stride, int) else 1
        return found

    def narrowest_bytes(self) -> int:
        return min((param.spec.dtype.itemsize for param in self.kernel.params), default=4)

    def line_elements(self) -> int:
        """Elements per line of memory, for the narrowest accesses."""
        return max(16, min(LINE_BYTES // self.narrowest_bytes(), 64))

    def loaded_bytes(self) -> int:
        """Bytes per point loaded from buffers about as large as the iteration space."""
        return sum({buffer: itemsize for (buffer, _), itemsize in large_loads(self).items()}.values())


def code_length(kernel: KernelIR) -> int:
    """Of the functions that a point calls, in exponentials: each takes 5 ms to compile, per element of a thread."""
    ops = [op.op for phase in kernel.phases for op in phase.body.ops if isinstance(op, Compute)]
    return sum(LONG_CODE.get(op.name, 1) for op in ops if op.flops >= FUNCTION_FLOPS)


def bytes_ahead(facts: KernelFacts) -> int:
    """`loaded_bytes` that a turn of a loop holds if it loads ahead: a buffer read at two places counts twice."""
    return sum(large_loads(facts).values())


def large_loads(facts: KernelFacts) -> dict[tuple[str, Index], int]:
    """Loads from buffers about as large as the iteration space: bytes of an element, by buffer and index."""
    found: dict[tuple[str, Index], int] = {}
    spaces = [(*facts.kernel.units, *phase.axes) for phase in facts.kernel.phases]
    space = max(prod(map(facts.length, axes)) for axes in spaces)
    for axes, phase in zip(spaces, facts.kernel.phases, strict=True):
        for load in accesses(phase.body):
            used = symbols_of(*load.index)
            points = prod(facts.length(axis) for axis in axes if axis.symbol in used)
            if load.buffer in facts.specs and 2 * points > space:
                found[load.buffer, load.index] = load.dtype.itemsize
    return found


def is_read_again(kernel: KernelIR, axes: tuple[Axis, ...]) -> bool:
    """Does more than one phase load the same buffer along these axes?"""
    symbols, buffers = {axis.symbol for axis in axes}, {param.name for param in kernel.params}
    readers = Counter(
        name
        for phase in kernel.phases
        for name in {load.buffer for load in accesses(phase.body) if symbols & symbols_of(*load.index)}
        if name in buffers
    )
    return any(count > 1 for count in readers.values())


def contiguous_accesses(facts: KernelFacts) -> dict[Symbol, int]:
    """How many elements are read and written with neighbours in memory along each axis."""
    votes: dict[Symbol, int] = {}
    inner = {axis.symbol for phase in facts.kernel.phases for axis in phase.axes}
    loops = inner | {axis.symbol for axis in facts.kernel.units}
    for spec, index, size in facts.touched():
        for axis in loops:
            if stride_along(spec, index, axis) == 1:
                votes[axis] = votes.get(axis, 0) + size
    return votes


def has_rows(facts: KernelFacts) -> bool:
    """Whether memory is contiguous along inner axes in a quarter of all accesses."""
    votes = contiguous_accesses(facts)
    inner = {axis.symbol for phase in facts.kernel.phases for axis in phase.axes}
    return 4 * sum(votes.get(axis, 0) for axis in inner) >= sum(votes.values())
