"""Parts of a backward, at whose ends the gradients that are ready leave it.

    backward                                 sizes                    parts
    %5 = matmul(...)   gradient of w2        30 MB                    w2: 0
    %8 = matmul(...)   gradient of w1        40 MB           =>       w1: 1
    %9 = reduce(...)   gradient of b1        4 kB                     b1: 1

What reduces gradients over ranks (DDP), or uses them up (an optimizer in a hook), works on those of a part while the
rest of the backward runs. A part is as large as a message has to be to use the bandwidth, and at most `MOST_PARTS` are
made: each costs a node of autograd.
"""

from __future__ import annotations

from collections.abc import Sequence

from kiln.graph.ir.graph import Graph
from kiln.graph.ir.node import bytes_of

SMALLEST_PART = {"cuda": 4 << 20, "cpu": 256 << 10}
"""Bytes: their transfer takes 20 us at 200 GB/s, 100 us at 2.5 GB/s, and the node of a part a few microseconds."""
MOST_PARTS = 32


def gradient_parts(backward: Graph, grads: Sequence[int | None], reached: Sequence[int]) -> tuple[int, ...]:
    """For each input of the forward the part in which its gradient is ready; empty if one part is all.

    `grads`: for each input the number of its gradient among the outputs of the backward. `reached`: the inputs that
    have one, in the order in which eager gives leaves their gradients, which the parts keep.
    """
    outputs = backward.outputs
    sizes = [0 if output.alias is not None else bytes_of(output.value) or 0 for output in outputs]
    kinds = {output.value.tensor.device.type for output in outputs}
    least = max([SMALLEST_PART.get(kind, 4 << 20) for kind in kinds], default=0)
    limit, left = max(least, sum(sizes) // MOST_PARTS), sum(sizes)
    parts = [0] * len(outputs)
    part, size = 0, 0
    for number in [grad for index in reached if (grad := grads[index]) is not None]:
        parts[number] = part
        size, left = size + sizes[number], left - sizes[number]
        if size >= limit and left >= least:
            part, size = part + 1, 0
    for number, output in enumerate(outputs):
        if output.alias is not None and output.alias.of == "output":
            parts[number] = parts[output.alias.index]
    return tuple([part if grad is None else parts[grad] for grad in grads]) if part else ()
