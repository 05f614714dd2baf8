"""`torch.autograd.Function` in compiled code: forward and backward are part of the region."""

from __future__ import annotations

import time
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

import kiln
from kiln.pipeline.session import KilnWarning


class Scale(torch.autograd.Function):
    """A gradient that autograd would not compute."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: float) -> Tensor:
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad * ctx.by * 100, None


class MulAdd(torch.autograd.Function):
    """Saved tensors, needs_input_grad, two results of which one has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, w)
        sign = (x * w).sign()
        ctx.mark_non_differentiable(sign)
        return x * w + (b if b is not None else 0), sign

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Any) -> Any:
        x, w = ctx.saved_tensors
        dx = grad * w if ctx.needs_input_grad[0] else None
        dw = (grad * x).sum(0) if ctx.needs_input_grad[1] else None
        return dx, dw, grad.sum(0) if ctx.needs_input_grad[2] else None


class Separate(torch.autograd.Function):
    """`setup_context` of its own; gradients that are not materialized."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None) -> Any:
        (x,) = ctx.saved_tensors
        total = torch.zeros_like(x)
        if a is not None:
            total = total + a * x.cos()
        if b is not None:
            total = total - b * x.sin() * 2
        return total


class Breaking(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        time.sleep(0)
        return grad * 2


SEEN: list[int] = []


class Writing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        SEEN.append(1)
        return grad * 2


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 2


class Identity(torch.autograd.Function):
    """Returns its argument: a reversed gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -grad


def scaled(x: Tensor, w: Tensor) -> Tensor:
    return Scale.apply(x * w, 3.0).sin()


def mul_add(x: Tensor, w: Tensor) -> Tensor:
    y, sign = MulAdd.apply(x, w, None)
    z, _ = MulAdd.apply(y + sign, w, w * 2)
    return z


def separate(x: Tensor, w: Tensor) -> Tensor:
    a, _ = Separate.apply(x * w)
    b, c = Separate.apply(a)
    return b + 2 * c


def identity(x: Tensor, w: Tensor) -> Tensor:
    return Identity.apply(x * w) * w


def no_grad_needed(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        y = MulAdd.apply(x, w, None)[0]
    return y * w + x


def breaking(x: Tensor, w: Tensor) -> Tensor:
    return Breaking.apply(x * w) + 1


def writing(x: Tensor, w: Tensor) -> Tensor:
    return Writing.apply(x * w) + 1


def in_place(x: Tensor, w: Tensor) -> Tensor:
    return InPlace.apply(x * w) + 1


def gradients(function: Any, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    x, w = x.clone().requires_grad_(x.requires_grad), w.clone().requires_grad_()
    result = function(x, w)
    wanted = [item for item in (x, w) if item.requires_grad]
    return result.detach(), *torch.autograd.grad(result.sum(), wanted)


def check(function: Any, breaks: list[str], **options: Any) -> Any:
    compiled = kiln.compile(function, **options)
    for x in (torch.randn(4, 3), torch.randn(4, 3, requires_grad=True)):
        w = torch.randn(3)
        for got, expected in zip(gradients(compiled, x, w), gradients(function, x, w), strict=True):
            torch.testing.assert_close(got, expected)
    report = kiln.report_of(compiled)
    assert sorted({graph_break.code for graph_break in report.breaks}) == breaks, report.breaks
    assert report.eager == 0
    return report


@pytest.mark.parametrize("function", [scaled, mul_add, separate, identity, no_grad_needed])
def test_one_graph(function: Any) -> None:
    assert check(function, []).regions == 2


@pytest.mark.parametrize("function", [scaled, mul_add, separate])
def test_a_users_backend_gets_one_call(function: Any) -> None:
    targets: list[str] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        targets.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    check(function, [], backend=backend)
    assert any("apply" in target for target in targets)


@pytest.mark.parametrize("function", [breaking, writing, in_place])
def test_what_cannot_be_traced_breaks(function: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", KilnWarning)
        report = check(function, ["KILN1002"])
    (stop, *_) = report.breaks
    assert "test_autograd_function.py" in stop.where
    assert ".apply" in stop.reason or ".backward" in stop.reason


def test_a_replaced_backward_is_noticed() -> None:
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    compiled = kiln.compile(lambda x, w: Own.apply(x * w))
    x, w = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(gradients(compiled, x, w)[1], x)
    Own.backward = staticmethod(lambda ctx, grad: grad * 7)
    torch.testing.assert_close(gradients(compiled, x, w)[1], x * 7)


BOUND_SCALE = Scale.apply


def test_apply_that_was_bound_before() -> None:
    check(lambda x, w: BOUND_SCALE(x * w, 2.0) + 1, [])
