"""Elements of axis 0 in reverse, by index arithmetic: nothing is copied."""

RECIPE = "A lowering"
EDITS = [
    (
        "kiln/graph/prims/rows.py",
        '    Prim("flip", ',
        '    Prim("mirror", 1, "reversed along axis 0", DATA_MOVEMENT, flops=0),\n    Prim("flip", ',
    ),
    (
        "kiln/graph/prims/meta/data_movement.py",
        '@META("pad")',
        """@META("mirror")
def mirror_meta(oracle: SizeOracle, x: TensorSpec) -> TensorSpec:
    return preserved(oracle, x)


@META("pad")""",
    ),
    ("kiln/graph/prims/meta/checks.py", '("expand", "view", ', '("mirror", "expand", "view", '),
    (
        "kiln/graph/ir/aten_rules.py",
        '@rule("pad")',
        """@rule("mirror")
def mirror(call: AtenCaller, x: Any) -> Any:
    return call("flip.default", x, (0,))


@rule("pad")""",
    ),
    (
        "kiln/loops/lowering/data_movement.py",
        '@ELEMENT("cat")',
        """@ELEMENT("mirror")
def mirror(body: Body, node: Node, index: Index, mask: int | None) -> int:
    (x,) = node.inputs
    return body.element(x, (x.tensor.sizes[0] - 1 - index[0], *index[1:]), mask)


@ELEMENT("cat")""",
    ),
    (
        "kiln/graph/ops/data_movement.py",
        "",
        """

@decompose("toy.mirror.default")
def mirror(e: Emit, x: Node) -> Node:
    return e.node("mirror", x)
""",
    ),
]


def check() -> None:
    import torch

    import kiln

    torch.library.define("toy::mirror", "(Tensor x) -> Tensor")
    torch.library.impl("toy::mirror", "default", lambda x: x.flip(0))
    compiled = kiln.compile(lambda x: torch.ops.toy.mirror(x.exp()) + 1, fullgraph=True)
    x = torch.randn(30, 4)
    torch.testing.assert_close(compiled(x), x.exp().flip(0) + 1)
    assert kiln.report_of(compiled).kernels == 1
