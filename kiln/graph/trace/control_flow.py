"""Control flow operators in a recording: the nested logs run again on fakes of their own, into nested graphs.

    ControlFlow("cond", (true, false))(p, x)      %3: (f32[4],) = cond(%0, %1, true=@0, false=@1)
                                                      @0 = graph(%0: f32[4] "operand_0"): ...
                                                      @1 = graph(%0: f32[4] "operand_0"): ...
                                                  %4: f32[4] = item(%3, index=0)

The gradient of `cond` is another `cond`, whose branches compute their forward again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol, cast, final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.prims.meta import same_strides
from kiln.graph.prims.rows import PRIMS
from kiln.graph.trace.custom_function import attach
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import ControlFlow, NestedLog, Target
from kiln.graph.trace.mode import RecordingMode
from kiln.graph.trace.nested_graphs import Nested, NotNested, Surroundings, draws_random, input_node, nested
from kiln.graph.trace.successors import Successors
from kiln.runtime.eager_replay import SETTERS
from kiln.support.location import Location
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec

Scope = Callable[[], AbstractContextManager[None]]
"""Calls within are no entries of the log; the mode is off between them."""
_run_backward = torch.autograd.Variable._execution_engine.run_backward
ITEM = PRIMS["item"]


class RunCall(Protocol):
    def __call__(
        self, target: Target, args: Sequence[object], kwargs: dict[str, object], *, stack: tuple[Location, ...] = ()
    ) -> object: ...


class Calls(Surroundings, Protocol):
    """What the operators need of the recorder."""

    @property
    def _mode(self) -> RecordingMode: ...
    @property
    def call(self) -> RunCall: ...
    def node_of(self, fake: torch.Tensor) -> Node: ...
    def fake_of(self, node: Node) -> FakeTensor: ...


class WritesArgument(NotNested):
    """A branch or body changes a tensor from outside in place."""


def record_control_flow(
    recorder: Calls, scope: Scope, target: ControlFlow, args: Sequence[object]
) -> tuple[FakeTensor, ...]:
    """Record a call; runs under the recording mode."""
    return cond(recorder, scope, target, cast(Sequence[FakeTensor], args))


# The logs on fresh fakes.


@final
@dataclass
class Traced:
    """A nested log that was recorded: its nodes, the values of its outputs, and which of them have gradients."""

    nested: Nested
    outputs: list[Node]
    gradients: list[bool]


def traced(recorder: Calls, log: NestedLog, inputs: Sequence[Node], gradients: Sequence[bool]) -> Traced:
    """Record `log` on `inputs`; `gradients`: which of them require gradients."""
    with nested(recorder, inputs) as made:
        fakes = arguments(recorder, inputs, gradients)
        results = run_log(recorder, log, fakes)
        outputs = made.fresh([recorder.node_of(result) for result in results])
        needing = [result.requires_grad for result in results]
    return Traced(made, outputs, needing)


def arguments(recorder: Calls, inputs: Sequence[Node], gradients: Sequence[bool]) -> list[FakeTensor]:
    fakes = [recorder.fake_of(node) for node in inputs]
    for fake, gradient in zip(fakes, gradients, strict=False):
        if gradient:
            fake.requires_grad_()
    return fakes


def run_log(recorder: Calls, log: NestedLog, fakes: Sequence[FakeTensor]) -> list[FakeTensor]:
    """The outputs of `log` on other arguments, which it must not change."""
    successors = Successors()
    for old, new in zip(log.arguments, fakes, strict=False):
        successors.add(old, new)
    enabled = torch.is_grad_enabled()
    try:
        for call in log.calls:
            if call.kind == "setstate":
                (value,) = call.args
                SETTERS[str(call.target)](*(value if isinstance(value, tuple) else (value,)))
                continue
            args, kwargs = successors.of(call.args), successors.of(call.kwargs)
            successors.add(call.result, recorder.call(call.target, args, kwargs, stack=call.stack))
    finally:
        torch._C._set_grad_enabled(enabled)
    if any(fake.storage_view.storage.version for fake in fakes):
        raise WritesArgument("it changes a tensor from outside in place")
    return [successors.of(output) for output in log.outputs]


def operands(recorder: Calls, fakes: Sequence[FakeTensor]) -> list[Node]:
    """The present values, with eager's strides."""
    values: list[Node] = []
    for fake in fakes:
        value, spec = recorder.node_of(fake), fake.storage_view.spec
        if not same_strides(value.tensor.strides, spec.strides, spec.sizes):
            value = recorder.emit.node("clone", value, strides=spec.strides)
        values.append(value)
    return values


