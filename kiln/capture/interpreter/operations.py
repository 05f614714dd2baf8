"""Operators: computed on constants, recorded on tensors, dispatched on containers and user classes.

binary(s, operator.add, Constant(1), Constant(2))     Constant(3), operands guarded
binary(s, operator.add, Tensor, Constant(1))          a recorded call of operator.add
binary(s, operator.add, List, List)                   a row of OPERATORS
binary(s, operator.add, Object, ...)                  its `__add__`, then the other's `__radd__`
"""

from __future__ import annotations

import enum
import operator
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from kiln.capture.interpreter.alternatives import operand
from kiln.capture.interpreter.breaks import NotConstant
from kiln.capture.interpreter.computed_numbers import computed_number, with_constant
from kiln.capture.interpreter.core import MISSING, OPERATORS, CaptureState, Operator, Token, Value
from kiln.capture.interpreter.data_values import assume, assume_integer, is_needed, likely_truth
from kiln.capture.interpreter.hashing import set_element, store_entries
from kiln.capture.interpreter.native_calls import natives
from kiln.capture.interpreter.number_identity import same_number
from kiln.capture.interpreter.operands import are_of_subclasses, is_unknown, refuses
from kiln.capture.interpreter.speculation import (
    Number,
    are_exact_floats,
    comparison_in_region,
    known_truth,
    number_in_front,
    number_truth,
)
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.builtin import Builtin
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.deferred_text import extend_list, joined
from kiln.capture.interpreter.variables.exception import GROUPS, fields_of, native_class
from kiln.capture.interpreter.variables.hashed_key import guard_identity
from kiln.capture.interpreter.variables.mapping import Dict, DictView, fresh, has_key
from kiln.capture.interpreter.variables.object import ALIASES, Object, guard_protocol
from kiln.capture.interpreter.variables.sequence import List, Sequence, Tuple, all_items, held_items, one_by_one
from kiln.capture.interpreter.variables.sets import Set, holds_constant
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch, record, replaced, settled, tensor_truth
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import HEAP_TYPE
from kiln.symbolic.env import NoHint
from kiln.symbolic.expr import Expr
from kiln.symbolic.node import NumberTooLarge, SymNode
from kiln.symbolic.values import as_integer, lower_bound

Function2 = Callable[[Any, Any], Any]

NAMES = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"]
SPECIAL: dict[Function2, tuple[str, ...]] = {}
"""Operator -> the special methods of the left operand, then that of the right one."""
COMPARISONS = (operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge)
SIGNS: dict[Function2, str] = dict(zip(COMPARISONS, ("<", "<=", "==", "!=", ">", ">="), strict=True))
"""How Python's error messages name an operator."""
PLAIN: dict[Function2, Function2] = {}
"""In-place operator -> operator that makes a new value."""
_SIGNS = ("+", "-", "*", "/", "//", "%", "** or pow()", "@", "&", "|", "^", "<<", ">>")
for _name, _sign in zip(NAMES, _SIGNS, strict=True):
    _plain = getattr(operator, _name + "_" if _name in ("and", "or") else _name)
    _in_place = getattr(operator, f"i{_name}")
    SPECIAL[_plain], SIGNS[_plain] = (f"__{_name}__", f"__r{_name}__"), _sign
    SPECIAL[_in_place] = (f"__i{_name}__", f"__{_name}__", f"__r{_name}__")
    SIGNS[_in_place] = "**=" if _name == "pow" else f"{_sign}="
    PLAIN[_in_place] = _plain
SPECIAL[divmod], SIGNS[divmod] = ("__divmod__", "__rdivmod__"), "divmod()"
REFLECTED = {"lt": "gt", "le": "ge", "eq": "eq", "ne": "ne", "gt": "lt", "ge": "le"}
for _name, _other in REFLECTED.items():
    SPECIAL[getattr(operator, _name)] = (f"__{_name}__", f"__{_other}__")
EQUALITY = (operator.eq, operator.ne)
DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)
ON_SYMBOLS = frozenset((operator.add, operator.sub, operator.mul, *DIVISIONS, *COMPARISONS))
"""Operators whose result on symbolic numbers is symbolic."""
ROWS_IN_FRONT: dict[Function2, str] = {
    **{getattr(operator, name): name for name in ("and_", "or_", "xor", "lshift", "rshift")},
    operator.pow: "power",
}
"""Operators on integers -> rows of `IN_FRONT`."""
UNARY = {operator.neg: "__neg__", operator.pos: "__pos__", operator.invert: "__invert__", operator.index: "__index__"}
SUM_OF_SIZES = type(operator.add((), torch.Size()))
"""torch.Size since torch 2.9."""
SEQUENCES = (list, tuple, str, bytes, bytearray, deque, torch.Size)
ERRORS = (TypeError, ValueError, ZeroDivisionError, OverflowError, IndexError, KeyError, AttributeError)


