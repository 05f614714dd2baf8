"""The dispatch mode that records: every ATen op below autograd becomes primitive nodes.

    aten.add_(v, 1)     =>     nodes of `aten.add`, then a write to the view of v

A handler is made once per overload (`resolve`), from the first of these that applies:
a special handler, a view rule, a mutation rule, a decomposition, a library rule; for an in-place or `out=`
overload the functional one and a write; the composite kernel run under the mode; a predicted or probed
opaque step; else a graph break with a code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from kiln.graph.ir.node import Node
from kiln.graph.ops import Emit
from kiln.graph.trace.constants import Constants
from kiln.graph.trace.fake import FakeTensor, make_fake, make_symbolic_fake
from kiln.graph.trace.functionalise import Functionaliser, refuse_overlap
from kiln.graph.trace.storage_view import StorageView, new_storage
from kiln.graph.trace.symbols import TraceSymbols, is_symbolic
from kiln.symbolic import Expr
from kiln.symbolic.node import from_sym
from kiln.tensor.spec import TensorSpec

Handler = Callable[["RecordingMode", OpOverload, tuple[Any, ...], dict[str, Any]], Any]
Resolver = Callable[[OpOverload], Handler]


@final
class RecordingMode(TorchDispatchMode):
    """Records while it is entered; keeps nothing of a call but nodes and views."""

    def __init__(self, emit: Emit, constants: Constants, resolve: Resolver, symbols: TraceSymbols) -> None:
        super().__init__()
        self.symbols = symbols
        self.emit = emit
        self.memory = Functionaliser(emit)
        self.constants = constants
        self.resolve = resolve
        self.mutations = 0
        self.symbolic = False
        self.autocast = False
        """Is the call made under autocast? torch's own flags are off where this mode looks."""
        self._handlers: dict[int, Handler] = {}  # by identity: overloads live for ever, and hashing one is slow

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else torch wraps the method below and imports its own compiler."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        handler = self._handlers.get(id(func))
        if handler is None:
            handler = self._handlers[id(func)] = self.resolve(func)
        return handler(self, func, args, kwargs or {})

    # Fakes to nodes and back.

    def view_of(self, tensor: torch.Tensor) -> StorageView:
        """Where a tensor is; a real one is a constant of the graph."""
        if type(tensor) is FakeTensor:
            return tensor.storage_view
        return self.constants.bake(self.emit, tensor)

    def values(self, arguments: Iterable[Any]) -> list[Any]:
        """`value` of each; the common kinds without a call."""
        made: list[Any] = []
        for one in arguments:
            kind = type(one)
            if kind is FakeTensor:
                view = one.storage_view
                made.append(view.node if view.version == view.storage.version else self.memory.read(view))
            elif kind in _PLAIN:
                made.append(one)
            else:
                made.append(self.value(one))
        return made

    def value(self, argument: Any) -> Any:
        """An argument as rules take it: nodes for tensors, `Int` for sizes."""
        kind = type(argument)
        if kind is FakeTensor:
            return self.memory.read(argument.storage_view)
        if kind in _PLAIN:
            return argument
        if kind is list or kind is tuple:
            return self.values(argument)
        if kind is torch.SymInt:
            return from_sym(argument)
        if kind is torch.SymFloat:
            return argument.node.value
        if isinstance(argument, torch.Tensor):
            return self.memory.read(self.view_of(argument))
        return argument

    def fake(self, view: StorageView, requires_grad: bool = False) -> FakeTensor:
        """A fake tensor at `view`."""
        spec = view.spec
        if self.symbolic and (is_symbolic(spec.sizes) or is_symbolic(spec.strides) or isinstance(spec.offset, Expr)):
            return make_symbolic_fake(view, self.symbols, requires_grad)
        return make_fake(view, requires_grad)

    def wrap(self, result: Any) -> Any:
        """Fresh fakes for the nodes that a rule gave."""
        if type(result) is Node:
            return self.fake(new_storage(result)) if type(result.spec) is TensorSpec else result
        if isinstance(result, list | tuple):
            return type(result)([self.wrap(one) for one in result])
        return self.symbols.sym(result) if isinstance(result, Expr) else result

    def write(self, target: torch.Tensor, value: Node, op: OpOverload, *, uniform: bool = False) -> None:
        """New contents; `uniform` ones may go to elements that are one another."""
        view = self.view_of(target)
        if not uniform:
            refuse_overlap(view.spec)
        self.mutations += 1
        self.memory.write(view, value, str(op))


_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})
