"""One node as a group: its axes as group symbols, its accesses as forms over them.

    out[i0, i1] = exp(load x[i1, i0])     =>     members (out over g0, g1), reads x at {g1: 8, g0: 1}

Nodes that are equal but for the names of their buffers are analysed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from kiln.loops.body.affine import Affine
from kiln.loops.body.analyses import accesses, bound_symbols
from kiln.loops.body.body import Load
from kiln.loops.fusion.axis_splits import AxisSplits, SplitForms, axis_splits
from kiln.loops.fusion.group import FusableNode, Group, GroupSymbols, Member, MemberAccess, combined_axes
from kiln.loops.fusion.group_keys import Key, Numbering, node_key
from kiln.loops.fusion.phases import is_serial
from kiln.loops.program.nodes import Buffer, Reduction
from kiln.support.records import dataclass
from kiln.symbolic import Symbol


@final
@dataclass(frozen=True, slots=True)
class _NodeForms:
    """How the axes of a node are split; its accesses over the parts: of each load, and of its store."""

    splits: AxisSplits
    reads: tuple[tuple[Affine | None, bool, tuple[Symbol, ...]], ...]
    write: Affine | None


@final
class SingleGroups:
    """Makes groups of one node."""

    def __init__(self, buffers: Mapping[str, Buffer], symbols: GroupSymbols) -> None:
        self.buffers, self.symbols = buffers, symbols
        self._known: dict[Key, _NodeForms] = {}

    def group(self, node: FusableNode, number: int) -> Group:
        """`node` alone; its units are not chosen yet."""
        forms = self._forms(node)
        combined = {axis.symbol for axis in combined_axes(node)}
        # Axes of size 1 have no symbol, but a reduction keeps one to reduce.
        parts = [part for axis, parts in forms.splits.items() for part in parts if part.size != 1 or axis in combined]
        fresh = {part.symbol: self.symbols.fresh() for part in parts}
        loads = (op.buffer for op in node.body.ops if isinstance(op, Load))
        reads = [
            MemberAccess(name, _renamed(form, fresh), conditional, tuple([fresh[old] for old in along if old in fresh]))
            for name, (form, conditional, along) in zip(loads, forms.reads, strict=True)
        ]
        terms = {
            axis: tuple([(fresh[part.symbol], part.multiple) for part in parts if part.symbol in fresh])
            for axis, parts in forms.splits.items()
        }
        member = Member(node, number, terms, reads, MemberAccess(node.out.name, _renamed(forms.write, fresh)))
        group = Group([member], sizes={fresh[part.symbol]: part.size for part in parts}, origin=node.origin)
        if is_serial(member.node):
            group.unsplittable = frozenset(member.reduced())
        return group

    def _forms(self, node: FusableNode) -> _NodeForms:
        numbers = Numbering()
        key = node_key(node, numbers), tuple([self.buffers[name].spec.strides for name in numbers.names()])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._analyse(node)
        return found

    def _analyse(self, node: FusableNode) -> _NodeForms:
        serial = frozenset(axis.symbol for axis in combined_axes(node)) if is_serial(node) else frozenset()
        splits = axis_splits(node, serial)
        forms = SplitForms(splits, bound_symbols(node.body))
        loads = list(accesses(node.body))
        specs = [self.buffers[load.buffer].spec for load in loads]
        reads = [
            (forms.form(spec, load.index), load.conditional, forms.neighbours(spec, load.index))
            for spec, load in zip(specs, loads, strict=True)
        ]
        kept = node.kept if isinstance(node, Reduction) else node.axes
        write = forms.form(node.out.spec, tuple([axis.symbol for axis in kept]))
        return _NodeForms(splits, tuple(reads), write)


def _renamed(form: Affine | None, fresh: Mapping[Symbol, Symbol]) -> Affine | None:
    if form is None:
        return None
    return Affine({fresh[symbol]: stride for symbol, stride in form.strides.items() if symbol in fresh}, form.offset)