def fold(s: CaptureState, function: Callable[..., object], *args: object) -> Value:
    """Compute on constants."""
    try:
        result = function(*args)
    except Exception as error:
        raise s.error(type(error), *error.args) from None
    return fresh(s, result)


def special_of_program(s: CaptureState, value: Value, *names: str) -> bool:
    """Whether the class of an enum member has one of these special methods from the program; guarded."""
    if not isinstance(value.real(), enum.Enum):
        return False
    for name in names:
        guard_protocol(s, value, name)
    found = [s.classes.lookup(value.python_type(), name) for name in names]
    return any(
        pair is not None and type(pair[1]) is types.FunctionType and pair[1].__module__ != enum.__name__
        for pair in found
    )


def folds(s: CaptureState, function: Function2, left: Value, right: Value) -> bool:
    """Whether an operator is computed on constants: none of the program's code would run."""
    if not (left.is_constant and right.is_constant):
        return False
    names = SPECIAL[function]
    return not (special_of_program(s, left, *names[:-1]) or special_of_program(s, right, names[-1]))


def binary(s: CaptureState, function: Function2, left: Value, right: Value) -> Value:
    if folds(s, function, left, right):
        return fold(s, function, left.constant(s), right.constant(s))
    if left.is_torch or right.is_torch:
        return torch_binary(s, function, left, right)
    return by_kind(s, function, left, right)


def torch_binary(s: CaptureState, function: Function2, left: Value, right: Value) -> Value:
    """Recorded if a tensor is involved; symbolic numbers are computed by their own operators."""
    left, right = operand(s, left, right), operand(s, right, left)
    if isinstance(left, Tensor) or isinstance(right, Tensor):
        if issubclass(left.python_type(), str | bytes):  # `"%s" % tensor`
            text = joined(s, PLAIN.get(function, function), left, right)
            return text if text is not None else natives(s).call(PLAIN.get(function, function), [left, right], {})
        names = SPECIAL[function]
        replacing = any(replaced(s, left, name) for name in names[:-1]) or replaced(s, right, names[-1])
        if replacing or are_of_subclasses(left, right) or is_unknown(s, left) or is_unknown(s, right):
            return dispatch(s, function, left, right)
        # `0 += tensor` makes a new tensor: only tensors are changed in place.
        return record(s, function if isinstance(left, Tensor) else PLAIN.get(function, function), [left, right], {})
    if left.takes_symbols or right.takes_symbols:
        return by_kind(s, function, left, right)
    left, right = counted(function, left, right), counted(function, right, left)
    if not (is_number(left) and is_number(right) and is_symbolic(s, function, left, right)):
        if (made := integer_in_front(s, PLAIN.get(function, function), left, right)) is not None:
            return made
        if (text := joined(s, PLAIN.get(function, function), left, right)) is not None:
            return text
        return binary(s, function, settled(s, left), settled(s, right))
    plain = PLAIN.get(function, function)
    if plain is operator.pow and not is_integer_power(left, right):
        return power(s, left, right)
    if plain in DIVISIONS:
        if right.is_constant and right.real() == 0:  # what Python says depends on the type of the dividend only
            return fold(s, function, left.python_type()(1), right.constant(s))
        if isinstance(right, Symbolic) and not is_nonzero(s, right):
            return binary(s, function, settled(s, left), settled(s, right))
    if plain is operator.floordiv and float in (left.python_type(), right.python_type()):
        return real_binary(s, "float_floordiv", left, right)
    if plain in COMPARISONS and (compared := floats_in_front(s, plain, left, right)) is not None:
        return compared
    try:
        if plain in COMPARISONS and {left.python_type(), right.python_type()} == {int, float}:
            return exact_comparison(s, plain, left, right)
        return s.wrap(function(left.torch_arg(s), right.torch_arg(s)), None)
    except NoHint:
        if plain not in COMPARISONS or not are_exact_floats(left, right):
            raise
        test = comparison_in_region(s, plain, left, right)
        known = likely_truth(s, test)
        if known is None and is_needed(s):
            raise
        return from_torch(s, test).get_attr(s, "item").call(s, [], {}) if known is None else Constant(known)
    except NumberTooLarge:
        return binary(s, function, settled(s, left), settled(s, right))


