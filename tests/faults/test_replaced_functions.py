"""Functions of torch that the program replaces by ones that call them: each call is made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import kiln

CALLS: dict[str, tuple[Any, str, Callable[[Tensor], Tensor]]] = {
    "linear": (F, "linear", lambda x: F.linear(x, torch.ones(2, 4))),
    "linear of rank 3": (F, "linear", lambda x: F.linear(x[None], torch.ones(2, 4))),
    "interpolate": (F, "interpolate", lambda x: F.interpolate(x[None, None], scale_factor=2)),
    "normalize": (F, "normalize", lambda x: F.normalize(x)),
    "one_hot": (F, "one_hot", lambda x: F.one_hot(x.long(), 5)),
    "matmul": (torch, "matmul", lambda x: torch.matmul(x, x.t())),
    "products of batches": (torch, "matmul", lambda x: torch.matmul(x[None], x.t())),
    "linspace": (torch, "linspace", lambda x: torch.linspace(0, 1, x.shape[0]) + x.sum()),
    "arange": (torch, "arange", lambda x: torch.arange(x.shape[0]) + x.sum()),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_function_that_calls_what_it_replaces(name: str, dynamic: bool | None, monkeypatch: Any) -> None:
    owner, attribute, program = CALLS[name]
    original, compiled = getattr(owner, attribute), kiln.compile(program, dynamic=dynamic)

    def thrice(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * 3

    for rows, replaced in ((2, False), (3, True), (4, True), (3, False), (2, True)):
        with monkeypatch.context() as patches:
            if replaced:
                patches.setattr(owner, attribute, thrice)
            x = torch.arange(rows * 4.0).view(rows, 4) % 5
            torch.testing.assert_close(compiled(x), program(x))
