"""Logs of torch calls that run again on fakes of their own, into nested graphs: what the control flow operators share.

    traced(recorder, log, inputs, gradients)        runs the calls of `log` on fakes of `inputs`, recorded apart
    gradients(recorder, leaves, roots)              the engine on such fakes

`control_flow.py` has the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import field
from typing import Protocol, cast, final

import torch

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Attr, Node
from kiln.graph.ir.rewrite import symbols_in, symbols_read
from kiln.graph.ops.breaks import UnsupportedOp
from kiln.graph.prims.meta import same_strides
from kiln.graph.prims.rows import PRIMS
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import NestedLog, Target, TorchCall, leaves
from kiln.graph.trace.mode import RecordingMode
from kiln.graph.trace.nested_graphs import Nested, NotNested, Surroundings, input_node, nested
from kiln.graph.trace.successors import Successors
from kiln.runtime.eager_replay import SETTERS
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic import Int, Symbol
from kiln.symbolic.node import from_sym
from kiln.symbolic.values import Real
from kiln.tensor.spec import TensorSpec

Scope = Callable[[], AbstractContextManager[None]]
"""Calls within are no entries of the log; the mode is off between them."""
_run_backward = torch.autograd.Variable._execution_engine.run_backward
ITEM = PRIMS["item"]
Strides = tuple[Int, ...]
Finish = Callable[[list[FakeTensor]], list[FakeTensor]]


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
    @property
    def held(self) -> list[object]: ...
    @property
    def is_differentiating(self) -> bool: ...

    may_be_absent: bool

    def node_of(self, fake: torch.Tensor) -> Node: ...
    def fake_of(self, node: Node) -> FakeTensor: ...


class WritesArgument(NotNested):
    """A branch or body changes a tensor from outside in place."""


@final
@dataclass
class Traced:
    """A nested log that was recorded: its nodes and the values of its outputs; of `fakes`, `results` that may have
    gradients."""

    nested: Nested
    outputs: list[Node]
    fakes: list[FakeTensor] = field(default_factory=list)
    results: list[FakeTensor] = field(default_factory=list)

    @property
    def gradients(self) -> list[bool]:
        return [result.requires_grad for result in self.results]


def traced(
    recorder: Calls,
    log: NestedLog,
    inputs: Sequence[Node],
    gradients: Sequence[bool],
    *,
    packed: bool = False,
    kept: int = 0,
    changes: Sequence[int] = (),
    reads_sizes: bool = False,
    finish: Finish | None = None,
) -> Traced:
    """Record `log` on `inputs`; `gradients`: which of them require gradients. `packed`: its outputs are contiguous.

    The first `kept` inputs are outputs, too, and so are the contents of those that it changes in place. With
    `reads_sizes`, sizes in it may depend on data. `finish` makes the results of those of the log.
    """
    with nested(recorder, inputs) as made:
        fakes = arguments(recorder, inputs, gradients)
        results = run_log(recorder, log, fakes, changes, made.sizes if reads_sizes else None)
        results = results if finish is None else finish(results)
        values = [*map(recorder.node_of, results), *inputs[:kept], *[recorder.node_of(fakes[n]) for n in changes]]
        outputs = made.fresh(values, [dense(value.tensor) for value in values] if packed else None)
    return Traced(made, outputs, fakes, results)


def arguments(recorder: Calls, inputs: Sequence[Node], gradients: Sequence[bool]) -> list[FakeTensor]:
    fakes = [recorder.fake_of(node) for node in inputs]
    for fake, gradient in zip(fakes, gradients, strict=False):
        if gradient:
            fake.requires_grad_()
    return fakes


def run_log(
    recorder: Calls,
    log: NestedLog,
    fakes: Sequence[FakeTensor],
    changes: Sequence[int] = (),
    sizes: set[Symbol] | None = None,
) -> list[FakeTensor]:
    """The outputs of `log` on other arguments, of which it must not change others than `changes`.

    `sizes` gets the symbols of sizes that depend on data and that the calls read; None: there must be none.
    """
    successors = Successors()
    for old, new in zip(log.arguments, fakes, strict=False):
        successors.add(old, new)
    enabled, outer = torch.is_grad_enabled(), recorder._mode.repeated
    try:
        for call in log.calls:
            if call.kind == "setstate":
                (value,) = call.args
                SETTERS[str(call.target)](*(value if isinstance(value, tuple) else (value,)))
                continue
            args, kwargs = successors.of(call.args), successors.of(call.kwargs)
            if sizes is not None and recorder.env.unbacked:
                repeated = recorder._mode.repeated = sizes_made(recorder, call)
                sizes.update(repeated)
            result = recorder.call(call.target, args, kwargs, stack=call.stack)
            successors.add(call.result, result)
            if isinstance(call.result, torch.SymFloat) and isinstance(result, torch.SymFloat):
                read_again(recorder, call.result.node.value, result.node.value)
    finally:
        recorder._mode.repeated = outer
        torch._C._set_grad_enabled(enabled)
    if any(fake.storage_view.storage.version for n, fake in enumerate(fakes) if n not in changes):
        raise WritesArgument("it changes a tensor from outside in place")
    return [successors.of(output) for output in log.outputs]


def read_again(recorder: Calls, old: Real, new: Real) -> None:
    """A float that the calls of a log have read of a tensor is from now on what the repeated call has read."""
    found = recorder.emit.givens
    found.update({before: found[now] for before, now in zip(old.givens(), new.givens(), strict=True)})


def sizes_made(recorder: Calls, call: TorchCall) -> list[Symbol]:
    """The symbols that a call has read on the host, and that are free now that its log has left the recording."""
    made = new_symbols(call)
    found = [symbol for symbol in recorder.env.unbacked if symbol in made]
    return [symbol for symbol in found if symbol not in symbols_read(recorder.nodes)] if found else []


def new_symbols(call: TorchCall) -> frozenset[Symbol]:
    """Those that a call has made: numbers from data."""
    return symbols_of_fakes(call.result) - symbols_of_fakes([call.args, call.kwargs])


def symbols_of_fakes(value: object) -> frozenset[Symbol]:
    """The symbols in the sizes of tensors, and in numbers."""
    specs = [leaf.storage_view.spec for leaf in leaves(value) if type(leaf) is FakeTensor]
    numbers = [from_sym(leaf) for leaf in leaves(value) if isinstance(leaf, torch.SymInt)]
    return frozenset().union(*map(symbols_in, (*specs, *numbers)))


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


def results_of(recorder: Calls, name: str, inputs: Sequence[Node], attrs: dict[str, Attr]) -> list[FakeTensor]:
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


def refuse_second_derivative(op: str) -> None:
    """In a backward: its nested graph has no connection to what it is computed from."""
    if torch.is_grad_enabled():
        raise UnsupportedOp(op=op, reason="its gradients are to be differentiated again")


def is_differentiated(fakes: Sequence[FakeTensor]) -> bool:
    return torch.is_grad_enabled() and any(fake.requires_grad for fake in fakes)


def is_real(fake: FakeTensor) -> bool:
    """Whether it has a dtype with gradients."""
    return fake.is_floating_point() or fake.is_complex()


def states(recorder: Calls, fakes: Sequence[FakeTensor]) -> list[Node]:
    """Carried values, in the layout of every later turn: dense, from the start of their memory."""
    return [state(recorder, value) for value in operands(recorder, fakes)]


def state(recorder: Calls, value: Node) -> Node:
    spec, strides = value.tensor, dense(value.tensor)
    if spec.offset == 0 and same_strides(spec.strides, strides, spec.sizes):
        return value
    return recorder.emit.node("clone", value, strides=strides)


def dense(spec: TensorSpec) -> Strides:
    return spec.with_sizes(spec.sizes).strides


def found_gradients(
    recorder: Calls,
    leaves: Sequence[FakeTensor],
    roots: Sequence[tuple[FakeTensor, FakeTensor]],
    *,
    may_be_absent: bool = False,
) -> Sequence[torch.Tensor | None]:
    """The gradient of each leaf; `roots` are outputs with their tangents."""
    if not roots:
        return [None] * len(leaves)
    outputs, tangents = zip(*roots, strict=True)
    outer, recorder.may_be_absent = recorder.may_be_absent, may_be_absent
    with recorder._mode:
        found: Sequence[torch.Tensor | None] = _run_backward(
            outputs, tangents, True, False, tuple(leaves), allow_unreachable=True, accumulate_grad=False
        )
    recorder.may_be_absent = outer
    return found


def gradients(
    recorder: Calls, leaves: Sequence[FakeTensor], roots: Sequence[tuple[FakeTensor, FakeTensor]]
) -> list[torch.Tensor]:
    """Zeros where no root depends on a leaf."""
    pairs = zip(found_gradients(recorder, leaves, roots), leaves, strict=True)
    return [zeros_like(recorder, leaf) if grad is None else grad for grad, leaf in pairs]


def zeros_like(recorder: Calls, leaf: FakeTensor) -> torch.Tensor:
    return cast(torch.Tensor, recorder.call(torch.zeros_like, (leaf,), {}))
