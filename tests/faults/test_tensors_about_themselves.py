"""What tensors of many kinds answer about themselves: attributes and methods that give a plain value."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

PLAIN = (bool, int, float, str, type(None), tuple, torch.dtype, torch.device, torch.layout)
QUESTIONS = (
    "_base _is_view _version is_inference is_leaf is_pinned is_shared is_conj is_contiguous requires_grad retains_grad "
    "storage_offset stride shape dtype ndim nbytes output_nr grad_fn grad is_set_to numel layout device names"
)


def tensors() -> Iterator[Tensor]:
    yield torch.ones(2, 3)
    yield torch.ones(4, 3)[:2]
    yield torch.ones(2, 3, requires_grad=True)
    yield torch.nn.Parameter(torch.ones(2, 3))
    yield torch.ones(1, 3).expand(2, 3)
    yield torch.ones(2, 3).share_memory_()
    yield torch.ones(3, 2).t()
    yield torch.ones(2, 3).add_(1)
    yield torch.ones(6).as_strided((2, 3), (3, 1))
    yield torch.ones(2, 3, requires_grad=True).detach()
    with torch.inference_mode():
        yield torch.ones(2, 3)


def answered(x: Tensor, name: str, part: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = getattr(x[:1] if part else x, name)
    return found() if callable(found) else found


def answer(function: Any, *args: object) -> object:
    try:
        found = function(*args)
    except Exception as error:
        return type(error)
    return found if isinstance(found, PLAIN) else type(found)


@pytest.mark.parametrize("name", QUESTIONS.split())
def test_an_answer_is_eagers_for_each_kind_of_tensor(name: str) -> None:
    for part in (False, True):
        compiled = kiln.compile(answered)
        for x in tensors():
            assert answer(compiled, x, name, part) == answer(answered, x, name, part), (name, part)


def test_a_detached_result_is_no_view_of_its_argument() -> None:
    compiled = kiln.compile(lambda x, y: (x.detach(), y.view_as(y), x.detach()[:1]))
    for x in (torch.ones(2), torch.ones(4)[:2]):
        detached, viewed, part = compiled(x, x)
        assert not detached._is_view() and detached._base is None and detached.data_ptr() == x.data_ptr()
        assert viewed._is_view() and part._is_view()


def item_of_its_dict(x: Tensor, y: Tensor) -> Any:
    x.__dict__["mark"] = 3
    return getattr(x, "mark", None), getattr(y, "mark", None)


def dict_of_a_result(x: Tensor, y: Tensor) -> Any:
    made = x * 2
    made.__dict__["mark"] = 3
    return getattr(made, "mark", None)


def moved(x: Tensor, y: Tensor) -> Any:
    x.data = torch.zeros(2)
    return y + 1


@pytest.mark.parametrize("program", [item_of_its_dict, dict_of_a_result, moved])
@pytest.mark.parametrize("same", [(False, True), (True, False)])
def test_a_tensor_that_is_set_may_be_another_argument(program: Callable[..., Any], same: tuple[bool, ...]) -> None:
    compiled = kiln.compile(program)
    for one in same:
        results = []
        for function in (compiled, program):
            x = torch.ones(2)
            results.append(function(x, x if one else torch.ones(2)))
        torch.testing.assert_close(*results)


def test_a_dict_of_the_program_may_be_that_of_a_tensor() -> None:
    def program(x: Tensor, items: dict[str, int]) -> Any:
        before = getattr(x, "mark", None)
        items["mark"] = 3
        return before, getattr(x, "mark", None)

    compiled = kiln.compile(program)
    for is_own in (False, True, False):
        x = torch.ones(2)
        assert compiled(x, x.__dict__ if is_own else {}) == ((None, 3) if is_own else (None, None))


def test_strides_of_a_new_dimension_whose_size_is_1() -> None:
    """A new dimension has the stride 0, but one of size 1 that of a row."""

    def program(row: Tensor, batch: Tensor) -> list[tuple[int, ...]]:
        rows, broadcast = row.expand(batch.shape[0], 3), torch.broadcast_to(row, batch.shape)
        return [rows.stride(), broadcast.stride(), row.expand(*batch.shape[:2], 3).stride()]

    compiled = kiln.compile(program)
    for size in (4, 5, 6, 1, 2, 1):
        assert compiled(torch.ones(3), torch.ones(size, 3)) == program(torch.ones(3), torch.ones(size, 3))
