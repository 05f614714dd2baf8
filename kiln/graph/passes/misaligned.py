"""Matrix products that run on the slow kernels of cuBLAS, and the sizes that would make them fast.

    %2: bf16[4096, 50257] = aten.mm.default(%0, %1)        columns 50257 => 50264

Rows in memory should be multiples of 16 bytes: then kernels load and store whole vectors (from sm_90 on, boxes of the
tensor memory accelerator); otherwise cuBLAS takes kernels that go element by element. This concerns the size of the
innermost dimension (`innermost`) and the strides between its rows, in both factors and in the result, which is
row-major. So the columns always matter, the contracted dimension if it is innermost in a factor, and the rows if they
are innermost in the left factor.

Only 16-bit floats: an element of float32 is a quarter of a vector rather than an eighth, and without TF32 such
products do not use tensor cores.

Symbols may occur where no alignment is needed: `s0` rows of 768, batches, strides such as `768*s0`. Products with an
innermost symbol that is not a known multiple of 16 bytes are left alone: padded to `(s0 + 7)//8*8`, they would be
copied even in calls where they are aligned, and telling these apart would take a guard.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import final

import torch

from kiln.graph.ir.node import Arg, Node
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import Expr, Int
from kiln.tensor.spec import TensorSpec

PRODUCTS: Mapping[str, int] = {
    "aten.mm.default": 0, "aten.bmm.default": 0, "aten.addmm.default": 1, "aten.baddbmm.default": 1,
}  # fmt: skip
"""The number of addends before the two factors."""

DTYPES = frozenset({torch.bfloat16, torch.float16})
ALIGNMENT = 16
"""Bytes: the widest access of a thread, and the unit of strides for the tensor memory accelerator."""

Sizes = tuple[Int, ...]


@final
@dataclass(frozen=True, slots=True)
class Padding:
    """`base`, with the last two dimensions swapped if `swapped`, followed by zeros up to `sizes`."""

    base: Node
    swapped: bool
    sizes: Sizes


@final
@dataclass(frozen=True, slots=True)
class Operand:
    """An input of an aligned product: `node`, or a padding with the last two dimensions swapped back."""

    node: Node
    padding: Padding | None = None
    swapped: bool = False


@final
@dataclass(frozen=True, slots=True)
class Product:
    """A misaligned product `node`, and the operands and sizes of the aligned one. `flops` and `elements` of `node`.

    `granule`: the number of elements that all its rows are multiples of.
    """

    node: Node
    operands: tuple[Operand, ...]
    sizes: Sizes
    flops: Int
    elements: Int
    granule: int

    @property
    def paddings(self) -> tuple[Padding, ...]:
        return tuple(dict.fromkeys([operand.padding for operand in self.operands if operand.padding is not None]))


def misaligned_product(node: Node) -> Product | None:
    """None if `node` is no such product, is aligned, or has a symbol where alignment matters."""
    if node.op.kind is not Kind.LIBRARY or node.attrs["target"] not in PRODUCTS or not _is_considered(node):
        return None
    *addends, left, right = [node.inputs[arg.index] for arg in node.attrs["args"]]
    *batch, rows, inner = left.tensor.sizes
    columns, step = right.tensor.sizes[-1], ALIGNMENT // node.tensor.dtype.itemsize
    row_wise = innermost(left.tensor) == -2
    inner_wise = innermost(left.tensor) == -1 or innermost(right.tensor) == -2
    affected = [columns, *([rows] if row_wise else []), *([inner] if inner_wise else [])]
    if any(is_open(size, step) for size in affected):
        return None
    new_rows = up(rows, step) if row_wise else rows
    new_inner, new_columns = up(inner, step) if inner_wise else inner, up(columns, step)
    sizes = (*batch, new_rows, new_columns)
    factors = _factor(left, (*batch, new_rows, new_inner), step), _factor(right, (*batch, new_inner, new_columns), step)
    unpadded = [factor.node.tensor for factor in factors if factor.padding is None]
    if any(is_open(distance, step) for spec in unpadded for distance in distances(spec)):
        return None
    operands = (*[Operand(addend, _addend(addend, node.tensor.sizes, sizes)) for addend in addends], *factors)
    if sizes == node.tensor.sizes and all(operand.padding is None for operand in operands):
        return None
    apart = [*distances(left.tensor), *distances(right.tensor)]
    granule = gcd(step, *[divisor(number) for number in (*affected, *apart) if number != 1])
    moved = left.tensor.numel() + right.tensor.numel() + node.tensor.numel()
    return Product(node, operands, sizes, 2 * node.tensor.numel() * inner, moved, granule)


def _is_considered(node: Node) -> bool:
    """Not known to be empty, on a GPU, in a 16-bit dtype, and a plain call."""
    spec: TensorSpec = node.tensor
    if spec.device.type != "cuda" or spec.dtype not in DTYPES or not spec.is_contiguous():
        return False
    tensors = (spec, *[operand.tensor for operand in node.inputs])
    plain = all(isinstance(arg, Arg) for arg in node.attrs["args"]) and not any(
        isinstance(value, Arg) for _, value in node.attrs["kwargs"]
    )
    return plain and not any(0 in tensor.sizes for tensor in tensors)


def divisor(value: Int) -> int:
    """The largest number known to divide it for all values of its symbols; 0 for 0."""
    return gcd(*[factor for _, factor in value.terms]) if isinstance(value, Expr) else value


def is_open(value: Int, step: int) -> bool:
    """Whether its being a multiple of `step` depends on symbols."""
    return isinstance(value, Expr) and divisor(value) % step != 0


def up(size: Int, step: int) -> Int:
    """The next multiple of `step`; 1 stays, for products of a matrix and a vector."""
    return size if isinstance(size, Expr) or size == 1 else -(-size // step) * step


def innermost(spec: TensorSpec) -> int:
    """Which of the last two dimensions is innermost in memory; the library first copies a tensor with gaps."""
    return -2 if spec.strides[-2] == 1 and spec.strides[-1] != 1 and spec.sizes[-1] != 1 else -1


def _addend(node: Node, old: Sizes, new: Sizes) -> Padding | None:
    """The padding of an addend, whose sizes are those of the result, 1, or absent."""
    own = node.tensor.sizes
    wanted = tuple([
        after if size == before else size for size, before, after in zip(own[::-1], old[::-1], new[::-1], strict=False)
    ])[::-1]  # fmt: skip
    return None if wanted == own else Padding(node, False, wanted)


def _factor(node: Node, sizes: Sizes, step: int) -> Operand:
    """Padded to `sizes` in its memory order, so that its innermost dimension stays innermost."""
    aligned = all(isinstance(number, Expr) or number % step == 0 for number in distances(node.tensor))
    if sizes == node.tensor.sizes and aligned:
        return Operand(node)
    if innermost(node.tensor) == -1:
        return Operand(node, Padding(node, False, sizes))
    turned = (*sizes[:-2], sizes[-1], sizes[-2])
    below = node.inputs[0] if is_swap(node) else None
    if below is not None and innermost(below.tensor) == -1:
        return Operand(node, Padding(below, False, turned), swapped=True)
    return Operand(node, Padding(node, True, turned), swapped=True)


def swap(rank: int) -> tuple[int, ...]:
    """`dims` of the permutation that swaps the last two dimensions."""
    return (*range(rank - 2), rank - 1, rank - 2)


def is_swap(node: Node) -> bool:
    return node.op.name == "permute" and tuple(node.attrs["dims"]) == swap(node.tensor.rank)


def distances(spec: TensorSpec) -> list[Int]:
    """Strides between rows of the innermost dimension, and the offset, in elements."""
    inner = spec.rank + innermost(spec)
    if spec.strides[inner] != 1:
        return []  # the library copies it
    pairs = enumerate(zip(spec.sizes, spec.strides, strict=True))
    apart = [stride for axis, (size, stride) in pairs if axis != inner and size != 1]
    return [*apart, spec.offset]
