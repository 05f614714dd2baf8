"""Walks through the graph of autograd, from results to leaves.

    edges_behind([edge_of((w * x).sum())])        (SumBackward, 0), (MulBackward, 0), (AccumulateGrad of w, 0)

An edge is a node and the number of one of its outputs. Autograd computes the gradient function of a view on demand, so
that `edge_of` is called while recording.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
from torch.autograd.graph import Node as Function

Edge = tuple[Function | None, int]


def edge_of(tensor: torch.Tensor) -> Edge:
    """Where the gradient of a tensor goes; nowhere for a leaf."""
    return tensor.grad_fn, tensor.output_nr


def edges_behind(
    starts: Iterable[Edge], ends: Callable[[Function], bool] = lambda function: False
) -> Iterator[tuple[Function, int]]:
    """`starts` and the edges behind them, each once, but none behind a function at which the walk `ends`."""
    waiting = list(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        function, number = waiting.pop()
        if function is None:
            continue
        yield function, number
        if not ends(function):
            following = [edge for edge in function.next_functions if edge not in seen]
            seen.update(following)
            waiting += following


def leaf_of(function: Function) -> torch.Tensor | None:
    """The leaf whose gradient a function accumulates."""
    return getattr(function, "variable", None)
