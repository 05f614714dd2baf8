"""Kernels compute at most one exponential."""

RECIPE = "A fusion veto"
EDITS = [
    (
        "kiln/loops/fusion/vetoes.py",
        "# fmt: off\n",
        """def too_many_exponentials(pair: Pair) -> Excess | None:
    names = [op.op.name for member in pair.members for op in member.node.body.ops if isinstance(op, Compute)]
    count = names.count("exp")
    return (count, 1) if count > 1 else None


# fmt: off
""",
    ),
    (
        "kiln/loops/fusion/vetoes.py",
        "PAIR_VETOES = (\n",
        'PAIR_VETOES = (\n    Veto(too_many_exponentials, "exponentials", "a toy"),\n',
    ),
    (
        "kiln/loops/fusion/vetoes.py",
        "from kiln.loops.fusion.align import",
        "from kiln.loops.body.body import Compute\nfrom kiln.loops.fusion.align import",
    ),
]


def check() -> None:
    import torch

    import kiln
    from tests.docs.dumped import dumped

    def both(x):
        return x.exp(), (x + 1).exp()

    compiled = kiln.compile(both, fullgraph=True)
    x = torch.randn(50)
    for actual, expected in zip(compiled(x), both(x), strict=True):
        torch.testing.assert_close(actual, expected)
    assert kiln.report_of(compiled).launches == 2
    assert "too-many-exponentials: 2 > 1 exponentials" in dumped("schedule")
