"""What users import. Without a usable native layer programs run eager (`without_native.py`)."""

from typing import TYPE_CHECKING

from kiln.backends import list_backends, register_backend
from kiln.native import problem
from kiln.support.options import Options

if TYPE_CHECKING or not problem():
    from kiln.api.compiler import compile, disable, explain, is_compiling, report_of, reset, session_of
else:
    from kiln.api.without_native import compile, disable, explain, is_compiling, report_of, reset, session_of

__all__ = [
    "Options", "compile", "disable", "explain", "is_compiling", "list_backends", "register_backend", "report_of",
    "reset", "session_of",
]  # fmt: skip
