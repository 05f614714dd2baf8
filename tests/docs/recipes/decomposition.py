"""exp(x*x) * erfc(x), for which Kiln has no rule."""

RECIPE = "An ATen op by decomposition"
EDITS = [
    (
        "kiln/graph/ops/activations.py",
        "",
        """

@decompose("special_erfcx.default")
@elementwise
def erfcx(e: Emit, x: Node) -> Node:
    p = e.pointwise
    return p("mul", p("exp", p("mul", x, x)), p("erfc", x))
""",
    )
]


def check() -> None:
    import torch

    from tests.trace.harness import check, trace

    x = torch.rand(3, 4)
    check(torch.special.erfcx, [x])
    assert "aten" not in trace(torch.special.erfcx, [x]).ops
