"""The Python object behind `torch.SymInt`, `torch.SymBool` and `torch.SymFloat`.

    torch.empty(to_sym(s0 * 2, env), 4)       C++ sees a SymInt; its arithmetic calls the methods below
    from_sym(tensor.size(0))                  2*s0 again

Torch prescribes names and meanings of the methods (`c10/core/SymNodeImpl.h`). Questions for a truth or a number go
through `ShapeEnv.decide` with the user's line, which the callable `where` gives.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, Protocol

import torch

from kiln.support.location import Location
from kiln.symbolic.comparisons import compare
from kiln.symbolic.contiguity import LAYOUT_QUESTIONS
from kiln.symbolic.env import ShapeEnv
from kiln.symbolic.expr import LARGEST_NUMBER, Expr, Int, sym_max, sym_min, terms_of
from kiln.symbolic.generic_layouts import decide_layout
from kiln.symbolic.relation import Relation, rel_le
from kiln.symbolic.values import (
    AllOf,
    AnyOf,
    Real,
    Truth,
    Value,
    all_of,
    any_of,
    as_integer,
    assume_truth,
    decide_truth,
    has_hints,
    hinted_real,
    hinted_truth,
    invert,
    known_truth,
    real,
    round_to_integer,
    specialise_real,
)

Where = Callable[[], Location | None]
Unary = Callable[["SymNode"], "SymNode"]
Binary = Callable[["SymNode", "SymNode"], "SymNode"]


def nowhere() -> Location | None:
    """The line is unknown."""
    return None


def _number(value: Value) -> Int | float | Real:
    """A decided truth counts as 0 or 1."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Relation | AllOf | AnyOf):
        raise TypeError(f"arithmetic on an undecided truth: {value}")
    return value


def _arithmetic(op: str, on_ints: Callable[[Int, Int], Int]) -> Binary:
    def method(self: SymNode, other: SymNode) -> SymNode:
        a, b = _number(self.value), _number(other.value)
        if isinstance(a, int | Expr) and isinstance(b, int | Expr):
            if op in GROWING:
                require_few_terms(op, a, b)
            elif op in QUOTIENTS:
                require_short(a, b)
            result = on_ints(a, b)
            if op in GROWING:
                require_fit(self.env, result, self.where())
            return self.make(result)
        return self.make(real(op, a, b))

    return method


GROWING = frozenset({"mul", "pow"})
QUOTIENTS = frozenset({"floordiv", "mod"})
MOST_TERMS = 64  # of a product; see `require_few_terms`
LONGEST_TEXT = 4096  # of a dividend and its divisor; see `require_short`


class NumberTooLarge(OverflowError):
    """A product of numbers does not fit 64 bits in this call, or a formula has too many terms."""


def require_few_terms(op: str, a: Int, b: Int) -> None:
    """Raises NumberTooLarge for a product of long sums: in a loop its terms would multiply in each iteration."""
    first = len(terms_of(a))
    terms = first ** min(b, MOST_TERMS) if op == "pow" and isinstance(b, int) else first * len(terms_of(b))
    if terms > MOST_TERMS:
        raise NumberTooLarge(f"a product of {terms} terms")


def require_short(*values: Int) -> None:
    """Raises NumberTooLarge for the quotient of a long formula: in a loop, each turn of `a - a // 2` doubles it."""
    length = sum([len(str(value)) for value in values])
    if length > LONGEST_TEXT:
        raise NumberTooLarge(f"a quotient of {length} characters")


def require_fit(env: ShapeEnv, value: Int, where: Location | None) -> None:
    """Guard that a product of the caller's numbers fits the 64 bits of guards and plans.

    Raises NumberTooLarge where it does not: the numbers become part of the guards instead.
    """
    if not isinstance(value, Expr) or env.unbounded.isdisjoint(value.free_symbols()) or not env.has_hint(value):
        return
    if not -LARGEST_NUMBER <= env.hint(value) <= LARGEST_NUMBER:
        raise NumberTooLarge(f"{value} does not fit 64 bits")
    env.decide(rel_le(value, LARGEST_NUMBER), where)
    env.decide(rel_le(-LARGEST_NUMBER, value), where)


def _on_reals(op: str) -> Binary:
    def method(self: SymNode, other: SymNode) -> SymNode:
        if op != "pow" and isinstance(other.value, Real) and self.env.assume_number is not None:
            self.env.assume_number(operator.ne, other.value, 0)  # torch's own errors are for a divisor of 0
        return self.make(real(op, _number(self.value), _number(other.value)))

    return method


def _comparison(op: str, swapped: bool = False) -> Binary:
    def method(self: SymNode, other: SymNode) -> SymNode:
        a, b = (other.value, self.value) if swapped else (self.value, other.value)
        return self.make(compare(self.env, op, a, b, self.where()))

    return method


