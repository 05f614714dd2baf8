"""A default device is the program's: what the compiler itself computes stays on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln

PROGRAMS: dict[str, Callable[[Tensor], object]] = {
    "constants": lambda x: (x * 0.3 + torch.full((4,), 2.0, device="cpu") * 3, x.half() * 3.1),
    "reductions": lambda x: (x.sum(0), x.argmax(1), x.softmax(1), x.var(0), x.max()),
    "padding": lambda x: (torch.nn.functional.pad(x, (1, 2), value=0.1), torch.cat([x, x[:1]])),
    "a write through as_strided": lambda x: x.clone()[:, :2].as_strided((2,), (4,)).add_(1),
    "selection": lambda x: (x[x > 0], x.clamp(0.1, 0.7), x.sort(1).values),
    "dtypes": lambda x: (x.to(torch.bfloat16) * 0.1, x.int() // 3, x.long() ** 2),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("backend", [None, "eager"])
def test_on_cpu_tensors_with_another_default(name: str, backend: str | None) -> None:
    program, x = PROGRAMS[name], torch.randn(4, 4)
    expected = program(x)
    compiled = kiln.compile(program, **({"backend": backend} if backend else {}))
    torch.set_default_device("meta")
    try:
        result = compiled(x)
    finally:
        torch.set_default_device(None)
    torch.testing.assert_close(result, expected)
    assert compiled.report().eager == 0
