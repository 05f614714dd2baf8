"""Lowering: from the graph of primitive ops to the loop IR.

    %2: f32[4, 8] = add(%0, %1)                a0: f32[4, 8] = input 0
    %3: f32[4, 8] = erf(%2)            =>      a1: f32[8] = input 1
    %4: f32[4] = sum(%3, axes=(1,))            b0: f32[4] = reduction sum over (i1: 8) keeping (i0: 4): erf(add(...))

Values are realised or inlined by the rules of `realise.py`; ops with a rule in the column `element` can be inlined,
those with a rule in `statement` write buffers of their own. A buffer has exactly the layout of its node's spec, so a
view of it that eager would pass to a library kernel is passed as that view.
"""

from __future__ import annotations

from collections import Counter
from typing import final

import torch

from kiln.graph.ir.graph import Graph, Output
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import live_nodes
from kiln.graph.prims.table import Kind
from kiln.loops.body.body import Index, Load, LoopBody
from kiln.loops.body.indexing import Axis
from kiln.loops.lowering.body import Body
from kiln.loops.lowering.checks import checks_first
from kiln.loops.lowering.column import ELEMENT, LOOP_DTYPES, STATEMENT, without_loops
from kiln.loops.lowering.errors import NoLowering, NoMemory
from kiln.loops.lowering.in_place import InPlace
from kiln.loops.lowering.indexing import loop_axes
from kiln.loops.lowering.random import Seeds
from kiln.loops.lowering.realise import choose_realised, results
from kiln.loops.lowering.updates import THROUGH_STORAGE, Updates, find_updates
from kiln.loops.program.analyses import memory_of
from kiln.loops.program.nodes import Buffer, BufferArg, Extern, LoopNode, LoopOutput, LoopProgram, Pointwise
from kiln.support.events import EventSink
from kiln.support.target import Target
from kiln.symbolic import ShapeEnv, Symbol
from kiln.tensor.spec import ScalarSpec, TensorSpec


def lower(graph: Graph, target: Target, events: EventSink, env: ShapeEnv | None = None) -> LoopProgram:
    """The loop program of `graph`; `env` knows which symbolic sizes are equal.

    Raises `NoLowering` (KILN3001) for an op that has no loops.
    """
    return Lowering(graph, target, events, env).run()


