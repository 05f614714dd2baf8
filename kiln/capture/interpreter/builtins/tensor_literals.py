"""`torch.tensor` of lists in which tensors of rank 0, scalars of NumPy, or truth values that change stand for numbers.

torch.tensor([x.max(), 2])      torch.stack([x.max().detach(), torch.tensor(2, dtype=x.dtype)])
torch.tensor([done, True])      torch.tensor([n, 1], dtype=torch.bool), where n is 1 if done else 0
torch.tensor(tokens)            an input of the region, of any length: a list that code behind a break gets

The dtype is the common one of all numbers, of NumPy's their own; the result has no gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import TypeGuard, final

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.numpy_functions import of_tensor
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.frame import outermost_frame
from kiln.capture.interpreter.variables.array import TracedArray
from kiln.capture.interpreter.variables.sequence import List, Sequence, Tuple
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.runtime.guards.source import AnswerSource, argument_of
from kiln.runtime.numbers import tensor_of_numbers
from kiln.support.optional import load
from kiln.support.records import dataclass

numpy = load("numpy")
OPTIONS = frozenset(("dtype", "device"))


@final
@dataclass
class TensorsOfLists:
    """The tensors that are made of lists in front of the region, by the `id` of the list: one input for each."""

    made: dict[int, Value] = field(default_factory=dict)


def numbers_in(s: CaptureState, value: Value) -> Iterator[Value]:
    """The items of nested lists and tuples."""
    if isinstance(value, Sequence):
        for item in value.items(s):
            yield from numbers_in(s, item)
    else:
        yield value


def tensor_of_list(s: CaptureState, args: Args, kwargs: Kwargs) -> Value | None:
    """The tensor of a list of numbers that a resume function gets, or whose length has changed: made in front of the
    region, so that neither the numbers nor their count are guarded. None for other arguments."""
    given = args[0] if len(args) == 1 and not kwargs.keys() - OPTIONS else None
    if not isinstance(given, List) or given.source is None or given._items is not None:
        return None
    if given.appended or given.tail:
        return None
    is_passed = argument_of(given.source) != "" and outermost_frame(s).is_resumed
    if not (is_passed or given.source.text() in s.policy.varying) or given.cls is not list or s.function_modes:
        return None
    known = s.part(TensorsOfLists).made
    made = known.get(id(given.original))
    if s.policy.whole or torch.get_default_device().type != "cpu":
        return None
    if made is None:
        if (real := tensor_of_numbers(given.original)) is None:
            return None
        real._dynamo_weak_dynamic_indices = {0}  # type: ignore[attr-defined]
        made = known[id(given.original)] = s.wrap(real, AnswerSource(given.source, s.reference(tensor_of_numbers)))
    return record(s, "to" if kwargs else "clone", [made], kwargs | ({"copy": s.const(True)} if kwargs else {}))


def literal(function: Callable[..., object], otherwise: Handler) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        if (made := tensor_of_list(s, args, kwargs)) is not None:
            return made
        numbers = list(numbers_in(s, args[0])) if args and isinstance(args[0], Sequence | Symbolic) else []
        if not any([isinstance(number, Tensor) or is_scalar(number) for number in numbers]):
            if any([isinstance(number, Symbolic) and number.number is not None for number in numbers]):
                if {number.python_type() for number in numbers} == {bool}:
                    kwargs = {"dtype": s.const(torch.bool), **kwargs}
                args = [counted(s, args[0]), *args[1:]]
            if (
                numbers and function is not torch.tensor and not kwargs.keys() - OPTIONS
            ):  # which takes no symbols, and makes a copy of a list, too
                return s.wrap(torch.tensor, None).call(s, args, kwargs)
            return otherwise(s, args, kwargs)
        given = {name: value.constant(s) for name, value in kwargs.items() if name in OPTIONS}
        if len(args) > 1 or kwargs.keys() - OPTIONS or s.function_modes:
            raise refusal(function, "other arguments")
        dtypes = [dtype_of(function, number) for number in numbers]
        if len(set(dtypes)) > 1 and any(
            [is_scalar(n) and d is torch.bool for n, d in zip(numbers, dtypes, strict=True)]
        ):
            raise refusal(function, "a truth of NumPy among numbers")
        dtype = given.get("dtype") or common(dtypes)
        if any([torch.promote_types(dtype, other) is not dtype for other in dtypes]):
            raise refusal(function, "a dtype that may not hold the numbers")
        options = {"dtype": s.const(dtype), "device": s.const(given.get("device") or torch.get_default_device())}
        return stacked(s, function, args[0], options)

    return handler


def counted(s: CaptureState, value: Value) -> Value:
    """`value` with the numbers of its truth values that are symbols."""
    if isinstance(value, Sequence):
        return Tuple([counted(s, item) for item in value.items(s)])
    return (value.number if isinstance(value, Symbolic) else None) or value


def is_scalar(value: Value) -> TypeGuard[TracedArray]:
    return isinstance(value, TracedArray) and value.is_scalar


def refusal(function: Callable[..., object], given: str) -> UnsupportedCall:
    return UnsupportedCall(function=f"torch.{function.__name__}", why=f"it gets tensors in a list, and {given}")


def common(dtypes: list[torch.dtype]) -> torch.dtype:
    found = dtypes[0]
    for dtype in dtypes[1:]:
        found = torch.promote_types(found, dtype)
    return found


def dtype_of(function: Callable[..., object], number: Value) -> torch.dtype:
    if isinstance(number, Tensor) and number.fake.dim() == 0:
        return number.fake.dtype
    if is_scalar(number):
        return number.tensor.fake.dtype
    if numpy is not None and number.is_constant and isinstance(number.real(), numpy.generic):
        return torch.as_tensor(number.real(), device="cpu").dtype
    kinds = {bool: torch.bool, int: torch.int64, float: torch.get_default_dtype()}
    found = None if isinstance(number, Tensor) else kinds.get(number.python_type())
    if found is None or not (number.is_constant or isinstance(number, Symbolic)):
        raise refusal(function, f"a {number.type_name()}")
    return found


def stacked(s: CaptureState, function: Callable[..., object], value: Value, options: Kwargs) -> Value:
    if is_scalar(value):
        value = value.tensor
    if not isinstance(value, Sequence):
        made = record(s, "detach", [value], {}) if isinstance(value, Tensor) else None
        return record(s, torch.scalar_tensor, [value], options) if made is None else record(s, "to", [made], options)
    parts = [stacked(s, function, item, options) for item in value.items(s)]
    shapes = {tuple(part.fake.shape) for part in parts if isinstance(part, Tensor)}
    if len(shapes) != 1:
        raise refusal(function, "lists of several lengths")
    return record(s, torch.stack, [Tuple(parts)], {})


@handles(torch.Tensor.new_tensor)
def new_tensor(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Of numbers that are symbols, which its C++ does not take: `torch.tensor` of the same dtype and device."""
    like, *rest = args
    numbers = list(numbers_in(s, rest[0])) if len(rest) == 1 and not kwargs.keys() - OPTIONS else []
    if not isinstance(like, Tensor) or not any([isinstance(number, Symbolic) for number in numbers]):
        return record(s, "new_tensor", args, kwargs)
    options = {name: s.const(getattr(like.fake, name)) for name in OPTIONS}
    return s.wrap(torch.tensor, None).call(s, rest, options | kwargs)


for _function in (torch.tensor, torch.as_tensor, torch.asarray):
    handles(_function)(literal(_function, of_tensor(_function, copies=_function is torch.tensor)))
