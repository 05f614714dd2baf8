"""Operators of sets and of the keys of dicts, whose result has the order that CPython gives it.

{"a"} | {"b"}         the set's own operator, which copies the left one
{"a"} | d.keys()      that of the view: a set of the left one, to which the keys are added one by one
"""

from __future__ import annotations

import operator

from kiln.capture.interpreter.core import OPERATORS, CaptureState, Operator, Value
from kiln.capture.interpreter.hashing import set_element
from kiln.capture.interpreter.operations import Function2
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.mapping import DictView
from kiln.capture.interpreter.variables.sequence import List, all_items
from kiln.capture.interpreter.variables.sets import Set, tokens_of


def as_set(s: CaptureState, value: Value) -> Set | None:
    if isinstance(value, DictView) and value.what == "keys":
        keys = Set({})
        keys.combine_in_place(s, "update", [value.mapping])
        return keys
    return value if isinstance(value, Set) else None


def common_keys(s: CaptureState, view: Value, other: Value) -> Set:
    """`view & other`, which CPython fills from the shorter one, but from a frozenset whatever its length."""
    if isinstance(other, Set) and other.cls is set and view.length(s) <= other.length(s):
        return other.combine(s, "intersection", [List(all_items(s, view))])
    if isinstance(other, DictView) and other.length(s) > view.length(s):
        view, other = other, view
    made, kept = Set({}), tokens_of(s, view if isinstance(view, Set) else List(all_items(s, view)))
    for item in all_items(s, other):
        if set_element(s, item) in kept:
            made.add(s, item)
    return made


def set_operator(plain: Function2, in_place: Function2, method: str, changing: str) -> None:
    def handler(s: CaptureState, left: Value, right: Value) -> Value | None:
        a, b = as_set(s, left), as_set(s, right)
        if a is None or b is None:
            return None
        if a is left and b is right:
            return a.combine(s, method, [b])
        if method == "intersection":
            return common_keys(s, *((left, right) if a is not left else (right, left)))
        made = a.as_set(s) if a is left else a
        made.combine_in_place(s, changing, [right if b is right else List(all_items(s, right))])
        return made

    def change(s: CaptureState, left: Value, right: Value) -> Value | None:
        assert isinstance(left, Set)
        if left.cls is not set or not isinstance(right, Set):
            return handler(s, left, right)
        left.combine_in_place(s, changing, [right])
        return left

    OPERATORS[plain, Set] = OPERATORS[plain, DictView] = handler
    OPERATORS[in_place, Set] = change


set_operator(operator.or_, operator.ior, "union", "update")
set_operator(operator.and_, operator.iand, "intersection", "intersection_update")
set_operator(operator.sub, operator.isub, "difference", "difference_update")
set_operator(operator.xor, operator.ixor, "symmetric_difference", "symmetric_difference_update")


def comparison(function: Function2) -> Operator:
    def compared(s: CaptureState, left: Value, right: Value) -> Value | None:
        a, b = as_set(s, left), as_set(s, right)
        return None if a is None or b is None else Constant(function(a.items(s).keys(), b.items(s).keys()))

    return compared


for _function in (operator.le, operator.lt, operator.ge, operator.gt):
    OPERATORS[_function, Set] = OPERATORS[_function, DictView] = comparison(_function)


def operator_of_sets(name: str) -> Operator:
    """By the name of its method."""
    return OPERATORS[getattr(operator, name), Set]
