"""Which results of a region are computed from others: the edges between their autograd nodes.

    h = x * 2                        dependencies: ((), (0,), (1,))
    z = h.sin()                      the gradient of `w` goes to `z`, that of `z` to `h`, and that of `h` to `x`,
    return h, z, z.exp()             where hooks or `torch.autograd.grad` ask for the gradient of `z` or `h`

A result that is a view takes part like any other; one that is an input, or another result, does not.
Needs: a recorder whose trace has just been finished.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

import torch
from torch._C._autograd import CreationMeta
from torch.autograd.graph import Node as Function

from kiln.graph.autograd.errors import TangledResults
from kiln.graph.ir.graph import Output
from kiln.graph.trace import FakeTensor, Recorder
from kiln.graph.trace.autograd_edges import Edge, edge_of
from kiln.graph.trace.recorder import recording
from kiln.graph.trace.storage_view import root_of

Dependencies = tuple[tuple[int, ...], ...]


def in_order_of_history(recorder: Recorder, outputs: list[FakeTensor]) -> list[FakeTensor]:
    """If some share memory: each behind those from which it is computed, as views are rebuilt from the first."""
    roots = {id(root_of(fake.storage_view.storage)) for fake in outputs if not fake.is_outer}
    if len(roots) == len(outputs):
        return outputs
    with recording(recorder):  # autograd computes the gradient function of a view on demand
        made = {id(fake): place_in_history(fake) for fake in outputs}
    return sorted(outputs, key=lambda fake: (not fake.requires_grad, made[id(fake)]))


def place_in_history(fake: FakeTensor) -> int:
    """A number that is larger than those of what the tensor was computed from. A leaf that is made in the region is
    rebuilt from what it shares memory with: that has gradients to hand on."""
    if fake._is_view() and torch._C._autograd._get_creation_meta(fake) is not CreationMeta.DEFAULT:
        return sys.maxsize  # to ask a view that may not be changed for its function raises, or makes it an ordinary one
    if not fake.requires_grad:
        return 0
    return sys.maxsize if fake.grad_fn is None else fake.grad_fn._sequence_nr()


def dependencies(recorder: Recorder, outputs: Sequence[Output], results: Sequence[FakeTensor]) -> Dependencies:
    """For each output those on which it depends without another in between; empty if no output depends on any."""
    edges: dict[Edge, int] = {}
    with recording(recorder):
        for number, (output, result) in enumerate(zip(outputs, results, strict=True)):
            is_other = output.alias is not None and output.alias.view is None
            if output.requires_grad and not is_other and result.grad_fn is not None:
                edges.setdefault(edge_of(result), number)
    if len(edges) < 2:
        return ()
    met: dict[Function | None, int] = {None: 0}
    for function, _ in edges:
        outputs_met(function, edges, met)
    found = {number: met[function] for (function, _), number in edges.items()}
    if not any(found.values()):
        return ()
    return tuple([numbers_of(found.get(number, 0)) for number in range(len(outputs))])


def refuse_tangled_results(outputs: Sequence[Output], depends: Dependencies) -> None:
    """Raise where the results have no order: each behind those on which it depends, and behind what it is a view of."""
    behind = {number: list(others) for number, others in enumerate(depends)}
    for number, others in behind.items():
        alias = outputs[number].alias
        others += [alias.index] if alias is not None and alias.of == "output" else []
    try:
        TopologicalSorter(behind).prepare()
    except CycleError:
        raise TangledResults() from None


def outputs_met(start: Function | None, edges: dict[Edge, int], met: dict[Function | None, int]) -> None:
    """Puts into `met`, for the start and each function below it, the outputs that the way down meets first, as bits."""
    waiting = [start]
    while waiting:
        function = waiting[-1]
        below = () if function is None or function in met else function.next_functions
        unknown = [following for following, _ in below if following not in met]
        if unknown:
            waiting += unknown
            continue
        waiting.pop()
        bits = 0
        for edge in below:
            output = edges.get(edge)
            bits |= met[edge[0]] if output is None else 1 << output
        met.setdefault(function, bits)


def numbers_of(bits: int) -> tuple[int, ...]:
    return tuple([number for number in range(bits.bit_length()) if bits >> number & 1])
