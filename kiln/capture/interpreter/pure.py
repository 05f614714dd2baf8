"""Which callables written in C may be executed while tracing, and which are torch calls.

A pure function depends only on its arguments and has no side effects: a call with constants is executed and its
arguments are guarded. A confined one may also change its arguments, keep them, or call their methods: it is executed
on stand-ins for them (`native_calls.py`). Functions that use files, clocks or random numbers are never executed.
"""

from __future__ import annotations

import _json
import _pickle
import _random
import _thread
import collections
import io
import math
import operator
import os
import re
import sys
import types

import torch

from kiln.runtime.guards.reference import HEAP_TYPE
from kiln.support.optional import load

numpy = load("numpy")
normalize_axis = getattr(getattr(numpy, "lib", None), "array_utils", None)
normalize_axis = getattr(normalize_axis, "normalize_axis_index", None)
PURE_TYPES = (
    *(int, float, bool, complex, str, bytes, tuple, frozenset, range, slice, type(None), type(...)),
    *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.finfo, torch.iinfo),
    *(types.GenericAlias, types.UnionType, re.Pattern, re.Match),
    *((numpy.generic, numpy.dtype) if numpy is not None else ()),
)
"""Immutable types, whose methods are pure."""

PURE_MODULES = frozenset(("math", "_operator", "cmath", "unicodedata", "_struct"))
PURE_FUNCTIONS: tuple[object, ...] = (
    *(abs, ascii, bin, chr, divmod, format, hash, hex, len, max, min, oct, ord, pow, repr, round, sum, callable),
    *(torch.promote_types, torch.result_type, torch.can_cast, torch.finfo, torch.iinfo, torch.get_default_dtype),
    *(
        torch._C._accelerator_getAccelerator,
        torch._C._get_privateuse1_backend_name,
        torch.device,
        torch.is_floating_point,
        torch.is_complex,
    ),
    *(math.sqrt, operator.index, sys.intern, os.fspath),
    *((normalize_axis,) if normalize_axis is not None else ()),
)
IMMUTABLE_TYPE = 1 << 8
"""The flag of classes whose attributes cannot be set: of those with `HEAP_TYPE`, those that are written in C."""
CONFINED_MODULES = PURE_MODULES | {
    *("builtins", "itertools", "collections", "_collections", "functools", "_functools", "operator", "re", "_sre"),
    *("_heapq", "_bisect", "array", "binascii", "zlib", "_json", "_string", "_statistics", "_csv", "struct"),
    *("datetime", "_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512", "_sha3", "_blake2"),
}
"""Modules written in C whose functions and classes are confined."""
CONFINED_FUNCTIONS: tuple[object, ...] = (
    _pickle.dumps,
    *(all, any, enumerate, filter, iter, map, next, range, reversed, sorted, zip, getattr, setattr, delattr),
)
"""Those of `builtins`, besides the pure ones. On objects of C, attributes are fields."""
OF_THE_CLOCK = ("now", "utcnow", "today", "fromtimestamp", "utcfromtimestamp", "timestamp", "astimezone", "isocalendar")
"""Methods of `datetime` that depend on the time or the time zone of the machine, or give a tuple of another class."""
C_HEAP_CLASSES = (_random.Random, _json.make_encoder)
MAKERS: tuple[object, ...] = (_thread.allocate_lock, _thread.RLock)
CONFINED_CLASSES = (io.StringIO, io.BytesIO, _thread.RLock, _thread.LockType, _random.Random)
"""Others: streams in memory, and locks and generators of random numbers that only the frame knows."""
HOLDERS: tuple[object, ...] = (collections.deque,)
"""Classes that may hold tensors."""
NOT_CONFINED: tuple[type, ...] = (
    *(type, super, BaseException, staticmethod, classmethod, property, types.FunctionType, types.MethodType),
    *(types.ModuleType, types.FrameType, types.CodeType, types.GeneratorType, types.CoroutineType, types.CellType),
    *(types.AsyncGeneratorType, types.TracebackType, types.MethodWrapperType, types.BuiltinFunctionType),
    *(types.MappingProxyType, types.SimpleNamespace, types.GetSetDescriptorType, types.MemberDescriptorType),
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
)
"""Classes of `builtins` that reach beyond their instances."""
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
    if is_exit_of_context(function):
        return False
    owner = getattr(function, "__objclass__", None)
    if owner is None:
        bound = getattr(function, "__self__", None)
        if isinstance(bound, types.ModuleType):
            return bound.__name__ in PURE_MODULES
        owner = bound if isinstance(bound, type) else type(bound)
    if owner in PURE_TYPES:
        return True
    return getattr(function, "__module__", None) in PURE_MODULES


def is_confined(function: object) -> bool:
    """Whether a builtin depends on its arguments alone and changes nothing else; it may call their methods."""
    if isinstance(function, type):
        return is_confined_class(function)
    if is_pure(function) or any(function is known for known in (*MAKERS, *CONFINED_FUNCTIONS)):
        return True
    owner = getattr(function, "__objclass__", None)
    bound = getattr(function, "__self__", None)
    if owner is None and isinstance(bound, types.ModuleType):
        return bound.__name__ in CONFINED_MODULES and bound.__name__ != "builtins"
    if owner is None:
        owner = bound if isinstance(bound, type) else type(bound)
    if owner.__module__ == "datetime" and getattr(function, "__name__", "") in OF_THE_CLOCK:
        return False
    return is_confined_class(owner)


def holds(function: object) -> bool:
    """Whether a confined function, constructor or method, at most compares the arguments that it keeps."""
    return getattr(function, "__objclass__", function) in HOLDERS


def is_bound_outside(function: object) -> bool:
    """Whether it is a method bound to an object that it may change, such as `lock.__exit__` or `stream.write`."""
    owner = getattr(function, "__self__", None)
    return id(function) not in _PURE and not (owner is None or isinstance(owner, (types.ModuleType, type, *PURE_TYPES)))


def is_exit_of_context(function: object) -> bool:
    """Whether it leaves a context that the program has entered, such as `torch.device(0).__exit__`."""
    bound = getattr(function, "__self__", None)
    return bound is not None and isinstance(bound, PURE_TYPES) and getattr(function, "__name__", "") == "__exit__"


def is_confined_class(cls: type) -> bool:
    """Whether the methods and the constructor of a class written in C are confined."""
    if any(cls is other for other in CONFINED_CLASSES):
        return True
    known = is_written_in_c(cls) and cls.__module__ in CONFINED_MODULES
    return known and cls is not object and not issubclass(cls, NOT_CONFINED)


def is_written_in_c(cls: type) -> bool:
    return not cls.__flags__ & HEAP_TYPE or bool(cls.__flags__ & IMMUTABLE_TYPE) or cls in C_HEAP_CLASSES


def is_pure_class(cls: type) -> bool:
    """Whether calling a class written in C with constants makes an immutable object."""
    return id(cls) in _PURE


def is_world(function: object) -> bool:
    owner = getattr(function, "__objclass__", None)
    known = (*MAKERS, *CONFINED_CLASSES)
    if id(function) in _PURE or any(function is other or owner is other for other in known):
        return False
    return getattr(function, "__module__", None) in WORLD_MODULES


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
