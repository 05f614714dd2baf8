"""Regions that check what their capture assumed of the values of tensors.

    outputs = checked(region)(x, n)         None where a check fails, or any step after it that relied on it
    if not outputs: return f(x, n)          f is the original function, which runs eager and raises what eager raises

The region changes no input and calls no operator with unknown effects, so that nothing has happened when it fails.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

Region = Callable[..., "tuple[object, ...]"]


def checked(region: Region) -> Callable[..., tuple[object, ...] | None]:
    """`region`, with None for an error."""
    return partial(run_checked, region)


def run_checked(region: Region, *inputs: object) -> tuple[object, ...] | None:
    try:
        return region(*inputs)
    except Exception:  # of any kind: eager finds the right one
        return None
