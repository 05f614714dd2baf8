"""Computes at compile time what depends on constants alone.

    %1 = constant(value=2.0); %2 = rsqrt(%1)                    =>   constant(value=0.7071...)
    %2 = full(%1, sizes=(4, 8)); %3 = lt(%2, %0)                =>   lt of the number and %0, if the sizes stay
    %1 = iota(length=8, start=0, step=1); %2 = add(%1, 3)       =>   iota(length=8, start=3, step=1)

A pointwise op on uniform inputs has a uniform result: the ATen kernel computes it on a tensor of one element, and
`full` repeats it. Constant tensors are not folded.
Needs: a functional graph.  Leaves: nodes without users.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import final

import torch

from kiln.graph.ir.aten_rules import ATEN_RULES
from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from kiln.graph.ir.interpret import EagerCall
from kiln.graph.ir.node import Node
from kiln.graph.ir.rewrite import rewrite
from kiln.graph.passes.manager import PassContext
from kiln.graph.passes.patterns import can_replace
from kiln.graph.passes.uniform import Number, Uniform
from kiln.graph.prims.table import Kind
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

IDEMPOTENT = frozenset({"amax", "amin", "any", "all"})
"""Reductions that return the number of a uniform, non-empty input."""


@final
@dataclass(frozen=True)
class ConstantFold:
    name: str = "constant-fold"

    def run(self, graph: Graph, context: PassContext) -> tuple[Graph, int]:
        uniform = Uniform()
        return rewrite(graph, lambda builder, node: folded(builder, node, uniform), context.oracle)


def folded(builder: Builder, node: Node, uniform: Uniform) -> Node | None:
    """A constant, or None."""
    if node.op.kind is Kind.POINTWISE:
        return _uniform_pointwise(builder, node, uniform) or _iota_arithmetic(builder, node, uniform)
    if node.op.name in IDEMPOTENT:
        number = uniform.value(node.inputs[0])
        if number is not None and all(isinstance(size, int) and size for size in node.inputs[0].tensor.sizes):
            return uniform_node(builder, number, node.tensor)
    return None


def _uniform_pointwise(builder: Builder, node: Node, uniform: Uniform) -> Node | None:
    numbers = []
    for operand in node.inputs:
        number = uniform.value(operand)
        if number is None:
            return None
        numbers.append(number)
    result = computed(node, numbers)
    return None if result is None else uniform_node(builder, result, node.tensor)


def computed(node: Node, numbers: list[Number]) -> Number | None:
    """The result of eager's kernel for a single element; None if it raises (integer division by zero)."""
    tensors = [
        torch.tensor(number, dtype=x.tensor.dtype, device="cpu") for number, x in zip(numbers, node.inputs, strict=True)
    ]
    spec = TensorSpec(node.tensor.dtype, (), ())
    try:
        result = ATEN_RULES[node.op.name](EagerCall(spec), *tensors, **node.attrs)
    except RuntimeError:
        return None
    assert isinstance(result, torch.Tensor)
    return result.item()


def uniform_node(builder: Builder, number: Number, spec: TensorSpec) -> Node | None:
    """`number` repeated; None if a fresh contiguous tensor cannot replace `spec`."""
    made = builder.constant(number, spec.dtype, spec.device)
    if spec.rank:
        made = builder.node("full", made, sizes=spec.sizes)
    return made if can_replace(made.spec, spec) else None


# Arithmetic on iotas, integers only: floating point would round differently.

IotaStep = Callable[[int, int, int], tuple[int, int]]
# fmt: off
IOTA_STEPS: dict[str, IotaStep] = {  # new start and step
    "add": lambda start, step, number: (start + number, step),
    "sub": lambda start, step, number: (start - number, step),
    "mul": lambda start, step, number: (start * number, step * number),
}
# fmt: on
EXACT_COUNTS = {torch.float32: 1 << 24, torch.float64: 1 << 53, torch.int32: 1 << 31, torch.int64: 1 << 62}
"""Magnitudes below which an iota in another dtype is exact."""


def _iota_arithmetic(builder: Builder, node: Node, uniform: Uniform) -> Node | None:
    counter = node.inputs[0]
    swapped = counter.op.name != "iota" and node.op.commutative
    if swapped:
        counter = node.inputs[1]
    if counter.op.name != "iota" or counter.tensor.dtype is not torch.int64:
        return None
    attrs = dict(counter.attrs)
    if node.op.name == "convert":
        if not _stays_exact(attrs, node.tensor.dtype):
            return None
        return builder.node("iota", **{**attrs, "dtype": node.tensor.dtype})
    change = IOTA_STEPS.get(node.op.name)
    number = uniform.value(node.inputs[0 if swapped else 1]) if change else None
    if change is None or not isinstance(number, int) or not _is_small(attrs, number):
        return None
    attrs["start"], attrs["step"] = change(attrs["start"], attrs["step"], number)
    made = builder.node("iota", **attrs)
    return made if can_replace(made.spec, node.spec) else None


def _is_small(attrs: Mapping[str, object], number: int) -> bool:
    """Sums and products of these fit into 64 bits."""
    values = (attrs["start"], attrs["step"], number)
    return all(isinstance(value, int) and abs(value) < 1 << 20 for value in values)


def _stays_exact(attrs: Mapping[str, object], dtype: torch.dtype) -> bool:
    limit = EXACT_COUNTS.get(dtype)
    start, step, length = attrs["start"], attrs["step"], attrs["length"]
    if limit is None or not (isinstance(start, int) and isinstance(step, int) and isinstance(length, int)):
        return False
    return abs(start) < limit and abs(start + step * length) < limit
