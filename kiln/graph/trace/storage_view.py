"""Where a fake tensor's elements are: a storage with versions, and a chain of views from its root.

    x = ...            root of a storage, version 0
    v = x[1]           a view: parent x, step select(axis=0, index=1)
    v.add_(1)          the storage has version 1; v and x have new nodes, written through the inverse of the step
    w (= x[0])         is stale: replayed from x when it is next read

A view has the node of its value at some version of its storage.
"""

from __future__ import annotations

from typing import cast, final

from kiln.graph.ir.node import Attr, Node
from kiln.graph.ops import ViewStep
from kiln.symbolic import Expr, Int
from kiln.tensor.spec import TensorSpec

Sizes = tuple[Int, ...]
Integers = tuple[int, ...]


@final
class FakeStorage:
    """Memory that views share. `version` counts the writes.

    `tangled`: it may overlap another storage, so that a write would have to change both.
    """

    __slots__ = ("root", "tangled", "version")

    def __init__(self) -> None:
        self.version = 0
        self.root: StorageView | None = None
        self.tangled = False


@final
class StorageView:
    """A tensor in a storage: `step` applied to `parent`, or the root."""

    __slots__ = ("node", "parent", "spec", "step", "storage", "version")

    def __init__(
        self,
        storage: FakeStorage,
        node: Node,
        spec: TensorSpec,
        parent: StorageView | None = None,
        step: ViewStep | None = None,
    ) -> None:
        self.storage = storage
        self.node = node
        self.spec = spec
        self.parent = parent
        self.step = step
        self.version = storage.version


def root_of(storage: FakeStorage) -> StorageView:
    assert storage.root is not None
    return storage.root


def parent_of(view: StorageView) -> StorageView:
    """What the step of `view` is applied to; for `as_strided` the present root."""
    assert view.parent is not None and view.step is not None
    return root_of(view.storage) if view.step[0] == "as_strided" else view.parent


def extent(spec: TensorSpec) -> tuple[int, int] | None:
    """The range of elements in the storage; None if it is symbolic."""
    if any(isinstance(number, Expr) for number in (*spec.sizes, *spec.strides, spec.offset)):
        return None
    start, sizes, strides = cast(int, spec.offset), cast(Integers, spec.sizes), cast(Integers, spec.strides)
    reach = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return start, start + (0 if 0 in sizes else reach + 1)


def overlaps_partially(left: TensorSpec, right: TensorSpec) -> bool:
    """Whether dense tensors of one storage share some of their elements but are not the same; symbolic ones: no."""
    mine, theirs = extent(left), extent(right)
    same = (left.sizes, left.strides, left.offset) == (right.sizes, right.strides, right.offset)
    if mine is None or theirs is None or same:
        return False
    dense = mine[1] - mine[0] == left.numel() and theirs[1] - theirs[0] == right.numel()
    return dense and mine[0] < theirs[1] and theirs[0] < mine[1]


MOST_COUNTED = 4096
"""Elements of tensors whose positions are compared one by one."""


def shares_elements(left: TensorSpec, right: TensorSpec) -> bool:
    """Whether small tensors of one storage share some elements but are not the same; large and symbolic ones: no."""
    mine, theirs = extent(left), extent(right)
    same = (left.sizes, left.strides, left.offset) == (right.sizes, right.strides, right.offset)
    if mine is None or theirs is None or same or mine[0] >= theirs[1] or theirs[0] >= mine[1]:
        return False
    if max(cast(int, left.numel()), cast(int, right.numel())) > MOST_COUNTED:
        return False
    return not positions(left).isdisjoint(positions(right))


def positions(spec: TensorSpec) -> set[int]:
    """The elements of the storage that a tensor of constant sizes consists of."""
    found = {cast(int, spec.offset)}
    for size, stride in zip(cast(Integers, spec.sizes), cast(Integers, spec.strides), strict=True):
        found = {start + index * stride for start in found for index in range(size)}
    return found


def reaches_outside(attrs: dict[str, Attr], root: TensorSpec) -> bool:
    """Whether an `as_strided` may use elements of the storage outside of the root."""
    full = extent(root)
    sizes, strides = cast(Sizes, attrs["sizes"]), cast(Sizes, attrs["strides"])
    part = extent(root.with_view(sizes, strides, cast(Int, attrs["offset"])))
    return full is None or part is None or part[0] < full[0] or part[1] > full[1]


def new_storage(node: Node) -> StorageView:
    """The root of a new storage that holds `node`."""
    storage = FakeStorage()
    view = storage.root = StorageView(storage, node, node.tensor)
    return view
