"""What one call of a module did: places in the state's lists before and after it.

    layers.0(x, mask)    guards 140..382, objects 61..150, torch calls 9..34, result Tensor

Keeping this costs a few numbers per call; only a call of another module of the class makes a template of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, final

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
from kiln.tensor.spec import TensorSpec

WORTH = 48
"""A call of fewer opcodes is as soon interpreted as repeated."""

FakeState = tuple[TensorSpec, bool, bool, bool]


def fake_state(fake: FakeTensor) -> FakeState:
    """What a program can see of a tensor without asking for its values."""
    return fake.storage_view.spec, fake.requires_grad, fake.is_leaf, fake.is_input


def all_steps(s: CaptureState) -> int:
    """Opcodes so far, interpreted in running frames not counted."""
    return s.counters.steps + s.counters.repeated_steps


def modes() -> tuple[bool, ...]:
    """Torch's modes on which the meaning of a call depends, and which change without an effect."""
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), is_any_autocast_enabled()


def lasting_effects(s: CaptureState) -> dict[Hashable, Effect]:
    """Without context variables: a call that asks for one is not repeated."""
    return s.effects.lasting()


@final
@dataclass(frozen=True, slots=True)
class Marks:
    """Lengths of what a state only appends to."""

    guards: int
    objects: int
    aliases: int
    calls: int
    frames: int
    unguarded: int
    speculations: int
    distinct: int
    writes: int
    inputs: int
    regions: int

    @staticmethod
    def of(s: CaptureState) -> Marks:
        return Marks(
            len(s.guards), len(s.identities.objects), len(s.identities.other_paths), len(s.recorder.calls),
            s.counters.frames, s.counters.unguarded, len(s.part(Speculations).assumed), len(s.identities.distinct),
            s.recorder.writes, len(s.recorder.inputs), s.counters.checkpoints,
        )  # fmt: skip


@final
@dataclass(slots=True)
class Recording:
    """A call that ended well. `tensors` says what its arguments were when it began."""

    module: Object
    args: Args
    kwargs: Kwargs
    tensors: dict[int, FakeState]
    effects: dict[Hashable, Effect]
    start: Marks
    steps: int
    """Opcodes of the call; until it has ended, those before it."""
    depth: int
    """How many lines of the stack are the caller's."""
    modes: tuple[bool, ...]
    place: Location
    """The line of the call."""
    end: Marks = field(init=False)
    calls: list[TorchCall] = field(init=False)
    result: Value = field(init=False)
    template: Any = None
    misses: int = 0

    @staticmethod
    def begin(s: CaptureState, module: Object, args: Args, kwargs: Kwargs) -> Recording:
        tensors: dict[int, FakeState] = {}
        for value in (*args, *kwargs.values()):
            note_tensors(value, tensors)
        stack = running_frame(s).locations()
        effects, start = lasting_effects(s), Marks.of(s)
        return Recording(module, args, kwargs, tensors, effects, start, all_steps(s), len(stack), modes(), stack[-1])

    def ended(self, s: CaptureState, result: Value) -> bool:
        """Whether the call can be repeated as far as the state tells, and is worth it."""
        self.end, self.result = Marks.of(s), result
        self.steps = all_steps(s) - self.steps
        self.calls = s.recorder.calls[self.start.calls :]
        start, end = self.start, self.end
        return (
            self.steps >= WORTH
            and end.unguarded == start.unguarded
            and end.speculations == start.speculations
            and end.regions == start.regions
            and not any(one.source and other.source for one, other in s.identities.distinct[start.distinct :])
            and self.effects == lasting_effects(s)
            and is_fixed_result(result)
        )


def note_tensors(value: Value, tensors: dict[int, FakeState]) -> None:
    if isinstance(value, Tensor):
        tensors[id(value.fake)] = fake_state(value.fake)
    elif isinstance(value, Tuple) and value._items is not None:
        for item in value._items:
            note_tensors(item, tensors)


def is_fixed_result(value: Value) -> bool:
    """Tensors, constants and tuples of such: nobody changes them later."""
    if isinstance(value, Tuple):
        return value.source is None and value._items is not None and all(is_fixed_result(one) for one in value._items)
    return isinstance(value, Tensor) or (value.is_constant and value.source is None)
