"""Which matrix products run on the slow kernels of cuBLAS, and the sizes that would make them fast.

    %2: bf16[4096, 50257] = aten.mm.default(%0, %1)        columns 50257 => 50264

A row of a matrix, as it lies in memory, should be a multiple of 16 bytes: then whole vectors (from sm_90 on, boxes of
the tensor memory accelerator) are loaded and stored; otherwise cuBLAS takes kernels that go element by element.
That concerns the size of the dimension that runs in memory (`running`) and the distance of its rows, in both factors
and in the result, which is row-major. So the columns always matter; the contracted dimension where it runs in a
factor; the rows where they run in the left factor.

Of 16-bit floats only: an element of float32 is a quarter of a vector instead of an eighth, and without TF32 such
products do not run on tensor cores at all. Symbolic sizes are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any, final

import torch

from kiln.graph.ir.node import Arg, Node
from kiln.graph.prims.spec import TensorSpec
from kiln.graph.prims.table import Kind
from kiln.symbolic import is_static

PRODUCTS: Mapping[str, int] = {
    "aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1, "aten.baddbmm.default": 1,
}  # fmt: skip
"""How many addends stand before the two factors."""

DTYPES = frozenset({torch.bfloat16, torch.float16})
ALIGNMENT = 16
"""Bytes: the widest access of one thread, and what the tensor memory accelerator asks of strides."""

Sizes = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class Padding:
    """`base`, its last two dimensions exchanged if `swapped`, with zeros after its elements up to `sizes`."""

    base: Node
    swapped: bool
    sizes: Sizes


@final
@dataclass(frozen=True, slots=True)
class Operand:
    """An input of an aligned product: `node` as it is, or a padding, its last two dimensions exchanged back."""

    node: Node
    padding: Padding | None = None
    swapped: bool = False


@final
@dataclass(frozen=True, slots=True)
class Product:
    """A product that is not aligned; operands and sizes of one that is. `flops` and `elements` are those of `node`.

    `granule`: how many elements all its rows are multiples of.
    """

    node: Node
    operands: tuple[Operand, ...]
    sizes: Sizes
    flops: int
    elements: int
    granule: int

    @property
    def paddings(self) -> tuple[Padding, ...]:
        return tuple(dict.fromkeys([one.padding for one in self.operands if one.padding is not None]))


def misaligned_product(node: Node) -> Product | None:
    """None where `node` is no such product, or is aligned."""
    if node.op.kind is not Kind.LIBRARY or node.attrs["target"] not in PRODUCTS or not _is_considered(node):
        return None
    *addends, left, right = [node.inputs[one.index] for one in node.attrs["args"]]
    *batch, rows, inner = static_sizes(left)
    columns, step = static_sizes(right)[-1], ALIGNMENT // node.tensor.dtype.itemsize
    rows_run, inner_runs = running(left.tensor) == -2, running(left.tensor) == -1 or running(right.tensor) == -2
    new_rows = up(rows, step) if rows_run else rows
    new_inner, new_columns = up(inner, step) if inner_runs else inner, up(columns, step)
    sizes = (*batch, new_rows, new_columns)
    operands = (
        *[Operand(one, _addend(one, static_sizes(node), sizes)) for one in addends],
        _factor(left, (*batch, new_rows, new_inner), step),
        _factor(right, (*batch, new_inner, new_columns), step),
    )
    if sizes == static_sizes(node) and all(one.padding is None for one in operands):
        return None
    run = [columns, rows if rows_run else 0, inner if inner_runs else 0]
    granule = gcd(step, *[size for size in run if size != 1], *distances(left.tensor), *distances(right.tensor))
    return Product(node, operands, sizes, 2 * elements(node) * inner, sum(map(elements, (left, right, node))), granule)


def _is_considered(node: Node) -> bool:
    """Static, with elements, on a GPU, in a dtype that tensor cores take, and a plain call."""
    spec: TensorSpec = node.tensor
    if spec.device.type != "cuda" or spec.dtype not in DTYPES or not spec.is_contiguous():
        return False
    tensors = (spec, *[one.tensor for one in node.inputs])
    numbers = [value for one in tensors for value in (*one.sizes, *one.strides, one.offset)]
    plain = all(isinstance(one, Arg) for one in node.attrs["args"]) and not any(map(_is_node, node.attrs["kwargs"]))
    return plain and all(map(is_static, numbers)) and not any(0 in one.sizes for one in tensors)


def _is_node(keyword: tuple[str, Any]) -> bool:
    return isinstance(keyword[1], Arg)


def static_sizes(node: Node) -> Sizes:
    """Of a node that is known to have no others."""
    return tuple([size for size in node.tensor.sizes if isinstance(size, int)])


def elements(node: Node) -> int:
    return prod(static_sizes(node))


def up(size: int, step: int) -> int:
    """The next multiple of `step`; a single row or column stays: it is a product of a matrix and a vector."""
    return size if size == 1 else -(-size // step) * step


def running(spec: TensorSpec) -> int:
    """Which of the last two dimensions runs in memory when the library reads it; what has gaps it copies first."""
    return -2 if spec.strides[-2] == 1 and spec.strides[-1] != 1 and spec.sizes[-1] != 1 else -1


def _addend(node: Node, old: Sizes, new: Sizes) -> Padding | None:
    """An addend has the size of the result, 1, or nothing in each dimension."""
    own = static_sizes(node)
    wanted = tuple([
        after if size == before else size for size, before, after in zip(own[::-1], old[::-1], new[::-1], strict=False)
    ])[::-1]  # fmt: skip
    return None if wanted == own else Padding(node, False, wanted)


def _factor(node: Node, sizes: Sizes, step: int) -> Operand:
    """Padded to `sizes`, in the order in which it lies in memory, so that its running dimension still runs."""
    if sizes == static_sizes(node) and all(number % step == 0 for number in distances(node.tensor)):
        return Operand(node)
    if running(node.tensor) == -1:
        return Operand(node, Padding(node, False, sizes))
    turned = (*sizes[:-2], sizes[-1], sizes[-2])
    below = node.inputs[0] if is_swap(node) else None
    if below is not None and running(below.tensor) == -1:
        return Operand(node, Padding(below, False, turned), swapped=True)
    return Operand(node, Padding(node, True, turned), swapped=True)


def swap(rank: int) -> Sizes:
    """`dims` of the permutation that exchanges the last two dimensions."""
    return (*range(rank - 2), rank - 1, rank - 2)


def is_swap(node: Node) -> bool:
    return node.op.name == "permute" and tuple(node.attrs["dims"]) == swap(node.tensor.rank)


def distances(spec: TensorSpec) -> list[int]:
    """From row to row of the dimension that runs, and from the start of the memory, in elements."""
    runs = spec.rank + running(spec)
    if spec.strides[runs] != 1:
        return []  # the library copies it
    pairs = enumerate(zip(spec.sizes, spec.strides, strict=True))
    apart = [stride for axis, (size, stride) in pairs if axis != runs and size != 1]
    return [number for number in (*apart, spec.offset) if isinstance(number, int)]
