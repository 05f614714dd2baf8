"""Functions whose modules are loaded at the first call: what an earlier process compiled runs without the compiler.

    if TYPE_CHECKING:
        from kiln.pipeline.variant_compile import compile_variant
    else:
        compile_variant = late("kiln.pipeline.variant_compile", "compile_variant")

The import under TYPE_CHECKING gives the type, and is subject to the rules of layers and cycles.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from kiln.support.gc_pause import GC_PAUSE


def late(module: str, name: str) -> Callable[..., object]:
    """A function that loads `module` and calls its function `name`."""

    def call(*args: object, **kwargs: object) -> object:
        with GC_PAUSE():  # what is loaded lives on
            function = getattr(importlib.import_module(module), name)
        return function(*args, **kwargs)

    return call
