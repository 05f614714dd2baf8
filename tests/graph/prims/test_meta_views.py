"""Specs of views and moves against eager, on random layouts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kiln.graph.ir.size_oracle import GuardFreeOracle
from kiln.graph.prims.errors import ImpossibleView, ShapeMismatch
from kiln.graph.prims.meta import CHECKS, META, view_strides
from kiln.tensor.spec import TensorSpec
from tests.graph.prims.layouts import STATIC, random_layout, random_sizes, random_tensor, same_layout, spec_of

ROUNDS = 150
Case = tuple[dict[str, Any], torch.Tensor]
CASES: dict[str, Callable[[random.Random, torch.Tensor], Case | None]] = {}


def case(name: str) -> Callable[[Any], Any]:
    def add(make: Any) -> Any:
        CASES[name] = make
        return make

    return add


@case("permute")
def permute(rng: random.Random, x: torch.Tensor) -> Case:
    dims = tuple(rng.sample(range(x.dim()), x.dim()))
    return {"dims": dims}, x.permute(dims)


@case("expand")
def expand(rng: random.Random, x: torch.Tensor) -> Case:
    sizes = tuple(rng.choice((1, 2, 3)) for _ in range(rng.randint(0, 2)))
    sizes += tuple(rng.choice((1, 4)) if size == 1 else size for size in x.shape)
    return {"sizes": sizes}, x.expand(sizes)


@case("unsqueeze")
def unsqueeze(rng: random.Random, x: torch.Tensor) -> Case:
    axis = rng.randint(0, x.dim())
    return {"axis": axis}, x.unsqueeze(axis)


@case("squeeze")
def squeeze(rng: random.Random, x: torch.Tensor) -> Case:
    axes = tuple(axis for axis in range(x.dim()) if x.shape[axis] == 1 and rng.random() < 0.6)
    return {"axes": axes}, x.squeeze(axes)


@case("slice")
def slice_(rng: random.Random, x: torch.Tensor) -> Case | None:
    if not x.dim():
        return None
    axis = rng.randrange(x.dim())
    start = rng.randint(0, x.shape[axis])
    stop = rng.randint(start, x.shape[axis])
    step = rng.choice((1, 1, 2, 3))
    index = [slice(None)] * x.dim()
    index[axis] = slice(start, stop, step)
    return {"axis": axis, "start": start, "stop": stop, "step": step}, torch.ops.aten.slice(x, axis, start, stop, step)


@case("select")
def select(rng: random.Random, x: torch.Tensor) -> Case | None:
    if not x.dim() or 0 in x.shape:
        return None
    axis = rng.randrange(x.dim())
    index = rng.randrange(x.shape[axis])
    return {"axis": axis, "index": index}, x.select(axis, index)


@case("diagonal")
def diagonal(rng: random.Random, x: torch.Tensor) -> Case | None:
    if x.dim() < 2:
        return None
    axis1, axis2 = rng.sample(range(x.dim()), 2)
    offset = rng.randint(-4, 4)
    return {"offset": offset, "axis1": axis1, "axis2": axis2}, x.diagonal(offset, axis1, axis2)


@case("unfold")
def unfold(rng: random.Random, x: torch.Tensor) -> Case | None:
    if not x.dim() or 0 in x.shape:
        return None
    axis = rng.randrange(x.dim())
    size, step = rng.randint(1, x.shape[axis]), rng.randint(1, 3)
    return {"axis": axis, "size": size, "step": step}, x.unfold(axis, size, step)


@case("view_dtype")
def view_dtype(rng: random.Random, x: torch.Tensor) -> Case | None:
    dtype = rng.choice((torch.int32, torch.int16, torch.float64))
    try:
        return {"dtype": dtype}, x.view(dtype)
    except RuntimeError:
        return None


@case("flip")
def flip(rng: random.Random, x: torch.Tensor) -> Case:
    axes = tuple(sorted(rng.sample(range(x.dim()), rng.randint(0, x.dim()))))
    return {"axes": axes}, x.flip(axes)


@pytest.mark.parametrize("name", sorted(CASES))
def test_one_input(name: str) -> None:
    rng = random.Random(name)
    for _ in range(ROUNDS):
        x = random_tensor(rng, rng.randint(0, 5))
        if (made := CASES[name](rng, x)) is not None:
            attrs, expected = made
            same_layout(META[name](STATIC, spec_of(x), **attrs), expected, (x,))


def random_regrouping(rng: random.Random, numel: int) -> tuple[int, ...]:
    sizes: list[int] = []
    while numel > 1:
        part = rng.choice([k for k in range(2, numel + 1) if numel % k == 0])
        sizes.append(part)
        numel //= part
    for _ in range(rng.randint(0, 2)):
        sizes.insert(rng.randint(0, len(sizes)), 1)
    return tuple(sizes)


def test_view_exists_exactly_where_eager_has_one() -> None:
    rng = random.Random(0)
    possible = 0
    for _ in range(1500):
        x = random_tensor(rng, rng.randint(0, 5), empty=False)
        sizes = random_regrouping(rng, x.numel())
        try:
            expected = x.view(sizes)
        except RuntimeError:
            assert view_strides(STATIC, spec_of(x), sizes) is None, (x.shape, x.stride(), sizes)
            continue
        possible += 1
        same_layout(META["view"](STATIC, spec_of(x), sizes=sizes), expected, (x,))
    assert possible > 500


def test_view_of_empty_tensor() -> None:
    for old, new in [((0, 4), (4, 0)), ((0, 4), (0, 4)), ((2, 0, 3), (0,)), ((0,), (3, 0, 2))]:
        x = torch.empty(old)
        same_layout(META["view"](STATIC, spec_of(x), sizes=new), x.view(new), (x,))


def test_what_eager_refuses_is_refused() -> None:
    x = spec_of(torch.empty(4, 8).t())
    with pytest.raises(ImpossibleView):
        META["view"](STATIC, x, sizes=(32,))
    with pytest.raises(ShapeMismatch):
        META["view"](STATIC, x, sizes=(31,))
    with pytest.raises(ShapeMismatch):
        META["expand"](STATIC, x, sizes=(3, 8, 5))
    with pytest.raises(ShapeMismatch):
        META["add"](STATIC, x, spec_of(torch.empty(3)))


def test_cat() -> None:
    rng = random.Random(1)
    for _ in range(ROUNDS * 3):
        sizes = random_sizes(rng, rng.randint(1, 5))
        axis = rng.randrange(len(sizes))
        parts = [
            random_layout(rng, (*sizes[:axis], rng.choice((1, 2, 3)), *sizes[axis + 1 :]))
            for _ in range(rng.randint(1, 3))
        ]
        if parts[0].numel() or len(sizes) > 1:
            same_layout(META["cat"](STATIC, *map(spec_of, parts), axis=axis), torch.cat(parts, axis), parts)


def test_pad() -> None:
    rng = random.Random(2)
    for _ in range(ROUNDS * 3):
        x = random_tensor(rng, rng.randint(1, 5), empty=False)
        choices = (0, -1, 2) if rng.random() < 0.5 else (0, 1, 2)
        low = tuple(rng.choice(choices) if size > 2 else rng.choice((0, 1)) for size in x.shape)
        high = tuple(rng.choice(choices) if size > 2 else rng.choice((0, 1)) for size in x.shape)
        if rng.random() < 0.2:
            low, high = tuple(min(a, 0) for a in low), tuple(min(a, 0) for a in high)
        amounts = [amount for pair in zip(low[::-1], high[::-1], strict=True) for amount in pair]
        expected = torch.ops.aten.constant_pad_nd(x, amounts, 0.0)
        same_layout(META["pad"](STATIC, spec_of(x), spec_of(torch.tensor(0.0)), low=low, high=high), expected, (x,))


def test_index() -> None:
    rng = random.Random(3)
    for _ in range(ROUNDS * 3):
        x = random_tensor(rng, rng.randint(1, 5), empty=False)
        axes = tuple(sorted(rng.sample(range(x.dim()), rng.randint(1, x.dim()))))
        shape = random_sizes(rng, rng.randint(0, 3), empty=False)
        indices = [
            (random_layout(rng, tuple(1 if rng.random() < 0.3 else n for n in shape)).abs() * 5).long() % x.shape[axis]
            for axis in axes
        ]
        places: list[Any] = [None] * x.dim()
        for axis, index in zip(axes, indices, strict=True):
            places[axis] = index
        expected = torch.ops.aten.index(x, places)
        same_layout(META["index"](STATIC, spec_of(x), *map(spec_of, indices), axes=axes), expected, (x, *indices))
        values = torch.zeros_like(expected)
        put = torch.ops.aten.index_put(x, places, values)
        attrs = {"axes": axes, "accumulate": False}
        rule = META["index_put"](STATIC, spec_of(x), *map(spec_of, indices), spec_of(values), **attrs)
        same_layout(rule, put, (x,))


def test_gather_and_scatter() -> None:
    rng = random.Random(4)
    for _ in range(ROUNDS):
        x = random_tensor(rng, rng.randint(1, 4), empty=False)
        axis = rng.randrange(x.dim())
        index = random_layout(rng, tuple(x.shape)).long().abs() % x.shape[axis]
        attrs = {"axis": axis}
        same_layout(META["gather"](STATIC, spec_of(x), spec_of(index), **attrs), x.gather(axis, index), (x, index))
        rule = META["scatter"](STATIC, spec_of(x), spec_of(index), spec_of(x), axis=axis, reduce=None)
        same_layout(rule, x.scatter(axis, index, torch.zeros_like(x)), (x, index))


def test_view_scatters_keep_the_place_of_each_element() -> None:
    rng = random.Random(5)
    for _ in range(ROUNDS):
        x = random_tensor(rng, rng.randint(1, 4), empty=False)
        axis = rng.randrange(x.dim())
        y = torch.zeros_like(x.select(axis, 0))
        rule = META["select_scatter"](STATIC, spec_of(x), spec_of(y), axis=axis, index=0)
        same_layout(rule, torch.select_scatter(x, y, axis, 0), (x,))


def test_creation() -> None:
    cpu = torch.device("cpu")
    assert str(META["iota"](STATIC, length=5, start=0, step=2, dtype=torch.int64, device=cpu)) == "i64[5]"
    assert str(META["constant"](STATIC, value=1.5, dtype=torch.float32, device=cpu)) == "f32[]"
    assert str(META["full"](STATIC, spec_of(torch.tensor(1.0)), sizes=(2, 3))) == "f32[2, 3]"
    empty = META["empty"](STATIC, sizes=(2, 3), strides=(1, 2), dtype=torch.float32, device=cpu)
    assert str(empty) == "f32[2, 3 | 1, 2]"


def test_devices_of_pointwise_inputs() -> None:
    cuda = torch.device("cuda", 0)
    x = META["empty"](STATIC, sizes=(4,), strides=None, dtype=torch.float32, device=cuda)
    scalar = META["constant"](STATIC, value=1.0, dtype=torch.float32, device=torch.device("cpu"))
    assert str(META["add"](STATIC, scalar, x)) == "f32[4 @cuda:0]"
    assert str(META["lt"](STATIC, x, scalar)) == "b8[4 @cuda:0]"
    assert META["add"](STATIC, x, x) is x


@pytest.mark.parametrize(("size", "step"), [(2, 0), (2, -1), (-1, 1)])
def test_windows_have_a_size_and_a_step(size: int, step: int) -> None:
    with pytest.raises(ShapeMismatch, match=f"size {size} and step {step}"):
        CHECKS["unfold"](GuardFreeOracle(), TensorSpec(torch.float32, (4,), (1,)), axis=0, size=size, step=step)
