"""Which misaligned products are worth aligning: what they save against what paddings and slices cost.

    [4096, 768] x [768, 50257] in bf16, result returned      seconds   why
    misaligned                                     2.87e-3   316 GFLOP at 110 TFLOP/s
    aligned                                        0.45e-3   at 700
    weight padded (an argument of the region)      0.05e-3   154 MB at 3.5 TB/s, a launch
    result copied into eager's strides             0.24e-3   823 MB at 3.5 TB/s, a launch

A product takes what its arithmetic or its bytes take, the larger, so small and thin products gain nothing. A padding
costs one launch, for the zeros, where the loops that make the value write it into its place: it is then needed in
memory in no other form, or the padding is rows at its end, and the value is what stands before them. A slice is
free where loops read it, or where it leaves out the last rows of a matrix. Otherwise each is a pass over the data and
a launch, also where the schedule will find a kernel for it. A padding that several products want is paid for in equal
parts; who loses leaves, and the others are asked again.

A symbol counts as its number in the call that is compiled: no guard comes of it, and other calls get the same program.
Sizes that only data decide have none: such products are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import Users, users_of
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.passes.misaligned import Padding, Product
from kiln.graph.prims.table import Kind
from kiln.symbolic import Int


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """Of an H200; other GPUs with tensor cores are taken to have similar ratios.

    Operations per second: `aligned`, `even` (rows that are multiples of 4 bytes), `odd` (of 2 bytes). Measured in bf16
    with torch 2.11, TFLOP/s of the product, its two gradients, and the three aligned:
    4096 x 768 x 50257: 93, 132, 144 and 662, 734, 733; 8192 x 768 x 30522: 228, 236, 236 and 701, 754, 749;
    4096 x 512 x 30522: 195, 237, 233 and 611, 708, 687. With an aligned stride alone, the size still odd: 125.
    `memory`: bytes per second of a copy, reads and writes counted. `launch`: seconds of one more kernel.
    `least`: what a product must save by this estimate, since small ones gain less than the rates say:
    1024 x 1024 x 1001 takes 39, 31 and 32 us, aligned 28, 24 and 29, and the rates say 16 less.
    """

    aligned: float = 700e12
    even: float = 230e12
    odd: float = 110e12
    memory: float = 3.5e12
    launch: float = 4e-6
    least: float = 10e-6


@final
@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, at the sizes of the call that is compiled."""

    rates: Rates
    sizes: GuardFreeOracle

    def is_known(self, product: Product) -> bool:
        return self.sizes.hint(product.flops) is not None

    def saved(self, product: Product) -> float:
        """By aligning it; below the time of its bytes no product gets."""
        rates, flops = self.rates, self._number(product.flops)
        moved = self._number(product.elements) * product.node.tensor.dtype.itemsize / rates.memory
        misaligned = rates.odd if product.granule == 1 else rates.even
        return max(flops / misaligned, moved) - max(flops / rates.aligned, moved)

    def copy(self, node: Node) -> float:
        """Of reading and writing `node` by a kernel of its own."""
        moved = 2 * self._number(node.tensor.numel()) * node.tensor.dtype.itemsize
        return moved / self.rates.memory + self.rates.launch

    def _number(self, value: Int) -> int:
        found = self.sizes.hint(value)
        assert found is not None, "asked of a product whose sizes are not known"
        return found


IN_LOOPS = frozenset({
    Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.DATA_MOVEMENT, Kind.SCATTER, Kind.CREATE, Kind.RANDOM,
})  # fmt: skip
"""Readers that index what they read, whatever its strides."""
BY_ELEMENT = frozenset({Kind.POINTWISE, Kind.DATA_MOVEMENT})
"""Makers that can write their elements anywhere."""
BOUND_VIEWS = frozenset({"as_strided", "view_dtype"})
"""They look at memory, not at elements."""


@final
class Readers:
    """Who reads the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._users: Users = users_of(graph)
        self._roots = frozenset(graph.roots())
        self._in_memory: dict[Node, frozenset[Node] | None] = {}

    def in_memory(self, node: Node) -> frozenset[Node] | None:
        """The calls that need `node`, or views of it, as a tensor; None: it leaves the graph, too."""
        if node not in self._in_memory:
            self._in_memory[node] = self._find(node)
        return self._in_memory[node]

    def _find(self, node: Node) -> frozenset[Node] | None:
        found: set[Node] = set()
        pending = [node]
        while pending:
            value = pending.pop()
            if value in self._roots:
                return None
            for user in self._users[value]:
                if user.op.kind is Kind.VIEW and user.op.name not in BOUND_VIEWS:
                    pending.append(user)
                elif user.op.kind not in IN_LOOPS:
                    found.add(user)
        return frozenset(found)

    def joins(self, padding: Padding, products: Iterable[Product]) -> bool:
        """Do the loops that make the value write it into its place among zeros?"""
        owner = base_of(padding.base)
        if owner.op.kind not in BY_ELEMENT or padding.swapped:
            return False
        if adds_rows(padding):
            return True
        needed = self.in_memory(owner)
        return needed is not None and needed <= {one.node for one in products if forms(one, owner) == {padding}}

    def slice_is_free(self, product: Product) -> bool:
        old = product.node.tensor.sizes
        return product.sizes[1:] == old[1:] or self.in_memory(product.node) == frozenset()


def adds_rows(padding: Padding) -> bool:
    """Is the value itself what stands before the zeros?"""
    spec = padding.base.tensor
    return padding.base.op.kind is not Kind.VIEW and spec.is_contiguous() and padding.sizes[1:] == spec.sizes[1:]


def forms(product: Product, owner: Node) -> set[Padding | None]:
    """The paddings through which `product` reads `owner`; None: it reads it as it is."""
    return {one.padding for one in product.operands if base_of(one.node) is owner}


def worth_aligning(products: Sequence[Product], readers: Readers, costs: Costs) -> list[Product]:
    """The products that save more than they cost."""
    chosen = [one for one in products if costs.is_known(one)]
    while True:
        kept = _winners(chosen, readers, costs)
        if len(kept) == len(chosen):
            return chosen
        chosen = kept


def _winners(products: list[Product], readers: Readers, costs: Costs) -> list[Product]:
    wanted = Counter([padding for one in products for padding in one.paddings])
    parts = {
        padding: (costs.rates.launch if readers.joins(padding, products) else costs.copy(padding.base)) / count
        for padding, count in wanted.items()
    }
    return [one for one in products if _gain(one, parts, readers, costs) >= costs.rates.least]


def _gain(product: Product, parts: dict[Padding, float], readers: Readers, costs: Costs) -> float:
    slices = 0.0 if readers.slice_is_free(product) else costs.copy(product.node)
    return costs.saved(product) - slices - sum([parts[padding] for padding in product.paddings])
