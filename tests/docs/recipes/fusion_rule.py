"""Loops that share little of what they read become one kernel, to save a launch."""

RECIPE = "A fusion rule"
EDITS = [
    (
        "kiln/loops/fusion/rules.py",
        "# fmt: off\n",
        '''def distant_siblings(pair: Pair) -> bool:
    """Siblings, however little they share.

    y = exp(x); z = x + a + b + c + ...        one launch
    """
    return siblings(pair)


# fmt: off
''',
    ),
    (
        "kiln/loops/fusion/rules.py",
        '    FusionRule("small-sums", ',
        '    FusionRule("distant-siblings", distant_siblings, aligned),\n    FusionRule("small-sums", ',
    ),
]


def check() -> None:
    import torch

    import kiln

    def both(x, *others):
        return x.exp(), x + sum(others)

    compiled = kiln.compile(both, fullgraph=True)
    tensors = [torch.randn(50) for _ in range(12)]
    for actual, expected in zip(compiled(*tensors), both(*tensors), strict=True):
        torch.testing.assert_close(actual, expected)
    assert kiln.report_of(compiled).launches == 1
