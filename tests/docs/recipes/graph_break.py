"""A call of `sys.intern` breaks the graph with a code of its own."""

RECIPE = "A graph break"
EDITS = [
    (
        "kiln/capture/interpreter/breaks.py",
        "",
        """

class Interning(GraphBreak):
    code = "KILN1999"
    what = "a call of `{function}`"
    why = "the interpreter does not look at where strings are stored"
    try_ = ("intern the string outside of the compiled function",)
""",
    ),
    (
        "kiln/capture/interpreter/builtins/functions.py",
        "",
        """

@handles(sys.intern)
def intern(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    raise Interning(function="sys.intern")
""",
    ),
    (
        "kiln/capture/interpreter/builtins/functions.py",
        "from __future__ import annotations\n",
        "from __future__ import annotations\n\nimport sys\n\nfrom kiln.capture.interpreter.breaks import Interning\n",
    ),
]


def check() -> None:
    import sys

    import torch

    import kiln
    from kiln.support.errors import ERRORS

    def named(x, name):
        return (x + 1) * len(sys.intern(name))

    compiled = kiln.compile(named)
    x = torch.ones(3)
    torch.testing.assert_close(compiled(x, "abc"), named(x, "abc"))
    (found,) = kiln.report_of(compiled).breaks
    assert found.code == "KILN1999" and "graph_break.py" in found.where and ERRORS["KILN1999"].try_
