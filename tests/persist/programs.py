"""Programs that are compiled, kept on disk, and loaded again: `PROGRAMS[name]() -> (function, arguments, keywords)`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
PROGRAMS: dict[str, Callable[[], Call]] = {}
SCALE = 3.0
COUNTS = {"calls": 0}
LOG: list[str] = []


def program(make: Callable[[], Call]) -> Callable[[], Call]:
    PROGRAMS[make.__name__] = make
    return make


def tensor(*sizes: int, grad: bool = False) -> Tensor:
    torch.manual_seed(sum(sizes))
    return torch.randn(*sizes).requires_grad_(grad)


def pointwise(x: Tensor, scale: float = 2.0) -> Tensor:
    return torch.sin(x) * scale + SCALE


KINDS = {nn.ReLU, nn.Linear, nn.GELU, nn.Tanh}


@program
def set_of_classes() -> Call:
    def function(x: Tensor) -> Tensor:
        return x * 2 if nn.GELU in KINDS else x

    return function, (tensor(3, 4),), {}


class Collector:
    """A context variable that only an attribute leads to."""

    def __init__(self) -> None:
        self.variable: ContextVar[list[Tensor] | None] = ContextVar("collected", default=None)


COLLECTOR = Collector()


@program
def context_variable() -> Call:
    def function(x: Tensor) -> Tensor:
        collected = COLLECTOR.variable.get()
        return x * 2 if collected is None else x

    return function, (tensor(3, 4),), {}


@program
def plain() -> Call:
    return pointwise, (tensor(4, 5),), {}


@program
def keywords() -> Call:
    return pointwise, (), {"scale": 0.5, "x": tensor(3)}


def variadic(*parts: Tensor, weight: float, **more: Tensor) -> dict[str, Any]:
    total = sum(parts, start=torch.zeros(3)) * weight
    return {"total": total, **{name: value + total for name, value in more.items()}}


@program
def rest_arguments() -> Call:
    return variadic, (tensor(3), tensor(3)), {"weight": 2.0, "a": tensor(3), "b": tensor(1, 3)}


def make_closure(offset: float, table: Tensor) -> Callable[[Tensor], Tensor]:
    def scaled(x: Tensor) -> Tensor:
        return x * SCALE

    def inner(x: Tensor) -> Tensor:
        return scaled(x) + offset + table

    return inner


@program
def closure() -> Call:
    return make_closure(1.5, tensor(4)), (tensor(4),), {}


def higher(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return function(x) - 1


@program
def function_argument() -> Call:
    return higher, (lambda x: torch.exp(x) * 2, tensor(4)), {}


def branches(x: Tensor, y: Tensor) -> Tensor:
    x = x / (torch.abs(x) + 1)
    if y.sum() < 0:
        y = y * -1
    return x * y


@program
def one_break() -> Call:
    return branches, (tensor(6), tensor(6)), {}


def innermost(x: Tensor) -> Tensor:
    y = x.relu()
    LOG.append("inside")
    if y.sum() > 1e6:
        return y
    return y * 3


def outer(x: Tensor) -> Tensor:
    y = innermost(x + 1)
    for step in range(2):
        time.sleep(0)
        y = y + step
    try:
        return y * innermost(y)
    finally:
        LOG.append("done")


@program
def breaks_in_callees() -> Call:
    return outer, (tensor(5),), {}


class Counter:
    def __init__(self) -> None:
        self.calls = 0
        self.seen: list[Tensor] = []


def effects(counter: Counter, x: Tensor) -> list[Tensor]:
    counter.calls += 1
    counter.seen.append(x * 2)
    COUNTS["calls"] += 1
    return [counter.seen[-1] + counter.calls]


@program
def side_effects() -> Call:
    return effects, (Counter(), tensor(3)), {}


class Point(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Pair:
    first: Tensor
    second: Point


def structures(x: Tensor) -> tuple[Pair, dict[str, Any]]:
    point = Point(x.sum(), x.mean())
    return Pair(x.t(), point), {"dtype": torch.float16, "size": x.size(), "none": None, "pi": math.pi}


@program
def built_results() -> Call:
    return structures, (tensor(2, 3),), {}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.norm = nn.LayerNorm(8)
        self.register_buffer("shift", torch.ones(8))

    def forward(self, x: Tensor, *, gain: float = 1.0) -> Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x)) * gain
        return self.norm(x) + self.shift


@program
def module() -> Call:
    return Net().eval(), (tensor(2, 8),), {"gain": 1.5}


class Asking(nn.Module):
    """Looks over its modules and parameters, which are keys of sets there."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(next(self.parameters()).dtype)
        for layer in [found for found in self.modules() if isinstance(found, nn.Linear)]:
            x = layer(x)
        return x * len({*self.layers, self})


