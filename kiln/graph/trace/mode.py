"""The dispatch mode that records: every ATen op below autograd becomes primitive nodes.

    aten.add_(v, 1)     =>     nodes of `aten.add`, then a write to the storage view of v

The handler of an overload is resolved once (`resolve.py`), from the first of these that applies: a special
handler; a view, mutation, decomposition or library rule; for in-place and `out=` overloads the functional rule and
a write; the composite kernel, run under the mode; a registered fake or a probe; else a break with a code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from typing import final

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves

from kiln.graph.ir.node import Argument, Node
from kiln.graph.ops import Emit
from kiln.graph.prims.table import Kind
from kiln.graph.trace.constants import Constants
from kiln.graph.trace.fake import FakeTensor, is_apart, make_fake, make_symbolic_fake
from kiln.graph.trace.functionalise import Functionaliser, refuse_overlap
from kiln.graph.trace.storage_view import FakeStorage, StorageView, new_storage, root_of
from kiln.graph.trace.symbols import TraceSymbols, is_symbolic
from kiln.graph.trace.tagged_numbers import with_symbolic_numbers
from kiln.support.dispatch_mode import DispatchMode
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int, Symbol
from kiln.symbolic.generic_layouts import TakenLayouts
from kiln.symbolic.node import from_sym
from kiln.symbolic.tags import Tags
from kiln.symbolic.values import Given, Real
from kiln.tensor.spec import TensorSpec

Args = tuple[object, ...]
Kwargs = dict[str, object]
Handler = Callable[["RecordingMode", OpOverload, Args, Kwargs], object]
Resolver = Callable[[OpOverload], Handler]
SavePolicy = Callable[[OpOverload, Args, Kwargs], bool]
"""Whether a selective checkpoint saves what an operator returns."""


COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default, torch.ops.aten._unsafe_view.default)
"""What composite operators call where they would else return their argument, or a view of it."""


@final
@dataclass(frozen=True, slots=True)
class Conjugate:
    """A conjugate in memory of its own, which in eager is a lazy view of `base`, and the versions of both.

    `same_layout`: whether it has the strides and the offset of that view.
    """

    base: FakeStorage
    made: FakeStorage
    versions: tuple[int, int]
    same_layout: bool

    def is_changed(self) -> bool:
        return (self.base.version, self.made.version) != self.versions


@final
class RecordingMode(DispatchMode):
    """Records while it is entered; of a call it keeps only nodes and storage views."""

    def __init__(self, emit: Emit, constants: Constants, resolve: Resolver, symbols: TraceSymbols) -> None:
        super().__init__()
        self.symbols = symbols
        self.emit = emit
        self.memory = Functionaliser(emit)
        self.constants = constants
        self.resolve = resolve
        self.mutations = 0
        self.taken = TakenLayouts(symbols.env)
        self.versioned: set[int] = set()
        """The memory of which a write has raised the version, by the identity of its first view."""
        self.counted_twice = Counter[int]()
        """How many of the versions of memory fakes count for the side of a branch that changes it less, likewise."""
        self.symbolic = False
        self.autocast = False
        """Whether the call is made under autocast; torch's own flags are off below the mode."""
        self.saves: SavePolicy | None = None
        self.tags = Tags()
        self.counts: dict[Hashable, Int] = {}
        """How many elements of a tensor are not zero, where a size depends on it, and integers read from tensors."""
        self.conjugates: list[Conjugate] = []
        self.distinct: dict[Node, Node] = {}
        """Nodes with the different values of another one, in ascending order."""
        self.forgotten: set[Symbol] = set()
        """Sizes that only a call that failed has read."""
        self.repeated: list[Symbol] = []
        """The sizes that a call which is repeated read at first, and reads again."""
        self._handlers: dict[int, Handler] = {}  # by identity: overloads are never freed, and slow to hash

    def __torch_dispatch__(  # type: ignore[override]
        self, func: OpOverload, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        handler = self._handlers.get(id(func))
        if handler is None:
            handler = self._handlers[id(func)] = self.resolve(func)
        if self.symbols.env.taken:  # asked by the composite operator that makes this call
            self.note_taken(args)
        if self.emit.givens or self.tags:
            env, where = self.symbols.env, self.symbols.where
            args, kwargs = with_symbolic_numbers(env, self.tags, func, args, kwargs or {}, where)
        if self.saves is None or not self.saves(func, args, kwargs or {}):
            result = handler(self, func, args, kwargs or {})
        else:
            result = handler(self, func, args, kwargs or {})
            self.keep(result)
        if self.symbols.env.taken or func in COPIES:
            self.note_taken((args, result))
        return result

    def note_taken(self, tensors: object) -> None:
        """Note that what was taken for granted of any of these tensors is of all of them."""
        if self.symbols.env.taken is not None:
            fakes = [leaf for leaf in tree_leaves(tensors) if isinstance(leaf, FakeTensor)]
            self.taken.note([root_of(fake.storage_view.storage) for fake in fakes])

    def keep(self, result: object) -> None:
        """Mark what an operator returned: a selective checkpoint saves it."""
        for part in result if isinstance(result, list | tuple) else (result,):
            if isinstance(part, FakeTensor):
                node = self.node_of(part)
                if node.origin is not None and node.op.kind is not Kind.VIEW:
                    node.origin = replace(node.origin, kept=True)

    # Fakes to nodes and back.

    def view_of(self, tensor: object) -> StorageView:
        """The storage view of a tensor; a real one becomes a constant of the graph."""
        if type(tensor) is FakeTensor:
            return tensor.storage_view
        assert isinstance(tensor, torch.Tensor)
        return self.constants.bake(self.emit, tensor)

    def node_of(self, tensor: object) -> Node:
        """The node of a tensor's present value."""
        return self.memory.read(self.view_of(tensor))

    def values(self, arguments: Iterable[object]) -> list[Argument]:
        """`value` of each; common types are handled without a call."""
        made: list[Argument] = []
        for argument in arguments:
            kind = type(argument)
            if kind is FakeTensor:
                view = argument.storage_view  # type: ignore[attr-defined]
                made.append(view.node if view.version == view.storage.version else self.memory.read(view))
            elif kind in _PLAIN:
                made.append(argument)  # type: ignore[arg-type]
            else:
                made.append(self.value(argument))
        return made

    def value(self, argument: object) -> Argument:
        """An argument as rules take it: nodes for tensors, `Int` for sizes."""
        if isinstance(argument, torch.Tensor):
            return self.node_of(argument)
        if type(argument) is list or type(argument) is tuple:
            return self.values(argument)
        if type(argument) is torch.SymInt:
            return from_sym(argument)
        return argument.node.value if type(argument) is torch.SymFloat else argument  # type: ignore[return-value]

    def arguments(self, args: Args, kwargs: Kwargs) -> tuple[list[Argument], dict[str, Argument]]:
        """Positional and named arguments as rules take them."""
        return self.values(args), {name: self.value(value) for name, value in kwargs.items()} if kwargs else {}

    def fake(self, view: StorageView, requires_grad: bool = False) -> FakeTensor:
        """A fake tensor of `view`."""
        if torch.is_inference_mode_enabled() and not view.storage.is_inference:
            with torch._C._InferenceMode(False):
                return self.fake(view, requires_grad)
        spec = view.spec
        if self.symbolic and (is_symbolic(spec.sizes) or is_symbolic(spec.strides) or isinstance(spec.offset, Expr)):
            return make_symbolic_fake(view, self.symbols, requires_grad)
        return make_fake(view, requires_grad)

    def wrap(self, result: object) -> object:
        """The results of a rule, with fresh fakes for nodes."""
        if type(result) is Node:
            return self.fake(new_storage(result)) if type(result.spec) is TensorSpec else result
        if isinstance(result, list | tuple):
            return type(result)([self.wrap(part) for part in result])
        return self.symbols.sym(result) if isinstance(result, Expr) else result

    def write(self, target: object, value: Node, op: OpOverload | str, *, uniform: bool = False) -> None:
        """New contents of a tensor; only `uniform` ones may be written to overlapping elements."""
        view, name = self.view_of(target), str(op)
        if not uniform:
            refuse_overlap(view.spec, self.symbols.env, name)
        self.mutations += 1
        self.taken.written(root_of(view.storage))
        if isinstance(target, FakeTensor) and is_counted(target, name):
            self.versioned.add(id(root_of(view.storage)))
        self.memory.write(view, value, name)

    def is_versioned(self, view: StorageView) -> bool:
        """Whether something has changed its memory that eager counts; some operators do not count on fakes."""
        return id(root_of(view.storage)) in self.versioned


_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format})


def real_in(mode: RecordingMode, node: Node) -> Real:
    """The number in a tensor: in the graph, a tensor of rank 0 in float64, as Python computes with it."""
    emit = mode.emit
    given = Given(f"item{len(emit.givens)}", None)
    if node.tensor.rank:
        node = emit.node("reshape", node, sizes=())
    emit.givens[given] = emit.convert(node, torch.float64)
    return Real("given", (given,))


def is_counted(target: FakeTensor, op: str) -> bool:
    """Whether eager raises the version of what `op` writes: not through `.data`, and not in its batch norm."""
    return not is_apart(target) and "batch_norm" not in op
