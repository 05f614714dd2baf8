"""What the effects of a phase share in all target languages: their kinds, and how partial results combine.

total[] = sum over (i1): v0         combined(ReduceOp.SUM, "total_p", "v0", f32)     "total_p + v0"
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch

from kiln.loops.codegen.kernel_writer import Nest, TextValue
from kiln.loops.kernel.errors import UnsupportedInKernel
from kiln.loops.kernel.kernel import Accumulate, Store
from kiln.loops.program.nodes import ReduceOp

_COMBINE: Mapping[ReduceOp, str] = {
    ReduceOp.SUM: "{0} + {1}",
    ReduceOp.PROD: "{0} * {1}",
    ReduceOp.MAX: "maximum({0}, {1})",
    ReduceOp.MIN: "minimum({0}, {1})",
    ReduceOp.ANY: "{0} | {1}",
    ReduceOp.ALL: "{0} & {1}",
}
INDEX_OPS = frozenset({ReduceOp.ARGMAX, ReduceOp.ARGMIN})
"""These accumulate pairs (value, index), which each language combines by a function of its own."""


class EffectWriter(ABC):
    """Collects the statements of all effects of a phase, and what stands before and behind its loops."""

    nest: Nest

    @property
    def depth(self) -> int:
        """Number of loops around the innermost statements."""
        return len(self.nest.axes)

    def add(self, effect: Store | Accumulate, value: TextValue) -> None:
        if isinstance(effect, Store):
            self.store(effect, value)
        elif effect.running is not None:
            self.scan(effect, effect.running, value)
        elif effect.exp_sum is not None:
            self.maximum_and_exp_sum(effect, effect.exp_sum, value)
        else:
            self.accumulate(effect, value)

    @abstractmethod
    def store(self, effect: Store, value: TextValue) -> None: ...
    @abstractmethod
    def scan(self, effect: Accumulate, running: Store, value: TextValue) -> None:
        """`running` stores the combination of all values so far."""

    def maximum_and_exp_sum(self, effect: Accumulate, exp_sum: str, value: TextValue) -> None:
        """The maximum, and the sum of exp(value - maximum) into `exp_sum`, in one pass."""
        thing, reason = "a sum of exp beside its maximum", "it takes two passes here"
        raise UnsupportedInKernel(language="this language", thing=thing, reason=reason)

    @abstractmethod
    def accumulate(self, effect: Accumulate, value: TextValue) -> None: ...


def combined(op: ReduceOp, left: str, right: str, dtype: torch.dtype) -> str:
    """Two partial results as one; not for index reductions."""
    return _COMBINE[on_dtype(op, dtype)].format(left, right)


def on_dtype(op: ReduceOp, dtype: torch.dtype) -> ReduceOp:
    """On bools a sum is "any", a product "all"."""
    if dtype != torch.bool:
        return op
    return ReduceOp.ANY if op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.ANY) else ReduceOp.ALL
