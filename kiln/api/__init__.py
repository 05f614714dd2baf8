"""What users import."""

from kiln.api.compile import compile, disable, explain, is_compiling, report_of, reset, session_of
from kiln.backends import list_backends, register_backend
from kiln.support.options import Options

__all__ = [
    "Options",
    "compile",
    "disable",
    "explain",
    "is_compiling",
    "list_backends",
    "register_backend",
    "report_of",
    "reset",
    "session_of",
]
