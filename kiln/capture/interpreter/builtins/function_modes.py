"""Torch function modes that a frame enters: `with torch.device(...)`, and what `torch.vmap` of masks indexes by.

    with torch.device("cpu"):              the mode is on the stack of the capture, not on torch's
        return torch.zeros(3)              its `__torch_function__` is interpreted, with the modes below it active

Modes of torch itself look at calls that are recorded. One of the program sees every call that eager shows to modes,
also those that the capture answers by itself, such as `x.shape`. Which function it gets, and with which arguments, is
asked of torch: the call is begun on stand-ins, under a mode that stops it.

    x * 2        func <method 'mul' of TensorBase>, args (x, 2)
    x.shape      func Tensor.shape.__get__, args (x,)

A break within a mode becomes one in front of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from functools import lru_cache
from typing import final

import torch
from torch.overrides import TorchFunctionMode, get_overridable_functions

import kiln.capture.interpreter.transform_polyfills as polyfills
from kiln.capture.interpreter.breaks import GraphBreak, PastStep, TorchCallFailed, UnsupportedCall
from kiln.capture.interpreter.builtins.polyfilled import interpreted
from kiln.capture.interpreter.core import (
    Args,
    CaptureState,
    Kwargs,
    ProgramModes,
    Value,
    handles,
    note_innermost,
)
from kiln.capture.interpreter.operations import NAMES
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.sequence import List, Slice, Tuple
from kiln.capture.interpreter.variables.subclass import part_of
from kiln.capture.interpreter.variables.tensor import MODE_RULES, from_torch, here
from kiln.graph.trace.log import Target, target_name
from kiln.support.records import dataclass

MODE_RULES["torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex"] = interpreted(
    polyfills.index_by_tensors
)


@final
@dataclass
class EnteredModes:
    """Where the modes that are active were entered."""

    calls: list[tuple[str, PastStep]] = field(default_factory=list)
    """What was called, and at which steps."""
    made: list[PastStep] = field(default_factory=list)
    """Where objects were made that skip `__torch_function__`."""
    left: dict[int, PastStep] = field(default_factory=dict)
    """Of modes (by `id`) that were left, and may be entered again: torch hides a mode from the calls that it makes."""


@handles(torch._C._push_on_torch_function_stack)
def enter_mode(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    [mode] = args
    s.guard_type(mode)
    s.counters.unguarded += 1  # a repeated layer would not enter it
    s.function_modes.append(mode)
    s.part(ProgramModes).see = seen_by_program
    entered = s.part(EnteredModes)
    step = entered.left.pop(id(mode)) if id(mode) in entered.left else here(s)
    entered.calls.append(("TorchFunctionMode.__enter__", step))
    note_innermost(s)
    return Constant(None)


@handles(torch._C._pop_torch_function_stack)
def leave_mode(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if not s.function_modes:
        raise UnsupportedCall(function="_pop_torch_function_stack", why="the mode was entered before the frame")
    entered, mode = s.part(EnteredModes), s.function_modes.pop()
    _, entered.left[id(mode)] = entered.calls.pop()
    note_innermost(s)
    return mode


@handles(torch._C._is_torch_function_mode_enabled)
def is_mode_enabled(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(bool(s.function_modes))


@final
class Shown(Exception):
    """Which call torch shows to a mode."""

    def __init__(
        self, function: object, types: Sequence[type], args: tuple[object, ...], kwargs: dict[str, object] | None
    ) -> None:
        super().__init__()
        self.function = function
        self.types = types
        self.arguments = args
        self.keywords = kwargs


@final
class StopAtCall(TorchFunctionMode):
    """Stops the first call that it sees."""

    def __torch_function__(  # type: ignore[override]
        self,
        func: object,
        types: Sequence[type],
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        raise Shown(func, types, args, kwargs)


@lru_cache(maxsize=1)
def overridable() -> frozenset[object]:
    """The functions of torch that modes see."""
    found = [function for functions in get_overridable_functions().values() for function in functions]
    return frozenset((*found, torch._C._set_grad_enabled))


OPERATOR_METHODS = frozenset(f"__{side}{name}__" for side in ("", "r", "i") for name in (*NAMES, "div"))
"""Methods of operators: modes see the function behind them."""
OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def is_shown(function: object) -> bool:
    if isinstance(function, OPERATORS):
        return True
    return isinstance(function, Hashable) and function in overridable()


def seen_by_program(s: CaptureState, target: Target, args: Args, kwargs: Kwargs, sure: bool) -> Value | None:
    """What the innermost mode, one of the program, answers to a call; None if it is not asked."""
    if not sure and not is_shown(target):
        return None
    name = target_name(target)
    if any(part_of(value) is not None for value in (*args, *kwargs.values())):
        raise UnsupportedCall(function=name, why="a mode of the program sees tensors of a subclass")
    known: dict[int, Value] = {}
    given = [stand_in(s, arg.torch_arg(s), known) for arg in args]
    named = {key: stand_in(s, value.torch_arg(s), known) for key, value in kwargs.items()}
    for plain, value in zip((*given, *named.values()), (*args, *kwargs.values()), strict=True):
        known[id(plain)] = value
    shown = shown_call(target, given, named)
    mode, function = s.function_modes.pop(), s.wrap(shown.function, None)
    note_innermost(s)
    try:
        taken = [valued(s, arg, known) for arg in shown.arguments]
        values: Args = [function, Tuple([s.wrap(kind, None) for kind in shown.types]), Tuple(taken)]
        if shown.keywords is not None:
            values.append(Dict({key: (s.const(key), valued(s, arg, known)) for key, arg in shown.keywords.items()}))
        return mode.get_attr(s, "__torch_function__").call(s, values, {})
    finally:
        s.function_modes.append(mode)
        note_innermost(s)


def shown_call(target: Target, args: list[object], kwargs: dict[str, object]) -> Shown:
    """The call that torch shows to a mode for a call of `target`."""
    name = target_name(target)
    try:
        with StopAtCall():
            called, given = (getattr(args[0], target), args[1:]) if isinstance(target, str) else (target, args)
            called(*given, **kwargs) if kwargs else called(*given)  # torch shows whether there are keywords
    except Shown as shown:
        if (
            isinstance(target, str)
            and getattr(shown.function, "__name__", "") != target
            and target not in OPERATOR_METHODS
        ):
            raise UnsupportedCall(function=name, why="modes see only the calls that it makes") from None
        return shown
    except (TypeError, ValueError, RuntimeError) as error:
        raise TorchCallFailed.because_of(name, error) from error
    raise UnsupportedCall(function=name, why="it is not known how modes see it")


def stand_in(s: CaptureState, plain: object, known: dict[int, Value]) -> object:
    """An argument with tensors of their own classes in place of fakes; `known` gets what each stands for."""
    if isinstance(plain, torch.Tensor):
        value = from_torch(s, plain)
        made = torch.empty(0, device="cpu")
        if issubclass(value.python_type(), torch.nn.Parameter):
            made = torch.nn.Parameter(made)
        known[id(made)] = value
        return made
    if isinstance(plain, list | tuple) and type(plain) in (list, tuple):
        items = [stand_in(s, item, known) for item in plain]
        return items if type(plain) is list else tuple(items)
    if isinstance(plain, slice):
        return slice(*[stand_in(s, part, known) for part in (plain.start, plain.stop, plain.step)])
    return plain


def valued(s: CaptureState, plain: object, known: dict[int, Value]) -> Value:
    """The value of an argument that torch shows to a mode."""
    found = known.get(id(plain))
    if found is not None and not found.is_constant:
        return found
    if isinstance(plain, list | tuple) and type(plain) in (list, tuple):
        items = [valued(s, item, known) for item in plain]
        return List(items) if type(plain) is list else Tuple(items)
    if isinstance(plain, slice):
        return Slice([valued(s, part, known) for part in (plain.start, plain.stop, plain.step)])
    return from_torch(s, plain)


def break_before_modes(s: CaptureState) -> GraphBreak | None:
    """For a capture that ends in a mode: a break in front of it."""
    calls = s.part(EnteredModes).calls
    if not calls:
        return None
    function, first = calls[0]
    return UnsupportedCall(function=function, why="the frame ends or breaks within it").before(first)
