"""The verifier of kernel programs."""

from __future__ import annotations

from kiln.loops.kernel.launches.program import KernelProgram, NestedCall, distinct_kernels
from kiln.loops.kernel.verify import verify_kernel


def verify_kernel_program(program: KernelProgram) -> None:
    """Every kernel of a program is right (K1 to K7)."""
    for kernel in distinct_kernels(program):
        verify_kernel(kernel)
    for step in program.steps:
        for nested in step.programs if isinstance(step, NestedCall) else ():
            verify_kernel_program(nested)
