"""What rules are called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import torch

from kiln.graph.ir.node import Node
from kiln.onnx.errors import NoOnnxForm
from kiln.onnx.model import Attribute
from kiln.symbolic import Int
from kiln.symbolic.values import Real
from kiln.tensor.spec import TensorSpec

Attributes = Mapping[str, Attribute]
NO_ATTRS: Attributes = MappingProxyType({})


class OnnxCaller(Protocol):
    """Appends ONNX nodes for one node of a graph. Values are names."""

    @property
    def node(self) -> Node: ...
    @property
    def spec(self) -> TensorSpec:
        """Of the first result."""
        ...

    def input(self, place: int = 0) -> TensorSpec:
        """Of a tensor among the arguments, counted in their order; of a complex one, as its parts are."""
        ...

    def refused(self, reason: str) -> NoOnnxForm: ...

    def __call__(
        self, op: str, *inputs: str, dtype: torch.dtype | None = None, attrs: Attributes = NO_ATTRS, **more: Attribute
    ) -> str:
        """Call `op`; its result has `dtype`, else that of the first input. Attributes in a dict, or by name."""
        ...

    def many(
        self, op: str, *inputs: str, count: int, dtype: torch.dtype | None = None, attrs: Attributes = NO_ATTRS,
        **more: Attribute,
    ) -> tuple[str, ...]:  # fmt: skip
        """Call `op`, which has `count` results."""
        ...

    def cast(self, x: str, dtype: torch.dtype) -> str: ...

    def number(self, value: object, dtype: torch.dtype | None = None) -> str:
        """A small tensor, of the dtype of the first input unless told."""
        ...

    def ints(self, values: Sequence[Int]) -> str:
        """A vector of int64."""
        ...

    def scalar(self, value: Int | Real) -> str:
        """An int64 of rank 0, of a real number a float64."""
        ...


OnnxRule = Callable[..., str | tuple[str, ...]]
"""(caller, names of the inputs, attributes) -> names of the results."""
