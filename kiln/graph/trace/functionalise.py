"""Functionalise while recording: reads and writes of storage views as functional nodes.

    v = x[1]; v.add_(1); w = x * 2         %1 = select(%0, axis=0, index=1)
                                           %3 = add(%1, 1)
                                           %4 = select_scatter(%0, %3, axis=0, index=1)      the new x
                                           %5 = mul(%4, 2)

A write goes up the chain of views through the inverse of each. A stale view is replayed from its parent when it is
read. Writes never change the strides of a view: a new value with other strides is copied by a `clone`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast, final

import torch

from kiln.graph.ir.node import Attr, Node
from kiln.graph.ops import Emit, ViewStep
from kiln.graph.ops.breaks import UnsupportedMutation
from kiln.graph.ops.sizes import is_empty
from kiln.graph.prims.meta import META, equal, has_repeated_elements, is_canonical, same_strides, view_strides
from kiln.graph.trace.storage_view import StorageView, may_overlap, parent_of, reaches_outside, root_of
from kiln.symbolic import Expr, Int, ShapeEnv, rel_le, rel_lt
from kiln.tensor.spec import TensorSpec

Sizes = tuple[Int, ...]
Axes = tuple[int, ...]

Attrs = dict[str, Attr]
Inverse = Callable[[Emit, Node, Node, Attrs], Node]
"""The new value of the parent, from its old value and the new value of the view."""


Layout = tuple[tuple[Int, ...], tuple[Int, ...], Int]
"""Sizes, strides and offset."""


@final
class Functionaliser:
    """Reads and writes of storage views, and views of them; emits the nodes they need."""

    def __init__(self, emit: Emit) -> None:
        self.emit = emit

    def read(self, view: StorageView) -> Node:
        """The node of the present value of `view`."""
        if view.version != view.storage.version:
            self._replay(view)
        return view.node

    def _replay(self, view: StorageView) -> None:
        assert view.step is not None, "the root of a storage is never stale"
        parent = parent_of(view)
        view.node = self._apply(view.step, self.read(parent), parent)
        view.version = view.storage.version

    def within(self, view: StorageView, root_value: Node) -> Node:
        """`view` as a view of `root_value`, a value for the root of its storage."""
        if view.step is None:
            return root_value
        parent = parent_of(view)
        return self._apply(view.step, self.within(parent, root_value), parent)

    def _apply(self, step: ViewStep, node: Node, parent: StorageView) -> Node:
        name, attrs = step
        if name == "view" and view_strides(self.emit.oracle, node.tensor, cast(Sizes, attrs["sizes"])) is None:
            name = "reshape"
        elif name == "as_strided":
            attrs = self._rebased(attrs, node, parent)
        return self.emit.node(name, node, **attrs)

    def _rebased(self, attrs: Attrs, node: Node, root: StorageView) -> Attrs:
        """Attributes of an `as_strided` of the root, for the node that now holds the contents of the storage."""
        if node.spec is root.spec:
            return attrs
        if not same_strides(node.tensor.strides, root.spec.strides, root.spec.sizes) or self._reaches_outside(
            attrs, root.spec
        ):
            raise UnsupportedMutation(op="as_strided", reason="it reads memory outside of a tensor that was changed")
        return attrs | {"offset": cast(Int, attrs["offset"]) - root.spec.offset + node.tensor.offset}

    def _reaches_outside(self, attrs: Attrs, root: TensorSpec) -> bool:
        """Whether an `as_strided` uses other elements than those of the root; guarded where sizes are symbolic."""
        sizes, strides, start = cast(Layout, (attrs["sizes"], attrs["strides"], attrs["offset"]))
        numbers = (*sizes, *strides, start, *root.sizes, *root.strides, root.offset)
        if not any(isinstance(number, Expr) for number in numbers) or not is_canonical(root.sizes, root.strides):
            return reaches_outside(attrs, root)
        oracle = self.emit.oracle
        last = start + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        inside = oracle.decide(rel_le(root.offset, start)) and oracle.decide(rel_lt(last, root.offset + root.numel()))
        return not inside

    def step_view(self, view: StorageView, step: ViewStep) -> StorageView:
        """The result of a view step on `view`."""
        parent = root_of(view.storage) if step[0] == "as_strided" else view
        if step[0] == "view_dtype":
            view.storage.alignment = max(view.storage.alignment, cast(torch.dtype, step[1]["dtype"]).itemsize)
        source = self.read(parent)
        node = self._apply(step, source, parent)
        spec = node.tensor if source.spec is parent.spec else self._spec(step, parent.spec)
        return StorageView(view.storage, node, spec, parent, step)

    def _spec(self, step: ViewStep, parent: TensorSpec) -> TensorSpec:
        name, attrs = step
        spec = META[name](self.emit.oracle, parent, **attrs)
        assert isinstance(spec, TensorSpec)
        return spec

    def write(self, view: StorageView, value: Node, op: str) -> None:
        """Set the contents of `view` to `value`, of the same sizes and dtype."""
        storage = view.storage
        if storage.unwritable:
            raise UnsupportedMutation(op=op, reason=f"it writes to {storage.unwritable}")
        target, value = view, self._relaid(value, view.spec)
        chain = [(target, value)]
        while target.step is not None:
            if target is not view and has_repeated_elements(target.spec):
                raise UnsupportedMutation(op=op, reason="it writes to part of an expanded tensor")
            parent = parent_of(target)
            value = self._relaid(self._put_back(target, parent, value, op), parent.spec)
            target = parent
            chain.append((target, value))
        if target.node.op.name == "input" and has_repeated_elements(target.spec):
            raise UnsupportedMutation(op=op, reason="it writes to an expanded tensor from outside of the region")
        storage.version += 1
        for target, value in reversed(chain):
            if target.step is not None and has_repeated_elements(target.spec):
                parent = parent_of(target)
                value = self._apply(target.step, parent.node, parent)  # expanded again, not in memory of its own
            target.node, target.version = value, storage.version

    def _put_back(self, target: StorageView, parent: StorageView, value: Node, op: str) -> Node:
        """The new value of `parent` when its view `target` becomes `value`."""
        assert target.step is not None
        name, attrs = target.step
        inverse = INVERSES.get(name)
        if inverse is None:
            raise UnsupportedMutation(op=op, reason=f"it writes through the view `{name}`")
        old = self.read(parent)
        if name == "as_strided":
            if has_repeated_elements(target.spec):
                raise UnsupportedMutation(op=op, reason="it writes to overlapping elements")
            if self._reaches_outside(attrs, parent.spec):
                raise UnsupportedMutation(
                    op=op, reason="it writes memory outside of the tensor that `as_strided` views"
                )
            attrs = self._rebased(attrs, old, parent)
            target.storage.is_addressed = True
        return inverse(self.emit, old, value, attrs)

    def _relaid(self, value: Node, spec: TensorSpec) -> Node:
        """`value` with the stride order of `spec`, packed where `spec` has gaps."""
        if same_strides(value.tensor.strides, spec.strides, spec.sizes) or has_repeated_elements(spec):
            return value
        strides = self.emit.preserved_strides(spec)
        return value if strides == value.tensor.strides else self.emit.node("clone", value, strides=strides)


UNCHECKED = frozenset({
    "aten.triu_.default", "aten.tril_.default", "aten.masked_fill_.Scalar", "aten.masked_fill_.Tensor",
    "aten.index_fill_.int_Scalar", "aten.index_fill_.int_Tensor", "aten.index_put_.default",
    "aten._index_put_impl_.default", "aten.fill_diagonal_.default",
})  # fmt: skip
"""Ops that write to overlapping elements in eager: the last write wins, which only eager's kernel knows."""


