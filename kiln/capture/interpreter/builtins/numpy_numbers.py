"""NumPy's functions of plain numbers that change between calls: numbers of the region, as with `math`.

    lr = low + 0.5 * (high - low) * (1 + np.cos(np.pi * step / steps))    cos(3.14 * step / steps), in float64
    np.clip(x - width // 2, 0, 32)                                        min(max(x - width // 2, 0), 32), a size

Results are scalars of NumPy. What is not in `ROWS`, or is outside of its domain in this call (`np.sqrt(-1.0)` is NaN,
where `math.sqrt` raises), is computed on constants.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable

import torch

from kiln.capture.interpreter.builtins.math_functions import DOMAINS, in_domain
from kiln.capture.interpreter.core import HANDLERS, MISSING, Args, CaptureState, Kwargs, Value
from kiln.capture.interpreter.operations import COMPARISONS, DIVISIONS, ERRORS, Function2, binary, compare, unary
from kiln.capture.interpreter.variables.array import NumpyObject, as_python_number, scalar_of
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.known_array import lifted
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import record
from kiln.support.optional import load

numpy: NumpyObject = load("numpy")
OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
    "power": operator.pow, "remainder": operator.mod, "floor_divide": operator.floordiv,
    "greater": operator.gt, "greater_equal": operator.ge, "less": operator.lt, "less_equal": operator.le,
    "equal": operator.eq, "not_equal": operator.ne,
}  # fmt: skip
"""Universal functions that are operators; one operand may be a number."""
Row = Callable[[CaptureState, list[Value]], Value | None]
"""Numbers of Python to the number that NumPy returns; None where NumPy's differs from Python's."""


def of_numbers(s: CaptureState, function: NumpyObject, args: Args, kwargs: Kwargs) -> Value | None:
    """`function` of Python's numbers and scalars that are numbers of the caller; None for all others."""
    name = getattr(function, "__name__", "")
    row = ROWS.get(name)
    if row is None or getattr(numpy, name, MISSING) is not function:
        return None
    given = [as_python_number(arg) for arg in (*args, *kwargs.values())]
    if not any(isinstance(arg, Symbolic) for arg in given):
        return None
    numbers = positional(function, args, kwargs)
    if numbers is None or not all(is_plain_number(number) for number in numbers):
        return None
    try:
        with numpy.errstate(all="ignore"):
            expected = function(*[in_call(number) for number in numbers])
    except ERRORS:
        return None
    made = row(s, numbers) if expected.dtype.kind in "ifb" and numpy.isfinite(expected) else None
    return None if made is None else as_scalar(s, made, expected)


def positional(function: NumpyObject, args: Args, kwargs: Kwargs) -> list[Value] | None:
    """The arguments in order; None where there are others than numbers."""
    if not kwargs:
        return [as_python_number(arg) for arg in args]
    if function is not numpy.clip or kwargs.keys() - {"a_min", "a_max"}:
        return None
    bound = inspect.signature(function).bind(*args, **kwargs).arguments
    return [as_python_number(bound[name]) for name in ("a", "a_min", "a_max") if name in bound]


def is_plain_number(value: Value) -> bool:
    if isinstance(value, Symbolic):
        return value.python_type() is not bool
    return isinstance(value, Constant) and type(value.real()) in (int, float)


def in_call(value: Value) -> NumpyObject:
    """The number in the captured call, 1 for one that data decide."""
    if not isinstance(value, Symbolic):
        return value.real()
    return value.node.node.hint if value.node.node.has_hint() else value.python_type()(1)


def as_scalar(s: CaptureState, made: Value, expected: NumpyObject) -> Value:
    """A number of Python as the scalar that NumPy returns."""
    if expected.dtype.kind == "b":
        return lifted(s, numpy.bool_(made.truth(s)))
    if expected.dtype.kind == "f" and made.python_type() is int:
        made = HANDLERS[float](s, [made], {})
    if isinstance(made, Symbolic):
        return scalar_of(s, made)
    return lifted(s, expected.dtype.type(made.constant(s)))


def operation(function: Function2) -> Row:
    def row(s: CaptureState, numbers: list[Value]) -> Value | None:
        if function in DIVISIONS and in_call(numbers[1]) == 0:
            return None
        if function is operator.pow and float not in [number.python_type() for number in numbers]:
            return None
        return binary(s, function, *numbers)

    return row


def comparison(function: Function2) -> Row:
    return lambda s, numbers: compare(s, function, *numbers)


def of_math(function: Callable[[float], float]) -> Row:
    def row(s: CaptureState, numbers: list[Value]) -> Value | None:
        number = numbers[0]
        known = isinstance(number, Symbolic) and in_domain(s, function, number)
        return HANDLERS[function](s, numbers, {}) if known else None

    return row


def rounding(function: Callable[[float], int]) -> Row:
    return lambda s, numbers: HANDLERS[function](s, numbers, {}) if numbers[0].python_type() is float else numbers[0]


def extreme(function: Callable[..., object]) -> Row:
    """Of numbers that are not NaN, which a check holds; of those that data decide, in the region, where NaN stays."""

    def row(s: CaptureState, numbers: list[Value]) -> Value | None:
        of_data = [number for number in numbers if isinstance(number, Symbolic) and not number.node.node.has_hint()]
        if any([number.python_type() is float for number in of_data]):
            options = {"dtype": s.const(torch.float64)}
            held = [record(s, torch.scalar_tensor, [number], options) for number in numbers]
            return record(s, IN_REGION[function], held, {}).get_attr(s, "item").call(s, [], {})
        if float in [number.python_type() for number in numbers]:
            numbers = [HANDLERS[float](s, [number], {}) for number in numbers]
            if not all([compare(s, operator.eq, number, number).truth(s) for number in numbers]):
                return None
        return HANDLERS[function](s, numbers, {})

    return row


IN_REGION: dict[Callable[..., object], Callable[..., torch.Tensor]] = {max: torch.maximum, min: torch.minimum}


def clipped(s: CaptureState, numbers: list[Value]) -> Value | None:
    if len(numbers) != 3:
        return None
    least = extreme(max)(s, numbers[:2])
    return None if least is None else extreme(min)(s, [least, numbers[2]])


ROWS: dict[str, Row] = {
    **{name: comparison(made) if made in COMPARISONS else operation(made) for name, made in OPERATORS.items()},
    "square": lambda s, numbers: binary(s, operator.mul, numbers[0], numbers[0]),
    "negative": lambda s, numbers: unary(s, operator.neg, numbers[0]),
    "absolute": lambda s, numbers: HANDLERS[abs](s, numbers, {}),
    "floor": rounding(math.floor),
    "ceil": rounding(math.ceil),
    "trunc": rounding(math.trunc),
    "rint": rounding(round),
    "maximum": extreme(max),
    "minimum": extreme(min),
    "clip": clipped,
    **{function.__name__: of_math(function) for function in DOMAINS},
}
"""By the name in NumPy. Those of `math` have the same names; `math.fabs` is one of NumPy's, too."""
