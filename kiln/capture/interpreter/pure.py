"""Which callables written in C may be executed while tracing, and which are torch calls.

A pure function depends only on its arguments and has no side effects: a call with constants is executed and its
arguments are guarded. Functions that use files, clocks or random numbers are never executed while tracing.
"""

from __future__ import annotations

import math
import operator
import re
import types

import torch

PURE_TYPES = (
    *(int, float, bool, complex, str, bytes, tuple, frozenset, range, slice, type(None), type(...)),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.finfo, torch.iinfo),
    *(types.GenericAlias, types.UnionType, re.Pattern, re.Match),
)
"""Immutable types, whose methods are pure."""

PURE_MODULES = frozenset(("math", "_operator", "cmath", "unicodedata", "_struct"))
PURE_FUNCTIONS: tuple[object, ...] = (
    *(abs, ascii, bin, chr, divmod, format, hash, hex, len, max, min, oct, ord, pow, repr, round, sum, callable),
    *(torch.promote_types, torch.result_type, torch.can_cast, torch.finfo, torch.iinfo, torch.get_default_dtype),
    *(torch._C._get_privateuse1_backend_name, torch.device, torch.is_floating_point, torch.is_complex),
    *(math.sqrt, operator.index),
)
WORLD_MODULES = frozenset(
    ("time", "posix", "_random", "random", "_io", "sys", "_thread", "select", "socket", "_socket", "signal", "gc")
)

_PURE = frozenset(id(function) for function in PURE_FUNCTIONS)
TORCH_MODULES = frozenset(f"torch._C.{name}" for name in ["_nn", "_linalg", "_special", "_fft", "_sparse", "_nested"])
TORCH_OWNERS = frozenset(("TensorBase", "_TensorBase", "Tensor"))


def is_pure(function: object) -> bool:
    """Whether a builtin may be executed on constants while tracing."""
    if id(function) in _PURE:
        return True
    owner = getattr(function, "__objclass__", None)
    if owner is None:
        bound = getattr(function, "__self__", None)
        if isinstance(bound, types.ModuleType):
            return bound.__name__ in PURE_MODULES
        owner = bound if isinstance(bound, type) else type(bound)
    if owner in PURE_TYPES:
        return True
    return getattr(function, "__module__", None) in PURE_MODULES


def is_pure_class(cls: type) -> bool:
    """Whether calling a class written in C with constants makes an immutable object."""
    return id(cls) in _PURE


def is_world(function: object) -> bool:
    module = getattr(function, "__module__", None)
    return module in WORLD_MODULES


def is_torch_call(function: object) -> bool:
    """Whether a callable written in C is a torch operation that belongs in the graph."""
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return True
    if getattr(function, "__qualname__", "").startswith("_VariableFunctionsClass."):
        return True
    owner = getattr(function, "__self__", None)
    if isinstance(owner, types.ModuleType) and owner.__name__ in TORCH_MODULES:
        return True
    holder = getattr(function, "__objclass__", None)
    return holder is not None and holder.__name__ in TORCH_OWNERS
