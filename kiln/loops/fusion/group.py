"""Groups: loop nodes that become one kernel, over one space of loop symbols.

    total[i0]   = sum over (i1: 768) of x[i0, i1]            group   units {g0: 128}
    out[i0, i1] = x[i0, i1] - total[i0]                      members over g0, g1 and over g0, g1

A group has loop symbols of its own. `units` are those that are divided among threads; the others run inside a unit.
Each axis of a member's node is a sum of multiples of group symbols (several where an axis was split to fit another
member's). Every member covers all units, and what one member reads of another was written by the same unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import final

import torch

from kiln.loops.body.affine import Affine
from kiln.loops.body.indexing import Axis
from kiln.loops.program.nodes import Buffer, LoopNode, Pointwise, Reduction, Scan
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol, product, symbol
from kiln.tensor.size_hint import size_hint

FusableNode = Pointwise | Reduction | Scan
AxisTerms = tuple[tuple[Symbol, Int], ...]
"""An axis as a sum: (group symbol, multiple) pairs."""


@final
@dataclass(slots=True, eq=False)
class MemberAccess:
    """A load or the store of a member. `form` is over the group's symbols; None: not affine. `neighbours`: symbols
    along which memory is in order although data decide where a row is, as of an embedding."""

    buffer: str
    form: Affine | None
    conditional: bool = False
    neighbours: tuple[Symbol, ...] = ()


@final
@dataclass(slots=True, eq=False)
class PartialReduction:
    """A reduction over units: each block of `size` units of symbol `blocked` writes its part to `buffer`.

    `dims` are the symbols that index the parts, before the node's kept axes.
    """

    buffer: Buffer
    dims: tuple[Symbol, ...]
    blocked: Symbol
    size: int


@final
@dataclass(slots=True, eq=False)
class Member:
    """A node in a group, and its axes in the symbols of the group."""

    node: FusableNode
    number: int
    axis_terms: dict[Symbol, AxisTerms]
    reads: list[MemberAccess]
    write: MemberAccess
    partial: PartialReduction | None = None

    @property
    def out(self) -> str:
        return self.node.out.name

    def symbols(self) -> dict[Symbol, None]:
        """The group symbols that it runs over, in the order of its axes."""
        return {symbol: None for terms in self.axis_terms.values() for symbol, _ in terms}

    def symbols_of(self, axes: tuple[Axis, ...]) -> dict[Symbol, None]:
        return {symbol: None for axis in axes for symbol, _ in self.axis_terms[axis.symbol]}

    def reduced(self) -> dict[Symbol, None]:
        """Group symbols that it combines over (a scan: runs along)."""
        return self.symbols_of(combined_axes(self.node))

    def value(self, axis: Symbol) -> Int:
        """An axis of the node as an expression over group symbols."""
        return sum(symbol * multiple for symbol, multiple in self.axis_terms[axis])

    def accesses(self) -> Iterator[MemberAccess]:
        yield from self.reads
        yield self.write


@final
@dataclass(slots=True, eq=False)
class Group:
    """Members in program order. A group without members is one step that nothing fuses with (`step` is its node)."""

    members: list[Member] = field(default_factory=list)
    step: LoopNode | None = None
    units: dict[Symbol, None] = field(default_factory=dict)
    sizes: dict[Symbol, Int] = field(default_factory=dict)
    blocked: dict[Symbol, int] = field(default_factory=dict)
    """Units that come in blocks, and how many make one: these are not split."""
    unsplittable: frozenset[Symbol] = frozenset()
    """Symbols that a scan runs along, or whose value an index reduction gives."""
    ragged: dict[Symbol, int] = field(default_factory=dict)
    """Largest size of symbols whose size depends on the unit."""
    after: set[Group] = field(default_factory=set)
    barriers: set[Group] = field(default_factory=set)
    """Groups before this one that it must not be fused with."""
    parts_of: Group | None = None
    """The group whose partial results this one combines."""
    position: int = 0
    merged_into: Group | None = None
    origin: str = ""

    @property
    def device(self) -> torch.device | None:
        """Where its kernel runs."""
        return self.members[0].node.out.spec.device if self.members else None

    def writers(self) -> dict[str, Member]:
        """Members whose complete result the group holds, by buffer."""
        return {member.out: member for member in self.members if member.partial is None}

    def inner(self, member: Member) -> dict[Symbol, None]:
        """Symbols of a member that run inside a unit."""
        return {symbol: None for symbol in member.symbols() if symbol not in self.units}

    def points(self, symbols: Iterable[Symbol]) -> Int:
        return product(self.sizes[symbol] for symbol in symbols)

    def points_hint(self, symbols: Iterable[Symbol]) -> int:
        """About how many points; blocks count as full."""
        return size_hint(product(self.ragged.get(symbol, self.sizes[symbol]) for symbol in symbols))

    def part_symbols(self) -> set[Symbol]:
        """Units that number the parts of split reductions."""
        return {symbol for member in self.members if member.partial for symbol in member.partial.dims}

    def can_split(self, symbol: Symbol) -> bool:
        return symbol not in self.unsplittable and symbol not in self.blocked and symbol not in self.part_symbols()

    def has_reductions(self) -> bool:
        return any(not isinstance(member.node, Pointwise) for member in self.members)

    def split(self, old: Symbol, low: Symbol, low_size: Int, high: Symbol, high_size: Int) -> None:
        """`old` becomes `low_size` * `high` + `low`."""
        self.sizes.pop(old)
        self.sizes |= {high: high_size, low: low_size}
        if old in self.units:
            replaced: dict[Symbol, None] = {}
            for unit in self.units:
                replaced |= {high: None, low: None} if unit is old else {unit: None}
            self.units = replaced
        for member in self.members:
            for axis, terms in member.axis_terms.items():
                if any(symbol is old for symbol, _ in terms):
                    member.axis_terms[axis] = _split_terms(terms, old, low, low_size, high)
            for access in member.accesses():
                if access.form is not None and old in access.form.strides:
                    stride = access.form.strides.pop(old)
                    access.form.strides |= {high: stride * low_size, low: stride}
                access.neighbours = tuple([low if symbol is old else symbol for symbol in access.neighbours])

    def rename(self, names: Mapping[Symbol, Symbol]) -> None:
        """Group symbols under new names."""
        self.units = {names.get(unit, unit): None for unit in self.units}
        self.sizes = {names.get(symbol, symbol): size for symbol, size in self.sizes.items()}
        self.unsplittable = frozenset(names.get(symbol, symbol) for symbol in self.unsplittable)
        self.blocked = {names.get(symbol, symbol): size for symbol, size in self.blocked.items()}
        for member in self.members:
            for axis, terms in member.axis_terms.items():
                member.axis_terms[axis] = tuple([(names.get(symbol, symbol), multiple) for symbol, multiple in terms])
            for access in member.accesses():
                if access.form is not None:
                    strides = access.form.strides
                    access.form.strides = {names.get(symbol, symbol): stride for symbol, stride in strides.items()}
                access.neighbours = tuple([names.get(symbol, symbol) for symbol in access.neighbours])
            if (partial := member.partial) is not None:
                partial.dims = tuple(names.get(symbol, symbol) for symbol in partial.dims)
                partial.blocked = names.get(partial.blocked, partial.blocked)


def _split_terms(terms: AxisTerms, old: Symbol, low: Symbol, low_size: Int, high: Symbol) -> AxisTerms:
    found: list[tuple[Symbol, Int]] = []
    for term, multiple in terms:
        found += [(high, multiple * low_size), (low, multiple)] if term is old else [(term, multiple)]
    return tuple(found)


@final
class GroupSymbols:
    """Fresh symbols for groups: g0, g1, ...; those that a fusion made unnecessary are given out again."""

    def __init__(self) -> None:
        self._count = 0
        self._free: list[Symbol] = []

    def fresh(self) -> Symbol:
        if self._free:
            return self._free.pop()
        self._count += 1
        return symbol(f"g{self._count - 1}")

    def release(self, unused: Iterable[Symbol]) -> None:
        self._free.extend(unused)


def combined_axes(node: FusableNode) -> tuple[Axis, ...]:
    """Axes that a reduction combines over, or that a scan runs along."""
    if isinstance(node, Reduction):
        return node.reduced
    return (node.axes[node.along],) if isinstance(node, Scan) else ()
