"""A default device is the program's: what the compiler itself computes stays on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

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


class Added(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        return result + 1 if function is torch.sin else result


def test_calls_under_devices() -> None:
    """`with torch.device(...)` outside of the call is compiled, and is not taken for another mode."""

    def program(x: Tensor) -> tuple[Tensor, torch.device, torch.device]:
        return torch.sin(x), torch.zeros(2).device, torch.get_default_device()

    compiled, x = kiln.compile(program), torch.ones(3)
    for names in ((), ("cpu",), ("meta",), ("meta", "cpu"), ("cpu", "meta"), ("cpu",), ()):
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(torch.device(name))
            assert_like_eager(compiled, program, x)
    report = kiln.report_of(compiled)
    assert report.compiles + report.loaded == 5 and not report.eager, report
    with pytest.warns(UserWarning, match="KILN1091"), Added():
        assert_like_eager(compiled, program, x)


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


def shapes_alone(x: Tensor) -> object:
    product = torch.zeros(2, len(x), device="meta") @ torch.randn(len(x), 4, device="meta")
    return x * product.shape[1], product.dtype, product.device


def a_result(x: Tensor) -> object:
    return x + 1, torch.zeros(len(x), 3, device="meta").t() + 1


def a_gradient(x: Tensor) -> object:
    made = torch.zeros(3, device="meta", requires_grad=True)
    (made * 2).sum().backward()
    return x, made.grad


def read(x: Tensor) -> object:
    try:
        return torch.zeros(3, device="meta").tolist()
    except NotImplementedError:
        return x + 1


@pytest.mark.parametrize("program", [shapes_alone, a_result, a_gradient, read])
def test_meta_tensors_made_inside(program: Callable[[Tensor], object]) -> None:
    compiled = kiln.compile(program, options={"cache": False})
    for size in (3, 5):
        results = [function(torch.ones(size)) for function in (program, compiled)]
        assert [[str(part) for part in result] for result in results[1:]] == [[str(part) for part in results[0]]]  # type: ignore[attr-defined]
    report = kiln.report_of(compiled)
    assert not any(reason.code.startswith("KILN9") for reason in report.eager_reasons)
    assert program is not shapes_alone or not (report.breaks or report.eager_reasons)


def test_another_default_dtype_in_a_second_compile() -> None:
    def program(x: Tensor) -> list[torch.dtype]:
        return [torch.linspace(0, 1, 3).dtype, torch.hann_window(4).dtype, (x.long() / 2).dtype]

    compiled = kiln.compile(program, options={"cache": False})
    for dtype in (torch.float32, torch.float64, torch.float32):
        torch.set_default_dtype(dtype)
        try:
            assert compiled(torch.ones(2)) == program(torch.ones(2))
        finally:
            torch.set_default_dtype(torch.float32)
