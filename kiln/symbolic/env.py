"""The shape environment of one compile: symbols, their hints, and what has been decided about them.

    env = ShapeEnv()
    s0 = env.create_symbol(32)                     # a size that was 32 in this call
    env.decide(rel_eq(s0, 1), where)               # False; the guard `s0 != 1` remembers the user's line
    env.known(rel_eq(s0, 1))                       # False, no further guard
    u0 = env.create_unbacked()                     # a size that depends on data
    env.decide(rel_eq(u0, 1), where)               # raises KILN2101

A question is answered by the canonical form, by ranges and facts (`known`), or by the hint, which makes a guard. A
guard is made only for what does not follow from earlier ones, and `guards` leaves out those that later ones imply.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import final

from kiln.support.errors import KilnError
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic.expr import Expr, Int, Symbol, evaluate, symbol
from kiln.symbolic.facts import SizeFacts
from kiln.symbolic.ranges import Interval, Range
from kiln.symbolic.relation import Relation, beyond_int64, guard_can_hold, rel_eq, rel_le, relate

DTYPES = frozenset(("u8", "u16", "u32", "u64"))
"""What dtypes are called in texts."""
Prover = Callable[[Relation, "ShapeEnv"], bool | None]


class DataDependentSize(KilnError):
    code = "KILN2101"
    what = "`{relation}` asks about a size that depends on data"
    why = "the sizes {symbols} come from the values of a tensor, which do not exist while tracing"
    try_ = (
        "state it with `torch._check({relation})`",
        "make the size independent of data, for example with a mask instead of indexing",
    )


class NoHint(KilnError):
    code = "KILN2102"
    what = "`{value}` has no number while tracing"
    why = "the sizes {symbols} come from the values of a tensor"
    try_ = ("keep the value symbolic", "move the use of the number out of the compiled function")


class FalseAssertion(KilnError):
    code = "KILN2103"
    what = "the assertion `{relation}` on sizes does not hold"
    why = "{reason}"
    try_ = ("correct the assertion or the sizes of the inputs",)


class ConditionalNumber(Exception):
    """What is asked of a number in a side of a branch can be no guard, nor be checked in front of the region."""


@final
@dataclass(frozen=True, slots=True)
class ShapeGuard:
    """A relation that compiled code depends on, and the user's line that asked for it."""

    relation: Relation
    location: Location | None = None

    def text(self) -> str:
        return f"{self.relation}" + (f"  # {self.location.text()}" if self.location else "")


AssumeNumber = Callable[[Callable[[float, float], bool], object, object], bool | None]
"""(comparison, left, right) -> what it is in this call, or None where it cannot be assumed."""


NumberInFront = Callable[..., object]
"""(row of `IN_FRONT`, numbers) -> the number that takes the result, or None where it cannot be computed."""


