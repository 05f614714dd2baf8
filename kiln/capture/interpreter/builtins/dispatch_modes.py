"""Torch dispatch modes of the program that a frame enters: they see the operators that torch calls consist of.

    with Traced():                        the mode is on the stack of the capture, not on torch's
        y = torch.nn.functional.gelu(x)   `__torch_dispatch__(aten.gelu.default, (), (x,), {})`, interpreted

Each call runs on the fakes under a mode that asks the program's innermost one; operators that this calls go to the next
mode, or are recorded. Calls through which gradients are needed break, and so does anything else in front of the mode.
"""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import final

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from kiln.capture.interpreter.breaks import Raised, TorchCallFailed, UnsupportedCall
from kiln.capture.interpreter.builtins.function_modes import EnteredModes
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.bound_method import BoundMethod
from kiln.capture.interpreter.variables.builtin import Builtin
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import Function
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.subclass import lowered, needs_grad, subclassed
from kiln.capture.interpreter.variables.tensor import Overrides, from_torch, here
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import Target, leaves, target_name
from kiln.support.dispatch_mode import DispatchMode
from kiln.support.errors import KilnError
from kiln.support.records import dataclass

ENTER = "TorchDispatchMode.__enter__"
READ_VALUES: frozenset[Target] = frozenset({torch.nn.functional.one_hot})
"""Functions that run other operators on plain tensors than on fakes: they look at the values."""


@final
@dataclass
class DispatchModes:
    """The modes that the frame has entered, innermost last."""

    stack: list[Object] = field(default_factory=list)


@handles(TorchDispatchMode.__enter__)
def enter(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    [mode] = args
    if not isinstance(mode, Object) or mode.python_type().__module__.startswith("torch."):
        raise UnsupportedCall(function=ENTER, why="it is a mode of torch, which may look at more than operators")
    s.guard_type(mode)
    s.counters.unguarded += 1  # a repeated layer would not enter it
    s.part(DispatchModes).stack.append(mode)
    s.part(EnteredModes).calls.append((ENTER, here(s)))
    note(s)
    return mode


@handles(TorchDispatchMode.__exit__)
def leave(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    stack = s.part(DispatchModes).stack
    if not stack or stack[-1] is not args[0]:
        raise UnsupportedCall(function="TorchDispatchMode.__exit__", why="the mode was entered before the frame")
    stack.pop()
    s.part(EnteredModes).calls.pop()
    note(s)
    return Constant(None)


@handles(torch._C._len_torch_dispatch_stack)
def depth(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Without Kiln's own modes. The guard on the global state says that there were none before the frame."""
    return Constant(len(s.part(DispatchModes).stack))


def note(s: CaptureState) -> None:
    s.part(Overrides).under_modes = call_under_modes if s.part(DispatchModes).stack else None


def call_under_modes(s: CaptureState, target: Target, args: Args, kwargs: Kwargs) -> Value:
    """A torch call, of which the innermost mode sees the operators."""
    name = target_name(target)
    if target in READ_VALUES:
        raise UnsupportedCall(function=name, why="a dispatch mode of the program sees that it reads values")
    given = [arg.torch_arg(s) for arg in args]
    named = {key: value.torch_arg(s) for key, value in kwargs.items()}
    if torch.is_grad_enabled() and any(needs_grad(value) for value in (*given, *named.values())):
        raise UnsupportedCall(function=name, why="it needs gradients, under a dispatch mode of the program")
    if any(True for _ in subclassed(s, [*args, *kwargs.values()])) or torch.is_autocast_enabled("cpu"):
        raise UnsupportedCall(function=name, why="a dispatch mode of the program sees a subclass, or autocast")
    try:
        makes = not any(type(leaf) is FakeTensor for leaf in leaves([given, named]))
        types = (torch.Tensor,) if target is getattr and given[1:] == ["data"] else ()  # what eager gives a mode
        with AskedModes(s, makes, types):
            if isinstance(target, str):
                result = getattr(given[0], target)(*given[1:], **named)
            else:
                result = target(*given, **named)
    except (KilnError, Raised):
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise TorchCallFailed.because_of(name, error) from error
    return valued(s, result)


def valued(s: CaptureState, plain: object) -> Value:
    if type(plain) is list:
        return List([valued(s, item) for item in plain])
    if type(plain) is tuple:
        return Tuple([valued(s, item) for item in plain])
    if isinstance(plain, torch.Tensor) and type(plain) is not FakeTensor:
        raise UnsupportedCall(function="__torch_dispatch__", why="it sees a tensor that is made of Python numbers")
    return from_torch(s, plain)


@final
class AskedModes(DispatchMode):
    """Asks the innermost mode of the program what an operator gives."""

    def __init__(self, s: CaptureState, makes: bool, types: tuple[type, ...]) -> None:
        super().__init__()
        self.state = s
        self.types = types
        self.makes = makes
        """Whether the call makes a tensor of none: of a fake, torch then takes an alias, of a plain tensor not."""
        self.made: object = None
        """The result of the latest operator, if it makes a tensor: of this too."""

    def __torch_dispatch__(  # type: ignore[override]
        self, func: OpOverload, types: object, args: tuple[object, ...] = (), kwargs: dict[str, object] | None = None
    ) -> object:
        if func is torch.ops.aten.detach.default and (self.makes or args[0] is self.made):
            return args[0]
        s = self.state
        stack = s.part(DispatchModes).stack
        mode = stack.pop()
        note(s)
        try:
            values: Args = [Builtin(func), Tuple([s.const(kind) for kind in self.types]), valued(s, args)]
            if kwargs is not None:
                values.append(Dict({name: (s.const(name), valued(s, value)) for name, value in kwargs.items()}))
            result = lowered(s, dispatch_of(s, mode).call(s, values, {}))
        finally:
            stack.append(mode)
            note(s)
        self.made = result if is_factory(func) else None
        return result


@lru_cache(maxsize=256)
def is_factory(op: OpOverload) -> bool:
    """`torch.ones_like` and the like, which have options of a new tensor."""
    return any(argument.name == "pin_memory" for argument in op._schema.arguments)


def dispatch_of(s: CaptureState, mode: Object) -> Value:
    """The program's `__torch_dispatch__`: torch wraps it to keep its own compiler out."""
    found = mode.get_attr(s, "__torch_dispatch__")
    function = found.function if isinstance(found, BoundMethod) else None
    original = function.original if isinstance(function, Function) else None
    if function is None or original is None or "__wrapped__" not in original.__dict__:
        return found
    return BoundMethod(function.get_attr(s, "__wrapped__"), mode)
