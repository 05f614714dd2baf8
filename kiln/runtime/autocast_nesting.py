"""How many `with torch.autocast(...)` are open, which torch counts: where the outermost ends, it forgets its casts.

with torch.autocast("cpu"):        a frame that is left here, by a graph break, leaves one open: set_nesting(1)
    y = x @ w                      what runs in Python keeps a cast of `w`
                                   and the frame behind closes it: set_nesting(0)
"""

from __future__ import annotations

import torch


def nesting(module: object = torch) -> int:
    """`module`: of a guard, which asks about something."""
    torch.autocast_increment_nesting()
    depth: int = torch.autocast_decrement_nesting()
    return depth


def set_nesting(depth: int) -> None:
    for _ in range(nesting(), depth):
        torch.autocast_increment_nesting()
    for _ in range(depth, nesting()):
        torch.autocast_decrement_nesting()
    forget_casts(depth)


def forget_casts(depth: int) -> None:
    """As where autocast is left: in a recording that runs again, which has left what it entered when it ends."""
    if depth == 0:
        torch.clear_autocast_cache()
