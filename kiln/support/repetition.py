"""Repeated layers: equal layers of a model are treated once, and this is what all levels share for it.

    for layer in self.layers:      capture/interpreter/repeated_layers   one call of an equal module is interpreted
        x = layer(x)               graph/trace/repeated_calls.py         its torch calls are copied, not run
                                   graph/passes/repeated_layers.py       the graph is compiled with a few of the layers
                                   pipeline/repeated_layers.py           its plan is repeated for those left out

Each level takes one occurrence as the *template* of the others. Two occurrences are equal if their items (calls, nodes,
steps) are, one by one, with operands taken out, and if corresponding operands are

    shared     the same object in both: an attention mask
    moved      made by corresponding items of the two, or of the occurrences before them: the hidden state
    own        read by one occurrence alone: a weight

In a flat list of items, equal occurrences stand one *period* apart. Further occurrences are written from the template
by *renaming* its operands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

OperandRelation = Literal["shared", "moved", "own"]


def usual_distance(distances: Iterable[int]) -> int:
    """The most frequent distance, a candidate for the period; 0 if there is none."""
    ((distance, _),) = Counter(distances).most_common(1) or ((0, 0),)
    return distance


def longest_run(start: int, end: int, period: int, repeats: Callable[[int, int], bool]) -> range:
    """The longest part of items [start, end) in which every item repeats the one a period before it.

    `repeats(begin, item)`: whether `item` does so, in a run that begins at `begin`.
    """
    best, begin = range(start, start), start
    for item in range(start + period, end + 1):
        if item == end or not repeats(begin, item):
            best = max(best, range(begin, item), key=len)
            begin = item - period + 1
    return best
