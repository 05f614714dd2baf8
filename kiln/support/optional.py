"""Optional third-party packages: the one file whose functions may import late, each with a clear error."""

from __future__ import annotations

import importlib
from types import ModuleType

from kiln.support.errors import KilnError


class MissingPackage(KilnError):
    code = "KILN5010"
    what = "the package `{package}` is not installed"
    why = "it is needed for {purpose}"
    try_ = ("pip install {package}",)


def load_optional(package: str, *, needed_for: str) -> ModuleType:
    """Import `package`.

    Raises:
        MissingPackage: when it is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise MissingPackage(package=package, purpose=needed_for) from error