def _connective(join: Callable[..., Truth]) -> Binary:
    return lambda self, other: self.make(join(self.value, other.value))


def _rounding(rounding: Callable[[float], int]) -> Unary:
    return lambda self: self.make(round_to_integer(self.env, _number(self.value), rounding, self.where()))


def _layout(name: str) -> Callable[[SymNode, Sequence[IntNode], Sequence[IntNode]], SymNode]:
    def method(self: SymNode, sizes: Sequence[IntNode], strides: Sequence[IntNode]) -> SymNode:
        question = LAYOUT_QUESTIONS[name]
        return self.make(question(self.env, list(map(_int_of_node, sizes)), list(map(_int_of_node, strides))))

    return method


def _power(a: Int, b: Int) -> Int:
    if not isinstance(b, int):
        raise TypeError(f"an exponent that is not a number: {b}")
    return a**b


class IntNode(Protocol):
    """A node of ours, or of torch's own for a constant."""

    def maybe_as_int(self) -> int | None: ...


class SymNode:
    """An integer, truth or real number of one shape environment, as torch expects it."""

    __slots__ = ("env", "value", "where")

    def __init__(self, value: Value, env: ShapeEnv, where: Where = nowhere) -> None:
        self.value = value
        self.env = env
        self.where = where

    def make(self, value: Value) -> SymNode:
        """A node of the same environment."""
        return SymNode(value, self.env, self.where)

    wrap_int = make
    wrap_bool = make

    def wrap_float(self, value: float) -> SymNode:
        """C++ computes with a plain number and a symbolic one; the plain one may be a tag."""
        find = self.env.find_number
        found = find(value) if find is not None else None
        return self.make(found if isinstance(found, Real) else value)

    def clone(self) -> SymNode:
        return self

    # What it is.

    @property
    def pytype(self) -> type:
        return bool if self.is_bool() else float if self.is_float() else int

    @property
    def expr(self) -> Value:
        return self.value

    @property
    def shape_env(self) -> ShapeEnv:
        return self.env

    @property
    def constant(self) -> int | float | bool | None:
        return self.value if isinstance(self.value, int | float) else None

    @property
    def hint(self) -> int | float | bool | None:
        """Its number in this call; None where it depends on data."""
        if not has_hints(self.env, self.value):
            return None
        if isinstance(self.value, Real):
            return hinted_real(self.env, self.value)
        if isinstance(self.value, Relation | AllOf | AnyOf):
            return hinted_truth(self.env, self.value)
        return self.env.hint(self.value) if isinstance(self.value, Expr) else self.value

    def is_int(self) -> bool:
        return isinstance(self.value, Expr) or type(self.value) is int

    def is_float(self) -> bool:
        return isinstance(self.value, float | Real)

    def is_bool(self) -> bool:
        return isinstance(self.value, bool | Relation | AllOf | AnyOf)

    def is_nested_int(self) -> bool:
        return False

    def nested_int(self) -> None:
        return None

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return isinstance(self.value, int | float)

    def maybe_as_int(self) -> int | None:
        return self.value if type(self.value) is int else None

    def has_hint(self) -> bool:
        return has_hints(self.env, self.value)

    def str(self) -> str:  # the name is torch's
        return f"{self.value}"

    __str__ = str
    __repr__ = str
    _graph_repr = str

    # Questions that may add guards.

    def guard_int(self, file: object = "", line: int = 0) -> int:
        value = round_to_integer(self.env, _number(self.value), int, self.where())
        return self.env.specialise(value, self.where())

    def guard_float(self, file: object = "", line: int = 0) -> float:
        value, tag_number = self.value, self.env.tag_number
        if tag_number is not None and (tag := tag_number(value)) is not None:
            return tag
        return float(specialise_real(self.env, value, self.where()))  # type: ignore[arg-type]

    def guard_bool(self, file: object = "", line: int = 0) -> bool:
        truth = self._truth()
        if self.env.in_store and isinstance(truth, Relation) and truth.kind != "le":
            differ = truth.kind == "ne"
            if self.env.known(truth) is None and has_hints(self.env, truth) and hinted_truth(self.env, truth) == differ:
                return differ
        return decide_truth(self.env, truth, self.where())

    def guard_or_false(self, file: object = "", line: int = 0) -> bool:
        return self._guard_or(False)

    def guard_or_true(self, file: object = "", line: int = 0) -> bool:
        return self._guard_or(True)

    guard_size_oblivious = guard_or_false
    int_ = guard_int
    bool_ = guard_bool

    def _guard_or(self, default: bool) -> bool:
        """The answer where the inputs decide it, `default` where data do."""
        truth = self._truth()
        known = known_truth(self.env, truth)
        if known is None:
            if not has_hints(self.env, truth):
                return default
            if isinstance(truth, Relation):  # torch goes on rightly with the default
                if default:
                    return not decide_layout(self.env, truth.negate(), self.where())
                return decide_layout(self.env, truth, self.where())
            return decide_truth(self.env, truth, self.where())
        return known

    def statically_known_true(self, file: object = "", line: int = 0) -> bool:
        return known_truth(self.env, self._truth()) is True

    def expect_true(self, file: object = "", line: int = 0) -> bool:
        assume_truth(self.env, self._truth(), self.where())
        return True

    def _truth(self) -> Truth:
        if isinstance(self.value, bool | Relation | AllOf | AnyOf):
            return self.value
        return compare(self.env, "ne", self.value, 0, self.where())

    # Arithmetic.

    add = _arithmetic("add", lambda a, b: a + b)
    sub = _arithmetic("sub", lambda a, b: a - b)
    mul = _arithmetic("mul", lambda a, b: a * b)
    mod = _arithmetic("mod", lambda a, b: a % b)
    floordiv = _arithmetic("floordiv", lambda a, b: a // b)
    int_floordiv = floordiv
    pow = _arithmetic("pow", _power)
    pow_by_natural = pow
    float_pow = _on_reals("pow")
    float_floordiv = _on_reals("floordiv")
    truediv = _on_reals("truediv")
    int_truediv = truediv
    float_truediv = truediv
    sym_min = _arithmetic("min", sym_min)
    sym_max = _arithmetic("max", sym_max)

    def neg(self) -> SymNode:
        value = _number(self.value)
        return self.make(real("neg", value) if isinstance(value, Real) else -value)

    def pos(self) -> SymNode:
        return self

    def sym_float(self) -> SymNode:
        return self if self.is_float() else self.make(real("float", _number(self.value)))

    def _sym_sqrt(self) -> SymNode:
        return function_of(self, "sqrt")

    floor = _rounding(math.floor)
    ceil = _rounding(math.ceil)
    trunc = _rounding(math.trunc)
    sym_int = trunc

    def round(self, ndigits: int | None = None) -> SymNode:
        if ndigits is None:
            return self.make(round_to_integer(self.env, _number(self.value), round, self.where()))
        return self if self.is_int() else self.make(round(self.guard_float(), ndigits))

    def is_integer(self) -> SymNode:
        known = as_integer(self.value) is not None
        return self.make(known or self.guard_float().is_integer())

    def sym_sum(self, nodes: Iterable[SymNode]) -> SymNode:
        return reduce(SymNode.add, nodes, self.make(0))

    # Truths.

    eq = _comparison("eq")
    ne = _comparison("ne")
    lt = _comparison("lt")
    le = _comparison("le")
    gt = _comparison("lt", swapped=True)
    ge = _comparison("le", swapped=True)
    sym_and = _connective(all_of)
    sym_or = _connective(any_of)
    and_ = sym_and
    or_ = sym_or

    def sym_not(self) -> SymNode:
        return self.make(invert(self._truth()))

    def sym_ite(self, then_node: SymNode, else_node: SymNode) -> SymNode:
        return then_node if self.guard_bool() else else_node

    # Layouts.

    is_contiguous = _layout("is_contiguous")
    is_channels_last_contiguous_2d = _layout("is_channels_last_contiguous_2d")
    is_channels_last_contiguous_3d = _layout("is_channels_last_contiguous_3d")
    is_channels_last_strides_2d = _layout("is_channels_last_strides_2d")
    is_channels_last_strides_3d = _layout("is_channels_last_strides_3d")
    is_non_overlapping_and_dense = _layout("is_non_overlapping_and_dense")


def _int_of_node(node: IntNode) -> Int:
    """The integer that a node holds."""
    value = node.value if isinstance(node, SymNode) else node.maybe_as_int()
    if not isinstance(value, int | Expr):
        raise TypeError(f"not an integer of a shape environment: {node}")
    return value


def to_sym(value: Value, env: ShapeEnv, where: Where = nowhere) -> Any:
    """`value` as torch takes it: a plain number, or a SymInt, SymBool or SymFloat around a node."""
    if isinstance(value, Expr):
        return torch.SymInt(SymNode(value, env, where))
    if isinstance(value, int | float):
        return value
    return (torch.SymFloat if isinstance(value, Real) else torch.SymBool)(SymNode(value, env, where))


def from_sym(value: int | torch.SymInt) -> Int:
    """The expression in a SymInt of ours; a plain int stays."""
    if isinstance(value, int):
        return value
    return _int_of_node(value.node)


def function_of(node: SymNode, name: str) -> SymNode:
    """A function of one number: a row of `REAL_OPS`."""
    return node.make(real(name, _number(node.value)))
