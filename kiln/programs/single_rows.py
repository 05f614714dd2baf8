"""Examples of one row: a size that the program would fix at 1 is asked for again with more rows.

    export(f, (x: f32[1, 3],), {"x": {0: batch}})      batch == 1, since `f` asks whether there is more than one row
    export(f, (x: f32[7, 3],), {"x": {0: batch}})      its row repeated: 1 <= batch

A size of 1 is broadcast, and steps over one element do not matter, so that the program of one row may not do for more.
What is exported with more rows is used if it takes the example, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kiln.programs.dims import DerivedDim, Dim, DimHint, DimTable
from kiln.programs.naming import CallNames
from kiln.programs.whole import WholeCapture
from kiln.symbolic import ShapeEnv, Symbol
from kiln.tensor.spec import TensorSpec

NUMBERS = (7, 11, 13, 5, 3, 2)
"""Rows to try; sizes that the call has would be equal to them by chance."""
LeafAxis = tuple[int, int]
"""The number of a leaf, and an axis."""


def with_more_rows(call: CallNames, table: DimTable, whole: WholeCapture) -> tuple[list[object], DimTable] | None:
    """The leaves and wishes of a call with more rows, where the program fixes free sizes at 1."""
    tensors = {number: leaf for number, leaf in enumerate(call.leaves) if isinstance(leaf, torch.Tensor)}
    fixed = set(fixed_at_one(tensors, table, whole))
    names = {dim.name for number, axis in fixed if isinstance(dim := wish(table, tensors[number], axis), Dim)}
    taken = {size for tensor in tensors.values() for size in tensor.shape}
    ranges = [dim for dim, _ in table.hints.values() if dim.name in names]
    rows = next((n for n in NUMBERS if n not in taken and all([allows(dim, n) for dim in ranges])), None)
    if not fixed or rows is None or table.roots:
        return None
    made, leaves = DimTable(roots=table.roots), list(call.leaves)
    for number, tensor in tensors.items():
        for axis in range(tensor.dim()):
            dim = wish(table, tensor, axis)
            if (number, axis) in fixed or (isinstance(dim, Dim) and dim.name in names):
                leaves[number] = repeated(leaves[number], axis, rows)
            elif isinstance(dim, DerivedDim) and dim.root.name in names:
                leaves[number] = repeated(leaves[number], axis, dim.step * rows + dim.offset)
        made.wishes[id(leaves[number])] = table.wishes.get(id(tensor), {})
        made.places[id(leaves[number])] = table.places.get(id(tensor), "")
    made.hints = {name: (dim, rows if name in names else size) for name, (dim, size) in table.hints.items()}
    return leaves, made


def fixed_at_one(tensors: dict[int, torch.Tensor], table: DimTable, whole: WholeCapture) -> Iterator[LeafAxis]:
    specs = {id(record.real): record.spec for record in whole.trace.inputs}
    for number, tensor in tensors.items():
        spec = specs.get(id(tensor))
        for axis, dim in table.wishes.get(id(tensor), {}).items():
            is_free = isinstance(dim, Dim) or (isinstance(dim, DimHint) and dim != Dim.STATIC)
            if is_free and isinstance(spec, TensorSpec) and is_one(whole.trace.env, spec.sizes[axis]):
                yield number, axis


def is_one(env: ShapeEnv, size: object) -> bool:
    return isinstance(size, Symbol) and env.simplify(size) == 1


def wish(table: DimTable, tensor: torch.Tensor, axis: int) -> object:
    return table.wishes.get(id(tensor), {}).get(axis)


def allows(dim: Dim, rows: int) -> bool:
    return dim.min <= rows and (dim.max is None or rows <= dim.max)


def repeated(leaf: object, axis: int, size: int) -> torch.Tensor:
    """The rows of a tensor again and again."""
    assert isinstance(leaf, torch.Tensor)
    rows = torch.arange(size, device=leaf.device) % leaf.shape[axis]
    return leaf.detach().index_select(axis, rows).requires_grad_(leaf.requires_grad)
