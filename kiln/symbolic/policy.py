"""The policy which sizes and numbers of inputs become symbols.

    seen (8, 128), now (16, 128)          dim 0 SYMBOL, dim 1 STATIC
    dynamic="always", size 1              SYMBOL: one graph serves every size, 1 included, until it asks for it

A size that changed once becomes a symbol and stays one. 0 and 1 are not special here: code that asks `size == 1` adds
a guard, so a symbol has at most one variant for size 1. Marks that users put on tensors (torch's `mark_dynamic` and the
like) take precedence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Literal, final

from kiln.support.errors import KilnError
from kiln.support.records import dataclass
from kiln.symbolic.env import ShapeEnv
from kiln.symbolic.expr import Expr, Symbol

Dynamic = Literal["auto", "never", "always"]


class DimKind(Enum):
    """How a dimension enters the graph."""

    STATIC = "static"
    SYMBOL = "symbol"
    UNBACKED = "unbacked"


@final
@dataclass(frozen=True, slots=True)
class DimChoice:
    """The kind of one dimension, why, and the range the user gave; or `size`, an expression over existing symbols.

    `is_stride_free`: its stride, where that is no product of inner sizes, is a symbol, too.
    """

    kind: DimKind
    reason: str
    lo: int = 0
    hi: int | None = None
    size: Expr | None = None
    is_stride_free: bool = False


@final
@dataclass(frozen=True, slots=True)
class DimMarks:
    """The marks that a user put on the dimensions of a tensor."""

    dynamic: frozenset[int] = frozenset()
    maybe_dynamic: frozenset[int] = frozenset()
    static: frozenset[int] = frozenset()
    unbacked: frozenset[int] = frozenset()
    ranges: Mapping[int, tuple[int | None, int | None]] = field(default_factory=dict)


NO_MARKS = DimMarks()


class FixedMarkedDim(KilnError):
    code = "KILN2104"
    what = "dimension {dim} of `{source}` is marked dynamic, but the program fixes it to {size}"
    why = "the guard `{guard}` allows one size only"
    try_ = ("use `maybe_mark_dynamic`", "remove the comparison of the size with a constant")


def require_open(env: ShapeEnv, size: Symbol, *, dim: int, source: str) -> None:
    """Raise KILN2104 if the guards of `env` allow a single size of a dimension that is marked dynamic."""
    fixed = env.simplify(size)
    if isinstance(fixed, int):
        guard = next((guard for guard in env.guards if size in guard.relation.free_symbols()), None)
        at = guard.location if guard else None
        raise FixedMarkedDim(at=at, dim=dim, source=source, size=fixed, guard=guard.relation if guard else "")


def read_marks(tensor: object) -> DimMarks:
    """The marks that torch's `mark_dynamic`, `maybe_mark_dynamic`, `mark_static` and `mark_unbacked` left."""
    found = vars(tensor) if hasattr(tensor, "__dict__") else {}
    if not any(name.startswith("_dynamo_") for name in found):
        return NO_MARKS
    ranges = {mark.dim: (mark.min, mark.max) for mark in found.get("_dynamo_dynamic_range", ())}
    return DimMarks(
        dynamic=frozenset(found.get("_dynamo_dynamic_indices", ())),
        maybe_dynamic=frozenset(found.get("_dynamo_weak_dynamic_indices", ())),
        static=frozenset(found.get("_dynamo_static_indices", ())),
        unbacked=frozenset(found.get("_dynamo_unbacked_indices", ())),
        ranges=ranges,
    )


@final
@dataclass(frozen=True, slots=True)
class DimPolicy:
    """Chooses for each dimension of an input tensor."""

    dynamic: Dynamic = "auto"

    def choose(
        self, sizes: Sequence[int], seen: Sequence[Sequence[int]] = (), marks: DimMarks = NO_MARKS
    ) -> tuple[DimChoice, ...]:
        """A choice per dimension of `sizes`; `seen` are the sizes of earlier calls at the same source."""
        alike = [other for other in seen if len(other) == len(sizes)]
        return tuple(
            _marked(dim, size, marks) or self._unmarked(size, [other[dim] for other in alike])
            for dim, size in enumerate(sizes)
        )

    def free_strides(self, strides: Sequence[int], seen: Sequence[Sequence[int]] = ()) -> frozenset[int]:
        """The dimensions whose strides are symbols; `seen` are the strides of earlier calls at the same source."""
        alike = [other for other in seen if len(other) == len(strides)]
        before = [[other[dim] for other in alike] for dim in range(len(strides))]
        choices = map(self._unmarked, strides, before)
        return frozenset([dim for dim, choice in enumerate(choices) if choice.kind is DimKind.SYMBOL])

    def _unmarked(self, size: int, before: Sequence[int]) -> DimChoice:
        return _by_history(self.dynamic, size, before)


def _marked(dim: int, size: int, marks: DimMarks) -> DimChoice | None:
    """The choice that the marks ask for; a range that `size` is outside of is ignored."""
    lo, hi = marks.ranges.get(dim, (None, None))
    if size < (lo or 0) or (hi is not None and size > hi):
        lo = hi = None
    if dim in marks.static:
        return DimChoice(DimKind.STATIC, "marked static")
    if dim in marks.unbacked:
        return DimChoice(DimKind.UNBACKED, "marked unbacked", lo or 0, hi)
    if dim in marks.dynamic:
        return DimChoice(DimKind.SYMBOL, "marked dynamic", lo or 0, hi)
    if dim in marks.maybe_dynamic:
        return DimChoice(DimKind.SYMBOL, "marked dynamic if possible", lo or 0, hi)
    return None


def _by_history(dynamic: Dynamic, now: float, before: Sequence[float]) -> DimChoice:
    if dynamic == "never":
        return DimChoice(DimKind.STATIC, "dynamic is off")
    if dynamic == "always":
        return DimChoice(DimKind.SYMBOL, "dynamic is on")
    other = next((size for size in before if size != now), None)
    if other is None:
        return DimChoice(DimKind.STATIC, "has not changed yet")
    return DimChoice(DimKind.SYMBOL, f"changed from {other} to {now}")


@final
@dataclass(frozen=True, slots=True)
class ScalarPolicy:
    """Chooses for a number that the caller passes or the program reads. Truth values are not its business: those that
    are items are symbols as soon as one of their kind changes (`pipeline/seen_inputs.py`).

    Configuration (an attribute of a module, a default) stays static until it changes, under "always" too: it is
    often used where only a plain number works.
    """

    dynamic: Dynamic = "auto"

    def choose(self, value: int | float, seen: Sequence[int | float] = (), *, is_argument: bool = True) -> DimChoice:
        """`seen` are the values of earlier calls at the same source."""
        how: Dynamic = "auto" if self.dynamic == "always" and not is_argument else self.dynamic
        choice = _by_history(how, value, seen)
        if choice.kind is DimKind.STATIC:
            return choice
        return DimChoice(choice.kind, choice.reason, lo=-(1 << 63))
