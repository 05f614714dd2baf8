"""What the schedule hands to the plan writer: kernels and calls in order, and the life of each buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from kiln.loops.ir.kernel import KernelIR
from kiln.loops.ir.nodes import Buffer, Extern, LoopOutput
from kiln.symbolic import Symbol


@final
@dataclass(frozen=True, slots=True)
class Allocation:
    """Memory for `buffer` just before step `before`; taken over from `reuse` (dead, at least as large) if given."""

    buffer: Buffer
    before: int
    reuse: str | None = None


@final
@dataclass(frozen=True, slots=True)
class ScheduledProgram:
    """`steps` in order; `frees[i]` are the buffers that are dead after step i."""

    name: str
    inputs: tuple[Buffer | Symbol, ...]
    constants: tuple[tuple[Buffer, str], ...]
    steps: tuple[KernelIR | Extern, ...]
    allocations: tuple[Allocation, ...]
    frees: tuple[tuple[str, ...], ...]
    outputs: tuple[LoopOutput, ...]
    writes: tuple[tuple[str, str], ...]
