"""What turns kernel sources into code: g++, Triton's workers, cubins."""
