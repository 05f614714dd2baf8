"""A kernel printed in a target language.

PrintedKernel(kernel=Kernel("k_3f1c..", "cpp", source, ...), canonical, scratch=0, grid=())
"""

from __future__ import annotations

import hashlib
from typing import Literal, final

from kiln.loops.kernel.analyses import kernel_reads
from kiln.loops.kernel.kernel import KernelIR
from kiln.loops.program.nodes import Buffer
from kiln.plan.plan import Kernel, KernelParam
from kiln.support.records import dataclass
from kiln.symbolic import Int


@final
@dataclass(frozen=True, slots=True)
class PrintedKernel:
    """`kernel` as the plan holds it. In the size symbols of `canonical`, which it was printed from: `scratch`, bytes
    that a call needs; `grid`, programs of a launch (C++: none)."""

    kernel: Kernel
    canonical: KernelIR
    scratch: Int = 0
    grid: tuple[Int, ...] = ()


def kernel_symbol(*contents: object) -> str:
    """A name derived from the contents: equal kernels have equal symbols."""
    return "k_" + hashlib.sha256("\n".join(map(str, contents)).encode()).hexdigest()[:16]


def kernel_params(kernel: KernelIR) -> tuple[KernelParam, ...]:
    read = kernel_reads(kernel)
    return tuple(KernelParam(param.spec.dtype, _access(param, read, kernel.writes)) for param in kernel.params)


def _access(param: Buffer, read: frozenset[str], written: frozenset[str]) -> Literal["read", "write", "both"]:
    if param.name not in written:
        return "read"
    return "both" if param.name in read else "write"
