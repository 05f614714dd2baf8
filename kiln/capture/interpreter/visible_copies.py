"""Results of branches and loops that in eager are tensors from before, and what the program sees of them.

    if gate < 0.1:          %5 = cond(gate < 0.1, x, true=@0, false=@1)        @0 = layer(x)     @1 = x
        y = layer(x)
    return x, y             return x, chosen(gate < 0.1, %5, x)

A result of the `cond` is a copy of `x` where the side leaves that. If both are seen, or one is changed, the program can
tell the difference. Then the capture begins again, and the code behind the region chooses what it returns. What cannot
be chosen there (a view of the copy is seen, one of both is changed, the program compares them by `is` or asks for an
attribute of the object) breaks the graph at the branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import final

from torch.nn import Parameter

from kiln.capture.interpreter.breaks import PastStep
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.data_values import COPY_CHOSEN, COPY_SEEN, Instruction, ValueNeeded
from kiln.capture.interpreter.variables.choice import ChosenResults
from kiln.capture.interpreter.variables.tensor import RegionInputs, Tensor
from kiln.graph.trace.fake import FakeTensor, is_wrapped
from kiln.graph.trace.storage_view import FakeStorage
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, eq=False)
class Copy:
    """A result of a `cond` that in eager may be memory of `sources`; `versions`: the result's, then theirs."""

    result: FakeStorage
    sources: list[FakeStorage]
    versions: list[int]
    made_at: Instruction
    step: PastStep
    first_set: int
    """How many settings of state were before it, see `RegionInputs.set_on`."""
    can_be_chosen: bool = False


@final
@dataclass
class Copies:
    """The copies that one capture has made."""

    made: dict[int, Copy] = field(default_factory=dict)
    """By the `id` of the result's storage."""


def note_copy(
    s: CaptureState,
    pair: Sequence[Tensor],
    result: Value,
    captured: Iterable[FakeTensor],
    failed: ValueNeeded,
    can_be_chosen: bool = False,
) -> None:
    assert isinstance(result, Tensor)
    outside = {id(fake.storage_view.storage) for fake in captured}
    copies, sources = s.part(Copies).made, list[FakeStorage]()
    for tensor in pair:
        storage = tensor.fake.storage_view.storage
        sources += [storage] if id(storage) in outside else []
        sources += copies[id(storage)].sources if id(storage) in copies else []
    if sources:
        made = result.fake.storage_view.storage
        versions = [storage.version for storage in (made, *sources)]
        first = len(s.part(RegionInputs).set_on)
        copies[id(made)] = Copy(made, sources, versions, failed.made_at, failed.step, first, can_be_chosen)


def is_choosable(
    s: CaptureState,
    pair: Sequence[Tensor],
    result: Value,
    captured: Sequence[FakeTensor],
    changed: Sequence[FakeTensor],
) -> bool:
    """Whether each side leaves a tensor from before as it is, or one that it has made and that requires a gradient as
    the result does. `changed`: tensors that a side changes in place."""
    assert isinstance(result, Tensor)
    if any([tensor.fake is fake for tensor in pair for fake in changed]):
        return False
    given, outside = {id(fake) for fake in captured}, {id(fake.storage_view.storage) for fake in captured}
    made = [tensor.fake for tensor in pair if id(tensor.fake) not in given]
    copies = s.part(Copies).made
    return not s.policy.whole and all(
        [
            id(fake.storage_view.storage) not in outside
            and id(fake.storage_view.storage) not in copies
            and fake.requires_grad is result.fake.requires_grad
            for fake in made
        ]
    )


def choose_behind(
    s: CaptureState, condition: Value, pair: Sequence[Tensor], result: Value, captured: Sequence[FakeTensor]
) -> None:
    """Let the program get the tensor from before where the side that is taken leaves one."""
    assert isinstance(result, Tensor)
    given = {id(fake) for fake in captured}
    left, right = [tensor if id(tensor.fake) in given else None for tensor in pair]
    s.part(ChosenResults).by_fake[id(result.fake)] = result, condition, left, right


def refuse_visible_copies(s: CaptureState, outputs: Sequence[FakeTensor]) -> None:
    """Break where a copy is made whose memory, or that of its source, is changed later, or where both are seen; if the
    code behind the region can choose, begin again."""
    copies = s.part(Copies).made
    if not copies:
        return
    chosen = s.part(ChosenResults).by_fake
    fakes = [fake for fake in outputs if type(fake) is FakeTensor]
    seen = {id(fake.storage_view.storage) for fake in fakes}
    copied = {id(fake.storage_view.storage) for fake in fakes if id(fake) not in chosen}
    given = {id(record.fake.storage_view.storage) for record in s.recorder.inputs if type(record.fake) is FakeTensor}
    for copy in copies.values():
        changed = [storage.version for storage in (copy.result, *copy.sources)] != copy.versions
        sources = {id(storage) for storage in copy.sources}
        if changed or (id(copy.result) in copied and not sources.isdisjoint(seen | given)):
            again = copy.can_be_chosen and not changed
            raise ValueNeeded(copy.made_at, copy.step, COPY_CHOSEN if again else COPY_SEEN)
        if id(copy.result) in seen:
            given |= sources  # another copy of them is seen, too


def refuse_asked_copies(s: CaptureState) -> None:
    """Break where a copy is made that was compared with its source, is a key, or was asked what only objects know, or
    where the memory or autograd's state of one of both was set behind it."""
    copies, inputs = s.part(Copies).made, s.part(RegionInputs)
    asked = [(value, None) for value in (*s.identities.keys.values(), *inputs.asked)] if copies else []
    pairs = [pair for left, right in s.identities.distinct for pair in ((left, right), (right, left))] if copies else []
    for value, other in (*asked, *pairs):
        copy, compared = copies.get(id(storage_of(value))), storage_of(other)
        if copy is None:
            continue
        known = [compared, *(copies[id(compared)].sources if id(compared) in copies else ())]
        if other is None or not {id(source) for source in copy.sources}.isdisjoint([id(each) for each in known]):
            raise ValueNeeded(copy.made_at, copy.step, COPY_SEEN)
    for copy in copies.values():
        changed = {id(storage) for storage in inputs.set_on[copy.first_set :]}
        if not changed.isdisjoint([id(storage) for storage in (copy.result, *copy.sources)]):
            raise ValueNeeded(copy.made_at, copy.step, COPY_SEEN)
    parameters = [each for each in inputs.by_fake.values() if each.python_type() is Parameter]
    held = {id(storage_of(parameter)) for parameter in parameters}
    for value in inputs.asked_kind:
        copy = copies.get(id(storage_of(value)))
        if copy is not None and not held.isdisjoint([id(source) for source in copy.sources]):
            raise ValueNeeded(copy.made_at, copy.step, COPY_SEEN)


def storage_of(value: Value | None) -> FakeStorage | None:
    return value.fake.storage_view.storage if isinstance(value, Tensor) and not is_wrapped(value.fake) else None
