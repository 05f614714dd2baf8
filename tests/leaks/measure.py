"""What a process holds, counted before and after some work: objects, references, memory, libraries, files, caches.

before = snapshot()
for _ in range(1000): work()
grown = snapshot().growth(before)          # {"object list": 12, ...}: empty where nothing was kept
"""

from __future__ import annotations

import functools
import gc
import linecache
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from kiln.api.compiler import REPORTS
from kiln.symbolic.tables import TABLES


@dataclass(frozen=True)
class Snapshot:
    """`counts` by name; `resident` in bytes."""

    counts: Counter[str]
    resident: int

    def growth(self, before: Snapshot, slack: int = 0) -> dict[str, int]:
        """Counts that grew by more than `slack`."""
        return {name: more for name, more in (self.counts - before.counts).items() if more > slack}


def snapshot(watched: Sequence[object] = ()) -> Snapshot:
    """`watched`: objects whose references are counted, beside those that every program uses."""
    while gc.collect():  # objects held by freed C objects become garbage in the next pass
        pass
    counts: Counter[str] = Counter()
    for thing in gc.get_objects():
        counts[f"object {type(thing).__module__}.{type(thing).__qualname__}"] += 1
        if type(thing) is functools._lru_cache_wrapper and str(thing.__module__).startswith("kiln."):
            info = thing.cache_info()
            assert info.maxsize is not None, f"{thing} is not bounded"
            counts[f"cache {thing.__module__}.{thing.__qualname__}"] += info.currsize
    counts.update({f"table {name}": len(table) for name, table in TABLES.items()})
    common = (None, True, False, 1.0, (), torch, torch.float32, torch.Tensor, torch.nn.Linear, dict, type)
    for number, item in enumerate((*common, *watched)):
        counts[f"references {number} {type(item).__name__}"] = sys.getrefcount(item)
    counts["reports"] = len(REPORTS)
    counts["linecache"] = len(linecache.cache)
    counts["open files"] = len(os.listdir("/proc/self/fd"))
    counts["libraries"] = len(
        {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}
    )
    counts["temporary files"] = sum(1 for path in Path(tempfile.gettempdir()).glob("kiln-*"))
    return Snapshot(counts, psutil.Process().memory_info().rss)


def growth(
    work: Callable[[], object], count: int, *, warm: int, watched: Sequence[object] = (), slack: int = 0
) -> tuple[dict[str, int], float]:
    """What `count` runs leave behind, and resident bytes per run, after `warm` runs."""
    for _ in range(warm):
        work()
    snapshot(watched)  # the second run finds what the first made
    before = snapshot(watched)
    for _ in range(count):
        work()
    after = snapshot(watched)
    return after.growth(before, slack), (after.resident - before.resident) / count
