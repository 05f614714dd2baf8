"""Repeated torch calls of the log are copied on other tensors without running them: nodes and fakes are renamed.

    7: linear(%x0, %w0)  ->  %12          23: linear(%x1, %w1)  ->  %40
    8: relu(%12)         ->  %13    =>    24: relu(%40)         ->  %41

Possible where a call depends only on the specs of its arguments and leaves only its results behind: no gradients, no
autocast, no symbolic sizes, no writes since the first of the calls. The caller guarantees that the new tensors have the
specs of the old. `support/repetition.py` explains repeated layers as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from kiln.graph.ir.build import CONSTANT
from kiln.graph.ir.node import Node, Origin
from kiln.graph.prims.table import Kind
from kiln.graph.trace.fake import FakeTensor, make_fake
from kiln.graph.trace.log import TorchCall, leaves
from kiln.graph.trace.storage_view import FakeStorage, StorageView
from kiln.graph.trace.successors import Successors
from kiln.support.location import Location

UNIQUE = (Kind.EFFECT, Kind.NESTED)
REBASED = "as_strided"
"""Counts from the root of a storage, which is not the same for all views of equal specs."""


@final
class CallCopies:
    """Copies of the nodes, storage views and fakes that `calls` made, reading the `successors` of what they read.

    `possible` is false if a node that the calls used is ambiguous.
    """

    def __init__(self, log: list[Node], calls: Sequence[TorchCall], successors: Successors) -> None:
        self.log = log
        self.successors = successors
        self.possible = True
        self._nodes: dict[Node, Node] = {}
        self._views: dict[StorageView, StorageView] = {}
        self._storages: dict[FakeStorage, FakeStorage] = {}
        self._outside: set[int] = set()
        self._behind: set[int] = set()
        own: set[int] = set()
        for call in calls:
            self._use((call.args, call.kwargs), own)
            own.update(id(fake) for fake in fakes_in(call.result))
        for call in calls:
            self._check(call)

    def _use(self, values: object, own: set[int]) -> None:
        """Note the fakes of arguments that were there before the calls."""
        for fake in fakes_in(values):
            if id(fake) not in own and id(fake) not in self._outside:
                self._outside.add(id(fake))
                self._pair(fake.storage_view, self.successors.of(fake).storage_view)

    def _pair(self, old: StorageView, new: StorageView) -> None:
        self.possible &= (
            self._nodes.setdefault(old.node, new.node) is new.node
            and self._storages.setdefault(old.storage, new.storage) is new.storage
            and new.version == new.storage.version
            and old.node.spec == new.node.spec
        )
        self._views[old] = new
        if old is not new:
            behind = old
            while behind.parent is not None:
                behind = behind.parent
                self._behind.add(id(behind.node))
            if old.storage.root is not None and old.storage.root is not old:
                self._behind.add(id(old.storage.root.node))

    def _check(self, call: TorchCall) -> None:
        """A node behind a view may be used only if it has a counterpart; some ops are never copied."""
        first, last = call.nodes
        for node in self.log[first:last]:
            hidden = any(id(operand) in self._behind and operand not in self._nodes for operand in node.inputs)
            if hidden or node.op.kind in UNIQUE or node.op.name == REBASED:
                self.possible = False

    def call(self, call: TorchCall, number: int, stack: tuple[Location, ...]) -> tuple[list[Node], TorchCall]:
        """The nodes of one call, to be appended to the nodes so far, and its entry of the log."""
        first, last = call.nodes
        args, kwargs = self.successors.of(call.args), self.successors.of(call.kwargs)
        made: list[Node] = []
        origin: Origin | None = None
        where = stack[-1] if stack else call.location
        for old in self.log[first:last]:
            if old.op is CONSTANT:
                continue  # constants are shared
            if origin is None and old.origin is not None:
                origin = Origin(old.origin.call, number, where, region=old.origin.region, to_host=old.origin.to_host)
            inputs = tuple([self._nodes.get(node, node) for node in old.inputs])
            new = self._nodes[old] = Node(old.op, inputs, old.attrs, old.spec, origin)
            made.append(new)
        result = self._result(call.result)
        nodes = (len(self.log), len(self.log) + len(made))
        return made, TorchCall(number, call.kind, call.target, args, kwargs, result, where, stack, call.effects, nodes)

    def _result(self, value: object) -> object:
        if isinstance(value, FakeTensor):
            known = self.successors.of(value)
            if known is value and id(value) not in self._outside:
                known = make_fake(self._copied_view(value.storage_view))
                self.successors.add(value, known)
            return known
        if isinstance(value, list | tuple):
            made = [self._result(item) for item in value]
            return type(value)._make(made) if hasattr(value, "_fields") else type(value)(made)  # type: ignore[union-attr]
        return value

    def _copied_view(self, old: StorageView) -> StorageView:
        found = self._views.get(old)
        if found is None:
            parent = self._copied_view(old.parent) if old.parent is not None else None
            storage = self._storages.get(old.storage)
            if storage is None:
                storage = self._storages[old.storage] = FakeStorage()
            node = self._nodes.get(old.node, old.node)
            found = self._views[old] = StorageView(storage, node, old.spec, parent, old.step)
            if old.storage.root is old:
                storage.root = found
        return found


def fakes_in(value: object) -> list[FakeTensor]:
    """All fakes in nested containers."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, FakeTensor)]
