"""From a group to its kernel, and to the launch of it.

    phases (`phases.py`), loop order and strips (`layout.py`), bodies (`phase_bodies.py`), assembly (`assemble.py`)

A group equal to one that has a kernel launches that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kiln.loops.body.body import Compute
from kiln.loops.fusion.assemble import assemble
from kiln.loops.fusion.dependencies import Dependencies
from kiln.loops.fusion.fuse import Fused
from kiln.loops.fusion.group import Group, GroupSymbols, Member
from kiln.loops.fusion.group_keys import group_key
from kiln.loops.fusion.kernel_draft import KernelDraft, Reusable
from kiln.loops.fusion.kernel_table import KernelTable
from kiln.loops.fusion.layout import LoopLayout, best_vector, block_units, layout, lengthwise
from kiln.loops.fusion.lifetimes import LastUses, ScheduledStep
from kiln.loops.fusion.phase_bodies import PhaseBodies
from kiln.loops.fusion.phases import PhasePlan, plan_phases
from kiln.loops.fusion.rules import is_short
from kiln.loops.kernel.kernel import Accumulate, KernelIR, Phase
from kiln.loops.kernel.launches.program import KernelLaunch
from kiln.loops.program.analyses import memory_of
from kiln.loops.program.nodes import Buffer, Pointwise
from kiln.support.target import Target
from kiln.symbolic import Symbol

NAMED_FLOPS, LONGEST_NAME = 4, 4
"""A kernel is named after its reductions and the ops that cost so much, the first few of them."""


def group_launch(
    group: Group, fused: Fused, uses: LastUses, buffers: dict[str, Buffer], table: KernelTable, target: Target
) -> ScheduledStep:
    """The launch of the kernel of a group of fused nodes, which may write over arguments.

    Results that do so become views in `buffers`.
    """
    landing = uses.landing(group)
    memory = Reusable(uses.dying(group), landing.read, frozenset(landing.unread))
    inside = {member.number for member in group.members}
    stored = frozenset([member.out for member in group.members if _is_read_outside(member, inside, fused.graph)])
    key, names = group_key(group, stored, memory, buffers)
    origin = _origin(group)
    found = table.find(key, names, origin)
    if found is None:
        draft = group_draft(group, stored, memory, buffers, target, fused.symbols)
        found = table.remember(key, names, assemble(draft, opened=not target.is_gpu))
        if is_short(group, target):
            opened = assemble(replace(draft, name=f"{draft.name}_rows"), opened=True)
            if _has_one_size(opened.kernel):
                table.remember((*key, OPENED), names, opened)
    launch, overwrites = found
    row: KernelLaunch | None = launch
    if target.is_gpu:
        known = table.find((*key, OPENED), names, origin)
        row = known[0] if known else launch if is_short(group, target) else None
    overwrites = {**overwrites, **landing.unread}
    for result, argument in overwrites.items():
        below = buffers[argument].spec
        spec = buffers[result].spec
        spec = spec.with_view(spec.sizes, spec.strides, below.offset)
        buffers[result] = replace(buffers[result], base=memory_of(argument, buffers), spec=spec)
    return ScheduledStep(launch, tuple(overwrites), row)


OPENED = "opened"
"""In the key of a launch whose kernel does not know its sizes."""


def _has_one_size(kernel: KernelIR) -> bool:
    """Is it a flat pointwise loop? Sizes of others are worth knowing on a GPU."""
    return len(kernel.units) == len(kernel.phases) == len(kernel.ints) == 1 and not kernel.phases[0].axes


def group_draft(
    group: Group,
    stored: frozenset[str],
    memory: Reusable,
    buffers: Mapping[str, Buffer],
    target: Target,
    symbols: GroupSymbols,
) -> KernelDraft:
    """What the kernel of a group is assembled from; `stored` are the results that others read."""
    block_units(group, symbols)
    plans = plan_phases(group, stored, target)
    loops = layout(group, stored, buffers, target)
    bodies = PhaseBodies(plans, loops.order, stored, target)
    phases = bodies.phases()
    if target.is_gpu:
        phases = tuple(phase for phase in phases if phase.effects)
    elif not loops.strip:
        phases = tuple(_vectorised(group, plan, phase, loops) for plan, phase in zip(plans.phases, phases, strict=True))
    units, locals_ = bodies.axes(group.units), tuple(bodies.locals.values())
    name, origin = kernel_name(group), _origin(group)
    return KernelDraft(name, units, phases, locals_, buffers, loops.strip, loops.grain, origin, memory)


def _is_read_outside(member: Member, inside: set[int], graph: Dependencies) -> bool:
    """Does anything but the nodes `inside` need the member's result?"""
    if member.partial is not None:
        return False
    uses = graph.uses[member.out]
    return uses.kept or not uses.readers or any(number not in inside for number in uses.readers)


def _vectorised(group: Group, plan: PhasePlan, phase: Phase, loops: LoopLayout) -> Phase:
    """The axis with neighbours in memory innermost and vectorised."""
    if not phase.axes or plan.serial:
        return phase
    symbols = [axis.symbol for axis in phase.axes]
    best = best_vector(group, (*plan.members, *plan.finishing))
    vector = loops.vector if loops.vector in symbols else best if best in symbols else symbols[-1]
    across = lengthwise(group, plan.members, vector, symbols)
    if any(across in over and vector not in over for over in _combined(phase)):
        across = vector
    axes = sorted(phase.axes, key=lambda axis: (axis.symbol is vector) * 2 + (axis.symbol is across))
    return replace(phase, axes=tuple(axes), vector=len(axes) - (1 if across is vector else 2))


def _combined(phase: Phase) -> list[set[Symbol]]:
    """The axes that each of its effects combines."""
    return [{axis.symbol for axis in effect.over} for effect in phase.effects if isinstance(effect, Accumulate)]


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


COPY = "copy"
"""What a kernel of no call of the program does: for a result, or to save a value for the backward."""


def _origin(group: Group) -> str:
    calls = dict.fromkeys(call for member in group.members for call in member.node.origin.split(", ") if call)
    more = f", and {len(calls) - LONGEST_NAME} more" if len(calls) > LONGEST_NAME else ""
    return ", ".join(list(calls)[:LONGEST_NAME]) + more or (COPY if is_copy(group) else "")


def is_copy(group: Group) -> bool:
    return all(
        isinstance(member.node, Pointwise) and not any(isinstance(op, Compute) for op in member.node.body.ops)
        for member in group.members
    )
