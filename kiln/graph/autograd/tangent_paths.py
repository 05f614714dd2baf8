"""Which tangents go through which part of a backward: that of one result needs, and frees, only what it reads.

    y, z = x.exp(), x.sin()         dx = add(mul(dy, %y), mul(dz, cos(%x)))
    y.sum().backward()              reads %y; then z.sum().backward() runs, as in eager

Two tangents that meet before a formula which reads saved values cannot go through it one after the other, unless the
graph is retained: the first frees what eager's node has saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import final

from kiln.graph.autograd.eager_saves import numbers_of
from kiln.graph.ir.node import Node, base_of
from kiln.graph.prims.table import Kind
from kiln.tensor.spec import TensorSpec

Readers = tuple[int, ...] | None
"""Numbers of tangents; None for all."""


@final
class TangentPaths:
    """`depends`: of each node of the backward the tangents that reach it, as bits."""

    def __init__(self, nodes: Sequence[Node], tangents: Sequence[Node], gradients: Sequence[Node]) -> None:
        self.nodes = nodes
        self.gradients = gradients
        self.count = len(tangents)
        self.depends = {tangent: 1 << number for number, tangent in enumerate(tangents)}
        for node in nodes:
            if reached := reduce(or_, [self.depends.get(value, 0) for value in node.inputs], 0):
                self.depends[node] = reached

    def readers(self, values: Sequence[Node]) -> list[Readers]:
        """Of each saved value the tangents whose part of the backward reads it, or what is recomputed from it."""
        every = (1 << self.count) - 1
        saved = set(values)
        needed = {node: every for node in self.gradients if node not in self.depends}
        for node in reversed(self.nodes):
            wanted = self.depends.get(node, 0) or (0 if node in saved else needed.get(node, 0))
            if wanted:
                for value in node.inputs:
                    needed[value] = needed.get(value, 0) | wanted
        found = [needed.get(value, 0) for value in values]
        return [None if read == every else numbers_of(read, self.count) for read in found]

    def ends(self) -> list[Readers]:
        """Of each tangent those that meet it before, or in, a node that reads a value of the forward."""
        met = [0] * self.count
        for node in self.nodes:
            if (tangents := self.depends.get(node)) and any(map(self.is_saved, node.inputs)):
                for number in numbers_of(tangents, self.count):
                    met[number] |= tangents
        return [numbers_of(tangents, self.count) for tangents in met]

    def is_saved(self, value: Node) -> bool:
        is_tensor = isinstance(value.spec, TensorSpec)
        return is_tensor and value not in self.depends and base_of(value).op.kind is not Kind.CREATE
