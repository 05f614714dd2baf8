"""A default device is the program's: what the compiler itself computes stays on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import kiln
from tests.faults.outcome import assert_like_eager

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


@pytest.mark.parametrize("error", [False, True])
def test_a_break_under_a_device(error: bool) -> None:
    """The device was entered while tracing, and stayed the default of the process."""

    def program(x: torch.Tensor) -> tuple[torch.Tensor, list[object]]:
        with torch.device("meta") as device:
            made = torch.ones(3)
            values = x.tolist()
            if error:
                raise KeyError
        return x.sum() + made.numel(), [*values, device.type]

    compiled = kiln.compile(program)
    for _ in range(2):
        assert_like_eager(compiled, program, torch.ones(3))
        assert torch.ones(1).device.type == "cpu" and not torch._C._len_torch_function_stack()
    assert not any(reason.code.startswith("KILN9") for reason in kiln.report_of(compiled).eager_reasons)
