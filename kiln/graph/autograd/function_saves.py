"""What the functions of autograd's graph have saved, also where their formulas do not read it.

    x.sgn()                 SgnBackward0 keeps x, and gives zeros: eager's backward raises if x has changed since
    layer_norm(x, weight, bias)     its function keeps the bias

Eager looks at the version of each tensor that a function has saved when the function runs: if one of the tangents at
hand comes to it, and it leads to one of the gradients that are asked for.
Needs: a recorder whose backward is not recorded yet, since that frees what is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import torch
from torch.autograd.graph import Node as Function

from kiln.graph.ir.node import Node
from kiln.graph.trace.autograd_edges import Edge, edge_of, leaf_of
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.recorder import Recorder, recording

RAW = "_raw"
SAVED = "_saved_"

FunctionSaves = Sequence[tuple[Node, int, int]]
"""A saved value, and as bits the numbers of the roots that come to its function, and of the leaves behind it."""


def function_saves(recorder: Recorder, roots: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor]) -> FunctionSaves:
    """Of all functions between `roots` and `leaves`."""
    with recording(recorder):
        starts = [edge_of(root) for root in roots]
        order = in_order(starts)
        behind = leaves_behind(order, leaves)
        from_roots: dict[Function, int] = {}
        for number, (function, _) in enumerate(starts):
            if function is not None:
                from_roots[function] = from_roots.get(function, 0) | 1 << number
        found = []
        for function in order:
            for following, _ in function.next_functions:
                if following is not None:
                    from_roots[following] = from_roots.get(following, 0) | from_roots[function]
            if behind[function]:
                found += [(node, from_roots[function], behind[function]) for node in nodes_saved(recorder, function)]
        return found


def in_order(starts: Iterable[Edge]) -> list[Function]:
    """The functions behind `starts`, each in front of those that it leads to."""
    order: list[Function] = []
    seen: set[Function] = set()
    for start, _ in starts:
        stack = [(start, False)]
        while stack:
            function, finished = stack.pop()
            if function is None:
                continue
            if finished:
                order.append(function)
            elif function not in seen:
                seen.add(function)
                stack.append((function, True))
                stack += [(following, False) for following, _ in function.next_functions]
    return order[::-1]


def leaves_behind(order: Sequence[Function], leaves: Sequence[torch.Tensor]) -> dict[Function, int]:
    numbers = {id(leaf): number for number, leaf in enumerate(leaves)}
    wanted: dict[Edge, int] = {}
    for number, leaf in enumerate(leaves):
        if leaf.grad_fn is not None:
            wanted[edge_of(leaf)] = 1 << number
    behind: dict[Function, int] = {}
    for function in reversed(order):
        place = numbers.get(id(leaf_of(function)))
        bits = 0 if place is None else 1 << place
        for edge in function.next_functions:
            if edge[0] is not None:
                bits |= behind[edge[0]] | wanted.get(edge, 0)
        behind[function] = bits
    return behind


@lru_cache(maxsize=1024)
def names_of_saved(cls: type) -> tuple[str, ...]:
    """Attributes of a class of functions that hold tensors; those of Python code are read by the interpreter."""
    names = [name.removeprefix(RAW) for name in dir(cls) if name.startswith(RAW + SAVED)]
    return tuple([name for name in names if hasattr(cls, name)])


def nodes_saved(recorder: Recorder, function: Function) -> Iterator[Node]:
    for name in names_of_saved(type(function)):
        try:
            value = getattr(function, name)
        except RuntimeError:  # it has changed since: the backward raises
            continue
        except AttributeError:  # a result of a function of wrappers, of which C++ has a bare copy: it has no storage
            continue
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, FakeTensor) and not part.is_outer:
                yield recorder.node_of(part)