def counted(function: Function2, value: Value, other: Value) -> Value:
    """A truth value from a tensor as the number that it is in sums, beside numbers, and compared with another."""
    if not isinstance(value, Symbolic) or value.number is None:
        return value
    plain = PLAIN.get(function, function)
    is_truth = isinstance(other, Symbolic) and other.number is not None
    counts = is_truth if plain in EQUALITY else plain in ON_SYMBOLS
    return value.number if counts or other.python_type() is not bool else value


def exact_comparison(s: CaptureState, function: Function2, left: Value, right: Value) -> Value:
    """Of an integer and a float, as Python compares them: torch's operators round the integer first."""
    node: SymNode = (left if isinstance(left, Symbolic) else cast(Symbolic, right)).node.node
    ours, theirs = [node.make(number_of(s, value)) for value in (left, right)]
    return s.wrap(torch.SymBool(getattr(ours, function.__name__)(theirs)), None)


def number_of(s: CaptureState, value: Value) -> Number:
    """Of a symbolic number or a plain one, guarded."""
    return cast(Number, value.node.node.value if isinstance(value, Symbolic) else value.constant(s))


def integer_in_front(s: CaptureState, plain: Function2, left: Value, right: Value) -> Value | None:
    """An operation on integers from outside that has no symbolic form, such as a shift."""
    row = ROWS_IN_FRONT.get(plain)
    if row is None or left.python_type() is not int or right.python_type() is not int:
        return None
    numbers = [value.node if isinstance(value, Symbolic) else value.constant(s) for value in (left, right)]
    made = with_constant(row, *numbers)
    if made is None:
        made = computed_number(s, row, number_of(s, left), number_of(s, right))
    return None if made is None else s.wrap(made, None)


def is_symbolic(s: CaptureState, function: Function2, left: Value, right: Value) -> bool:
    """Whether the result is symbolic; otherwise the values of the numbers are guarded."""
    plain = PLAIN.get(function, function)
    kinds = {left.python_type(), right.python_type()}
    if plain is operator.pow:
        return bool not in kinds and is_real_power(s, left, right)
    if plain in (operator.and_, operator.or_):
        return kinds == {bool}
    return plain in ON_SYMBOLS and (bool not in kinds or (plain in EQUALITY and kinds == {bool}))


def is_real_power(s: CaptureState, left: Value, right: Value) -> bool:
    """Whether a power is a number of a known type: a negative base may give a complex one, zero may raise."""
    if not isinstance(left, Symbolic):
        return left.real() > 0 and float in (left.python_type(), right.python_type())
    if not right.is_constant:
        return left.python_type() is float and is_positive(s, left)
    exponent = right.real()
    if type(exponent) is int:
        return exponent >= 0 or is_nonzero(s, left)
    if left.python_type() is float:
        return is_positive(s, left)
    return bool(left.node >= 0 if exponent >= 0 else left.node > 0)


def power(s: CaptureState, left: Value, right: Value) -> Value:
    """A power with a float result (torch's own operator requires a non-negative base)."""
    return real_binary(s, "float_pow", left, right)


def real_binary(s: CaptureState, name: str, left: Value, right: Value) -> Value:
    """A method of symbolic numbers with a float result."""
    a: Any = left.torch_arg(s)
    b: Any = right.torch_arg(s)
    node = a.node if isinstance(left, Symbolic) else b.node.wrap_float(a)
    made = getattr(node, name)(b.node if isinstance(right, Symbolic) else node.wrap_float(b))
    return s.wrap(torch.SymFloat(made), None)


def is_nonzero(s: CaptureState, divisor: Symbolic) -> bool:
    """Whether the divisor is not zero in this call; the code compiled now is for such divisors only."""
    known = assumed_comparison(s, operator.ne, divisor, 0)
    return bool(divisor.node != 0) if known is None else known


def assumed_comparison(s: CaptureState, function: Function2, value: Symbolic, number: float) -> bool | None:
    """Whether a float has a property that it nearly always has; the call checks it. None: guards hold it.

    What tensors decide is checked by the region.
    """
    constant, node = Constant(number), value.node.node
    known = float_comparison(s, function, value, constant)
    if known is not None or node.has_hint():
        return known
    if isinstance(node.value, Expr):
        truth = function(value.node, int(number))
        return truth if isinstance(truth, bool) else assume_integer(s, truth.node.value)
    if value.python_type() is not float:
        return None
    if lower_bound(value.node.node.value) > 0:
        return True
    truth = comparison_in_region(s, function, value, constant)
    known = known_truth(s, truth)
    if known is None and s.policy.assumes:
        assume(s, truth)
        return True
    return known


