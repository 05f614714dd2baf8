"""Tensors that the region made before a branch, and that a side changes in place: a copy stands for them there.

    out = zeros_like(x)           %5
    if gate < 0.1:                %9 = cond(gate < 0.1, true=@0, false=@1)       out: %5 -> %9
        out.add_(x)                   @0 = %7: clone(%5); add_(%7, x)            @1 = %5

What in-place calls do to the autograd state of a fake cannot be undone. So the object of the program gets another fake:
in a side the copy, behind the branch the result of the `cond`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from kiln.capture.interpreter.core import CaptureState, StateChange, will_change
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.nested_calls import frame_values, reachable
from kiln.capture.interpreter.variables.tensor import Overrides, RegionInputs, Tensor
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import TorchCall, leaves
from kiln.graph.trace.nested_graphs import NotNested


@contextmanager
def written_to_copies(s: CaptureState) -> Iterator[None]:
    """Interpret a side whose in-place calls change copies of the tensors from before it."""
    overrides = s.part(Overrides)
    outer, overrides.will_write = overrides.will_write, partial(copied_before_write, len(s.recorder.calls))
    try:
        yield
    finally:
        overrides.will_write = outer


def copied_before_write(first: int, s: CaptureState, tensor: Tensor) -> None:
    """Let a copy stand for a tensor that the region made before the call `first` of the log.

    Others stay as they are: inputs have rules of their own, and views would need a copy of what they are views of.
    """
    fake = tensor.fake
    if tensor.source is not None or tensor.original is not None or type(fake) is not FakeTensor:
        return
    view = fake.storage_view
    if view.step is not None or view.storage.unwritable or (fake.requires_grad and fake.is_leaf):
        return
    given = [record.fake for record in s.recorder.inputs if type(record.fake) is FakeTensor]
    if any(other.storage_view.storage is view.storage for other in given):  # such as a detached input
        return
    if id(fake) in made_by(s.recorder.calls[first:]):
        return
    refuse_views(s, {id(view.storage): tensor})
    s.counters.change()
    will_change(s, tensor)
    copy = s.recorder.call("clone", [fake], {}, stack=running_frame(s).locations())
    assert isinstance(copy, FakeTensor)
    stand_in(s, tensor, copy)


def stand_in(s: CaptureState, tensor: Tensor, fake: FakeTensor) -> None:
    """Let `fake` stand for a tensor of the program: in-place calls on it return that tensor."""
    tensor.fake = fake
    s.part(RegionInputs).by_fake[id(fake)] = tensor


def made_by(calls: Sequence[TorchCall]) -> set[int]:
    """The `id`s of the tensors that calls make, besides those that they change in place."""
    found, used = set[int](), set[int]()
    for call in calls:
        used.update([id(leaf) for leaf in leaves([call.args, call.kwargs]) if id(leaf) not in found])
        found.update([id(leaf) for leaf in leaves(call.result) if id(leaf) not in used])
    return found


def require_no_views(s: CaptureState, changes: Iterable[StateChange]) -> None:
    """Refuse changes of tensors of which the program has views: those would be views of the memory before."""
    storages = {
        id(change.before.fake.storage_view.storage): change.value
        for change in changes
        if isinstance(change.value, Tensor) and isinstance(change.before, Tensor)
    }
    refuse_views(s, storages)


def refuse_views(s: CaptureState, storages: Mapping[int, object]) -> None:
    """Raise NotNested if the program holds other tensors with the memory of these."""
    seen = reachable([*frame_values(s), *s.effects]) if storages else set()
    for tensor in s.part(RegionInputs).by_fake.values() if storages else ():
        if type(tensor.fake) is FakeTensor and id(tensor) in seen:
            changed = storages.get(id(tensor.fake.storage_view.storage), tensor)
            if changed is not tensor:
                raise NotNested("it changes a tensor of which there are views")
