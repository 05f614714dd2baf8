"""Random tensors with every kind of layout that eager programs have."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch

from kiln.tensor.spec import TensorSpec


class StaticOracle:
    """Answers for static sizes only."""

    def decide(self, relation: object) -> bool:
        assert isinstance(relation, bool), relation
        return relation

    expect = decide_layout = decide

    def is_assumed(self, relation: object) -> bool:
        return False


STATIC = StaticOracle()
SIZES = (1, 1, 2, 3, 4)


def spec_of(x: torch.Tensor) -> TensorSpec:
    return TensorSpec(x.dtype, tuple(x.shape), tuple(x.stride()), x.storage_offset(), x.device)


def random_sizes(rng: random.Random, rank: int, empty: bool = True) -> tuple[int, ...]:
    sizes = [rng.choice(SIZES) for _ in range(rank)]
    if empty and rank and rng.random() < 0.05:
        sizes[rng.randrange(rank)] = 0
    return tuple(sizes)


def random_layout(rng: random.Random, sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor of `sizes`: contiguous, permuted, channels last, sliced, expanded or oddly strided where size is 1."""
    rank = len(sizes)
    kind = rng.choice(("contiguous", "permuted", "permuted", "channels", "sliced", "expanded", "odd", "reversed"))
    if kind == "permuted":
        order = rng.sample(range(rank), rank)
        inverse = [order.index(axis) for axis in range(rank)]
        return _numbers([sizes[axis] for axis in order], dtype).permute(inverse)
    if kind == "reversed":
        return _numbers(sizes[::-1], dtype).permute(tuple(range(rank))[::-1])
    if kind == "channels" and rank in (4, 5):
        layout = torch.channels_last if rank == 4 else torch.channels_last_3d
        return _numbers(sizes, dtype).contiguous(memory_format=layout)
    if kind == "sliced" and rank:
        axis = rng.randrange(rank)
        wide = [size * 2 + 1 if i == axis else size for i, size in enumerate(sizes)]
        stop = 1 + 2 * sizes[axis] if rng.random() < 0.5 else 1 + sizes[axis]
        step = 2 if stop > 1 + sizes[axis] else 1
        index = [slice(None)] * rank
        index[axis] = slice(1, stop, step)
        return (
            random_layout(rng, tuple(wide), dtype)[tuple(index)]
            if rng.random() < 0.3
            else _numbers(wide, dtype)[tuple(index)]
        )
    if kind == "expanded" and rank:
        narrow = [1 if rng.random() < 0.4 else size for size in sizes]
        return _numbers(narrow, dtype).expand(sizes)
    if kind == "odd" and 0 not in sizes:
        x = _numbers(sizes, dtype)
        strides = [
            rng.choice((1, 7, 100)) if size == 1 else stride for size, stride in zip(sizes, x.stride(), strict=True)
        ]
        return x.as_strided(sizes, strides)
    return _numbers(sizes, dtype)


def _numbers(sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(tuple(sizes)) * 3).to(dtype)


def random_tensor(rng: random.Random, rank: int, empty: bool = True) -> torch.Tensor:
    return random_layout(rng, random_sizes(rng, rank, empty))


def random_operands(rng: random.Random, count: int) -> list[torch.Tensor]:
    """Tensors that broadcast together."""
    sizes = random_sizes(rng, rng.randint(0, 5))
    return [random_layout(rng, _narrowed(rng, sizes)) for _ in range(count)]


def _narrowed(rng: random.Random, sizes: tuple[int, ...]) -> tuple[int, ...]:
    if rng.random() < 0.5:
        return sizes
    kept = sizes[rng.randint(0, len(sizes)) :]
    return tuple(1 if rng.random() < 0.3 else size for size in kept)


def same_layout(spec: TensorSpec, result: torch.Tensor, operands: Sequence[torch.Tensor]) -> None:
    """`spec` is exactly the layout that eager returned."""
    layouts = [f"{tuple(x.shape)} strides {x.stride()}" for x in operands]
    assert spec.sizes == tuple(result.shape), layouts
    assert spec.strides == tuple(result.stride()), (layouts, spec.strides, result.stride())
    assert spec.offset == result.storage_offset(), (layouts, spec.offset)
    assert spec.dtype == result.dtype
    assert spec.device == result.device
