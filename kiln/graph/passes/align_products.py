"""Pads 16-bit matrix products on GPUs whose rows are not multiples of 16 bytes, and slices their results.

    %2: bf16[4096, 50257] = mul(%0, %0)
    %3: bf16[4096, 768] = aten.mm.default(%2, %1)
    %4: bf16[50257, 4096 | 1, 50257] = permute(%2, dims=(1, 0))
    %5: bf16[50257, 768] = aten.mm.default(%4, %3)
                                =>
    %6: bf16[4096, 7] = full(0, sizes=(4096, 7))
    %7: bf16[4096, 50264] = cat(%2, %6, axis=1)                    one kernel with the producer of %2
    %8: bf16[50264, 768] = pad(%1, 0, low=(0, 0), high=(7, 0))     an input of the graph: a copy
    %3: bf16[4096, 768] = aten.mm.default(%7, %8)
    %4: bf16[50264, 4096 | 1, 50264] = permute(%7, dims=(1, 0))
    %9: bf16[50264, 768] = aten.mm.default(%4, %3)
    %5: bf16[50257, 768] = slice(%9, axis=0, start=0, stop=50257, step=1)

`misaligned.py` finds the products, `align_costs.py` decides where it pays. A loop writes its value into its part of
the padded tensor (`cat`); if the padding adds rows, or if the other readers are sums of columns (the gradient of a
bias), that part is the value for all readers. The result is sliced, and a `clone` restores eager's strides: a copy only
if it is needed in memory. All products share a padding. A large result that is only returned is computed in blocks
instead (`products_in_blocks.py`).

Both factors are padded along the contracted dimension: zeros times NaN or infinity would not be zero.
Needs: a partitioned graph, or padded values would be saved for the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rebuilt, with_inputs
from kiln.graph.passes.align_costs import Costs, Rates, Readers, adds_rows, worth_aligning
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.misaligned import Operand, Padding, Product, misaligned_product, swap
from kiln.graph.passes.products_in_blocks import in_blocks, takes_blocks
from kiln.support.records import dataclass
from kiln.symbolic import Int


@final
@dataclass(frozen=True)
class AlignProducts:
    name: str = "align-products"
    rates: Rates = field(default_factory=Rates)

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        found = [product for node in graph.nodes if (product := misaligned_product(node)) is not None]
        if not found:
            return graph, 0
        readers = Readers(graph)
        chosen = worth_aligning(found, readers, Costs(self.rates, context.oracle))
        return (ProductAligner(graph, context, chosen, readers).run(), len(chosen)) if chosen else (graph, 0)


@final
class ProductAligner:
    """State of a run: the new node of each old one, and the paddings made so far."""

    def __init__(self, graph: Graph, context: PassContext, products: Sequence[Product], readers: Readers) -> None:
        paddings = dict.fromkeys([padding for product in products for padding in product.paddings])
        self.graph = graph
        self.builder = Builder(context.oracle)
        self.products = {product.node: product for product in products}
        self.new: dict[Node, Node] = {node: node for node in graph.inputs}
        self.joining = frozenset([padding for padding in paddings if readers.joins(padding, products)])
        self.followed = {
            padding.base: padding
            for padding in self.joining
            if adds_rows(padding) or readers.only_sums_of_columns(padding)
        }
        """Values that become a part of their padding, the first rows or columns."""
        self.returned = frozenset([product.node for product in products if readers.is_only_returned(product.node)])
        self._padded: dict[Padding, Node] = {}

    def run(self) -> Graph:
        for old in self.graph.nodes:
            self.builder.origin = old.origin
            product = self.products.get(old)
            self.new[old] = self.same(old) if product is None else self.aligned(product)
            if old in self.followed:
                self.new[old] = self.sliced(self.padded(self.followed[old]), old.tensor.sizes)
        return rebuilt(self.graph, self.builder.nodes, self.new)

    def same(self, old: Node) -> Node:
        return self.builder.append(with_inputs(old, tuple([self.new[value] for value in old.inputs])))

    def aligned(self, product: Product) -> Node:
        """The product of padded operands, sliced to the old elements in their old layout."""
        old = product.node
        if old in self.returned and takes_blocks(product):
            return in_blocks(product, self.builder, self.new.__getitem__)
        operands = [self.operand(operand) for operand in product.operands]
        spec = old.tensor.with_sizes(product.sizes)
        made = self.builder.aten(old.attrs["target"], operands, dict(old.attrs["kwargs"]), spec)
        cut = self.sliced(made, old.tensor.sizes)
        return cut if cut.spec == old.spec else self.builder.node("clone", cut, strides=old.tensor.strides)

    def operand(self, operand: Operand) -> Node:
        if operand.padding is None:
            return self.new[operand.node]
        padded = self.padded(operand.padding)
        return self.swapped(padded) if operand.swapped else padded

    def padded(self, padding: Padding) -> Node:
        if padding not in self._padded:
            base = self.new[padding.base]
            value = self.swapped(base) if padding.swapped else base
            make = self.joined if padding in self.joining else self.copied
            self._padded[padding] = make(value, padding.sizes)
        return self._padded[padding]

    def joined(self, value: Node, sizes: Sequence[Int]) -> Node:
        """The value and the zeros as parts of a tensor that two loops write."""
        for axis, size in enumerate(sizes):
            old = value.tensor.sizes
            if size != old[axis]:
                rest = (*old[:axis], size - old[axis], *old[axis + 1 :])
                zeros = self.builder.node("full", self.zero(value), sizes=rest)
                value = self.builder.node("cat", value, zeros, axis=axis)
        return value

    def copied(self, value: Node, sizes: Sequence[Int]) -> Node:
        """A padded copy; a plain copy if only the row stride is misaligned."""
        old = value.tensor.sizes
        if tuple(sizes) == old:
            return self.builder.node("clone", value, strides=None)
        high = tuple([new - size for new, size in zip(sizes, old, strict=True)])
        return self.builder.node("pad", value, self.zero(value), low=(0,) * len(old), high=high)

    def zero(self, value: Node) -> Node:
        return self.builder.constant(0.0, value.tensor.dtype, value.tensor.device)

    def swapped(self, value: Node) -> Node:
        return self.builder.node("permute", value, dims=swap(value.tensor.rank))

    def sliced(self, value: Node, sizes: Sequence[Int]) -> Node:
        """The first elements of each dimension."""
        for axis, size in enumerate(sizes):
            if size != value.tensor.sizes[axis]:
                value = self.builder.node("slice", value, axis=axis, start=0, stop=size, step=1)
        return value