@final
class Lowering:
    """State of one lowering: buffers by node, and the loop nodes so far."""

    def __init__(self, graph: Graph, target: Target, events: EventSink, env: ShapeEnv | None = None) -> None:
        self.graph, self.target, self.events, self.env = graph, target, events, env
        self.nodes: list[LoopNode] = []
        self.constants: list[tuple[Buffer, str]] = []
        self.buffers: dict[Node, Buffer] = {}
        self.buffers_by_name: dict[str, Buffer] = {}
        self.results_of_graph = frozenset([base_of(output.value) for output in graph.outputs if output.alias is None])
        self.written = frozenset([write.target for write in graph.writes])
        self._overwritten: set[str] = set()
        """The inputs that the region overwrites."""
        self.given_away: dict[str, str] = {}
        """Memory of the outputs so far, and which buffer each is: what is made in place there is no other output."""
        self.results: dict[Node, tuple[Buffer | None, ...]] = {}
        self.in_place = InPlace(self, Updates())
        self._reasons: Counter[tuple[str, str]] = Counter()  # (op, rule) of each value that got a buffer
        self._count = 0
        self._inlined: dict[str, None] = {}
        self._seeds = Seeds(self)

    def run(self) -> LoopProgram:
        inputs = tuple([self._input(position, node) for position, node in enumerate(self.graph.inputs)])
        live = live_nodes(self.graph.nodes, results(self.graph))
        nodes = checks_first([node for node in self.graph.nodes if node in live], bool(self.graph.writes))
        left_to_aten = without_loops(nodes, self.target)
        self.in_place = InPlace(self, find_updates(self.graph, nodes, left_to_aten, self.env))
        realised = choose_realised(self.graph, nodes, left_to_aten, self.in_place.updates)
        self._seeds.draw(nodes)
        for node in nodes:
            if node in self.buffers:
                continue  # a seed
            if node in self.in_place:
                self.in_place.update(node, origin_text(node))
            elif node in left_to_aten:
                STATEMENT["aten"](self, node)
            elif node in realised:
                self._realise(node, realised[node])
            elif ELEMENT.get(node.op.name) is None or node.op.name in THROUGH_STORAGE:
                self._statement(node)
        self._overwritten = {self.buffers[node].name for node in self.written}
        writes = tuple([self._write(write.target, write.value) for write in self.graph.writes])
        outputs = tuple([self._output(output) for output in self.graph.outputs])
        self.events.emit("realise", reasons=dict(self._reasons))
        return LoopProgram(self.graph.name, inputs, tuple(self.constants), tuple(self.nodes), outputs, writes)

    # For the rules of both columns.

    def element(self, body: Body, node: Node, index: Index, mask: int | None) -> int:
        """The position of one element: loaded where `node` has a buffer, else computed."""
        buffer = self.buffers.get(node)
        if buffer is not None and 0 not in buffer.spec.sizes:
            return body.load(buffer, index, mask)
        if 0 in node.tensor.sizes:
            # There is no element: nothing reads this.
            return body.builder.constant(0, node.tensor.dtype)
        rule = ELEMENT.get(node.op.name)
        if rule is None:
            raise NoMemory(op=node.op.name, spec=node.spec)
        position: int = rule(body, node, index, mask)
        if node.inputs and node.op.kind is not Kind.VIEW:
            self._inlined[origin_text(node)] = None
        return position

    def body(self, axes: tuple[Axis, ...]) -> Body:
        self._inlined.clear()
        return Body(self, axes)

    def loop_origin(self, node: Node) -> str:
        """The user's calls that the body made last computes, in order, and that of `node`, which it is for."""
        calls = {call: None for call in self._inlined if call}
        calls.pop(own := origin_text(node), None)
        return ", ".join([*calls, own]) if own else ", ".join(calls)

    def new_buffer(self, spec: TensorSpec, base: str | None = None) -> Buffer:
        """A buffer for a result; without a `base` it has memory of its own."""
        made = self.buffers_by_name[f"b{self._count}"] = Buffer(f"b{self._count}", spec, base)
        self._count += 1
        return made

    def emit(self, node: LoopNode) -> None:
        self.nodes.append(node)

    def store(self, spec: TensorSpec, node: Node) -> Buffer:
        """A new buffer of `spec` with the elements of `node`."""
        if 0 in spec.sizes:
            return self.empty(spec, node)
        if spec.dtype not in LOOP_DTYPES:
            buffer = self.new_buffer(spec)
            self.emit(Extern((buffer,), "aten.clone.default", (self.argument(node),), origin=origin_text(node)))
            return buffer
        axes = loop_axes(spec.sizes)
        return self._stored(spec, axes, self.full_body(axes, node), node)

    def empty(self, spec: TensorSpec, node: Node) -> Buffer:
        """A new buffer with any contents."""
        buffer = self.new_buffer(spec)
        self.emit(Extern((buffer,), "kiln.empty", (), origin=origin_text(node)))
        return buffer

    def full_body(self, axes: tuple[Axis, ...], node: Node) -> LoopBody:
        """The body that gives each element of `node`."""
        body = self.body(axes)
        return body.finish(self.element(body, node, tuple([axis.symbol for axis in axes]), None))

    def _stored(self, spec: TensorSpec, axes: tuple[Axis, ...], body: LoopBody, node: Node) -> Buffer:
        buffer = self.new_buffer(spec)
        self.emit(Pointwise(buffer, axes, body, self.loop_origin(node)))
        return buffer

    def _same_memory(self, node: Node, axes: tuple[Axis, ...], body: LoopBody) -> Buffer | None:
        """The buffer that `body` would copy exactly, unless the caller must get a copy."""
        if len(body.ops) != 1 or not isinstance(load := body.ops[0], Load) or node in self.results_of_graph:
            return None
        for at, axis in zip(load.index, axes, strict=False):
            if at is not axis.symbol and axis.size != 1:
                return None
        source = self.buffers_by_name[load.buffer]
        if node in self.in_place.updates.kept or self.in_place.changes(source):
            return None
        return source if source.spec == node.tensor else None

    def argument(self, node: Node) -> BufferArg:
        """`node` as an argument of a call: its buffer, or the view of the buffer below."""
        root = node
        while root not in self.buffers and root.op.kind is Kind.VIEW:
            root = root.inputs[0]
        buffer = self.buffers.get(root)
        if buffer is None:
            raise NoMemory(op=root.op.name, spec=root.spec)
        spec = node.tensor
        if root.op.kind is Kind.RANDOM:  # one of several seeds in one memory
            return BufferArg(buffer.name, None)
        if root in self.in_place:
            viewed = self.in_place.layout(node, root)
            if viewed is None:
                raise NoMemory(op=node.op.name, spec=node.spec)
            spec = viewed
        return BufferArg(buffer.name, None if spec == buffer.spec else spec)

    def seed_pair(self, device: torch.device) -> str:
        """The buffer of what this run draws from the generator of the device."""
        return self._seeds.pairs[device].name

    # Nodes.

    def _input(self, position: int, node: Node) -> Buffer | Symbol:
        spec = node.spec
        if isinstance(spec, TensorSpec):
            buffer = self.buffers[node] = self.buffers_by_name[f"a{position}"] = Buffer(f"a{position}", spec)
            return buffer
        if isinstance(spec, ScalarSpec) and isinstance(spec.value, Symbol):
            return spec.value
        raise NoLowering(op="input", problem=f"argument {position} is {spec}, which kernels cannot take")

    def _realise(self, node: Node, rule: str) -> None:
        self._reasons[node.op.name, rule] += 1
        statement = STATEMENT.get(node.op.name)
        if statement is not None:
            statement(self, node)
            return
        if 0 in node.tensor.sizes:
            self.buffers[node] = self.empty(node.tensor, node)
            return
        axes = loop_axes(node.tensor.sizes)
        body = self.full_body(axes, node)
        same = self._same_memory(node, axes, body)
        self.buffers[node] = same or self._stored(node.tensor, axes, body, node)

    def _statement(self, node: Node) -> None:
        rule = STATEMENT.get(node.op.name)
        if rule is None:
            raise NoLowering(op=node.op.name, problem="neither column of lowering has a rule for it")
        rule(self, node)

    # Results.

    def _write(self, target: Node, value: Node) -> tuple[str, str]:
        buffer = self.buffers.get(value)
        if self.in_place.updates.memory.get(value) is target:
            return self.buffers[target].name, self.buffers[target].name
        if buffer is None or self._is_overwritten(buffer):
            buffer = self.store(value.tensor.with_sizes(value.tensor.sizes), value)
        return self.buffers[target].name, buffer.name

    def _output(self, output: Output) -> LoopOutput:
        alias, value = output.alias, output.value
        if alias is not None:
            if alias.of == "input":
                return LoopOutput(alias_input=alias.index, view=alias.view)
            return LoopOutput(alias_output=alias.index, view=alias.view)
        if isinstance(value.spec, ScalarSpec):
            return LoopOutput(value=value.spec.value)
        found = self.argument(value)
        if value.op.kind is Kind.RANDOM:  # seeds share memory, and nobody writes to them
            return LoopOutput(buffer=found.name)
        given = self.given_away.setdefault(memory_of(found.name, self.buffers_by_name), found.name)
        if given != found.name or self._is_overwritten(self.buffers_by_name[found.name]):
            return LoopOutput(buffer=self.store(value.tensor.with_sizes(value.tensor.sizes), value).name)
        return LoopOutput(buffer=found.name, view=found.spec)

    def _is_overwritten(self, buffer: Buffer) -> bool:
        """Does it lie in an input that the region overwrites?"""
        return memory_of(buffer.name, self.buffers_by_name) in self._overwritten


def origin_text(node: Node) -> str:
    """The user's call that made `node`."""
    origin = node.origin
    if origin is None:
        return ""
    return f"{origin.call} backward" if origin.backward else origin.call
