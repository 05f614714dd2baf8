"""Selections that pick nothing: kernels over tensors whose counted sizes are 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln

PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "a mask": lambda x: x[x > 5] * 2 + 1,
    "rows": lambda x: x[(x > 5).any(1)].sum(0),
    "positions": lambda x: (x > 5).nonzero() * 2,
    "repeats": lambda x: x.repeat_interleave((x[:, 0] > 5).long(), 0).exp(),
    "a maximum of joined parts": lambda x: torch.cat([x[x > 5], x.flatten()]).amax() + 1,
    "a write": lambda x: (x * 1).index_put((x > 5).nonzero(as_tuple=True), torch.tensor(3.0)),
    "a sort": lambda x: (x[x > 5].sort().values * 3).cumsum(0),
    "a product": lambda x: x[(x > 5).any(1)] @ x.t() + 1,
    "a softmax": lambda x: x[(x > 5).any(1)].softmax(1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_picked(name: str) -> None:
    compiled = kiln.compile(PROGRAMS[name], options={"cache": False})
    for x in (torch.rand(4, 3), torch.rand(4, 3) * 10, torch.rand(4, 3)):
        x.requires_grad_()
        ours, theirs = compiled(x), PROGRAMS[name](x)
        torch.testing.assert_close(ours, theirs)
        if theirs.requires_grad:
            found = [torch.autograd.grad(result.sum(), x, allow_unused=True)[0] for result in (ours, theirs)]
            torch.testing.assert_close(*found)
