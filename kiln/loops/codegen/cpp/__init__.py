"""C++ kernels with explicit vectors."""
