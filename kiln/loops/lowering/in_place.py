"""Lowering of updates in place (`updates.py` says which): parts become loops over views of the memory.

    %3 = slice_scatter(%0, add(%1, 1), axis=0, start=2, stop=4, step=1)

    b0: f32[2, 8 at 16] in a0 = pointwise (i0: 2, i1: 8): add(load a1[i0, i1], 1)

A loop may read the memory that it writes only at the element that it computes; what reads others is computed before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, final

from kiln.graph.ir.node import Node
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.loops.body.analyses import accesses
from kiln.loops.body.body import Index, LoopBody
from kiln.loops.body.indexing import Axis
from kiln.loops.lowering.body import Body
from kiln.loops.lowering.column import STATEMENT
from kiln.loops.lowering.indexing import loop_axes
from kiln.loops.lowering.updates import ELEMENTS, PARTS, Updates, layout_of, part_layout
from kiln.loops.program.analyses import memory_of
from kiln.loops.program.nodes import Buffer, Extern, LoopNode, Pointwise
from kiln.symbolic import Int, ShapeEnv
from kiln.tensor.spec import TensorSpec


class Buffers(Protocol):
    """What lowering knows of buffers, and how it makes them."""

    @property
    def env(self) -> ShapeEnv | None: ...
    @property
    def buffers(self) -> dict[Node, Buffer]: ...
    @property
    def buffers_by_name(self) -> dict[str, Buffer]: ...
    def new_buffer(self, spec: TensorSpec, base: str | None = None) -> Buffer: ...
    def emit(self, node: LoopNode) -> None: ...
    def store(self, spec: TensorSpec, node: Node) -> Buffer: ...
    def full_body(self, axes: tuple[Axis, ...], node: Node) -> LoopBody: ...
    def body(self, axes: tuple[Axis, ...]) -> Body: ...


@final
class InPlace:
    """The updates of one graph, and the buffers whose memory they overwrite."""

    def __init__(self, lowering: Buffers, updates: Updates) -> None:
        self.lowering, self.updates = lowering, updates
        self.oracle = GuardFreeOracle(lowering.env)

    def __contains__(self, node: Node) -> bool:
        return node in self.updates

    def update(self, node: Node, origin: str) -> None:
        """`node` in the memory of the value that it replaces."""
        if node.op.name in PARTS and node not in self.updates.nested:
            self._store_part(node, origin)
        elif node.op.name in ELEMENTS:
            STATEMENT[node.op.name](self.lowering, node)
        buffers = self.lowering.buffers
        if node not in buffers:
            memory, layout = self._memory(node), self.updates.layout[node]
            if layout == memory.spec:
                buffers[node] = memory
            elif node in self.updates.read:
                view = buffers[node] = self.lowering.new_buffer(layout, base=memory.name)
                self.lowering.emit(Extern((view,), "kiln.view", (), origin=origin))

    def target(self, node: Node) -> Buffer | None:
        """Where an update writes: the memory that it is made in, as a view with its layout; None if it is a copy."""
        if node not in self.updates:
            return None
        memory, layout = self._memory(node), self.updates.layout[node]
        return memory if layout == memory.spec else self.lowering.new_buffer(layout, base=memory.name)

    def layout(self, node: Node, root: Node) -> TensorSpec | None:
        """The layout of `node`, a view of the update `root`, in its memory."""
        return layout_of(node, {root: self.updates.layout[root]}, self.oracle)

    def changes(self, buffer: Buffer) -> bool:
        """Is its memory overwritten by an update, before or after?"""
        return self._root(buffer.name) in self._updated()

    @contextmanager
    def apart_from(self, out: Buffer, operands: Sequence[Node], at: Index | None = None) -> Iterator[None]:
        """While a loop is made that writes `out`: operands that read its memory are computed before, to buffers.

        They may read the element that the loop writes: the one `at` the index of the operand.
        """
        memory, buffers = self._root(out.name), self.lowering.buffers
        updated = memory in self._updated()
        reading = [operand for operand in operands if updated and self._reads(operand, memory, out, at)]
        saved = {operand: buffers.get(operand) for operand in reading}
        contiguous = {operand: operand.tensor.with_sizes(operand.tensor.sizes) for operand in reading}
        buffers.update({operand: self.lowering.store(spec, operand) for operand, spec in contiguous.items()})
        yield
        for operand, buffer in saved.items():
            del buffers[operand]
            if buffer is not None:
                buffers[operand] = buffer

    def _store_part(self, node: Node, origin: str) -> None:
        """The new part, stored in its place."""
        part, value = part_layout(self.oracle, node, self.updates.layout[node]), node.inputs[1]
        axes = loop_axes(part.sizes)
        out = self.lowering.new_buffer(part, base=self._memory(node).name)
        with self.apart_from(out, (value,), tuple([axis.symbol for axis in axes])):
            self.lowering.emit(Pointwise(out, axes, self.lowering.full_body(axes, value), origin))

    def _memory(self, node: Node) -> Buffer:
        return self.lowering.buffers[self.updates.memory[node]]

    def _updated(self) -> set[str]:
        made = self.lowering.buffers
        return {made[target].name for target in self.updates.targets if target in made}

    def _root(self, name: str) -> str:
        return memory_of(name, self.lowering.buffers_by_name)

    def _reads(self, node: Node, memory: str, out: Buffer, at: Index | None) -> bool:
        """Does the loop that computes `node` read `memory`, but for the element of `out` at the same index?"""
        known = self.lowering.buffers_by_name
        body = self.lowering.full_body(loop_axes(node.tensor.sizes), node)
        return any(
            self._root(load.buffer) == memory
            and (at is None or _address(known[load.buffer], load.index) != _address(out, at))
            for load in accesses(body)
        )


def _address(buffer: Buffer, index: Index) -> Int:
    """The number of an element of `buffer` in its storage."""
    spec = buffer.spec
    return spec.offset + sum(at * stride for at, stride in zip(index, spec.strides, strict=True))
