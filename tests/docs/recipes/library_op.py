"""A histogram: its size does not depend on that of the input."""

RECIPE = "An ATen op left to the library"
EDITS = [
    (
        "kiln/graph/ops/library.py",
        "",
        """

@library("histc.default")
def histc(e: Emit, x: Node, bins: int = 100, min: float = 0, max: float = 0) -> TensorSpec:
    return fresh(x.tensor, (bins,))
""",
    )
]


def check() -> None:
    import torch

    import kiln

    def spread(x):
        return torch.histc(x, bins=7, min=-1, max=1) * 2

    compiled = kiln.compile(spread, fullgraph=True, dynamic=True)
    for count in (5, 60):
        x = torch.randn(count)
        torch.testing.assert_close(compiled(x), spread(x))
    assert kiln.report_of(compiled).compiles == 1  # the rule asks for no number: one variant serves both sizes
