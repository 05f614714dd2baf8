"""One node as a group: its axes as group symbols, its accesses as forms over them.

    out[i0, i1] = exp(load x[i1, i0])     =>     members (out over g0, g1), reads x at {g1: 8, g0: 1}

Nodes that are equal but for the names of their buffers are analysed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from kiln.loops.body.affine import Affine
from kiln.loops.body.analyses import accesses, bound_symbols
from kiln.loops.body.body import Load
from kiln.loops.fusion.axis_splits import AxisSplits, SplitForms, axis_splits
from kiln.loops.fusion.group import FusableNode, Group, GroupSymbols, Member, MemberAccess, combined_axes
from kiln.loops.fusion.group_keys import Key, Numbering, node_key
from kiln.loops.fusion.phases import is_serial
from kiln.loops.program.analyses import node_axes
from kiln.loops.program.nodes import Buffer, Reduction
from kiln.symbolic import Int, Symbol


@final
@dataclass(frozen=True, slots=True)
class _NodeForms:
    """The digits of a node's axes; its accesses over these: of each load, and of its store."""

    digits: AxisSplits
    reads: tuple[tuple[Affine | None, bool], ...]
    write: Affine | None


@final
class SingleGroups:
    """Makes groups of one node."""

    def __init__(self, buffers: Mapping[str, Buffer], symbols: GroupSymbols) -> None:
        self.buffers, self.symbols = buffers, symbols
        self._known: dict[Key, _NodeForms] = {}

    def group(self, node: FusableNode, number: int) -> Group:
        """`node` alone; its units are not chosen yet."""
        known = self._analysed(node)
        combined = {axis.symbol for axis in combined_axes(node)}
        # Axes of size 1 have no symbol, but a reduction keeps one to reduce.
        fresh = {
            one.symbol: self.symbols.fresh()
            for axis, digits in known.digits.items()
            for one in digits
            if one.size != 1 or axis in combined
        }
        loads = (op.buffer for op in node.body.ops if isinstance(op, Load))
        reads = [
            MemberAccess(name, _renamed(form, fresh), conditional)
            for name, (form, conditional) in zip(loads, known.reads, strict=True)
        ]
        places: dict[Symbol, tuple[tuple[Symbol, Int], ...]] = {
            axis: tuple([(fresh[one.symbol], one.multiple) for one in digits if one.symbol in fresh])
            for axis, digits in known.digits.items()
        }
        member = Member(node, number, places, reads, MemberAccess(node.out.name, _renamed(known.write, fresh)))
        group = Group([member], origin=node.origin)
        group.sizes = {
            fresh[one.symbol]: one.size for digits in known.digits.values() for one in digits if one.symbol in fresh
        }
        if is_serial(member):
            group.unsplittable = frozenset(member.reduced())
        return group

    def _analysed(self, node: FusableNode) -> _NodeForms:
        names = Numbering()
        key = node_key(node, names), tuple([self.buffers[name].spec.strides for name in names.of])
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._analyse(node)
        return found

    def _analyse(self, node: FusableNode) -> _NodeForms:
        serial = not isinstance(node, Reduction) or node.op.value.startswith("arg")
        whole = frozenset(axis.symbol for axis in combined_axes(node)) if serial else frozenset()
        digits = axis_splits(node, whole)
        forms = SplitForms(digits, bound_symbols(node.body))
        reads = [
            (forms.form(self.buffers[load.buffer].spec, load.index), load.conditional) for load in accesses(node.body)
        ]
        kept = node.kept if isinstance(node, Reduction) else node_axes(node)
        write = forms.form(node.out.spec, tuple([axis.symbol for axis in kept]))
        return _NodeForms(digits, tuple(reads), write)


def _renamed(form: Affine | None, fresh: dict[Symbol, Symbol]) -> Affine | None:
    if form is None:
        return None
    return Affine({fresh[one]: step for one, step in form.strides.items() if one in fresh}, form.offset)
