"""Jumps, loops, calls, returns, generators, exceptions and `with`."""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Iterable

from kiln.capture.interpreter.alternatives import kept_operand
from kiln.capture.interpreter.breaks import (
    DataDependentBranch,
    DataDependentValue,
    IteratorInPython,
    Raised,
    UnsupportedOpcode,
)
from kiln.capture.interpreter.chosen_rows import ChosenRows, chosen_rows
from kiln.capture.interpreter.context_methods import lacks_method
from kiln.capture.interpreter.core import MISSING, NOT_RESUMABLE, PUSH, CaptureState, Value
from kiln.capture.interpreter.data_values import finite_truth
from kiln.capture.interpreter.drawn_branches import take_both_draws
from kiln.capture.interpreter.frame import (
    HANDLED_BEFORE,
    SymbolicFrame,
    argument,
    argument_plus,
    current_exception,
    opcode,
    push_callable,
)
from kiln.capture.interpreter.if_conversion import condition_of, take_both_sides
from kiln.capture.interpreter.number_branches import refuse_counting, take_both_numbers
from kiln.capture.interpreter.opcodes.build import callee_text, require_iterable
from kiln.capture.interpreter.opcodes.stack import load_const, prepare_const
from kiln.capture.interpreter.operations import exception_matches, same, truth_value
from kiln.capture.interpreter.short_circuits import takes_both_operands
from kiln.capture.interpreter.variables.array import TracedArray
from kiln.capture.interpreter.variables.choice import Choice
from kiln.capture.interpreter.variables.classes import Class
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.counted_range import Loops
from kiln.capture.interpreter.variables.exception import nothing_handled_outside
from kiln.capture.interpreter.variables.iterators import Generator, sent
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import tuple_items
from kiln.capture.interpreter.variables.symbolic import Symbolic
from kiln.capture.interpreter.variables.tensor import Tensor

NONE = Constant(None)
ITERABLES: tuple[Iterable[object], ...] = (
    *([], (), range(0), range(1 << 99), "", b"", set()),
    *({}, {}.values(), {}.items()),
)
BUILTIN_ITERABLES = tuple({type(iterable) for iterable in ITERABLES})
BUILTIN_ITERATORS: tuple[type, ...] = (
    *(enumerate, zip, map, filter, reversed, itertools.chain, types.GeneratorType, types.CoroutineType),
    *(type(iter(iterable)) for iterable in ITERABLES),
    *(type(reversed([])), type(reversed({})), type(reversed({}.values())), type(reversed({}.items()))),
)
"""Iterators whose state cannot be seen: no guard could be made on what they yield."""


@opcode("JUMP")
def jump(frame: SymbolicFrame, target: int) -> None:
    frame.ip = target


def pop_jump_if(name: str, when: bool, test: Callable[[CaptureState, Value], bool]) -> None:
    """Register a jump that pops the value that it tests."""

    @opcode(name, pops=1, pushes=0)
    def handler(frame: SymbolicFrame, target: int) -> None:
        value = frame.pop()
        copied = is_copy_of_operand(frame, value)
        value = value if copied else condition_of_scalar(value)
        if isinstance(value, Choice) and (decided := condition_of_choice(frame.state, value, test)) is not None:
            condition, direct = decided
            targets = (target, frame.ip) if when is direct else (frame.ip, target)
            if take_both_sides(frame, condition, targets):
                return
        if isinstance(value, Symbolic) and "NONE" not in name:
            if copied and push_both(frame, value, when, target):
                return
            number, value = value, condition_of(frame, value)
            targets = (target, frame.ip) if when else (frame.ip, target)
            if value is not number and take_both_sides(frame, value, targets):
                return
            if value is number and take_both_numbers(frame, number, targets):
                return
            if value is number and take_both_draws(frame, number, targets):
                return
            if value is number:
                refuse_counting(frame, number)
            value = number
        try:
            truth = test(frame.state, value)
        except DataDependentBranch as stop:
            if copied and push_both(frame, value, when, target):
                return
            targets = (target, frame.ip) if when else (frame.ip, target)
            if takes_both_operands(frame, value, when, target) or take_both_sides(frame, value, targets):
                return
            found = finite_truth(frame.state, value.fake) if isinstance(value, Tensor) else None
            if found is None:
                raise stop.because(frame.state.needed.get((frame.code, frame.at), "")) from None
            truth = found
        if truth is when:
            frame.ip = target


