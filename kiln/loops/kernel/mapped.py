"""A kernel and how its points map to a machine: what kernel passes work on and printers print.

MappedKernel(kernel)                                what fusion made
MappedKernel(kernel, lanes=4)                       for C++: numbers in a vector, where they are fewer than usual
MappedKernel(kernel, run=UnitRun(i1, k_i1, ..))     for C++: consecutive units go through each phase together
MappedKernel(kernel, tiling=Tiling(..))             for Triton: blocks and loops
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import final

from kiln.loops.body.indexing import Axis
from kiln.loops.kernel.kernel import KernelIR, Phase
from kiln.loops.kernel.tiling import Tiling
from kiln.support.records import dataclass
from kiln.support.target import Target
from kiln.symbolic import Range, Symbol


@final
@dataclass(frozen=True, slots=True)
class RunRows:
    """Up to `longest` neighbours along unit axis `axis`, each with its part of a run: `row` counts to `rows` - 1."""

    axis: Axis
    row: Symbol
    rows: Symbol
    longest: int


@final
@dataclass(frozen=True, slots=True)
class UnitRun:
    """Consecutive units of the last unit axis that go through the phases together, in vectors.

    The first is `axis.symbol`; `lane` counts from it to `count` - 1. `longest`: 0 where nothing limits a run.
    `rows`: neighbours along another unit axis whose runs go together.
    """

    axis: Axis
    lane: Symbol
    count: Symbol
    longest: int
    rows: RunRows | None = None

    @property
    def ranges(self) -> dict[Symbol, Range]:
        """Those of the symbols that the run introduced."""
        top = self.longest or None
        ranges = {self.count: Range(1, top), self.lane: Range(0, None if top is None else top - 1)}
        if self.rows is not None:
            ranges |= {self.rows.rows: Range(1, self.rows.longest), self.rows.row: Range(0, self.rows.longest - 1)}
        return ranges


@final
@dataclass(frozen=True, slots=True)
class MappedKernel:
    """`run` for a CPU, `tiling` for a GPU; None until a pass decides it, or where the kernel needs none.

    `lanes`: of a vector; 0 where it has as many as 32-bit numbers fit.
    """

    kernel: KernelIR
    run: UnitRun | None = None
    tiling: Tiling | None = None
    lanes: int = 0

    def lanes_on(self, target: Target) -> int:
        return self.lanes or target.vector_bytes // 4

    def with_phases(self, change: Callable[[Phase], Phase]) -> tuple[MappedKernel, int]:
        """The kernel with `change` applied to its phases, and how many that changed."""
        phases = tuple([change(phase) for phase in self.kernel.phases])
        changes = sum(new is not old for new, old in zip(phases, self.kernel.phases, strict=True))
        return (replace(self, kernel=replace(self.kernel, phases=phases)) if changes else self), changes
