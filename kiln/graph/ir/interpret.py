"""Runs a graph eagerly, node by node: the meaning that every later stage is compared with.

    run = interpret(graph, [x, y])
    run.outputs                     the values of the graph's outputs
    run.written                     (input number, new contents) in the order of `writes`; inputs stay as they are

Each result is compared with its spec: a wrong dtype or size raises `WrongPrediction`, so does a wrong view;
another layout of fresh memory is copied into the predicted one. SymbolValues are bound from the inputs' sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from kiln.graph.ir.aten_rules import ATEN_RULES
from kiln.graph.ir.errors import WrongPrediction
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Arg, Node
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import find_overload
from kiln.symbolic import Expr, Relation, Symbol, evaluate
from kiln.symbolic.relation import relate
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec

SymbolValues = dict[Symbol, int]


@final
@dataclass(frozen=True)
class GraphRun:
    """What a run of a graph gave."""

    outputs: tuple[Any, ...]
    written: tuple[tuple[int, torch.Tensor], ...]
    symbols: SymbolValues


def interpret(
    graph: Graph,
    inputs: Sequence[Any],
    symbols: Mapping[Symbol, int] | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
) -> GraphRun:
    """GraphRun `graph` on `inputs`; `constants` are the tensors of `constant_tensor` nodes by key."""
    walk = Interpreter(dict(symbols or {}), constants or {})
    return walk.run(graph, inputs)


class EagerCall:
    """Runs ATen overloads for the rules of the column `aten`."""

    __slots__ = ("spec",)

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    def __call__(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "getitem":
            return args[0][args[1]]
        return find_overload("aten." + name)(*args, **kwargs)


@dataclass
class Interpreter:
    """The state of one run."""

    symbols: SymbolValues
    constants: Mapping[str, torch.Tensor]
    values: dict[Node, Any] = field(default_factory=dict)

    def run(self, graph: Graph, inputs: Sequence[Any]) -> GraphRun:
        if len(inputs) != len(graph.inputs):
            raise ValueError(f"the graph takes {len(graph.inputs)} inputs, not {len(inputs)}")
        values = self.values
        for node, value in zip(graph.inputs, inputs, strict=True):
            values[node] = value
            self.bind(node.spec, value)
        for node in graph.nodes:
            values[node] = self.checked(node, self.step(node))
        places = {node: i for i, node in enumerate(graph.inputs)}
        written = tuple((places[write.target], values[write.value]) for write in graph.writes)
        return GraphRun(tuple(values[output.value] for output in graph.outputs), written, self.symbols)

    def step(self, node: Node) -> Any:
        """The value of one node."""
        inputs = [self.values[one] for one in node.inputs]
        walker = WALKERS.get(node.op.name)
        if walker is not None:
            return walker(self, node, inputs)
        attrs = {key: self.concrete(value) for key, value in node.attrs.items()}
        spec = node.spec
        if isinstance(spec, TensorSpec) and node.op.name == "clone":
            spec = spec.with_view(self.concrete(spec.sizes), self.concrete(spec.strides), 0)
        return ATEN_RULES[node.op.name](EagerCall(spec), *inputs, **attrs)

    def concrete(self, value: Any) -> Any:
        """An attribute with its symbols replaced by numbers."""
        if isinstance(value, tuple):
            return tuple([self.concrete(one) for one in value])
        return evaluate(value, self.symbols) if isinstance(value, Expr) else value

    def bind(self, spec: Spec | None, value: Any) -> None:
        """Learn the symbols that `value` gives: sizes, strides, offsets, scalars."""
        if isinstance(spec, tuple):
            for part, one in zip(spec, value, strict=True):
                self.bind(part, one)
        elif isinstance(spec, ScalarSpec):
            if isinstance(spec.value, Symbol):
                self.symbols.setdefault(spec.value, value)
        elif isinstance(spec, TensorSpec) and isinstance(value, torch.Tensor):
            expected = (*spec.sizes, *spec.strides, spec.offset)
            for one, number in zip(expected, (*value.shape, *value.stride(), value.storage_offset()), strict=True):
                if isinstance(one, Symbol):
                    self.symbols.setdefault(one, number)

    def checked(self, node: Node, value: Any) -> Any:
        """`value` as its spec says."""
        self.bind(node.spec, value)
        if isinstance(node.spec, tuple):
            parts = zip(node.spec, value, strict=True)
            return tuple(self.fitted(node, part, one) for part, one in parts)
        return self.fitted(node, node.spec, value)

    def fitted(self, node: Node, spec: TensorSpec | ScalarSpec | None, value: Any) -> Any:
        if not isinstance(spec, TensorSpec):
            return value
        sizes, strides = self.concrete(spec.sizes), self.concrete(spec.strides)
        same = tuple(value.shape) == sizes and value.dtype == spec.dtype
        if same and (value.stride() == strides or value.numel() == 0 or _same_strides(value, strides)):
            return value
        if not same or node.op.kind is Kind.VIEW:
            actual = TensorSpec(
                value.dtype, tuple(value.shape), tuple(value.stride()), value.storage_offset(), value.device
            )
            raise WrongPrediction(op=node.op.name, actual=actual, expected=spec)
        return torch.empty_strided(sizes, strides, dtype=spec.dtype, device=value.device).copy_(value)


def _same_strides(value: torch.Tensor, strides: tuple[int, ...]) -> bool:
    """Nothing depends on the stride of a size-1 dimension."""
    return all(a == b or size == 1 for a, b, size in zip(value.stride(), strides, value.shape, strict=True))


def fill_template(value: Any, inputs: Sequence[Any], concrete: Callable[[Any], Any]) -> Any:
    """An argument template with its inputs put in."""
    if isinstance(value, Arg):
        return inputs[value.index]
    if isinstance(value, tuple):
        return [fill_template(one, inputs, concrete) for one in value]
    return concrete(value)


def _run_library(walk: Interpreter, node: Node, inputs: list[Any]) -> Any:
    attrs = node.attrs
    args = [fill_template(one, inputs, walk.concrete) for one in attrs["args"]]
    kwargs = {key: fill_template(one, inputs, walk.concrete) for key, one in attrs["kwargs"]}
    result = find_overload(attrs["target"])(*args, **kwargs)
    return tuple(result) if isinstance(result, list) else result


def _run_item(walk: Interpreter, node: Node, inputs: list[Any]) -> Any:
    return inputs[0][node.attrs["index"]]


def _run_constant_tensor(walk: Interpreter, node: Node, inputs: list[Any]) -> Any:
    return walk.constants[node.attrs["key"]]


def _run_scalar_tensor(walk: Interpreter, node: Node, inputs: list[Any]) -> Any:
    return torch.tensor(inputs[0], dtype=node.attrs["dtype"], device=node.attrs["device"])


def _nested(walk: Interpreter, graph: Graph, inputs: Iterable[Any]) -> tuple[Any, ...]:
    return Interpreter(dict(walk.symbols), walk.constants).run(graph, list(inputs)).outputs


def _run_cond(walk: Interpreter, node: Node, inputs: list[Any]) -> Any:
    return _nested(walk, node.attrs["true" if bool(inputs[0]) else "false"], inputs[1:])


def _run_while(walk: Interpreter, node: Node, inputs: list[Any]) -> Any:
    state = tuple(inputs)
    while bool(_nested(walk, node.attrs["test"], state)[0]):
        state = _nested(walk, node.attrs["body"], state)
    return state


def _run_region(walk: Interpreter, node: Node, inputs: list[Any]) -> Any:
    return _nested(walk, node.attrs["body"], inputs)


def _run_local_scalar(run: Interpreter, node: Node, inputs: list[Any]) -> Any:
    value = inputs[0].item()
    run.bind(node.spec, value)
    for kind, difference in node.attrs["checks"]:
        relation = relate(kind, difference)
        if isinstance(relation, Relation) and not relation.evaluate(run.symbols):
            raise RuntimeError(f"{relation} does not hold")
    return value


WALKERS: dict[str, Callable[[Interpreter, Node, list[Any]], Any]] = {
    "aten": _run_library,
    "opaque": _run_library,
    "item": _run_item,
    "constant_tensor": _run_constant_tensor,
    "scalar_tensor": _run_scalar_tensor,
    "cond": _run_cond,
    "while_loop": _run_while,
    "region": _run_region,
    "local_scalar": _run_local_scalar,
}
