"""Random numbers of a program: one (seed, offset) per device, and counters of its own for each random node.

%3 = random(sizes=(4, 8))       buffer of (seed, offset), counters 0 .. 31
%5 = random(sizes=(16,))        the same buffer, counters 32 .. 47
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch

from kiln.graph.ir.node import Node
from kiln.loops.program.nodes import Buffer, Extern
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec


@final
class RandomStreams:
    """The streams of one lowering."""

    def __init__(self, new_buffer: Callable[[TensorSpec], Buffer]) -> None:
        self.new_buffer = new_buffer
        self._seeds: dict[torch.device, Buffer] = {}
        self._counters: dict[Node, Int] = {}
        self._drawn: Int = 0

    def of(self, node: Node) -> tuple[str, Int]:
        """The buffer of (seed, offset) and the first counter of a random node."""
        spec = node.tensor
        if spec.device not in self._seeds:
            self._seeds[spec.device] = self.new_buffer(TensorSpec(torch.int64, (2,), (1,), 0, spec.device))
        if node not in self._counters:
            self._counters[node] = self._drawn
            self._drawn = self._drawn + spec.numel()
        return self._seeds[spec.device].name, self._counters[node]

    def draws(self) -> list[Extern]:
        """What draws the seeds, before everything else runs."""
        return [Extern((buffer,), "kiln.random_seed", (device, self._drawn)) for device, buffer in self._seeds.items()]