def refuse_overlap(spec: TensorSpec, env: ShapeEnv, op: str) -> None:
    """As eager: refuse to write to overlapping elements. It only sees those of expanded tensors."""
    if is_empty(spec) or not may_overlap(spec, env):
        return
    if op in UNCHECKED or not has_repeated_elements(spec):
        raise UnsupportedMutation(op=op, reason="it writes to overlapping elements")
    raise RuntimeError(
        "unsupported operation: more than one element of the written-to tensor refers to a single memory location."
        " Please clone() the tensor before performing the operation."
    )


def _scatter(name: str) -> Inverse:
    return lambda e, old, new, attrs: e.node(name, old, new, **attrs)


def _reshaped(e: Emit, old: Node, new: Node, attrs: Attrs) -> Node:
    sizes = old.tensor.sizes
    name = "reshape" if view_strides(e.oracle, new.tensor, sizes) is None else "view"
    return e.node(name, new, sizes=sizes)


def _unpermuted(e: Emit, old: Node, new: Node, attrs: Attrs) -> Node:
    dims = cast(Axes, attrs["dims"])
    return e.node("permute", new, dims=tuple([dims.index(axis) for axis in range(len(dims))]))


def _unexpanded(e: Emit, old: Node, new: Node, attrs: Attrs) -> Node:
    """Any of the repeated elements: only uniform values are written to an expanded tensor."""
    sizes = old.tensor.sizes
    for _ in range(new.tensor.rank - len(sizes)):
        new = e.node("select", new, axis=0, index=0)
    for axis, size in enumerate(sizes):
        if not equal(e.oracle, size, new.tensor.sizes[axis]):
            new = e.node("slice", new, axis=axis, start=0, stop=1, step=1)
    return new


def _unsqueezed(e: Emit, old: Node, new: Node, attrs: Attrs) -> Node:
    for axis in cast(Axes, attrs["axes"]):
        new = e.node("unsqueeze", new, axis=axis)
    return new


INVERSES: dict[str, Inverse] = {
    "select": _scatter("select_scatter"),
    "slice": _scatter("slice_scatter"),
    "diagonal": _scatter("diagonal_scatter"),
    "as_strided": _scatter("as_strided_scatter"),
    "view": _reshaped,
    "permute": _unpermuted,
    "expand": _unexpanded,
    "squeeze": _unsqueezed,
    "unsqueeze": lambda e, old, new, attrs: e.node("squeeze", new, axes=(attrs["axis"],)),
    "view_dtype": lambda e, old, new, attrs: e.node("view_dtype", new, dtype=old.tensor.dtype),
}
"""Views without an inverse (`unfold`) cannot be written through."""
