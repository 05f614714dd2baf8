"""Errors of the graph IR.

A malformed text    =>  KILN2301: line 3 of the graph text: no value is called %7
"""

from __future__ import annotations

from kiln.support.errors import KilnError


class GraphSyntaxError(KilnError):
    """A graph text that cannot be read."""

    code = "KILN2301"
    what = "line {line} of the graph text cannot be read"
    why = "{problem}"
    try_ = ("compare with the text that `graph_text` prints",)


class InvalidGraph(KilnError):
    """A graph that breaks a rule of the verifier."""

    code = "KILN2302"
    what = "the graph is not valid after `{after}`"
    why = "{rule}: {problem}\n{excerpt}"
    try_ = ("set KILN_DUMP to a folder and compare the texts before and after the pass",)


class WrongPrediction(KilnError):
    """An op gave another result than its spec says."""

    code = "KILN2303"
    what = "`{op}` gave {actual} where {expected} was predicted"
    why = "its shape rule and its kernel disagree"
    try_ = ("report the op with its inputs",)


class NoFxForm(KilnError):
    """An op that `torch.fx` has no node for."""

    code = "KILN2304"
    what = "`{op}` has no form as a torch.fx node"
    why = "torch.fx has no branches and loops of graphs"
    try_ = ("use a backend that takes Kiln's graphs",)
