"""What makes two groups equal: their keys, with buffers and symbols numbered by first use.

    g0: b3 = exp(load b2[i0])   g9: b7 = exp(load b5[i0])        equal keys: one kernel, built once

So the work of a compile grows with the number of different groups, not with the number of layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from kiln.loops.body.body import Compute, Load
from kiln.loops.fusion.group import FusableNode, Group, Member
from kiln.loops.program.nodes import Buffer, Reduction, Scan
from kiln.symbolic import Symbol

Key = tuple[Any, ...]


@final
class Numbering:
    """Numbering of names or symbols, in order of first use."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}

    def __call__(self, thing: Any) -> int:
        return self.of.setdefault(thing, len(self.of))


def node_key(node: FusableNode, buffers: Numbering) -> Key:
    """What a node computes, its buffers by number."""
    ops: list[Any] = []
    for op in node.body.ops:
        if isinstance(op, Compute):
            ops.append((op.op.name, op.operands, op.dtype))
        elif isinstance(op, Load):
            ops.append((buffers(op.buffer), op.index, op.dtype, op.mask))
        else:
            ops.append(op)
    extra: Key = ()
    if isinstance(node, Reduction):
        extra = (node.op, node.kept, node.reduced)
    elif isinstance(node, Scan):
        extra = (node.op, node.axes, node.along)
    else:
        extra = (node.axes,)
    return (type(node), extra, tuple(ops), node.body.results, buffers(node.out.name))


def group_key(
    group: Group, stored: frozenset[str], dying: tuple[str, ...], buffers: Mapping[str, Buffer]
) -> tuple[Key, tuple[str, ...]]:
    """The key of a group, and the names of its buffers in the order of their numbers."""
    names, symbols = Numbering(), Numbering()
    members = tuple([_member_key(member, stored, names, symbols) for member in group.members])
    specs = [buffers[name].spec for name in names.of]
    layouts = tuple([(spec.dtype, spec.sizes, spec.strides, spec.device) for spec in specs])
    space = tuple([(symbols(one), size) for one, size in group.sizes.items()])
    units = tuple([symbols(one) for one in group.units])
    frozen = tuple([(symbols(one), size) for one, size in group.blocked.items()])
    dead = tuple(map(names, dying))
    return (members, layouts, space, units, frozen, dead), tuple(names.of)


def _member_key(member: Member, stored: frozenset[str], names: Numbering, symbols: Numbering) -> Key:
    places = tuple([tuple([(symbols(one), step) for one, step in parts]) for parts in member.axis_terms.values()])
    partial: Key = ()
    if member.partial is not None:
        one = member.partial
        dims: tuple[Symbol, ...] = one.dims
        partial = (names(one.buffer.name), tuple(map(symbols, dims)), symbols(one.blocked), one.size)
    return (node_key(member.node, names), places, member.out in stored, partial)
