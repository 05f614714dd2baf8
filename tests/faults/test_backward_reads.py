"""The backward of an `autograd.Function` read variables from outside when the forward ran, not when it runs itself."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln

Gradient = Callable[[Any, Tensor], Tensor]
FACTOR: Any = 2.0
TENSOR = torch.full((3,), 2.0)
SETTINGS = {"factor": 2.0}


class Holder:
    factor = 2.0


class Mode(Enum):
    DOUBLE = 2


HELD = SimpleNamespace(factor=2.0, scale=lambda g: g * FACTOR)


def assign(value: float) -> None:
    global FACTOR, TENSOR
    FACTOR, TENSOR = value, torch.full((3,), value)
    SETTINGS["factor"] = Holder.factor = HELD.factor = value


def scaled(g: Tensor) -> Tensor:
    return g * FACTOR


LATER: dict[str, Gradient] = {
    "global": lambda ctx, g: g * FACTOR,
    "tensor": lambda ctx, g: g * TENSOR,
    "function": lambda ctx, g: scaled(g),
    "item": lambda ctx, g: g * SETTINGS["factor"],
    "class attribute": lambda ctx, g: g * Holder.factor,
    "vars": lambda ctx, g: g * vars(Holder)["factor"],
    "condition": lambda ctx, g: g * 3 if FACTOR > 4 else g,
    "object in the context": lambda ctx, g: g * ctx.held.factor,
    "object beside its attribute": lambda ctx, g: g * ctx.both[0].factor,
    "method": lambda ctx, g: HELD.scale(g),
}


def unpacked(ctx: Any, g: Tensor) -> Tensor:
    x, y = ctx.saved_tensors
    return g * x * y.shape[0] + x.size(0) * len(y) + y.numel() * x.dim() + x.new_ones(x.shape).sum()


NOW: dict[str, Gradient] = {
    "saved": unpacked,
    "stored": lambda ctx, g: g * ctx.number * ctx.pair[0] + ctx.pair[1][1] if ctx.needs_input_grad[0] else g,
    "torch": lambda ctx, g: torch.ops.aten.mul(g.to(torch.float32), 2).clamp(torch.finfo(g.dtype).min),
    "enumeration": lambda ctx, g: g * Mode.DOUBLE.value,
    "loop": lambda ctx, g: sum((part * g for part in ctx.saved_tensors), g),
    "method of the class": lambda ctx, g: ctx.helper(g),
}


def program_of(gradient: Gradient) -> Callable[[Tensor, int], Tensor]:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, number: int) -> Tensor:
            y = x * 2
            ctx.save_for_backward(x, y)
            ctx.number, ctx.pair, ctx.held, ctx.helper = number, (number, (1, number)), HELD, torch.sin
            ctx.both = HELD, HELD.factor
            return y

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
            return gradient(ctx, g), None

    return lambda x, number: Scale.apply(x * 1, number).sum()


def gradient_of(function: Callable[[Tensor, int], Tensor], later: float) -> Tensor | None:
    assign(2.0)
    x = torch.arange(3.0, requires_grad=True)
    loss = function(x, 4)
    assign(later)
    loss.backward()
    return x.grad


@pytest.mark.filterwarnings("ignore:.*runs eager")
@pytest.mark.parametrize("name", [*LATER, *NOW])
def test_the_backward_reads_what_eager_reads(name: str) -> None:
    gradient = LATER.get(name) or NOW[name]
    program = program_of(gradient)
    compiled = kiln.compile(program, options={"cache": False})
    try:
        for later in (5.0, 2.0, 7.0):
            expected = gradient_of(program, later)
            found = gradient_of(compiled, later)
            assert expected is not None and found is not None
            torch.testing.assert_close(found, expected)
        report = kiln.report_of(compiled)
        assert bool(report.breaks or report.eager_reasons) == (name in LATER), report
    finally:
        assign(2.0)
