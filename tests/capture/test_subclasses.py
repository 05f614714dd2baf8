"""`cls.__subclasses__()` is read while tracing, and guards ask again: libraries find their plugins by it."""

from __future__ import annotations

import gc

import torch
from torch import Tensor

import kiln
from kiln.api import report_of


class Plugin:
    weight = 1.0


class First(Plugin):
    weight = 2.0


class Inner(First):
    weight = 5.0


def weighted(x: Tensor) -> Tensor:
    pending, total = Plugin.__subclasses__(), 0.0
    while pending:
        found = pending.pop()
        pending += found.__subclasses__()
        total += found.weight
    return x * total


def test_a_class_that_comes_or_goes_is_seen() -> None:
    compiled, x = kiln.compile(weighted, fullgraph=True), torch.ones(3)
    assert torch.equal(compiled(x), x * 7) and torch.equal(compiled(x), x * 7)
    assert report_of(compiled).compiles == 1
    more = type("More", (Inner,), {"weight": 0.5})
    assert torch.equal(compiled(x), x * 7.5)
    del more
    gc.collect()
    assert torch.equal(compiled(x), weighted(x))
    assert report_of(compiled).eager == 0
