"""How far rounding can move the results of a program: eager runs it again, with the rounding of each op made larger.

    v = x.logsumexp(1)        v = x.logsumexp(1) + 2e-3     where the exact result, in float64, differs by 1e-3
    w = x.clone()             w = x.clone()                 exact: nothing is moved

Compiled code rounds less often than eager or in another order, and what follows may make a small difference large
(`% 3`, `floor`, `exp` of a large number). So a difference from eager counts only if it is larger than those that the
moved runs show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

SIGNS = 3
"""So many runs use one draw of the signs -1, 0, 1, in another order: each number is moved both ways and not at all."""
DRAWS = 2
TOWARDS_EXACT = (1.0, 2.0, -1.0)
"""Runs in which all results are moved by so many times their distance from the exact ones."""
LARGER = 2.0
"""By how many times the error of an op random runs move its results, and how much of the spread is allowed."""


@final
class MovedRounding(TorchDispatchMode):
    """Moves each inexact result: towards the exact one, or at random by at least a unit in the last place."""

    def __init__(self, seed: int, shift: int = 0, towards_exact: float | None = None) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        self.shift = shift
        self.towards_exact = towards_exact

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        returns = func._schema.returns
        is_view = all(result.alias_info is not None and not result.alias_info.is_write for result in returns)
        if is_view or torch.Tag.nondeterministic_seeded in func.tags:
            return func(*args, **kwargs)
        exact = in_double(func, args, kwargs)
        made = func(*args, **kwargs)
        if exact is not None:
            for value, wide in zip(tensors(made), exact, strict=True):
                self.move(value, wide)
        return made

    def move(self, value: Tensor, exact: Tensor) -> None:
        if not value.is_floating_point() or value.dtype is torch.float64 or value.shape != exact.shape:
            return
        error = (exact - value.double()).nan_to_num(0.0, 0.0, 0.0)
        if not bool(error.any()):
            return
        if self.towards_exact is not None:
            moved = value.double() + self.towards_exact * error
        else:
            unit = exact.abs().nan_to_num(0.0, 0.0, 0.0) * torch.finfo(value.dtype).eps
            drawn = torch.randint(SIGNS, value.shape, generator=self.generator).to(value.device)
            sign = (drawn + self.shift) % SIGNS - 1
            moved = value.double() + sign * torch.where(error != 0, torch.maximum(error.abs() * LARGER, unit), 0.0)
        try:
            value.copy_(moved)
        except RuntimeError:  # an expanded result
            return


def tensors(made: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, Tensor)]


def in_double(func: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
    """The results of an op on copies of its arguments in float64; None where it does not take those."""

    def wide(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.detach().to(torch.float64 if leaf.is_floating_point() else leaf.dtype, copy=True)
        return torch.float64 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

    try:
        return tensors(func(*pytree.tree_map(wide, args), **pytree.tree_map(wide, kwargs)))
    except (RuntimeError, IndexError):
        return None


def moved_runs(run: Callable[[], list[Tensor | None]]) -> Iterator[list[Tensor | None]]:
    modes = [MovedRounding(0, towards_exact=factor) for factor in TOWARDS_EXACT]
    modes += [MovedRounding(seed, shift) for seed in range(DRAWS) for shift in range(SIGNS)]
    for mode in modes:
        with mode:
            yield run()


def within_rounding(
    ours: list[Tensor | None], eager: list[Tensor | None], run: Callable[[], list[Tensor | None]]
) -> bool:
    """Whether all differences from eager are no larger than those of moved runs."""
    spread: list[Tensor | None] = [
        None if tensor is None else torch.zeros_like(tensor, dtype=torch.float64) for tensor in eager
    ]
    for moved in moved_runs(run):
        if len(moved) != len(eager):  # it raises an error
            return True
        for number, (theirs, other) in enumerate(zip(eager, moved, strict=True)):
            largest = spread[number]
            if theirs is not None and other is not None and largest is not None:
                spread[number] = torch.maximum(largest, distance(other, theirs))
    return all(
        mine is not None
        and theirs is not None
        and largest is not None
        and not bool((distance(mine, theirs) > LARGER * largest + slack(theirs)).any())
        for mine, theirs, largest in zip(ours, eager, spread, strict=True)
        if theirs is not None or mine is not None
    )


def distance(left: Tensor, right: Tensor) -> Tensor:
    """Differences of elements; infinite where one is no number and the other is."""
    wide, other = left.detach().double(), right.detach().double()
    if wide.shape != other.shape:  # the size depends on data
        return torch.full_like(other, torch.inf)
    same = (wide == other) | (wide.isnan() & other.isnan())
    return torch.where(same, 0.0, (wide - other).abs().nan_to_num(torch.inf, torch.inf, torch.inf))


def slack(eager: Tensor) -> Tensor:
    """What a difference may be in any case."""
    wide = eager.detach().double().nan_to_num(0.0, 0.0, 0.0)
    if not eager.is_floating_point():
        return torch.zeros_like(wide)
    least = 1e-12 if eager.dtype is torch.float64 else 1e-6
    return least + 4 * torch.finfo(eager.dtype).eps * wide.abs()
