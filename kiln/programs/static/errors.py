"""Errors of static libraries."""

from __future__ import annotations

from kiln.support.errors import KilnError


class NoStaticLibrary(KilnError):
    code = "KILN5109"
    what = "the program cannot be a library that does without libtorch"
    why = "it has no kernels of its own for: {problems}"
    try_ = (
        "program.package(path) keeps calls of torch's kernels",
        "leave what the error names to the caller",
        'of a program with numerics="strict": export it with "fast"',
    )


class NoCrossCompiler(KilnError):
    code = "KILN4109"
    what = "there is no C++ compiler for {machine}"
    why = "`{command}` is not on the PATH"
    try_ = ("on Debian: apt-get install g++-aarch64-linux-gnu",)
