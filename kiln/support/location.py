"""A line of the user's program."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import final

from kiln.support.records import dataclass


def library_folders(paths: Mapping[str, str]) -> tuple[str, ...]:
    """How the files of Python and of installed packages begin; `paths`: of `sysconfig.get_paths()`."""
    return (*(paths[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")), "<frozen")


PACKAGES = frozenset(("site-packages", "dist-packages"))
"""Folders of installed packages, wherever they are."""
LIBRARIES = library_folders(sysconfig.get_paths())
STANDARD_LIBRARY = tuple([folder for folder in LIBRARIES if not PACKAGES.intersection(folder.split(os.sep))])
SERVICES = (
    *(os.path.join(os.sep, "torch", name, "") for name in ("profiler", "multiprocessing", "package")),
    *(os.path.join(os.sep, "torch", "utils", name, "") for name in ("data", "tensorboard")),
    *(os.path.join(os.sep, "torch", name) for name in ("serialization.py", "hub.py", "autograd" + os.sep + "profiler")),
)
"""Parts of torch that do not compute: files, loaders, profilers."""

COMPILER = str(Path(__file__).parents[1]) + os.sep


def is_compiler(file: str) -> bool:
    """Whether a file belongs to Kiln or to the packages that it uses."""
    return file.startswith(COMPILER) or bool(PACKAGES.intersection(file.split(os.sep)))


def user_stacklevel() -> int:
    """The `stacklevel` with which the caller warns about the innermost line outside of Kiln and other packages."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and is_compiler(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    return level


@final
@dataclass(frozen=True, slots=True)
class Location:
    """A line of user code: `model.py:41, in Net.forward`."""

    file: str
    line: int
    function: str = ""

    def text(self) -> str:
        where = f", in {self.function}" if self.function else ""
        return f"{self.file}:{self.line}{where}"

    @property
    def in_library(self) -> bool:
        """Whether it belongs to an installed package, to Kiln or to Python itself, not to the program."""
        return self.file.startswith((*LIBRARIES, COMPILER)) or bool(PACKAGES.intersection(self.file.split(os.sep)))

    @property
    def in_service(self) -> bool:
        """Whether it belongs to Python itself, or to a part of torch that does not compute."""
        if PACKAGES.intersection(self.file.split(os.sep)):
            return any(part in self.file for part in SERVICES)
        return self.file.startswith(STANDARD_LIBRARY)

    @property
    def in_compiler(self) -> bool:
        """Whether it belongs to Kiln itself."""
        return self.file.startswith(COMPILER)

    def source_line(self) -> str:
        """The text of the line, or `""` when the file cannot be read."""
        return linecache.getline(self.file, self.line)
