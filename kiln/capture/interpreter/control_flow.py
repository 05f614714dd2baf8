"""torch's control flow operators as plain Python, interpreted where they cannot be a nested graph.

    torch.cond(x.sum() > 0, double, negate, (x,))     double(x) if x.sum() > 0 else negate(x)

So a condition is speculated on or breaks the graph like any `if`, and both branches are compiled when they are taken.
(In eager mode these operators call torch.compile.) Nested graphs: `builtins/control_flow_operators.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

Branch = Callable[..., Any]
LONGEST_UNROLLED = 64
"""A `map` over more rows runs eager: its graph would grow with them."""


def cond(pred: object, true_fn: Branch, false_fn: Branch, operands: Sequence[object] = ()) -> object:
    if isinstance(pred, (bool, int, float)):
        return true_fn(*operands) if pred else false_fn(*operands)
    if not isinstance(pred, Tensor):
        raise RuntimeError(f"Expected pred to be bool or tensor, but got {pred}.")
    if pred.numel() != 1:
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred.shape}.")
    if not callable(true_fn) or not callable(false_fn):
        raise RuntimeError("Expect both branches to be callable.")
    if not isinstance(operands, (tuple, list)) or not all(
        isinstance(part, Tensor) for part in tree_flatten(operands)[0]
    ):
        raise RuntimeError(
            "Expect operands to be a tuple of possibly nested dict/list/tuple that only consists of tensor leaves."
        )
    result = true_fn(*operands) if pred else false_fn(*operands)
    return fresh(result, operands)


def while_loop(cond_fn: Branch, body_fn: Branch, carried_inputs: Sequence[object]) -> object:
    carried = tuple(carried_inputs)
    while cond_fn(*carried):
        carried = body_fn(*carried)
        carried = tuple(carried) if isinstance(carried, (tuple, list)) else (carried,)
    return fresh(carried, carried_inputs)


def mapped(f: Branch, xs: object, *args: object) -> object:
    """`map(f, xs, *args)`."""
    if tree_flatten(xs)[0][0].shape[0] > LONGEST_UNROLLED:
        return mapped_in_eager(f, xs, args)
    return mapped_rows(f, xs, args)


def mapped_rows(f: Branch, xs: object, args: tuple[object, ...]) -> object:
    """`f` of each row, stacked."""
    leaves, structure = tree_flatten(xs)
    rows = [f(tree_unflatten([leaf[row] for leaf in leaves], structure), *args) for row in range(leaves[0].shape[0])]
    flat = [tree_flatten(row)[0] for row in rows]
    made = tree_flatten(rows[0])[1]
    return tree_unflatten([torch.stack(list(column)) for column in zip(*flat, strict=True)], made)


def mapped_in_eager(f: Branch, xs: object, args: tuple[object, ...]) -> object:
    return mapped_rows(f, xs, args)


mapped_in_eager._torchdynamo_disable = True  # type: ignore[attr-defined]


def fresh(result: object, operands: Sequence[object]) -> object:
    """Results that are operands are copied, as the operators return new tensors."""
    if isinstance(result, Tensor):
        return result.clone() if any(result is operand for operand in operands) else result
    if isinstance(result, (tuple, list)):
        return type(result)([fresh(part, operands) for part in result])
    return result
