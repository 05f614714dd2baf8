"""Random seeds of recorded graphs: rows (seed, offset) on the device, written before each replay.

    rows = SeedRows(torch.device("cuda:0"), 2)
    rows.tensors                    two int64[2], the constants of the recorded plan
    rows.refresh((4096, 1024))      generator at offset 40: rows (seed, 40), (seed, 4136); the generator moves to 5160

The numbers are those that a run without graphs would draw (`kiln.plan.random`). They cost a small kernel: the seed is
written only when it changes, the offsets by one addition.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import final

import torch

from kiln.plan.random import draw_seed, rounded, signed_word


@final
class SeedRows:
    """The seeds of one plan."""

    def __init__(self, device: torch.device, count: int) -> None:
        self.device = device
        self.rows = torch.zeros((count, 2), dtype=torch.int64, device=device)
        self.tensors = tuple(self.rows[number] for number in range(count))
        self._seed: int | None = None
        self._relative: dict[tuple[int, ...], torch.Tensor] = {}

    def refresh(self, increments: tuple[int, ...]) -> None:
        """Draw the seeds of the next replay."""
        if self.device.type == "cpu":
            for row, increment in zip(self.tensors, increments, strict=True):
                row.copy_(draw_seed(self.device, increment))
            return
        generator = torch.cuda.default_generators[self.device.index or 0]
        seed, offset = generator.initial_seed(), generator.get_offset()
        generator.set_offset(offset + sum(map(rounded, increments)))
        if seed != self._seed:
            self.rows[:, 0].fill_(signed_word(seed))
            self._seed = seed
        torch.add(self._starts(increments), offset, out=self.rows[:, 1])

    def _starts(self, increments: tuple[int, ...]) -> torch.Tensor:
        """Offset of each seed, relative to the generator's."""
        if increments not in self._relative:
            starts: Sequence[int] = list(accumulate(map(rounded, increments[:-1]), initial=0))
            self._relative[increments] = torch.tensor(starts, dtype=torch.int64, device=self.device)
        return self._relative[increments]
