"""What transformed code does for a backward inside of a region.

loss.backward(); return loss      loss.requires_grad is True; loss.backward() again raises as in eager
v = leaf(); return loss_of(v)     loss.backward() changes nothing that is outside of the region
optimizer.zero_grad()             the old gradients are freed before the region computes the new ones
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, final

import torch


def with_freed_history(result: torch.Tensor, message: str) -> torch.Tensor:
    """`result`, in the same memory, with a gradient function that raises a RuntimeError."""
    if not isinstance(result, torch.Tensor):
        return result  # what stands for it in an export, whose results have no history
    raises = torch._C._functions.DelayedError(message.encode(), 1)
    made: torch.Tensor = raises(result.detach().requires_grad_())
    return made


class EndingContext(Protocol):
    """The context of `EndsInRegion`."""

    saves: bool
    saved_tensors: tuple[torch.Tensor, ...]

    def set_materialize_grads(self, value: bool) -> None: ...


@final
class EndsInRegion(torch.autograd.Function):
    """Drops gradients. If `saves`, a second backward raises as if it came to a saved tensor."""

    @staticmethod
    def forward(ctx: EndingContext, saves: bool, *results: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        ctx.set_materialize_grads(False)
        ctx.saves = saves
        return tuple([result.detach() for result in results])

    @staticmethod
    def backward(ctx: EndingContext, *gradients: torch.Tensor | None) -> tuple[None, ...]:  # type: ignore[override]
        if ctx.saves:
            ctx.saved_tensors  # noqa: B018  (raises in a second backward)
        return (None, *[None] * len(gradients))


def with_own_history(
    results: Sequence[torch.Tensor], saves: Sequence[bool], together: bool
) -> tuple[torch.Tensor, ...]:
    """`results`, in the same memory, with the history that they have in the region; `together`: one for all."""
    with torch.enable_grad():
        leaves = [result.detach().requires_grad_() for result in results]
        if together:
            return EndsInRegion.apply(any(saves), *leaves)  # type: ignore[no-any-return, no-untyped-call]
        return tuple([EndsInRegion.apply(*each)[0] for each in zip(saves, leaves, strict=True)])  # type: ignore[no-untyped-call]


def drop_gradients(bindings: Sequence[torch.Tensor], positions: Sequence[int]) -> None:
    """Set `.grad` of the tensors at `positions` to None."""
    for position in positions:
        bindings[position].grad = None
