"""The rules of fusion: in which ways two groups may become one kernel.

A rule says when it applies, and which space the two groups get. Whether that is done, the vetoes decide for all rules
(`vetoes.py`). Rules are tried in order; the first that no veto stops is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from kiln.loops.fusion.align import CommonSpace, align, pair_by_size
from kiln.loops.fusion.costs import Pair
from kiln.loops.fusion.group import Group
from kiln.loops.fusion.split import is_splittable
from kiln.loops.kernel.launches.program import LONGEST_ROW
from kiln.loops.program.nodes import Reduction
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Int, product
from kiln.tensor.size_hint import size_hint


@final
@dataclass(frozen=True, slots=True)
class FusionRule:
    """`space` is asked for where the rule `applies`; it may split axes of the groups."""

    name: str
    applies: Callable[[Pair], bool]
    space: Callable[[Pair], CommonSpace]


def vertical(pair: Pair) -> bool:
    """A pointwise consumer joins its pointwise producers: the value stays in a register.

    y = exp(x); z = y + 1        one loop; y is stored only if something else reads it
    """
    return not (pair.first.has_reductions() or pair.second.has_reductions()) and bool(pair.links)


def producers_into_reduction(pair: Pair) -> bool:
    """Pointwise producers join the reduction that reads them: the reduction's kept axes are the units.

    y = gelu(x); s = sum of y over i1        y[i0, ...] is computed and summed by unit i0
    """
    return not pair.first.has_reductions() and pair.second.has_reductions() and bool(pair.links)


def consumers_after_reduction(pair: Pair) -> bool:
    """Consumers of a reduction, pointwise or reductions again, join it: later phases of the same unit.

    s = sum of x over i1; y = x / s        softmax, layer norm, cross-entropy become one kernel
    """
    return pair.first.has_reductions() and bool(pair.links)


def siblings(pair: Pair) -> bool:
    """Two loops that read the same data and do not depend on each other share the pass over it.

    a = sum of x over i1; b = amax of x over i1
    """
    return not pair.links and bool(pair.shared)


def small_sums(pair: Pair) -> bool:
    """Two short reductions of equal shape share a launch, on a GPU, though they read nothing in common.

    loss = sum of loss_terms over i0; count = sum of mask over i0
    """
    if not all(is_small_sum(group, pair.context.target) for group in (pair.first, pair.second)) or pair.links:
        return False
    return _unit_sizes(pair.first) == _unit_sizes(pair.second)


def mixed_order(pair: Pair) -> bool:
    """A column reduction joins a kernel over rows: each block of rows gives its part of the sums.

    dx[i0, i1] = f(row i0 of g); db[i1] = sum of g over i0        the backward of layer norm

    It stands behind all loops of the kernel: its result may have readers before that, which a split would leave behind.
    """
    if len(pair.second.members) != 1:
        return False
    (member,) = pair.second.members
    return is_splittable(member) and not member.partial and pair.first.members[-1].number <= member.number


def combined_parts(pair: Pair) -> bool:
    """Sums of parts that one kernel made are finished by one kernel.

    dw = sum of dw_part over blocks; db = sum of db_part over blocks
    """
    if pair.first.parts_of is None or pair.second.parts_of is None or pair.links:
        return False
    return _unit_sizes(pair.first) == _unit_sizes(pair.second)


def is_short(group: Group, target: Target) -> bool:
    """Does its launch take longer than its work?"""
    return target.is_gpu and bool(group.members) and size_hint(product(group.sizes.values())) <= LONGEST_ROW


def is_small_sum(group: Group, target: Target) -> bool:
    sums = all(isinstance(member.node, Reduction) for member in group.members)
    return sums and group.parts_of is None and is_short(group, target)


def _unit_sizes(group: Group) -> list[Int]:
    return [group.sizes[unit] for unit in group.units]


def aligned(pair: Pair) -> CommonSpace:
    return align(pair.first, pair.second, pair.links, pair.context.symbols)


def aligned_open(pair: Pair) -> CommonSpace:
    """Axes that the second group reduces may be units."""
    return align(pair.first, pair.second, pair.links, pair.context.symbols, opened=True)


def same_units(pair: Pair) -> CommonSpace:
    names = dict(zip(pair.second.units, pair.first.units, strict=True))
    pair_by_size(pair.first, pair.second, names)
    return CommonSpace(names, dict(pair.first.units))


# fmt: off
FUSION_RULES = (
    #          name                         applies                     space
    FusionRule("vertical",                  vertical,                   aligned),
    FusionRule("producers-into-reduction",  producers_into_reduction,   aligned),
    FusionRule("consumers-after-reduction", consumers_after_reduction,  aligned),
    FusionRule("siblings",                  siblings,                   aligned),
    FusionRule("small-sums",                small_sums,                 same_units),
    FusionRule("mixed-order",               mixed_order,                aligned_open),
    FusionRule("combined-parts",            combined_parts,             same_units),
)
# fmt: on