def is_integer_power(left: Value, right: Value) -> bool:
    return left.python_type() is int and right.python_type() is int and (not right.is_constant or right.real() >= 0)


def is_positive(s: CaptureState, base: Symbolic) -> bool:
    """Whether the base of a power is positive in this call; the code compiled now is for such bases only."""
    return bool(assumed_comparison(s, operator.gt, base, 0))


def float_comparison(s: CaptureState, function: Function2, left: Value, right: Value) -> bool | None:
    """A comparison with a float from outside, on which the capture speculates. None: guards hold it, or data decide."""
    values = numbers_with_float(s, left, right)
    return None if values is None else number_truth(s, function, *values)


def numbers_with_float(s: CaptureState, left: Value, right: Value) -> list[Number] | None:
    """Both numbers, if one of them is a float and none is a truth."""
    values = [number_of(s, value) for value in (left, right)]
    if all(as_integer(value) is not None for value in values) or bool in (left.python_type(), right.python_type()):
        return None
    return values


ORDERED: dict[Function2, tuple[str, bool, bool]] = {
    operator.lt: ("less", False, True),
    operator.le: ("at_most", False, True),
    operator.gt: ("less", True, True),
    operator.ge: ("at_most", True, True),
    operator.eq: ("equal", False, True),
    operator.ne: ("equal", False, False),
}
"""Comparison -> a row of `IN_FRONT`, whether it takes the operands in the other order, and what it then is."""


def floats_in_front(s: CaptureState, plain: Function2, left: Value, right: Value) -> Value | None:
    """A comparison with a float from outside, computed in front of the region. None: guards hold it, or data decide."""
    if (values := numbers_with_float(s, left, right)) is None:
        return None
    row, swapped, positive = ORDERED[plain]
    made = number_in_front(s, row, *(reversed(values) if swapped else values))
    return None if made is None else s.wrap(made == 1 if positive else made == 0, None)


def is_number(value: Value) -> bool:
    return isinstance(value, Symbolic) or (value.is_constant and value.python_type() in (int, float, bool))


def by_kind(s: CaptureState, function: Function2, left: Value, right: Value) -> Value:
    """By the handler for the left operand's kind, or by special methods if there is none or it does not apply."""
    handler = OPERATORS.get((function, type(left)))
    result: Value | None = joined(s, PLAIN.get(function, function), left, right)
    if result is None and handler is not None:
        result = handler(s, left, right)
    return dispatch(s, function, left, right) if result is None else result


def dispatch(s: CaptureState, function: Function2, left: Value, right: Value) -> Value:
    """By special methods, those of the left operand first."""
    names = SPECIAL[function]
    attempts = [(left, name, right) for name in names[:-1]]
    reflected = (right, names[-1], left)
    is_mixed = left.is_constant and not right.is_constant  # scalars of NumPy, of which a constant has no operators here
    if overrides(s, function, left, right):
        attempts.insert(-1, reflected)
    elif function in COMPARISONS or left.python_type() is not right.python_type() or is_mixed:
        attempts.append(reflected)
    for owner, name, other in attempts:
        found = s.classes.lookup(owner.python_type(), name)
        opposite = name == "__ne__" and found is not None and found[0] is object
        if opposite:  # object's own `__ne__` asks `__eq__`
            name, found = "__eq__", s.classes.lookup(owner.python_type(), "__eq__")
        if found is None or found[0] is object or is_of_sequence(function, owner.python_type(), found[0]):
            continue
        is_number = owner.is_constant and isinstance(owner.real(), (int, float, complex))
        if (is_number and not special_of_program(s, owner, name)) or (
            isinstance(owner, Tensor) and refuses(s, name, other)
        ):
            continue  # numbers and tensors return NotImplemented for other types
        result = s.call_special(owner, name, [other], {})
        if not s.is_none(result, NotImplemented):
            return Constant(not result.truth(s)) if opposite else result
    if function in (operator.eq, operator.ne):
        return Constant(same(s, left, right) is (function is operator.eq))
    if (combined := by_sequence(s, function, left, right)) is not None:
        return combined
    kinds = f"'{left.type_name()}' and '{right.type_name()}'"
    sign = SIGNS[function]
    if function in COMPARISONS:
        raise s.error(TypeError, f"'{sign}' not supported between instances of {kinds}")
    raise s.error(TypeError, f"unsupported operand type(s) for {sign}: {kinds}")


