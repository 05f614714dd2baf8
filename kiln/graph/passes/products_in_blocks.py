"""Blocks of a misaligned product that is only returned: fast, and with little memory besides its result.

    %2: bf16[4096, 50257] = aten.mm.default(%0, %1)                return %2
                                =>
    %3: bf16[4096, 50257] = empty()
    %4: bf16[256, 50256] = aten.mm.default(slice(%0, rows 0:256), slice(%1, columns :50256))
    %5: bf16[4096, 50257] = slice_scatter(%3, %4, rows 0:256, columns :50256)          in place
    ...
    %8: bf16[4096, 1] = aten.mm.default(%0, slice(%1, columns 50256:))
    %9: bf16[4096, 50257] = slice_scatter(%7, %8, columns 50256:)

A padded result would be copied as a whole into eager's strides: twice the memory. A block is copied while the next one
has not been computed, and nothing is padded: all columns but the last few are aligned. So the contracted dimension
must be aligned, and columns must be rows in the memory of the right factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

from kiln.graph.ir.build import Builder
from kiln.graph.ir.node import Node
from kiln.graph.passes.misaligned import ALIGNMENT, Product, distances, innermost
from kiln.symbolic import Int, is_static

LEAST_BYTES = 1 << 25
"""A smaller result is copied as a whole."""
MOST_BLOCKS, LEAST_ROWS = 32, 256
"""Blocks that keep the memory of one small, of so many rows that a product keeps the machine busy."""
LEAST_BLOCKS = 4


def takes_blocks(product: Product) -> bool:
    """Is the result of `product`, which is only returned, large enough and aligned but for its last columns?"""
    spec, (left, right) = product.node.tensor, product.operands[-2:]
    step = ALIGNMENT // spec.dtype.itemsize
    if spec.rank != 2 or not all(map(is_static, (*spec.sizes, *left.node.tensor.sizes))):
        return False
    rows, columns = cast(tuple[int, int], spec.sizes)
    if product.sizes[0] != rows or columns < 2 * step or rows * columns * spec.dtype.itemsize < LEAST_BYTES:
        return False
    if any(addend.node.tensor.rank != 1 for addend in product.operands[:-2]) or rows < LEAST_BLOCKS * LEAST_ROWS:
        return False
    tensors = (left.node.tensor, right.node.tensor)
    aligned = all(is_static(number) and number % step == 0 for tensor in tensors for number in distances(tensor))
    return left.padding is None and innermost(right.node.tensor) == -2 and aligned


def in_blocks(product: Product, builder: Builder, new: Callable[[Node], Node]) -> Node:
    """The nodes that compute `product` in blocks; `new`: the node that takes the place of an operand."""
    old = product.node
    spec = old.tensor
    rows, columns = cast(tuple[int, int], spec.sizes)
    *addends, left, right = [new(operand.node) for operand in product.operands]
    cut = columns - columns % (ALIGNMENT // spec.dtype.itemsize)

    def part(start: int, stop: int, first: int, last: int) -> Node:
        operands = [sliced(builder, addend, 0, first, last, columns) for addend in addends]
        operands += [sliced(builder, left, 0, start, stop, rows), sliced(builder, right, 1, first, last, columns)]
        made = spec.with_sizes((stop - start, last - first))
        return builder.aten(old.attrs["target"], operands, dict(old.attrs["kwargs"]), made)

    result = builder.node("empty", sizes=spec.sizes, strides=spec.strides, dtype=spec.dtype, device=spec.device)
    body = sliced(builder, result, 1, 0, cut, columns)
    for start, stop in blocks(rows):
        body = put(builder, body, 0, start, stop, part(start, stop, 0, cut))
    result = put(builder, result, 1, 0, cut, body)
    return put(builder, result, 1, cut, columns, part(0, rows, cut, columns)) if cut < columns else result


def blocks(rows: int) -> Iterator[tuple[int, int]]:
    """Rows from and up to."""
    size = max(-(-rows // MOST_BLOCKS), LEAST_ROWS)
    return ((start, min(start + size, rows)) for start in range(0, rows, size))


def sliced(builder: Builder, value: Node, axis: int, start: Int, stop: Int, size: Int) -> Node:
    if start == 0 and stop == size:
        return value
    return builder.node("slice", value, axis=axis, start=start, stop=stop, step=1)


def put(builder: Builder, value: Node, axis: int, start: Int, stop: Int, part: Node) -> Node:
    return builder.node("slice_scatter", value, part, axis=axis, start=start, stop=stop, step=1)
