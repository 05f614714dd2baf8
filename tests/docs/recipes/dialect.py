"""In C++, a sign is changed by a multiplication."""

RECIPE = "A target language"
EDITS = [("kiln/loops/codegen/cpp/dialect.py", '"neg": "-{0}"', '"neg": "{0} * -1"')]


def check() -> None:
    import torch

    import kiln
    from tests.docs.dumped import dumped

    compiled = kiln.compile(lambda x: -x, fullgraph=True)
    x = torch.randn(40)
    torch.testing.assert_close(compiled(x), -x)
    assert "* -1" in dumped("kernels")