@program
def over_modules() -> Call:
    return Asking().eval(), (tensor(2, 8),), {}


class Resized(nn.Module):
    """Two convolutions with a group norm, and a skip connection."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__()
        self.norm, self.first = nn.GroupNorm(2, given), nn.Conv2d(given, made, 3, padding=1)
        self.second, self.skip = nn.Conv2d(made, made, 3, padding=1), nn.Conv2d(given, made, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return self.second(F.silu(self.first(F.silu(self.norm(x))) + time.sin()[:, None, None, None])) + self.skip(x)


class UNet(nn.Module):
    def __init__(self, widths: tuple[int, ...] = (4, 8, 16)) -> None:
        super().__init__()
        self.begin, self.end = nn.Conv2d(3, widths[0], 3, padding=1), nn.Conv2d(widths[0], 3, 1)
        self.down = nn.ModuleList([Resized(*pair) for pair in pairwise(widths)])
        self.middle = nn.MultiheadAttention(widths[-1], 2, batch_first=True)
        self.up = nn.ModuleList([Resized(2 * b, a) for b, a in pairwise(widths[::-1])])

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        x, kept = self.begin(x), []
        for block in self.down:
            kept.append(block(x, time))
            x = F.avg_pool2d(kept[-1], 2)
        rows = x.flatten(2).transpose(1, 2)
        x = x + self.middle(rows, rows, rows)[0].transpose(1, 2).view_as(x)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), kept.pop()], 1), time)
        return self.end(x)


@program
def unet() -> Call:
    torch.manual_seed(0)
    return UNet().eval(), (tensor(1, 3, 16, 16), tensor(1)), {}


def train(net: Net, x: Tensor) -> list[Tensor]:
    loss = net(x).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad for p in net.parameters())]


@program
def method() -> Call:
    return Net().forward, (tensor(3, 8),), {}


def in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.add_(1)
    x.mul_(3)
    return y.view(-1)[1:]


@program
def mutation() -> Call:
    return in_place, (tensor(3, 4),), {}


def fast_path(x: Tensor, mask: Tensor) -> Tensor:
    if mask.all():
        return x + 1
    return torch.where(mask, x, 0.0)


@program
def speculation_holds() -> Call:
    return fast_path, (tensor(4), torch.ones(4, dtype=torch.bool)), {}


@program
def speculation_fails() -> Call:
    def both(x: Tensor, mask: Tensor) -> Tensor:
        return fast_path(x, mask) * 2

    return both, (tensor(4), torch.tensor([True, False, True, True])), {}


def with_modes(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return y @ y.t()


@program
def modes() -> Call:
    return with_modes, (tensor(4, 4),), {}


def gradient(x: Tensor, w: Tensor) -> Tensor:
    return torch.tanh(x @ w).sum(dim=0)


@program
def differentiable() -> Call:
    return gradient, (tensor(3, 4, grad=True), tensor(4, 5, grad=True)), {}


def flatten(value: Any) -> list[Any]:
    """The tensors and numbers in a result, and the gradients that they lead to."""
    if isinstance(value, Tensor):
        return [value.detach().clone()]
    if isinstance(value, dict):
        return [item for key in value for item in flatten(value[key])]
    if isinstance(value, (list, tuple)):
        return [item for each in value for item in flatten(each)]
    if hasattr(value, "__dict__"):
        return flatten(vars(value))
    return [repr(value)]


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """All effects of a call: results, changed arguments, gradients, log messages."""
    LOG.clear()
    COUNTS["calls"] = 0
    result = function(*args, **kwargs)
    leaves = [item for item in (*args, *kwargs.values()) if isinstance(item, Tensor) and item.requires_grad]
    if leaves:
        result.sum().backward()
    return [*flatten(result), *flatten([leaf.grad for leaf in leaves]), *flatten(list(args)), list(LOG)]
