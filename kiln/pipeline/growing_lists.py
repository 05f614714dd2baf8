"""Lists that grow: a variant for each of the first lengths, then for a length that stays.

    calls with lists of    0  1  2  3  4  ...  99  100  100  100  100  ...
                           compiled |   eager  ...             | compiled

L-BFGS keeps its last 100 steps, so each of its first steps meets another length.
"""

from __future__ import annotations

from collections import Counter
from typing import final

from kiln.capture.guards.explanation import explain_failure
from kiln.native._frames import Dispatcher
from kiln.pipeline.dispatchers import Arguments, original_of
from kiln.runtime.guards.guard import Guard, GuardKind
from kiln.support.errors import KilnError

GROWING = "growing"
"""The key in the `__dict__` of a dispatcher."""
LENGTHS, CALLS = 3, 3
"""How many lengths besides the first have a variant at once, and in which of its calls a later one gets a variant."""


class GrowingList(KilnError):
    code = "KILN1089"
    what = "`{function}` was called with many lengths of {subject}"
    why = "each would be compiled; the next one is when calls with it recur, and until then they run eager"
    try_ = ("keep the number of items, or stack them into one tensor",)
    is_news: bool
    """Whether it is the first such call."""


@final
class SeenLengths:
    """The lengths, as texts, of one list that calls without a variant had."""

    def __init__(self) -> None:
        self.compiled = 0
        self.is_reported = False
        self.calls: Counter[str] = Counter()


def wait_for_length(dispatcher: Dispatcher, arguments: Arguments) -> GrowingList | None:
    """Why this call is not compiled; None if it is to be."""
    if not dispatcher.entries:
        return None
    entry, function = dispatcher.entries[-1], original_of(dispatcher)
    values = list(arguments.values())
    failed = entry.tree.explain(values, function.__globals__, function.__closure__) if entry.tree else None
    if failed is None:
        return None
    guard: Guard = entry.info.guards[failed[0]]
    if guard.kind is not GuardKind.LENGTH:
        return None
    seen: SeenLengths = dispatcher.__dict__.setdefault(GROWING, {}).setdefault(guard.source.text(), SeenLengths())
    seen.calls[failed[1]] += 1
    if seen.compiled < LENGTHS or seen.calls[failed[1]] >= CALLS:
        seen.compiled += 1
        return None
    growing = GrowingList(function=function.__qualname__, subject=explain_failure(guard, failed[1]).subject)
    growing.is_news, seen.is_reported = not seen.is_reported, True
    return growing
