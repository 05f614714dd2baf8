"""Triton kernels for CUDA devices."""

from kiln.loops.codegen.triton.writer import TritonKernel, write_triton

__all__ = ["TritonKernel", "write_triton"]