def condition_of_scalar(value: Value) -> Value:
    """A truth value of NumPy that data decide as the tensor of the region."""
    is_truth = isinstance(value, TracedArray) and value.is_scalar and value.number is None
    return value.tensor if is_truth else value  # type: ignore[attr-defined]


def is_copy_of_operand(frame: SymbolicFrame, value: Value) -> bool:
    """Whether a jump on `value` is one of `value and second`: CPython 3.12 tests a copy, and drops the value behind."""
    below = frame.stack[-1] if frame.stack else None
    return below is value and frame.decoded.instruction(frame.ip).name == "POP_TOP"


def push_both(frame: SymbolicFrame, first: Value, when: bool, target: int) -> bool:
    """Go on at `target` with `first and second`, of truth values that data decide; False where `first` is none."""
    kept = kept_operand(frame, first, when, target)
    if kept is not None:
        frame.push(kept)
    return kept is not None


def condition_of_choice(
    s: CaptureState, choice: Choice, test: Callable[[CaptureState, Value], bool]
) -> tuple[Value, bool] | None:
    """The condition that decides a test of one of two values, and whether the test is true where it is."""
    left, right = choice.left, choice.right
    try:
        if left is None or right is None or test(s, left) is test(s, right):
            return None
        return choice.condition, test(s, left)
    except DataDependentBranch:
        return None


def jump_or_pop(name: str, when: bool) -> None:
    """Register a jump of `and` and `or`, which pops the value where it does not jump."""

    @opcode(name, pops=1, pushes=0)
    def handler(frame: SymbolicFrame, target: int) -> None:
        value = frame.pop()
        if isinstance(value, Symbolic) and push_both(frame, value, when, target):
            return
        try:
            truth = truth_value(frame.state, value, "and/or")
        except DataDependentBranch:
            if not push_both(frame, value, when, target):
                raise
            return
        if truth is when:
            frame.ip = target
            frame.push(value)


pop_jump_if("POP_JUMP_IF_TRUE", True, lambda s, value: truth_value(s, value, "if"))
pop_jump_if("POP_JUMP_IF_FALSE", False, lambda s, value: truth_value(s, value, "if"))
pop_jump_if("POP_JUMP_IF_NONE", True, lambda s, value: same(s, value, NONE))
pop_jump_if("POP_JUMP_IF_NOT_NONE", False, lambda s, value: same(s, value, NONE))
jump_or_pop("JUMP_IF_TRUE_OR_POP", True)
jump_or_pop("JUMP_IF_FALSE_OR_POP", False)


@opcode("GET_ITER", pops=1)
def get_iter(frame: SymbolicFrame, arg: int) -> None:
    value = frame.pop()
    iterator = chosen_rows(frame, value) or value.iterate(frame.state, PUSH)
    frame.state.part(Loops).iterate(value, iterator)
    frame.stack.append(iterator)


@opcode("FOR_ITER", pops=1, pushes=2)
def for_iter(frame: SymbolicFrame, target: int) -> None:
    iterator = frame.stack[-1]
    assert iterator is not None
    if isinstance(iterator.real(), BUILTIN_ITERATORS):
        raise IteratorInPython(type=iterator.type_name())
    if isinstance(iterator, ChosenRows):
        chosen = iterator.turn(frame.state)
        if chosen is not None:
            if not take_both_sides(frame, chosen, (frame.ip, frame.at), pushed=iterator.row):
                raise DataDependentValue(operation="iter")
            return
        item = None
    else:
        item = iterator.next(frame.state)
    if item is not None:
        frame.stack.append(item)
        return
    frame.stack.pop()
    frame.ip = target


