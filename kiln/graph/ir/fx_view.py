"""A graph as a `torch.fx.GraphModule` of ATen overloads: for user backends, export and display.

    %2: f32[4] = add(%0, %1)        =>      add = torch.ops.aten.add.Tensor(x, y)
    sizes=(s0*2, 8)                 =>      sym_size = torch.ops.aten.sym_size.int(x, 0)
                                            mul = operator.mul(sym_size, 2)

The new contents of written inputs follow the outputs, in the order of `writes`. Branches and loops are torch's
higher-order operators, with their graphs as attributes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import final

import torch
import torch.fx
from torch.fx.node import Argument as FxArgument

from kiln.graph.ir.aten_rules import ATEN_RULES
from kiln.graph.ir.fx_module import graph_module
from kiln.graph.ir.fx_sizes import FxSizes
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import fill_template
from kiln.graph.ir.node import Arg, Attr, Node
from kiln.graph.ir.rewrite import symbols_in
from kiln.graph.ir.text import failed_check
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import WAIT_TENSOR, find_overload, number_arguments, written_arguments
from kiln.symbolic import Expr, Symbol
from kiln.symbolic.relation import relate
from kiln.symbolic.values import Real
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec


def fx_view(graph: Graph, constants: Mapping[str, torch.Tensor] | None = None) -> torch.fx.GraphModule:
    """A GraphModule that computes `graph`; nested graphs become submodules."""
    view = FxView(graph, constants or {})
    view.build()
    results = [view.values[output.value] for output in graph.outputs]
    results += [view.values[write.value] for write in graph.writes]
    view.fx.output(tuple(results))
    return graph_module(view.root, view.fx)


class _FxCall:
    """Makes fx nodes for the rules of the column `aten`."""

    __slots__ = ("spec", "view")

    def __init__(self, view: FxView, spec: Spec) -> None:
        self.view, self.spec = view, spec

    def __call__(self, name: str, *args: FxArgument, **kwargs: FxArgument) -> torch.fx.Node:
        target = operator.getitem if name == "getitem" else find_overload("aten." + name)
        return self.view.fx.call_function(target, self.view.sizes.concrete(args), kwargs)  # type: ignore[arg-type]


@final
class FxView:
    """A graph being written as an fx graph; `values` are the fx nodes of its nodes, `sizes` those of its symbols.

    `functional`: operators that write are called by torch's `auto_functionalized`, not on copies.
    """

    def __init__(self, graph: Graph, constants: Mapping[str, torch.Tensor], *, functional: bool = False) -> None:
        self.graph, self.constants, self.functional = graph, constants, functional
        self.fx = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[Node, FxArgument] = {}
        self.sizes = FxSizes(self.fx)

    def build(self, numbers: Sequence[Symbol] = ()) -> None:
        """All nodes but the output; `numbers` are taken after the inputs."""
        for node in self.graph.inputs:
            name = re.sub(r"\W+", "_", str(node.attrs["name"])).strip("_") or "arg"
            self.values[node] = self.fx.placeholder(name if not name[0].isdigit() else f"arg_{name}")
        for number in numbers:
            self.sizes.learn(number, self.fx.placeholder(str(number)))
        for node in self.graph.inputs:
            self.bind(node)
        for node in self.graph.nodes:
            self.values[node] = self.made(node)

    def bind(self, node: Node) -> None:
        """Learn where the symbols of an input's spec can be read."""
        spec, value = node.spec, self.values[node]
        assert isinstance(value, torch.fx.Node)
        if isinstance(spec, ScalarSpec) and isinstance(spec.value, Symbol):
            self.sizes.learn(spec.value, value)
        elif isinstance(spec, TensorSpec):
            for overload, numbers in (("sym_size.int", spec.sizes), ("sym_stride.int", spec.strides)):
                for axis, number in enumerate(numbers):
                    if isinstance(number, Symbol) and number not in self.sizes:
                        self.sizes.learn(
                            number, self.fx.call_function(find_overload(f"aten.{overload}"), (value, axis))
                        )

    def made(self, node: Node) -> FxArgument:
        inputs = [self.values[value] for value in node.inputs]
        attrs = node.attrs
        match node.op.name:
            case "aten" | "opaque":
                fill = partial(self.argument, attrs["target"], inputs)
                args = tuple([fill(place, part) for place, part in enumerate(attrs["args"])])
                kwargs = {name: fill(name, part) for name, part in attrs["kwargs"]}
                if written := written_arguments(attrs["target"]):
                    return self.mutating(attrs["target"], args, kwargs, written)
                return self.fx.call_function(find_overload(attrs["target"]), args, kwargs)
            case "item":
                if isinstance(inputs[0], tuple):
                    part: FxArgument = inputs[0][attrs["index"]]
                    return part
                return self.fx.call_function(operator.getitem, (inputs[0], attrs["index"]))
            case "constant_tensor":
                return self.attribute(self.constants[attrs["key"]])
            case "scalar_tensor":
                target = find_overload("aten.scalar_tensor.default")
                return self.fx.call_function(target, (inputs[0],), dict(attrs))
            case "local_scalar":
                return self.read(node)
            case "wait":
                return self.fx.call_function(find_overload(WAIT_TENSOR), (inputs[0],))
            case "region":
                return self.fx.call_module(self.submodule(fx_view(attrs["body"], self.constants)), tuple(inputs))
            case "cond" | "while_loop" | "scan":
                return self.control_flow(node, inputs)
        concrete = {key: self.sizes.concrete(value) for key, value in attrs.items()}
        return ATEN_RULES[node.op.name](_FxCall(self, node.spec), *inputs, **concrete)  # type: ignore[return-value]

    def control_flow(self, node: Node, inputs: list[FxArgument]) -> torch.fx.Node:
        """The higher-order operator. Sizes that no operand has are operands of their own."""
        attrs = node.attrs
        graphs = [graph for graph in attrs.values() if isinstance(graph, Graph)]
        bound = {number for value in graphs[0].inputs for number in numbers_of(value.spec)}
        missing = sorted(frozenset().union(*map(symbols_in, graphs)) - bound, key=str)
        bodies = [self.nested(graph, missing, graph is attrs.get("test")) for graph in graphs]
        inputs = [*inputs, *map(self.sizes.number, missing)]
        match node.op.name:
            case "cond":
                args: tuple[FxArgument, ...] = (inputs[0], *bodies, tuple(inputs[1:]))
            case "while_loop":
                count = len(attrs["body"].outputs)
                args = (*bodies, tuple(inputs[:count]), tuple(inputs[count:]))
            case _:
                carried, end = attrs["carried"], attrs["carried"] + attrs["rows"]
                args = (*bodies, inputs[:carried], inputs[carried:end], tuple(inputs[end:]))
        return self.fx.call_function(getattr(torch.ops.higher_order, node.op.name), args)

    def nested(self, graph: Graph, numbers: Sequence[Symbol], is_test: bool) -> torch.fx.Node:
        """The attribute with a nested graph, whose results share no memory with others, as torch asks."""
        view = FxView(graph, self.constants, functional=self.functional)
        view.build(numbers)
        results: list[FxArgument] = []
        for output in graph.outputs:
            result = view.values[output.value]
            if result in results or output.value in graph.inputs or output.value.op.kind is Kind.VIEW:
                result = view.fx.call_function(find_overload("aten.clone.default"), (result,))
            results.append(result)
        view.fx.output(results[0] if is_test else tuple(results))
        name = self.submodule(graph_module(view.root, view.fx))
        return self.fx.get_attr(name)

    def argument(self, target: str, inputs: list[FxArgument], place: int | str, template: Attr) -> FxArgument:
        """An argument of a call; of a tensor in the place of a number, its number."""
        value = fill_template(template, inputs, self.sizes.concrete)
        if isinstance(template, Arg) and place in number_arguments(target):
            return self.fx.call_function(find_overload("aten._local_scalar_dense.default"), (value,))
        return value

    def read(self, node: Node) -> torch.fx.Node:
        """The number that a tensor holds, and the checks of it."""
        number = _FxCall(self, node.spec)("_local_scalar_dense.default", self.values[node.inputs[0]])
        assert isinstance(node.spec, ScalarSpec)
        if isinstance(node.spec.value, Expr | Real):
            self.sizes.learn(node.spec.value, number)
        for kind, difference in node.attrs["checks"]:
            holds = self.fx.call_function(getattr(operator, kind), (self.sizes.number(difference), 0))
            message = failed_check(node, relate(kind, difference))
            self.fx.call_function(find_overload("aten._assert_scalar.default"), (holds, message))
        return number

    def mutating(
        self, target: str, args: tuple[FxArgument, ...], kwargs: dict[str, FxArgument], written: frozenset[int | str]
    ) -> FxArgument:
        """Its results, then the copies of arguments that it writes to."""
        overload, copies = find_overload(target), list[torch.fx.Node]()
        count = len(overload._schema.returns)
        if self.functional:
            names = [argument.name for argument in overload._schema.arguments]
            named = {**dict(zip(names, args, strict=False)), **kwargs}
            made = self.fx.call_function(torch.ops.higher_order.auto_functionalized, (overload,), named)
            changed = [name for place, name in enumerate(names) if written & {place, name}]
            parts = [self.fx.call_function(operator.getitem, (made, n)) for n in range(max(count, 1) + len(changed))]
            lists = [(part, named.get(name)) for part, name in zip(parts[-len(changed) :], changed, strict=True)]
            for part, given in lists:
                each = given if isinstance(given, list | tuple) else ()
                copies += [self.fx.call_function(operator.getitem, (part, n)) for n in range(len(each))] or [part]
            return (*parts[:count], *copies)

        def copied(value: FxArgument) -> FxArgument:
            if isinstance(value, list | tuple):
                return [copied(part) for part in value]
            if not isinstance(value, torch.fx.Node):
                return value
            copies.append(self.fx.call_function(find_overload("aten.clone.default"), (value,)))
            return copies[-1]

        given = tuple([copied(arg) if place in written else arg for place, arg in enumerate(args)])
        named = {name: copied(arg) if name in written else arg for name, arg in kwargs.items()}
        made = self.fx.call_function(overload, given, named)
        parts = [made] if count == 1 else [self.fx.call_function(operator.getitem, (made, n)) for n in range(count)]
        return (*parts, *copies)

    def attribute(self, value: torch.Tensor) -> torch.fx.Node:
        name = f"_constant_{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, value)
        return self.fx.get_attr(name)

    def submodule(self, module: torch.fx.GraphModule) -> str:
        name = f"body_{len(list(self.root.children()))}"
        self.root.add_module(name, module)
        return name


def numbers_of(spec: Spec) -> tuple[object, ...]:
    """What `bind` learns from an input with this spec."""
    return (*spec.sizes, *spec.strides) if isinstance(spec, TensorSpec) else (getattr(spec, "value", None),)
