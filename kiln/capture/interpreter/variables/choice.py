"""One of two values, by a condition that the region computes: what the sides of a branch leave in an object.

    if gate < 0.1:               cache.keys = Choice(gate < 0.1, k, None)
        cache.keys = k

It may be stored, passed on and returned. Where Python needs to know which value it is, the capture begins again and
breaks the graph at the branch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import NoReturn, final

from kiln.capture.bytecode.assemble import Label
from kiln.capture.interpreter.core import NOT_RESUMABLE, CallSite, CaptureState, Codegen, Token, Value
from kiln.capture.interpreter.data_values import OBJECT_READ, ValueNeeded
from kiln.capture.interpreter.variables.constant import Constant
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, slots=True, eq=False)
class Choice(Value):
    """`left` if `condition`, a tensor of one element, is true, else `right`; None: the attribute does not exist."""

    condition: Value
    left: Value | None
    right: Value | None
    need: ValueNeeded

    def _needed(self) -> NoReturn:
        raise ValueNeeded(self.need.made_at, self.need.step, OBJECT_READ)

    def present(self) -> Value:
        """Itself, if both values exist."""
        if self.left is None or self.right is None:
            self._needed()
        return self

    def python_type(self) -> type:
        self._needed()

    def real(self) -> NoReturn:
        self._needed()

    def constant(self, s: CaptureState) -> NoReturn:
        self._needed()

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        self._needed()

    def truth(self, s: CaptureState) -> bool:
        self._needed()

    def key(self, s: CaptureState) -> Token:
        self._needed()

    def emit(self, g: Codegen) -> None:
        if g.state.policy.whole:  # no code runs behind the graph
            self._needed()
        g.body.const(chosen)
        for value in (self.condition, self.left, self.right):
            g.emit(value if value is not None else Constant(None))
        g.body.call(3)
        g.remember(self)


@final
@dataclass
class ChosenResults:
    """The results of branches in place of which the program may get a tensor from before."""

    by_fake: dict[int, tuple[Value, Value, Value | None, Value | None]] = field(default_factory=dict)
    """The result, the condition and what the sides leave, None for the result; by the `id` of the result's fake."""


def chosen(condition: object, left: object, right: object) -> object:
    return left if condition else right


def emit_present(g: Codegen, value: Value, write: Callable[[Value], None]) -> None:
    """`write(value)`, where one of two values does not exist only if the other was chosen."""
    if not isinstance(value, Choice) or (value.left is not None and value.right is not None):
        write(value)
        return
    existing = value.left if value.left is not None else value.right
    assert existing is not None
    end = Label()
    g.emit(existing)  # what it builds is known on both ways
    g.body.op("POP_TOP")
    g.emit(value.condition)
    g.body.jump_if(value.left is None, end)
    write(existing)
    g.body.label(end)
