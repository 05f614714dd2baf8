"""The log of torch calls as a `torch.fx` graph, as user backends expect it.

placeholder    a
call_function  abs_1      torch.abs     (a,)
call_method    sum_1      sum           (abs_1,)
output         output                   ((sum_1,),)

A symbolic size is read from the input that has it (`call_method size (a, 0)`); expressions of sizes are computed by
functions of `operator`.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Protocol, cast, runtime_checkable

import torch
import torch.fx
from torch.fx.node import Argument as FxArgument

from kiln.graph.ir.fx_module import graph_module
from kiln.graph.ir.fx_sizes import FxSizes
from kiln.graph.ir.rewrite import symbols_in
from kiln.graph.trace.fake import FakeTensor, is_wrapped
from kiln.graph.trace.log import Configuration, ControlFlow, RegisterHook, TorchCall, leaves
from kiln.runtime.eager_replay import SETTERS
from kiln.runtime.subclasses import plain_tensor
from kiln.symbolic import Expr, Symbol
from kiln.symbolic.env import ShapeGuard
from kiln.symbolic.relation import Relation
from kiln.symbolic.values import Given, Real


@runtime_checkable
class SupportsItem(Protocol):
    """A scalar of NumPy."""

    def item(self) -> int | float | bool | complex: ...


NUMBERS = (torch.SymInt, torch.SymFloat)
PYTHON_DTYPES: dict[object, torch.dtype] = {
    bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128,
}  # fmt: skip
"""Python types as arguments of torch calls: `x.to(bool)`."""
Free = Symbol | Given
"""What an input binds."""


class _TorchGraphBuilder:
    """fx nodes for the values of a log, by the id of the fake."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.root = torch.nn.Module()
        self.values: dict[int, torch.fx.Node] = {}
        self.sizes = FxSizes(self.graph)

    def inputs(self, inputs: Sequence[tuple[str, object]], used: set[int], wanted: set[Free]) -> None:
        """Placeholders of the inputs that are used, or that have a wanted size."""
        bound = {id(fake): [free for free in _bound_by(fake) if free in wanted] for _, fake in inputs}
        missing = wanted - {free for number in used & bound.keys() for free in bound[number]}
        for name, fake in inputs:
            if id(fake) in used or missing.intersection(bound[id(fake)]):
                missing.difference_update(bound[id(fake)])
                self.values[id(fake)] = self.graph.placeholder(name)
        for _, fake in inputs:
            node = self.values.get(id(fake))
            if node is None:
                continue
            if isinstance(fake, torch.SymFloat):
                number = self.values[id(fake)] = self.graph.call_method("item", (node,))
                self.sizes.learn(fake.node.value, number)
                continue
            for free in bound[id(fake)]:
                if free not in self.sizes:
                    self.sizes.learn(cast(Symbol, free), self.size(node, fake, cast(Symbol, free)))

    def without_classes(self, inputs: Sequence[tuple[str, object]], subclasses: Collection[str]) -> None:
        """Plain tensors in place of inputs of subclasses."""
        for name, fake in inputs:
            if name in subclasses and id(fake) in self.values:
                self.values[id(fake)] = self.graph.call_function(plain_tensor, (self.values[id(fake)],))

    def size(self, node: torch.fx.Node, fake: object, symbol: Expr) -> torch.fx.Node:
        if not isinstance(fake, FakeTensor):
            return node
        spec = fake.storage_view.spec
        method, values = ("size", spec.sizes) if symbol in spec.sizes else ("stride", spec.strides)
        return self.graph.call_method(method, (node, values.index(symbol)))

    def argument(self, value: object) -> FxArgument:
        """A value as an fx argument: nodes for fakes and symbolic numbers, containers rebuilt."""
        found = self.values.get(id(value))
        if found is not None:
            return found
        if isinstance(value, list | tuple):
            items = [self.argument(item) for item in value]
            if hasattr(value, "_fields") and not any(isinstance(item, torch.fx.Node) for item in items):
                return self.plain_object(value)  # the code that torch.fx prints has no name for its class
            if hasattr(value, "_fields"):
                return type(value)._make(items)  # type: ignore[union-attr, no-any-return]
            return tuple(items) if type(value) is torch.Size else type(value)(items)
        if isinstance(value, dict):
            return {key: self.argument(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        if isinstance(value, torch.Tensor) and type(value) is not FakeTensor and not is_wrapped(value):
            return self.constant(value)
        if isinstance(value, torch.SymBool):
            return bool(value)
        if type(value).__module__ == "numpy" and isinstance(value, SupportsItem):
            return value.item()  # the code that torch.fx prints has no name for a scalar of NumPy
        if callable(value):
            return self.plain_object(value)
        if isinstance(value, Configuration):
            return self.plain_object(value.value)
        return self.sizes.number(value.node.value if isinstance(value, NUMBERS) else value)

    def plain_object(self, value: object) -> FxArgument:
        """A function or class: the code that torch.fx prints names it as an attribute of the module."""
        if isinstance(value, type) and value in PYTHON_DTYPES:
            return PYTHON_DTYPES[value]
        if isinstance(value, type) and value.__module__.partition(".")[0] == "torch" and "Tensor" in value.__name__:
            return f"{value.__module__}.{value.__name__}"  # `x.type(torch.HalfTensor)`
        known = (*vars(self.root), *self.root._modules)
        name = f"_object_{sum(key.startswith('_object_') for key in known)}"
        setattr(self.root, name, value)
        return self.graph.get_attr(name)

    def constant(self, tensor: torch.Tensor) -> torch.fx.Node:
        name = f"_tensor_constant{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, tensor)
        node = self.values[id(tensor)] = self.graph.get_attr(name)
        return node

    def call(self, call: TorchCall) -> None:
        args = tuple([self.argument(arg) for arg in call.args])
        kwargs = {key: self.argument(value) for key, value in call.kwargs.items()}
        if call.kind == "setstate":
            values = args[0] if isinstance(args[0], tuple) else args
            self.graph.call_function(SETTERS[str(call.target)], values)
            return
        if isinstance(call.target, str):
            node = self.graph.call_method(call.target, args, kwargs)
        elif isinstance(call.target, ControlFlow):
            numbers = tuple([self.sizes.number(value) for value in call.target.numbers])
            node = self.graph.call_function(call.target.run, self.nested_arguments(call.target) + args + numbers)
        else:
            node = self.graph.call_function(plain_function(call.target), args, kwargs)
        self.bind(call.result, node)

    def nested_arguments(self, target: ControlFlow) -> tuple[FxArgument, ...]:
        """Its counts and its nested logs as submodules, which its function takes in front of its arguments."""
        known, names = len(list(self.root.children())), list[str]()
        for number, log in enumerate(target.logs):
            names.append(f"{target.kind}_{known + number}")
            self.root.add_module(names[-1], log.module())
        return (target.carried, target.rows, *map(self.graph.get_attr, names))

    def check(self, relation: Relation) -> None:
        """Raise RuntimeError unless it holds; nothing for what the log has no number of."""
        symbols = sorted(relation.free_symbols(), key=str)
        if all(self.sizes.can_find(symbol) for symbol in symbols):
            for symbol in symbols:
                self.sizes.number(symbol)
            holds = self.graph.call_function(
                getattr(operator, relation.kind), (self.sizes.number(relation.difference), 0)
            )
            self.graph.call_function(torch._assert_scalar, (holds, f"{relation} does not hold"))

    def bind(self, value: object, node: torch.fx.Node) -> None:
        """Remember the node of a result; parts of a container are `getitem`s."""
        if isinstance(value, list | tuple):
            for index, part in enumerate(value):
                self.bind_part(part, node, index)
        elif isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
            self.values[id(value)] = node
            if isinstance(value, NUMBERS) and isinstance(value.node.value, Expr | Real):
                self.sizes.learn(value.node.value, node)
            if isinstance(value, FakeTensor) and not value.is_outer:  # sizes that data decide
                for size in value.storage_view.spec.sizes:
                    if isinstance(size, Expr):
                        self.sizes.offer(size, partial(self.size, node, value, size))

    def bind_part(self, part: object, container: torch.fx.Node, index: int) -> None:
        if isinstance(part, list | tuple | torch.Tensor | torch.SymInt | torch.SymFloat):
            self.bind(part, self.graph.call_function(operator.getitem, (container, index)))


def torch_graph(
    calls: Sequence[TorchCall],
    inputs: Sequence[tuple[str, object]],
    outputs: Sequence[object],
    checks: Sequence[ShapeGuard] = (),
    subclasses: Collection[str] = (),
    all_inputs: bool = False,
    numbers: Sequence[Expr | Real] = (),
) -> torch.fx.GraphModule:
    """A graph module over the inputs that are used, in their order, returning a tuple of the outputs.

    `subclasses`: the names of inputs that are tensors of subclasses. `all_inputs`: unused ones are placeholders, too.
    `numbers` are its last arguments.

    `checks` come last: the calls before them raise what they raise in eager.
    """
    builder = _TorchGraphBuilder()
    used = list(leaves([[(call.args, call.kwargs) for call in calls], list(outputs)]))
    taken = {id(leaf) for leaf in (*used, *([fake for _, fake in inputs] if all_inputs else ()))}
    wanted = {free for value in numbers_in(calls, outputs) if value not in numbers for free in free_in(value)}
    builder.inputs(inputs, taken, wanted)
    builder.without_classes(inputs, subclasses)
    for position, value in enumerate(numbers):
        builder.sizes.learn(value, builder.graph.placeholder(f"number_{position}"))
    for call in calls:
        builder.call(call)
    shown = symbols_shown(calls, inputs) if checks else frozenset()
    for check in checks:
        if shown.issuperset(check.relation.free_symbols()):  # others are sizes that a nested log reads
            builder.check(check.relation)
    builder.graph.output(tuple([builder.argument(output) for output in outputs]))
    _drop_unused_items(builder.graph)
    return graph_module(builder.root, builder.graph)


def symbols_shown(calls: Sequence[TorchCall], inputs: Sequence[tuple[str, object]]) -> frozenset[Symbol]:
    """The symbols in sizes and numbers of the inputs and results of calls."""
    values = [*[fake for _, fake in inputs], *[leaf for call in calls for leaf in leaves(call.result)]]
    specs = [value.storage_view.spec for value in values if isinstance(value, FakeTensor)]
    numbers = [value.node.value for value in values if isinstance(value, NUMBERS)]
    return frozenset().union(
        *map(symbols_in, specs), *[n.free_symbols() for n in numbers if isinstance(n, Expr | Real)]
    )


def numbers_in(calls: Sequence[TorchCall], outputs: Sequence[object] = ()) -> list[Expr | Real]:
    """The symbolic numbers that calls take, or that are outputs, and that they do not make."""
    made = {id(leaf) for call in calls for leaf in leaves(call.result)}
    used = leaves([[(call.args, call.kwargs) for call in calls], list(outputs)])
    taken = [leaf.node.value for leaf in used if isinstance(leaf, NUMBERS) and id(leaf) not in made]
    for call in calls:
        taken += call.target.numbers if isinstance(call.target, ControlFlow) else ()
    return [value for value in dict.fromkeys(taken) if isinstance(value, Expr | Real)]


def free_in(value: Expr | Real) -> Iterable[Free]:
    return [*value.free_symbols(), *(value.givens() if isinstance(value, Real) else ())]


def numbers_from_outside(calls: Sequence[TorchCall], inputs: Sequence[object]) -> list[Expr | Real]:
    """The numbers that calls take and that neither `inputs` nor results of earlier calls determine. Of a formula that
    these determine in part, the others that are in it."""
    bound = {free for value in inputs for free in _bound_by(value)}
    found: dict[Expr | Real, None] = {}
    for call in calls:
        for value in numbers_in([call]):
            free = [*free_in(value)]
            missing = [part for part in free if part not in bound]
            if len(missing) < len(free):
                found.update({as_number(part): None for part in missing})
            elif missing:
                found[value] = None
        bound.update(free for leaf in leaves(call.result) for free in _bound_by(leaf))
    return list(found)


def as_number(free: Free) -> Expr | Real:
    return Real("given", (free,)) if isinstance(free, Given) else free


def plain_function(target: Callable[..., object]) -> Callable[..., object]:
    """fx names functions of torch by their path, which is wrong for a method inherited from a class of torch, and for a
    function in C++ of which `torch` has one in Python of the same name (`block_diag`)."""
    if isinstance(target, types.MethodDescriptorType | types.WrapperDescriptorType):
        name = target.__qualname__
    elif isinstance(target, types.MethodType) or (
        isinstance(target, types.BuiltinMethodType) and isinstance(target.__self__, type)
    ):
        name = f"{getattr(target.__self__, '__qualname__', '')}.apply"
    elif isinstance(getattr(torch, getattr(target, "__name__", ""), target), types.FunctionType) and isinstance(
        target, types.BuiltinFunctionType
    ):
        name = target.__name__
    elif isinstance(target, RegisterHook):
        make = target.make

        def register_hook(tensor: torch.Tensor, *captured: object) -> object:
            return tensor.register_hook(make(*captured))  # type: ignore[no-untyped-call]

        register_hook.__module__, register_hook.__qualname__ = "kiln.functions", "register_hook"
        return register_hook
    else:
        return target

    def apply(*args: object, **kwargs: object) -> object:
        return target(*args, **kwargs)

    apply.__module__, apply.__qualname__ = "kiln.functions", name
    return apply


def _bound_by(fake: object) -> Iterable[Free]:
    """The symbols that an input determines."""
    if isinstance(fake, FakeTensor):
        if fake.is_outer:
            return []
        spec = fake.storage_view.spec
        return [size for size in (*spec.sizes, *spec.strides) if isinstance(size, Symbol)]
    value = fake.node.value if isinstance(fake, NUMBERS) else None
    if isinstance(value, Real):
        return list(value.givens())
    return [value] if isinstance(value, Symbol) else []


def _drop_unused_items(graph: torch.fx.Graph) -> None:
    for node in reversed(graph.nodes):
        if node.target is operator.getitem and not node.users:
            graph.erase_node(node)
