"""Control flow operators in a recording: the nested logs run again on fakes of their own, into nested graphs.

    ControlFlow("cond", (true, false))(p, x)      %3: (f32[4],) = cond(%0, %1, true=@0, false=@1)
                                                      @0 = graph(%0: f32[4] "operand_0"): ...
                                                      @1 = graph(%0: f32[4] "operand_0"): ...
                                                  %4: f32[4] = item(%3, index=0)

`cond.py` has the branch, this file the loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, final

import torch

from kiln.graph.ir.node import Attr, Node
from kiln.graph.prims.meta.create import scan_meta
from kiln.graph.prims.rows import PRIMS
from kiln.graph.trace.cond import cond
from kiln.graph.trace.custom_function import attach
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import ControlFlow, Target
from kiln.graph.trace.nested_graphs import NotNested, draws_random, input_node, nested
from kiln.graph.trace.nested_logs import (
    ITEM,
    Calls,
    Scope,
    Traced,
    arguments,
    dense,
    gradients,
    inputs_like,
    is_differentiated,
    is_real,
    operands,
    outside_values,
    refuse_second_derivative,
    require_same_outputs,
    results_of,
    run_log,
    state,
    states,
    traced,
)
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec


def record_control_flow(
    recorder: Calls, scope: Scope, target: ControlFlow, args: Sequence[object]
) -> tuple[FakeTensor, ...]:
    """Record a call; runs under the recording mode."""
    record = {"cond": cond, "while_loop": while_loop, "scan": scan}[target.kind]
    return record(recorder, scope, target, cast(Sequence[FakeTensor], args))


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
        body = traced(recorder, target.logs[1], inputs[1], (), packed=True, reads_sizes=True)
    require_same_outputs(recorder, values[:carried], body.outputs)
    recorder.emit.origin = origin
    outside = outside_values([test, body])
    attrs: dict[str, Attr] = {
        name: part.nested.graph(name, part.outputs, outside) for name, part in (("test", test), ("body", body))
    }
    return tuple(results_of(recorder, "while_loop", [*values, *outside], attrs))


def scan(recorder: Calls, scope: Scope, target: ControlFlow, args: Sequence[FakeTensor]) -> tuple[FakeTensor, ...]:
    origin, carried, end = recorder.emit.origin, target.carried, target.carried + target.rows
    values = [*states(recorder, args[:carried]), *operands(recorder, args[carried:])]
    differentiated = is_differentiated(args)
    needs = [differentiated and (fake.requires_grad or (n < carried and is_real(fake))) for n, fake in enumerate(args)]
    inputs = turn_inputs(values, carried, end)
    with scope():
        kept = carried if differentiated else 0
        body = traced(recorder, target.logs[0], inputs, needs, packed=True, kept=kept, reads_sizes=True)
    require_same_outputs(recorder, inputs[:carried], body.outputs[:carried])
    recorder.emit.origin = origin
    results = emit_scan(recorder, values, body, carried, target.rows)
    count = len(body.gradients)
    if not differentiated:
        return tuple(results)
    if draws_random(body.nested.nodes):
        raise NotNested("it draws random numbers, which the backward would draw again")
    before = [recorder.node_of(fake) for fake in results[count:]]
    backward = ScanBackward(recorder, scope, target, values, needs, before, body.gradients)
    leaves = [fake for fake, need in zip(args, needs, strict=True) if need and fake.requires_grad]
    wanted = [fake.requires_grad for fake, need in zip(args, needs, strict=True) if need]

    def gradients_of_leaves(grads: tuple[torch.Tensor | None, ...]) -> list[torch.Tensor | None]:
        found = backward(grads)
        return [grad for grad, leaf in zip(found, wanted, strict=True) if leaf]

    plain = [number for number, result in enumerate(results[:count]) if not is_real(result)]
    return cast(tuple[FakeTensor, ...], attach(recorder.held, leaves, results[:count], plain, gradients_of_leaves))


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
    attrs: dict[str, Attr] = {"body": graph, "carried": carried, "rows": rows}
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
        refuse_second_derivative("scan")
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
            results = run_log(recorder, self.target.logs[0], fakes, sizes=made.sizes)
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
        return Traced(made, fresh)
