"""Special methods of tensors that are no torch calls: of the fake tensor in its place they would tell of the fake.

x.__repr__()          as repr(x)
x.__reduce_ex__(2)    breaks the graph
"""

from __future__ import annotations

from collections.abc import Callable

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import HANDLERS, Args, CaptureState, Kwargs, Value

COMPARISONS = {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"}
PROTOCOL = {*dir(object)} - COMPARISONS | {
    *("__iter__", "__deepcopy__", "__setstate__", "__array_wrap__", "__dlpack__", "__torch_function__"),
    *("__torch_dispatch__", "_typed_storage", "_reduce_ex_internal"),
}
BUILT_INS: dict[str, Callable[..., object]] = {
    "__str__": str, "__repr__": repr, "__iter__": iter, "__getattribute__": getattr, "__setattr__": setattr,
    "__delattr__": delattr,
}  # fmt: skip
"""Functions that do what a method does."""


def call_protocol(s: CaptureState, name: str, args: Args, kwargs: Kwargs) -> Value:
    handler = HANDLERS.get(BUILT_INS.get(name))
    if handler is None:
        raise UnsupportedCall(function=f"Tensor.{name}", why="it is no operator of torch")
    return handler(s, args, kwargs)
