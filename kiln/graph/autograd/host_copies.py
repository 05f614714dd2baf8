"""Saved values that wait for the backward in the host's memory.

    forward    %3: f32[4096, 1024 @cuda:0] = exp(%0)       backward    %0: f32[4096, 1024], an input
               %4: f32[4096, 1024] = started(%3, cpu)                  %1: f32[4096, 1024 @cuda:0] = started(%0, cuda:0)
               %5: f32[4096, 1024] = wait(%4, %3)                      %2: f32[4096, 1024 @cuda:0] = wait(%1, %0)
               return ..., %5                                          ... reads %2

`memory_budget.py` chooses them. Where the two transfers start and are waited for is up to the schedule
(`loops/fusion/transfers.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.node import Arg, Attr, Node
from kiln.graph.prims.rows import PRIMS
from kiln.plan.transfer_operators import TRANSFER
from kiln.tensor.spec import CPU, Spec


def transferred(value: Node, device: torch.device) -> tuple[Node, Node]:
    """The nodes that start a copy of `value` to `device`, and that wait for it."""
    spec = replace(value.tensor, device=device)
    attrs: dict[str, Attr] = {"target": TRANSFER, "args": (Arg(0), device), "kwargs": ()}
    start = Node(PRIMS["aten"], (value,), attrs, spec, value.origin)
    return start, Node(PRIMS["wait"], (start, value), {}, spec, value.origin)


def saved_input(
    made: Builder, name: str, value: Node, spec: Spec, moved: Collection[Node], returns: dict[Node, tuple[Node, Node]]
) -> Node:
    """The next input of a backward, for a saved `value`; of one on the host what comes back, which `returns` gets."""
    if value not in moved:
        return made.input(name, spec)
    returns[value] = transferred(made.input(name, replace(value.tensor, device=CPU)), value.tensor.device)
    return returns[value][-1]


def with_returns(
    nodes: Iterable[Node], new: Mapping[Node, Node], returns: Mapping[Node, tuple[Node, Node]], ends: Collection[Node]
) -> Iterator[Node]:
    """The `new` nodes; a value that comes back from the host does so in front of its first reader."""
    left = dict(returns)
    for node in nodes:
        for value in node.inputs:
            yield from left.pop(value, ())
        yield new[node]
    for value in ends:
        yield from left.pop(value, ())
