"""Arithmetic operations of a library call, by the rules of the graph IR (`graph/ir/flops.py`).

extern aten.mm.default(a: f32[64, 32], b: f32[32, 8])      32768
"""

from __future__ import annotations

from collections.abc import Mapping

from kiln.graph.ir.flops import node_flops
from kiln.graph.ir.node import Arg, Attr, Node
from kiln.graph.prims.rows import PRIMS
from kiln.loops.program.nodes import Buffer, BufferArg, Extern
from kiln.symbolic import Int
from kiln.tensor.spec import Spec


def call_flops(call: Extern, buffers: Mapping[str, Buffer]) -> Int:
    inputs: list[Node] = []

    def filled(value: object) -> Attr:
        if isinstance(value, BufferArg):
            inputs.append(Node(PRIMS["input"], (), {"name": value.name}, value.spec or buffers[value.name].spec))
            return Arg(len(inputs) - 1)
        if isinstance(value, tuple | list):
            return tuple(map(filled, value))
        return value  # type: ignore[return-value]

    args = tuple(map(filled, call.args))
    kwargs = tuple([(name, filled(value)) for name, value in call.kwargs])
    specs: tuple[Spec | None, ...] = tuple([None if out is None else out.spec for out in call.outs])
    attrs: dict[str, Attr] = {"target": call.target, "args": args, "kwargs": kwargs}
    spec = specs[0] if len(specs) == 1 and specs[0] is not None else specs
    return node_flops(Node(PRIMS["aten"], tuple(inputs), attrs, spec))  # type: ignore[arg-type]
