"""An ONNX model as data, and its text.

model net: opset 18
    input x: f32[batch, 64]
    weight first.weight: f32[128, 64]
    v0 = Gemm(x, first.weight, first.bias; transB=1)
    v1 = Relu(v0)
    output v1: f32[batch, 128]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union, final

import torch

from kiln.support.records import dataclass
from kiln.tensor.dtypes import DTYPE_NAMES

Attribute = Union[int, float, str, tuple[int, ...], tuple[float, ...], torch.Tensor, "OnnxModel"]


@final
@dataclass(frozen=True, slots=True)
class OnnxValue:
    """An input or output of a model; the name of a size stands for any number."""

    name: str
    dtype: torch.dtype
    sizes: tuple[int | str, ...]

    def text(self) -> str:
        return f"{self.name}: {DTYPE_NAMES[self.dtype]}[{', '.join(map(str, self.sizes))}]"


@final
@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A call of an operator of the default domain. An input "" is left out.

    `dtype`: of the elements that decide which kernel runs.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attribute]
    dtype: torch.dtype

    def reads(self) -> set[str]:
        """The values that it needs, those that graphs among its attributes read outside of them included."""
        bodies = [value for value in self.attrs.values() if isinstance(value, OnnxModel)]
        return {*self.inputs, *[name for body in bodies for node in body.nodes for name in node.reads()]}

    def text(self) -> str:
        attrs = ", ".join(f"{name}={attribute_text(value)}" for name, value in self.attrs.items())
        return f"{', '.join(self.outputs)} = {self.op}({', '.join(self.inputs)}{'; ' if attrs else ''}{attrs})"


@final
@dataclass(frozen=True, slots=True)
class OnnxModel:
    """`weights` are tensors of the program, `numbers` small ones that its operations need."""

    name: str
    opset: int
    inputs: tuple[OnnxValue, ...]
    outputs: tuple[OnnxValue, ...]
    weights: Mapping[str, torch.Tensor]
    numbers: Mapping[str, torch.Tensor]
    nodes: tuple[OnnxNode, ...]

    def text(self) -> str:
        lines = [f"input {value.text()}" for value in self.inputs]
        for name, tensor in self.weights.items():
            lines.append("weight " + OnnxValue(name, tensor.dtype, tuple(tensor.shape)).text())
        lines += [f"{name} = {tensor.tolist()}" for name, tensor in self.numbers.items()]
        lines += [node.text() for node in self.nodes]
        lines += [f"output {value.text()}" for value in self.outputs]
        return "\n    ".join([f"model {self.name}: opset {self.opset}", *lines])


def attribute_text(value: Attribute) -> str:
    if isinstance(value, torch.Tensor):
        return str(value.tolist())
    if isinstance(value, OnnxModel):
        return value.text().replace("\n", "\n    ")
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
