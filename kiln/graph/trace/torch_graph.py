"""The log of torch calls as a `torch.fx` graph, as user backends expect it.

placeholder    a
call_function  abs_1      torch.abs     (a,)
call_method    sum_1      sum           (abs_1,)
output         output                   ((sum_1,),)
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from kiln.graph.ir.fx_module import graph_module
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import TorchCall
from kiln.graph.trace.replay import SETTERS


class _Builder:
    """fx nodes for the values of a log, found by the identity of the fake."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[int, Any] = {}

    def argument(self, value: Any) -> Any:
        """A value as an fx argument: nodes for fakes and symbolic numbers, containers rebuilt."""
        found = self.values.get(id(value))
        if found is not None:
            return found
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*[self.argument(one) for one in value])
        if isinstance(value, list | tuple):
            return (
                type(value)([self.argument(one) for one in value])
                if type(value) is not torch.Size
                else tuple([self.argument(one) for one in value])
            )
        if isinstance(value, dict):
            return {key: self.argument(one) for key, one in value.items()}
        if isinstance(value, slice):
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        if isinstance(value, torch.Tensor) and type(value) is not FakeTensor:
            return self.constant(value)
        return value

    def constant(self, tensor: torch.Tensor) -> torch.fx.Node:
        name = f"_tensor_constant{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, tensor)
        node = self.values[id(tensor)] = self.graph.get_attr(name)
        return node

    def call(self, call: TorchCall) -> None:
        args = tuple([self.argument(one) for one in call.args])
        kwargs = {key: self.argument(one) for key, one in call.kwargs.items()}
        if call.kind == "setstate":
            values = args[0] if isinstance(args[0], tuple) else args
            self.graph.call_function(SETTERS[str(call.target)], values)
            return
        if isinstance(call.target, str):
            node = self.graph.call_method(call.target, args, kwargs)
        else:
            node = self.graph.call_function(call.target, args, kwargs)
        self.bind(call.result, node)

    def bind(self, value: Any, node: torch.fx.Node) -> None:
        """Remember a result; the parts of a container are `getitem`s."""
        if isinstance(value, list | tuple):
            for index, part in enumerate(value):
                self.bind_part(part, node, index)
        else:
            self.values[id(value)] = node

    def bind_part(self, part: Any, whole: torch.fx.Node, index: int) -> None:
        if isinstance(part, list | tuple | torch.Tensor | torch.SymInt | torch.SymFloat):
            item = self.graph.call_function(operator.getitem, (whole, index))
            self.bind(part, item)


def torch_graph(
    calls: Sequence[TorchCall], inputs: Sequence[tuple[str, Any]], outputs: Sequence[Any]
) -> torch.fx.GraphModule:
    """A graph module over the inputs that are used, in their order, returning a tuple of the outputs."""
    builder = _Builder()
    used = _identities([call.args for call in calls] + [list(call.kwargs.values()) for call in calls] + [list(outputs)])
    for name, fake in inputs:
        if id(fake) in used:
            builder.values[id(fake)] = builder.graph.placeholder(name)
    for call in calls:
        builder.call(call)
    builder.graph.output(tuple([builder.argument(one) for one in outputs]))
    _drop_unused_items(builder.graph)
    return graph_module(builder.root, builder.graph)


def _identities(value: Any) -> set[int]:
    if isinstance(value, list | tuple):
        return set().union(*[_identities(one) for one in value]) if value else set()
    if isinstance(value, dict):
        return _identities(list(value.values()))
    if isinstance(value, slice):
        return _identities([value.start, value.stop, value.step])
    return {id(value)}


def _drop_unused_items(graph: torch.fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if node.target is operator.getitem and not node.users:
            graph.erase_node(node)
