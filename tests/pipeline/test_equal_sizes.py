"""Arguments of one size: their symbols become one, and what is returned, saved and checked stays as in eager."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln


def flat(x: Tensor, y: Tensor) -> Tensor:
    assert x.shape == y.shape
    return (x.reshape(-1) + y.reshape(-1)).sin()


def turned(x: Tensor, y: Tensor) -> Tensor:
    z = (x.sin() + y).permute(0, 2, 1).reshape(x.shape[0], -1)
    return (z * y.permute(0, 2, 1).reshape(y.shape[0], -1)).sum(1)


def sizes_of_the_second(x: Tensor, y: Tensor) -> tuple[Tensor, int, Tensor]:
    z = (x * y).exp()
    return z.mean(-1), y.shape[0] * x.shape[1], torch.full((y.shape[2],), float(y.shape[1]))


def one_argument_saved(x: Tensor, y: Tensor) -> Tensor:
    return (x + y.detach()).expand(3, *y.shape).sum(0).mean() * x.shape[1]


def views(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = x + y
    return y.reshape(x.shape[0], -1), z.transpose(1, 2)


def changed(x: Tensor, y: Tensor) -> Tensor:
    y = y.clone()
    y.mul_(x.detach())
    return y.view(x.shape[0], -1) * x.view(y.shape[0], -1)


PROGRAMS = [flat, turned, sizes_of_the_second, one_argument_saved, views, changed]


def tensors(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("gradients", [False, True])
def test_as_eager(program: Callable[[Tensor, Tensor], Any], gradients: bool) -> None:
    compiled = kiln.compile(program, dynamic=True, fullgraph=True, options={"cache": False})
    for shape in ((3, 4, 5), (2, 7, 6), (5, 2, 9)):
        given = [torch.randn(shape) for _ in range(2)]
        ours, eagers = ([t.clone().requires_grad_(gradients) for t in given] for _ in range(2))
        results, expected = tensors(compiled(*ours)), tensors(program(*eagers))
        for result, other in zip(results, expected, strict=True):
            torch.testing.assert_close(result, other)
            if isinstance(other, Tensor):
                assert result.stride() == other.stride()
                if other.requires_grad:
                    result.pow(2).sum().backward(retain_graph=True)
                    other.pow(2).sum().backward(retain_graph=True)
        torch.testing.assert_close([t.grad for t in ours], [t.grad for t in eagers])
    assert kiln.report_of(compiled).compiles == 1 and not kiln.report_of(compiled).eager


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_sizes_that_are_one(program: Callable[[Tensor, Tensor], Any]) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    for shape in ((3, 4, 5), (1, 7, 6), (1, 2, 9), (5, 1, 3), (1, 1, 1), (2, 3, 3)):
        ours = [torch.randn(shape, requires_grad=True) for _ in range(2)]
        eagers = [t.detach().clone().requires_grad_() for t in ours]
        results, expected = tensors(compiled(*ours)), tensors(program(*eagers))
        for result, other in zip(results, expected, strict=True):
            torch.testing.assert_close(result, other, check_stride=isinstance(other, Tensor))
        results[0].pow(2).sum().backward()
        expected[0].pow(2).sum().backward()
        torch.testing.assert_close([t.grad for t in ours], [t.grad for t in eagers])
    assert not kiln.report_of(compiled).eager


def test_number_that_equals_a_size() -> None:
    def rows(x: Tensor, n: int) -> Tensor:
        assert x.shape[0] == n
        return x.reshape(n, -1) * torch.arange(n).unsqueeze(1) + x.sum() * n

    compiled = kiln.compile(rows, dynamic=True, options={"cache": False})
    for n in (3, 6, 4):
        x = torch.randn(n, 2, 3, requires_grad=True)
        torch.testing.assert_close(compiled(x, n), rows(x, n))
        compiled(x, n).sum().backward()


def test_size_that_data_decide_is_checked() -> None:
    def chosen(x: Tensor, mask: Tensor) -> Tensor:
        return x.reshape(-1) * mask.nonzero().reshape(-1)

    compiled = kiln.compile(chosen, dynamic=True, options={"cache": False})
    mask = torch.tensor([True, False, True, True])
    x = torch.randn(3)
    assert torch.equal(compiled(x, mask), chosen(x, mask))
    with pytest.raises(RuntimeError):
        compiled(torch.randn(2), mask)


def test_other_sizes_are_another_variant() -> None:
    compiled = kiln.compile(lambda x, y: (x.reshape(-1) + y).sin(), dynamic=True, options={"cache": False})
    x = torch.randn(4, 3)
    for y in (torch.randn(12), torch.randn(1), torch.randn(12)):
        torch.testing.assert_close(compiled(x, y), (x.reshape(-1) + y).sin())


def test_index_is_that_of_one_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILN_DUMP", str(tmp_path))
    compiled = kiln.compile(flat, dynamic=True, options={"cache": False})
    compiled(torch.randn(3, 4, 5), torch.randn(3, 4, 5))
    [schedule] = tmp_path.glob("*/*schedule.txt")
    text = schedule.read_text()
    assert "//" not in text and "%" not in text.split("kernel", 1)[1]
