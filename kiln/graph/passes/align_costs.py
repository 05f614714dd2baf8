"""Which misaligned products are worth aligning: time saved against the cost of paddings and slices.

    [4096, 768] x [768, 50257] in bf16, result returned      seconds   why
    misaligned                                     2.43e-3   316 GFLOP at 130 TFLOP/s
    aligned                                        0.43e-3   at 730
    weight padded (an argument of the region)      0.04e-3   154 MB at 4.2 TB/s, a launch
    result copied into eager's strides             0.20e-3   823 MB at 4.2 TB/s, a launch

A product takes the larger of the times of its arithmetic and its bytes, so small and thin products gain nothing. A
padding costs only a launch, for the zeros, if the loops that compute the value can write it in padded form: either no
one needs another form in memory, or the padding adds rows at the end and the value is a slice of it. A slice is free if
loops read it, or if it drops the last rows of a matrix. Otherwise each costs a pass over the data and a launch, even if
fusion finds a kernel for it. Products that share a padding share its cost equally; those that lose are dropped, and the
rest is evaluated again.

Symbols are estimated by their hints, without a guard: other calls get the same program. Products with data-dependent
sizes, which have no hints, are left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import final

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import Node, base_of
from kiln.graph.ir.rewrite import Users, users_of
from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.passes.misaligned import Padding, Product
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.symbolic import Int


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """Rates of an H200; other GPUs with tensor cores are assumed to have similar ratios.

    Operations per second: `aligned`, `even` (rows that are multiples of 4 bytes), `odd` (of 2 bytes). `memory`: bytes
    per second of a copy, reads and writes counted. `least`: seconds that a product must save by this estimate, because
    95 % of the small ones save at most so much less. All these are found by `python -m kiln bench --suite products`, a
    sweep over 180 products in three alignments (a test compares them with its newest result). `launch`: seconds of
    another kernel (tests/gpu/test_launch.py). With an aligned stride alone a product is as slow as without.
    """

    aligned: float = 730e12
    even: float = 230e12
    odd: float = 130e12
    memory: float = 4.2e12
    launch: float = 4e-6
    least: float = 6.2e-6


@final
@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds, at the sizes of the call that is compiled."""

    rates: Rates
    sizes: GuardFreeOracle

    def is_known(self, product: Product) -> bool:
        return self.sizes.hint(product.flops) is not None

    def saved(self, product: Product) -> float:
        """By aligning it; no product takes less than the time of its bytes."""
        rates, flops = self.rates, self._number(product.flops)
        moved = self._number(product.elements) * product.node.tensor.dtype.itemsize / rates.memory
        misaligned = rates.odd if product.granule == 1 else rates.even
        return max(flops / misaligned, moved) - max(flops / rates.aligned, moved)

    def copy(self, node: Node) -> float:
        """Of copying `node` by a separate kernel."""
        moved = 2 * self._number(node.tensor.numel()) * node.tensor.dtype.itemsize
        return moved / self.rates.memory + self.rates.launch

    def _number(self, value: Int) -> int:
        found = self.sizes.hint(value)
        assert found is not None, "sizes of a considered product have hints"
        return found


IN_LOOPS = frozenset({
    Kind.POINTWISE, Kind.REDUCTION, Kind.SCAN, Kind.DATA_MOVEMENT, Kind.SCATTER, Kind.CREATE, Kind.DRAW,
})  # fmt: skip
"""Readers that handle any strides."""
BY_ELEMENT = frozenset({Kind.POINTWISE, Kind.DATA_MOVEMENT})
"""Ops that can write their elements anywhere."""
BOUND_VIEWS = frozenset({"as_strided", "view_dtype"})
"""Views of memory rather than of elements: their results depend on the strides of the input."""


@final
class Readers:
    """The readers of the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self._users: Users = users_of(graph)
        self._roots = frozenset(graph.roots())
        self._in_memory: dict[Node, frozenset[Node] | None] = {}

    def in_memory(self, node: Node) -> frozenset[Node] | None:
        """The calls that need `node`, or views of it, as a tensor; None if it also leaves the graph."""
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

    def is_only_returned(self, node: Node) -> bool:
        """Do just outputs need it, as it is or through views?"""
        pending = [node]
        while pending:
            users = self._users[pending.pop()]
            if any(user.op.kind is not Kind.VIEW or user.op.name in BOUND_VIEWS for user in users):
                return False
            pending += users
        return self.in_memory(node) is None

    def joins(self, padding: Padding, products: Iterable[Product]) -> bool:
        """Whether the loops that compute the value can write it among the zeros."""
        owner = base_of(padding.base)
        if owner.op.kind not in BY_ELEMENT or padding.swapped:
            return False
        if adds_rows(padding):
            return True
        needed = self.in_memory(owner)
        return needed is not None and needed <= {
            product.node for product in products if forms(product, owner) == {padding}
        }

    def only_sums_of_columns(self, padding: Padding) -> bool:
        """Whether the loops that read the value sum its columns: loops of their own, since others go along a row."""
        value, views = padding.base, [padding.base]
        if value.op.kind is Kind.VIEW:
            return False
        readers: list[Node] = []
        while views:
            users = self._users[views.pop()]
            views += [user for user in users if user.op.kind is Kind.VIEW]
            readers += [user for user in users if user.op.kind in IN_LOOPS]
        last = value.tensor.rank - 1
        return bool(readers) and all(
            reader.op.name == "sum" and reader.inputs[0] is value and last not in reader.attrs["axes"]
            for reader in readers
        )

    def slice_is_free(self, product: Product) -> bool:
        old = product.node.tensor.sizes
        return product.sizes[1:] == old[1:] or self.in_memory(product.node) == frozenset()


def adds_rows(padding: Padding) -> bool:
    """Whether the zeros follow the value as rows, so that it is a slice of the padded tensor."""
    spec = padding.base.tensor
    return padding.base.op.kind is not Kind.VIEW and spec.is_contiguous() and padding.sizes[1:] == spec.sizes[1:]


def forms(product: Product, owner: Node) -> set[Padding | None]:
    """The paddings through which `product` reads `owner`; None: without padding."""
    return {operand.padding for operand in product.operands if base_of(operand.node) is owner}


def worth_aligning(products: Sequence[Product], readers: Readers, costs: Costs) -> list[Product]:
    """The products that save more time than they cost."""
    chosen = [product for product in products if costs.is_known(product)]
    while True:
        kept = _winners(chosen, readers, costs)
        if len(kept) == len(chosen):
            return chosen
        chosen = kept


def _winners(products: list[Product], readers: Readers, costs: Costs) -> list[Product]:
    wanted = Counter([padding for product in products for padding in product.paddings])
    parts = {
        padding: (costs.rates.launch if readers.joins(padding, products) else costs.copy(padding.base)) / count
        for padding, count in wanted.items()
    }
    return [product for product in products if _gain(product, parts, readers, costs) >= costs.rates.least]


def _gain(product: Product, parts: dict[Padding, float], readers: Readers, costs: Costs) -> float:
    slices = 0.0 if readers.slice_is_free(product) else costs.copy(product.node)
    return costs.saved(product) - slices - sum([parts[padding] for padding in product.paddings])
