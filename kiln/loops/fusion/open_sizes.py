"""Sizes that the code need not know become arguments of the kernel, so that more launches share it.

    units (i1: 57, ...)   i1 <= 56, x[8064*i1 + 144*i2 + i3 - 8208]
    units (i1: n0, ...)   i1 <= n6, x[n7*i1 + n8*i2 + i3 - n9]

These are the size of the outermost unit axis (of all where there is nothing inside the units), the strides that follow
from it, and the length of a parameter that is indexed by its address. Where there are only units, also the numbers in
such an address and in tests of units, but for the innermost axis, along which vectors lie: so padded images of all
sizes share a kernel, and so do the slices of a tensor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import final

from kiln.loops.body.body import BodyOp, Index, Load, Test
from kiln.loops.body.indexing import Axis
from kiln.loops.fusion.kernel_draft import KernelDraft
from kiln.loops.kernel.kernel import Phase
from kiln.loops.program.nodes import Buffer
from kiln.symbolic import Expr, Int, Symbol, product, symbol
from kiln.symbolic.expr import from_terms
from kiln.symbolic.relation import relate
from kiln.tensor.spec import TensorSpec


def open_sizes(draft: KernelDraft) -> KernelDraft:
    return _SizeOpener(draft).run()


@final
class _SizeOpener:
    def __init__(self, draft: KernelDraft) -> None:
        self.draft = draft
        self.values: dict[Symbol, Int] = {}
        self._spans: dict[Int, Symbol] = {}
        self.only_units = len(draft.phases) == 1 and not draft.phases[0].axes and not draft.locals
        opened = draft.units if self.only_units else draft.units[:1]
        self.sizes = {axis.symbol: self._fresh(axis.size) for axis in opened}
        self.outer = frozenset(axis.symbol for axis in draft.units[:-1]) if self.only_units else frozenset()
        self.addresses: dict[Int, Int] = {}

    def run(self) -> KernelDraft:
        draft = self.draft
        units = tuple(Axis(axis.symbol, self.sizes.get(axis.symbol, axis.size)) for axis in draft.units)
        views = {name: Buffer(name, self._opened(view.spec, draft.dims[name])) for name, view in draft.views.items()}
        phases = tuple(map(self._phase, draft.phases)) if self.only_units else draft.phases
        return replace(draft, units=units, phases=phases, views=views, sizes=self.values)

    def _phase(self, phase: Phase) -> Phase:
        effects = tuple(replace(effect, index=self._index(effect.target, effect.index)) for effect in phase.effects)
        return replace(phase, body=phase.body.mapped(self._op), effects=effects)

    def _op(self, op: BodyOp) -> BodyOp:
        if isinstance(op, Load):
            return replace(op, index=self._index(op.buffer, op.index))
        if isinstance(op, Test) and op.relation.free_symbols() <= self.outer:
            opened = relate(op.relation.kind, self._numbers_opened(op.relation.difference, frozenset()))
            return op if isinstance(opened, bool) else Test(opened)
        return op

    def _index(self, name: str, index: Index) -> Index:
        if self.draft.dims[name] != (None,):
            return index
        (address,) = index
        if address not in self.addresses:
            self.addresses[address] = self._numbers_opened(address, self.outer)
        return (self.addresses[address],)

    def _numbers_opened(self, value: Int, factors_of: frozenset[Symbol]) -> Int:
        """The number that is added, and those that multiply a symbol of `factors_of`, as arguments."""
        if not isinstance(value, Expr):
            return value
        opened: Int = 0
        for monomial, coefficient in value.terms:
            eligible = not monomial or (len(monomial) == 1 and monomial[0] in factors_of)
            if eligible and abs(coefficient) > 1:
                number = self._fresh(abs(coefficient))
                opened = opened + from_terms(((monomial, 1 if coefficient > 0 else -1),)) * number
            else:
                opened = opened + from_terms(((monomial, coefficient),))
        return opened

    def _fresh(self, value: Int) -> Symbol:
        made = symbol(f"n{len(self.values):02}_")  # arguments are ordered by name
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
        for dim, stride in enumerate(spec.strides):
            follows = product(spec.sizes[dim + 1 :]) == stride
            strides.append(product(sizes[dim + 1 :]) if follows else stride)
        return tuple(strides)