def is_of_sequence(function: Function2, cls: type, owner: type) -> bool:
    """Whether the method that `cls` has from `owner` concatenates or repeats: Python tries methods for numbers first.

    Classes that derive from sequences have `+=` as a method for numbers.
    """
    if function is operator.iadd and cls is not owner:
        return False
    return owner in SEQUENCES and PLAIN.get(function, function) in (operator.add, operator.mul)


def by_sequence(s: CaptureState, function: Function2, left: Value, right: Value) -> Value | None:
    """`left` extended by `right` or repeated, or `right` repeated."""
    plain, in_place = PLAIN.get(function, function), function in PLAIN
    pairs = [(left, right)]
    if plain is operator.mul and not (in_place and has_items(left)):
        pairs.append((right, left))
    for sequence, other in pairs:
        cls = sequence.python_type()
        names = [name for name in SPECIAL[function][:-1] if s.classes.lookup(cls, name) is not None]
        method = s.classes.lookup(cls, names[-1]) if names else None
        if method is None or not is_of_sequence(function, cls, method[0]):
            continue
        if plain is operator.add and cls is torch.Size:
            raise s.error(TypeError, f"can only concatenate tuple (not {other.type_name()}) to torch.Size")
        if plain is operator.mul and s.classes.lookup(other.python_type(), "__index__") is None:
            raise s.error(TypeError, f"can't multiply sequence by non-int of type '{other.type_name()}'")
        return s.call_special(sequence, names[0] if sequence is left else names[-1], [other], {})
    return None


def has_items(value: Value) -> bool:
    """Whether its class fills C's table of methods of sequences, as classes written in Python do."""
    cls = value.python_type()
    return bool(cls.__flags__ & HEAP_TYPE) or hasattr(cls, "__len__") or hasattr(cls, "__contains__")


def overrides(s: CaptureState, function: Function2, left: Value, right: Value) -> bool:
    """Whether the right operand comes first: its class derives from the left one's and overrides the method."""
    mine, other = left.python_type(), right.python_type()
    if mine is other or mine not in other.__mro__:
        return False
    name = SPECIAL[function][-1]
    return function in COMPARISONS or s.classes.lookup(mine, name) != s.classes.lookup(other, name)


def compare(s: CaptureState, function: Function2, left: Value, right: Value) -> Value:
    if folds(s, function, left, right):
        return fold(s, function, left.constant(s), right.constant(s))
    if left.is_torch or right.is_torch:
        if (
            not isinstance(left, Tensor)
            and not isinstance(right, Tensor)
            and not (is_number(left) and is_number(right))
        ):
            return compare(s, function, settled(s, left), settled(s, right))
        return torch_binary(s, function, left, right)
    if function in (operator.eq, operator.ne):
        known = equal_containers(s, left, right)
        if known is not None:
            return Constant(known is (function is operator.eq))
    return by_kind(s, function, left, right)


def equal(s: CaptureState, left: Value, right: Value) -> bool:
    """`left == right` as a Python truth value; identical values are equal, as in containers."""
    return left is right or compare(s, operator.eq, left, right).truth(s)


def equal_containers(s: CaptureState, left: Value, right: Value) -> bool | None:
    """Equality of built-in containers and classes; None for other values."""
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        if issubclass(left.cls, list) != issubclass(right.cls, list):
            return False
        a, b = left.items(s), right.items(s)
        return len(a) == len(b) and all(equal(s, x, y) for x, y in zip(a, b, strict=True))
    if isinstance(left, Dict) and isinstance(right, Dict):
        c, d = left.items(s), right.items(s)
        if len(c) != len(d) or not all(key in d and equal(s, value, d[key][1]) for key, (_, value) in c.items()):
            return False  # values are compared up to the first missing key, and may raise
        ordered = issubclass(left.cls, OrderedDict) and issubclass(right.cls, OrderedDict)
        return not ordered or list(c) == list(d)
    if isinstance(left, Set) and isinstance(right, Set):
        return left.items(s).keys() == right.items(s).keys()
    if compares_classes(s, left) or compares_classes(s, right):
        return None
    if isinstance(left, Class) and isinstance(right, Class):
        return left.constant(s) is right.constant(s)
    if isinstance(left, Builtin) or isinstance(right, Builtin):
        return equal_builtins(s, left, right)
    plain = (Sequence, Dict, Set, Class)
    if isinstance(left, plain) and isinstance(right, plain):
        return False  # of different kinds
    if (left.is_constant and isinstance(right, plain)) or (right.is_constant and isinstance(left, plain)):
        left.constant(s) if left.is_constant else right.constant(s)
        return False
    return None


