"""What is behind a fake in the graph of autograd, which is that of eager.

loss = (w * x).sum()        loss.grad_fn: SumBackward -> MulBackward -> AccumulateGrad(w)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import cast

import torch

from kiln.graph.ir.rewrite import has_effect
from kiln.graph.trace.autograd_edges import edge_of, edges_behind, leaf_of
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.gradients import BACKWARDS
from kiln.graph.trace.inputs import DERIVED
from kiln.graph.trace.recorder import Recorder, recording
from kiln.graph.trace.trace import Trace


def leaves_behind(recorder: Recorder, roots: Sequence[FakeTensor]) -> list[FakeTensor] | None:
    """The leaves that a backward of `roots` reaches, in its order; None if it goes on behind an input."""
    with recording(recorder):
        edges = list(map(edge_of, roots))
        found = {id(root): root for root in roots if root.grad_fn is None and root.requires_grad}
    for function, _ in edges_behind(edges):
        if function.name() == DERIVED:
            return None
        if (leaf := leaf_of(function)) is not None:
            found[id(leaf)] = cast(FakeTensor, leaf)
    return list(found.values())


def ends_behind(recorder: Recorder, root: FakeTensor) -> list[torch.Tensor]:
    """What gradients of `root` reach in the recording: inputs of the region, and leaves that it made."""
    with recording(recorder):
        leaves = [leaf for function, _ in edges_behind([edge_of(root)]) if (leaf := leaf_of(function)) is not None]
    ends = [record.leaf for record in recorder.inputs if record.requires_grad] + leaves
    return list({id(end): end for end in ends}.values())


def leaves_of_results(recorder: Recorder, trace: Trace) -> set[int]:
    """The leaves behind what leaves the region with a gradient function, by `id`: whether or not they still require
    gradients, for they may again when the backward runs."""
    carried = [cast(FakeTensor, trace.used_inputs[number].fake) for number in trace.carried_inputs]
    with recording(recorder):
        edges = list(map(edge_of, (*trace.fake_outputs, *carried)))
    return {id(leaf) for function, _ in edges_behind(edges) if (leaf := leaf_of(function)) is not None}


def reaches_behind_inputs(recorder: Recorder, roots: Sequence[FakeTensor], wanted: Sequence[FakeTensor]) -> bool:
    """Whether gradients of `roots` may flow to `wanted` through what was computed in front of the region.

    A tensor computed there has a history that is not recorded; it may contain another argument that is asked for.
    """
    if all(record.real_is_leaf for record in recorder.inputs if isinstance(record.fake, torch.Tensor)):
        return False
    with recording(recorder):
        derived = {function for function, _ in edges_behind(map(edge_of, roots)) if function.name() == DERIVED}
        targets = [function for function, _ in map(edge_of, wanted) if function is None or function.name() == DERIVED]
    return any(function is not target for function in derived for target in targets)


def mark_freed(recorder: Recorder, trace: Trace) -> None:
    """Find the results whose history a backward in the recording has freed; for the graph they have none."""
    if not any(call.target in BACKWARDS for call in trace.calls):
        return
    freed: dict[int, str] = {}
    with forgetting_nodes(recorder):
        for number, (fake, output) in enumerate(zip(trace.fake_outputs, trace.graph.outputs, strict=True)):
            if output.requires_grad and not trace.leaves[number] and (message := error_of_backward(recorder, fake)):
                freed[number] = message
    if freed:
        outputs = enumerate(trace.graph.outputs)
        marked = [replace(output, requires_grad=False) if number in freed else output for number, output in outputs]
        trace.graph, trace.freed = replace(trace.graph, outputs=tuple(marked)), freed
    wrappers = [record for record in trace.used_inputs if getattr(record.fake, "is_outer", False)]
    if wrappers and not trace.needs_grad:  # no gradient arrives there
        for record in wrappers:
            record.used = False
        trace.renumber_inputs()


def freed_input(recorder: Recorder, trace: Trace) -> FakeTensor | None:
    """An input that is written, if a backward in the recording has freed its history."""
    if not any(call.target in BACKWARDS for call in trace.calls):
        return None
    carried = [cast(FakeTensor, trace.used_inputs[number].fake) for number in trace.carried_inputs]
    with forgetting_nodes(recorder):
        return next((fake for fake in carried if error_of_backward(recorder, fake)), None)


@contextmanager
def forgetting_nodes(recorder: Recorder) -> Iterator[None]:
    """What is recorded within has no effect."""
    first = len(recorder.nodes)
    yield
    recorder.nodes[first:] = [node for node in recorder.nodes[first:] if not has_effect(node)]


def error_of_backward(recorder: Recorder, root: FakeTensor, retain_graph: bool = True) -> str:
    """What autograd says about a backward of `root`; "" if nothing."""
    ends = ends_behind(recorder, root)
    try:
        with recording(recorder):
            tangent = torch.ones_like(root)
        recorder.run_backward([root], [tangent], ends, retain_graph=retain_graph)
    except RuntimeError as error:
        return str(error)
    return ""
