"""Pads 16-bit matrix products on a GPU whose rows are not multiples of 16 bytes, and slices their results.

    %2: bf16[4096, 50257] = mul(%0, %0)
    %3: bf16[4096, 768] = aten.mm.default(%2, %1)
    %4: bf16[50257, 4096 | 1, 50257] = permute(%2, dims=(1, 0))
    %5: bf16[50257, 768] = aten.mm.default(%4, %3)
                                =>
    %6: bf16[4096, 7] = full(0, sizes=(4096, 7))
    %7: bf16[4096, 50264] = cat(%2, %6, axis=1)                    one kernel with what makes %2
    %8: bf16[50264, 768] = pad(%1, 0, low=(0, 0), high=(7, 0))     an argument of the graph: a copy
    %3: bf16[4096, 768] = aten.mm.default(%7, %8)
    %4: bf16[50264, 4096 | 1, 50264] = permute(%7, dims=(1, 0))
    %9: bf16[50264, 768] = aten.mm.default(%4, %3)
    %5: bf16[50257, 768] = slice(%9, axis=0, start=0, stop=50257, step=1)

Which they are: `misaligned.py`; where it pays: `align_costs.py`. All is said in ops that loops know. What a loop makes
is written into its part of the padded tensor (`cat`); where rows follow it, that part is the value for all its readers.
The result is sliced, and a `clone` gives it eager's strides where it lacks them: a copy only if something needs it in
memory. One padding serves all products of the graph.

The contracted dimension has zeros in both factors: zeros in one would meet anything in the other.
Needs: to run on graphs that are cut already, or padded values would be saved for the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rebuilt, with_inputs
from kiln.graph.passes.align_costs import Costs, Rates, Readers, adds_rows, worth_aligning
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.misaligned import Operand, Padding, Product, misaligned_product, swap
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
    """One run: the new node of each old one, and the paddings that were made."""

    def __init__(self, graph: Graph, context: PassContext, products: Sequence[Product], readers: Readers) -> None:
        paddings = dict.fromkeys([padding for one in products for padding in one.paddings])
        self.graph = graph
        self.builder = Builder(context.oracle)
        self.products = {one.node: one for one in products}
        self.place: dict[Node, Node] = {node: node for node in graph.inputs}
        self.joining = frozenset([one for one in paddings if readers.joins(one, products)])
        self.followed = {one.base: one for one in self.joining if adds_rows(one)}
        """Values that become the first rows of their padding."""
        self._padded: dict[Padding, Node] = {}

    def run(self) -> Graph:
        for old in self.graph.nodes:
            self.builder.origin = old.origin
            product = self.products.get(old)
            self.place[old] = self.same(old) if product is None else self.aligned(product)
            if old in self.followed:
                padded = self.padded(self.followed[old])
                self.place[old] = self.sliced(padded, old.tensor.sizes)
        return rebuilt(self.graph, self.builder.nodes, self.place)

    def same(self, old: Node) -> Node:
        return self.builder.append(with_inputs(old, tuple([self.place[one] for one in old.inputs])))

    def aligned(self, product: Product) -> Node:
        """The product of padded operands; its old elements in their old layout."""
        old = product.node
        operands = [self.operand(one) for one in product.operands]
        spec = old.tensor.with_sizes(product.sizes)
        made = self.builder.aten(old.attrs["target"], operands, dict(old.attrs["kwargs"]), spec)
        cut = self.sliced(made, old.tensor.sizes)
        return cut if cut.spec == old.spec else self.builder.node("clone", cut, strides=old.tensor.strides)

    def operand(self, operand: Operand) -> Node:
        if operand.padding is None:
            return self.place[operand.node]
        padded = self.padded(operand.padding)
        return self.swapped(padded) if operand.swapped else padded

    def padded(self, padding: Padding) -> Node:
        if padding not in self._padded:
            base = self.place[padding.base]
            value = self.swapped(base) if padding.swapped else base
            make = self.joined if padding in self.joining else self.copied
            self._padded[padding] = make(value, padding.sizes)
        return self._padded[padding]

    def joined(self, value: Node, sizes: Sequence[Int]) -> Node:
        """The value and the zeros as parts of one tensor, which two loops write."""
        for axis, size in enumerate(sizes):
            old = value.tensor.sizes
            if size != old[axis]:
                rest = (*old[:axis], size - old[axis], *old[axis + 1 :])
                value = self.builder.node(
                    "cat", value, self.builder.node("full", self.zero(value), sizes=rest), axis=axis
                )
        return value

    def copied(self, value: Node, sizes: Sequence[Int]) -> Node:
        """A copy by one loop; rows that lie at odd places get no more elements."""
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
