"""Halide: `kiln.compile(model, backend="halide")`. Kiln's own compiler, with CPU kernels as pipelines of Halide.

What Halide does not take is written in C++ as always: indices that must be checked, scans, scatters, 16-bit floats
(`kiln/loops/codegen/halide`).
"""

from __future__ import annotations

from kiln.backends.registry import register_backend
from kiln.support.target import KernelLanguage

HALIDE = KernelLanguage("halide", package="halide")
register_backend(HALIDE)
