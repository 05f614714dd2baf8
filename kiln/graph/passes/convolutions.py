"""Convolutions as library calls: what stands where among their arguments, and what passes over them share.

aten.convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
aten.convolution_backward(tangent, x, weight, bias_sizes, stride, padding, ..., groups, wanted)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, final

from kiln.graph.ir.build import Builder
from kiln.graph.ir.interpret import node_arguments
from kiln.graph.ir.node import Node
from kiln.support.records import dataclass
from kiln.symbolic import Int
from kiln.tensor.spec import TensorSpec

CONVOLUTION, BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"

IMAGES: Mapping[str, int] = {CONVOLUTION: 1, BACKWARD: 2}
"""The number of leading arguments that are images, the last of which is convolved."""

LINE, WEIGHT, BIAS = 0, 1, 2
"""The places of their gradients among the results of a backward; of a forward, of themselves among the arguments."""

Sizes = tuple[Int, ...]


@final
@dataclass(frozen=True, slots=True)
class Convolution:
    """What a call convolves, and how."""

    is_backward: bool
    x: Node
    weight: Node
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    transposed: bool
    groups: int


def convolution_of(call: Node) -> Convolution | None:
    """None for other calls of libraries."""
    count = IMAGES.get(call.attrs["target"])
    if count is None:
        return None
    stride, padding, dilation, transposed, _, groups = call.attrs["args"][2 + count : 8 + count]
    x, weight = call.inputs[count - 1 : count + 1]
    return Convolution(count == 2, x, weight, stride, padding, dilation, transposed, groups)


def on_cpu(node: Node) -> bool:
    return node.inputs[0].tensor.device.type == "cpu"


def without_gradient(builder: Builder, call: Node, place: int) -> Node:
    """A backward that does not compute one of its results."""
    args, kwargs = node_arguments(call, call.inputs)
    wanted = call.attrs["args"][-1]
    specs = cast(tuple[TensorSpec | None, ...], call.spec)
    left = (*specs[:place], None, *specs[place + 1 :])
    return builder.aten(BACKWARD, [*args[:-1], (*wanted[:place], False, *wanted[place + 1 :])], kwargs, left)


def zeros_around(builder: Builder, x: Node, low: Int, high: Int) -> Node:
    """`x` with zeros, or False, around its last dimension; fewer than none crop it."""
    if low == high == 0:
        return x
    zero = builder.constant(0.0 if x.tensor.dtype.is_floating_point else False, x.tensor.dtype, x.tensor.device)
    rest = (0,) * (x.tensor.rank - 1)
    return builder.node("pad", x, zero, low=(*rest, low), high=(*rest, high))


def laid_out(builder: Builder, made: Node, spec: TensorSpec) -> Node:
    """`made` with the strides of `spec`."""
    return made if made.spec == spec else builder.node("clone", made, strides=spec.strides)
