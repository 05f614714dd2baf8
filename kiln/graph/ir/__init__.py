"""The graph IR: nodes, graphs, their text, verifier and interpreter."""

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Alias, Graph, Output, Write
from kiln.graph.ir.interpret import interpret
from kiln.graph.ir.node import Arg, Node, Origin
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.text import graph_text
from kiln.graph.ir.verify import verify

__all__ = [
    "Alias", "Arg", "Builder", "Graph", "Node", "Origin", "Output", "Write", "graph_text", "interpret", "parse_graph",
    "verify",
]  # fmt: skip
