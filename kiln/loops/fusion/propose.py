"""Whether two groups are fused: by the first rule (`rules.py`) that no veto (`vetoes.py`) stops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from kiln.loops.fusion.align import CommonSpace
from kiln.loops.fusion.costs import FusionContext, Pair
from kiln.loops.fusion.group import Group
from kiln.loops.fusion.rules import FUSION_RULES
from kiln.loops.fusion.vetoes import EARLY_VETOES, VETOES_BY_RULE, Veto
from kiln.loops.kernel.launches.not_fused import Refusal


@final
@dataclass(frozen=True, slots=True)
class Proposal:
    """Fuse by `rule`, in `space`."""

    rule: str
    space: CommonSpace


def propose(first: Group, second: Group, context: FusionContext, refusals: list[Refusal]) -> Proposal | None:
    """How to fuse two groups; where that is not done, the vetoes are added to `refusals`."""
    pair = Pair(first, second, context)
    refusal = _refusal(EARLY_VETOES, pair, "")
    if refusal is not None:
        refusals.append(refusal)
        return None
    refused: list[Refusal] = []
    for rule in FUSION_RULES:
        if not rule.applies(pair):
            continue
        pair.space = rule.space(pair)
        refusal = _refusal(VETOES_BY_RULE[rule.name, context.target.is_gpu], pair, rule.name)
        if refusal is None:
            return Proposal(rule.name, pair.space)
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
