"""Results that are parts of one memory: the memory itself becomes a result, in front of them.

    y = x * 2                                    %1 = mul(%0, 2)
    return y[0], y[1]                  =>        return %1, select(%1, 0) views output 0, select(%1, 1) views output 0

Results that share memory are rebuilt outside the compiled code as views of the first of them, and autograd
differentiates that view. So the first has to hold all of the memory: the gradient of `y[1]` cannot go through `y[0]`.
Needs: a recorder whose trace was finished a moment ago.
"""

from __future__ import annotations

from kiln.graph.prims.meta import has_repeated_elements
from kiln.graph.trace import FakeTensor, Recorder, Trace
from kiln.graph.trace.storage_view import root_of


def with_alias_bases(recorder: Recorder, trace: Trace) -> tuple[Trace, int]:
    """The trace with the memories that parts need in front of its results, and how many these are."""
    wholes: dict[int, FakeTensor] = {}
    results = trace.fake_outputs
    for fake, output in zip(results, trace.graph.outputs, strict=True):
        if output.alias is None or output.alias.of != "output" or not fake.requires_grad:
            continue
        first = results[output.alias.index]
        if fake is not first and not (first.requires_grad and holds_all(first)):
            base = fake if fake._base is None else fake._base
            if type(base) is FakeTensor and base.requires_grad:
                wholes[id(base)] = base
    if not wholes:
        return trace, 0
    return recorder.finish([*wholes.values(), *results]), len(wholes)


def holds_all(fake: FakeTensor) -> bool:
    """Does this tensor reach every element of its memory?"""
    view = fake.storage_view
    return view.spec.numel() == root_of(view.storage).spec.numel() and not has_repeated_elements(view.spec)
