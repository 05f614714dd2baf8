"""Pairs the values of a recorded call with those of the call that repeats it.

    layers.0(x0, mask)     x0: f32[1, 128, 768] made in the frame, mask: an input
    layers.1(x1, mask)     x1 stands for x0 (moved), mask for itself (shared)

Two arguments pair if the interpreter cannot distinguish them: tensors of equal metadata, equal constants, tuples of
such, and otherwise identical values. The pairs are one-to-one.
"""

from __future__ import annotations

from typing import final

from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.repeated_layers.recorded_call import FakeState, fake_state
from kiln.capture.interpreter.variables.builtin import Builtin, PythonModule
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import Function
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch
from kiln.graph.trace.successors import Successors
from kiln.runtime.guards.constant import same_constant

UNCHANGING = (Builtin, PythonModule, Class)


@final
class Pairing:
    """`fakes` maps the tensors of the recorded call; `constants` are those that the new call has to guard."""

    def __init__(self, tensors: dict[int, FakeState]) -> None:
        self.fakes = Successors()
        self.constants: list[Value] = []
        self._tensors = tensors
        self._new: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def pair(self, old: Value, new: Value) -> bool:
        """Whether `new` may stand for `old`."""
        if type(old) is not type(new):
            return False
        if isinstance(old, Tensor):
            assert isinstance(new, Tensor)
            return self._pair_tensors(old, new)
        if isinstance(old, Constant):
            return self._pair_constants(old, new)
        if isinstance(old, Tuple) and old.source is None:
            assert isinstance(new, Tuple)
            return self._pair_tuples(old, new)
        if isinstance(old, Symbolic):
            assert isinstance(new, Symbolic)
            return old.node.node.value is new.node.node.value
        if old is not new:
            return False
        # An object made in the frame may have been changed since.
        return old.source is not None or isinstance(old, UNCHANGING) or is_plain_function(old)

    def _pair_tensors(self, old: Tensor, new: Tensor) -> bool:
        if old is not new and not (old.original is None and new.original is None):
            return False
        if self._tensors.get(id(old.fake)) != fake_state(new.fake):
            return False
        return self.pair_fakes(old, new)

    def pair_fakes(self, old: Tensor, new: Tensor) -> bool:
        """Let `new` stand for `old`; False if one of them has another partner."""
        left, right = id(old.fake), id(new.fake)
        if self._new.setdefault(left, right) != right or self._old.setdefault(right, left) != left:
            return False
        self.fakes.add(old.fake, new.fake)
        return True

    def _pair_constants(self, old: Constant, new: Value) -> bool:
        assert isinstance(new, Constant)
        if old is new:
            return True
        if not same_constant(old.value, new.value):
            return False
        if new.source is not None and new.source != old.source:
            self.constants.append(new)
        return True

    def _pair_tuples(self, old: Tuple, new: Tuple) -> bool:
        olds, news = old._items, new._items
        if new.source is not None or olds is None or news is None:
            return False
        return old.cls is new.cls and len(olds) == len(news) and all(map(self.pair, olds, news))

    def result(self, s: CaptureState, value: Value) -> Value:
        """What stands for the result of the recorded call."""
        if isinstance(value, Tensor):
            fake = self.fakes.of(value.fake)
            return value if fake is value.fake else from_torch(s, fake)
        if isinstance(value, Tuple):
            return Tuple([self.result(s, item) for item in value._items or ()], value.cls)
        return value


def is_plain_function(value: Value) -> bool:
    """A function that existed before the frame ran."""
    return isinstance(value, Function) and value.original is not None
