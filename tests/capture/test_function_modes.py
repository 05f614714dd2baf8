"""Torch function and dispatch modes of the program: what they see and change is as in eager, in one graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import kiln

F = torch.nn.functional
NAMED = (torch.sin, torch.Tensor.shape.__get__)  # type: ignore[attr-defined]


class Log(TorchFunctionMode):
    """Every call, with its arguments in writing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = sorted((name, written(value)) for name, value in (kwargs or {}).items())
        kinds = [kind.__name__ for kind in types]
        self.seen.append(
            (
                getattr(func, "__name__", str(func)),
                written(args),
                named,
                kinds,
                func is F.gelu,
                func in NAMED,
                func == NAMED[1],
            )
        )
        return func(*args, **(kwargs or {}))


def written(value: Any) -> Any:
    if isinstance(value, Tensor):
        return "tensor"
    return [written(item) for item in value] if isinstance(value, list | tuple) else repr(value)


class Replace(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return torch.cos(args[0]) if func is torch.sin else func(*args, **(kwargs or {}))


class PlusOne(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made + 1 if func is torch.sin else made


class Refuse(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise ValueError("no torch")


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = sorted((name, written(value)) for name, value in (kwargs or {}).items())
        self.seen.append((str(func), written(args), named, len(types)))
        return func(*args, **(kwargs or {}))


class Cosine(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.sin.default:
            return torch.ops.aten.cos.default(*args) + 1
        return func(*args, **(kwargs or {}))


LAYER = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval().requires_grad_(False)
LINEAR = nn.Linear(3, 3)
WEIGHT = nn.Parameter(torch.ones(3))
OUTSIDE = Log()


def operators(x: Tensor) -> Any:
    y = 2 - F.gelu(x) + x**2
    y += 1
    return -y, y // 2, 1 / y, ~(y > 0), abs(y), y @ y.T, y[0], y[torch.tensor(1)], y[:, :2], y * x.shape[0], y + WEIGHT


def methods(x: Tensor) -> Any:
    plain = x.size(0), x.dim(), x.is_contiguous(), x.numel(), len(x), x.dtype, x.device, x.requires_grad, x.stride()
    y = x.reshape(3, -1).norm() * x.to(torch.float64).float().masked_fill(x > 0, 1.0)
    return plain, y.split(1), y.chunk(2), y.sort().values, y.unflatten(0, (3, 1)), y.detach(), [row.sum() for row in y]


def functions(x: Tensor) -> Any:
    y = F.layer_norm(LINEAR(F.softmax(x, -1)), (3,), eps=1e-3)
    made = torch.cat([x, y]), torch.stack([x, y]), torch.zeros(3), torch.tensor([1.0]), torch.zeros_like(x)
    y = torch.einsum("ij,ij->ij", x, y) + F.dropout(y, 0.5, training=False)
    return made, torch.where(y > 0, y, torch.ones(3)), torch.max(y, 1), torch.ops.aten.sin(y), F.pad(y, (1, 1))


def logged(function: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def program(x: Tensor) -> Any:
        with Log() as log:
            found = function(x)
        return found, log.seen

    return program


def nested(x: Tensor) -> Any:
    with Replace():
        with PlusOne():
            y = torch.sin(x)
        z = torch.sin(x)
    return y, z, torch.sin(x)


def from_outside(x: Tensor) -> Any:
    OUTSIDE.seen.clear()
    with OUTSIDE:
        y = torch.zeros(3) + x
    return y, list(OUTSIDE.seen)


def refused(x: Tensor) -> Any:
    try:
        with Refuse():
            torch.sin(x)
    except ValueError as error:
        return x * 2, str(error)
    return x


def gradients(x: Tensor) -> Any:
    with Log() as log:
        with torch.no_grad():
            y = x * 2
        z = (x * WEIGHT).sum()
    return y, z, log.seen


def dispatched(x: Tensor) -> Any:
    with torch.no_grad(), Operators() as log:
        y = F.layer_norm(LINEAR(x), (3,)) + torch.ones(3)
        y = torch.cat([y, y]).reshape(3, -1).norm() * torch.where(x > 0, x, 1.0)
        y = torch.einsum("ij,kj->ik", y, y), F.pad(y, (1, 1)), y.split(1), [row * 2 for row in y], y.clone().detach()
        z = LAYER(torch.ones(1, 2, 4)), torch.ones_like(x).data, torch.linspace(x[0, 0], x[1, 1], 3)
    with Cosine():
        with Cosine():
            first = torch.sin(x)
        second = torch.sin(x)
    with Operators() as other, Log() as functions:
        third = torch.sin(x) * x.shape[0]
    return y, z, first, second, third, torch.sin(x), log.seen, other.seen, functions.seen


def with_a_gradient(x: Tensor) -> Any:
    with Cosine():
        return torch.sin(x * LINEAR.weight)


def with_a_break(x: Tensor) -> Any:
    with Replace():
        y = torch.sin(x)
        time.sleep(0)
        return y + torch.sin(x)


def reading_values(x: Tensor) -> Any:
    with Operators() as log:
        y = F.one_hot((x > 0).long(), 3)
    return y, log.seen


def content(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [content(item) for item in value]
    return (value.requires_grad, value.tolist()) if isinstance(value, Tensor) else value


PROGRAMS = [*map(logged, (operators, methods, functions)), nested, from_outside, refused, gradients, dispatched]


def test_as_eager() -> None:
    x = torch.arange(9.0).reshape(3, 3) / 9
    for program in PROGRAMS:
        compiled = kiln.compile(program, backend="eager", options={"cache": False})
        for _ in range(2):
            assert content(compiled(x)) == content(program(x))
        report = compiled.report()
        assert report.regions == report.compiles and not report.breaks and not report.eager_reasons, report


def test_a_break_inside() -> None:
    x = torch.arange(3.0)
    for function in (with_a_break, with_a_gradient, reading_values):
        compiled = kiln.compile(function, backend="eager", options={"cache": False})
        for _ in range(2):
            assert content(compiled(x)) == content(function(x))
        assert compiled.report().breaks


def test_around_the_region() -> None:
    """It runs eager, once, and is compiled for calls without the mode."""
    x = torch.arange(3.0)
    compiled = kiln.compile(lambda x: torch.sin(x) + 1, backend="eager", options={"cache": False})
    for mode in (Replace, Cosine):
        with mode():
            for _ in range(3):
                assert torch.equal(compiled(x), torch.cos(x) + (1 if mode is Replace else 2))
    for _ in range(2):
        assert torch.equal(compiled(x), torch.sin(x) + 1)
    assert compiled.report().compiles == 1


def test_how_many_dispatch_modes_there_are() -> None:
    """Attention that is not trained asks it, to choose its path."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True).eval().requires_grad_(False)

    def program(x: Tensor) -> tuple[Tensor, int, int]:
        before = torch._C._len_torch_dispatch_stack()
        with Operators():
            inside = torch._C._len_torch_dispatch_stack()
        return attention(x, x, x)[0], before, inside

    compiled = kiln.compile(program, options={"cache": False})
    x = torch.randn(2, 4, 8)
    torch.testing.assert_close(compiled(x), program(x))
    assert program(x)[1:] == (0, 1) and not kiln.report_of(compiled).breaks
