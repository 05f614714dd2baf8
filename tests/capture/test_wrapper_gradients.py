"""Gradients through wrapper subclasses: values, classes and autograd state as in eager, in one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_map

import kiln
from tests.capture.test_tensor_subclasses import Pair, Scaled, integers

F = torch.nn.functional
aten = torch.ops.aten


class Rounded(Tensor):
    """A weight that is quantised where it is used: the gradient of it is a plain tensor."""

    values: Tensor
    factor: float

    @staticmethod
    def __new__(cls, values: Tensor, factor: float) -> Rounded:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, values.size(), strides=values.stride(), dtype=values.dtype, device=values.device, requires_grad=False
        )
        return made  # type: ignore[no-any-return]

    def __init__(self, values: Tensor, factor: float) -> None:
        self.values = values
        self.factor = factor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SAME:
            return Rounded(func(args[0].values, *args[1:], **(kwargs or {})), args[0].factor)
        if func in IN_PLACE:
            func(*[arg.values if isinstance(arg, Rounded) else arg for arg in args], **(kwargs or {}))
            return args[0]
        plain = [tree_map(lambda x: x.plain() if isinstance(x, Rounded) else x, part) for part in (args, kwargs or {})]
        return func(*plain[0], **plain[1])

    def plain(self) -> Tensor:
        return torch.round(self.values * self.factor) / self.factor


SAME = (aten.detach.default, aten.t.default, aten.clone.default, aten._to_copy.default)
IN_PLACE = (aten.add_.Tensor, aten.mul_.Tensor, aten.addcdiv_.default, aten.copy_.default)


class ToPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return Pair(x * 1, x * 2)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Tensor:  # type: ignore[override]
        return grad.a + grad.b  # type: ignore[no-any-return]


class FromPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pair: Any) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(pair.a)
        return pair.a * pair.b  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        (a,) = ctx.saved_tensors
        return Pair(grad * a, grad)


@dataclass(frozen=True)
class Settings:
    factor: float


class Scaling(NamedTuple):
    inner: Settings


class WithSettings(torch.autograd.Function):
    """An object of the program is among its arguments, and what is inside of a kept wrapper is read in the backward."""

    @staticmethod
    def forward(ctx: Any, pair: Any, settings: Settings, scaling: Scaling) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(pair)
        return pair.a * settings.factor * scaling.inner.factor  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        (pair,) = ctx.saved_tensors
        return Pair(grad * pair.b, grad), None, None


SETTINGS = Settings(2.0)
SCALING = Scaling(SETTINGS)


class FirstOfPair(torch.autograd.Function):
    """Its gradient is plain, which the backward of a region does not expect of a Pair."""

    @staticmethod
    def forward(ctx: Any, pair: Any) -> Tensor:  # type: ignore[override]
        return pair.a * 1  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad


class Layers(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.linear(x).relu(), self.weight).sin()


def pair() -> Any:
    return Pair(torch.randn(3, 3), torch.randn(3, 3)).requires_grad_()


def nested() -> Any:
    return Pair(pair().detach(), pair().detach()).requires_grad_()


def two() -> Any:
    return TwoTensor(torch.randn(3, 3), torch.randn(3, 3)).requires_grad_()


def plain() -> Tensor:
    return torch.randn(3, 3, requires_grad=True)


def scaled() -> Tensor:
    return Scaled(integers(), torch.tensor(0.5))


def no_grad_inside(w: Any) -> Any:
    y = w * 2
    with torch.no_grad():
        z = w * 3
    return y * z, z + 1


def in_place(w: Any) -> Any:
    y = w * 2
    y.mul_(3)
    y.add_(w)
    return y.sin()


def inner(w: Any) -> Any:
    y = w * 2
    return y.sin(), y.a + 1


PROGRAMS: list[tuple[list[Callable[[], Tensor]], Callable[..., Any]]] = [
    ([pair], lambda w: (w * 2).sin() * w),
    ([pair, plain], lambda w, x: ((w @ w).tanh(), w.sum(0) + x)),
    ([pair], lambda w: (w.t().reshape(-1)[2:] * 2, w.chunk(3)[1] + 1, w.detach() * 2)),
    ([scaled, plain], lambda w, x: x @ w),
    ([plain], lambda x: x @ Scaled(torch.ones(3, 3, dtype=torch.int8), torch.tensor(2.0))),
    ([nested], lambda w: (w * w).sin()),
    ([pair], no_grad_inside),
    ([two], lambda w: (w * 2).sin() @ w),
    ([pair], in_place),
    ([pair], inner),
    ([plain], lambda x: FromPair.apply(ToPair.apply(x).sin())),  # type: ignore[no-untyped-call]
    ([pair], lambda w: WithSettings.apply(w, SETTINGS, SCALING)),  # type: ignore[no-untyped-call]
    ([plain], lambda x: ToPair.apply(x) * 2),  # type: ignore[no-untyped-call]
]


def content(value: Any) -> Any:
    """What can be compared: of a wrapper its metadata and what is inside."""
    if isinstance(value, tuple | list):
        return tuple(map(content, value))
    if not isinstance(value, Tensor):
        return value
    state = type(value), value.dtype, value.shape, value.stride(), value.requires_grad, value.is_leaf
    inside = {name: content(part) for name, part in vars(value).items()}
    return (*state, inside) if inside else (*state, value.detach().double().numpy().round(3).tolist())


def step(function: Callable[..., Any], makers: list[Callable[[], Tensor]]) -> Any:
    """Results and gradients; the arguments are no leaves every second time."""
    torch.manual_seed(0)
    found = []
    for leaf in (True, False):
        arguments = [make() for make in makers]
        result = function(*[argument if leaf else argument * 1 for argument in arguments])
        first = result[0] if isinstance(result, tuple) else result
        first.sum().backward()
        found.append((content(result), [content(argument.grad) for argument in arguments]))
    return found


@pytest.mark.parametrize("backend", ["eager", "kiln"])
def test_as_eager(backend: str) -> None:
    for makers, function in PROGRAMS if backend == "eager" else PROGRAMS[:3] + PROGRAMS[9:]:
        keywords: Any = {} if backend == "kiln" else {"backend": backend}
        compiled = kiln.compile(function, options={"cache": False}, **keywords)
        assert step(compiled, makers) == step(function, makers), function.__code__.co_firstlineno
        report = compiled.report()
        assert not report.breaks and not report.eager_reasons, report


def trained(compile_: Callable[[nn.Module], Any], weight: Tensor, optimizer: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    net = copy.deepcopy(Layers(weight))
    run = compile_(net)
    update = optimizer(net.parameters())
    for _ in range(3):
        result = run(torch.randn(2, 4))
        result.square().sum().backward()
        yield content((result, net.weight.grad, net.linear.weight.grad))
        update.step()
        update.zero_grad()
    yield content(net.weight)
    if run is not net:
        report = run.report()
        assert report.regions == 1 and not report.breaks and not report.eager_reasons, report


def test_training() -> None:
    weight = Rounded(torch.randn(4, 4), 8.0)
    for optimizer in (
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.1, foreach=False),
    ):
        compiled = trained(lambda net: kiln.compile(net, options={"cache": False}), weight, optimizer)
        assert list(compiled) == list(trained(lambda net: net, weight, optimizer))


def test_other_tangents_and_second_derivatives() -> None:
    """Tangents of another class than was expected, and `create_graph`: eager's operators run on the wrappers."""

    def program(w: Any) -> Any:
        return (w * w).sin()

    def outcome(function: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        w, v = pair(), pair()
        FirstOfPair.apply(function(w)).sum().backward()  # type: ignore[no-untyped-call]
        (grad,) = torch.autograd.grad(function(v).sum(), v, create_graph=True)
        grad.sum().backward()
        y = function(v)
        y.sum().backward(retain_graph=True)
        y.sum().backward()
        return content((w.grad, grad, v.grad))

    compiled = kiln.compile(program, options={"cache": False})
    assert outcome(compiled) == outcome(program)
    assert not compiled.report().breaks and not compiled.report().eager_reasons


def test_guards() -> None:
    """On the metadata, and on what is inside."""
    compiled = kiln.compile(lambda w, x: F.linear(x, w), backend="eager", options={"cache": False})
    values = torch.randn(4, 4)
    for factor, grad in ((8.0, True), (2.0, True), (2.0, False), (4.0, True)):
        w = Rounded(values, factor).requires_grad_(grad)
        x = torch.randn(2, 4, requires_grad=True)
        result = compiled(w, x)
        assert torch.equal(result, F.linear(x, w.plain()))  # type: ignore[attr-defined]
        result.sum().backward()
        assert (w.grad is not None) == grad
    assert not compiled.report().breaks
