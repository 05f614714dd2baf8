"""The recorder: runs torch calls on fake tensors and keeps what they did, on two levels.

    recorder = Recorder(env=env, events=events)
    x = recorder.add_tensor(real, "x", LocalSource("x"))
    y = recorder.call(torch.abs, (x,), {}, stack=(location,))
    trace = recorder.finish([y])

The log of torch calls is one level, the functional graph of primitives the other; each node of the second
knows the call of the first that made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch

from kiln.graph.ir.node import Node, Origin
from kiln.graph.ops import Emit
from kiln.graph.prims.rows import PRIMS
from kiln.graph.prims.spec import TensorSpec
from kiln.graph.trace.constants import Constants, spec_of_real
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.finish import build_graph
from kiln.graph.trace.inputs import SharedMemory, refuse_strange, symbolic_spec
from kiln.graph.trace.known import known_value
from kiln.graph.trace.log import NOWHERE, CallKind, Target, TorchCall, target_name
from kiln.graph.trace.mode import RecordingMode
from kiln.graph.trace.place import fresh_place
from kiln.graph.trace.resolve import resolve
from kiln.graph.trace.symbols import Symbols
from kiln.graph.trace.trace import InputRecord, Trace
from kiln.runtime.guards.source import Source
from kiln.support.events import EventSink
from kiln.support.location import Location
from kiln.symbolic import ShapeEnv
from kiln.symbolic.policy import DimChoice, DimKind

_push, _pop = torch._C._push_on_torch_dispatch_stack, torch._C._pop_torch_dispatch_stack
_run_backward = torch.autograd.Variable._execution_engine.run_backward


@final
class Recorder:
    """One trace. It may be used on after `finish`, to record the backward of what it recorded."""

    def __init__(self, *, env: ShapeEnv, events: EventSink, numerics: str = "fast") -> None:
        self.env = env
        self.events = events
        self.calls: list[TorchCall] = []
        self.inputs: list[InputRecord] = []
        self._symbols = Symbols(env)
        self._emit = Emit(self._symbols, numerics, self._symbols.specialise)
        self._constants = Constants()
        self._mode = RecordingMode(self._emit, self._constants, resolve, self._symbols)
        self._memory = SharedMemory()
        self._by_real: dict[int, InputRecord] = {}

    # Inputs.

    def add_tensor(
        self, real: torch.Tensor, name: str, source: Source, dims: tuple[DimChoice, ...] | None = None
    ) -> torch.Tensor:
        """The fake of an input; the same real tensor gives the same fake."""
        found = self._by_real.get(id(real))
        if found is not None:
            return found.fake  # type: ignore[no-any-return]
        refuse_strange(real, name)
        spec = self._input_spec(real, dims)
        node = self._input_node(name, spec)
        leaf, grad = real.is_leaf, real.requires_grad
        fake = origin = self._mode.fake(self._memory.place(real, node), grad)
        if grad and not leaf:
            fake = self._non_leaf(origin)
        fake.is_input = True
        is_parameter = isinstance(real, torch.nn.Parameter)
        if is_parameter:
            fake._is_param = True
        record = InputRecord(name, source, fake, real, node, spec, leaf, grad, is_parameter, origin)
        self.inputs.append(record)
        self._by_real[id(real)] = record
        return fake

    def _input_spec(self, real: torch.Tensor, dims: tuple[DimChoice, ...] | None) -> TensorSpec:
        """The spec of an input; each dimension that is to be a symbol gets one."""
        if dims is None or all(one.kind is DimKind.STATIC for one in dims):
            return spec_of_real(real)
        self._mode.symbolic = True
        return symbolic_spec(self.env, real, dims)

    def _input_node(self, name: str, spec: Any) -> Node:
        return Node(PRIMS["input"], (), {"index": len(self.inputs), "name": name}, spec)

    def _non_leaf(self, origin: FakeTensor) -> FakeTensor:
        """A fake with a history, so that what eager forbids on leaves is allowed on it."""
        with self._mode, torch.enable_grad():
            made: FakeTensor = origin.clone()  # type: ignore[assignment]
        made.place = origin.place
        return made

    def add_constant(self, real: torch.Tensor) -> torch.Tensor:
        """The fake of a tensor whose values are known at compile time."""
        return self._mode.fake(self._constants.place(self._emit, real))

    # Calls.

    def call(
        self, target: Target, args: Sequence[Any], kwargs: dict[str, Any], *, stack: tuple[Location, ...] = ()
    ) -> Any:
        """Run one torch call on fakes. `stack`: the user's lines, the innermost last. A method is named by a string."""
        location = stack[-1] if stack else None
        self._emit.origin = Origin(target_name(target), len(self.calls), location)
        self._symbols.location = location
        mutations = self._mode.mutations
        _push(self._mode)
        try:
            if isinstance(target, str):
                result = getattr(args[0], target)(*args[1:], **kwargs)
            else:
                result = target(*args, **kwargs)
        finally:
            _pop(None)
        kind: CallKind = "method" if isinstance(target, str) else "function"
        effects = self._mode.mutations != mutations
        self.calls.append(
            TorchCall(len(self.calls), kind, target, tuple(args), kwargs, result, location or NOWHERE, stack, effects)
        )
        return result

    def set_state(self, kind: str, value: Any, *, stack: tuple[Location, ...] = ()) -> None:
        """Log a change of mode; grad mode itself is set by the caller around its calls."""
        location = stack[-1] if stack else NOWHERE
        self.calls.append(TorchCall(len(self.calls), "setstate", kind, (value,), {}, None, location, stack))

    def run_backward(
        self, outputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | None]:
        """Gradients of `inputs`, recorded as nodes of the backward direction."""
        self._emit.origin = Origin("backward", len(self.calls), None, backward=True)
        _push(self._mode)
        try:
            grads = _run_backward(
                tuple(outputs),
                tuple(tangents),
                False,
                False,
                tuple(inputs),
                allow_unreachable=True,
                accumulate_grad=False,
            )
        finally:
            _pop(None)
        return list(grads)

    def fake_of(self, node: Node) -> FakeTensor:
        """A fresh fake tensor that holds the value of `node`: a tangent, for one."""
        return self._mode.fake(fresh_place(node))

    # Questions.

    def is_fake(self, value: object) -> bool:
        return type(value) is FakeTensor

    def spec_of(self, fake: torch.Tensor) -> TensorSpec:
        return self._mode.place(fake).spec

    def node_of(self, fake: torch.Tensor) -> Node:
        """The node of the present value."""
        return self._mode.memory.read(self._mode.place(fake))

    def known_value(self, fake: torch.Tensor) -> torch.Tensor | None:
        """The value of a tensor that is computed from constants alone: the same in every call."""
        return known_value(self._emit.nodes, self.node_of(fake), self._constants.tensors)

    def real_of(self, fake: torch.Tensor) -> torch.Tensor | None:
        return next((record.real for record in self.inputs if record.fake is fake), None)

    @property
    def nodes(self) -> list[Node]:
        """All nodes so far, dead ones too."""
        return self._emit.nodes

    # The end.

    def mark(self) -> int:
        return len(self.calls)

    def finish(self, outputs: Sequence[Any]) -> Trace:
        """The trace with these results."""
        self._emit.origin = None
        graph = build_graph(self._mode, self.inputs, list(outputs))
        needs_grad = any(output.requires_grad for output in graph.outputs)
        return Trace(
            list(self.calls), list(self.inputs), graph, list(outputs), self.env, needs_grad, self._constants.tensors
        )
