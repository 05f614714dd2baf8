"""Variants whose assumptions often fail are given up, and those whose regions raise what eager does not.

    chosen = x[x > 0]; chosen.max() if len(chosen) else ...     assumed: something is chosen; the region checks it

Where that often fails, the region runs in vain, and then the function in eager. The next variant assumes nothing of the
values that data decide: the graph breaks where Python needs one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from kiln.native._frames import Dispatcher, Entry
from kiln.pipeline.dispatchers import CAREFUL, assumes_likely, original_of
from kiln.pipeline.original import in_python, taking_slots
from kiln.runtime.checked_region import FallbackErrors
from kiln.runtime.variant import Variant
from kiln.support.errors import InternalFault, KilnError

FEWEST_FAILURES, MOST_CALLS_PER_FAILURE = 4, 8
"""A variant is given up whose checks of values have failed so often, and in one of so many calls at least."""


def watch_failures(
    dispatcher: Dispatcher,
    entry: Entry,
    lock: AbstractContextManager[object],
    may_give_up: bool,
    report_eager: Callable[[KilnError], None],
) -> None:
    """Have failed checks of a new variant counted, if it `may_give_up`; `lock` is held where it is given up.

    `report_eager` is told of an error of its region that eager does not raise.
    """
    if not isinstance(entry.info, Variant):
        return
    for constant in entry.info.function.__code__.co_consts:
        if isinstance(constant, FallbackErrors):
            constant.on_fault = partial(region_failed, dispatcher, entry, lock, report_eager)
            if may_give_up:
                constant.on_failure = partial(check_failed, dispatcher, entry, lock)


def region_failed(
    dispatcher: Dispatcher,
    entry: Entry,
    lock: AbstractContextManager[object],
    report_eager: Callable[[KilnError], None],
    problem: str,
) -> None:
    """Replace an entry whose region has raised what eager does not."""
    if run_in_place(dispatcher, entry, lock):
        report_eager(InternalFault(stage="run", problem=f"eager does not raise {problem}"))


def run_in_place(dispatcher: Dispatcher, given_up: Entry, lock: AbstractContextManager[object]) -> bool:
    """Have the original run where the guards of an entry hold; False: another thread was faster."""
    function = original_of(dispatcher)
    with lock:
        if given_up not in dispatcher.entries:
            return False
        info = replace(given_up.info, function=function, second_run=None)
        eager = Entry(given_up.tree, taking_slots(in_python(function)), info)
        dispatcher.set_entries([eager if entry is given_up else entry for entry in dispatcher.entries])
    return True


def check_failed(dispatcher: Dispatcher, entry: Entry, lock: AbstractContextManager[object], failures: int) -> None:
    """Give up a variant whose checks have failed too often."""
    if failures < FEWEST_FAILURES or failures * MOST_CALLS_PER_FAILURE < entry.hits:
        return
    with lock:
        if entry in dispatcher.entries and assumes_likely(dispatcher):
            dispatcher.__dict__[CAREFUL] = True
            dispatcher.set_entries([other for other in dispatcher.entries if other is not entry])
