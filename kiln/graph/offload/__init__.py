"""Parts of a graph for another compiler; the rest stays in Kiln's plan.

found = split(graph, backend)             which nodes the backend takes, in how few parts
print(found.text())                       the parts, and why the others stay
with_calls(found, compile_part)           the graph with one call for each part
"""

from kiln.graph.offload.calls import with_calls
from kiln.graph.offload.part import Backend, Direction, GraphBackend, GraphPart, TorchBackend
from kiln.graph.offload.split import Split, split

__all__ = ["Backend", "Direction", "GraphBackend", "GraphPart", "Split", "TorchBackend", "split", "with_calls"]
