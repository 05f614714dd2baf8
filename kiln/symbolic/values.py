"""What a `SymNode` holds besides integers: truths and real numbers that depend on sizes.

    s0 == s1 or s0 == 1       AnyOf((s0 == s1, s0 == 1))
    float(s0) / 2             Real("truediv", (Real("float", (s0,)), 2.0))

Truths are decided part by part, parts that cost no guard first. Real numbers stay symbolic through arithmetic
(compared in `comparisons.py`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import final

from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.symbolic.env import NoHint, ShapeEnv
from kiln.symbolic.expr import Expr, Int, Symbol, ceil_div
from kiln.symbolic.relation import Relation, rel_le, rel_lt


@final
@dataclass(frozen=True, slots=True)
class AllOf:
    """Every part holds."""

    parts: tuple[Truth, ...]

    def __str__(self) -> str:
        return f"all({', '.join(map(str, self.parts))})"


@final
@dataclass(frozen=True, slots=True)
class AnyOf:
    """Some part holds."""

    parts: tuple[Truth, ...]

    def __str__(self) -> str:
        return f"any({', '.join(map(str, self.parts))})"


Truth = bool | Relation | AllOf | AnyOf


@final
@dataclass(eq=False, slots=True)
class Given:
    """A float argument of the caller, or without a number: one that a tensor holds.

    `is_read`: the program depends on its value, so it is guarded; `location` asked for it. A `formula` computes it from
    other numbers of the caller, in front of the region.
    """

    name: str
    number: float | None
    is_read: bool = False
    formula: Real | None = None
    location: Location | None = None

    def __str__(self) -> str:
        return self.name


RealOperator = Callable[["Real", "Int | float | Real"], "Real"]


def _operators(op: str) -> tuple[RealOperator, RealOperator]:
    """The operator and the one with reflected operands."""
    return lambda self, other: Real(op, (self, other)), lambda self, other: Real(op, (other, self))


@final
@dataclass(frozen=True, slots=True)
class Real:
    """`op` of `args`; `op` is a row of `REAL_OPS`. The argument of "given" is a `Given`."""

    op: str
    args: tuple[Int | float | Real | Given, ...]

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"

    def givens(self) -> Iterator[Given]:
        """The floats of the caller in it."""
        for arg in self.args:
            if isinstance(arg, Given):
                yield arg
            elif isinstance(arg, Real):
                yield from arg.givens()

    def free_symbols(self) -> frozenset[Symbol]:
        parts = (arg.free_symbols() for arg in self.args if isinstance(arg, Expr | Real))
        return frozenset().union(*parts)

    # Arithmetic, for rules that compute with the numbers of a call.

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("truediv")

    def __neg__(self) -> Real:
        return Real("neg", (self,))


Value = Int | float | Truth | Real


def fits_within(number: float, largest: float) -> bool:
    """Whether a dtype whose largest number this is holds the number: what is infinite or not a number, too."""
    return not largest < abs(number) < math.inf


def sum_of(*numbers: float) -> float:
    return math.fsum(numbers)


def fraction(number: float) -> float:
    return math.modf(number)[0]


def whole(number: float) -> float:
    return math.modf(number)[1]


def if_zero(number: int, left: float, right: float) -> float:
    return left if is_zero(number) else right


def if_not_positive(number: int, left: float, right: float) -> float:
    return left if is_not_positive(number) else right


def is_zero(number: int) -> bool:
    return number == 0


def is_not_positive(number: int) -> bool:
    return number <= 0


BRANCHES: Mapping[str, Callable[[int], bool]] = {
    if_zero.__name__: is_zero,
    if_not_positive.__name__: is_not_positive,
}
"""Rows of `IN_FRONT` that choose between their last two arguments: the other may have no value."""


def at_most(left: float, right: float) -> int:
    return int(left <= right)


def less(left: float, right: float) -> int:
    return int(left < right)


def equal(left: float, right: float) -> int:
    return int(left == right)


IN_FRONT: Mapping[str, Callable[..., float]] = {
    **{function.__name__: function for function in (
        math.acos, math.acosh, math.asin, math.asinh, math.atan, math.atan2, math.atanh, math.cbrt, math.copysign,
        math.cosh, math.degrees, math.erf, math.erfc, math.exp2, math.fmod, math.gamma, math.hypot, math.ldexp,
        math.lgamma, math.nextafter, math.radians, math.remainder, math.sinh, math.ulp, sum_of, fraction, whole,
        math.comb, math.factorial, math.gcd, math.isqrt, math.lcm, math.perm, int.bit_count, int.bit_length,
        operator.and_, operator.lshift, operator.or_, operator.rshift, operator.xor,
        math.ceil, math.floor, math.trunc, round, if_zero, if_not_positive,
        at_most, less, equal,
    )},
    "power": operator.pow,
}  # fmt: skip
"""Functions of numbers that transformed code calls in front of the region, which takes the result."""

REAL_OPS: Mapping[str, Callable[..., float]] = {
    "float": float,
    "given": float,
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": abs,
    "min": min,
    "max": max,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log2": math.log2,
    "log10": math.log10,
    "log1p": math.log1p,
    "sin": math.sin,
    "cos": math.cos,
    "tan": math.tan,
    "tanh": math.tanh,
    **IN_FRONT,
}


def all_of(*parts: Truth) -> Truth:
    """The conjunction; a bool where the parts decide it."""
    if any(part is False for part in parts):
        return False
    kept = tuple(dict.fromkeys(part for part in parts if part is not True))
    return True if not kept else kept[0] if len(kept) == 1 else AllOf(kept)


def any_of(*parts: Truth) -> Truth:
    """The disjunction; a bool where the parts decide it."""
    if any(part is True for part in parts):
        return True
    kept = tuple(dict.fromkeys(part for part in parts if part is not False))
    return False if not kept else kept[0] if len(kept) == 1 else AnyOf(kept)


def invert(truth: Truth) -> Truth:
    """The opposite."""
    if isinstance(truth, AllOf):
        return any_of(*map(invert, truth.parts))
    if isinstance(truth, AnyOf):
        return all_of(*map(invert, truth.parts))
    return truth.negate() if isinstance(truth, Relation) else not truth


def truth_as_number(truth: Truth) -> int | Real:
    """1 where it holds, else 0."""
    if isinstance(truth, AllOf | AnyOf):
        found: int | Real = int(isinstance(truth, AllOf))
        # Backwards: a part may have no value where an earlier one decides.
        for part in map(truth_as_number, reversed(truth.parts)):
            found = real_if(part, 0, found) if isinstance(truth, AllOf) else real_if(part, found, 1)
        return found
    if isinstance(truth, bool):
        return int(truth)
    if truth.kind == "ne":
        return Real(if_zero.__name__, (truth.difference, 0, 1))
    return Real((if_zero if truth.kind == "eq" else if_not_positive).__name__, (truth.difference, 1, 0))


def real_if(zero: int | Real, left: int | Real, right: int | Real) -> int | Real:
    """`left` where the first is 0, else `right`."""
    return (left if zero == 0 else right) if isinstance(zero, int) else Real(if_zero.__name__, (zero, left, right))


def known_truth(env: ShapeEnv, truth: Truth) -> bool | None:
    """Whether it holds, without a guard; None where that is open."""
    if not isinstance(truth, AllOf | AnyOf):
        return env.known(truth)
    settling = isinstance(truth, AnyOf)
    answers = [known_truth(env, part) for part in truth.parts]
    if settling in answers:
        return settling
    return None if None in answers else not settling


def has_hints(env: ShapeEnv, value: Value) -> bool:
    """Is its number known in this call?"""
    if isinstance(value, AllOf | AnyOf):
        return all(has_hints(env, part) for part in value.parts)
    if isinstance(value, Real):
        known = all(given.number is not None for given in value.givens())
        return known and all(map(env.has_hint, value.free_symbols()))
    return not isinstance(value, Expr | Relation) or env.has_hint(value)


def hinted_truth(env: ShapeEnv, truth: Truth) -> bool:
    """Whether it holds in this call. Raises KILN2102 where it depends on data."""
    return truth_for(truth, env.hint)


def truth_for(truth: Truth, number: Callable[[Symbol], int]) -> bool:
    """Whether it holds for the numbers that symbols have."""
    if isinstance(truth, AllOf):
        return all(truth_for(part, number) for part in truth.parts)
    if isinstance(truth, AnyOf):
        return any(truth_for(part, number) for part in truth.parts)
    if isinstance(truth, Relation):
        return truth.evaluate({symbol: number(symbol) for symbol in truth.free_symbols()})
    return truth


def decide_truth(env: ShapeEnv, truth: Truth, where: Location | None) -> bool:
    """Whether it holds in this call, with the fewest guards that settle it."""
    if not isinstance(truth, AllOf | AnyOf):
        return env.decide(truth, where)
    known = known_truth(env, truth)
    if known is not None:
        return known
    settling = isinstance(truth, AnyOf)
    open_parts = [part for part in truth.parts if known_truth(env, part) is None]
    for part in open_parts:
        if has_hints(env, part) and hinted_truth(env, part) == settling:
            return decide_truth(env, part, where)
    for part in open_parts:
        if decide_truth(env, part, where) == settling:
            return settling
    return not settling


def assume_truth(env: ShapeEnv, truth: Truth, where: Location | None) -> None:
    """A truth that the compiled code checks; a disjunction is decided instead, since no check has that form."""
    if isinstance(truth, AllOf):
        for part in truth.parts:
            assume_truth(env, part, where)
    elif isinstance(truth, AnyOf):
        env.assume(decide_truth(env, truth, where), where)
    else:
        env.assume(truth, where)


# Real numbers.


def real(op: str, *args: Int | float | Real) -> float | Real:
    """`op` of `args`, computed where they are numbers."""
    if any(isinstance(arg, Expr | Real) for arg in args):
        return Real(op, args)
    return REAL_OPS[op](*args)


def as_integer(value: Value | Given) -> Int | None:
    """The integer that `value` certainly is, as an int or a float; else None."""
    if isinstance(value, Real):
        only = value.args[0]
        return only if value.op == "float" and isinstance(only, int | Expr) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, int | Expr) else None


def keeps_value(env: ShapeEnv, value: Value, where: Location | None) -> bool:
    """Whether an integer, or a float that `as_integer` takes for one, is not rounded as a float; guarded."""
    integer = as_integer(value)
    if not isinstance(value, Real) or not isinstance(integer, Expr) or not env.has_hint(integer):
        return True
    if not -EXACT_FLOATS <= env.hint(integer) <= EXACT_FLOATS:
        return False
    return env.decide(rel_le(integer, EXACT_FLOATS), where) and env.decide(rel_le(-EXACT_FLOATS, integer), where)


EXACT_FLOATS = 1 << 53
"""Up to here each integer is a float."""


def specialise_real(env: ShapeEnv, value: Int | float | Real | Given, where: Location | None) -> float:
    """The number of `value`; guards fix the sizes in it."""
    if isinstance(value, Expr):
        return env.specialise(value, where)
    if isinstance(value, Real):
        if value.op in BRANCHES:
            test, left, right = value.args
            taken = BRANCHES[value.op](int(specialise_real(env, test, where)))
            return specialise_real(env, left if taken else right, where)
        args = [specialise_real(env, arg, where) for arg in value.args]
        return REAL_OPS[value.op](*args)
    if isinstance(value, Given):
        if value.formula is not None:
            return specialise_real(env, value.formula, where)
        value.is_read, value.location = True, value.location or where
        return number_of(value)
    return value


def number_of(given: Given) -> float:
    """Its number in this call. Raises KILN2102 if it depends on data."""
    if given.number is None:
        raise NoHint(value=given, symbols=given.name, unknown=(given,))
    return given.number


def hinted_real(env: ShapeEnv, value: Int | float | Real | Given) -> float:
    """The number of `value` in this call, without a guard."""
    if isinstance(value, Given):
        return number_of(value)
    if isinstance(value, Real):
        if value.op in BRANCHES:
            test, left, right = value.args
            return hinted_real(env, left if BRANCHES[value.op](int(hinted_real(env, test))) else right)
        return REAL_OPS[value.op](*(hinted_real(env, arg) for arg in value.args))
    return env.hint(value) if isinstance(value, Expr) else value


def lower_bound(value: Int | float | Real | Given) -> float:
    """A number that `value` is not below, unless it is NaN."""
    if isinstance(value, Real):
        if value.op == "max":
            return max(map(lower_bound, value.args))
        if value.op == "min":
            return min(map(lower_bound, value.args))
        return 0.0 if value.op in ("abs", "sqrt", "exp") else -math.inf
    return value if isinstance(value, int | float) else -math.inf


def round_to_integer(
    env: ShapeEnv, value: Int | float | Real, rounding: Callable[[float], int], where: Location | None
) -> Int:
    """`rounding(value)`; quotients of integers, and those times 0.75, stay symbolic under `math.floor` and its kin."""
    if (integer := as_integer(value)) is not None:
        return integer
    if isinstance(value, Real) and rounding in (math.floor, math.ceil, math.trunc):
        a, b = as_quotient(value)
        small = not isinstance(a, Expr) or env.unbounded.isdisjoint(a.free_symbols())
        exact = not isinstance(a, Expr) or small or keeps_value(env, Real("float", (a,)), where)
        if a is not None and b is not None and exact and env.known(rel_lt(0, b)):
            if rounding is math.ceil:
                return ceil_div(a, b)
            if rounding is math.floor or env.known(rel_le(0, a)):
                return a // b
    if rounding in ROUNDINGS and isinstance(value, Real) and env.number_in_front is not None:
        made = env.number_in_front(rounding.__name__, value)
        if isinstance(made, Expr):
            return made
    return rounding(specialise_real(env, value, where))


def as_quotient(value: Real) -> tuple[Int | None, Int | None]:
    """Two integers whose quotient a number is: of `a / b`, and of `a` times a float that is a short binary fraction."""
    if value.op == "truediv":
        a, b = map(as_integer, value.args)
        return a, b
    if value.op == "mul":
        for factor, number in (value.args, value.args[::-1]):
            integer = as_integer(factor)
            if integer is not None and isinstance(number, float) and math.isfinite(number):
                numerator, denominator = number.as_integer_ratio()
                if max(abs(numerator), denominator) <= SHORT_FRACTION:
                    return integer * numerator, denominator
    return None, None


SHORT_FRACTION = 1 << 10
"""Sizes times such a number are exact floats."""


ROUNDINGS = (math.floor, math.ceil, math.trunc, round)
