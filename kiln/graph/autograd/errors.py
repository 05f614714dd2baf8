"""Errors of the joint trace.

A backward that needs a size that a branch reads   =>   KILN2602: no saved tensor has it
"""

from __future__ import annotations

from kiln.support.errors import KilnError


class BackwardOfOutside(KilnError):
    """The backward reads a value that is neither an input nor computed by the region."""

    code = "KILN2601"
    what = "the backward of `{call}` reads an input that the forward does not use"
    why = "the input is {name!r}; only inputs and values of the forward can be saved"
    try_ = ("run this region eagerly and report it",)


class BackwardRaises(KilnError):
    """Eager's backward would raise too, if the program called it."""

    code = "KILN2603"
    what = "the backward of the region cannot be recorded"
    why = "{problem}"
    try_ = (
        "call the function under `torch.no_grad()` if it needs no gradients",
        "use operations that have a derivative, and do not change in place what the backward reads",
    )


class UnsavedSymbol(KilnError):
    """A data-dependent size that no saved tensor has."""

    code = "KILN2602"
    what = "the backward needs the size {symbol}, which the forward computes"
    why = "a branch or a loop reads it, and neither an input of the forward nor a saved tensor has this size"
    try_ = ("run the part with the data-dependent size outside of the compiled function",)


class TangledResults(KilnError):
    """A region hands each result on behind those from which it is computed, and rebuilds views from what they view."""

    code = "KILN2604"
    what = "the results of the region cannot be handed on to autograd"
    why = "one is a view of another one that is computed from it"
    try_ = ("return a copy of one of them", "call the function under `torch.no_grad()` if it needs no gradients")
