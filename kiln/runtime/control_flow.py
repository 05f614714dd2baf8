"""Control flow operators on real tensors: what an fx graph calls, and the second derivative of a region.

    run_cond(0, 0, true, false, condition, x)        true(x) if condition else false(x)

`carried` and `rows` count arguments, as in `ControlFlow`. Autograd sees the operations that run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Body = Callable[..., tuple[Tensor, ...]]


def run_cond(
    carried: int, rows: int, true: Body, false: Body, condition: Tensor, *operands: Tensor
) -> tuple[Tensor, ...]:
    results = true(*operands) if condition else false(*operands)
    return apart_from(operands, results)


def apart_from(arguments: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The results, copied where their memory is that of an argument or of an earlier result."""
    taken = {argument.untyped_storage()._cdata for argument in arguments}
    made: list[Tensor] = []
    for result in results:
        result = result.clone() if result.untyped_storage()._cdata in taken else result
        taken.add(result.untyped_storage()._cdata)
        made.append(result)
    return tuple(made)


def run_while(carried: int, rows: int, test: Body, body: Body, *operands: Tensor) -> tuple[Tensor, ...]:
    state, rest = operands[:carried], operands[carried:]
    while test(*state, *rest)[0]:
        state = body(*state, *rest)
    return apart_from(operands, state)


def run_scan(carried: int, rows: int, body: Body, *operands: Tensor) -> tuple[Tensor, ...]:
    state, whole, rest = operands[:carried], operands[carried : carried + rows], operands[carried + rows :]
    stacks: list[tuple[Tensor, ...]] = []
    for turn in range(whole[0].shape[0]):
        results = body(*state, *[tensor[turn] for tensor in whole], *rest)
        state = results[:carried]
        stacks.append(results[carried:])
    return (*apart_from(operands, state), *map(torch.stack, zip(*stacks, strict=True)))