def compares_classes(s: CaptureState, value: Value) -> bool:
    """Whether it is a class whose metaclass has an `__eq__` of its own."""
    found = s.classes.lookup(value.python_type(), "__eq__") if isinstance(value, Class) else None
    return found is not None and found[0] not in (type, object)


def equal_builtins(s: CaptureState, left: Value, right: Value) -> bool | None:
    """Equality with a function written in C; None if the program's own `__eq__` is asked."""
    if isinstance(left, Builtin) and isinstance(right, Builtin):
        return bool(left.constant(s) == right.constant(s))
    builtin, other = (left, right) if isinstance(left, Builtin) else (right, left)
    if isinstance(other, BoundMethod) and isinstance(other.function, Builtin):
        plain: Any = other.function.constant(s)
        own = other.self_.real()  # guarded where it was read
        return own is not MISSING and bool(builtin.real() == plain.__get__(own))
    return None if isinstance(other, Object) else False


def same(s: CaptureState, left: Value, right: Value) -> bool:
    """`left is right`."""
    if left is right:
        return True
    if left.is_constant and right.is_constant:
        if right.real() is None and left.real() is not None and left.source is not None:
            s.guard_type(left)
            return False
        return left.constant(s) is right.constant(s)
    symbolic = isinstance(left, Symbolic) or isinstance(right, Symbolic)
    if symbolic and (known := same_number(s, left, right)) is not None:
        return known
    if left.is_constant or right.is_constant:
        constant, other = (left, right) if left.is_constant else (right, left)
        constant.constant(s)
        s.guard_type(other)
        return False
    a, b = left.real(), right.real()
    if a is not MISSING and b is not MISSING and a is b:
        for value in (left, right):
            if value.source is not None and not isinstance(value, (Tensor, Class)):
                s.guard(value.source, GuardKind.IS, s.reference(a))
        return True
    if isinstance(left, Class) and isinstance(right, Class):
        return left.constant(s) is right.constant(s)
    s.guard_type(left)
    s.guard_type(right)
    if left.python_type() is right.python_type() is tuple and not (left.truth(s) or right.truth(s)):
        return True
    s.identities.distinct.append((left, right))
    return False


def truth_value(s: CaptureState, value: Value, statement: str) -> bool:
    """`bool(value)` for a branch."""
    if isinstance(value, Tensor):
        return tensor_truth(s, value, statement)
    return value.truth(s)


def unary(s: CaptureState, function: Callable[[Any], object], value: Value) -> Value:
    if value.is_constant and not special_of_program(s, value, UNARY[function]):
        return fold(s, function, value.constant(s))
    if isinstance(value, Symbolic):
        if function is operator.pos or (function is operator.neg and value.python_type() is not bool):
            return s.wrap(function(value.node), None)
        return unary(s, function, settled(s, value))
    if isinstance(value, Tensor) and not replaced(s, value, UNARY[function]):
        return record(s, function, [value], {})
    return s.call_special(value, UNARY[function], [], {})


def contains(s: CaptureState, container: Value, item: Value) -> bool:
    """`item in container`."""
    native = container.native if isinstance(container, Object) and container.native is not None else container
    if isinstance(container, Object):
        found = s.classes.lookup(container.cls, "__contains__")
        if found is not None and hasattr(found[1], "__code__"):
            return s.call_special(container, "__contains__", [item], {}).truth(s)
    if isinstance(native, DictView) and native.what == "keys":
        native = native.mapping
    if isinstance(native, Dict):
        return has_key(s, native, item)
    if isinstance(native, Set):
        held = holds_constant(s, native, item)
        return searched(s, item) in native.items(s) if held is None else held
    if native.is_constant and item.is_constant and not special_of_program(s, native, "__contains__"):
        return bool(fold(s, operator.contains, native.constant(s), item.constant(s)).constant(s))
    if native.is_constant and native.python_type() is frozenset:
        guard_identity(s, item)  # the items have no paths with which its own could be compared
        return set_element(s, item) in native.constant(s)
    if isinstance(native, Tensor):
        if s.function_modes or not (isinstance(item, Tensor) or is_number(item)):
            return record(s, "__contains__", [native, item], {}).truth(s)
        return record(s, "any", [record(s, operator.eq, [native, item], {})], {}).truth(s)
    is_held = isinstance(native, (Sequence, DictView))
    if is_held or s.classes.lookup(native.python_type(), "__contains__") is None:
        return any(equal(s, other, item) for other in (held_items if is_held else one_by_one)(s, native))
    return s.call_special(native, "__contains__", [item], {}).truth(s)


