"""An option that leaves the graph as it was traced."""

RECIPE = "An option"
EDITS = [
    (
        "kiln/support/options.py",
        "    variants: int = 8\n",
        '    rewrite: bool = True\n    """Simplify graphs before they are lowered."""\n    variants: int = 8\n',
    ),
    (
        "kiln/pipeline/stages.py",
        "return run_passes(graph, at.events, env=at.env, without=at.without)",
        "return run_passes(graph, at.events, env=at.env, without=at.without) if at.options.rewrite else graph",
    ),
]


def check() -> None:
    import torch

    import kiln
    from tests.docs.dumped import dumped

    compiled = kiln.compile(lambda x: x.neg().neg(), fullgraph=True, options={"rewrite": False})
    x = torch.randn(4)
    torch.testing.assert_close(compiled(x), x)
    assert dumped("passes").count("neg(") == 2
