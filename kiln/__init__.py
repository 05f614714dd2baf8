"""Kiln compiles PyTorch programs: `kiln.compile(model)` is the same model, faster.

The first use of one of these names loads the compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln.api import KilnError as KilnError
    from kiln.api import Options as Options
    from kiln.api import compile as compile
    from kiln.api import compile_backward as compile_backward
    from kiln.api import disable as disable
    from kiln.api import explain as explain
    from kiln.api import is_compiling as is_compiling
    from kiln.api import list_backends as list_backends
    from kiln.api import register_backend as register_backend
    from kiln.api import replace_torch_compile as replace_torch_compile
    from kiln.api import report_of as report_of
    from kiln.api import reset as reset
    from kiln.api.programs import Dim as Dim
    from kiln.api.programs import Examples as Examples
    from kiln.api.programs import Program as Program
    from kiln.api.programs import analyze as analyze
    from kiln.api.programs import export as export
    from kiln.api.programs import load_program as load_program
    from kiln.api.spreading import distributed as distributed
    from kiln.packages import load as load

__version__ = "0.1.0"
COMPILER = (
    "KilnError", "Options", "compile", "compile_backward", "disable", "explain", "is_compiling", "list_backends",
    "register_backend", "replace_torch_compile", "report_of", "reset",
)  # fmt: skip
PROGRAMS = ("Dim", "Examples", "Program", "analyze", "export", "load_program")
SPREADING = ("distributed",)
PACKAGES = ("load",)
MODULES = {
    **dict.fromkeys(COMPILER, "kiln.api"),
    **dict.fromkeys(PROGRAMS, "kiln.api.programs"),
    **dict.fromkeys(SPREADING, "kiln.api.spreading"),
    **dict.fromkeys(PACKAGES, "kiln.packages"),
}
__all__ = [*MODULES]


def __getattr__(name: str) -> object:
    if name not in MODULES:
        raise AttributeError(f"module 'kiln' has no attribute {name!r}")
    with importlib.import_module("kiln.support.gc_pause").GC_PAUSE.loading():
        module = importlib.import_module(MODULES[name])
    # All of the module at once: compiled code that asks for another of them finds a plain global.
    names = [public for public, place in MODULES.items() if place == MODULES[name]]
    globals().update({public: getattr(module, public) for public in names})
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
