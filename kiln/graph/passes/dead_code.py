"""Removes nodes that no output, write or effect needs.

%2 = add(%0, %1)
%3 = neg(%0)              =>      %2 = add(%0, %1)
return %2                         return %2
"""

from __future__ import annotations

from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.rewrite import without_dead_code
from kiln.graph.passes.manager import PassContext
from kiln.support.records import dataclass


@final
@dataclass(frozen=True)
class DeadCode:
    name: str = "dead-code"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        return without_dead_code(graph)
