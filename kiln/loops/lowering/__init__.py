"""Lowering: graph to loop IR. `lower(graph, target, events) -> LoopProgram`."""

from kiln.loops.lowering import data_movement as moves
from kiln.loops.lowering import elements, library, nested, random, statements, views
from kiln.loops.lowering.column import ELEMENT, STATEMENT
from kiln.loops.lowering.lower import lower

__all__ = ["ELEMENT", "STATEMENT", "elements", "library", "lower", "moves", "nested", "random", "statements", "views"]
