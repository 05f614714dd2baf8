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


def makes_one_before_it_asks(x: Tensor, kept: list[type], name: str) -> tuple[Tensor, list[str]]:
    if name:
        kept.append(type(name, (Inner,), {"weight": 3.0}))
    return x * len(kept), [kind.__name__ for kind in Inner.__subclasses__()]


def test_a_class_that_the_frame_makes_is_listed() -> None:
    gc.collect()
    compiled, x, kept = kiln.compile(makes_one_before_it_asks, options={"cache": False}), torch.ones(3), list[type]()
    expected = [kind.__name__ for kind in Inner.__subclasses__()]
    for name in ("", "Made", "", "Other"):
        expected += [name] if name else []
        found, names = compiled(x, kept, name)
        assert torch.equal(found, x * len(kept)) and names == expected
    assert report_of(compiled).eager == 0, report_of(compiled).text()
