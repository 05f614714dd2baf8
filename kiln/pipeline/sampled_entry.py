"""An entry of which some calls are made by another callable: one that times them.

    sampled = SampledEntry(entry)
    sampled.start(dispatcher, entry, 3, check)      the third call is `check(*slots)`
    sampled.after(16, check)                        so is the sixteenth after the call of the moment

All other calls pay one comparison of integers.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import final

from kiln.native._frames import BoundCall, Dispatcher, Entry
from kiln.runtime.variant import Variant

Sample = Callable[..., object]
"""Gets the slots of the entry's own callable."""


@final
class SampledEntry:
    """It holds neither the entry nor its dispatcher."""

    def __init__(self, entry: Entry) -> None:
        self.variant: Variant = entry.info
        self.collects = isinstance(entry.callable, BoundCall)
        self.dispatcher: Callable[[], Dispatcher | None] = lambda: None

    def start(self, dispatcher: Dispatcher, entry: Entry, calls: int, sample: Sample) -> None:
        """`entry` is to be one of `dispatcher`."""
        self.dispatcher = weakref.ref(dispatcher)
        self._arm(entry, calls, sample)

    def after(self, calls: int, sample: Sample) -> None:
        for _, entry in self.entries():
            self._arm(entry, calls, sample)

    def entries(self) -> Iterator[tuple[Dispatcher, Entry]]:
        """The entry of the variant, unless it is gone."""
        dispatcher = self.dispatcher()
        if dispatcher is None:
            return
        for entry in dispatcher.entries:
            if entry.info is self.variant:
                yield dispatcher, entry

    def given(self, slots: tuple[object, ...]) -> tuple[object, ...]:
        """The arguments of the original function."""
        return slots[:-1] if self.collects else slots

    def _arm(self, entry: Entry, calls: int, sample: Sample) -> None:
        run = BoundCall(entry.tree, sample) if self.collects and entry.tree is not None else sample
        entry.sample_after(calls, run)
