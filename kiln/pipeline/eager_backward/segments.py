"""Cuts autograd's graph into segments, each of which one plan computes, between nodes that stay eager.

    Sum -> Mul -> MyFunction -> Exp -> Mul -> w          1: Sum, Mul    eager: MyFunction    2: Exp, Mul

A segment has slots, the inputs of its nodes that others fill, and targets, the inputs of other nodes that it fills.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import final

from kiln.pipeline.eager_backward.structure import LEAF, AutogradNode
from kiln.support.records import dataclass

SMALLEST = 3
"""Nodes in a segment: to call a plan costs about as much as the engine's work for as many."""

NodeInput = tuple[int, int]
"""The number of a node, and of one of its inputs."""


@final
@dataclass(frozen=True, slots=True)
class Segment:
    members: tuple[int, ...]
    slots: tuple[NodeInput, ...]
    targets: tuple[NodeInput, ...]


def edges_of(nodes: Sequence[AutogradNode]) -> list[list[NodeInput | None]]:
    """For each node where its gradients go; None where nobody needs them."""
    numbers: dict[AutogradNode | None, int] = {node: number for number, node in enumerate(nodes)}
    return [
        [(numbers[node], slot) if node in numbers else None for node, slot in each.next_functions] for each in nodes
    ]


def cut(nodes: Sequence[AutogradNode], eager: Sequence[str], roots: Sequence[NodeInput]) -> list[Segment]:
    """The segments of what is not `eager`, in the engine's order."""
    edges = edges_of(nodes)
    stays = [bool(reason) or type(node) is LEAF for node, reason in zip(nodes, eager, strict=True)]
    stage = [0] * len(nodes)
    for number, targets in enumerate(edges):
        for target in targets:
            if target is not None:
                step = stage[number] + (stays[number] is not stays[target[0]])
                stage[target[0]] = max(stage[target[0]], step)
    members: defaultdict[int, list[int]] = defaultdict(list)
    for number, own in enumerate(stage):
        if not stays[number]:
            members[own].append(number)
    # By the length of stages: all of one stage can run before any of the next.
    return [border(found, edges, roots) for _, found in sorted(members.items()) if len(found) >= SMALLEST]


def border(members: Sequence[int], edges: Sequence[Sequence[NodeInput | None]], roots: Sequence[NodeInput]) -> Segment:
    inside = set(members)
    slots: dict[NodeInput, None] = {root: None for root in roots if root[0] in inside}
    targets: dict[NodeInput, None] = {}
    for number, leading in enumerate(edges):
        for place in leading:
            if place is None or (number in inside) is (place[0] in inside):
                continue
            (slots if place[0] in inside else targets)[place] = None
    return Segment(tuple(members), tuple(slots), tuple(targets))
