"""Variants whose assumptions often fail are given up.

    chosen = x[x > 0]; chosen.max() if len(chosen) else ...     assumed: something is chosen; the region checks it

Where that often fails, the region runs in vain, and then the function in eager. The next variant assumes nothing of the
values that data decide: the graph breaks where Python needs one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from kiln.native._frames import Dispatcher, Entry
from kiln.pipeline.dispatchers import CAREFUL, assumes_likely
from kiln.runtime.checked_region import FallbackErrors
from kiln.runtime.variant import Variant

FEWEST_FAILURES, MOST_CALLS_PER_FAILURE = 4, 8
"""A variant is given up whose checks of values have failed so often, and in one of so many calls at least."""


def count_failures(dispatcher: Dispatcher, entry: Entry, lock: AbstractContextManager[object]) -> None:
    """Have failed checks of a new variant counted; `lock` is held where it is given up."""
    if not isinstance(entry.info, Variant):
        return
    for constant in entry.info.function.__code__.co_consts:
        if isinstance(constant, FallbackErrors):
            constant.on_failure = partial(check_failed, dispatcher, entry, lock)


def check_failed(dispatcher: Dispatcher, entry: Entry, lock: AbstractContextManager[object], failures: int) -> None:
    """Give up a variant whose checks have failed too often."""
    if failures < FEWEST_FAILURES or failures * MOST_CALLS_PER_FAILURE < entry.hits:
        return
    with lock:
        if entry in dispatcher.entries and assumes_likely(dispatcher):
            dispatcher.__dict__[CAREFUL] = True
            dispatcher.set_entries([other for other in dispatcher.entries if other is not entry])
