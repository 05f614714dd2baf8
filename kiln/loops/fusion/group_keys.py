"""What makes two groups equal: their keys, with buffers and symbols numbered by first use.

    g0: b3 = exp(load b2[i0])   g9: b7 = exp(load b5[i0])        equal keys: one kernel, built once

So the time of a compile grows with the number of different groups, not with the number of layers.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import final

from kiln.loops.body.body import Compute, Load
from kiln.loops.fusion.group import FusableNode, Group, Member
from kiln.loops.fusion.kernel_draft import Reusable
from kiln.loops.program.nodes import Buffer, Reduction, Scan

Key = tuple[Hashable, ...]


@final
class Numbering:
    """Numbers of names or symbols, in order of first use."""

    def __init__(self) -> None:
        self.of: dict[Hashable, int] = {}

    def __call__(self, thing: Hashable) -> int:
        return self.of.setdefault(thing, len(self.of))

    def names(self) -> tuple[str, ...]:
        return tuple(name for name in self.of if isinstance(name, str))


def node_key(node: FusableNode, buffers: Numbering) -> Key:
    """What a node computes, its buffers by number."""
    ops: list[Hashable] = []
    for op in node.body.ops:
        if isinstance(op, Compute):
            ops.append((op.op.name, op.operands, op.dtype))
        elif isinstance(op, Load):
            ops.append((buffers(op.buffer), op.index, op.dtype, op.mask))
        else:
            ops.append(op)
    if isinstance(node, Reduction):
        loops: Key = (node.op, node.kept, node.reduced)
    else:
        loops = (node.op, node.axes, node.along) if isinstance(node, Scan) else (node.axes,)
    return type(node).__name__, loops, tuple(ops), node.body.results, buffers(node.out.name)


def group_key(
    group: Group, stored: frozenset[str], memory: Reusable, buffers: Mapping[str, Buffer]
) -> tuple[Key, tuple[str, ...]]:
    """The key of a group, and the names of its buffers in the order of their numbers."""
    numbers, symbols = Numbering(), Numbering()
    members = tuple([_member_key(member, stored, numbers, symbols) for member in group.members])
    layouts = tuple([_layout_key(buffers[name]) for name in numbers.names()])
    space = tuple([(symbols(symbol), size) for symbol, size in group.sizes.items()])
    units = tuple(map(symbols, group.units))
    blocked = tuple([(symbols(symbol), size) for symbol, size in group.blocked.items()])
    landing = tuple([(numbers(result), numbers(argument)) for result, argument in memory.landing.items()])
    reused = tuple(map(numbers, memory.dying)), landing, tuple(sorted(map(numbers, memory.placed)))
    return (members, layouts, space, units, blocked, reused), numbers.names()


def _layout_key(buffer: Buffer) -> Key:
    spec = buffer.spec
    return spec.dtype, spec.sizes, spec.strides, spec.device, buffer.is_part


def _member_key(member: Member, stored: frozenset[str], names: Numbering, symbols: Numbering) -> Key:
    axes = tuple([tuple([(symbols(symbol), step) for symbol, step in terms]) for terms in member.axis_terms.values()])
    partial: Key = ()
    if (part := member.partial) is not None:
        partial = (names(part.buffer.name), tuple(map(symbols, part.dims)), symbols(part.blocked), part.size)
    return (node_key(member.node, names), axes, member.out in stored, partial)