@opcode("RETURN_VALUE")
def return_value(frame: SymbolicFrame, arg: int) -> None:
    frame.result = frame.stack.pop()
    frame.running = False
    frame.finished = True


@opcode("RETURN_CONST", prepare=prepare_const)
def return_const(frame: SymbolicFrame, value: Value) -> None:
    load_const(frame, value)
    return_value(frame, 0)


@opcode("YIELD_VALUE")
def yield_value(frame: SymbolicFrame, arg: int) -> None:
    frame.result = frame.stack.pop()
    frame.running = False


@opcode("GET_YIELD_FROM_ITER", pops=1)
def get_yield_from_iter(frame: SymbolicFrame, arg: int) -> None:
    value = frame.pop()
    frame.push(value if isinstance(value, Generator) else value.iterate(frame.state))


@opcode("SEND", breaks=True)
def send(frame: SymbolicFrame, target: int) -> None:
    """`yield from`: one item of the inner iterator, or its return value and on to the target."""
    value = frame.pop()
    inner = frame.stack[-1]
    assert inner is not None
    if frame.parent is None and inner.real() is not MISSING and frame.state.is_none(value):
        frame.delegates, frame.running, frame.result = True, False, inner
        return
    item, result = sent(frame.state, inner, value)
    if item is not None:
        frame.push(item)
        return
    frame.ip = target
    if frame.decoded.instruction(target).name == "END_SEND":
        frame.push(result)
    else:
        frame.stack[-1] = result


@opcode("END_SEND")
def end_send(frame: SymbolicFrame, arg: int) -> None:
    del frame.stack[-2]


@opcode("CLEANUP_THROW")
def cleanup_throw(frame: SymbolicFrame, arg: int) -> None:
    """3.12, an exception left a `yield from`: inner iterator, sent value, exception  ->  None, its result."""
    error = frame.pop()
    if not issubclass(error.python_type(), StopIteration):
        raise Raised(error).again()
    frame.pop_many(2)
    frame.push(NONE)
    frame.push(error.get_attr(frame.state, "value"))


@opcode("KW_NAMES")
def kw_names(frame: SymbolicFrame, names: tuple[str, ...]) -> None:
    frame.kwnames = names


@opcode("CALL", pops=argument_plus(2))
def call(frame: SymbolicFrame, count: int) -> None:
    names = frame.kwnames
    if names:
        frame.kwnames = ()
    make_call(frame, frame.pop_many(count), names)


@opcode("CALL_KW", pops=argument_plus(3))
def call_kw(frame: SymbolicFrame, count: int) -> None:
    names = frame.pop().constant(frame.state)
    make_call(frame, frame.pop_many(count), names)


def make_call(frame: SymbolicFrame, args: list[Value], names: tuple[str, ...]) -> None:
    """Call what is on the stack; the last arguments have `names`."""
    function = called(frame, args)
    kwargs: dict[str, Value] = {}
    if names:
        kwargs = dict(zip(names, args[-len(names) :], strict=True))
        del args[-len(names) :]
    frame.stack.append(function.call(frame.state, args, kwargs, PUSH))


def called(frame: SymbolicFrame, args: list[Value]) -> Value:
    """Pop the callable and its `self` or NULL, which lies below it up to 3.12; `self` is the first of `args`."""
    above, below = frame.stack.pop(), frame.stack.pop()
    if below is not None and above is not None:
        args.insert(0, above)
    found = above if below is None else below
    assert found is not None
    return found


