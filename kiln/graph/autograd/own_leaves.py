"""Results whose gradients end at leaves that the region makes, and that nothing outside of it sees.

    v = x.detach().requires_grad_()                 for the graph, `energy` has no gradient
    energy = (v**2).sum()
    force, = grad(energy, v, retain_graph=True)     the transformed code gives it a gradient function again, which
    return energy, force                            drops what arrives: `with_own_history`

Where a leaf is seen, or one result is computed from another, gradients arrive somewhere: the capture breaks instead.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from kiln.graph.autograd.dependencies import dependencies
from kiln.graph.trace import Recorder, Trace
from kiln.graph.trace.history import error_of_backward, forgetting_nodes, leaves_of_results, mark_freed


def mark_histories(recorder: Recorder, trace: Trace) -> None:
    """Find the results whose history in the region has been freed, or ends there."""
    mark_freed(recorder, trace)
    mark_ending(recorder, trace)


def mark_ending(recorder: Recorder, trace: Trace) -> None:
    """Find such results; for the graph they have no gradient."""
    pairs = list(zip(trace.graph.outputs, trace.leaves, strict=True))
    ending = [number for number, (output, leaf) in enumerate(pairs) if output.requires_grad and not leaf]
    if not ending or trace.carried_inputs or reaches_outside(recorder, trace):
        return
    if any(trace.graph.outputs[number].alias is not None for number in ending):
        return
    if dependencies(recorder, trace.graph.outputs, trace.fake_outputs):
        return
    with forgetting_nodes(recorder):
        for number in ending:
            root = trace.fake_outputs[number]
            freed = bool(error_of_backward(recorder, root, retain_graph=False))
            trace.ending_together |= freed
            trace.ending[number] = freed or bool(error_of_backward(recorder, root))
    outputs = [replace(output, requires_grad=output.requires_grad and leaf) for output, leaf in pairs]
    trace.graph = replace(trace.graph, outputs=tuple(outputs))


def reaches_outside(recorder: Recorder, trace: Trace) -> bool:
    """Whether an input requires gradients, or did when results were computed from it, or a leaf that does leaves the
    region."""
    fakes = [record.fake for record in trace.used_inputs if isinstance(record.fake, torch.Tensor)]
    if any(fake.requires_grad for fake in fakes) or any(
        leaf and fake.requires_grad for fake, leaf in zip(trace.fake_outputs, trace.leaves, strict=True)
    ):
        return True
    return not leaves_of_results(recorder, trace).isdisjoint([id(record.fake) for record in recorder.inputs])
