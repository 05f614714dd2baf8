"""The cube of a number."""

RECIPE = "A primitive op"
EDITS = [
    (
        "kiln/graph/prims/rows.py",
        '    Prim("copysign", ',
        '    Prim("cube", 1, "x * x * x", POINTWISE, floating=True, flops=2),\n    Prim("copysign", ',
    ),
    (
        "kiln/graph/ir/aten_rules.py",
        '@rule("fma")',
        """@rule("cube")
def cube(call: AtenCaller, x: Any) -> Any:
    return call("mul.Tensor", call("mul.Tensor", x, x), x)


@rule("fma")""",
    ),
    (
        "kiln/loops/body/reference.py",
        'REFERENCE["floor_div"] =',
        'REFERENCE["cube"] = lambda x: x * x * x\nREFERENCE["floor_div"] =',
    ),
    (
        "kiln/loops/codegen/cpp/dialect.py",
        '        "neg": "-{0}",\n',
        '        "neg": "-{0}",\n        "cube": "{0} * {0} * {0}",\n',
    ),
    (
        "kiln/loops/codegen/triton/dialect.py",
        '        "sign": "sign({0})",\n',
        '        "sign": "sign({0})",\n        "cube": "{0} * {0} * {0}",\n',
    ),
    (
        "kiln/graph/ops/pointwise.py",
        "",
        """

@decompose("toy.cube.default")
@elementwise
def cube(e: Emit, x: Node) -> Node:
    return e.pointwise("cube", x)
""",
    ),
]


def check() -> None:
    import torch

    import kiln
    from kiln.graph.ir.aten_rules import ATEN_RULES
    from kiln.graph.prims.meta import CHECKS, META
    from kiln.loops.body.reference import REFERENCE
    from tests.docs.dumped import dumped

    torch.library.define("toy::cube", "(Tensor x) -> Tensor")
    torch.library.impl("toy::cube", "default", lambda x: x * x * x)
    compiled = kiln.compile(lambda x: torch.ops.toy.cube(x) + 1, fullgraph=True)
    x = torch.randn(100)
    torch.testing.assert_close(compiled(x), x**3 + 1)
    assert "cube(%0)" in dumped("passes") and kiln.report_of(compiled).kernels == 1
    assert not (META.gaps() or CHECKS.gaps() or ATEN_RULES.gaps() or REFERENCE.gaps())
