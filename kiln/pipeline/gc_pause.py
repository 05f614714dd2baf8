"""No garbage collection of cycles while something is compiled.

with WITHOUT_COLLECTION():
    ...                       BERT: a compile makes tens of thousands of objects, which each collection would walk
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import final


@final
class CollectionPause:
    """A compile makes many objects that live on; the cycle collector would walk them again and again.

    Registered: the collector is the process's. It goes on when the last compile of all threads is done.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._compiles = 0
        self._enabled = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._compiles:
                self._enabled = gc.isenabled()
            self._compiles += 1
            gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._compiles -= 1
                if self._enabled and not self._compiles:
                    gc.enable()


WITHOUT_COLLECTION = CollectionPause()
