"""`torch.inference_mode()` inside of a frame: it is recorded in that mode, and the log says that gradients are off.

    with torch.inference_mode():
        t = teacher(x)                   autograd refuses to save `t` for a backward, as in eager
    loss = (student(x) - t).mean()

The plan runs in the mode of the caller: a result that is made within becomes an inference tensor behind the region.
Where the graph ends within, it breaks in front of the mode.
"""

from __future__ import annotations

from dataclasses import field
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.collectives import Unfinished
from kiln.capture.interpreter.builtins.torch_functions import NONE, TorchModes
from kiln.capture.interpreter.core import HANDLERS, Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.tensor import here
from kiln.support.records import dataclass

ENTER, EXIT = "inference_mode.__enter__", "inference_mode.__exit__"


@final
@dataclass(frozen=True, eq=False)
class Entered:
    """`guard`: None where the mode was on already. `grad`: whether gradients were on."""

    context: Value
    guard: torch._C._InferenceMode | None
    grad: bool


@final
@dataclass(eq=False)
class InferenceModes:
    entered: list[Entered] = field(default_factory=list)


def set_grad_enabled(s: CaptureState, value: bool) -> None:
    HANDLERS[torch._C._set_grad_enabled](s, [Constant(value)], {})


@handles(torch.inference_mode.__enter__)
def enter(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    context, call = args[0], here(s)
    grad, is_on = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    if not context.get_attr(s, "mode").constant(s) or (is_on and grad):
        raise UnsupportedCall(function=ENTER, why="it is left for the normal mode")
    guard = None
    if not is_on:
        set_grad_enabled(s, False)
        guard = torch._C._InferenceMode(True)
        guard.__enter__()
        s.part(TorchModes).leave.append(guard)
    unfinished = s.part(Unfinished)
    unfinished.call = call
    unfinished.begin(context, ENTER, "the graph ends within")
    s.part(InferenceModes).entered.append(Entered(context, guard, grad))
    return NONE


@handles(torch.inference_mode.__exit__)
def leave(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    entered = s.part(InferenceModes).entered
    if not entered or entered[-1].context is not args[0]:
        raise UnsupportedCall(function=EXIT, why="the mode was entered in eager")
    last = entered.pop()
    s.part(Unfinished).end(args[0])
    if last.guard is not None:
        s.part(TorchModes).leave.remove(last.guard)
        last.guard.__exit__(None, None, None)
        set_grad_enabled(s, last.grad)
    return NONE
