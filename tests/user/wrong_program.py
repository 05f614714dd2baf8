"""Mistakes that a type checker finds through `kiln.compile`; each line is one error."""
# mypy: disallow-untyped-calls, disallow-untyped-decorators, disallow-subclassing-any, warn-unused-ignores

import torch
from torch import Tensor

import kiln


@kiln.compile
def scaled(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


x = torch.ones(2)
scaled(x, "three")
scaled(x, factr=3.0)
print(scaled(x).shape.rows)
kiln.compile(3)
kiln.compile(scaled, dynamic="yes")
