"""A program that type checkers accept without an `Any`; `test_types.py` runs them on it."""
# mypy: disallow-untyped-calls, disallow-untyped-decorators, disallow-subclassing-any, warn-unused-ignores

from collections.abc import Callable
from typing import assert_type

import torch
from torch import Tensor, nn

import kiln


@kiln.compile
def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


@kiln.compile(fullgraph=True, dynamic=True, options={"variants": 4})
def shifted(x: Tensor, *, by: int) -> tuple[Tensor, int]:
    return x + by, by


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    @kiln.compile
    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.linear(x)
        return hidden.relu()

    @kiln.compile(mode="default")
    def loss(self, x: Tensor, target: Tensor) -> Tensor:
        return (self.forward(x) - target).square().mean()

    @staticmethod
    @kiln.compile
    def rows(x: Tensor) -> int:
        return x.shape[0]


@kiln.disable
def logged(x: Tensor) -> Tensor:
    return x


@kiln.disable(reason="talks to a server")
def sent(x: Tensor) -> bool:
    return True


def my_backend(module: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
    return module.forward


def main() -> None:
    x = torch.ones(2, 4)
    assert_type(scaled(x, factor=3.0), Tensor)
    assert_type(shifted(x, by=1), tuple[Tensor, int])
    model = Model()
    assert_type(model.forward(x), Tensor)
    assert_type(model.loss(x, x), Tensor)
    assert_type(Model.rows(x), int)
    assert_type(logged(x), Tensor)
    assert_type(sent(x), bool)
    compiled = kiln.compile(model, mode="default")
    assert_type(compiled, Model)
    assert_type(compiled.linear, nn.Linear)
    assert_type(kiln.compile(Model().loss)(x, x), Tensor)
    assert_type(kiln.explain(scaled)(x).compiles, int)
    assert_type(kiln.report_of(compiled).text(), str)
    assert_type(kiln.compile(shifted, backend=my_backend)(x, by=1), tuple[Tensor, int])
    kiln.reset()
    print(kiln.Options(variants=3).variants, kiln.list_backends())


if __name__ == "__main__":
    main()
