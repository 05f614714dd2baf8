"""The functions of the API: the compiler's, or the stand-ins where the native layer is not usable."""

from typing import TYPE_CHECKING

from kiln.native import problem

if TYPE_CHECKING or not problem():
    from kiln.api.backward import compile_backward
    from kiln.api.compiler import (
        compile,
        compile_graph,
        disable,
        explain,
        is_compiling,
        keep_reports,
        report_of,
        reset,
        session_of,
    )
else:
    from kiln.api.without_native import (
        compile,
        compile_backward,
        compile_graph,
        disable,
        explain,
        is_compiling,
        keep_reports,
        report_of,
        reset,
        session_of,
    )

__all__ = [
    "compile", "compile_backward", "compile_graph", "disable", "explain", "is_compiling", "keep_reports", "report_of",
    "reset", "session_of",
]  # fmt: skip
