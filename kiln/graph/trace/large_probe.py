"""Probes of ops on large tensors: with small sizes in the place of large ones.

    aten._embedding_bag(weight: f32[1000000, 64], indices: i64[8192], ...)
        probed with f32[n0, 64] and i64[n1] for several numbers    =>    f32[16, 64] and others, with n0 = 1000000

A large size becomes a symbol of its own wherever it stands, so that arguments which have to fit still do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import cast

from kiln.graph.trace.symbolic_probe import MOST_SYMBOLS, at_point, probe_symbols, strides_in_order
from kiln.symbolic import Int, Relation, symbol
from kiln.symbolic.expr import Symbol
from kiln.tensor.spec import Spec, TensorSpec

HINTS = (37, 41, 43, 47)
"""Sizes of the first probe, in the place of the largest ones."""


def probe_with_small_sizes(probe: Callable[[object], Spec], arguments: object, most: int) -> Spec | None:
    """The specs of the results of `probe(arguments)`, whose sizes are numbers, by tensors of at most `most` elements.

    None where the results do not follow from the sizes, or too many of these are large.
    """
    replaced: dict[int, Symbol] = {}
    tensors = tensors_of(arguments)
    while (largest := largest_size(tensors, replaced, most)) is not None:
        if len(replaced) == MOST_SYMBOLS:
            return None
        replaced[largest] = symbol(f"n{len(replaced)}")
    changed = [tensor for tensor in tensors if not replaced.keys().isdisjoint(numbers(tensor.sizes))]
    if not changed or not all([has_dense_order(tensor) for tensor in changed]):
        return None
    hints = dict(zip(replaced.values(), HINTS, strict=False))
    real = {made: size for size, made in replaced.items()}

    def holds(relation: Relation | bool) -> bool:
        return relation if isinstance(relation, bool) else relation.evaluate(real)

    made = probe_symbols(probe, with_sizes(arguments, replaced), hints.__getitem__, holds)
    return None if made is None else cast(Spec, at_point(made, real))


def tensors_of(value: object) -> list[TensorSpec]:
    if isinstance(value, tuple):
        return [tensor for part in value for tensor in tensors_of(part)]
    return [value] if isinstance(value, TensorSpec) else []


def numbers(sizes: tuple[Int, ...]) -> tuple[int, ...]:
    """The sizes of a tensor without symbols."""
    return cast("tuple[int, ...]", sizes)


def largest_size(tensors: list[TensorSpec], replaced: Mapping[int, Symbol], most: int) -> int | None:
    """The largest size that is not `replaced` in a tensor of more than `most` elements; none where all are."""
    found: list[int] = []
    for tensor in tensors:
        sizes = numbers(tensor.sizes)
        if prod([HINTS[-1] if size in replaced else size for size in sizes]) > most:
            found += [size for size in sizes if size not in replaced]
    return max(found, default=None)


def order_of(tensor: TensorSpec) -> list[int]:
    """The axes as they lie in memory, the outermost first."""
    strides = numbers(tensor.strides)
    return sorted(range(tensor.rank), key=lambda axis: (-strides[axis], axis))


def has_dense_order(tensor: TensorSpec) -> bool:
    return tensor.strides == strides_in_order(tensor.sizes, order_of(tensor))


def with_sizes(value: object, replaced: Mapping[int, Symbol]) -> object:
    """The arguments with symbols for sizes; numbers among them, which may be sizes too, stay as they are."""
    if isinstance(value, tuple):
        return tuple([with_sizes(part, replaced) for part in value])
    if not isinstance(value, TensorSpec) or replaced.keys().isdisjoint(numbers(value.sizes)):
        return value
    sizes = tuple([replaced.get(size, size) for size in numbers(value.sizes)])
    return TensorSpec(value.dtype, sizes, strides_in_order(sizes, order_of(value)), 0, value.device)
