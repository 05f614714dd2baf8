"""C++ kernels with explicit vectors."""

from kiln.loops.codegen.cpp.writer import write_cpp

__all__ = ["write_cpp"]
