"""What a side of a branch, or a turn of a loop, assumes of values, as a result that is assumed behind it.

if gate > 0:                       holds, y = cond(gate > 0, true=@0, false=@1)
    if x.isnan().any(): raise          @0 = not x.isnan().any(), f(x)       @1 = True, x
    y = f(x)                       assumed: holds
"""

from __future__ import annotations

import operator

import torch

from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.data_values import Assumption, DataValues, ValueNeeded
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch, record
from kiln.graph.trace.nested_graphs import NotNested

Held = tuple[Tensor, Assumption]
"""Whether all that a side assumes holds, and the first assumption."""


def assumptions_taken(s: CaptureState, first: int) -> Held | None:
    """Take back what was assumed of tensors since there were `first` assumptions; call it in the side.

    Numbers of the shape environment stay assumed, so the side cannot be nested.
    """
    found = s.part(DataValues).assumptions
    own = found[first:]
    if not own or any(assumption.tensor is None for assumption in own):
        return None
    del found[first:]
    holds: Tensor | None = None
    for assumption in own:
        truth = truth_of(s, assumption)
        holds = truth if holds is None else called(s, torch.logical_and, holds, truth)
    assert holds is not None
    return holds, own[0]


def truth_of(s: CaptureState, assumption: Assumption) -> Tensor:
    fake = assumption.tensor
    assert fake is not None
    if s.recorder.node_of(fake) is not assumption.node:
        raise NotNested("it changes a tensor of whose value it assumes something")
    tensor = from_torch(s, fake)
    assert isinstance(tensor, Tensor)
    truth = called(s, "reshape", called(s, "detach", tensor), ())
    return called(s, operator.ne if assumption.expected else operator.eq, truth, 0)


def called(s: CaptureState, target: object, *args: object) -> Tensor:
    found = record(s, target, [arg if isinstance(arg, Tensor) else s.const(arg) for arg in args], {})  # type: ignore[arg-type]
    assert isinstance(found, Tensor)
    return found


def assumed_behind(s: CaptureState, holds: Value, like: Assumption, need: ValueNeeded | None = None) -> None:
    """Assume that a result of the `cond` or loop is true."""
    assert isinstance(holds, Tensor)
    node = s.recorder.node_of(holds.fake)
    s.part(DataValues).assumptions.append(Assumption(like.step, holds.fake, node, need=need))
