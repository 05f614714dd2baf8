"""The log of torch calls as a `torch.fx` graph, as user backends expect it.

placeholder    a
call_function  abs_1      torch.abs     (a,)
call_method    sum_1      sum           (abs_1,)
output         output                   ((sum_1,),)

A size that is a symbol is asked of the input that has it (`call_method size (a, 0)`); expressions over sizes are
computed by calls of `operator`.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from kiln.graph.ir.fx_module import graph_module
from kiln.graph.ir.fx_sizes import FxSizes
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import TorchCall
from kiln.runtime.eager_replay import SETTERS
from kiln.symbolic import Expr, Symbol
from kiln.symbolic.values import Given, Real

NUMBERS = (torch.SymInt, torch.SymFloat)


class _TorchGraphBuilder:
    """fx nodes for the values of a log, found by the identity of the fake."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[int, Any] = {}
        self.sizes = FxSizes(self.graph)

    def inputs(self, inputs: Sequence[tuple[str, Any]], used: set[int], wanted: set[Symbol | Given]) -> None:
        """Placeholders of the inputs that are used, and where the wanted sizes are read."""
        given = {id(fake): [one for one in _given(fake) if one in wanted] for _, fake in inputs}
        missing = wanted - {one for number in used & given.keys() for one in given[number]}
        for name, fake in inputs:
            if id(fake) in used or missing.intersection(given[id(fake)]):
                missing.difference_update(given[id(fake)])
                self.values[id(fake)] = self.graph.placeholder(name)
        for _, fake in inputs:
            node = self.values.get(id(fake))
            if isinstance(fake, torch.SymFloat) and node is not None:
                number = self.values[id(fake)] = self.graph.call_method("item", (node,))
                self.sizes.learn(fake.node.value, number)
                continue
            for one in given[id(fake)] if node is not None else ():
                if one not in self.sizes:
                    self.sizes.learn(one, self.size(node, fake, one))

    def size(self, node: Any, fake: Any, one: Symbol) -> Any:
        if not isinstance(fake, FakeTensor):
            return node
        spec = fake.storage_view.spec
        method, values = ("size", spec.sizes) if one in spec.sizes else ("stride", spec.strides)
        return self.graph.call_method(method, (node, values.index(one)))

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
        if isinstance(value, torch.SymBool):
            return bool(value)
        return self.sizes.number(value.node.value) if isinstance(value, NUMBERS) else value

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
            node = self.graph.call_function(plain_function(call.target), args, kwargs)
        self.bind(call.result, node)

    def bind(self, value: Any, node: torch.fx.Node) -> None:
        """Remember a result; the parts of a container are `getitem`s."""
        if isinstance(value, list | tuple):
            for index, part in enumerate(value):
                self.bind_part(part, node, index)
        elif isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            self.values[id(value)] = node
            if isinstance(value, NUMBERS) and isinstance(value.node.value, Expr):
                self.sizes.learn(value.node.value, node)

    def bind_part(self, part: Any, whole: torch.fx.Node, index: int) -> None:
        if isinstance(part, list | tuple | torch.Tensor | torch.SymInt | torch.SymFloat):
            item = self.graph.call_function(operator.getitem, (whole, index))
            self.bind(part, item)


def torch_graph(
    calls: Sequence[TorchCall], inputs: Sequence[tuple[str, Any]], outputs: Sequence[Any]
) -> torch.fx.GraphModule:
    """A graph module over the inputs that are used, in their order, returning a tuple of the outputs."""
    builder = _TorchGraphBuilder()
    leaves = _leaves([call.args for call in calls] + [list(call.kwargs.values()) for call in calls] + [list(outputs)])
    made = {id(leaf) for call in calls for leaf in _leaves(call.result)}
    numbers = [leaf.node.value for leaf in leaves if isinstance(leaf, NUMBERS) and id(leaf) not in made]
    wanted: set[Symbol | Given] = set()
    for value in numbers:
        wanted.update(value.free_symbols() if isinstance(value, Expr | Real) else ())
        wanted.update(value.givens() if isinstance(value, Real) else ())
    builder.inputs(inputs, {id(leaf) for leaf in leaves}, wanted)
    for call in calls:
        builder.call(call)
    builder.graph.output(tuple([builder.argument(one) for one in outputs]))
    _drop_unused_items(builder.graph)
    return graph_module(builder.root, builder.graph)


def plain_function(target: Any) -> Any:
    """fx writes what belongs to torch by its name, which is wrong of a method that a class inherits from torch."""
    if not isinstance(target, types.MethodType):
        return target

    def apply(*args: Any) -> Any:
        return target(*args)

    apply.__module__, apply.__qualname__ = "kiln.functions", f"{getattr(target.__self__, '__qualname__', '')}.apply"
    return apply


def _given(fake: Any) -> list[Any]:
    """The symbols that can be read off an input, or the real number that it is."""
    if isinstance(fake, FakeTensor):
        spec = fake.storage_view.spec
        return [one for one in (*spec.sizes, *spec.strides) if isinstance(one, Symbol)]
    value = fake.node.value if isinstance(fake, NUMBERS) else None
    if isinstance(value, Real):
        return list(value.givens())
    return [value] if isinstance(value, Symbol) else []


def _leaves(value: Any) -> list[Any]:
    """Everything in nested containers."""
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _leaves(one)]
    if isinstance(value, dict):
        return _leaves(list(value.values()))
    if isinstance(value, slice):
        return _leaves([value.start, value.stop, value.step])
    return [value]


def _drop_unused_items(graph: torch.fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if node.target is operator.getitem and not node.users:
            graph.erase_node(node)
