"""Triton kernels for CUDA devices."""

from kiln.loops.codegen.triton.writer import write_triton

__all__ = ["write_triton"]
