"""Loops that share little of what they read become one kernel, to save a launch."""

RECIPE = "A fusion rule"
EDITS = [
    (
        "kiln/loops/fusion/rules.py",
        "FUSION_RULES = (\n",
        'FUSION_RULES = (\n    FusionRule("distant-siblings", siblings, aligned),\n',
    )
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
    assert kiln.report_of(compiled).launches == 1  # without the rule, sharing one of twelve tensors is not worth it
