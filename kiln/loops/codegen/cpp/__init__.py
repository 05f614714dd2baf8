"""C++ kernels with explicit vectors."""

from kiln.loops.codegen.cpp.writer import CppKernel, write_cpp, write_kernel

__all__ = ["CppKernel", "write_cpp", "write_kernel"]
