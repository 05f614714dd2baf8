"""NumPy arrays that a program makes of constants: writes, views and tensors in their memory, as eager, in one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import kiln

from .test_numpy_arrays import same


def written_through_a_tensor(x: torch.Tensor) -> Any:
    a = np.zeros(3)
    t = torch.from_numpy(a)
    t.add_(1)
    return a.sum(), a, t


def views(x: torch.Tensor) -> Any:
    a = np.zeros((3, 4))
    b, c, d = a[1:, ::2], a.T, a.reshape(-1)
    b += 1
    c[0] = 9
    d[3:5] = 7
    return a, b, c, d, a[::-1], d.sum(), [row.sum() for row in a], a[1, 2].item(), len(a)


def written_with_numbers_of_a_tensor(x: torch.Tensor) -> Any:
    a = np.zeros((4, 3), dtype=np.float32)
    v = a[1:3]
    a[2] = x.numpy()[0]
    v *= 2
    torch.from_numpy(a)[0] = 5
    torch.from_numpy(v).add_(1)
    return a, v, a[0], a.max()


def methods_that_write(x: torch.Tensor) -> Any:
    a, b, m = np.array([3, 1, 2]), np.zeros(3), np.zeros((2, 2))
    a.sort()
    np.copyto(b, a)
    b.put([0], [9])
    np.fill_diagonal(m, 5)
    c = np.add(a, 1, out=a)
    return a, b, m, c is a, np.asarray(a) is a


def errors(x: torch.Tensor) -> Any:
    a, found = np.array([3, 1, 2]), []
    try:
        a[7] = 1
    except IndexError as error:
        found.append(str(error))
    try:
        a += 1.5  # type: ignore[arg-type]
    except TypeError as error:
        found.append(type(error).__name__)
    return a, found


def embedding_of_positions(x: torch.Tensor) -> Any:
    p, d = np.arange(x.shape[0])[:, None], np.exp(np.arange(0, 4, 2) * -(np.log(10000.0) / 4))
    e = np.zeros((x.shape[0], 4))
    e[:, 0::2], e[:, 1::2] = np.sin(p * d), np.cos(p * d)
    return torch.from_numpy(e).float() + x.sum()


def steps_backwards(x: torch.Tensor) -> Any:
    for t in np.linspace(0, 3, 4).astype(int)[::-1]:
        x = x * x[t % 2] + float(t)
    return x, np.eye(2), np.full((2, 2), 7), np.identity(2)


def indices(x: torch.Tensor) -> Any:
    i = np.array([0, 2])
    y = x.clone()
    y[i] = 5
    return x[i], x[np.array([True, False, True, False])], [x[j] for j in i], x[:, i[::-1].copy()], y, x[i, i]


@pytest.mark.parametrize(
    "program",
    [
        *(written_through_a_tensor, views, written_with_numbers_of_a_tensor, methods_that_write, errors),
        *(embedding_of_positions, steps_backwards, indices),
    ],
)
def test_known_arrays(program: Callable[[torch.Tensor], Any]) -> None:
    compiled = kiln.compile(program, backend="eager", fullgraph=True, options={"cache": False})
    for x in (torch.randn(4, 3), torch.randn(4, 3)):
        assert same(program(x), compiled(x))


@pytest.mark.filterwarnings("ignore")
def test_views_stay_views_over_a_break() -> None:
    """`np.eye` writes to a flat view; the array that it returned after a break was without ones."""

    def f(x: torch.Tensor) -> Any:
        a = np.zeros((3, 3))
        b = a[1:, ::2]
        kind = "a" if x.sum().item() > 0 else "b"
        b += 1
        return a, b, kind, a.sum()

    compiled = kiln.compile(f, backend="eager", options={"cache": False})
    for x in (torch.ones(3), -torch.ones(3)):
        assert same(f(x), compiled(x))
    a, b, *_ = compiled(torch.ones(3))
    a[2] = 7
    assert (b[1] == 7).all()


@pytest.mark.filterwarnings("ignore")
def test_a_write_to_what_was_reversed_breaks() -> None:
    def f(x: torch.Tensor) -> Any:
        a = x.numpy() * 1
        r = a[::-1]
        a[0] = 7
        return r * 2, r, a

    compiled = kiln.compile(f, backend="eager", options={"cache": False})
    assert same(f(torch.arange(3.0)), compiled(torch.arange(3.0)))
    result = compiled(torch.arange(3.0))
    result[2][1] = 5
    assert result[1][1] == 5
