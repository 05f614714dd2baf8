"""Numbers that the graph knows by symbols: sizes, numbers from outside, and those that data decide.

n = x.shape[0]         a torch.SymInt of the size
k = (x > 0).sum()      .item() is a torch.SymInt that the region computes
k == 2                 a torch.SymBool: its truth is guarded, assumed or decides a branch
"""

from __future__ import annotations

import operator
from typing import Any, ClassVar, final

import torch

from kiln.capture.interpreter.core import CaptureState, Codegen, Token, Value
from kiln.capture.interpreter.data_values import assumed_relation, likely_truth, will_fix
from kiln.capture.interpreter.speculation import comparison_in_region, number_truth
from kiln.runtime.guards.source import Source
from kiln.support.records import dataclass
from kiln.symbolic.relation import Relation


@final
@dataclass(frozen=True, slots=True, eq=False)
class Symbolic(Value):
    """A number that depends on sizes or inputs: a torch.SymInt, SymFloat or SymBool."""

    node: Any
    source: Source | None = None
    number: Symbolic | None = None
    """Of the truth value in a tensor: 1 where it is true, else 0."""

    is_torch = True
    is_deferred = True
    kinds: ClassVar[dict[type, type[int | float]]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}

    def python_type(self) -> type[int | float]:
        return self.kinds[type(self.node)]

    def torch_arg(self, s: CaptureState) -> object:
        """Torch's C++ takes a symbolic truth for an integer, where a plain one decides the dtype."""
        return self.constant(s) if isinstance(self.node, torch.SymBool) else self.node

    def constant(self, s: CaptureState) -> int | float | bool:
        will_fix(s, self, self.node.node.value)
        return self.python_type()(self.node)

    def emit(self, g: Codegen) -> None:
        """Computed again from the sizes and numbers that it depends on."""
        value = self.node.node.value
        if self.number is not None:
            g.body.const(bool)
            g.number(self.number.node.node.value)
            g.body.call(1)
        elif isinstance(self.node, torch.SymBool) and not isinstance(value, Relation):
            g.body.const(self.constant(g.state))
        else:
            g.number(value)

    def truth(self, s: CaptureState) -> bool:
        if self.python_type() is int:
            return s.wrap(self.node != 0, None).truth(s)  # its value is not read
        if self.python_type() is float and self.node.node.has_hint():
            known = number_truth(s, operator.ne, self.node.node.value, 0)
        elif self.python_type() is float:
            known = likely_truth(s, comparison_in_region(s, operator.ne, self, s.const(0.0)))
        else:
            known = assumed_relation(s, self.node)
        return bool(self.constant(s)) if known is None else known

    def key(self, s: CaptureState) -> Token:
        return self.constant(s)
