"""Reasons why an op or its arguments cannot be in a graph.

    raise UnsupportedOp(op="aten.frobnicate.default", reason="it has no shape rule")

The interpreter catches a `TraceBreak`, compiles the graph recorded so far, and leaves the call to Python.
"""

from __future__ import annotations

from kiln.support.errors import KilnError


class TraceBreak(KilnError):
    """Base of what the recorder cannot put into a graph."""


class UnsupportedOp(TraceBreak):
    """An op without a rule, or with arguments that its rule does not cover."""

    code = "KILN2401"
    what = "`{op}` cannot be put into a graph"
    why = "{reason}"
    try_ = (
        "register a fake implementation with `torch.library.register_fake`",
        "call it outside of the compiled function",
    )


class DataDependentOp(TraceBreak):
    """An op with result sizes that depend on data."""

    code = "KILN2402"
    what = "the sizes of the result of `{op}` depend on the values of a tensor"
    why = "while tracing, a tensor has a shape and a dtype but no values"
    try_ = (
        "use a mask with `torch.where` instead of a selection",
        "call it outside of the compiled function",
    )


class DataDependentScalar(TraceBreak):
    """The value of a tensor is needed, by `.item()`, `bool()`, `if` or indexing."""

    code = "KILN2403"
    what = "`{op}` asks for the value of a tensor"
    why = "while tracing, a tensor has a shape and a dtype but no values"
    try_ = (
        "keep both sides in the graph with `torch.where`",
        "move the test out of the compiled function",
    )


class UnsupportedMutation(TraceBreak):
    """A write to memory that the functional graph cannot express."""

    code = "KILN2404"
    what = "`{op}` changes a tensor in a way that cannot be put into a graph"
    why = "{reason}"
    try_ = ("write the result to a fresh tensor", "call it outside of the compiled function")
