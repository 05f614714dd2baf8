"""Python that the backward runs: hooks of tensors and the backward of `torch.autograd.Function`.

    y.register_hook(lambda g: g * scale)     interpreted when the joint graph is made, in a nested frame

If it runs later than the region, what it reads from outside (a global number, a variable shared with other functions,
an attribute of a class) may have changed by then. Such a read breaks the graph, and so does a write (`changes`). In a
backward that the region itself runs (`loss.backward()`) it is a read like any other.
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.torch_functions import TorchModes
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame, top
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor
from kiln.graph.trace.recorder import nested_calls

LATER = "it reads a variable from outside of the region, which may change before the backward"
NAMES = frozenset(("LOAD_GLOBAL", "LOAD_GLOBAL_CALL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
VARIABLES = frozenset(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"))
DEFINITIONS: list[type] = [
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(enum.Enum, torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace, torch._ops._Ops),
]
FIXED = (torch, math)
"""Modules whose attributes (`torch.float32`, `math.pi`) do not change."""


@contextmanager
def backward_frame(s: CaptureState, frame: SymbolicFrame, known: Iterable[Value] | None) -> Iterator[None]:
    """Interpret as a part of the backward, called by `frame`; `known`: what the code has since the forward.

    None: it may read variables from outside. The tables of a `__torch_dispatch__` are the same in the backward.
    """
    modes = s.part(TorchModes)
    before = s.frame, modes.at_entry, s.policy, s.watch
    s.frame, modes.at_entry = frame, {}
    s.policy = replace(s.policy, scalars=None)  # backward has no inputs of its own
    if known is not None and s.recorder.is_differentiating:
        s.watch = partial(refuse_outside_reads, s, {id(value): value for value in parts(s, known)})
    try:
        with nested_calls(s.recorder):
            yield
    finally:
        s.frame, modes.at_entry, s.policy, s.watch = before


def parts(s: CaptureState, values: Iterable[Value]) -> Iterator[Value]:
    """The values and, of tuples, the items."""
    for value in values:
        yield value
        if isinstance(value, Tuple):
            yield from parts(s, value.items(s))


def refuse_outside_reads(s: CaptureState, accepted: dict[int, Value]) -> None:
    """Break if the last instruction read a variable from outside; `accepted` are the values (by `id`) that are none.

    Modules, functions and classes are no variables; what is read from them is.
    """
    frame = running_frame(s)
    value = top(frame)
    if value is None or (id(value) in accepted and not is_attribute_of_outside(frame, value)):
        return
    named = issubclass(value.python_type(), tuple(DEFINITIONS))
    if not named and is_read_from_outside(frame, value, accepted):
        raise UnsupportedCall(function=frame.code.co_qualname, why=LATER)
    if not named:
        accepted[id(value)] = value


def is_attribute_of_outside(frame: SymbolicFrame, value: Value) -> bool:
    """Whether it was read again from an object of the program, which may have another by the time of the backward."""
    if value.source is None or frame.decoded.instruction(frame.at).name != "LOAD_ATTR":
        return False
    owner = frame.saved[-1]
    return isinstance(owner, Object) and owner.source is not None


def is_read_from_outside(frame: SymbolicFrame, value: Value, accepted: dict[int, Value]) -> bool:
    instruction = frame.decoded.instruction(frame.at)
    if instruction.name == "LOAD_FAST":
        return False  # read before, or the default of a parameter
    if instruction.name in NAMES:
        return True
    if instruction.name in VARIABLES:
        return frame.cells[str(instruction.arg)].original is not None
    owner = frame.saved[-1] if instruction.name == "LOAD_ATTR" else None
    if isinstance(owner, Object) and owner.foreign is not None and id(owner) in accepted:
        return False  # what is inside of a tensor that was kept for the backward
    if owner is None or id(owner) in accepted:
        return value.source is not None
    if owner.real() in FIXED or issubclass(owner.python_type(), enum.Enum):
        return False
    return value.source is not None or (owner.source is not None and not isinstance(owner, Tensor))
