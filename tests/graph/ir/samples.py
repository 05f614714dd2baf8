# ruff: noqa: E501
"""One sample per primitive op: inputs, attributes, and what the op means in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from kiln.graph.ir.build import Builder
from kiln.graph.ir.graph import Graph
from tests.graph.prims.layouts import STATIC, spec_of

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Sample:
    make: Callable[[], tuple[torch.Tensor, ...]]
    expected: Callable[..., torch.Tensor]
    attrs: dict[str, Any] = field(default_factory=dict)
    bits: bool = True  # equal to the last bit


def real() -> torch.Tensor:
    return torch.randn(3, 4) * 2


def positive() -> torch.Tensor:
    return torch.rand(3, 4) + 0.1


def unit() -> torch.Tensor:
    return torch.rand(3, 4) * 1.8 - 0.9


def whole() -> torch.Tensor:
    return torch.randint(-9, 9, (3, 4))


def nonzero() -> torch.Tensor:
    return torch.randint(1, 5, (3, 4)) * (torch.randint(0, 2, (3, 4)) * 2 - 1)


def truth() -> torch.Tensor:
    return torch.rand(3, 4) > 0.5


def elementwise(function: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """A reference in Python numbers, element by element."""

    def run(*inputs: torch.Tensor) -> torch.Tensor:
        rows = zip(*[x.double().flatten().tolist() for x in inputs], strict=True)
        return torch.tensor([function(*row) for row in rows], dtype=torch.float64).reshape(inputs[0].shape)

    return run


def sample(make: Callable[[], Any], expected: Callable[..., Any], bits: bool = True, **attrs: Any) -> Sample:
    def made() -> tuple[torch.Tensor, ...]:
        value = make()
        return value if isinstance(value, tuple) else (value,)

    return Sample(made, expected, attrs, bits)


def two(make: Callable[[], torch.Tensor]) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    return lambda: (make(), make())


# fmt: off
UNARY_MATH: dict[str, tuple[Callable[[], torch.Tensor], Callable[[float], float]]] = {
    "sqrt": (positive, math.sqrt), "rsqrt": (positive, lambda x: 1 / math.sqrt(x)), "reciprocal": (positive, lambda x: 1 / x),
    "exp": (real, math.exp), "exp2": (real, lambda x: 2.0**x), "expm1": (real, math.expm1), "log": (positive, math.log),
    "log2": (positive, math.log2), "log10": (positive, math.log10), "log1p": (positive, math.log1p),
    "sin": (real, math.sin), "cos": (real, math.cos), "tan": (unit, math.tan), "asin": (unit, math.asin),
    "acos": (unit, math.acos), "atan": (real, math.atan), "sinh": (real, math.sinh), "cosh": (real, math.cosh),
    "tanh": (real, math.tanh), "asinh": (real, math.asinh), "acosh": (lambda: positive() + 1, math.acosh),
    "atanh": (unit, math.atanh), "sigmoid": (real, lambda x: 1 / (1 + math.exp(-x))), "erf": (real, math.erf),
    "erfc": (real, math.erfc), "lgamma": (positive, math.lgamma), "floor": (real, math.floor), "ceil": (real, math.ceil),
    "trunc": (real, math.trunc), "round": (lambda: torch.tensor([0.5, 1.5, -2.5, 1.2]), round),
}
SAMPLES: dict[str, Sample] = {
    name: sample(make, elementwise(function), bits=False) for name, (make, function) in UNARY_MATH.items()
}
SAMPLES |= {
    "neg": sample(real, lambda x: 0 - x), "abs": sample(real, lambda x: torch.where(x < 0, -x, x)),
    "sign": sample(real, lambda x: (x > 0).float() - (x < 0).float()),
    "add": sample(two(real), lambda x, y: x - (-y)), "sub": sample(two(real), lambda x, y: x + (-y)),
    "mul": sample(two(whole), elementwise(lambda x, y: x * y), bits=False),
    "div": sample(two(positive), elementwise(lambda x, y: x / y), bits=False),
    "floor_div": sample(lambda: (whole(), nonzero()), elementwise(lambda x, y: x // y), bits=False),
    "trunc_div": sample(lambda: (whole(), nonzero()), elementwise(lambda x, y: math.trunc(x / y)), bits=False),
    "remainder": sample(lambda: (whole(), nonzero()), elementwise(lambda x, y: x % y), bits=False),
    "fmod": sample(lambda: (whole(), nonzero()), elementwise(math.fmod), bits=False),
    "fma": sample(lambda: (real(), real(), real()),
                  lambda x, y, z: (x.double() * y.double() + z.double()).float()),
    "pow": sample(lambda: (positive(), real()), elementwise(math.pow), bits=False),
    "maximum": sample(two(real), lambda x, y: torch.where(x > y, x, y)),
    "minimum": sample(two(real), lambda x, y: torch.where(x < y, x, y)),
    "fmax": sample(lambda: (real(), torch.full((3, 4), math.nan)), lambda x, y: x),
    "fmin": sample(lambda: (torch.full((3, 4), math.nan), real()), lambda x, y: y),
    "where": sample(lambda: (truth(), real(), real()), lambda c, x, y: c * x + ~c * y),
    "copysign": sample(two(real), elementwise(math.copysign), bits=False),
    "nextafter": sample(lambda: (real().double(), real().double()), elementwise(math.nextafter)),
    "hypot": sample(two(real), elementwise(math.hypot), bits=False),
    "atan2": sample(two(real), elementwise(math.atan2), bits=False),
    "erfinv": sample(unit, lambda x: torch.special.erfinv(x.double()), bits=False),
    "digamma": sample(positive, lambda x: torch.special.psi(x.double()), bits=False),
    "eq": sample(two(whole), lambda x, y: ~((x < y) | (x > y))), "ne": sample(two(whole), lambda x, y: (x < y) | (x > y)),
    "lt": sample(two(real), lambda x, y: (y - x) > 0), "le": sample(two(real), lambda x, y: (y - x) >= 0),
    "gt": sample(two(real), lambda x, y: (x - y) > 0), "ge": sample(two(real), lambda x, y: (x - y) >= 0),
    "isnan": sample(lambda: torch.tensor([1.0, math.nan, math.inf]), lambda x: x != x),
    "isinf": sample(lambda: torch.tensor([1.0, math.nan, -math.inf]), lambda x: x.abs() == math.inf),
    "signbit": sample(lambda: torch.tensor([1.0, -0.0, -3.0]), lambda x: 1 / x < 0),
    "logical_not": sample(truth, lambda x: ~x),
    "bitwise_and": sample(two(whole), lambda x, y: x & y), "bitwise_or": sample(two(truth), lambda x, y: x | y),
    "bitwise_xor": sample(two(whole), lambda x, y: x ^ y), "bitwise_not": sample(whole, lambda x: -x - 1),
    "shift_left": sample(lambda: (whole(), nonzero().abs()), lambda x, y: x * 2**y),
    "shift_right": sample(lambda: (whole(), nonzero().abs()), lambda x, y: torch.floor(x / 2**y).long()),
    "convert": sample(real, lambda x: x.double(), dtype=torch.float64),
    "bitcast": sample(real, lambda x: x.view(torch.int32), dtype=torch.int32),
    "sum": sample(real, lambda x: x.sum((0, 1)), axes=(0, 1)),
    "prod": sample(real, lambda x: x[:, 0] * x[:, 1] * x[:, 2] * x[:, 3], bits=False, axes=(1,)),
    "amax": sample(real, lambda x: x.sort(1).values[:, -1], axes=(1,)),
    "amin": sample(real, lambda x: x.sort(1).values[:, 0], axes=(1,)),
    "any": sample(truth, lambda x: x.sum(0) > 0, axes=(0,)), "all": sample(truth, lambda x: x.sum(1) == 4, axes=(1,)),
    "argmax": sample(real, lambda x: x.sort(1).indices[:, -1], axes=(1,)),
    "argmin": sample(real, lambda x: x.sort(1).indices[:, 0], axes=(1,)),
    "cumsum": sample(real, lambda x: torch.stack([x[: i + 1].sum(0) for i in range(3)]), bits=False, axis=0),
    "cumprod": sample(real, lambda x: torch.stack([x[: i + 1].prod(0) for i in range(3)]), bits=False, axis=0),
    "cummax": sample(real, lambda x: torch.stack([x[: i + 1].amax(0) for i in range(3)]), axis=0),
    "cummin": sample(real, lambda x: torch.stack([x[: i + 1].amin(0) for i in range(3)]), axis=0),
    "expand": sample(lambda: torch.randn(3, 1), lambda x: torch.stack([torch.cat([x] * 4, 1)] * 2), sizes=(2, 3, 4)),
    "permute": sample(real, lambda x: x.t(), dims=(1, 0)), "view": sample(real, lambda x: x.reshape(2, 6), sizes=(2, 6)),
    "unsqueeze": sample(real, lambda x: x[:, None], axis=1),
    "squeeze": sample(lambda: torch.randn(3, 1, 4), lambda x: x[:, 0], axes=(1,)),
    "slice": sample(real, lambda x: x[:, 1:4:2], axis=1, start=1, stop=4, step=2),
    "select": sample(real, lambda x: x[:, 2], axis=1, index=2),
    "diagonal": sample(real, lambda x: torch.stack([x[0, 1], x[1, 2], x[2, 3]]), offset=1, axis1=0, axis2=1),
    "unfold": sample(real, lambda x: torch.stack([x[:, 0:2], x[:, 2:4]], 1), axis=1, size=2, step=2),
    "as_strided": sample(real, lambda x: x.flatten()[1:7].reshape(2, 3), sizes=(2, 3), strides=(3, 1), offset=1),
    "view_dtype": sample(real, lambda x: x.view(torch.int16), dtype=torch.int16),
    "clone": sample(real, lambda x: x, strides=(1, 3)),
    "reshape": sample(lambda: real().t(), lambda x: x.contiguous().view(6, 2), sizes=(6, 2)),
    "cat": sample(lambda: (real(), real(), real()), lambda x, y, z: torch.hstack([x, y, z]), axis=1),
    "flip": sample(real, lambda x: x[[2, 1, 0]], axes=(0,)),
    "pad": sample(lambda: (real(), torch.tensor(7.0)),
                  lambda x, v: torch.cat([torch.full((3, 1), 7.0), x[:, :2]], 1), low=(0, 1), high=(0, -2)),
    "gather": sample(lambda: (real(), torch.tensor([[0, 2], [1, 1]])),
                     lambda x, i: torch.stack([x[0, i[0]], x[1, i[1]]]), axis=1),
    "index": sample(lambda: (real(), torch.tensor([2, 0])), lambda x, i: torch.stack([x[:, 2], x[:, 0]], 1), axes=(1,)),
    "select_scatter": sample(lambda: (real(), torch.zeros(3)), lambda x, y: x * torch.tensor([1.0, 1, 0, 1]),
                             bits=False, axis=1, index=2),
    "slice_scatter": sample(lambda: (real(), torch.zeros(3, 2)), lambda x, y: x * torch.tensor([1.0, 0, 1, 0]),
                            bits=False, axis=1, start=1, stop=4, step=2),
    "diagonal_scatter": sample(lambda: (real(), torch.zeros(3)), lambda x, y: x * (1 - torch.eye(3, 4)),
                               bits=False, offset=0, axis1=0, axis2=1),
    "as_strided_scatter": sample(lambda: (real(), torch.zeros(2)), lambda x, y: x * torch.tensor([0.0, 1, 1, 1]).expand(3, 4)
                                 .clone().index_fill_(0, torch.tensor([2]), 1), bits=False, sizes=(2,), strides=(4,), offset=0),
    "scatter": sample(lambda: (torch.zeros(3, 4), torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1)),
                      lambda x, i, s: torch.tensor([1.0, 0, 0, 0]).expand(3, 4), axis=1, reduce=None),
    "index_put": sample(lambda: (torch.zeros(3, 4), torch.tensor([1, 1]), torch.ones(2, 4)),
                        lambda x, i, v: torch.tensor([[0.0], [2], [0]]).expand(3, 4), axes=(0,), accumulate=True),
    "constant": sample(lambda: (), lambda: torch.tensor(2.5), value=2.5, dtype=torch.float32, device=CPU),
    "full": sample(lambda: torch.tensor(3), lambda x: torch.tensor([[3, 3]]), sizes=(1, 2)),
    "iota": sample(lambda: (), lambda: torch.tensor([5, 3, 1]), length=3, start=5, step=-2, dtype=torch.int64, device=CPU),
}
# fmt: on


def sample_graph(name: str, inputs: tuple[torch.Tensor, ...] | None = None) -> tuple[Graph, tuple[torch.Tensor, ...]]:
    """A graph of one node and inputs for it, by default those of the sample."""
    one = SAMPLES[name]
    inputs = one.make() if inputs is None else inputs
    builder = Builder(STATIC)
    nodes = [builder.input(f"x{i}", spec_of(x)) for i, x in enumerate(inputs)]
    return builder.finish([builder.node(name, *nodes, **one.attrs)]), inputs
