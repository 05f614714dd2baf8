"""Errors of lowering, with codes KILN30xx.

A graph with `cond`  =>  KILN3001: no loops for `cond`
"""

from __future__ import annotations

from kiln.support.errors import KilnError


class NoLowering(KilnError):
    """A primitive op that has neither loops nor a library step."""

    code = "KILN3001"
    what = "there are no loops for the primitive op `{op}`"
    why = "{problem}"
    try_ = ("compile with `backend='eager'`, or take the op out of the compiled function",)


class NoMemory(KilnError):
    """A value that must be in memory, but is no tensor."""

    code = "KILN3002"
    what = "a result of `{op}` is used as a tensor in memory"
    why = "it is {spec}, which has no memory"
    try_ = ("report the program: the graph should not contain this",)
