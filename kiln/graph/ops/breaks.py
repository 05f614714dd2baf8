"""Graph breaks that a rule asks for: ops and arguments that cannot be in a graph."""

from __future__ import annotations

from kiln.support.breaks import GraphBreak


class UnsupportedOp(GraphBreak):
    """An op, or this use of it, for which there is no rule."""

    code = "KILN2401"
    what = "`{op}` cannot be put into a graph"
    why = "{reason}"
    try_ = (
        "register a fake implementation with `torch.library.register_fake`",
        "call it outside of the compiled function",
    )


class DataDependentOp(GraphBreak):
    """An op whose result has sizes that only the data decide."""

    code = "KILN2402"
    what = "the sizes of the result of `{op}` depend on the values of a tensor"
    why = "while tracing, a tensor has a shape and a dtype but no values"
    try_ = (
        "use a mask with `torch.where` instead of a selection",
        "call it outside of the compiled function",
    )


class DataDependentValue(GraphBreak):
    """The number in a tensor, asked for by `.item()`, `bool()`, `if` or indexing."""

    code = "KILN2403"
    what = "`{op}` asks for the value of a tensor"
    why = "while tracing, a tensor has a shape and a dtype but no values"
    try_ = (
        "keep both sides in the graph with `torch.where`",
        "move the test out of the compiled function",
    )


class UnsupportedMutation(GraphBreak):
    """A write to memory that the functional graph cannot express."""

    code = "KILN2404"
    what = "`{op}` changes a tensor in a way that cannot be put into a graph"
    why = "{reason}"
    try_ = ("write the result to a fresh tensor", "call it outside of the compiled function")
