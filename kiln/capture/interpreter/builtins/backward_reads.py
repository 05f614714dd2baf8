"""Python that the backward runs: hooks of tensors and the backward of `torch.autograd.Function`.

    y.register_hook(lambda g: g * scale)     interpreted when the joint graph is made, in a nested frame

If it runs later than the region, what it reads from outside (a global number, a variable shared with other functions,
an attribute of a class) may have changed by then. Such a read breaks the graph, and so does a write (`changes`). In a
backward that the region itself runs (`loss.backward()`) it is a read like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from kiln.capture.interpreter.builtins.torch_functions import TorchModes
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.frame import SymbolicFrame
from kiln.capture.interpreter.outside_reads import parts, refuse_outside_reads
from kiln.graph.trace.recorder import nested_calls

LATER = "it reads a variable from outside of the region, which may change before the backward"


@contextmanager
def backward_frame(s: CaptureState, frame: SymbolicFrame, known: Iterable[Value] | None) -> Iterator[None]:
    """Interpret as a part of the backward, called by `frame`; `known`: what the code has since the forward.

    None: it may read variables from outside. The tables of a `__torch_dispatch__` are the same in the backward.
    """
    modes = s.part(TorchModes)
    before = s.frame, modes.at_entry, s.policy, s.watch
    s.frame, modes.at_entry = frame, {}
    s.policy = replace(s.policy, scalars=None)  # backward has no inputs of its own
    if known is not None and s.recorder.is_differentiating:
        s.watch = partial(refuse_outside_reads, s, {id(value): value for value in parts(s, known)}, LATER)
    try:
        with nested_calls(s.recorder):
            yield
    finally:
        s.frame, modes.at_entry, s.policy, s.watch = before