def inputs_like(values: Sequence[Node], name: str) -> list[Node]:
    return [input_node(number, f"{name}_{number}", value.tensor) for number, value in enumerate(values)]


def results_of(recorder: Calls, name: str, inputs: Sequence[Node], attrs: dict[str, Graph | int]) -> list[FakeTensor]:
    """Fakes of the results of a node with nested graphs."""
    graph = next(graph for graph in reversed(attrs.values()) if isinstance(graph, Graph))
    spec = tuple([output.value.tensor for output in graph.outputs])
    made = recorder.emit.add(PRIMS[name], tuple(inputs), attrs, spec)
    return [recorder.fake_of(recorder.emit.add(ITEM, (made,), {"index": n}, part)) for n, part in enumerate(spec)]


def outside_values(branches: Sequence[Traced]) -> list[Node]:
    """What any of them reads from outside, besides its arguments."""
    return list(dict.fromkeys(value for branch in branches for value in branch.nested.outside))


def require_same_outputs(left: Sequence[Node], right: Sequence[Node]) -> None:
    for a, b in zip(left, right, strict=True):
        x, y = a.tensor, b.tensor
        if (x.dtype, x.sizes, x.device) != (y.dtype, y.sizes, y.device):
            raise NotNested(f"its results differ: {x} and {y}")
        if not same_strides(x.strides, y.strides, x.sizes):
            raise NotNested(f"the strides of its results differ: {x} and {y}")


def is_differentiated(fakes: Sequence[FakeTensor]) -> bool:
    return torch.is_grad_enabled() and any(fake.requires_grad for fake in fakes)


# cond


def cond(recorder: Calls, scope: Scope, target: ControlFlow, args: Sequence[FakeTensor]) -> tuple[FakeTensor, ...]:
    origin = recorder.emit.origin
    condition, captured = truth_value(recorder, args[0]), args[1:]
    values = operands(recorder, captured)
    needs = [is_differentiated([fake]) for fake in captured]
    with scope():
        branches = [traced(recorder, log, inputs_like(values, "operand"), needs) for log in target.logs]
    require_same_outputs(*[branch.outputs for branch in branches])
    recorder.emit.origin = origin
    results = emit_cond(recorder, condition, values, branches)
    gradients = [any(pair) for pair in zip(*[branch.gradients for branch in branches], strict=True)]
    if not any(gradients):
        return tuple(results)
    if any(draws_random(Graph((), branch.nested.nodes, ())) for branch in branches):
        raise NotNested("it draws random numbers, which the backward would draw again")
    backward = CondBackward(recorder, scope, target, condition, values, needs)
    leaves = [fake for fake, need in zip(captured, needs, strict=True) if need]
    plain = [number for number, gradient in enumerate(gradients) if not gradient]
    return cast(tuple[FakeTensor, ...], attach(leaves, results, plain, backward))


def truth_value(recorder: Calls, condition: FakeTensor) -> Node:
    """A tensor of one element as a bool of rank 0."""
    node = recorder.node_of(condition)
    if node.tensor.rank:
        node = recorder.emit.node("reshape", node, sizes=())
    return recorder.emit.convert(node, torch.bool)


