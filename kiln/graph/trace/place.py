"""Where a fake tensor's elements are: a storage with versions, and a chain of views from its root.

    x = ...            root of a storage, version 0
    v = x[1]           place: parent x, step select(axis=0, index=1)
    v.add_(1)          the storage has version 1; v and x hold new nodes, written through the inverse of the step
    w (= x[0])         is stale: replayed from x when it is read next

A place knows the node that holds its value as of one version of its storage.
"""

from __future__ import annotations

from typing import final

from kiln.graph.ir.node import Node
from kiln.graph.ops import Step
from kiln.graph.prims.spec import TensorSpec


@final
class Storage:
    """Memory that places share. `version` counts the writes."""

    __slots__ = ("root", "version")

    def __init__(self) -> None:
        self.version = 0
        self.root: Place | None = None


@final
class Place:
    """A tensor in a storage: `step` applied to `parent`, or the root."""

    __slots__ = ("node", "parent", "spec", "step", "storage", "version")

    def __init__(
        self, storage: Storage, node: Node, spec: TensorSpec, parent: Place | None = None, step: Step | None = None
    ) -> None:
        self.storage = storage
        self.node = node
        self.spec = spec
        self.parent = parent
        self.step = step
        self.version = storage.version

    @property
    def stale(self) -> bool:
        return self.version != self.storage.version


def fresh_place(node: Node) -> Place:
    """The root of a new storage that holds `node`."""
    storage = Storage()
    place = storage.root = Place(storage, node, node.tensor)
    return place
