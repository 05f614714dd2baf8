"""Optional third-party packages, imported when first used; the one file where imports stand in functions.

    sympy = load("sympy")        the module, or None where it is not installed

`import kiln` must load none of them: SymPy alone takes a quarter of a second.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Literal

OptionalPackage = Literal["sympy", "networkx", "matplotlib", "tabulate", "tqdm", "psutil", "triton"]


def load(package: OptionalPackage) -> ModuleType | None:
    """The module, or None where it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError:
        return None
