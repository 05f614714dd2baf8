"""Which matrix products run on the slow kernels of cuBLAS, and the sizes that would make them fast.

    %2: bf16[4096, 50257] = aten.mm.default(%0, %1)        columns 50257 => 50264

A row of a matrix, as it lies in memory, should be a multiple of 16 bytes: then whole vectors (from sm_90 on, boxes of
the tensor memory accelerator) are loaded and stored; otherwise cuBLAS takes kernels that go element by element.
That concerns the size of the dimension that runs in memory (`running`) and the distance of its rows, in both factors
and in the result, which is row-major. So the columns always matter; the contracted dimension where it runs in a
factor; the rows where they run in the left factor.

Of 16-bit floats only: an element of float32 is a quarter of a vector instead of an eighth, and without TF32 such
products do not run on tensor cores at all.

Symbols may stand wherever no alignment is asked of them: `s0` rows of 768, batches, distances like `768*s0`. A product
in whose operands or result a symbol that is no multiple of 16 bytes runs is left alone: padded to `(s0 + 7)//8*8`, it
would be copied in the calls in which it is aligned, too, and telling them apart would take a guard.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd
from typing import final

import torch

from kiln.graph.ir.node import Arg, Node
from kiln.graph.prims.table import Kind
from kiln.symbolic import Expr, Int
from kiln.tensor.spec import TensorSpec

PRODUCTS: Mapping[str, int] = {
    "aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1, "aten.baddbmm.default": 1,
}  # fmt: skip
"""How many addends stand before the two factors."""

DTYPES = frozenset({torch.bfloat16, torch.float16})
ALIGNMENT = 16
"""Bytes: the widest access of one thread, and what the tensor memory accelerator asks of strides."""

Sizes = tuple[Int, ...]


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
    flops: Int
    elements: Int
    granule: int

    @property
    def paddings(self) -> tuple[Padding, ...]:
        return tuple(dict.fromkeys([one.padding for one in self.operands if one.padding is not None]))


def misaligned_product(node: Node) -> Product | None:
    """None where `node` is no such product, is aligned, or has a symbol where alignment is asked for."""
    if node.op.kind is not Kind.LIBRARY or node.attrs["target"] not in PRODUCTS or not _is_considered(node):
        return None
    *addends, left, right = [node.inputs[one.index] for one in node.attrs["args"]]
    *batch, rows, inner = left.tensor.sizes
    columns, step = right.tensor.sizes[-1], ALIGNMENT // node.tensor.dtype.itemsize
    rows_run, inner_runs = running(left.tensor) == -2, running(left.tensor) == -1 or running(right.tensor) == -2
    run = [columns, *([rows] if rows_run else []), *([inner] if inner_runs else [])]
    if any(is_open(size, step) for size in run):
        return None
    new_rows = up(rows, step) if rows_run else rows
    new_inner, new_columns = up(inner, step) if inner_runs else inner, up(columns, step)
    sizes = (*batch, new_rows, new_columns)
    factors = _factor(left, (*batch, new_rows, new_inner), step), _factor(right, (*batch, new_inner, new_columns), step)
    if any(one.padding is None and any(is_open(d, step) for d in distances(one.node.tensor)) for one in factors):
        return None
    operands = (*[Operand(one, _addend(one, node.tensor.sizes, sizes)) for one in addends], *factors)
    if sizes == node.tensor.sizes and all(one.padding is None for one in operands):
        return None
    apart = [*distances(left.tensor), *distances(right.tensor)]
    granule = gcd(step, *[divisor(number) for number in (*run, *apart) if number != 1])
    moved = left.tensor.numel() + right.tensor.numel() + node.tensor.numel()
    return Product(node, operands, sizes, 2 * node.tensor.numel() * inner, moved, granule)


def _is_considered(node: Node) -> bool:
    """Not known to be empty, on a GPU, in a dtype that tensor cores take, and a plain call."""
    spec: TensorSpec = node.tensor
    if spec.device.type != "cuda" or spec.dtype not in DTYPES or not spec.is_contiguous():
        return False
    tensors = (spec, *[one.tensor for one in node.inputs])
    plain = all(isinstance(one, Arg) for one in node.attrs["args"]) and not any(
        isinstance(value, Arg) for _, value in node.attrs["kwargs"]
    )
    return plain and not any(0 in one.sizes for one in tensors)


def divisor(value: Int) -> int:
    """The largest number known to divide it, whatever its symbols are; 0 for 0."""
    return gcd(*[factor for _, factor in value.terms]) if isinstance(value, Expr) else value


def is_open(value: Int, step: int) -> bool:
    """Do symbols decide whether it is a multiple of `step`?"""
    return isinstance(value, Expr) and divisor(value) % step != 0


def up(size: Int, step: int) -> Int:
    """The next multiple of `step`; a single row or column stays: it is a product of a matrix and a vector."""
    return size if isinstance(size, Expr) or size == 1 else -(-size // step) * step


def running(spec: TensorSpec) -> int:
    """Which of the last two dimensions runs in memory when the library reads it; what has gaps it copies first."""
    return -2 if spec.strides[-2] == 1 and spec.strides[-1] != 1 and spec.sizes[-1] != 1 else -1


def _addend(node: Node, old: Sizes, new: Sizes) -> Padding | None:
    """An addend has the size of the result, 1, or nothing in each dimension."""
    own = node.tensor.sizes
    wanted = tuple([
        after if size == before else size for size, before, after in zip(own[::-1], old[::-1], new[::-1], strict=False)
    ])[::-1]  # fmt: skip
    return None if wanted == own else Padding(node, False, wanted)


def _factor(node: Node, sizes: Sizes, step: int) -> Operand:
    """Padded to `sizes`, in the order in which it lies in memory, so that its running dimension still runs."""
    aligned = all(isinstance(number, Expr) or number % step == 0 for number in distances(node.tensor))
    if sizes == node.tensor.sizes and aligned:
        return Operand(node)
    if running(node.tensor) == -1:
        return Operand(node, Padding(node, False, sizes))
    turned = (*sizes[:-2], sizes[-1], sizes[-2])
    below = node.inputs[0] if is_swap(node) else None
    if below is not None and running(below.tensor) == -1:
        return Operand(node, Padding(below, False, turned), swapped=True)
    return Operand(node, Padding(node, True, turned), swapped=True)


def swap(rank: int) -> tuple[int, ...]:
    """`dims` of the permutation that exchanges the last two dimensions."""
    return (*range(rank - 2), rank - 1, rank - 2)


def is_swap(node: Node) -> bool:
    return node.op.name == "permute" and tuple(node.attrs["dims"]) == swap(node.tensor.rank)


def distances(spec: TensorSpec) -> list[Int]:
    """From row to row of the dimension that runs, and from the start of the memory, in elements."""
    runs = spec.rank + running(spec)
    if spec.strides[runs] != 1:
        return []  # the library copies it
    pairs = enumerate(zip(spec.sizes, spec.strides, strict=True))
    apart = [stride for axis, (size, stride) in pairs if axis != runs and size != 1]
    return [*apart, spec.offset]
