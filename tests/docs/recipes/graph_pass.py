"""x * 2 becomes x + x."""

RECIPE = "A graph pass"
EDITS = [
    (
        "kiln/graph/passes/double.py",
        "",
        '''"""x * 2 becomes x + x."""

from __future__ import annotations

from typing import final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.patterns import RewriteRule, RuleSet, var
from kiln.graph.passes.simplify import Simplify
from kiln.support.records import dataclass

x = var("x")
DOUBLE = RuleSet(RewriteRule("mul_two", x * 2, x + x))


@final
@dataclass(frozen=True)
class Double:
    name: str = "double"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        return Simplify((DOUBLE,)).run(graph, context)
''',
    ),
    (
        "kiln/graph/passes/pipeline.py",
        "from kiln.graph.passes.one_hot import",
        "from kiln.graph.passes.double import Double\nfrom kiln.graph.passes.one_hot import",
    ),
    ("kiln/graph/passes/pipeline.py", "    OneHotSums(),\n", "    Double(),\n    OneHotSums(),\n"),
    (
        "kiln/graph/passes/pipeline.py",
        "check_order(\n    GRAPH_PASSES,\n",
        'check_order(\n    GRAPH_PASSES,\n    before("constant-fold", "double", because="it needs numbers"),\n',
    ),
]


def check() -> None:
    import torch

    import kiln
    from tests.docs.dumped import dumped

    compiled = kiln.compile(lambda x: x * 2, fullgraph=True)
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x), x * 2)
    assert "add(%0, %0)" in dumped("passes")
