"""Where a fake tensor's elements are: a storage with versions, and a chain of views from its root.

    x = ...            root of a storage, version 0
    v = x[1]           view: parent x, step select(axis=0, index=1)
    v.add_(1)          the storage has version 1; v and x hold new nodes, written through the inverse of the step
    w (= x[0])         is stale: replayed from x when it is read next

A view knows the node that holds its value as of one version of its storage.
"""

from __future__ import annotations

from typing import Any, final

from kiln.graph.ir.node import Node
from kiln.graph.ops import ViewStep
from kiln.symbolic import Expr
from kiln.tensor.spec import TensorSpec


@final
class FakeStorage:
    """Memory that views share. `version` counts the writes.

    `tangled`: another storage of the recording may overlap it, so that a write would have to reach both.
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
    """What the step of `view` is applied to; `as_strided` counts from the root, whatever that is by now."""
    assert view.parent is not None and view.step is not None
    return root_of(view.storage) if view.step[0] == "as_strided" else view.parent


def extent(spec: TensorSpec) -> tuple[int, int] | None:
    """First element and one past the last in the storage; None where that is symbolic."""
    numbers = (*spec.sizes, *spec.strides, spec.offset)
    if any(isinstance(one, Expr) for one in numbers):
        return None
    start = int(spec.offset)  # type: ignore[arg-type]
    reach = sum((size - 1) * step for size, step in zip(spec.sizes, spec.strides, strict=True))  # type: ignore[operator]
    return start, start + (0 if 0 in spec.sizes else reach + 1)  # type: ignore[operator, return-value]


def reaches_outside(attrs: dict[str, Any], root: TensorSpec) -> bool:
    """Does an `as_strided` use elements of the storage that are not the root's? Taken as yes where that is symbolic."""
    whole = extent(root)
    part = extent(root.with_view(attrs["sizes"], attrs["strides"], attrs["offset"]))
    return whole is None or part is None or part[0] < whole[0] or part[1] > whole[1]


def new_storage(node: Node) -> StorageView:
    """The root of a new storage that holds `node`."""
    storage = FakeStorage()
    view = storage.root = StorageView(storage, node, node.tensor)
    return view
