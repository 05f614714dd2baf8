"""Torch function modes that a frame enters: `with torch.device(...)`, and what `torch.vmap` of masks indexes by.

    with torch.device("cpu"):              the mode is on the stack of the capture, not on torch's
        return torch.zeros(3)              its `__torch_function__` is interpreted, with the modes below it active

Modes of torch itself look at calls that are recorded. One of the program may count or change any call, also those that
the capture answers by itself, such as `x.shape`: it breaks the graph. A break within a mode becomes one in front of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

import torch

import kiln.capture.interpreter.transform_polyfills as polyfills
from kiln.capture.interpreter.breaks import GraphBreak, PastStep, UnsupportedCall
from kiln.capture.interpreter.builtins.polyfilled import interpreted
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.tensor import MODE_RULES, here

MODE_RULES["torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex"] = interpreted(
    polyfills.index_by_tensors
)


@final
@dataclass
class EnteredModes:
    """Where the modes that are active were entered."""

    steps: list[PastStep] = field(default_factory=list)


@handles(torch._C._push_on_torch_function_stack)
def enter_mode(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    [mode] = args
    if not mode.python_type().__module__.startswith("torch."):
        why = "it may see or change calls that are not recorded"
        raise UnsupportedCall(function=f"{mode.type_name()}.__enter__", why=why)
    s.guard_type(mode)
    s.counters.unguarded += 1  # a repeated layer would not enter it
    s.function_modes.append(mode)
    s.part(EnteredModes).steps.append(here(s))
    return Constant(None)


@handles(torch._C._pop_torch_function_stack)
def leave_mode(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if not s.function_modes:
        raise UnsupportedCall(function="_pop_torch_function_stack", why="the mode was entered before the frame")
    s.part(EnteredModes).steps.pop()
    return s.function_modes.pop()


def break_before_modes(s: CaptureState) -> GraphBreak | None:
    """For a capture that ends in a mode: a break in front of it."""
    steps = s.part(EnteredModes).steps
    if not steps:
        return None
    stop = UnsupportedCall(function="TorchFunctionMode.__enter__", why="the frame ends or breaks within it")
    stop.before(steps[0]).at = steps[0].at
    return stop
