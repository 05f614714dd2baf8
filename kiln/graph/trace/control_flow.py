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
from kiln.graph.prims.meta.create import scan_meta
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
Strides = tuple[Int, ...]


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
    record = {"cond": cond, "while_loop": while_loop, "scan": scan}[target.kind]
    return record(recorder, scope, target, cast(Sequence[FakeTensor], args))


# The logs on fresh fakes.


@final
@dataclass
class Traced:
    """A nested log that was recorded: its nodes, the values of its outputs, and which of them have gradients."""

    nested: Nested
    outputs: list[Node]
    gradients: list[bool]


def traced(
    recorder: Calls,
    log: NestedLog,
    inputs: Sequence[Node],
    gradients: Sequence[bool],
    *,
    packed: bool = False,
    kept: int = 0,
) -> Traced:
    """Record `log` on `inputs`; `gradients`: which of them require gradients. `packed`: its outputs are contiguous.

    The first `kept` inputs are outputs, too.
    """
    with nested(recorder, inputs) as made:
        fakes = arguments(recorder, inputs, gradients)
        results = run_log(recorder, log, fakes)
        values = [*[recorder.node_of(result) for result in results], *inputs[:kept]]
        outputs = made.fresh(values, [dense(value.tensor) for value in values] if packed else None)
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


def require_same_outputs(recorder: Calls, left: Sequence[Node], right: Sequence[Node]) -> None:
    simplify = recorder.env.simplify
    for a, b in zip(left, right, strict=True):
        x, y = a.tensor, b.tensor
        same_sizes = [*map(simplify, x.sizes)] == [*map(simplify, y.sizes)]
        if not same_sizes or (x.dtype, x.device) != (y.dtype, y.device):
            raise NotNested(f"its results differ: {x} and {y}")
        if not same_strides([*map(simplify, x.strides)], [*map(simplify, y.strides)], x.sizes):
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
    require_same_outputs(recorder, *[branch.outputs for branch in branches])
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


def dense(spec: TensorSpec) -> Strides:
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
    pairs = zip(found, leaves, strict=True)
    made = [recorder.call(torch.zeros_like, (leaf,), {}) if grad is None else grad for grad, leaf in pairs]
    return cast(list[torch.Tensor], made)


# Loops


def while_loop(
    recorder: Calls, scope: Scope, target: ControlFlow, args: Sequence[FakeTensor]
) -> tuple[FakeTensor, ...]:
    if is_differentiated(args):
        raise NotNested("its gradients would need all turns")
    origin, carried = recorder.emit.origin, target.carried
    values = [*states(recorder, args[:carried]), *operands(recorder, args[carried:])]
    inputs = [inputs_like(values, "state") for _ in target.logs]
    with scope():
        test = traced(recorder, target.logs[0], inputs[0], ())
        body = traced(recorder, target.logs[1], inputs[1], (), packed=True)
    require_same_outputs(recorder, values[:carried], body.outputs)
    recorder.emit.origin = origin
    outside = outside_values([test, body])
    attrs: dict[str, Graph | int] = {
        name: part.nested.graph(name, part.outputs, outside) for name, part in (("test", test), ("body", body))
    }
    return tuple(results_of(recorder, "while_loop", [*values, *outside], attrs))


def states(recorder: Calls, fakes: Sequence[FakeTensor]) -> list[Node]:
    """Carried values, in the layout of every later turn: dense, from the start of their memory."""
    return [state(recorder, value) for value in operands(recorder, fakes)]


def state(recorder: Calls, value: Node) -> Node:
    spec, strides = value.tensor, dense(value.tensor)
    if spec.offset == 0 and same_strides(spec.strides, strides, spec.sizes):
        return value
    return recorder.emit.node("clone", value, strides=strides)


def scan(recorder: Calls, scope: Scope, target: ControlFlow, args: Sequence[FakeTensor]) -> tuple[FakeTensor, ...]:
    origin, carried, end = recorder.emit.origin, target.carried, target.carried + target.rows
    values = [*states(recorder, args[:carried]), *operands(recorder, args[carried:])]
    differentiated = is_differentiated(args)
    needs = [differentiated and (fake.requires_grad or (n < carried and is_real(fake))) for n, fake in enumerate(args)]
    inputs = turn_inputs(values, carried, end)
    with scope():
        body = traced(recorder, target.logs[0], inputs, needs, packed=True, kept=carried if differentiated else 0)
    require_same_outputs(recorder, inputs[:carried], body.outputs[:carried])
    recorder.emit.origin = origin
    results = emit_scan(recorder, values, body, carried, target.rows)
    count = len(body.gradients)
    if not any(body.gradients):
        return tuple(results[:count])
    if draws_random(Graph((), body.nested.nodes, ())):
        raise NotNested("it draws random numbers, which the backward would draw again")
    before = [recorder.node_of(fake) for fake in results[count:]]
    backward = ScanBackward(recorder, scope, target, values, needs, before, body.gradients)
    leaves = [fake for fake, need in zip(args, needs, strict=True) if need and fake.requires_grad]
    wanted = [fake.requires_grad for fake, need in zip(args, needs, strict=True) if need]
    plain = [number for number, gradient in enumerate(body.gradients) if not gradient]

    def gradients_of_leaves(grads: tuple[torch.Tensor | None, ...]) -> list[torch.Tensor | None]:
        found = backward(grads)
        return [grad for grad, leaf in zip(found, wanted, strict=True) if leaf]

    return cast(tuple[FakeTensor, ...], attach(leaves, results[:count], plain, gradients_of_leaves))


def is_real(fake: FakeTensor) -> bool:
    """Whether it has a dtype with gradients."""
    return fake.is_floating_point() or fake.is_complex()


