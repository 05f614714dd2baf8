"""Where a fake tensor's elements are: a storage with versions, and a chain of views from its root.

    x = ...            root of a storage, version 0
    v = x[1]           a view: parent x, step select(axis=0, index=1)
    v.add_(1)          the storage has version 1; v and x have new nodes, written through the inverse of the step
    w (= x[0])         is stale: replayed from x when it is next read

A view has the node of its value at some version of its storage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd
from typing import cast, final

import torch

from kiln.graph.ir.node import Attr, Node
from kiln.graph.ops import ViewStep
from kiln.graph.prims.meta import has_repeated_elements
from kiln.symbolic import Expr, Int, ShapeEnv, rel_lt
from kiln.tensor.spec import TensorSpec

Sizes = tuple[Int, ...]
Integers = tuple[int, ...]


@final
class FakeStorage:
    """Memory that views share. `version` counts the writes.

    `unwritable`: why a write cannot be recorded, or ""; where it may overlap another storage, both would change.
    `is_addressed`: a call names a place in it, counted from its beginning. `alignment`: of the largest elements, in
    bytes, as which a call sees it. `is_inference`: it was made in inference mode; a view of other memory is a normal
    tensor in that mode, too.
    """

    __slots__ = ("alignment", "is_addressed", "is_inference", "root", "unwritable", "version")

    def __init__(self) -> None:
        self.alignment = 1
        self.is_addressed = False
        self.is_inference = torch.is_inference_mode_enabled()
        self.version = 0
        self.root: StorageView | None = None
        self.unwritable = ""


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


def may_overlap(spec: TensorSpec, env: ShapeEnv) -> bool:
    """Whether elements overlap. For other sizes and strides of the same kind that is guarded."""
    if has_repeated_elements(spec):
        return True
    if 0 in spec.sizes or not all(env.has_hint(number) for number in (*spec.sizes, *spec.strides)):
        return False
    dims = [pair for pair in zip(spec.strides, spec.sizes, strict=True) if pair[1] != 1]
    reach: Int = 0
    for stride, size in sorted(dims, key=lambda pair: (env.hint(pair[0]), env.hint(pair[1]))):
        if not env.decide(rel_lt(reach, stride)):
            return True
        reach += (size - 1) * stride
    return False


def overlaps_partially(left: TensorSpec, right: TensorSpec) -> bool:
    """Whether dense tensors of one storage share some of their elements but are not the same; symbolic ones: no."""
    mine, theirs = extent(left), extent(right)
    same = (left.sizes, left.strides, left.offset) == (right.sizes, right.strides, right.offset)
    if mine is None or theirs is None or same:
        return False
    dense = mine[1] - mine[0] == left.numel() and theirs[1] - theirs[0] == right.numel()
    return dense and mine[0] < theirs[1] and theirs[0] < mine[1]


def same_elements(left: TensorSpec, right: TensorSpec) -> bool:
    """Whether tensors of one storage are the same."""
    return (left.sizes, left.strides, left.offset) == (right.sizes, right.strides, right.offset)


MOST_TRIED = 256
"""Sums of strides that are tried for a common element of two tensors."""


def shares_elements(left: TensorSpec, right: TensorSpec) -> bool:
    """Whether tensors of one storage share some elements but are not the same; if it takes too long to tell, yes.

    Sizes and strides are constant. A common element is a solution of

        sum of index * stride, of the left tensor  -  that of the right one  =  right.offset - left.offset
    """
    if same_elements(left, right):
        return False
    if 0 in left.sizes or 0 in right.sizes:
        return False
    factors: dict[int, tuple[int, int]] = {}
    for spec, sign in ((left, 1), (right, -1)):
        for size, stride in zip(cast(Integers, spec.sizes), cast(Integers, spec.strides), strict=True):
            low, high = factors.get(stride, (0, 0))
            factors[stride] = (low, high + size - 1) if sign > 0 else (low - size + 1, high)
    terms = [(stride, *factors[stride]) for stride in sorted(factors, reverse=True) if stride]
    return is_sum(cast(int, right.offset) - cast(int, left.offset), terms, [MOST_TRIED])


def is_sum(total: int, terms: Sequence[tuple[int, int, int]], budget: list[int]) -> bool:
    """Whether `total` is a sum of factor * stride, for terms (stride, low, high) with low <= factor <= high.

    Largest strides come first: of a view, they leave one or two factors to try. True when the budget is used up.
    """
    if not terms:
        return total == 0
    budget[0] -= 1
    if budget[0] < 0:
        return True
    if total % gcd(*[stride for stride, _, _ in terms]):
        return False
    (stride, low, high), rest = terms[0], terms[1:]
    least = sum(other * low for other, low, _ in rest)
    most = sum(other * high for other, _, high in rest)
    first, last = max(low, -((most - total) // stride)), min(high, (total - least) // stride)
    return any(is_sum(total - factor * stride, rest, budget) for factor in range(first, last + 1))


def covered(spec: TensorSpec, within: tuple[int, int]) -> torch.Tensor:
    """Which elements of this range of the storage a tensor of constant sizes consists of."""
    start, stop = within
    marks = torch.zeros(stop - start, dtype=torch.bool, device="cpu")
    sizes, strides = cast(Integers, spec.sizes), cast(Integers, spec.strides)
    marks.as_strided(sizes, strides, cast(int, spec.offset) - start).fill_(True)
    return marks


def is_gapless(spec: TensorSpec) -> bool:
    """Whether a tensor of constant sizes uses each element of its extent once."""
    step = 1
    for stride, size in sorted(zip(cast(Integers, spec.strides), cast(Integers, spec.sizes), strict=True)):
        if size != 1 and stride != step:
            return False
        step *= size
    return True


def reaches_outside(attrs: Mapping[str, Attr], root: TensorSpec) -> bool:
    """Whether an `as_strided` uses elements of the storage outside of the root: beyond its ends, or in its gaps.

    Yes where sizes are symbolic.
    """
    full = extent(root)
    sizes, strides = cast(Sizes, attrs["sizes"]), cast(Sizes, attrs["strides"])
    view = root.with_view(sizes, strides, cast(Int, attrs["offset"]))
    part = extent(view)
    if full is None or part is None:
        return True
    if part[0] < full[0] or part[1] > full[1]:
        return True
    if is_gapless(root):
        return False
    return bool((covered(view, part) & ~covered(root, full)[part[0] - full[0] : part[1] - full[0]]).any())


def new_storage(node: Node) -> StorageView:
    """The root of a new storage that holds `node`."""
    storage = FakeStorage()
    view = storage.root = StorageView(storage, node, node.tensor)
    return view
