"""What a call of a module did, as lengths of the state's lists before and after it.

    layers.0(x, mask)    guards 140..382, objects 61..150, torch calls 9..34, result Tensor

Recording costs a few numbers per call; a template is made only when another module of the class is called.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field
from typing import final

import torch

from kiln.capture.interpreter.core import Args, CaptureState, Effect, Kwargs, Value
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.speculation import Speculations
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.graph.trace.autocast import is_any_autocast_enabled
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import TorchCall
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.tensor.spec import TensorSpec

LEAST_STEPS = 48
"""A call of fewer opcodes is interpreted as fast as it is repeated."""

FakeState = tuple[TensorSpec, bool, bool, bool]


def fake_state(fake: FakeTensor) -> FakeState:
    """What a program can see of a tensor without its values."""
    return fake.storage_view.spec, fake.requires_grad, fake.is_leaf, fake.is_input


def all_steps(s: CaptureState) -> int:
    """Opcodes so far, repeated ones included."""
    return s.counters.steps + s.counters.repeated_steps


def modes() -> tuple[bool, ...]:
    """Torch's modes that change the meaning of a call without being an effect."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), is_any_autocast_enabled()


@final
@dataclass(frozen=True, slots=True)
class StateLengths:
    """Lengths of the lists to which a state only appends."""

    guards: int
    objects: int
    aliases: int
    calls: int
    frames: int
    unguarded: int
    speculations: int
    distinct: int
    keys: int
    writes: int
    inputs: int
    checkpoints: int
    numbers: int
    """Of values that are read: each call has symbols of its own."""

    @staticmethod
    def of(s: CaptureState) -> StateLengths:
        return StateLengths(
            len(s.guards), len(s.identities.objects), len(s.identities.other_paths), len(s.recorder.calls),
            s.counters.frames, s.counters.unguarded, len(s.part(Speculations).assumed), len(s.identities.distinct),
            len(s.identities.keys), s.recorder.writes, len(s.recorder.inputs), s.counters.checkpoints,
            len(s.recorder.env.unbacked),
        )  # fmt: skip


@final
@dataclass(slots=True)
class RecordedCall:
    """A call that returned. `tensors`: the state of its arguments when it began."""

    module: Object
    args: Args
    kwargs: Kwargs
    tensors: dict[int, FakeState]
    effects: dict[Hashable, Effect]
    start: StateLengths
    steps: int
    """Opcodes of the call; until it returns, those before it."""
    depth: int
    """How many lines of the stack are the caller's."""
    modes: tuple[bool, ...]
    location: Location
    """The line of the call."""
    end: StateLengths = field(init=False)
    calls: list[TorchCall] = field(init=False)
    result: Value = field(init=False)

    @staticmethod
    def begin(s: CaptureState, module: Object, args: Args, kwargs: Kwargs) -> RecordedCall:
        tensors: dict[int, FakeState] = {}
        for value in (*args, *kwargs.values()):
            note_tensors(value, tensors)
        stack, effects = running_frame(s).locations(), s.effects.lasting()
        return RecordedCall(
            *(module, args, kwargs, tensors, effects, StateLengths.of(s), all_steps(s), len(stack), modes(), stack[-1])
        )

    def end_with(self, s: CaptureState, result: Value) -> bool:
        """Whether the call is worth repeating, and nothing in the state prevents it."""
        self.end, self.result = StateLengths.of(s), result
        self.steps = all_steps(s) - self.steps
        self.calls = s.recorder.calls[self.start.calls :]
        start, end = self.start, self.end
        return (
            self.steps >= LEAST_STEPS
            and end.unguarded == start.unguarded
            and end.speculations == start.speculations
            and end.checkpoints == start.checkpoints
            and end.keys == start.keys
            and end.numbers == start.numbers
            and not any(left.source and right.source for left, right in s.identities.distinct[start.distinct :])
            and self.effects == s.effects.lasting()
            and is_fixed_result(result)
        )


def note_tensors(value: Value, tensors: dict[int, FakeState]) -> None:
    if isinstance(value, Tensor):
        tensors[id(value.fake)] = fake_state(value.fake)
    elif isinstance(value, Tuple) and value._items is not None:
        for item in value._items:
            note_tensors(item, tensors)


def is_fixed_result(value: Value) -> bool:
    """Tensors, constants and tuples of such, which nobody changes later."""
    if isinstance(value, Tuple):
        return value.source is None and value._items is not None and all(map(is_fixed_result, value._items))
    return isinstance(value, Tensor) or (value.is_constant and value.source is None)
