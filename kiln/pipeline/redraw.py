"""Random numbers of a region once more, for its second derivative: compiled when the first one is asked for.

redraw(x, weight, seed)   -->   the numbers that the forward drew by this seed, for sizes of x and weight
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from threading import Lock
from typing import TYPE_CHECKING, final

from kiln.pipeline.context import CompileContext
from kiln.runtime.executor import Executable
from kiln.support.late import late
from kiln.support.records import dataclass

if TYPE_CHECKING:
    from kiln.graph.ir.graph import Graph
    from kiln.graph.ir.text import graph_text
    from kiln.pipeline.compiled_plan import compile_plan
    from kiln.pipeline.stages import graph_to_plan
else:
    graph_text = late("kiln.graph.ir.text", "graph_text")
    compile_plan = late("kiln.pipeline.compiled_plan", "compile_plan")
    graph_to_plan = late("kiln.pipeline.stages", "graph_to_plan")


@final
@dataclass
class Redraw:
    """`make_graph`: inputs of the region and seeds -> random numbers (`graph/autograd/partition.py`)."""

    make_graph: Callable[[], Graph]
    context: CompileContext
    run: Executable | None = None
    lock: Lock = field(default_factory=Lock)

    def __call__(self, *values: object) -> tuple[object, ...]:
        with self.lock:
            if self.run is None:
                with self.context.counting(), self.context.events.stage("compile"):
                    plan = graph_to_plan(self.make_graph(), replace(self.context, env=None, offload=None), "redraw")
                    self.run = compile_plan(plan, {}, self.context).executor()
        return self.run(*values)

    def sections(self) -> dict[str, bytes]:
        """What a later process makes this object from."""
        return {"redraw": graph_text(self.make_graph()).encode()}
