"""Functions whose modules are loaded at the first call: what an earlier process compiled runs without the compiler.

    if TYPE_CHECKING:
        from kiln.pipeline.variant_compile import compile_variant
    else:
        compile_variant = late("kiln.pipeline.variant_compile", "compile_variant")

The import under TYPE_CHECKING gives the type, and is subject to the rules of layers and cycles.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

from kiln.support.gc_pause import GC_PAUSE


def late(module: str, name: str) -> Callable[..., object]:
    """A function that loads `module` and calls its function `name`."""

    def call(*args: object, **kwargs: object) -> object:
        if module not in sys.modules:
            with GC_PAUSE.loading():
                importlib.import_module(module)
        return getattr(importlib.import_module(module), name)(*args, **kwargs)  # waits while another thread loads it

    return call
