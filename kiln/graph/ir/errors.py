"""Errors of the graph IR.

A malformed text    =>  KILN2301: line 3 of the graph text cannot be read: there is no value %7
"""

from __future__ import annotations

from kiln.support.errors import KilnError


class GraphSyntaxError(KilnError):
    """Malformed graph text."""

    code = "KILN2301"
    what = "line {line} of the graph text cannot be read"
    why = "{problem}"
    try_ = ("compare with the text that `graph_text` prints",)


class InvalidGraph(KilnError):
    """A graph that violates a rule of the verifier."""

    code = "KILN2302"
    what = "the graph is invalid after `{after}`"
    why = "{rule}: {problem}\n{excerpt}"
    try_ = ("set KILN_DUMP to a folder and compare the texts before and after the pass",)


class WrongPrediction(KilnError):
    """The result of an op differs from its spec."""

    code = "KILN2303"
    what = "`{op}` returned {actual}, predicted was {expected}"
    why = "its shape rule and its kernel disagree"
    try_ = ("report the op with its inputs",)
