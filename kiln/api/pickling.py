"""Pickles of compiled functions: those of their originals, by import path.

    @kiln.compile
    def collate(batch): ...            pickles as `module.collate`, which is compiled where it is imported
    other = kiln.compile(collate_fn)   pickles as `collate_fn` and what it was compiled with

So a DataLoader with worker processes takes them (start methods "spawn" and "forkserver").
"""

from __future__ import annotations

import copyreg
import sys
from collections.abc import Callable
from types import FunctionType

from kiln.backends import Backend
from kiln.native._frames import Dispatcher
from kiln.pipeline.dispatchers import original_of
from kiln.pipeline.session import CompileSession
from kiln.support.options import Options

Rebuild = Callable[[FunctionType, Options, Backend | None, bool], Dispatcher]


def register_pickling(rebuild: Rebuild) -> None:
    """Make compiled functions pickle; `rebuild` compiles a function of another process."""

    def reduce(dispatcher: Dispatcher) -> str | tuple[Rebuild, tuple[object, ...]]:
        original, session = original_of(dispatcher), dispatcher.__dict__.get("session")
        if not isinstance(session, CompileSession):
            return original.__qualname__  # pickle says that it cannot be found
        if at_path(original.__module__, original.__qualname__) is dispatcher:
            return original.__qualname__
        settings = session.settings
        backend = settings.backend or settings.target.language
        return rebuild, (original, settings.options, backend, settings.fullgraph)

    copyreg.pickle(Dispatcher, reduce)


def at_path(module: str, path: str) -> object:
    """The object at an import path, or None."""
    found: object = sys.modules.get(module)
    for name in path.split("."):
        found = getattr(found, name, None)
    return found
