"""A loop body while its ops are collected from the graph: elements of nodes, computed or loaded.

    body = Body(lowering, axes)
    position = body.element(node, (i0, i1))       inlines `node`, or loads it where it has a buffer
    body.finish(position)

A position is the number of an op in the body. Each (node, index, mask) is computed once, so a value that is used twice
at one point is one op. A mask or condition of None always holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

import torch

from kiln.graph.ir.node import Node
from kiln.graph.prims.rows import PRIMS
from kiln.loops.body.analyses import live_positions
from kiln.loops.body.body import Index, Indirect, LoopBody
from kiln.loops.body.builder import BodyBuilder
from kiln.loops.body.indexing import Axis
from kiln.loops.lowering.indexing import IndexRanges
from kiln.loops.program.nodes import Buffer
from kiln.symbolic import Expr, Int, Relation, ShapeEnv, Symbol, negate, rel_le, rel_lt
from kiln.tensor.spec import TensorSpec

AND, GE, WHERE = PRIMS["bitwise_and"], PRIMS["ge"], PRIMS["where"]


class Elements(Protocol):
    """Supplies what a body does not compute itself."""

    def element(self, body: Body, node: Node, index: Index, mask: int | None) -> int: ...

    def seed_pair(self, device: torch.device) -> str: ...

    @property
    def env(self) -> ShapeEnv | None: ...


@final
class Body:
    """The ops of one loop node over `axes`."""

    def __init__(self, elements: Elements, axes: Sequence[Axis]) -> None:
        self.elements = elements
        self.builder = BodyBuilder()
        self.ranges = IndexRanges(axes)
        self._done: dict[tuple[Node, Index, int | None], int] = {}

    def element(self, node: Node, index: Index, mask: int | None = None) -> int:
        """The position of `node`'s element at `index`."""
        key = (node, index, mask)
        found = self._done.get(key)
        if found is None:
            found = self._done[key] = self.elements.element(self, node, index, mask)
        return found

    def load(self, buffer: Buffer, index: Index, mask: int | None) -> int:
        """The element of `buffer`; the mask is dropped where the index is inside at every point."""
        at = self.simplified(index)
        if mask is not None and all(map(self.ranges.inside, at, buffer.spec.sizes)):
            mask = None
        return self.builder.load(buffer.name, at, buffer.spec.dtype, mask)

    def simplified(self, index: Index) -> Index:
        return tuple([self.ranges.simplify(at) for at in index])

    def indirect(self, operand: int, size: Int) -> Int:
        """The integer at `operand` as part of an index into a dimension of `size`."""
        return self.builder.bind(operand, size)

    def checked(self, value: int, index: Index) -> int:
        """`value`; an `index` on which it does not depend, as in an expanded tensor, is checked all the same."""
        symbols = frozenset().union(*[at.free_symbols() for at in index if isinstance(at, Expr)])
        ops = self.builder.ops
        picked = [position for position, op in enumerate(ops) if isinstance(op, Indirect) and op.symbol in symbols]
        live = live_positions(ops, [value]) if picked else set()
        dtype = ops[value].dtype
        for position in picked:
            if position not in live:  # an index is never negative once it is checked
                zero = self.builder.constant(0, torch.int64)
                inside = self.builder.pointwise(GE, torch.bool, position, zero)
                value = self.choose(dtype, inside, value, self.builder.constant(0, dtype))
        return value

    def test(self, relation: Relation | bool) -> int | None:
        """Place of the truth of `relation`."""
        if self.ranges.always(relation):
            return None
        return self.builder.test(not self.ranges.always(negate(relation)) and relation)

    def within(self, index: Int, low: Int, high: Int) -> int | None:
        """Place of `low <= index < high`."""
        index = self.ranges.simplify(index)
        return self.both(self.test(rel_le(low, index)), self.test(rel_lt(index, high)))

    def choose(self, dtype: torch.dtype, condition: int | None, if_true: int, if_false: int) -> int:
        """Place of `where`."""
        return if_true if condition is None else self.builder.pointwise(WHERE, dtype, condition, if_true, if_false)

    def both(self, *conditions: int | None) -> int | None:
        """Place of the conjunction."""
        result: int | None = None
        for condition in conditions:
            if condition is not None:
                result = condition if result is None else self.builder.pointwise(AND, torch.bool, result, condition)
        return result

    def broadcast_element(self, node: Node, index: Index, sizes: Sequence[Int], mask: int | None) -> int:
        """The element of `node` that is at `index` of the `sizes` it is broadcast to."""
        return self.element(node, broadcast_index(node.tensor, index, sizes, self.elements.env), mask)

    def finish(self, position: int, used: frozenset[Symbol] = frozenset()) -> LoopBody:
        return self.builder.finish(position, used=used)


def broadcast_index(spec: TensorSpec, index: Index, sizes: Sequence[Int], env: ShapeEnv | None = None) -> Index:
    """The index into `spec` at `index` of the `sizes` it is broadcast to: without the leading dimensions that it lacks,
    0 where its size is 1. Where symbolic sizes differ in text, `env` tells whether they are equal."""
    if spec.sizes == sizes:
        return index
    missing = len(index) - len(spec.sizes)
    pairs = zip(spec.sizes, sizes[missing:], index[missing:], strict=True)
    return tuple([_index_below(at, size, full, env) for size, full, at in pairs])


def _index_below(at: Int, size: Int, full: Int, env: ShapeEnv | None) -> Int:
    if size == 1:
        return 0
    if size == full:
        return at
    if env is not None:
        size, full = env.simplify(size), env.simplify(full)
    # Equal or 1, by a guard: the remainder is right for both.
    # Of an empty axis nothing is read, in the loop over it: an index without `at` would be read in front of the loop.
    return 0 if size == 1 else at if size in (full, 0) else at % size
