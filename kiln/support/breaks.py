"""Graph breaks: what cannot be in a graph, as errors with a code.

    raise UnsupportedOp(op="aten.frobnicate.default", reason="it has no shape rule")

The interpreter catches a `GraphBreak`, compiles the graph so far, and lets Python run the rest.
Subclasses stand next to the stage that raises them; this base is on the ground so that all may catch it.
"""

from __future__ import annotations

from kiln.support.errors import KilnError


class GraphBreak(KilnError):
    """Base of everything that ends a graph: the region before it is compiled, the rest runs in Python."""
