"""The names of `kiln` for whole programs, loaded at the first use of one of them: most programs only compile."""

from typing import TYPE_CHECKING

from kiln.native import problem
from kiln.programs.dims import Dim, Examples
from kiln.programs.file_reader import load_program
from kiln.programs.program import Program

if TYPE_CHECKING or not problem():
    from kiln.api.exporting import analyze, export
else:
    from kiln.api.without_native import analyze, export

__all__ = ["Dim", "Examples", "Program", "analyze", "export", "load_program"]
