"""Random programs on graphed plans of eager functions, against the functions themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

Function = Callable[..., Sequence[torch.Tensor]]


def affine(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x * 0.5 + 1, x - 1


def curved(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.sqrt(x * x + 1)
    return y, y[1:], x[:2]


def summed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (torch.tanh(x) + y,)


def random_holds(make: Callable[[Function], Any], device: torch.device, seed: int, length: int) -> None:
    """Results held and dropped at random, used as arguments, written to, through three plans.

    Both sides hold the same tensors at the same time, so that views of one another stay comparable.
    """
    generator = torch.Generator().manual_seed(seed)

    def pick(count: int) -> int:
        return int(torch.randint(count, (1,), generator=generator))

    truths: tuple[tuple[Function, int], ...] = ((affine, 1), (curved, 1), (summed, 2))
    plans = [make(function) for function, _ in truths]
    first = torch.arange(64.0, device=device)
    held: list[tuple[torch.Tensor, torch.Tensor]] = [(first.clone(), first.clone())]

    def whole() -> tuple[torch.Tensor, torch.Tensor]:
        found = [result for result in held if result[0].numel() == 64]
        return found[pick(len(found))] if found else (first.clone(), first.clone())

    for _ in range(length):
        action = pick(6)
        if action <= 2:
            number = pick(3)
            pairs = [whole() for _ in range(truths[number][1])]
            ours = plans[number](*(pair for pair, _ in pairs))
            theirs = truths[number][0](*(other for _, other in pairs))
            held.extend(zip(ours, theirs, strict=True))
        elif action == 3 and len(held) > 1:
            del held[pick(len(held))]
        elif action == 4:
            for result in held[pick(len(held))]:
                result.mul_(0.25)
        elif action == 5:
            held.extend((result.detach(), other.detach()) for result, other in held[:2])
        held = held[-12:]
        for result, other in held:
            torch.testing.assert_close(result, other)
