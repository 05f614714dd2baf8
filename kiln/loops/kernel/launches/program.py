"""A kernel program: launches of kernels and library calls in order, and the life of each buffer.

    kernel norm(x: f32[8, 64] -> out: f32[8, 64]) units (i0: 8) ...
    allocate y: f32[8, 64]
    launch norm(x -> y)
    launch step(g0, m0 -> p0; 768), (g1, m1 -> p1; 3072)
    free x

Fusion makes it out of a loop program; the plan is written from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import final

from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.kernel.launches.not_fused import NotFused
from kiln.loops.program.nodes import Buffer, Extern, LoopOutput
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol

ALIGNMENT = 16
"""What divides an address in bytes, or a size, decides how wide a GPU accesses memory."""
LONGEST_ROW = 1 << 18
"""The largest size of a row of a table on a GPU: a larger tensor is worth a launch of its own."""


@final
@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory for `buffer` just before step `before`; that of `reuse` (dead, at least as large) if given."""

    buffer: Buffer
    before: int
    reuse: str | None = None


@final
@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Run `kernel` on buffers `args` (one per parameter) with sizes `ints` (one per symbol of `kernel.ints`).

    Equal kernels of a program are one object. The spec of a parameter is the view under which the kernel sees the
    argument from its first element on: dimensions may be merged or split, and sizes are in the kernel's own symbols.

    A launch over a table of `rows` does what a launch for each row would: `args` and `ints` hold those of the first
    row, then those of the second. No row writes what another one reads or writes.
    """

    kernel: KernelIR
    args: tuple[str, ...]
    ints: tuple[Int, ...] = ()
    origin: str = ""
    rows: int = 1

    def each_row(self) -> Iterator[KernelLaunch]:
        """A launch for each row."""
        params, ints = len(self.kernel.params), len(self.kernel.ints)
        for row in range(self.rows):
            args, sizes = self.args[row * params : (row + 1) * params], self.ints[row * ints : (row + 1) * ints]
            yield replace(self, args=args, ints=sizes, rows=1)

    def written(self) -> tuple[str, ...]:
        """The arguments that it writes."""
        params = self.kernel.params * self.rows
        return tuple([name for param, name in zip(params, self.args, strict=True) if param.name in self.kernel.writes])


@final
@dataclass(frozen=True, slots=True)
class NestedCall:
    """A call that runs other programs: a branch or a loop."""

    call: Extern
    programs: tuple[KernelProgram, ...]


@final
@dataclass(frozen=True, slots=True)
class KernelProgram:
    """`steps` in order; `frees[i]` are the buffers that are dead after step i."""

    name: str
    inputs: tuple[Buffer | Symbol, ...]
    constants: tuple[tuple[Buffer, str], ...]
    steps: tuple[KernelLaunch | Extern | NestedCall, ...]
    allocations: tuple[Allocation, ...]
    frees: tuple[tuple[str, ...], ...]
    outputs: tuple[LoopOutput, ...]
    writes: tuple[tuple[str, str], ...]
    not_fused: NotFused = field(default_factory=NotFused, compare=False)


def distinct_kernels(program: KernelProgram) -> tuple[KernelIR, ...]:
    """The kernels of a program, each once, in order of their first launch."""
    launched = (step.kernel for step in program.steps if isinstance(step, KernelLaunch))
    return tuple({id(kernel): kernel for kernel in launched}.values())