def searched(s: CaptureState, item: Value) -> Token:
    """The token of what is looked for in a set: a set stands for the frozenset with its items."""
    native = item.native if isinstance(item, Object) and item.native is not None else item
    if not isinstance(native, Set) or not issubclass(native.cls, set):
        return set_element(s, item)
    is_hashed = s.classes.lookup(item.python_type(), "__hash__") not in (None, (set, None))
    return set_element(s, item) if is_hashed else Set(dict(native.items(s)), frozenset).key(s)


CONVERTERS: dict[str, Callable[[object], object]] = {"s": str, "r": repr, "a": ascii}
"""By the letter behind the `!` of an f-string."""


def format_value(s: CaptureState, value: Value, conversion: str, spec: str) -> Value:
    """One field of an f-string."""
    printed = conversion in ("r", "a")
    own = s.classes.lookup(value.python_type(), "__format__")
    formats = not conversion and (spec != "" or (own is not None and own[0] is not object))
    method = "__repr__" if printed else "__format__" if formats else "__str__"
    custom = s.classes.lookup(value.python_type(), method)
    if method == "__str__" and custom is not None and custom[0] is object:
        custom, method = s.classes.lookup(value.python_type(), "__repr__"), "__repr__"
    if isinstance(value, Object | Class) and custom is not None and hasattr(custom[1], "__code__"):
        made = s.call_special(value, method, [s.const(spec)] if method == "__format__" else [], {})
        if not issubclass(made.python_type(), str):
            end = "must return a str, not {}" if method == "__format__" else "returned non-string (type {})"
            raise s.error(TypeError, f"{method} {end.format(made.type_name())}")
        if not made.is_constant and (method == "__format__" or not (spec or conversion == "a")):
            return made
        text = str(made.constant(s))
        text = text if conversion != "a" else text.encode("ascii", "backslashreplace").decode()
        return Constant(text if method == "__format__" else format(text, spec))
    try:
        plain = printable(s, value)
    except NotConstant:
        converted = natives(s).call(CONVERTERS[conversion], [value], {}) if conversion else value
        return Constant(str(natives(s).call(format, [converted, s.const(spec)], {}).constant(s)))
    try:
        return Constant(format(CONVERTERS[conversion](plain) if conversion else plain, spec))
    except ERRORS as error:
        raise s.error(type(error), *error.args) from None


def printable(s: CaptureState, value: Value) -> object:
    """A real object with the text of `value`: of an exception, one of its class with its arguments and fields."""
    if isinstance(value, Sequence) and value.cls in (list, tuple):
        return value.cls(printable(s, item) for item in value.items(s))
    if not isinstance(value, Object) or not issubclass(value.cls, BaseException):
        return value.constant(s)
    native = native_class(value.cls)
    items = all_items(s, value.get_attr(s, "args"))
    made: BaseException = native.__new__(value.cls, *(printable(s, item) for item in items))
    for name in () if native in GROUPS else fields_of(native):
        held = value.attrs.get(name) if value.original is MISSING else known_field(s, value, name)
        if not s.is_none(held):
            setattr(made, name, printable(s, cast(Value, held)))
    return made


def known_field(s: CaptureState, value: Object, name: str) -> Value | None:
    """A field of an exception from outside."""
    return value.get_attr(s, name) if hasattr(value.original, name) or name in value.attrs else None


