"""Python floats that change from call to call: two compiles, and eager's values."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import kiln

X = torch.linspace(-2, 2, 4)
VALUES = (0.95, 0.947, 0.94, 0.93, 0.92, 0.91)
PROGRAMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "lerp": lambda x, f: x.lerp(x * 2, 1 - f) + x.lerp(x * 3, f),
    "lerp in bfloat16": lambda x, f: x.bfloat16().lerp(x.bfloat16() * 2, 1 - f),
    "foreach lerp": lambda x, f: torch._foreach_lerp([x, x], [x * 2, x], 1 - f)[0],
    "elu": lambda x, f: nn.functional.elu(x, f) + nn.functional.celu(x, f),
    "fill_": lambda x, f: x.clone().fill_(f),
    "tensor": lambda x, f: torch.tensor([f, 1.0]).sum() * x + torch.tensor(f, dtype=torch.float64),
    "int": lambda x, f: x[: int(f * 4)] * int(-f * 10 + 9),
    "round": lambda x, f: x * round(f),
    "floor and ceil": lambda x, f: x * (torch.pi // f) + math.floor(f * 2) - math.ceil(f),
    "range": lambda x, f: x + sum(range(int(f * 5))),
    "divmod": lambda x, f: x * divmod(f, 0.3)[0] + divmod(-f, 0.3)[1],
    "minimum": lambda x, f: x * min(f, 0.98) + max(f, 0.3, 0.1),
    "linspace": lambda x, f: x + torch.linspace(-f, f, 4) + torch.linspace(f, 2, 7, dtype=torch.float64)[3:],
}


F = nn.functional
ROWS = torch.linspace(-2, 2, 32).view(4, 8)


def normalised(x: Tensor, f: float) -> Tensor:
    mean, variance = torch.zeros(8), torch.ones(8)
    made = F.batch_norm(x, mean, variance, training=True, momentum=f, eps=1 - f)
    made = made + F.layer_norm(x, (8,), eps=f) + F.rms_norm(x, (8,), eps=f / 2) + F.group_norm(x, 2, eps=f)
    return made + mean + variance + F.instance_norm(x.view(1, 4, 8), eps=f)[0] + F.normalize(x, eps=f)


def losses(x: Tensor, f: float) -> Tensor:
    classes, y = torch.arange(4), x.flip(0) * 2
    made = F.cross_entropy(x, classes, label_smoothing=f / 4) + F.huber_loss(x, y, delta=f)
    made = made + F.smooth_l1_loss(x, y, beta=f) + F.triplet_margin_loss(x, y, x + y, margin=f)
    return made + F.cosine_embedding_loss(x, y, torch.ones(4), margin=f / 2) + torch.logit(x / 9 + 0.5, f)


def library_calls(x: Tensor, f: float) -> Tensor:
    heads = x.view(1, 2, 2, 8)
    attention = F.scaled_dot_product_attention(heads, heads, heads, scale=f)
    return torch.addmm(x, x, torch.eye(8), alpha=f, beta=2 - f) + attention.view(4, 8)


PLAIN_DOUBLES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "normalised": normalised,
    "losses": losses,
    "library calls": library_calls,
}


@pytest.mark.parametrize("name", PLAIN_DOUBLES)
def test_a_float_that_torch_takes_as_a_plain_double(name: str) -> None:
    """It is no part of the guards, in gradients neither: three classes of numbers are a variant each."""
    program = PLAIN_DOUBLES[name]
    compiled: Any = kiln.compile(program, options={"cache": False})
    for value in (0.95, 0.9, 0.7, 0.5, 0.4, 0.3):
        mine, theirs = ROWS.clone().requires_grad_(), ROWS.clone().requires_grad_()
        made, expected = compiled(mine, value), program(theirs, value)
        torch.testing.assert_close(made, expected)
        (made * made.detach().cos()).sum().backward()
        (expected * expected.detach().cos()).sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-5)
    report = compiled.report()
    assert report.compiles <= (3 if name == "library calls" else 2) and not report.eager, str(report)


def noise(x: Tensor, f: float) -> Tensor:
    made = F.alpha_dropout(x, f, training=True) + torch.normal(f, f, (4, 8)) + torch.normal(0.0, f, (4, 8))
    return made + torch.empty(4, 8).uniform_(-f, f)


def test_bounds_of_noise_that_change() -> None:
    compiled: Any = kiln.compile(noise, options={"cache": False, "random": "eager"})
    for value in (0.1, 0.2, 0.5, 0.75):
        torch.manual_seed(0)
        expected = noise(ROWS, value)
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(ROWS, value), expected)
    assert compiled.report().compiles <= 2 and not compiled.report().eager
    with pytest.raises(ValueError, match="dropout probability has to be"):
        compiled(ROWS, -0.5)
    bounded: Any = kiln.compile(lambda x, f: x + torch.empty(4, 8).uniform_(-f, f), backend="eager")
    for value in (0.1, 0.2):
        bounded(ROWS, value)
    with pytest.raises(RuntimeError, match="uniform_ expects to return"):
        bounded(ROWS, -0.5)


@pytest.mark.parametrize("random", ["own", "eager"])
def test_a_probability_that_changes(random: str) -> None:
    def program(x: Tensor, p: float) -> Tensor:
        return F.dropout(x, p) + x.clone().bernoulli_(p) * 8

    x = torch.ones(64, 256)
    compiled: Any = kiln.compile(program, options={"cache": False, "random": random})
    for p in (0.1, 0.2, 0.5, 0.75):
        torch.manual_seed(0)
        made = compiled(x, p)
        torch.manual_seed(0)
        if random == "eager":
            assert torch.equal(made, program(x, p))
        assert abs((made % 8 == 0).float().mean() - p) < 0.02 and abs((made > 4).float().mean() - p) < 0.02
    assert compiled.report().compiles <= 2
    with pytest.raises(ValueError):
        compiled(x, 1.5)


REFUSED: dict[str, tuple[Callable[[Tensor, float], Tensor], float]] = {
    "celu": (F.celu, 0.0),
    "softshrink": (F.softshrink, -0.5),
    "bernoulli_": (lambda x, f: x.clone().bernoulli_(f), 1.5),
    "normal_": (lambda x, f: x.clone().normal_(0, f), -1.0),
    "a quotient in torch": (lambda x, f: F.lp_pool1d(x[None, None], f, 2), 0.0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_float_that_eager_refuses(name: str) -> None:
    program, wrong = REFUSED[name]
    compiled: Any = kiln.compile(program, backend="eager")
    for value in (0.5, 0.25, 0.75):
        compiled(X, value)
    with pytest.raises((RuntimeError, ZeroDivisionError)) as raised:
        program(X, wrong)
    with pytest.raises(raised.type):
        compiled(X, wrong)
    compiled(X, 0.6)


def test_sizes_that_a_float_decides() -> None:
    def program(x: Tensor, f: float) -> Tensor:
        return F.interpolate(x[None, None], scale_factor=f)

    compiled: Any = kiln.compile(program, backend="eager")
    for value in (1.5, 1.8, 2.3, 2.8):
        assert compiled(X, value).shape == program(X, value).shape


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_float_that_changes(name: str) -> None:
    compiled: Any = kiln.compile(PROGRAMS[name], options={"cache": False})
    for value in VALUES:
        torch.testing.assert_close(compiled(X, value), PROGRAMS[name](X, value))
    report = compiled.report()
    assert report.compiles <= 2 and not report.eager, str(report)


def test_a_float_that_rounds_to_another_integer() -> None:
    compiled: Any = kiln.compile(lambda x, f: x * int(f) + round(f))
    for value in (1.2, 1.4, 1.6, 2.5, 3.5, -1.5, 0.4, 1.3):
        torch.testing.assert_close(compiled(X, value), X * int(value) + round(value))
    for wrong, error in ((float("nan"), ValueError), (float("inf"), OverflowError)):
        with pytest.raises(error):
            compiled(X, wrong)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, 0.01),
    "adamw foreach": lambda parameters: torch.optim.AdamW(parameters, 0.01, foreach=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True),
    "adamax": lambda parameters: torch.optim.Adamax(parameters),
    "fused adam": lambda parameters: torch.optim.Adam(parameters, 0.01, weight_decay=0.1, amsgrad=True, fused=True),
    "fused adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01, maximize=True, fused=True),
    "fused sgd": lambda parameters: torch.optim.SGD(
        parameters, 0.1, momentum=0.9, dampening=0.1, weight_decay=0.01, fused=True
    ),
}


def trained(make: Callable[[Any], torch.optim.Optimizer], compile: bool) -> tuple[list[Tensor], Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = make(model.parameters())
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40)
    step: Any = kiln.compile(optimizer.step, options={"cache": False}) if compile else optimizer.step
    x = torch.randn(16, 6)
    for _ in range(20):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        step()
        scheduler.step()
    return list(model.parameters()), step


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_schedule_of_learning_rate_and_momentum(name: str) -> None:
    slow, _ = trained(OPTIMIZERS[name], compile=False)
    fast, step = trained(OPTIMIZERS[name], compile=True)
    torch.testing.assert_close(fast, slow, rtol=1e-5, atol=1e-6)
    report = step.report()
    assert report.compiles <= 2 and not report.eager and not report.breaks, str(report)


def test_a_fused_adagrad() -> None:
    def run(compile: bool) -> Tensor:
        parameter = nn.Parameter(X.clone())
        optimizer = torch.optim.Adagrad([parameter], 0.1, lr_decay=0.1, weight_decay=0.1, fused=True)
        step: Any = kiln.compile(optimizer.step, options={"cache": False}) if compile else optimizer.step
        for _ in range(5):
            parameter.grad = parameter.detach().sin()
            step()
        return parameter.detach()

    torch.testing.assert_close(run(True), run(False))


class Scale:
    by = 2.0


def test_a_weak_reference_is_asked_in_each_call_and_keeps_nothing_alive() -> None:
    target = Scale()
    reference = weakref.ref(target)
    compiled = kiln.compile(lambda x: x * reference().by, fullgraph=True)  # type: ignore[union-attr]
    for factor in (2.0, 3.0, 4.0):
        target.by = factor
        assert torch.equal(compiled(X), X * factor)
    del target
    gc.collect()
    assert reference() is None
    with pytest.raises(AttributeError):
        kiln.compile(lambda x: x * reference().by)(X)  # type: ignore[union-attr]
    with pytest.raises(AttributeError):
        compiled(X)
