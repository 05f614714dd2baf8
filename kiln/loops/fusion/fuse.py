"""Fusion: from nodes in program order to groups in a legal order.

    fused = fuse(program, buffers, target)
    fused.groups        each becomes a kernel or a call
    fused.not_fused     why the others stayed apart

Each node starts as a group and joins, best first, groups whose results or data it reads, as long as a rule
(`rules.py`) finds a common space and no veto (`vetoes.py`) stops it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import final

from kiln.loops.fusion.align import CommonSpace
from kiln.loops.fusion.costs import FusionContext, Pair
from kiln.loops.fusion.dependencies import Dependencies
from kiln.loops.fusion.group import Group, GroupSymbols
from kiln.loops.fusion.lifetimes import landing_targets
from kiln.loops.fusion.order import GroupOrder, current
from kiln.loops.fusion.rules import FUSION_RULES, is_small_sum
from kiln.loops.fusion.single_groups import SingleGroups
from kiln.loops.fusion.split import initial_units, make_partial
from kiln.loops.fusion.vetoes import PAIR_VETOES, VETOES_BY_RULE, Veto
from kiln.loops.kernel.launches.not_fused import NotFused, Refusal
from kiln.loops.program.nodes import Buffer, LoopProgram, Pointwise, Reduction, Scan
from kiln.support.records import dataclass
from kiln.support.target import Target

CANDIDATES = 6
"""Groups that a node is tried with."""
READERS = 4
"""Last readers of a buffer that are candidates."""
NEIGHBOURS = 4
"""Last groups in order that a short reduction is tried with besides."""


@final
@dataclass(frozen=True, slots=True)
class Proposal:
    """Fuse by `rule`, in `space`; the groups `needed` move before both."""

    rule: str
    space: CommonSpace
    needed: set[Group]


def propose(first: Group, second: Group, context: FusionContext, refusals: list[Refusal]) -> Proposal | None:
    """How to fuse two groups; where that is not done, the vetoes are added to `refusals`."""
    pair = Pair(first, second, context)
    refusal = _refusal(PAIR_VETOES, pair, "")
    if refusal is not None:
        refusals.append(refusal)
        return None
    refused: list[Refusal] = []
    for rule in FUSION_RULES:
        if rule.name in context.target.without or not rule.applies(pair):
            continue
        pair.space = rule.space(pair)
        refusal = _refusal(VETOES_BY_RULE[rule.name, context.target.is_gpu], pair, rule.name)
        if refusal is None:
            return Proposal(rule.name, pair.space, pair.needed)
        refused.append(refusal)
    refusals += refused
    return None


def _refusal(vetoes: Iterable[Veto], pair: Pair, rule: str) -> Refusal | None:
    """The first veto on `pair`."""
    for veto in vetoes:
        excess = veto.measure(pair)
        if excess is not None:
            loops = pair.first.members[-1].out, pair.second.members[-1].out
            return Refusal(*loops, rule, veto.name, *excess, veto.unit, veto.reason)
    return None


@final
@dataclass
class Fused:
    """Groups in order, and how often each rule was applied."""

    groups: list[Group]
    graph: Dependencies
    symbols: GroupSymbols
    landing: Mapping[str, str]
    applied: dict[str, int] = field(default_factory=dict)
    not_fused: NotFused = field(default_factory=NotFused)


def fuse(program: LoopProgram, buffers: dict[str, Buffer], target: Target) -> Fused:
    """The groups of `program`; buffers of partial results are added to `buffers`."""
    return _Fuser(program, buffers, target).run()


@final
class _Fuser:
    def __init__(self, program: LoopProgram, buffers: dict[str, Buffer], target: Target) -> None:
        self.program, self.buffers, self.target = program, buffers, target
        self.graph = Dependencies(program, buffers)
        self.order = GroupOrder()
        self.symbols = GroupSymbols()
        landing = landing_targets(program, self.graph, buffers) if "memory-reuse" not in target.without else {}
        self.context = FusionContext(buffers, self.graph, self.order, self.symbols, target, landing)
        self.applied: dict[str, int] = {}
        self.refusals: list[Refusal] = []
        self.singles = SingleGroups(buffers, self.symbols)

    def run(self) -> Fused:
        for number, node in enumerate(self.program.nodes):
            if isinstance(node, Pointwise | Reduction | Scan):
                self._add(node, number)
            else:
                group = Group(step=node, origin=node.origin)
                self.graph.add(group, number)
                self.order.append(group)
        groups = self.order.groups
        kernels = {member.out: number for number, group in enumerate(groups) for member in group.members}
        not_fused = NotFused(tuple(self.refusals), kernels)
        return Fused(groups, self.graph, self.symbols, self.context.landing, self.applied, not_fused)

    def _add(self, node: Pointwise | Reduction | Scan, number: int) -> None:
        group = self._single(node, number)
        self.graph.add(group, number)
        self.order.append(group)
        member = group.members[0]
        for other in list(self._candidates(group)):
            self._try(other, group)
        group = current(group)
        if isinstance(node, Reduction) and any(symbol in group.units for symbol in member.reduced()):
            self._finish_partial(group, node, number)

    def _try(self, group: Group, other: Group) -> bool:
        """Fuse two groups, unless they are one already or must stay apart."""
        first, second = sorted((current(group), current(other)), key=lambda group: group.position)
        if first is second:
            return False
        proposal = propose(first, second, self.context, self.refusals)
        if proposal is not None:
            self._merge(first, second, proposal)
        return proposal is not None

    def _single(self, node: Pointwise | Reduction | Scan, number: int) -> Group:
        group = self.singles.group(node, number)
        group.units = initial_units(group, group.members[0], self.target)
        return group

    def _candidates(self, group: Group) -> Iterator[Group]:
        """Groups that write or read what the node reads, those of large buffers first."""
        gains: dict[Group, int] = {}
        for name in dict.fromkeys(access.buffer for access in group.members[0].reads):
            size = self.context.bytes(name)
            users = [(self.graph.writer(name), 2 * size)]
            users += [(reader, size) for reader in self.graph.readers(name)[-READERS:]]
            for user, gain in users:
                if user is not None and (other := current(user)) is not group and other.step is None:
                    gains[other] = gains.get(other, 0) + gain
        yield from sorted(gains, key=lambda other: -gains[other])[:CANDIDATES]
        if is_small_sum(group, self.target):
            last = self.order.groups[-NEIGHBOURS:]
            yield from (other for other in last if other.step is None and other not in gains and other is not group)

    def _merge(self, first: Group, second: Group, proposal: Proposal) -> None:
        self.order.fuse(first, second, proposal.needed)
        second.rename(proposal.space.names)
        self.symbols.release(proposal.space.names)
        first.sizes |= second.sizes
        first.blocked |= second.blocked
        first.unsplittable |= second.unsplittable
        first.units = dict(proposal.space.units)
        first.members = sorted((*first.members, *second.members), key=lambda member: member.number)
        self.applied[proposal.rule] = self.applied.get(proposal.rule, 0) + 1

    def _finish_partial(self, group: Group, node: Reduction, number: int) -> None:
        """Parts of the sum are left: a group that combines them."""
        member = next(member for member in group.members if member.node is node)
        kept_in_strips = bool(node.kept) and member.symbols_of(node.kept).keys() <= group.units.keys()
        rest = make_partial(group, member, kept_in_strips, self.target, self.buffers)
        assert member.partial is not None
        part = member.partial.buffer
        self.buffers[part.name] = part
        combine = self._single(rest, number)
        combine.units = {unit: None for unit in combine.units if unit not in combine.members[0].reduced()}
        combine.parts_of = group
        self.graph.add_combine(combine, group, part.name, node.out.name)
        self.order.append(combine)
        for other in reversed(self.order.groups[self.order.place(group) : -1]):
            if other.parts_of is not None and current(other.parts_of) is group:
                self._try(other, combine)
                break
