"""Branches on tensors whose sides change Python objects: one graph, and objects, results and gradients are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import kiln
from kiln.api import report_of

Program = Callable[[Tensor, Tensor], Any]


class Cache:
    def __init__(self) -> None:
        self.keys: Tensor | None = None
        self.is_initialized = False

    def update(self, keys: Tensor) -> Tensor:
        if not self.is_initialized:
            self.dtype, self.keys, self.is_initialized = keys.dtype, keys.new_zeros(0), True
        assert self.keys is not None
        self.keys = torch.cat([self.keys, keys.flatten()])
        return self.keys


def skipped_layers(x: Tensor, w: Tensor) -> Any:
    caches = [Cache() for _ in range(3)]
    updated = {number: False for number in range(3)}
    x = x * 1
    for number, cache in enumerate(caches):
        if x.sum() > number:
            keys = cache.update(x @ w)
            updated[number] = True
            x = x + keys.sum() * 0.1
    return x, caches, updated


def same_object(x: Tensor, w: Tensor) -> Any:
    """What is recorded is the result itself."""
    seen: dict[str, Any] = {"last": None}
    x = x * 1
    if x.sum() > 0:
        x = x @ w
        seen["last"] = x
    return x, seen


def new_objects(x: Tensor, w: Tensor) -> Any:
    holder = {"part": None}
    if x.sum() > 0:
        holder["part"] = {"y": x @ w, "list": [x.sin(), (x.cos(), 3)]}  # type: ignore[assignment]
    else:
        holder["part"] = [x - 1]  # type: ignore[assignment]
    return x * 2, holder


def in_a_branch(x: Tensor, w: Tensor) -> Any:
    holder = {"a": 0, "b": None, "c": "c"}
    x = x * 1
    if x.sum() > 0:
        holder["a"] = 1
        if x.sum() > 5:
            holder["a"] = 2
            holder["b"] = (x @ w).detach()  # type: ignore[assignment]
        x = x + 1
    return x, holder


def both_sides(x: Tensor, w: Tensor) -> Any:
    items = [x, x]
    total = 0

    def add(y: Tensor) -> None:
        nonlocal total
        total = total + y

    if x.sum() > 0:
        items[0] = x @ w
        add(x.sum())
    else:
        items[1] = x - 1
        add(x.mean())
    return items[0] + items[1], total


def same_condition(x: Tensor, w: Tensor) -> Any:
    x = x * 1
    skip = x.sum() < 0
    if not skip:
        parts = (x @ w, None)
        x = parts[0]
    if skip:
        parts = (None, None)  # type: ignore[assignment]
    return x * 2, parts


def read_in_python(x: Tensor, w: Tensor) -> Any:
    holder = {"a": 0}
    if x.sum() > 0:
        holder["a"] = 1
    return x * (2, 3)[holder["a"]]


def missing_attribute(x: Tensor, w: Tensor) -> Any:
    cache = Cache()
    if x.sum() > 0:
        cache.update(x)
    return x + 1, hasattr(cache, "dtype"), getattr(cache, "dtype", None)


WHOLE = [
    *(skipped_layers, same_object, new_objects, in_a_branch, both_sides, same_condition),
    *(read_in_python, missing_attribute),
]


def lists_of_other_lengths(x: Tensor, w: Tensor) -> Any:
    seen = [x]
    if x.sum() > 0:
        seen.pop()
    return x + 1, seen


SEEN: list[int] = []


def lengthens_a_global(x: Tensor, w: Tensor) -> Any:
    if x.sum() > 0:
        SEEN.append(1)
    return x + 1


def lengthens_what_a_global_holds(x: Tensor, w: Tensor) -> Any:
    global LAST
    LAST = [0]
    if x.sum() > 0:
        LAST.append(1)
    return x + 1


LAST: list[int] = []


def counted(x: Tensor, w: Tensor) -> Any:
    numbers = iter([1, 2, 3])
    if x.sum() > 0:
        next(numbers)
    return x + next(numbers)


INPUTS = (torch.full((2, 3), 1.0), torch.full((2, 3), -1.0), torch.full((2, 3), 0.2))


def contents(value: object) -> object:
    return vars(value) if isinstance(value, Cache) else value


def compare(program: Program, compiled: Program) -> None:
    for x in INPUTS:
        w = torch.randn(3, 3)
        ours, theirs = (x.clone().requires_grad_(), w.clone()), (x.clone().requires_grad_(), w.clone())
        SEEN.clear()
        found = compiled(*ours), [*SEEN, *LAST]
        SEEN.clear()
        expected = program(*theirs), [*SEEN, *LAST]
        left, right = [tree_leaves(tree_map(contents, value)) for value in (found, expected)]
        assert str(type(found)) == str(type(expected)) and len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert type(a) is type(b)
            if isinstance(a, Tensor):
                torch.testing.assert_close(a, b)
                assert a.requires_grad is b.requires_grad
            else:
                assert a == b
        for leaves in (left, right):
            sum([leaf.sum() for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]).backward()  # type: ignore[union-attr]
        torch.testing.assert_close(ours[0].grad, theirs[0].grad)


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.__name__)
def test_sides_that_change_objects_are_one_graph(program: Program) -> None:
    compare(program, kiln.compile(program, backend="eager", fullgraph=True))


def test_the_plan_of_sides_that_change_objects() -> None:
    compare(skipped_layers, kiln.compile(skipped_layers, fullgraph=True))


@pytest.mark.parametrize(
    "program",
    [
        *(lists_of_other_lengths, counted),
    ],
    ids=lambda program: program.__name__,
)
def test_what_python_reads_of_a_side_breaks_the_graph(program: Program) -> None:
    compiled = kiln.compile(program, backend="eager")
    compare(program, compiled)
    assert [found.code for found in report_of(compiled).breaks][:1] == ["KILN1007"]


@pytest.mark.parametrize("program", [lengthens_a_global, lengthens_what_a_global_holds])
def test_lists_that_a_side_lengthens_and_nothing_reads(program: Program) -> None:
    compiled = kiln.compile(program, backend="eager", fullgraph=True)
    compare(program, compiled)


class Observed(nn.Module):
    """Running bounds, as quantised models keep them."""

    low: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(()))
        self.calls, self.state = 0, {"last": "none"}

    def forward(self, x: Tensor) -> Tensor:
        bound = x.detach().min()
        if self.low.min() > -1e-5 and x.max() < 9:
            self.low = self.low + bound
            self.calls += 1
        elif x.sum() > 0:
            self.low = torch.min(self.low, bound)
            self.state["last"] = "sum"
        else:
            self.low = self.low * 2
        return x.clamp(min=0) + self.low


def test_sides_change_modules_from_outside() -> None:
    ours, theirs = Observed(), Observed()
    compiled = kiln.compile(ours, backend="eager", fullgraph=True)
    for x in (torch.tensor([-1.0, 2.0]), torch.tensor([-3.0, 20.0]), torch.tensor([-30.0, 2.0])):
        torch.testing.assert_close(compiled(x), theirs(x))
        torch.testing.assert_close(ours.low, theirs.low)
        assert (ours.calls, ours.state) == (theirs.calls, theirs.state)
    assert copy.deepcopy(ours).state_dict().keys() == theirs.state_dict().keys()
