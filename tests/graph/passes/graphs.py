"""Graphs for tests of passes, as texts."""

from __future__ import annotations

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.parse import parse_graph
from kiln.graph.ir.verify import verify


def graph_of(head: str, *lines: str) -> Graph:
    graph = parse_graph("\n    ".join([f"graph({head}):", *lines]))
    verify(graph, "test")
    return graph
