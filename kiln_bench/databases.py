"""torch's own databases of operators, modules and optimizers, which it does not install as a library.

database("common_modules").module_db
"""

from __future__ import annotations

import importlib
import sys
import types
import unittest


def database(name: str) -> types.ModuleType:
    """A module of `torch.testing._internal`. It imports test libraries (expecttest) that are not needed: stand-ins."""
    while True:
        try:
            return importlib.import_module(f"torch.testing._internal.{name}")
        except ModuleNotFoundError as problem:
            if not problem.name or problem.name in sys.modules or problem.name.startswith("torch"):
                raise
            sys.modules[problem.name] = WithoutContents(problem.name)


class WithoutContents(types.ModuleType):
    """A module of empty classes."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(unittest, name, type(name, (), {}))