class ShapeEnv:
    """Symbols of one compile, with the guards (checked before the call) and checks (inside it) collected so far.

    `prover` is called before a data-dependent question fails; see `reference.py`.
    """

    def __init__(self, *, prefix: str = "s", prover: Prover | None = None) -> None:
        self._prefix = prefix
        self._prover = prover
        self._facts = SizeFacts()
        self.declared: dict[Symbol, Range] = {}
        """What is known of each symbol when it is made."""
        self._hints: dict[Symbol, int] = {}
        self._values: dict[Expr, int] = {}
        self.unbacked: list[Symbol] = []
        """The symbols without a hint."""
        self.assumes_data = False
        """Where data decide, whether rules take the likely answer, which the compiled code checks."""
        self.asked_by_torch = False
        """Whether torch itself asks, in an operator or a formula of a gradient: it gets the likely answer, too."""
        self.matching: frozenset[Relation] = frozenset()
        """Equalities of sizes that data decide, without which an earlier trace failed: they are taken to hold."""
        self.differing: list[Relation] = []
        """Those that were asked for and taken not to hold."""
        self.taken: list[ShapeGuard] | None = None
        """What an export takes for granted of layouts, without a guard (`generic_layouts.py`)."""
        self.in_store = False
        """Whether torch stores into a part of a tensor: a size that is 1 is broadcast like any other."""
        self.unbounded: set[Symbol] = set()
        """Symbols for numbers of the caller, which may be of any size."""
        self.conditional: set[Symbol] = set()
        """Symbols for numbers that are computed in one side of a branch."""
        self.in_side = False
        """Whether a side of a branch is traced that this call may not take: no guard is made of what it asks."""
        self.assume_number: AssumeNumber | None = None
        """Assumes how two numbers compare, which the call checks; without it, their values are guarded."""
        self.number_in_front: NumberInFront | None = None
        """Has a function of numbers of the caller computed in front of the region; without it, they are guarded."""
        self.tag_number: Callable[[object], float | None] | None = None
        """The plain float that stands for a real number in the torch call of the moment (`tags.py`)."""
        self.find_number: Callable[[float], object] | None = None
        """The real number that a plain float of C++ stands for, or None."""
        self._guards: list[ShapeGuard] = []
        self._checks: list[ShapeGuard] = []
        self._minimal: list[ShapeGuard] | None = None

    # Symbols.

    def create_symbol(self, hint: int, *, name: str | None = None, lo: int = 0, hi: int | None = None) -> Symbol:
        """A symbol for an input that is `hint` in this call.

        Ends of the range other than the natural 0 become guards. Raises `ValueError` when `hint` is outside.
        """
        within = Range(lo, hi)
        if hint not in within:
            raise ValueError(f"the hint {hint} is outside {lo}..{hi}")
        made = symbol(name or f"{self._prefix}{len(self._hints)}")
        if made in self.declared:
            raise ValueError(f"the symbol {made} exists already")
        self.declared[made] = Range(min(lo, 0))
        self._hints[made] = hint
        self._facts.declare(made, within)
        self._minimal = None
        declared = (rel_le(lo, made) if lo > 0 else True, True if hi is None else rel_le(made, hi))
        self._guards += [ShapeGuard(bound) for bound in declared if isinstance(bound, Relation)]
        return made

    def create_unbacked(self, *, name: str | None = None, lo: int = 0, hi: int | None = None) -> Symbol:
        """A symbol without a hint; `lo` and `hi` are what its producer guarantees."""
        names = (f"u{number}" for number in count(len(self.unbacked)))
        made = symbol(name or next(free for free in names if free not in DTYPES and symbol(free) not in self.declared))
        self.unbacked.append(made)
        self.declared[made] = Range(lo, hi)
        self._facts.declare(made, self.declared[made])
        return made

    def symbols(self) -> list[Symbol]:
        """All symbols in the order of creation."""
        return list(self.declared)

    def range_of(self, value: Int) -> Interval:
        """The interval of `value`."""
        return self._facts.interval(value)

    # Numbers.

    def has_hint(self, value: Int | Relation) -> bool:
        """Is its number known in this call?"""
        return not isinstance(value, Expr | Relation) or all(symbol in self._hints for symbol in self._inputs(value))

    def _inputs(self, value: Expr | Relation) -> Iterable[Symbol]:
        """The symbols that `value` depends on after replacement."""
        unbacked = [symbol for symbol in value.free_symbols() if symbol not in self._hints]
        if not unbacked:
            return value.free_symbols()
        parts = [self._facts.simplify(symbol) for symbol in value.free_symbols()]
        return [symbol for part in parts if isinstance(part, Expr) for symbol in part.free_symbols()]

    def hint(self, value: Int) -> int:
        """Its number in this call. Raises KILN2102 if it depends on data."""
        if not isinstance(value, Expr):
            return value
        found = self._values.get(value)
        if found is None:
            if not self.has_hint(value):
                unknown = self._data_symbols(value)
                raise NoHint(value=value, symbols=", ".join(map(str, unknown)), unknown=unknown)
            simpler = value
            if any(symbol not in self._hints for symbol in value.free_symbols()):
                simpler = self._facts.simplify(value)  # type: ignore[assignment]
            found = self._values[value] = evaluate(simpler, self._hints)
        return found

    def _data_symbols(self, value: Expr | Relation) -> tuple[Symbol, ...]:
        """The sizes without a number that `value` depends on, in the order in which they were made."""
        found = frozenset(self._inputs(value))
        return tuple([symbol for symbol in self.unbacked if symbol in found and symbol not in self._hints])

    def simplify(self, value: Int) -> Int:
        """The shortest form under all decisions so far."""
        return self._facts.simplify(value)

    # Questions.

    def known(self, relation: Relation | bool) -> bool | None:
        """Whether it holds in every call that passes the guards; None if that is open. Makes no guard."""
        return relation if isinstance(relation, bool) else self._facts.known(relation)

    def decide(self, relation: Relation | bool, where: Location | None = None) -> bool:
        """Whether it holds in this call, guarded if other calls may differ. Raises KILN2101 if data decide."""
        answer = self.known(relation)
        if answer is not None:
            return answer
        assert isinstance(relation, Relation)
        if self.in_side or not self.conditional.isdisjoint(relation.free_symbols()):
            return assumed(self, relation)
        if not guard_can_hold(relation):
            if (answer := beyond_int64(relation)) is None:
                for number in relation.free_symbols():
                    self.specialise(number, where)
                answer = holds_here(self, relation)
            return answer
        if not self.has_hint(relation):
            answer = self._prover(relation, self) if self._prover else None
            if answer is None and self.asked_by_torch and self.assumes_data:
                return assume_likely(self, relation, where)
            if answer is None:
                unknown = self._data_symbols(relation)
                symbols = ", ".join(map(str, unknown))
                raise DataDependentSize(at=where, relation=relation, symbols=symbols, unknown=unknown)
            return answer
        answer = holds_here(self, relation)
        self._record(self._guards, relation if answer else relation.negate(), where)
        return answer

    decide_layout = decide  # only a recording takes layouts for granted

    def is_assumed(self, relation: Relation | bool) -> bool:
        """Never: only a recording takes the likely answer."""
        return False

    def expect(self, relation: Relation | bool, where: Location | None = None) -> bool:
        """As `decide`, but where data decide it is taken to hold, and the compiled code checks it."""
        if self.known(relation) is None and not self.has_hint(relation):
            self.assume(relation, where)
        return self.decide(relation, where)

    def specialise(self, value: Int, where: Location | None = None) -> int:
        """The number of `value`, to which a guard fixes it."""
        number = self.hint(value)
        self.decide(rel_eq(value, number), where)
        return number

    def assume(self, relation: Relation | bool, where: Location | None = None, *, checked: bool = False) -> None:
        """A fact: a guard, or a check in the compiled code where data decide, unless it is `checked` elsewhere.

        Raises KILN2103 when it cannot hold.
        """
        answer = self.known(relation)
        if answer is False:
            raise FalseAssertion(at=where, relation=relation, reason="it contradicts what is known of these sizes")
        if answer or isinstance(relation, bool):
            return
        if not self.conditional.isdisjoint(relation.free_symbols()):
            raise ConditionalNumber
        backed = self.has_hint(relation)
        if backed and not holds_here(self, relation):
            raise FalseAssertion(at=where, relation=relation, reason="the inputs of this call break it")
        if checked and not backed:
            self._facts.learn(relation)
            return
        self._record(self._guards if backed else self._checks, relation, where)

    def _record(self, into: list[ShapeGuard], relation: Relation, where: Location | None) -> None:
        stated: Relation | bool = relation
        if into is self._guards and any(symbol not in self._hints for symbol in relation.free_symbols()):
            stated = relate(relation.kind, self.simplify(relation.difference))
        into.append(ShapeGuard(stated if isinstance(stated, Relation) else relation, where))
        self._facts.learn(relation)
        self._minimal = None

    # Results.

    @property
    def guards(self) -> list[ShapeGuard]:
        """The relations that inputs must satisfy, in the order of asking, without implied ones."""
        if self._minimal is None:
            self._minimal = without_implied(self._guards, self.declared)
        return list(self._minimal)

    @property
    def checks(self) -> list[ShapeGuard]:
        """The relations the compiled code must check, in the order of asking."""
        return list(self._checks)

    @property
    def replacements(self) -> dict[Symbol, Int]:
        """Symbols that equalities define in terms of others."""
        return dict(self._facts.replacements)


