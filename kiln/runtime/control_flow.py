"""Control flow operators on real tensors: what an fx graph calls, and the second derivative of a region.

    run_cond(0, 0, true, false, condition, x)        true(x) if condition else false(x)

`carried` and `rows` count arguments, as in `ControlFlow`. Autograd sees the operations that run. As for torch's
operators, every floating-point result requires a gradient if an argument does, and arguments that took no part get
zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast, final

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

Number = int | float | torch.SymInt | torch.SymFloat
Argument = Tensor | Number
Body = Callable[..., tuple[Tensor, ...]]


def run_cond(
    carried: int, rows: int, true: Body, false: Body, condition: Tensor, *operands: Argument
) -> tuple[Tensor, ...]:
    given = with_zeros(operands)
    results = true(*given) if condition else false(*given)
    return with_gradients(given, apart_from(given, results))


def run_branch(
    carried: int, rows: int, true: Body, false: Body, condition: Tensor, *operands: Argument
) -> tuple[Tensor, ...]:
    """An `if` of the program, with the gradients of the side that is taken."""
    return apart_from(operands, true(*operands) if condition else false(*operands))


def run_while(carried: int, rows: int, test: Body, body: Body, *operands: Argument) -> tuple[Tensor, ...]:
    given = with_zeros(operands)
    state, rest = given[:carried], given[carried:]
    while test(*state, *rest)[0]:
        state = body(*state, *rest)
    return with_gradients(given, apart_from(given, tensors_of(state)))


def run_scan(carried: int, rows: int, body: Body, *operands: Argument) -> tuple[Tensor, ...]:
    given = with_zeros(operands)
    state, whole, rest = given[:carried], tensors_of(given[carried : carried + rows]), given[carried + rows :]
    stacks: list[tuple[Tensor, ...]] = []
    for turn in range(whole[0].shape[0]):
        results = body(*state, *[tensor[turn] for tensor in whole], *rest)
        state = results[:carried]
        stacks.append(results[carried:])
    made = (*apart_from(given, tensors_of(state)), *map(torch.stack, zip(*stacks, strict=True)))
    return with_gradients(given, made)


def tensors_of(arguments: Sequence[Argument]) -> tuple[Tensor, ...]:
    return tuple([argument for argument in arguments if isinstance(argument, Tensor)])


def apart_from(arguments: Sequence[Argument], results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The results, copied where their memory is that of an argument or of an earlier result."""
    taken = {argument.untyped_storage()._cdata for argument in tensors_of(arguments)}
    made: list[Tensor] = []
    for result in results:
        result = result.clone() if result.untyped_storage()._cdata in taken else result
        taken.add(result.untyped_storage()._cdata)
        made.append(result)
    return tuple(made)


# Gradients as torch's operators give them.


class SavesTensors(Protocol):
    saved_tensors: tuple[Tensor, ...]


@final
class WithZeros(torch.autograd.Function):
    """Its arguments. The gradient of each is zeros where autograd has none."""

    @staticmethod
    def forward(ctx: FunctionCtx, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple([tensor.view_as(tensor) for tensor in tensors])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, ...]:
        return grads


@final
class WithGradients(torch.autograd.Function):
    """A copy of `result`, with zeros as the gradient of each argument."""

    @staticmethod
    def forward(ctx: FunctionCtx, result: Tensor, *arguments: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(*arguments)
        return result.clone()

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (None, *[torch.zeros_like(argument) for argument in cast(SavesTensors, ctx).saved_tensors])


def differentiated(arguments: Sequence[Argument]) -> list[Tensor]:
    return [tensor for tensor in tensors_of(arguments) if tensor.requires_grad] if torch.is_grad_enabled() else []


def with_zeros(arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    needing = differentiated(arguments)
    if len(needing) < 2:
        return arguments
    made = dict(zip(map(id, needing), WithZeros.apply(*needing), strict=True))
    return tuple([made.get(id(argument), argument) for argument in arguments])


def with_gradients(arguments: Sequence[Argument], results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    needing = differentiated(arguments)
    if not needing:
        return results
    return tuple([attached(result, needing) for result in results])


def attached(result: Tensor, needing: Sequence[Tensor]) -> Tensor:
    if result.requires_grad or not (result.is_floating_point() or result.is_complex()):
        return result
    made: Tensor = WithGradients.apply(result, *needing)
    return made
