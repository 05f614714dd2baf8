"""Programs that once read or wrote past the end of a tensor: they raise what eager raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import kiln
from tests.faults.outcome import assert_like_eager

Program = Callable[..., Any]


def integers(*sizes: int) -> torch.Tensor:
    return torch.zeros(sizes, dtype=torch.int64)


BAD_SHAPES: dict[str, tuple[Program, tuple[Any, ...]]] = {
    "scatter_value_with_more_rows": (lambda x, i: x.scatter_(1, i, 1.0), (torch.zeros(2, 3), integers(4_000_000, 3))),
    "gather_with_more_rows": (lambda x, i: x.gather(1, i), (torch.arange(6.0).reshape(2, 3), integers(40, 2))),
    "gather_of_another_rank": (lambda x, i: x.gather(1, i), (torch.ones(2, 3), integers(2))),
    "scatter_of_few_values": (
        lambda x, i, s: x.scatter(1, i, s),
        (torch.zeros(2, 16), torch.arange(16).repeat(2, 1), torch.ones(1, 4)),
    ),
    "scatter_add_of_few_values": (
        lambda x, i, s: x.scatter_add(1, i, s),
        (torch.zeros(2, 16), torch.arange(16).repeat(2, 1), torch.ones(1, 4)),
    ),
    "select_scatter": (lambda x, s: x.select_scatter(s, 0, 0), (torch.zeros(2, 8), torch.ones(2))),
    "select_scatter_outside": (lambda x, s: x.select_scatter(s, 0, 7), (torch.zeros(2, 8), torch.ones(8))),
    "slice_scatter": (lambda x, s: x.slice_scatter(s, 0, 0, 2), (torch.zeros(4, 8), torch.ones(3, 8))),
    "diagonal_scatter": (lambda x, s: x.diagonal_scatter(s), (torch.zeros(4, 8), torch.ones(3))),
    "as_strided_scatter": (
        lambda x, s: x.as_strided_scatter(s, (2, 2), (1, 2)),
        (torch.zeros(4, 8), torch.ones(3)),
    ),
    "as_strided": (lambda x: x.as_strided((4, 4), (8, 1)) + 1, (torch.zeros(4),)),
    "split_that_adds_up_to_more": (lambda x: torch.split(x, [4, 4])[1] + 1, (torch.ones(5),)),
    "split_that_adds_up_to_less": (lambda x: torch.split(x, [2, 1])[1] + 1, (torch.ones(5),)),
    "narrow": (lambda x: x.narrow(0, 3, 4) + 1, (torch.ones(5),)),
    "select": (lambda x: x[7] + 1, (torch.ones(5),)),
    "unfold": (lambda x: x.unfold(0, 7, 1) + 1, (torch.ones(5),)),
    "index_of_nothing": (lambda x, i: x[i], (torch.empty(0, 3), integers(1))),
    "index_select_of_nothing": (lambda x, i: x.index_select(0, i), (torch.empty(0, 3), integers(1))),
    "gather_of_nothing": (lambda x, i: x.gather(0, i), (torch.empty(0, 3), integers(1, 3))),
    "take_of_nothing": (lambda x, i: x.take(i), (torch.empty(0, 3), integers(1))),
    "embedding_of_nothing": (lambda x, i: torch.nn.functional.embedding(i, x), (torch.empty(0, 3), integers(1))),
    "index_put_of_nothing": (lambda x, i, v: x.index_put((i,), v), (torch.empty(0, 3), integers(1), torch.ones(3))),
    "scatter_of_nothing": (lambda x, i: x.scatter(0, i, 1.0), (torch.empty(0, 3), integers(1, 3))),
    "index_add_of_nothing": (lambda x, i, v: x.index_add(0, i, v), (torch.empty(0, 3), integers(1), torch.ones(1, 3))),
    "index_copy_of_nothing": (
        lambda x, i, v: x.index_copy(0, i, v),
        (torch.empty(0, 3), integers(1), torch.ones(1, 3)),
    ),
}


@pytest.mark.parametrize("name", BAD_SHAPES)
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_shapes_that_eager_refuses(name: str, dynamic: bool) -> None:
    program, arguments = BAD_SHAPES[name]
    assert_like_eager(kiln.compile(program, dynamic=dynamic), program, *arguments)


# With symbolic sizes a plan serves all sizes that its guards admit: these need a guard for the index.

GROWING: dict[str, Program] = {
    "x[2]": lambda x: x[2] * 1,
    "x[-3]": lambda x: x[-3] * 1,
    "x[2] = 7": lambda x: x.clone().__setitem__(2, 7.0),
    "narrow": lambda x: x.narrow(0, 1, 2) * 1,
    "split": lambda x: torch.split(x, [2, x.shape[0] - 2])[0] * 1,
    "select_scatter": lambda x: x.select_scatter(torch.ones(4), 0, 2),
    "unfold": lambda x: x.unfold(0, 3, 1) * 1,
    "x[i]": lambda x: x[torch.tensor([0])] * 1,
}


@pytest.mark.parametrize("name", GROWING)
def test_a_size_that_is_a_symbol_still_holds_the_index(name: str) -> None:
    base, program = torch.arange(24.0).reshape(6, 4), GROWING[name]
    compiled = kiln.compile(program)
    for rows in (3, 4, 6, 2, 1, 0, 5):
        assert_like_eager(compiled, program, base[:rows].clone())


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_an_index_read_from_a_tensor_is_checked_before_it_is_used(size: int) -> None:
    def pick(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x[n.item()] * 2

    def cut(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return x.narrow(0, 0, n.item()) * 2

    for program in (pick, cut):
        compiled = kiln.compile(program)
        for number in (0, 1, 4, 5, 7, 100_000_000, -1, -6):
            assert_like_eager(compiled, program, torch.arange(float(size)), torch.tensor(number))


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_an_index_of_size_one_is_broadcast(dynamic: bool) -> None:
    def read(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a[b, c]

    def write(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return a.index_put((b, c), torch.tensor(7.0))

    a = torch.arange(24.0).reshape(4, 6)
    for program in (read, write):
        compiled = kiln.compile(program, dynamic=dynamic)
        for n, m in ((3, 2), (1, 4), (4, 1), (1, 1)):
            assert_like_eager(compiled, program, a, torch.arange(n)[None], torch.arange(m)[:, None])
