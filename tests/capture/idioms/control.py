"""Control flow operators."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as torch_map
from torch.nn.attention.flex_attention import flex_attention

from .table import Table

TABLE = Table()


def vector(*shape: int) -> Any:
    def calls() -> list[tuple[torch.Tensor, ...]]:
        torch.manual_seed(0)
        return [(torch.randn(*shape),) for _ in range(3)]

    return calls


@TABLE.add(vector(3))
def cond(x):
    return torch.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, (x,))


@TABLE.add(lambda: [(torch.randn(3), n) for n in (2, 2)])
def cond_on_python(x, n):
    return torch.cond(n > 1, lambda v: v * 2, lambda v: v - 1, (x,))


@TABLE.add(vector(3))
def cond_nested(x):
    def inner(v):
        return torch.cond(v.max() > 1, lambda u: u.sin(), lambda u: u.cos(), (v,))

    return torch.cond(x.sum() > 0, inner, lambda v: v - 1, (x,))


@TABLE.add(vector(3))
def cond_closure(x):
    w = x * 3
    return torch.cond(x.sum() > 0, lambda: w * 2, lambda: w - 1)


@TABLE.add(vector(3))
def loops(x):
    return while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, v * 2), (torch.tensor(0), x))


@TABLE.add(vector(3))
def loops_on_data(x):
    return while_loop(lambda v: v.abs().sum() < 100, lambda v: (v * 2,), (x,))


@TABLE.add(vector(4, 3))
def scans(x):
    return scan(lambda c, row: (c + row, c * row), torch.zeros(3), x)


@TABLE.add(vector(4, 3))
def maps(x):
    return torch_map(lambda row: row.sin() * 2, x)


@TABLE.add(vector(4, 3))
def associative(x):
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


@TABLE.add(lambda: [tuple(torch.randn(1, 2, 8, 4) for _ in range(3)) for _ in range(2)])
def flex(q, k, v):
    return flex_attention(q, k, v)


@TABLE.add(lambda: [tuple(torch.randn(1, 2, 8, 4) for _ in range(3)) for _ in range(2)])
def flex_scored(q, k, v):
    return flex_attention(q, k, v, score_mod=lambda score, b, h, i, j: torch.where(i >= j, score, -float("inf")))
