"""What stands beside a tensor in an operator: another tensor, what torch takes as one, or an object of the program.

tensor * 2          torch's
tensor * w          `w` of a subclass of Tensor: special methods, which ask its `__torch_function__`
scale * tensor      `scale` of another class: its `__mul__`; `tensor * scale` is its `__rmul__`
"""

from __future__ import annotations

import torch

from kiln.capture.interpreter.core import CaptureState, Value
from kiln.capture.interpreter.variables.object import PLAIN_ARGUMENTS, Object
from kiln.capture.interpreter.variables.tensor import Tensor


def are_of_subclasses(*values: Value) -> bool:
    """Tensors, of which one is the object of a subclass, or has `__torch_function__` without being a tensor. A sparse
    tensor is no `Tensor` here."""
    others = {value.python_type() for value in values if not isinstance(value, Tensor)}
    return not others <= {torch.Tensor} and all(hasattr(kind, "__torch_function__") for kind in others)


def is_unknown(s: CaptureState, value: Value) -> bool:
    """Whether a value is an object of the program that is no tensor and no number."""
    if not isinstance(value, Object) or value.native is not None or hasattr(value.cls, "__torch_function__"):
        return False
    return not isinstance(s.model.plain(s, value), PLAIN_ARGUMENTS)


def refuses(s: CaptureState, name: str, other: Value) -> bool:
    """Whether a special method of tensors answers NotImplemented: `__rtruediv__` multiplies by the reciprocal."""
    return name != "__rtruediv__" and is_unknown(s, other)
