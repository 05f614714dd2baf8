"""What users import. Without a usable native layer programs run eager (`without_native.py`)."""

from kiln.api.entry import (
    compile,
    compile_backward,
    disable,
    explain,
    is_compiling,
    keep_reports,
    report_of,
    reset,
    session_of,
)
from kiln.api.torch_compile import replace_torch_compile
from kiln.backends import list_backends, register_backend
from kiln.support.errors import KilnError
from kiln.support.options import Options

__all__ = [
    "KilnError", "Options", "compile", "compile_backward", "disable", "explain", "is_compiling", "keep_reports",
    "list_backends", "register_backend", "replace_torch_compile", "report_of", "reset", "session_of",
]  # fmt: skip
