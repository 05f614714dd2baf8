"""Gradients that reach a function of the program, or a hook, on several ways.

    loss = g(f(x)) + grad(f(x), x, create_graph=True).sum()       with the f of the region, and that of its replay

In eager the backward of `f` runs once, on the sum of what arrives from the result and from its gradient. Compiled, the
two have a graph each: where the backward of `f` is linear that makes no difference, else it is found out here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast, final

import torch

ATTRIBUTE = "kiln arrivals"
MOST_TASKS = 16
"""Backwards that are remembered: those under way, which start each other."""
SUMMED = "gradients arrive on two ways at a hook or `autograd.Function` inside that is not linear in their sum"


@final
class Arrivals:
    """Of one call of a region: on which way gradients have arrived, for each backward."""

    def __init__(self, refusal: Exception) -> None:
        self.refusal = refusal
        self.ways: dict[int, object] = {}

    def note(self, way: object, _: object = None) -> None:
        """Gradients arrive on this way. Raises the refusal if others of the same backward came on another one."""
        if self.ways.setdefault(torch._C._current_graph_task_id(), way) is not way:
            raise self.refusal
        if len(self.ways) > MOST_TASKS:
            del self.ways[next(iter(self.ways))]


def new_way(refusal: Exception) -> Callable[[object], None]:
    """What is called with each gradient of another replay of the region whose backward is running."""
    node = torch._C._current_autograd_node()
    kept = cast(dict[str, Arrivals], node.metadata)
    arrivals = kept.get(ATTRIBUTE)
    if arrivals is None:
        arrivals = kept[ATTRIBUTE] = Arrivals(refusal)
        node.register_prehook(partial(arrivals.note, arrivals))
        arrivals.note(arrivals)
    return partial(arrivals.note, object())
