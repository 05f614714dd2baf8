"""Reads of variables from outside of the frame, in code whose result must not depend on what they hold.

    def hook(g): return g * scale        in a backward that runs later, `scale` may be another number by then
    @lru_cache
    def table(n): return n * scale       the cache may hold a result of an older `scale`

`CaptureState.watch` looks at each instruction of such code and breaks the graph at a read.
"""

from __future__ import annotations

import enum
import math
import types
from collections.abc import Callable, Iterable, Iterator

import torch

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame, top
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor

NAMES = frozenset(("LOAD_GLOBAL", "LOAD_GLOBAL_CALL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"))
VARIABLES = frozenset(("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"))
DEFINITIONS: list[type] = [
    *(type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
    *(enum.Enum, torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace, torch._ops._Ops),
]
FIXED = (torch, math)
"""Modules whose attributes (`torch.float32`, `math.pi`) do not change."""


def parts(s: CaptureState, values: Iterable[Value]) -> Iterator[Value]:
    """The values and, of tuples, the items."""
    for value in values:
        yield value
        if isinstance(value, Tuple):
            yield from parts(s, value.items(s))


def refuse_outside_reads(
    s: CaptureState, accepted: dict[int, Value], why: str, is_settled: Callable[[Value], bool] = lambda value: False
) -> None:
    """Break if the last instruction read a variable from outside; `accepted` are the values (by `id`) that are none.

    Modules, functions and classes are no variables; what is read from them is. What `is_settled` is none, either.
    """
    frame = running_frame(s)
    value = top(frame)
    if value is None or (id(value) in accepted and not is_attribute_of_outside(frame, value)):
        return
    if is_settled(value):
        return
    named = issubclass(value.python_type(), tuple(DEFINITIONS))
    if not named and is_read_from_outside(frame, value, accepted):
        raise UnsupportedCall(function=frame.code.co_qualname, why=why)
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
