"""Garbage collection pauses while something is compiled, and while the compiler is loaded.

with GC_PAUSE():
    ...                A compile of BERT allocates tens of thousands of objects that live on; every collection
                       would walk them.
with GC_PAUSE.loading():
    import ...         And no collection but a full one walks what was loaded, which is never garbage.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

FEW = 1000
"""Frozen objects: CPython 3.12 starts with some 400; a program that freezes has thousands."""


@final
class GcPause:
    """Pauses the cycle collector of the process until the last compile of all threads is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiles = 0
        self._was_enabled = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._compiles:
                self._was_enabled = gc.isenabled()
            self._compiles += 1
            gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._compiles -= 1
                if self._was_enabled and not self._compiles:
                    gc.enable()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """A pause, and what is allocated in it counts as old. Whoever froze objects, or collects himself, is let be."""
        collects = self._was_enabled if self._compiles else gc.isenabled()
        keeps = collects and gc.get_freeze_count() < FEW
        if keeps:
            gc.collect(1)  # so that garbage of the program does not become old
        with self():
            yield
            if keeps:
                gc.freeze()
                gc.unfreeze()


GC_PAUSE = GcPause()