def exception_matches(s: CaptureState, error: Value, kinds: Value) -> bool:
    """Whether `except kinds` catches `error`."""
    options = all_items(s, kinds) if isinstance(kinds, Sequence) else [kinds]
    if not all(isinstance(kind, Class) and issubclass(kind.cls, BaseException) for kind in options):
        raise s.error(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    return any(issubclass(error.python_type(), kind.constant(s)) for kind in options)


O = TypeVar("O", bound=Operator)


def _row(function: object, *kinds: type[Value]) -> Callable[[O], O]:
    def register(handler: O) -> O:
        for kind in kinds:
            OPERATORS[function, kind] = handler
        return handler

    return register


@_row(operator.or_, Class)
def union_of_classes(s: CaptureState, left: Value, right: Value) -> Value | None:
    alias = isinstance(right, Object) and right.cls in ALIASES
    if not isinstance(right, Class) and not right.is_constant and not alias:
        return None
    try:
        return s.wrap(left.constant(s) | right.constant(s), None)
    except TypeError as error:
        raise s.error(TypeError, *error.args) from None


@_row(operator.add, List, Tuple)
def concatenate(s: CaptureState, left: Value, right: Value) -> Value | None:
    assert isinstance(left, Sequence)
    if not isinstance(right, Sequence) or isinstance(left, List) != isinstance(right, List):
        return None
    if left.cls is right.cls and (longer := left.followed_by(s, right)) is not None:
        return longer
    if left.cls is right.cls is tuple and not (left.items(s) and right.items(s)):
        return right if not left.items(s) else left
    items = [*left.items(s), *right.items(s)]
    if left.cls is torch.Size or (left.cls is tuple and right.cls is torch.Size and SUM_OF_SIZES is torch.Size):
        return size_of(s, items)
    return left.sibling(items)


def size_of(s: CaptureState, items: list[Value]) -> Value:
    for number, item in enumerate(items):
        if item.python_type() is not int:
            text = f"torch.Size() takes an iterable of 'int' (item {number} is '{item.type_name()}')"
            raise s.error(TypeError, text)
    return Tuple(items, torch.Size)


@_row(operator.mul, List, Tuple)
@_row(operator.imul, Tuple)
def repeat(s: CaptureState, left: Value, right: Value) -> Value | None:
    assert isinstance(left, Sequence)
    if not right.is_constant or not hasattr(right.python_type(), "__index__"):
        return None
    if left.cls is tuple and right.python_type() is int and right.constant(s) == 1:
        return left
    try:
        return left.sibling(left.items(s) * right.constant(s))
    except TypeError as error:
        raise s.error(TypeError, *error.args) from None


@_row(operator.mul, Constant)
def repeat_reflected(s: CaptureState, left: Value, right: Value) -> Value | None:
    return repeat(s, right, left) if isinstance(right, Sequence) else None


@_row(operator.iadd, List)
def extend_in_place(s: CaptureState, left: Value, right: Value) -> Value | None:
    assert isinstance(left, List)
    reflected = s.classes.lookup(right.python_type(), "__radd__")
    if left.cls is list and reflected is not None and reflected[0] is not torch.Size:
        return None
    extend_list(s, left, right)
    return left


@_row(operator.iadd, Tuple)
def concatenate_in_place(s: CaptureState, left: Value, right: Value) -> Value | None:
    return concatenate(s, left, right)


@_row(operator.mod, Constant)
def format_percent(s: CaptureState, left: Value, right: Value) -> Value | None:
    if not isinstance(left.real(), str):
        return None
    try:
        return fold(s, operator.mod, left.constant(s), right.constant(s))
    except NotConstant:
        return natives(s).call(operator.mod, [left, right], {})


@_row(operator.or_, Dict)
def merged(s: CaptureState, left: Value, right: Value) -> Value | None:
    assert isinstance(left, Dict)
    if not isinstance(right, Dict):
        return None
    special = (OrderedDict, defaultdict)
    leading = right if right.cls in special and left.cls not in special else left
    made = Dict(store_entries(dict(left.items(s)), right.items(s)), leading.cls if leading.cls in special else dict)
    made.factory = leading.factory
    return made


@_row(operator.ior, Dict)
def merge_in_place(s: CaptureState, left: Value, right: Value) -> Value | None:
    assert isinstance(left, Dict)
    if isinstance(right, Dict):
        store_entries(left.change(s), right.items(s))
        return left
    return None


for _function in (operator.le, operator.lt, operator.ge, operator.gt):

    @_row(_function, Tuple, List)
    def _compare_sequences(s: CaptureState, left: Value, right: Value, function: Function2 = _function) -> Value | None:
        assert isinstance(left, Sequence)
        if not isinstance(right, Sequence) or isinstance(left, List) != isinstance(right, List):
            return None
        for x, y in zip(left.items(s), right.items(s), strict=False):
            if not equal(s, x, y):
                return compare(s, function, x, y)
        return Constant(function(left.length(s), right.length(s)))
