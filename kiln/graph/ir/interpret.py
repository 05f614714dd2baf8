"""Runs a graph eagerly, node by node: the reference for every later stage.

    run = interpret(graph, [x, y])
    run.outputs                     the values of the graph's outputs
    run.written                     (input number, new contents) in the order of `writes`; inputs are unchanged

Each result is compared with its spec: a wrong dtype or size, or a wrong view, raises `WrongPrediction`; fresh memory in
another layout is copied into the predicted one. Symbols are bound from the inputs' sizes. A value is let go behind its
last use, so that a run takes the memory that `Program.peak_memory` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeVar, Union, cast, final

import torch

from kiln.graph.ir.aten_rules import ATEN_RULES
from kiln.graph.ir.errors import WrongPrediction
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Arg, Argument, Attr, Node
from kiln.graph.ir.text import failed_check
from kiln.graph.prims.meta import same_strides
from kiln.graph.prims.table import Kind
from kiln.plan.overloads import WAIT_TENSOR, find_overload, with_numbers, written_arguments
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, Relation, Symbol, evaluate
from kiln.symbolic.relation import relate
from kiln.tensor.spec import ScalarSpec, Spec, TensorSpec

SymbolValues = dict[Symbol, int]
RuntimeValue = Union[torch.Tensor, int, float, bool, None, tuple["RuntimeValue", ...]]  # noqa: UP007
"""What a node evaluates to."""
T = TypeVar("T")


@final
@dataclass(frozen=True)
class GraphRun:
    """The results of running a graph."""

    outputs: tuple[RuntimeValue, ...]
    written: tuple[tuple[int, torch.Tensor], ...]
    symbols: SymbolValues


def interpret(
    graph: Graph,
    inputs: Sequence[RuntimeValue],
    symbols: Mapping[Symbol, int] | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
) -> GraphRun:
    """Run `graph` on `inputs`; `constants` are the tensors of `constant_tensor` nodes by key."""
    walk = Interpreter(dict(symbols or {}), constants or {})
    return walk.run(graph, inputs)


class EagerCall:
    """Runs ATen overloads for the rules of the column `aten`."""

    __slots__ = ("spec",)

    def __init__(self, spec: TensorSpec) -> None:
        self.spec = spec

    def __call__(self, name: str, *args: object, **kwargs: object) -> object:
        if name == "getitem":
            results, index = args
            return cast(Sequence[object], results)[cast(int, index)]
        return find_overload("aten." + name)(*args, **kwargs)


@dataclass
class Interpreter:
    """The state of a run. `keeps_all`: values stay in `values` behind their last use."""

    symbols: SymbolValues
    constants: Mapping[str, torch.Tensor]
    keeps_all: bool = False
    values: dict[Node, RuntimeValue] = field(default_factory=dict)

    def run(self, graph: Graph, inputs: Sequence[RuntimeValue]) -> GraphRun:
        if len(inputs) != len(graph.inputs):
            raise ValueError(f"the graph takes {len(graph.inputs)} inputs, not {len(inputs)}")
        values = self.values
        for node, value in zip(graph.inputs, inputs, strict=True):
            values[node] = value
            self.bind(node.spec, value)
        dying = {} if self.keeps_all else last_uses(graph)
        for node in graph.nodes:
            values[node] = self.checked(node, self.step(node))
            for dead in dying.get(node, ()):
                del values[dead]
        numbers = {node: number for number, node in enumerate(graph.inputs)}
        written = tuple((numbers[write.target], cast(torch.Tensor, values[write.value])) for write in graph.writes)
        return GraphRun(tuple(values[output.value] for output in graph.outputs), written, self.symbols)

    def step(self, node: Node) -> RuntimeValue:
        """The value of a node."""
        inputs = [self.values[value] for value in node.inputs]
        walker = WALKERS.get(node.op.name)
        if walker is not None:
            return walker(self, node, inputs)
        attrs = {key: self.concrete(value) for key, value in node.attrs.items()}
        spec = node.spec
        if isinstance(spec, TensorSpec) and node.op.name == "clone":
            spec = spec.with_view(self.numbers(spec.sizes), self.numbers(spec.strides), 0)
        return cast(RuntimeValue, ATEN_RULES[node.op.name](EagerCall(cast(TensorSpec, spec)), *inputs, **attrs))

    def concrete(self, value: Attr) -> Attr:
        """An attribute with symbols replaced by numbers."""
        if isinstance(value, tuple):
            return tuple([self.concrete(part) for part in value])
        return evaluate(value, self.symbols) if isinstance(value, Expr) else value

    def numbers(self, values: tuple[Int, ...]) -> tuple[int, ...]:
        return tuple([evaluate(value, self.symbols) if isinstance(value, Expr) else value for value in values])

    def bind(self, spec: Spec | None, value: RuntimeValue) -> None:
        """Learn the symbols that `value` determines: sizes, strides, offsets, scalars."""
        if isinstance(spec, tuple) and isinstance(value, Sequence):
            for part, result in zip(spec, value, strict=True):
                self.bind(part, result)
        elif isinstance(spec, ScalarSpec):
            if isinstance(spec.value, Symbol):
                self.symbols.setdefault(spec.value, cast(int, value))
        elif isinstance(spec, TensorSpec) and isinstance(value, torch.Tensor):
            expected = (*spec.sizes, *spec.strides, spec.offset)
            actual = (*value.shape, *value.stride(), value.storage_offset())
            for size, number in zip(expected, actual, strict=True):
                if isinstance(size, Symbol):
                    self.symbols.setdefault(size, int(number))

    def checked(self, node: Node, value: RuntimeValue) -> RuntimeValue:
        """`value` in the layout of its spec."""
        self.bind(node.spec, value)
        if isinstance(node.spec, tuple):
            parts = zip(node.spec, cast(Sequence[RuntimeValue], value), strict=True)
            return tuple(self.fitted(node, part, result) for part, result in parts)
        return self.fitted(node, node.spec, value)

    def fitted(self, node: Node, spec: TensorSpec | ScalarSpec | None, value: RuntimeValue) -> RuntimeValue:
        if not isinstance(spec, TensorSpec):
            return value
        assert isinstance(value, torch.Tensor)
        sizes, strides = self.numbers(spec.sizes), self.numbers(spec.strides)
        same = tuple(value.shape) == sizes and value.dtype == spec.dtype
        if same and (value.numel() == 0 or same_strides(value.stride(), strides, sizes)):
            return value
        if not same or node.op.kind is Kind.VIEW:
            actual = TensorSpec(
                value.dtype, tuple(value.shape), tuple(value.stride()), int(value.storage_offset()), value.device
            )
            raise WrongPrediction(op=node.op.name, actual=actual, expected=spec)
        return torch.empty_strided(sizes, strides, dtype=spec.dtype, device=value.device).copy_(value)


def last_uses(graph: Graph) -> dict[Node, list[Node]]:
    """The values that no later node and no result reads, by the node behind which they die."""
    last: dict[Node, Node] = {}
    for node in graph.nodes:
        for value in (node, *node.inputs):
            last[value] = node
    kept = set(graph.roots())
    dying: dict[Node, list[Node]] = {}
    for value, node in last.items():
        if value not in kept:
            dying.setdefault(node, []).append(value)
    return dying


def fill_template(value: Attr, inputs: Sequence[T], concrete: Callable[[Attr], T]) -> T:
    """An argument template with its inputs put in; tuples become lists."""
    if isinstance(value, Arg):
        return inputs[value.index]
    if isinstance(value, tuple):
        return [fill_template(part, inputs, concrete) for part in value]  # type: ignore[return-value]
    return concrete(value)


def node_arguments(node: Node, inputs: Sequence[Argument]) -> tuple[list[Argument], dict[str, Argument]]:
    """The arguments of a library op on other inputs."""

    def unchanged(value: Attr) -> Argument:
        return value

    args = [fill_template(part, inputs, unchanged) for part in node.attrs["args"]]
    return args, {key: fill_template(part, inputs, unchanged) for key, part in node.attrs["kwargs"]}


Values = list[RuntimeValue]


def _run_library(walk: Interpreter, node: Node, inputs: Values) -> RuntimeValue:
    attrs, given = node.attrs, cast(list[object], inputs)
    args = [fill_template(part, given, walk.concrete) for part in attrs["args"]]
    kwargs = {key: fill_template(part, given, walk.concrete) for key, part in attrs["kwargs"]}
    overload, written = find_overload(attrs["target"]), written_arguments(attrs["target"])
    args, kwargs = with_numbers(attrs["target"], args, kwargs)
    if written:
        return _run_mutating(overload, args, kwargs, written)
    result: RuntimeValue | list[RuntimeValue] = overload(*args, **kwargs)
    return tuple(result) if isinstance(result, list) else result


def _run_mutating(
    overload: Callable[..., object], args: list[object], kwargs: dict[str, object], written: frozenset[int | str]
) -> RuntimeValue:
    """Its results, then the new values of what it writes to: copies of the arguments."""
    args = [copied(arg) if place in written else arg for place, arg in enumerate(args)]
    kwargs = {name: copied(arg) if name in written else arg for name, arg in kwargs.items()}
    result = overload(*args, **kwargs)
    results = () if result is None else result if isinstance(result, tuple) else (result,)
    changed = [*(args[place] for place in range(len(args)) if place in written)]
    changed += [value for name, value in kwargs.items() if name in written]
    return cast(RuntimeValue, (*results, *flat(changed)))


def copied(value: object) -> object:
    """A copy of a tensor, or of the tensors in a list."""
    if isinstance(value, list):
        return [copied(part) for part in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def flat(values: Iterable[object]) -> list[object]:
    """The tensors among `values`, and in the lists among them."""
    found: list[object] = []
    for value in values:
        found += flat(value) if isinstance(value, list) else [value] if isinstance(value, torch.Tensor) else []
    return found


def _run_scalar_tensor(walk: Interpreter, node: Node, inputs: Values) -> RuntimeValue:
    made: torch.Tensor = torch.tensor(inputs[0], dtype=node.attrs["dtype"], device=node.attrs["device"])
    return made


def _nested(walk: Interpreter, graph: Graph, inputs: Iterable[RuntimeValue]) -> tuple[RuntimeValue, ...]:
    return Interpreter(dict(walk.symbols), walk.constants).run(graph, list(inputs)).outputs


def copies(values: Values) -> tuple[RuntimeValue, ...]:
    return cast(tuple[RuntimeValue, ...], tuple(map(copied, values)))


def _run_while(walk: Interpreter, node: Node, inputs: Values) -> RuntimeValue:
    count = len(node.attrs["body"].outputs)
    state, rest = copies(inputs[:count]), inputs[count:]
    while bool(_nested(walk, node.attrs["test"], (*state, *rest))[0]):
        state = _nested(walk, node.attrs["body"], (*state, *rest))
    return state


def _run_scan(walk: Interpreter, node: Node, inputs: Values) -> RuntimeValue:
    carried, end = node.attrs["carried"], node.attrs["carried"] + node.attrs["rows"]
    state, rest = copies(inputs[:carried]), inputs[end:]
    rows = cast(list[torch.Tensor], inputs[carried:end])
    stacks: list[list[torch.Tensor]] = [[] for _ in node.attrs["body"].outputs[carried:]]
    for turn in range(len(rows[0])):
        results = _nested(walk, node.attrs["body"], (*state, *[row[turn] for row in rows], *rest))
        state = results[:carried]
        for stack, result in zip(stacks, results[carried:], strict=True):
            stack.append(cast(torch.Tensor, result))
    if not len(rows[0]):
        return (*state, *[_without_rows(walk, spec) for spec in cast(tuple[TensorSpec, ...], node.spec)[carried:]])
    return (*state, *[torch.stack(stack) for stack in stacks])


def _without_rows(walk: Interpreter, spec: TensorSpec) -> torch.Tensor:
    return torch.empty(walk.numbers(spec.sizes), dtype=spec.dtype, device=spec.device)


def _run_local_scalar(walk: Interpreter, node: Node, inputs: Values) -> RuntimeValue:
    value: RuntimeValue = cast(torch.Tensor, inputs[0]).item()
    walk.bind(node.spec, value)
    for kind, difference in node.attrs["checks"]:
        relation = relate(kind, difference)
        if isinstance(relation, Relation) and not relation.evaluate(walk.symbols):
            raise RuntimeError(failed_check(node, relation))
    return value


def _run_random(walk: Interpreter, node: Node, inputs: Values) -> RuntimeValue:
    """From torch's generator: eager's numbers, which no seed gives again."""
    if node.inputs[0].op.kind is not Kind.RANDOM:
        raise NotImplementedError("random numbers of another graph, drawn again from their seed")
    attrs = {key: walk.concrete(value) for key, value in node.attrs.items()}
    return cast(RuntimeValue, ATEN_RULES["random"](EagerCall(node.tensor), *inputs, **attrs))


WALKERS: dict[str, Callable[[Interpreter, Node, Values], RuntimeValue]] = {
    "aten": _run_library,
    "opaque": _run_library,
    "item": lambda walk, node, inputs: cast(Sequence[RuntimeValue], inputs[0])[node.attrs["index"]],
    "constant_tensor": lambda walk, node, inputs: walk.constants[node.attrs["key"]],
    "scalar_tensor": _run_scalar_tensor,
    "random": _run_random,
    "cond": lambda walk, node, inputs: _nested(walk, node.attrs["true" if inputs[0] else "false"], inputs[1:]),
    "while_loop": _run_while,
    "scan": _run_scan,
    "region": lambda walk, node, inputs: _nested(walk, node.attrs["body"], inputs),
    "local_scalar": _run_local_scalar,
    "wait": lambda walk, node, inputs: cast(torch.Tensor, find_overload(WAIT_TENSOR)(inputs[0])),
}
