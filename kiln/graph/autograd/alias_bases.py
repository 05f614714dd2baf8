"""Outputs that share memory: the tensor with all of the memory becomes an output in front of them.

    y = x * 2                                    %1 = mul(%0, 2)
    return y[0], y[1]                  =>        return %1, select(%1, 0) views output 0, select(%1, 1) views output 0

Outputs that share memory are rebuilt outside of the compiled code as views of the first of them, and autograd
differentiates these views. So the first must hold all of the memory: the gradient of `y[1]` cannot go through `y[0]`.
Needs: a recorder whose trace has just been finished.
"""

from __future__ import annotations

from kiln.graph.prims.meta import has_repeated_elements
from kiln.graph.trace import FakeTensor, Recorder, Trace
from kiln.graph.trace.storage_view import root_of


def with_alias_bases(recorder: Recorder, trace: Trace) -> tuple[Trace, int]:
    """The trace with the alias bases in front of its outputs, and their number: the hidden outputs."""
    bases: dict[int, FakeTensor] = {}
    outputs = trace.fake_outputs
    for fake, output in zip(outputs, trace.graph.outputs, strict=True):
        if output.alias is None or output.alias.of != "output" or not fake.requires_grad:
            continue
        first = outputs[output.alias.index]
        if fake is not first and not (first.requires_grad and holds_all(first)):
            base = fake if fake._base is None else fake._base
            if type(base) is FakeTensor and base.requires_grad:
                bases[id(base)] = base
    if not bases:
        return trace, 0
    return recorder.finish([*bases.values(), *outputs]), len(bases)


def holds_all(fake: FakeTensor) -> bool:
    """Whether the tensor has every element of its memory."""
    view = fake.storage_view
    return view.spec.numel() == root_of(view.storage).spec.numel() and not has_repeated_elements(view.spec)