@opcode("CALL_FUNCTION_EX", pops=lambda keywords: 4 if keywords else 3)
def call_function_ex(frame: SymbolicFrame, keywords: int) -> None:
    kwargs: dict[str, Value] = {}
    mapping = frame.stack.pop() if keywords else None
    if mapping is not None:
        mapping = getattr(mapping, "native", None) or mapping
        assert isinstance(mapping, Dict)
        items = mapping.items(frame.state)
        if not all([isinstance(name, str) for name in items]):
            raise frame.state.error(TypeError, "keywords must be strings")
        kwargs = {str(name): value for name, (_, value) in items.items()}
    given = frame.pop()
    function = called(frame, [])
    require_iterable(frame.state, given, lambda: f"{callee_text(frame.state, function)} argument")
    args = tuple_items(frame.state, given)
    frame.stack.append(function.call(frame.state, args, kwargs, PUSH))


@opcode("RAISE_VARARGS", pops=argument, pushes=0)
def raise_varargs(frame: SymbolicFrame, count: int) -> None:
    s = frame.state
    cause = frame.pop() if count == 2 else NONE
    if count == 0:
        current = current_exception(frame)
        if current is None:
            nothing_handled_outside(s)
            raise s.error(RuntimeError, "No active exception to reraise")
        raise Raised(current).again()
    value = instantiate(s, frame.pop(), "exceptions")
    if count == 2:
        value.set_attr(s, "__cause__", cause if s.is_none(cause) else instantiate(s, cause, "exception causes"))
    raise Raised(value)


def instantiate(s: CaptureState, value: Value, what: str) -> Value:
    """The exception that `raise` is given, or an instance of the class that it is given."""
    given = value
    if isinstance(value, Class) and issubclass(value.cls, BaseException):
        value = value.call(s, [], {})
        if not issubclass(value.python_type(), BaseException):
            wanted = "should have returned an instance of BaseException"
            raise s.error(TypeError, f"calling {given.cls!r} {wanted}, not {value.python_type()!r}")  # type: ignore[attr-defined]
    if not issubclass(value.python_type(), BaseException):
        raise s.error(TypeError, f"{what} must derive from BaseException")
    return value


@opcode("PUSH_EXC_INFO")
def push_exc_info(frame: SymbolicFrame, arg: int) -> None:
    error = frame.pop()
    frame.push(HANDLED_BEFORE)
    frame.push(error)
    frame.handled.append(error)


@opcode("POP_EXCEPT")
def pop_except(frame: SymbolicFrame, arg: int) -> None:
    frame.stack.pop()
    frame.handled.pop()


@opcode("CHECK_EXC_MATCH", pops=2, pushes=2)
def check_exc_match(frame: SymbolicFrame, arg: int) -> None:
    kinds = frame.pop()
    error = frame.stack[-1]
    assert error is not None
    frame.push(Constant(exception_matches(frame.state, error, kinds)))


@opcode("RERAISE")
def reraise(frame: SymbolicFrame, arg: int) -> None:
    raise Raised(frame.pop()).again()


@opcode("BEFORE_WITH", pops=1, pushes=2)
def before_with(frame: SymbolicFrame, arg: int) -> None:
    s = frame.state
    manager = frame.pop()
    entered = special_method(s, manager, "__enter__", "")
    frame.push(special_method(s, manager, "__exit__", " (missed __exit__ method)"))
    frame.push(entered.call(s, [], {}, PUSH))


def special_method(s: CaptureState, manager: Value, name: str, missed: str) -> Value:
    """A method of a context manager, looked up on its class."""
    found = s.classes.lookup(manager.python_type(), name)
    if found is None:
        raise s.error(
            TypeError, f"'{manager.type_name()}' object does not support the context manager protocol{missed}"
        )
    s.guard_type(manager)
    s.counters.may_catch |= not str(manager.python_type().__module__).startswith("torch.")
    return s.model.bound_attr(s, manager, name, found[1], NOT_RESUMABLE)