def emit_cond(recorder: Calls, condition: Node, values: Sequence[Node], branches: Sequence[Traced]) -> list[FakeTensor]:
    """The node, without the operands that neither branch reads."""
    outside = outside_values(branches)
    graphs = [
        branch.nested.graph(name, branch.outputs, outside)
        for name, branch in zip(("true", "false"), branches, strict=True)
    ]
    read = [{value for node in graph.nodes for value in node.inputs} for graph in graphs]
    given = [*values, *outside]
    used = [
        n for n in range(len(given)) if any(graph.inputs[n] in seen for graph, seen in zip(graphs, read, strict=True))
    ]
    graphs = [replace(graph, inputs=renumbered([graph.inputs[n] for n in used])) for graph in graphs]
    return results_of(recorder, "cond", (condition, *[given[n] for n in used]), {"true": graphs[0], "false": graphs[1]})


def renumbered(inputs: Sequence[Node]) -> tuple[Node, ...]:
    for number, node in enumerate(inputs):
        node.attrs = {**node.attrs, "index": number}
    return tuple(inputs)


@final
@dataclass(frozen=True, eq=False)
class CondBackward:
    """The gradients of the captured values that need them, as another `cond`."""

    recorder: Calls
    scope: Scope
    target: ControlFlow
    condition: Node
    values: Sequence[Node]
    needs: Sequence[bool]

    def __call__(self, grads: tuple[torch.Tensor | None, ...]) -> Sequence[torch.Tensor | None]:
        recorder = self.recorder
        given = {number: cast(FakeTensor, grad) for number, grad in enumerate(grads) if grad is not None}
        if not given:
            return [None] * sum(self.needs)
        tangents = operands(recorder, list(given.values()))
        origin, enabled = recorder.emit.origin, torch.is_grad_enabled()
        try:
            with self.scope():
                torch._C._set_grad_enabled(True)
                branches = [self.traced(log, list(given), tangents) for log in self.target.logs]
        finally:
            torch._C._set_grad_enabled(enabled)
        recorder.emit.origin = origin
        return emit_cond(recorder, self.condition, [*self.values, *tangents], branches)

    def traced(self, log: NestedLog, wanted: Sequence[int], tangents: Sequence[Node]) -> Traced:
        recorder = self.recorder
        inputs = [*inputs_like(self.values, "operand"), *inputs_like(tangents, "tangent")]
        with nested(recorder, inputs) as made:
            fakes = arguments(recorder, inputs, self.needs)
            results = run_log(recorder, log, fakes[: len(self.values)])
            leaves = [fake for fake, need in zip(fakes, self.needs, strict=False) if need]
            pairs = zip([results[number] for number in wanted], fakes[len(self.values) :], strict=True)
            found = gradients(recorder, leaves, [pair for pair in pairs if pair[0].requires_grad])
            strides = [dense(leaf.storage_view.spec) for leaf in leaves]
            outputs = made.fresh(map(recorder.node_of, found), strides)
        return Traced(made, outputs, [])


def dense(spec: TensorSpec) -> tuple[Int, ...]:
    return spec.with_sizes(spec.sizes).strides


def gradients(
    recorder: Calls, leaves: Sequence[FakeTensor], roots: Sequence[tuple[FakeTensor, FakeTensor]]
) -> list[torch.Tensor]:
    """The gradient of each leaf, zeros where no root depends on it."""
    found: Sequence[torch.Tensor | None] = [None] * len(leaves)
    if roots:
        outputs, tangents = zip(*roots, strict=True)
        with recorder._mode:
            found = _run_backward(
                outputs, tangents, False, False, tuple(leaves), allow_unreachable=True, accumulate_grad=False
            )
    zeros = [
        recorder.call(torch.zeros_like, (leaf,), {}) if grad is None else grad
        for grad, leaf in zip(found, leaves, strict=True)
    ]
    return cast(list[torch.Tensor], zeros)
