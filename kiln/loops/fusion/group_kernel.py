"""From a group to its kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kiln.loops.body.body import Compute
from kiln.loops.fusion.dependencies import Dependencies, memory_of
from kiln.loops.fusion.fuse import Fused
from kiln.loops.fusion.group import Group, GroupSymbols, Member
from kiln.loops.fusion.group_keys import group_key
from kiln.loops.fusion.kernel_table import KernelTable
from kiln.loops.fusion.layout import LoopLayout, best_vector, block_units, layout
from kiln.loops.fusion.lifetimes import ScheduledStep
from kiln.loops.fusion.phase_bodies import KeepInCache, KeepInRegisters, KernelBuilder
from kiln.loops.fusion.phases import PhasePlan, plan_phases
from kiln.loops.fusion.single_kernel import KernelCall, assemble
from kiln.loops.kernel.kernel import Phase
from kiln.loops.program.nodes import Buffer, Pointwise
from kiln.support.target import Target

NAMED_FLOPS, LONGEST_NAME = 4, 4
"""A kernel is named after its reductions and the ops that cost so much, the first few of them."""


def group_launch(
    group: Group, fused: Fused, dying: tuple[str, ...], buffers: dict[str, Buffer], table: KernelTable, target: Target
) -> ScheduledStep:
    """The launch of the kernel of a group of fused nodes, which may write over its arguments `dying`.

    Results that do so become views in `buffers`.
    """
    inside = {one.number for one in group.members}
    stored = frozenset([one.out for one in group.members if _escapes(one, inside, fused.graph)])
    key, names = group_key(group, stored, dying, buffers)
    launch = table.known(key, names, _origin(group))
    if launch is None:
        call = group_kernel(group, stored, dying, buffers, target, fused.symbols)
        launch = table.remember(key, names, table.launch(call), call.over)
    over = dict(table.taken_over(key, names))
    for result, argument in over.items():
        buffers[result] = replace(buffers[result], base=memory_of(argument, buffers))
    return ScheduledStep(launch, tuple(over))


def group_kernel(
    group: Group,
    stored: frozenset[str],
    dying: tuple[str, ...],
    buffers: Mapping[str, Buffer],
    target: Target,
    symbols: GroupSymbols,
) -> KernelCall:
    """The kernel of a group; `stored` are the results that others read."""
    block_units(group, symbols)
    plans = plan_phases(group, stored)
    lay = layout(group, stored, buffers, target)
    gpu = target.is_gpu
    builder = KernelBuilder(plans, lay.order, stored, buffers, KeepInRegisters() if gpu else KeepInCache())
    made = builder.phases()
    if gpu:
        made = tuple(phase for phase in made if phase.effects)
    elif not lay.strip:
        made = tuple(_vectorised(group, plan, phase, lay) for plan, phase in zip(plans.phases, made, strict=True))
    units = builder.axes(group.units)
    return assemble(
        kernel_name(group), units, made, tuple(builder.locals.values()), buffers, target,
        strip=lay.strip, grain=lay.grain, origin=_origin(group), dying=dying,
    )  # fmt: skip


def _escapes(member: Member, inside: set[int], graph: Dependencies) -> bool:
    """Does anything but the nodes `inside` read the member's result?"""
    if member.partial is not None:
        return False
    uses = graph.uses[member.out]
    return uses.kept or not uses.readers or any(number not in inside for number in uses.readers)


def _vectorised(group: Group, plan: PhasePlan, phase: Phase, lay: LoopLayout) -> Phase:
    """The axis with neighbours in memory innermost and vectorised."""
    if not phase.axes or plan.serial:
        return phase
    symbols = [axis.symbol for axis in phase.axes]
    best = best_vector(group, (*plan.members, *plan.finishing))
    vector = lay.vector if lay.vector in symbols else best if best in symbols else symbols[-1]
    axes = sorted(phase.axes, key=lambda axis: axis.symbol is vector)
    return replace(phase, axes=tuple(axes), vector=len(axes) - 1)


def kernel_name(group: Group) -> str:
    """`exp_sum_div`: what it mainly computes."""
    names: dict[str, None] = {}
    for member in group.members:
        for op in member.node.body.ops:
            if isinstance(op, Compute) and op.op.flops >= NAMED_FLOPS:
                names[op.op.name] = None
        if not isinstance(member.node, Pointwise):
            names[member.node.op.value] = None
    return "_".join(list(names)[:LONGEST_NAME]) or "pointwise"


def _origin(group: Group) -> str:
    origins = dict.fromkeys(member.node.origin for member in group.members if member.node.origin)
    return ", ".join(list(origins)[:LONGEST_NAME])
