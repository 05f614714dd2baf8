"""Errors of the joint trace."""

from __future__ import annotations

from kiln.support.errors import KilnError


class BackwardOfOutside(KilnError):
    """The backward reads a value that is neither an input nor computed by the region."""

    code = "KILN2601"
    what = "the backward of `{call}` reads an input that the forward does not use"
    why = "the input is {name!r}; the joint graph can only save what the forward has"
    try_ = ("run this region eagerly and report it",)
