"""A `torch.autograd.Function` of the program in a recording.

    y = Scale.apply(x, 2.0)      its forward was interpreted without autograd: y = mul(x, 2.0)
                                 here y gets a node of autograd whose backward calls back into the interpreter

The log has one call, `Scale.apply`; what its forward recorded stands below it in the graph only. The backward runs when
the joint graph is made, on fakes, under the same mode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch

Backward = Callable[[tuple[torch.Tensor | None, ...]], Sequence[torch.Tensor | None]]


@final
class InterpretedFunction(torch.autograd.Function):
    """`outputs` were computed from `inputs`; `plain` are the numbers of those that have no gradient."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[torch.Tensor, ...]:
        backward, outputs, plain, *_ = given
        ctx.run = backward
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[outputs[number] for number in plain])
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        return (None, None, None, *ctx.run(grads))


_apply = super(torch.autograd.Function, InterpretedFunction).apply
"""The C++ entry: `Function.apply` goes through torch's transforms, which are no part of a recording."""


def attach(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], plain: Sequence[int], backward: Backward
) -> tuple[torch.Tensor, ...]:
    """`outputs` as results of a function of `inputs` with this backward. Runs under the mode of the recording."""
    made: tuple[torch.Tensor, ...] = _apply(backward, tuple(outputs), tuple(plain), *inputs)
    return made
