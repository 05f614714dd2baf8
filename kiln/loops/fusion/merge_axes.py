"""Merging axes that lie together in memory, and the views under which a kernel sees its arguments.

    units (i0: 4, i1: 128)  phase (i2: 768)      x: f32[4, 128, 768] at [i0, i1, i2], mean: f32[512] at [128*i0 + i1]
    units (i1: 512)         phase (i2: 768)      x: f32[512, 768] at [i1, i2],        mean: f32[512] at [i1]

Two neighbouring axes are one if every access to memory and to locals moves over both as over one. Each parameter then
gets one dimension per axis that its accesses use; where they differ, one dimension with the whole address as index. So
kernels do not depend on how many dimensions a tensor happens to have.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import final

from kiln.loops.body.affine import Affine, affine
from kiln.loops.body.analyses import symbols_used
from kiln.loops.body.body import BodyOp, Index, IndexValue, Indirect, Load, Random, Test
from kiln.loops.body.indexing import Axis, axis_bounds, linear_index, symbols_of
from kiln.loops.fusion.kernel_draft import KernelDraft
from kiln.loops.kernel.analyses import with_indices
from kiln.loops.kernel.kernel import Accumulate, Effect, Phase
from kiln.loops.program.nodes import Buffer
from kiln.symbolic import Int, Symbol, simplify_in_ranges, substituted
from kiln.symbolic.expr import is_polynomial_in_symbols
from kiln.tensor.size_hint import size_hint
from kiln.tensor.spec import TensorSpec


def merge_axes(draft: KernelDraft) -> KernelDraft:
    """The draft with merged axes, and views of its buffers."""
    analysis = _Accesses(draft)
    return _MergedDraft(analysis, _merges(analysis)).run()


@final
class _Accesses:
    """Accesses to memory as addresses and affine forms."""

    def __init__(self, draft: KernelDraft) -> None:
        self.draft = draft
        axes = [*draft.units, *(axis for phase in draft.phases for axis in phase.axes)]
        self.sizes = {axis.symbol: axis.size for axis in axes}
        self.addresses: dict[tuple[str, Index], Int] = {}
        self.forms: dict[str, list[Affine | None]] = {}
        ops = [op for phase in draft.phases for op in phase.body.ops]
        self.masked = {op.buffer for op in ops if isinstance(op, Load) and op.mask is not None}
        bound = frozenset(op.symbol for op in ops if isinstance(op, Indirect))
        private = {local.name for local in draft.locals}
        for name, index in (access for phase in draft.phases for access in _accesses(phase)):
            if name not in private and (name, index) not in self.addresses:
                address = self._simplified(linear_index(draft.buffers[name].spec, index))
                self.addresses[name, index] = address
                self.forms.setdefault(name, []).append(affine(address, self.sizes, bound))

    def _simplified(self, address: Int) -> Int:
        """Without the divisions that the sizes of the loops decide."""
        if is_polynomial_in_symbols(address):
            return address
        axes = [*self.draft.units, *(axis for phase in self.draft.phases for axis in phase.axes)]
        return simplify_in_ranges(address, axis_bounds(axes))

    def same_stride(self, outer: Symbol, inner: Symbol) -> bool:
        """Does every access move over both as over one axis?"""
        size = self.sizes[inner]
        for forms in self.forms.values():
            for form in forms:
                if form is not None and form.strides.get(outer, 0) != form.strides.get(inner, 0) * size:
                    return False
        return True


def _accesses(phase: Phase) -> Iterator[tuple[str, Index]]:
    for op in phase.body.ops:
        if isinstance(op, Load):
            yield op.buffer, op.index
    for effect in phase.effects:
        yield effect.target, effect.index
        if isinstance(effect, Accumulate) and effect.running is not None:
            yield effect.running.target, effect.running.index


def _merges(accesses: _Accesses) -> dict[Symbol, Symbol]:
    """Axes that become part of the axis that follows them."""
    draft, used = accesses.draft, _used_by_value(accesses)
    nests = [draft.units, *(phase.axes for phase in draft.phases), *(local.axes for local in draft.locals)]
    rows = [[axis.symbol for axis in axes] for axes in nests]
    effects = [effect for phase in draft.phases for effect in phase.effects]
    reduced = [{axis.symbol for axis in effect.over} for effect in effects if isinstance(effect, Accumulate)]
    merged: dict[Symbol, Symbol] = {}
    for row in rows:
        for outer, inner in pairwise(row):
            if outer in merged or outer in used or inner in used or not accesses.same_stride(outer, inner):
                continue
            if all((outer in over) == (inner in over) for over in reduced) and _adjacent(outer, inner, rows):
                merged[outer] = inner
    return merged


def _adjacent(outer: Symbol, inner: Symbol, rows: list[list[Symbol]]) -> bool:
    """Does `inner` follow `outer` wherever either is?"""
    for row in rows:
        if outer in row or inner in row:
            position = row.index(outer) if outer in row else -1
            if position < 0 or row[position + 1 : position + 2] != [inner]:
                return False
    return True


def _used_by_value(accesses: _Accesses) -> frozenset[Symbol]:
    """Symbols that are used other than in affine addresses."""
    draft, sizes = accesses.draft, accesses.sizes
    used: frozenset[Symbol] = symbols_of(*sizes.values())
    # An axis that is shorter in the last unit: locals have room for its full size.
    in_locals = {axis.symbol for local in draft.locals for axis in local.axes}
    used |= {symbol for symbol in in_locals if not sizes.keys().isdisjoint(symbols_of(sizes[symbol]))}
    for phase in draft.phases:
        for op in phase.body.ops:
            if isinstance(op, IndexValue | Test | Random | Indirect):
                used |= symbols_used(op)
        for effect in phase.effects:
            if isinstance(effect, Accumulate) and effect.running:
                used |= {axis.symbol for axis in effect.over}
    # Locals that are read or written elsewhere than at the axes themselves.
    own = {local.name: tuple(axis.symbol for axis in local.axes) for local in draft.locals}
    for name, index in (access for phase in draft.phases for access in _accesses(phase)):
        if name in own and index != own[name]:
            used |= symbols_of(*index) | set(own[name])
    for (name, _), address in accesses.addresses.items():
        if None in accesses.forms[name]:
            used |= symbols_of(address)
    return used


@final
class _MergedDraft:
    """Rewrites a draft; `merged[a] = b`: `a` is part of `b`."""

    def __init__(self, accesses: _Accesses, merged: dict[Symbol, Symbol]) -> None:
        self.draft, self.accesses, self.merged = accesses.draft, accesses, merged
        self.sizes = dict(accesses.sizes)
        for outer in merged:
            last = self._last(outer)
            self.sizes[last] = self.sizes[last] * accesses.sizes[outer]
        self.views = {name: self._view(name) for name in accesses.forms}

    def _last(self, symbol: Symbol) -> Symbol:
        """The axis that it is a part of."""
        while symbol in self.merged:
            symbol = self.merged[symbol]
        return symbol

    def run(self) -> KernelDraft:
        return replace(
            self.draft,
            units=self._axes(self.draft.units),
            phases=tuple(map(self._phase, self.draft.phases)),
            locals=tuple(replace(local, axes=self._axes(local.axes)) for local in self.draft.locals),
            views={name: Buffer(name, spec) for name, (spec, _) in self.views.items()},
            dims={name: (None,) if symbols is None else symbols for name, (_, symbols) in self.views.items()},
        )

    def _axes(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(axis.symbol, self._size(axis)) for axis in axes if axis.symbol not in self.merged)

    def _size(self, axis: Axis) -> Int:
        """Locals of blocks have sizes of their own."""
        same = axis.size == self.accesses.sizes[axis.symbol]
        return self.sizes[axis.symbol] if same else axis.size

    def _view(self, name: str) -> tuple[TensorSpec, tuple[Symbol, ...] | None]:
        """The spec of a parameter, and the symbol of each dimension; None: one dimension, indexed by the address."""
        spec = self.draft.buffers[name].spec
        first, *others = self.accesses.forms[name]
        # What is read under a mask may be shorter than the axes that read it.
        same = name not in self.accesses.masked and all(form == first for form in others)
        if first is not None and same and first.offset == 0 and self._is_plain(first):
            strides = {symbol: first.strides[symbol] for symbol in self.sizes if symbol in first.strides}
            kept = (symbol for symbol in strides if symbol not in self.merged)
            symbols = tuple(sorted(kept, key=lambda symbol: -size_hint(strides[symbol])))
            sizes = tuple(self.sizes[symbol] for symbol in symbols)
            return spec.with_view(sizes, tuple(strides[symbol] for symbol in symbols), 0), symbols
        span: Int = 1
        for size, stride in zip(spec.sizes, spec.strides, strict=True):
            span = span + (size - 1) * stride
        return spec.with_view((span,), (1,), 0), None

    def _is_plain(self, form: Affine) -> bool:
        """No axis runs backwards, and none has a size that depends on the unit."""
        if any(size_hint(stride) < 0 for stride in form.strides.values()):
            return False
        return not any(symbols_of(self.sizes[symbol]) & self.sizes.keys() for symbol in form.strides)

    def _index(self, name: str, index: Index) -> Index:
        if name not in self.views:
            return tuple(at for at in index if at not in self.merged)
        symbols = self.views[name][1]
        if symbols is not None:
            return symbols
        return (substituted(self.accesses.addresses[name, index], {outer: 0 for outer in self.merged}),)

    def _phase(self, phase: Phase) -> Phase:
        axes = self._axes(phase.axes)
        symbols = [axis.symbol for axis in axes]
        vector = None if phase.vector is None else symbols.index(self._last(phase.axes[phase.vector].symbol))
        return Phase(axes, phase.body.mapped(self._op), tuple(map(self._effect, phase.effects)), vector)

    def _op(self, op: BodyOp) -> BodyOp:
        return replace(op, index=self._index(op.buffer, op.index)) if isinstance(op, Load) else op

    def _effect(self, effect: Effect) -> Effect:
        moved = with_indices(effect, self._index)
        return replace(moved, over=self._axes(moved.over)) if isinstance(moved, Accumulate) else moved
