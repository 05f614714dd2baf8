"""Reasons why the recording itself breaks.

raise UnsupportedInput(name="x", reason="its layout is torch.sparse_coo")
"""

from __future__ import annotations

from kiln.graph.ops.breaks import TraceBreak


class FakeEscaped(TraceBreak):
    """A fake tensor reached code outside of the recording."""

    code = "KILN2501"
    what = "`{op}` was called on a fake tensor outside of the recording"
    why = "code kept a tensor from an earlier trace, or ran natively what should have been captured"
    try_ = ("do not store tensors of a compiled function in global objects",)


class UnsupportedInput(TraceBreak):
    """A value that cannot be an input of a graph."""

    code = "KILN2502"
    what = "the input `{name}` cannot be traced"
    why = "{reason}"
    try_ = ("pass a plain dense tensor",)
