"""One of two values by a condition that data decide, where both are there already.

    max(1, mask.sum())             Choice(mask.sum() > 1, mask.sum(), 1)
    x / max(1, mask.sum())         div(x, where(mask.sum() > 1, mask.sum(), 1))
    exp(min(loss.item(), 20))      exp(where(20 < loss, 20.0, loss)), but `min` alone may be an int
    min(a.sum(), b.sum())          where(b.sum() < a.sum(), b.sum(), a.sum())
    ok = a.any() and b.any()       logical_and(a.any(), b.any())

A tensor or a number: Python may ask which it is, so it stays open until a tensor is computed with it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import DataDependentBranch
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.data_values import NUMBER_READ, DataValues, ValueNeeded, is_needed, none_needed, past_step
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.nested_calls import is_single
from kiln.capture.interpreter.short_circuits import operand_up_to
from kiln.capture.interpreter.speculation import comparison_in_region
from kiln.capture.interpreter.variables.choice import Choice
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch, record
from kiln.capture.interpreter.visible_copies import note_copy
from kiln.tensor.spec import TensorSpec

NUMBERS = (bool, int, float)


def alternative(s: CaptureState, condition: Value, left: Value, right: Value) -> Value | None:
    """`left if condition else right`, of tensors of one element and plain numbers; None where Python needs to know."""
    if is_needed(s) or s.function_modes or not isinstance(condition, Tensor) or not is_single(condition):
        return None
    frame = running_frame(s)
    made = Choice(condition, left, right, ValueNeeded((frame.code, frame.at), past_step(frame)))
    parts = parts_of(made)
    tensors = [part for part in parts or () if isinstance(part, Tensor)]
    if parts is None or len(tensors) < len(parts) or not all(isinstance(side, Tensor) for side in (left, right)):
        return made if tensors else None
    specs = [tensor.fake.storage_view.spec for tensor in tensors]
    same = specs[0].with_view(specs[0].sizes, specs[0].strides, specs[1].offset) == specs[1]
    return either(s, condition, left, right, made.need) if same else None


def parts_of(value: Value | None) -> list[Value] | None:
    """The tensors of one element and plain numbers that a value may be; None if it may be something else."""
    if isinstance(value, Choice):
        left, right = parts_of(value.left), parts_of(value.right)
        return None if left is None or right is None else left + right
    single = isinstance(value, Tensor) and is_single(value)
    number = value is not None and value.is_constant and type(value.real()) in NUMBERS
    return [value] if value is not None and (single or number) else None


def either(s: CaptureState, condition: Value, left: Value, right: Value, need: ValueNeeded) -> Value:
    """One of two tensors; the one that is not taken has no gradient."""
    fakes = [value.fake for value in (left, right) if isinstance(value, Tensor)]
    if any(fake.requires_grad for fake in fakes):
        return s.wrap(polyfills.chosen, None).call(s, [condition, left, right], {})
    made = record(s, torch.where, [condition, left, right], {})
    note_copy(s, [value for value in (left, right) if isinstance(value, Tensor)], made, fakes, need)
    return made


MOST_EXACT = 2**53


def extreme_number(s: CaptureState, function: Callable[..., object], items: Sequence[Value]) -> Value | None:
    """`max` or `min` of floats that data decide and integers: which type it has stays open. None of others."""
    of_data = [item for item in items if isinstance(item, Symbolic) and item.python_type() is float]
    whole = [item for item in items if item.is_constant and type(item.real()) is int and abs(item.real()) < MOST_EXACT]
    if is_needed(s) or s.function_modes or not whole or len(of_data) + len(whole) < len(items):
        return None
    if not s.policy.assumes or s.policy.whole or any([item.node.node.has_hint() for item in of_data]):
        return None
    frame = running_frame(s)
    need = ValueNeeded((frame.code, frame.at), past_step(frame))
    best = items[0]
    for item in items[1:]:
        follows = from_torch(s, comparison_in_region(s, function, item, as_float(s, best)))
        best = Choice(follows, item, best, need)
    return best


def as_float(s: CaptureState, value: Value) -> Value:
    """A choice of numbers as the float that is equal to it; other values as they are."""
    if not isinstance(value, Choice) or value.left is None or value.right is None:
        return value
    sides = [as_float(s, side) for side in (value.left, value.right)]
    numbers = [side for side in sides if isinstance(side, Symbolic) or type(side.real()) in (int, float)]
    if len(numbers) < 2 or not all(side.python_type() in (int, float) for side in numbers):
        return value
    return chosen_number(s, value.condition, sides, torch.float64, value.need)


def chosen_number(
    s: CaptureState, condition: Value, sides: Sequence[Value], dtype: torch.dtype, need: ValueNeeded
) -> Value:
    """One of two numbers as a number that the region finds. Where Python needs it, `need` breaks the graph.

    `sides`: numbers, and tensors that hold them.
    """
    with none_needed(s):
        return number_by_condition(s, condition, sides, dtype, need)


def number_by_condition(
    s: CaptureState, condition: Value, sides: Sequence[Value], dtype: torch.dtype, need: ValueNeeded
) -> Value:
    assert isinstance(condition, Tensor)
    if condition.fake.dtype is not torch.bool:
        condition = record(s, operator.ne, [condition, s.const(0)], {})  # type: ignore[assignment]
    options, steps, scalars = {"dtype": s.const(dtype)}, s.part(DataValues).steps, list[Value]()
    for side in sides:
        if isinstance(side, Tensor):
            plain = record(s, "reshape", [record(s, "detach", [side], {}), s.const(())], {})
            scalars.append(record(s, "to", [plain, s.const(dtype)], {}))
        else:
            scalars.append(record(s, torch.full, [s.const(()), side], options))
    known = set(steps)
    found = record(s, torch.where, [condition, *scalars], {}).get_attr(s, "item").call(s, [], {})
    steps.update({number: (need.made_at, need.step, NUMBER_READ) for number in steps if number not in known})
    return found


def as_tensor(s: CaptureState, value: Value) -> Value:
    """A choice of tensors and numbers as a tensor; other values as they are."""
    like = layout_of(parts_of(value)) if isinstance(value, Choice) else None
    return value if like is None else joined_tensor(s, value, like)


DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64}


def layout_of(parts: list[Value] | None) -> TensorSpec | None:
    """That of the tensors among these values; of numbers of one type, one that holds them."""
    specs = {part.fake.storage_view.spec.with_view((), (), 0) for part in parts or () if isinstance(part, Tensor)}
    ranks = [part.fake.dim() for part in parts or () if isinstance(part, Tensor)]
    if not ranks:
        types = {type(part.real()) for part in parts or ()}
        return TensorSpec(DTYPES[types.pop()], (), ()) if len(types) == 1 else None
    return specs.pop() if len(specs) == 1 and not any(ranks) else None


def joined_tensor(s: CaptureState, value: Value, like: TensorSpec) -> Value:
    if isinstance(value, Choice):
        assert value.left is not None and value.right is not None
        left, right = joined_tensor(s, value.left, like), joined_tensor(s, value.right, like)
        return either(s, value.condition, left, right, value.need)
    options = {"dtype": s.const(like.dtype), "device": s.const(like.device)}
    return value if isinstance(value, Tensor) else record(s, torch.full, [s.const(()), value], options)


def operand(s: CaptureState, value: Value, other: Value) -> Value:
    """What a tensor is computed with: a choice of tensors and numbers as a tensor, if the result is the same."""
    if isinstance(value, Choice) and isinstance(other, Symbolic) and other.python_type() is float:
        return as_float(s, value)
    if not isinstance(value, Choice) or not isinstance(other, Tensor):
        return value
    parts = parts_of(value)
    layout = layout_of(parts)
    if parts is None or layout is None:
        return value
    like = torch.empty([1] * other.fake.dim(), dtype=other.fake.dtype, device="cpu")
    made = torch.empty((), dtype=layout.dtype, device="cpu")
    results = {torch.result_type(like, made if isinstance(part, Tensor) else part.real()) for part in parts}  # type: ignore[call-overload]
    return joined_tensor(s, value, layout) if results == {torch.result_type(like, made)} else value


def open_truth(s: CaptureState, value: Value, stop: DataDependentBranch) -> Value:
    """`bool(value)` of a tensor whose values decide it, as a symbol; raises `stop` where Python needs it."""
    if is_needed(s) or s.function_modes or not isinstance(value, Tensor) or not is_single(value):
        raise stop
    truth = value if value.fake.dtype is torch.bool else record(s, operator.ne, [value, s.const(0)], {})
    return truth.get_attr(s, "item").call(s, [], {})


def kept_operand(frame: SymbolicFrame, first: Value, when: bool, target: int) -> Value | None:
    """`first and second` (`when`: or) as a value, of truth values that data decide. None: it is left to the jump.

    The second operand is the code up to `target`; it is computed in any case, so it must have no effect, nor raise.
    """
    s, here = frame.state, (frame.code, frame.at)
    if here in s.needed or s.function_modes or not is_open_truth(first):
        return None
    second, failed = operand_up_to(frame, target)
    if isinstance(first, Tensor) and isinstance(second, Tensor) and is_open_truth(second):
        if first.fake.shape != second.fake.shape or first.fake.device != second.fake.device:
            raise failed
        return record(s, torch.logical_or if when else torch.logical_and, [first, second], {})
    if isinstance(first, Tensor) and isinstance(second, Symbolic) and second.python_type() is bool:
        second = s.const(second.truth(s))
    if isinstance(first, Tensor) and second.is_constant and type(second.real()) is bool:
        return Choice(first, first if when else second, second if when else first, failed)
    if isinstance(first, Symbolic) and isinstance(second, Symbolic) and is_open_truth(second):
        assert first.number is not None and second.number is not None
        pick = torch.sym_max if when else torch.sym_min
        number = s.wrap(pick(first.number.node, second.number.node), None)
        assert isinstance(number, Symbolic)
        return Symbolic(number.node == 1, number=number)
    raise failed


def is_open_truth(value: Value) -> bool:
    if isinstance(value, Symbolic):
        return value.number is not None
    return isinstance(value, Tensor) and is_single(value) and value.fake.dtype is torch.bool
