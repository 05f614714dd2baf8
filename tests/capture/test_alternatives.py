"""One of two values by a condition on data: `max(1, tensor)`, `a and b`, `2 if condition else 3` as operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Program = Callable[[Tensor, Tensor], Any]

ONE_GRAPH: dict[str, Program] = {
    "number first": lambda x, y: x / max(1, (x > 0).sum()),
    "tensor first": lambda x, y: x / max((x > 0).sum(), 1),
    "three": lambda x, y: x * max(0.5, x.sum(), y.sum().detach()),
    "nested": lambda x, y: min(max(0.0, x.mean()), 1.0) * y + x,
    "tensors": lambda x, y: x * min(x.sum(), y.sum()),
    "returned": lambda x, y: (max(1, (x > 0).sum()), x * 2),
    "a scalar": lambda x, y: x.sum() / max(1, (x > 0).sum()) + min(1.0, y.sum()),
    "and": lambda x, y: torch.where((x.sum() > 0) and (y.sum() > 0), x, y),
    "or": lambda x, y: x * ((x > 0).all() or (y > 0).any() or (x.sum() > y.sum())),
    "with a truth": lambda x, y: x * (x.sum() > 0 and x.shape[0] > 2),
    "truths": lambda x, y: (x * 2, bool((x > 0).all()) and bool((y > 0).any())),
    "not": lambda x, y: (x * 2, not (x > 0).all()),
    "counted": lambda x, y: x * (bool(x.sum() > 0) + (not bool(y.sum() > 0))),
    "numbers": lambda x, y: x * (2 if x.sum() > 0 else 3) + y / (0.1 if y.sum() > 0 else 0.3),
}


def second_has_effects(x: Tensor, y: Tensor) -> Any:
    seen = [1]
    chosen = (x.sum() > 0) and (seen.append(2) or y.sum() > 0)
    return x * chosen, len(seen)


def changed(x: Tensor, y: Tensor) -> Any:
    a, b = x.sum().detach(), y.sum().detach()
    larger = max(a, b)
    larger += 1
    return x * a, y * b


BREAKING: dict[str, Program] = {
    "asked for its type": lambda x, y: x * 2 if isinstance(max(1, (x > 0).sum()), int) else x,
    "the dtype differs": lambda x, y: x[0, 0].half() * max(1.0, y.sum()) + x.sum(),
    "a method": lambda x, y: x * max(x.sum(), 1).sqrt() if x.sum() > 2 else x,
    "effects": second_has_effects,
    "raises": lambda x, y: (x * 2, (x.sum() > 99) and x[7] > 0),
    "reads values": lambda x, y: (x * 2, (x.sum() > 0) and bool(x.detach().numpy().sum() > 1)),
    "changed": changed,
}


def require_equal(program: Program, compiled: Program) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        given, found = torch.randn(2, 3, 4), []
        for function in (program, compiled):
            x, y = (tensor.clone().requires_grad_() for tensor in given)
            results = function(x, y)
            results = results if isinstance(results, tuple) else (results,)
            tensors = [result for result in results if isinstance(result, Tensor)]
            loss = torch.stack([tensor.float().square().sum() for tensor in tensors]).sum()
            gradients = torch.autograd.grad(loss, (x, y), allow_unused=True)
            found.append([*map(type, results), *results, *gradients])
        for eager, ours in zip(*found, strict=True):
            if isinstance(eager, Tensor):
                torch.testing.assert_close(ours, eager)
            else:
                assert ours == eager


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name: str) -> None:
    compiled = kiln.compile(ONE_GRAPH[name], fullgraph=True, options={"cache": False})
    require_equal(ONE_GRAPH[name], compiled)
    assert compiled.report().compiles == 1


@pytest.mark.parametrize("name", BREAKING)
def test_what_python_asks_breaks(name: str) -> None:
    compiled = kiln.compile(BREAKING[name], options={"cache": False})
    require_equal(BREAKING[name], compiled)
    assert compiled.report().breaks
