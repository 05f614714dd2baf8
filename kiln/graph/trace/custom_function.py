"""A `torch.autograd.Function` of the program in a recording.

    y = Scale.apply(x, 2.0)      its forward was interpreted without autograd: y = mul(x, 2.0)
                                 here y gets an autograd node whose backward calls the interpreter

The log has the single call `Scale.apply`; only the graph has what its forward recorded. The backward runs on fakes,
under the same mode, when the joint graph is made.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast, final

import torch

F = TypeVar("F", bound=Callable[..., Any])
Backward = Callable[[tuple[torch.Tensor | None, ...]], Sequence[torch.Tensor | None]]


class Context(Protocol):
    """The context of an autograd function."""

    run: Backward

    def set_materialize_grads(self, value: bool) -> None: ...
    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None: ...


@final
class InterpretedFunction(torch.autograd.Function):
    """`outputs` were computed from `inputs`; `plain`: the numbers of those without a gradient."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Context, backward: Backward, outputs: tuple[torch.Tensor, ...], plain: tuple[int, ...], *_: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.run = backward
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[outputs[number] for number in plain])
        return outputs

    @staticmethod
    def backward(ctx: Context, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:  # type: ignore[override]
        return (None, None, None, *ctx.run(grads))


_apply = super(torch.autograd.Function, InterpretedFunction).apply
"""The C++ entry: `Function.apply` would go through torch's transforms, which a recording does not use."""


def attach(
    held: list[object],
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    plain: Sequence[int],
    backward: Backward,
) -> tuple[torch.Tensor, ...]:
    """`outputs` as results of a function of `inputs` with this backward; runs under the recording mode."""
    made: tuple[torch.Tensor, ...] = _apply(called_by_autograd(held, backward), tuple(outputs), tuple(plain), *inputs)
    return made


def called_by_autograd(held: list[object], function: F) -> F:
    """`function` for the graph of autograd behind fakes, which does not keep it alive; `held` does.

    The graph is in C++, where the cycle collector sees no cycle: with a function that refers to the recording it would
    live as long as the process, and with it the inputs.
    """
    held.append(function)
    return cast(F, weakref.proxy(function))
