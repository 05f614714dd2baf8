"""Inputs of a recording: which tensors can be one, and their specs with symbols.

    f32[8, 128] with dim 0 a symbol, dim 1 static     =     f32[s0, 128], strides (128, 1)
    f32[8, 16 | 1, 8], both symbols                   =     f32[s0, s1 | 1, s0]

A stride is the product of the sizes inside of it where that is its number in this call, else a plain number.
"""

from __future__ import annotations

import torch

from kiln.graph.prims.spec import TensorSpec
from kiln.graph.trace.breaks import UnsupportedInput
from kiln.symbolic import Int, ShapeEnv
from kiln.symbolic.policy import DimChoice, DimKind


def refuse_strange(real: torch.Tensor, name: str) -> None:
    """Only plain dense tensors are inputs so far."""
    reason = ""
    if real.layout is not torch.strided or real.is_nested:
        reason = f"its layout is {real.layout}"
    elif type(real) not in (torch.Tensor, torch.nn.Parameter):
        reason = f"it is a {type(real).__qualname__}"
    elif real.is_conj() or real.is_neg():
        reason = "it is a lazy conjugate or negation"
    elif real.is_quantized or real.device.type == "meta":
        reason = "it is quantized" if real.is_quantized else "it is a meta tensor"
    if reason:
        raise UnsupportedInput(name=name, reason=reason)


def symbolic_spec(env: ShapeEnv, real: torch.Tensor, dims: tuple[DimChoice, ...]) -> TensorSpec:
    """The spec of an input with a fresh symbol for each dimension that is to have one."""
    sizes = tuple([_size(env, number, choice) for number, choice in zip(real.shape, dims, strict=True)])
    numbers = real.stride()
    strides: list[Int] = list(numbers)
    packed: Int = 1
    expected = 1
    for axis in sorted(range(len(sizes)), key=lambda axis: (numbers[axis], -axis)):
        if numbers[axis] == expected:
            strides[axis] = packed
        packed, expected = strides[axis] * sizes[axis], numbers[axis] * real.shape[axis]
    return TensorSpec(real.dtype, sizes, tuple(strides), int(real.storage_offset()), real.device)


def _size(env: ShapeEnv, number: int, choice: DimChoice) -> Int:
    if choice.kind is DimKind.STATIC:
        return number
    if choice.kind is DimKind.UNBACKED:
        return env.create_unbacked(lo=choice.lo, hi=choice.hi)
    return env.create_symbol(number, lo=choice.lo, hi=choice.hi)
