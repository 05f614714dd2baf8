"""The operator with which a plan calls what another compiler made of a part of its graph.

run = OffloadedRun(compiled)                        under a number, while the object lives
torch.ops.kiln_offload.run(run.number, [x], [4])    compiled([x], [4])
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import final
from weakref import WeakValueDictionary

import torch

PartRun = Callable[[Sequence[torch.Tensor], Sequence[int]], Sequence[torch.Tensor]]
"""(inputs, values of the symbols) -> outputs. It does not return its arguments."""


@final
class OffloadedRun:
    """A compiled part. Plans name it by its number; the region that calls it keeps it alive."""

    __slots__ = ("__weakref__", "number", "run")

    def __init__(self, run: PartRun) -> None:
        self.run, self.number = run, next(NUMBERS)
        RUNS[self.number] = self


NUMBERS = itertools.count()
RUNS: WeakValueDictionary[int, OffloadedRun] = WeakValueDictionary()
LIBRARY = torch.library.Library("kiln_offload", "DEF")
LIBRARY.define("run(int part, Tensor[] inputs, SymInt[] sizes) -> Tensor[]")


def run_part(part: int, inputs: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
    return list(RUNS[part].run(inputs, sizes))


LIBRARY.impl("run", run_part, "CompositeExplicitAutograd")