def turn_inputs(values: Sequence[Node], carried: int, end: int) -> list[Node]:
    """Inputs of the body: carried values, a row of each tensor of rows, and the rest."""
    inputs = inputs_like(values, "operand")
    for number in range(carried, end):
        spec = values[number].tensor
        row = spec.with_view(spec.sizes[1:], spec.strides[1:], 0)
        inputs[number] = input_node(number, f"row_{number - carried}", row)
    return inputs


def emit_scan(recorder: Calls, values: Sequence[Node], body: Traced, carried: int, rows: int) -> list[FakeTensor]:
    outside = outside_values([body])
    graph = body.nested.graph("body", body.outputs, outside)
    attrs: dict[str, Graph | int] = {"body": graph, "carried": carried, "rows": rows}
    given = tuple([*values, *outside])
    spec = scan_meta(recorder.emit.oracle, *[value.spec for value in given], body=graph, carried=carried, rows=rows)
    made = recorder.emit.add(PRIMS["scan"], given, attrs, spec)
    parts = cast(tuple[TensorSpec, ...], spec)
    return [recorder.fake_of(recorder.emit.add(ITEM, (made,), {"index": n}, part)) for n, part in enumerate(parts)]


@final
@dataclass(frozen=True, eq=False)
class ScanBackward:
    """The gradients of the arguments that need them, as a scan from the last turn to the first.

    It carries the gradients of the carried values and sums those of the captured ones. Its rows are what each turn got
    (`before` has the carried values), and the gradients of its stacked results.
    """

    recorder: Calls
    scope: Scope
    target: ControlFlow
    values: Sequence[Node]
    needs: Sequence[bool]
    before: Sequence[Node]
    gradients: Sequence[bool]

    def __call__(self, grads: tuple[torch.Tensor | None, ...]) -> Sequence[torch.Tensor | None]:
        recorder, carried, end = self.recorder, self.target.carried, self.target.carried + self.target.rows
        given = [self.like(n, grad) for n, grad in enumerate(grads)]
        moving = [n for n in range(carried) if self.needs[n]]
        summed = [n for n in range(end, len(self.values)) if self.needs[n]]
        stacked = [n for n in range(carried, len(grads)) if given[n] is not None]
        origin, enabled = recorder.emit.origin, torch.is_grad_enabled()
        try:
            with self.scope():
                first = [given[n] or self.zeros(self.values[n]) for n in moving]
                first += [self.zeros(self.values[n]) for n in summed]
                turns = [*self.before, *self.values[carried:end], *[given[n] for n in stacked]]
                rows = [self.backwards(node) for node in turns if node is not None]
                carries = [state(recorder, node) for node in first]
                values = [*carries, *rows, *self.values[end:]]
                torch._C._set_grad_enabled(True)
                body = self.turn(values, moving, summed, stacked)
                torch._C._set_grad_enabled(False)
                recorder.emit.origin = origin
                made = emit_scan(recorder, values, body, len(carries), len(rows))
                wanted = [n for n in range(carried, end) if self.needs[n]]
                flipped = [recorder.fake_of(self.backwards(recorder.node_of(fake))) for fake in made[len(carries) :]]
        finally:
            torch._C._set_grad_enabled(enabled)
        recorder.emit.origin = origin
        found = dict(zip([*moving, *summed, *wanted], [*made[: len(carries)], *flipped], strict=True))
        return [found[n] for n in sorted(found)]

    def like(self, number: int, grad: torch.Tensor | None) -> Node | None:
        if grad is None or not self.gradients[number]:
            return None
        return operands(self.recorder, [cast(FakeTensor, grad)])[0]

    def zeros(self, value: Node) -> Node:
        return self.made(torch.zeros_like, value)

    def backwards(self, value: Node) -> Node:
        """With its rows in the other order."""
        return self.made(torch.flip, value, [0])

    def made(self, function: Target, value: Node, *args: object) -> Node:
        result = self.recorder.call(function, (self.recorder.fake_of(value), *args), {})
        return self.recorder.node_of(cast(torch.Tensor, result))

    def turn(
        self, values: Sequence[Node], moving: Sequence[int], summed: Sequence[int], stacked: Sequence[int]
    ) -> Traced:
        """One turn: the gradients of what the forward's turn got, from those of what it returned."""
        recorder, carried, end = self.recorder, self.target.carried, self.target.carried + self.target.rows
        count = len(moving) + len(summed)
        first = count + end
        inputs = turn_inputs(values, count, first + len(stacked))
        with nested(recorder, inputs) as made:
            own = [*inputs[count:first], *inputs[first + len(stacked) :]]
            fakes = arguments(recorder, own, self.needs)
            results = run_log(recorder, self.target.logs[0], fakes)
            tangents = [*inputs[: len(moving)], *inputs[first : first + len(stacked)]]
            given = dict(zip([*moving, *stacked], tangents, strict=True))
            roots = [(results[n], recorder.fake_of(node)) for n, node in given.items() if results[n].requires_grad]
            numbers = [n for n, need in enumerate(self.needs) if need]
            found = dict(zip(numbers, gradients(recorder, [fakes[n] for n in numbers], roots), strict=True))
            sums = [
                recorder.call(torch.add, (recorder.fake_of(before), found[n]), {})
                for n, before in zip(summed, inputs[len(moving) : count], strict=True)
            ]
            outputs = [*[found[n] for n in moving], *sums, *[found[n] for n in numbers if carried <= n < end]]
            nodes = [recorder.node_of(cast(torch.Tensor, output)) for output in outputs]
            fresh = made.fresh(nodes, [dense(node.tensor) for node in nodes])
        return Traced(made, fresh, [])