@opcode("LOAD_SPECIAL", pops=1, pushes=2)
def load_special(frame: SymbolicFrame, name: str) -> None:
    """3.14, a method of a context manager: bound, so the slot of `self` is NULL."""
    manager = frame.pop()
    if frame.state.classes.lookup(manager.python_type(), name) is None:
        frame.state.guard_type(manager)
        raise frame.state.error(TypeError, lacks_method(manager.python_type(), name))
    push_callable(frame, special_method(frame.state, manager, name, ""))


@opcode("WITH_EXCEPT_START", pops=argument_plus(4), pushes=argument_plus(5))
def with_except_start(frame: SymbolicFrame, nulls: int) -> None:
    """exit, NULL (3.14), lasti, previous exception, exception  ->  ..., exit(type, exception, traceback)"""
    s = frame.state
    leave, error = frame.stack[-4 - nulls], frame.stack[-1]
    assert leave is not None and error is not None
    frame.push(leave.call(s, [s.wrap(error.python_type(), None), error, error.get_attr(s, "__traceback__")], {}, PUSH))


@opcode("GET_AWAITABLE", pops=1)
def get_awaitable(frame: SymbolicFrame, arg: int) -> None:
    frame.push(awaited(frame.state, frame.pop()))


def awaited(s: CaptureState, value: Value) -> Value:
    """The coroutine, or the iterator of another awaitable."""
    code = value.frame.code if isinstance(value, Generator) else getattr(value.real(), "gi_code", None)
    is_awaitable = code is not None and code.co_flags & inspect.CO_ITERABLE_COROUTINE  # made by `types.coroutine`
    if value.python_type() is types.CoroutineType or is_awaitable:
        return value
    if s.classes.lookup(value.python_type(), "__await__") is None:
        raise s.error(TypeError, f"object {value.type_name()} can't be used in 'await' expression")
    return s.call_special(value, "__await__", [], {})


@opcode("GET_AITER", pops=1)
def get_aiter(frame: SymbolicFrame, arg: int) -> None:
    frame.push(frame.state.call_special(frame.pop(), "__aiter__", [], {}))


@opcode("GET_ANEXT", pops=1, pushes=2)
def get_anext(frame: SymbolicFrame, arg: int) -> None:
    s, iterator = frame.state, frame.stack[-1]
    assert iterator is not None
    frame.push(awaited(s, s.call_special(iterator, "__anext__", [], {})))


@opcode("END_ASYNC_FOR")
def end_async_for(frame: SymbolicFrame, arg: int) -> None:
    """Asynchronous iterator, exception  ->  nothing, if that says that it is at its end."""
    error = frame.pop()
    frame.pop()
    if not issubclass(error.python_type(), StopAsyncIteration):
        raise Raised(error).again()


@opcode("BEFORE_ASYNC_WITH", pops=1, pushes=2)
def before_async_with(frame: SymbolicFrame, arg: int) -> None:
    s, manager = frame.state, frame.pop()
    entered, leave = (s.classes.lookup(manager.python_type(), name) for name in ("__aenter__", "__aexit__"))
    if entered is None or leave is None:
        missed = "" if entered is None else " (missed __aexit__ method)"
        protocol = "does not support the asynchronous context manager protocol"
        raise s.error(TypeError, f"'{manager.type_name()}' object {protocol}{missed}")
    s.guard_type(manager)
    frame.push(s.model.bound_attr(s, manager, "__aexit__", leave[1], NOT_RESUMABLE))
    frame.push(s.model.bound_attr(s, manager, "__aenter__", entered[1], NOT_RESUMABLE).call(s, [], {}, PUSH))


@opcode(
    "ASYNC_GEN_WRAP",
    *("CHECK_EG_MATCH", "INTRINSIC_2"),
    "DELETE_GLOBAL",
    breaks=True,
)
def not_modelled(frame: SymbolicFrame, arg: object) -> None:
    name = frame.decoded.instruction(frame.at).name
    raise UnsupportedOpcode(opcode=name, why="asynchronous code and class bodies are not supported")
