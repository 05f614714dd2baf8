"""Merging loops and dimensions that lie together in memory, and the views under which a kernel sees its arguments.

    units (i0: 4, i1: 128)  phase (i2: 768)      x: f32[4, 128, 768] at [i0, i1, i2], mean: f32[512] at [128*i0 + i1]
    units (i1: n0 = 512)    phase (i2: 768)      x: f32[n0, 768] at [i1, i2],         mean: f32[n0] at [i1]

Two neighbouring axes are one if every access to memory and to locals moves over both as over one. Each parameter then
gets one dimension per axis that its accesses use; where they differ, one dimension with the whole address as index. So
kernels do not depend on how many dimensions a tensor happens to have, nor on the size of the outermost axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import final

from kiln.loops.body.affine import Affine, affine
from kiln.loops.body.body import BodyOp, Index, IndexValue, Indirect, Load, LoopBody, Random, Test
from kiln.loops.body.builder import symbols_used
from kiln.loops.body.indexing import Axis, axis_bounds, linear_index, substituted, symbols_of
from kiln.loops.kernel.kernel import Accumulate, Local, Phase, Store
from kiln.loops.program.nodes import Buffer
from kiln.symbolic import Expr, Int, Symbol, product, simplify_in_ranges, symbol
from kiln.symbolic.expr import from_terms, is_polynomial_in_symbols
from kiln.symbolic.relation import relate
from kiln.tensor.size_hint import size_hint
from kiln.tensor.spec import TensorSpec

Effect = Store | Accumulate


@final
@dataclass(frozen=True, slots=True)
class KernelLoops:
    """Units, phases and locals of a kernel, and the buffers that it sees under views."""

    units: tuple[Axis, ...]
    phases: tuple[Phase, ...]
    locals: tuple[Local, ...]
    buffers: Mapping[str, Buffer]
    dims: Mapping[str, tuple[Symbol | None, ...]] = field(default_factory=dict)
    """For each buffer the axis that runs along each dimension; None: an address."""


def merge_views(loops: KernelLoops) -> KernelLoops:
    """The same loops with merged axes and dimensions."""
    return _Merger(loops).run()


def open_sizes(loops: KernelLoops) -> tuple[KernelLoops, dict[Symbol, Int]]:
    """Sizes that the code need not know under symbols of their own, and their values.

    The number of the outermost units (of all units where there is nothing inside them), the strides that follow from
    these, and how long a parameter is that is indexed by its address. Where there are only units, also the numbers in
    such an address and in tests of units, but for what belongs to the innermost one, along which vectors lie: so
    padded images of all sizes share a kernel.

        i1 <= 56, x[8064*i1 + 144*i2 + i3 - 8208]    =>    i1 <= n6, x[n7*i1 + n8*i2 + i3 - n9]
    """
    return _Opener(loops).run()


@final
class _Opener:
    def __init__(self, loops: KernelLoops) -> None:
        self.loops = loops
        self.values: dict[Symbol, Int] = {}
        self._spans: dict[Int, Symbol] = {}
        everything = len(loops.phases) == 1 and not loops.phases[0].axes and not loops.locals
        opened = loops.units if everything else loops.units[:1]
        self.sizes = {axis.symbol: self._fresh(axis.size) for axis in opened}
        self.outer = frozenset(axis.symbol for axis in loops.units[:-1]) if everything else frozenset()
        self.addresses: dict[Int, Int] = {}

    def run(self) -> tuple[KernelLoops, dict[Symbol, Int]]:
        units = tuple(Axis(axis.symbol, self.sizes.get(axis.symbol, axis.size)) for axis in self.loops.units)
        buffers = {name: Buffer(name, self._opened(buffer.spec, self.loops.dims[name]))
                   for name, buffer in self.loops.buffers.items()}  # fmt: skip
        phases = tuple(map(self._phase, self.loops.phases)) if self.outer else self.loops.phases
        return replace(self.loops, units=units, phases=phases, buffers=buffers), self.values

    def _phase(self, phase: Phase) -> Phase:
        body = LoopBody(tuple(map(self._op, phase.body.ops)), phase.body.results)
        effects = tuple(replace(one, index=self._index(one.target, one.index)) for one in phase.effects)
        return replace(phase, body=body, effects=effects)

    def _op(self, op: BodyOp) -> BodyOp:
        if isinstance(op, Load):
            return replace(op, index=self._index(op.buffer, op.index))
        if isinstance(op, Test) and op.relation.free_symbols() <= self.outer:
            opened = relate(op.relation.kind, self._numbers_opened(op.relation.difference, frozenset()))
            return op if isinstance(opened, bool) else Test(opened)
        return op

    def _index(self, name: str, index: Index) -> Index:
        if self.loops.dims[name] != (None,):
            return index
        (address,) = index
        if address not in self.addresses:
            self.addresses[address] = self._numbers_opened(address, self.outer)
        return (self.addresses[address],)

    def _numbers_opened(self, value: Int, factors_of: frozenset[Symbol]) -> Int:
        """The number that is added, and those that multiply one of the symbols `factors_of`, under symbols."""
        if not isinstance(value, Expr):
            return value
        opened: Int = 0
        for monomial, coefficient in value.terms:
            known = not monomial or (len(monomial) == 1 and monomial[0] in factors_of)
            if known and abs(coefficient) > 1:
                number = self._fresh(abs(coefficient))
                rest = from_terms(((monomial, 1 if coefficient > 0 else -1),))
                opened = opened + rest * number
            else:
                opened = opened + from_terms(((monomial, coefficient),))
        return opened

    def _fresh(self, value: Int) -> Symbol:
        made = symbol(f"n{len(self.values):02}_")  # the order of names is that of arguments
        self.values[made] = value
        return made

    def _opened(self, spec: TensorSpec, dims: tuple[Symbol | None, ...]) -> TensorSpec:
        if dims == (None,):
            (span,) = spec.sizes
            if span not in self._spans:
                self._spans[span] = self._fresh(span)
            return spec.with_view((self._spans[span],), spec.strides, 0)
        pairs = zip(dims, spec.sizes, strict=True)
        sizes = tuple([size if axis is None else self.sizes.get(axis, size) for axis, size in pairs])
        return spec.with_view(sizes, self._strides(spec, sizes), 0)

    def _strides(self, spec: TensorSpec, sizes: tuple[Int, ...]) -> tuple[Int, ...]:
        """Strides that are products of sizes by these, others by number."""
        strides: list[Int] = []
        for place, stride in enumerate(spec.strides):
            follows = product(spec.sizes[place + 1 :])
            strides.append(product(sizes[place + 1 :]) if follows == stride else stride)
        return tuple(strides)


@final
class _Merger:
    def __init__(self, loops: KernelLoops) -> None:
        self.loops = loops
        self.private = {one.name for one in loops.locals}
        self.sizes = {axis.symbol: axis.size for axis in loops.units}
        for phase in loops.phases:
            self.sizes |= {axis.symbol: axis.size for axis in phase.axes}
        self.addresses: dict[tuple[str, Index], Int] = {}
        self.forms: dict[str, list[Affine | None]] = {}
        self.masked = {
            op.buffer for phase in loops.phases for op in phase.body.ops if isinstance(op, Load) and op.mask is not None
        }
        for name, index in self._accesses():
            if (name, index) not in self.addresses:
                address = self._simplified(linear_index(loops.buffers[name].spec, index))
                self.addresses[name, index] = address
                self.forms.setdefault(name, []).append(affine(address, self.sizes, _bound(loops)))

    def run(self) -> KernelLoops:
        merged = self._find_merges()
        return _Rewriter(self, merged).run()

    def _simplified(self, address: Int) -> Int:
        """Without the divisions that the sizes of the loops decide."""
        if is_polynomial_in_symbols(address):
            return address
        axes = [*self.loops.units, *(axis for phase in self.loops.phases for axis in phase.axes)]
        return simplify_in_ranges(address, axis_bounds(axes))

    def _accesses(self) -> Iterator[tuple[str, Index]]:
        """Accesses to memory."""
        for phase in self.loops.phases:
            for op in phase.body.ops:
                if isinstance(op, Load) and op.buffer not in self.private:
                    yield op.buffer, op.index
            for store in _stores(phase):
                if store.target not in self.private:
                    yield store.target, store.index

    def _find_merges(self) -> dict[Symbol, Symbol]:
        """Axes that become part of the axis that follows them."""
        fixed = self._fixed()
        merged: dict[Symbol, Symbol] = {}
        rows = [[axis.symbol for axis in self.loops.units]]
        rows += [[axis.symbol for axis in phase.axes] for phase in self.loops.phases]
        rows += [[axis.symbol for axis in one.axes] for one in self.loops.locals]
        for row in rows:
            for outer, inner in pairwise(row):
                known = outer in merged or outer in fixed or inner in fixed
                if not known and self._together(outer, inner) and _adjacent(outer, inner, rows):
                    merged[outer] = inner
        return merged

    def _together(self, outer: Symbol, inner: Symbol) -> bool:
        """Does every access move over both as over one axis?"""
        size = self.sizes[inner]
        for forms in self.forms.values():
            for form in forms:
                if form is not None and form.strides.get(outer, 0) != form.strides.get(inner, 0) * size:
                    return False
        reduced = [set(one.over) for phase in self.loops.phases for one in phase.effects if isinstance(one, Accumulate)]
        over = [{axis.symbol for axis in one} for one in reduced]
        return all((outer in one) == (inner in one) for one in over)

    def _fixed(self) -> frozenset[Symbol]:
        """GroupSymbols whose values are used other than in affine addresses."""
        used: frozenset[Symbol] = symbols_of(*self.sizes.values())
        # An axis that is shorter in the last unit: locals have room for its full size.
        rows = {axis.symbol for local in self.loops.locals for axis in local.axes}
        used |= {one for one in rows if not self.sizes.keys().isdisjoint(symbols_of(self.sizes[one]))}
        for phase in self.loops.phases:
            for op in phase.body.ops:
                if isinstance(op, IndexValue | Test | Random | Indirect):
                    used |= symbols_used(op)
            used |= self._moved_in_locals(phase)
            used |= {axis.symbol for effect in phase.effects if isinstance(effect, Accumulate) and effect.running
                     for axis in effect.over}  # fmt: skip
        for (name, _), address in self.addresses.items():
            if None in self.forms[name]:
                used |= symbols_of(address)
        return used

    def _moved_in_locals(self, phase: Phase) -> frozenset[Symbol]:
        """GroupSymbols of locals that are read or written elsewhere than at the axes themselves."""
        axes = {one.name: tuple(axis.symbol for axis in one.axes) for one in self.loops.locals}
        used: frozenset[Symbol] = frozenset()
        loads = [(op.buffer, op.index) for op in phase.body.ops if isinstance(op, Load)]
        for name, index in (*loads, *((store.target, store.index) for store in _stores(phase))):
            if name in axes and index != axes[name]:
                used |= symbols_of(*index) | set(axes[name])
        return used


def _bound(loops: KernelLoops) -> frozenset[Symbol]:
    return frozenset(op.symbol for phase in loops.phases for op in phase.body.ops if isinstance(op, Indirect))


def _stores(phase: Phase) -> Iterator[Store | Accumulate]:
    for effect in phase.effects:
        yield effect
        if isinstance(effect, Accumulate) and effect.running is not None:
            yield effect.running


def _adjacent(outer: Symbol, inner: Symbol, rows: list[list[Symbol]]) -> bool:
    """Does `inner` follow `outer` wherever either is?"""
    for row in rows:
        if outer in row or inner in row:
            place = row.index(outer) if outer in row else -1
            if place < 0 or row[place + 1 : place + 2] != [inner]:
                return False
    return True


@final
class _Rewriter:
    """Writes the loops with the merged axes; `merged[a] = b`: `a` is part of `b`."""

    def __init__(self, merger: _Merger, merged: dict[Symbol, Symbol]) -> None:
        self.loops, self.merger, self.merged = merger.loops, merger, merged
        self.sizes = dict(merger.sizes)
        for outer in merged:
            last = outer
            while last in merged:
                last = merged[last]
            self.sizes[last] = self.sizes[last] * merger.sizes[outer]
        self.views = {name: self._view(name) for name in merger.forms}

    def run(self) -> KernelLoops:
        loops = self.loops
        phases = tuple(self._phase(phase) for phase in loops.phases)
        locals_ = tuple(replace(one, axes=self._axes(one.axes)) for one in loops.locals)
        buffers = {name: Buffer(name, spec) for name, (spec, _) in self.views.items()}
        dims = {name: (None,) if symbols is None else symbols for name, (_, symbols) in self.views.items()}
        return KernelLoops(self._axes(loops.units), phases, locals_, buffers, dims)

    def _axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(axis.symbol, self._size(axis)) for axis in axes if axis.symbol not in self.merged)

    def _size(self, axis: Axis) -> Int:
        """Locals of blocks have sizes of their own."""
        same = axis.size == self.merger.sizes[axis.symbol]
        return self.sizes[axis.symbol] if same else axis.size

    def _view(self, name: str) -> tuple[TensorSpec, tuple[Symbol, ...] | None]:
        """The spec of a parameter, and the symbol of each dimension; None: one dimension, indexed by the address."""
        spec = self.loops.buffers[name].spec
        forms = self.merger.forms[name]
        first = forms[0]
        # What is read under a mask may be shorter than the axes that read it.
        same = first is not None and name not in self.merger.masked and all(form == first for form in forms)
        if first is not None and same and first.offset == 0 and self._plain(first):
            used = (one for one in self.sizes if one in first.strides and one not in self.merged)
            symbols = tuple(sorted(used, key=lambda one: -size_hint(first.strides[one])))
            sizes = tuple(self.sizes[one] for one in symbols)
            return spec.with_view(sizes, tuple(first.strides[one] for one in symbols), 0), symbols
        span: Int = 1
        for size, stride in zip(spec.sizes, spec.strides, strict=True):
            span = span + (size - 1) * stride
        return spec.with_view((span,), (1,), 0), None

    def _plain(self, form: Affine) -> bool:
        """No axis whose size depends on the unit, none that runs backwards."""
        loops = frozenset(self.sizes)
        if any(size_hint(stride) < 0 for stride in form.strides.values()):
            return False
        return not any(symbols_of(self.sizes[one]) & loops for one in form.strides)

    def _index(self, name: str, index: Index) -> Index:
        if name not in self.views:
            return tuple(at for at in index if at not in self.merged)
        symbols = self.views[name][1]
        if symbols is not None:
            return symbols
        address = self.merger.addresses[name, index]
        return (substituted(address, {outer: 0 for outer in self.merged}),)

    def _op(self, op: BodyOp) -> BodyOp:
        return replace(op, index=self._index(op.buffer, op.index)) if isinstance(op, Load) else op

    def _effect(self, effect: Effect) -> Effect:
        if isinstance(effect, Store):
            return replace(effect, index=self._index(effect.target, effect.index))
        running = effect.running
        if running is not None:
            running = replace(running, index=self._index(running.target, running.index))
        index = self._index(effect.target, effect.index)
        return replace(effect, over=self._axes(effect.over), index=index, running=running)

    def _phase(self, phase: Phase) -> Phase:
        axes = self._axes(phase.axes)
        vector = None if phase.vector is None else len(axes) - 1
        body = LoopBody(tuple(self._op(op) for op in phase.body.ops), phase.body.results)
        return Phase(axes, body, tuple(self._effect(one) for one in phase.effects), vector)