TYPICAL = 2
"""A size that data decide, where some number has to be taken."""


def assume_likely(env: ShapeEnv, relation: Relation, where: Location | None) -> bool:
    """The answer for sizes that data decide: neither negative nor large, and like no other that it need not match.

    It is a check.
    """
    if relation.kind == "le":
        numbers = {size: env.hint(size) if env.has_hint(size) else TYPICAL for size in relation.free_symbols()}
        answer = evaluate(relation.difference, numbers) <= 0
    else:
        equality = relation if relation.kind == "eq" else relation.negate()
        matches, other = equality in env.matching, equality.rhs
        if not matches and not (isinstance(other, int) and other <= 1):  # empty or broadcast: nothing to match
            env.differing.append(equality)
        answer = (relation.kind == "eq") is matches
    env.assume(relation if answer else relation.negate(), where)
    return answer


def holds_here(env: ShapeEnv, relation: Relation) -> bool:
    """Whether it holds for the numbers of this call."""
    difference = env.hint(relation.difference)
    return {"eq": difference == 0, "ne": difference != 0, "le": difference <= 0}[relation.kind]


def assumed(env: ShapeEnv, relation: Relation) -> bool:
    """Whether it holds in this call, which checks it where the side is taken."""
    answer = None
    if env.assume_number is not None and env.has_hint(relation):
        answer = env.assume_number(getattr(operator, relation.op), relation.lhs, relation.rhs)
    if answer is None:
        raise ConditionalNumber
    return answer


def without_implied(guards: list[ShapeGuard], ranges: Mapping[Symbol, Range]) -> list[ShapeGuard]:
    """The guards that do not follow from later ones and the declared ranges."""
    facts = SizeFacts(ranges)
    kept = []
    for guard in reversed(guards):
        if facts.known(guard.relation) is not True:
            kept.append(guard)
            facts.learn(guard.relation)
    return kept[::-1]
