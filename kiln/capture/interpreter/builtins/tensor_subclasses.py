"""How tensors of subclasses are made, and how programs go around their `__torch_function__`."""

from __future__ import annotations

import types
from typing import cast

import torch
from torch.utils._python_dispatch import return_and_correct_aliasing

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.builtins.function_modes import EnteredModes
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import all_items
from kiln.capture.interpreter.variables.subclass import (
    DEFAULT_FUNCTION,
    default_function,
    new_subclass,
    of_class,
    part_of,
)
from kiln.capture.interpreter.variables.tensor import Overrides, Tensor, here, record
from kiln.capture.interpreter.variables.tensor_names import METADATA_ATTRIBUTES, RECORDED_ATTRIBUTES
from kiln.graph.trace.fake import FakeTensor, make_fake_wrapper
from kiln.graph.trace.inputs import is_wrapper_class

POSITIONAL = ("strides", "storage_offset", "memory_format")
METADATA = frozenset(("strides", "storage_offset", "dtype", "layout", "device", "requires_grad", "memory_format"))


@handles(torch.Tensor._make_wrapper_subclass)
def make_wrapper_subclass(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """A wrapper without attributes: `__init__` sets its inner tensors."""
    cls, size, *rest = args
    kwargs = {**dict(zip(POSITIONAL, rest, strict=False)), **kwargs}
    if len(rest) > len(POSITIONAL) or kwargs.keys() - METADATA:
        raise UnsupportedCall(function="Tensor._make_wrapper_subclass", why="it gets more than plain metadata")
    named = {name: value.torch_arg(s) for name, value in kwargs.items()}
    kind = cls.constant(s)
    if named.pop("requires_grad", False):
        raise UnsupportedCall(function=kind.__name__, why="it makes a wrapper that requires gradients")
    sizes = [int(number) for number in cast(list[int], size.torch_arg(s))]
    if named.get("strides") is not None:
        named["strides"] = [int(number) for number in cast(list[int], named["strides"])]
    outer = make_fake_wrapper(FakeTensor, sizes, **named)
    outer.is_outer = True
    return new_subclass(s, Object(kind), outer, None)


def read(name: str) -> Handler:
    """`Tensor.shape.__get__(w)`, as which `__torch_function__` gets a read of an attribute."""
    return lambda s, args, kwargs: args[0].get_attr(s, name)


for _name in METADATA_ATTRIBUTES | RECORDED_ATTRIBUTES:
    _getter = getattr(torch.Tensor, _name, None)
    if isinstance(_getter, types.GetSetDescriptorType):
        handles(_getter.__get__)(read(_name))


@handles(torch.Tensor.as_subclass)
def as_subclass(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    tensor, cls = args
    part = part_of(tensor)
    plain = part.inner if part is not None else tensor
    kind = cls.constant(s)
    if not isinstance(plain, Tensor) or is_wrapper_class(kind):
        raise UnsupportedCall(function="Tensor.as_subclass", why="it makes or takes a wrapper")
    alias = record(s, "view_as", [plain, plain], {})
    assert isinstance(alias, Tensor)
    return alias if kind is torch.Tensor else of_class(s, alias, kind)


@handles(DEFAULT_FUNCTION)
def inherited_function(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`super().__torch_function__(func, types, args, kwargs)`."""
    cls, function, kinds, *rest = args
    if not all([issubclass(cls.constant(s), kind.constant(s)) for kind in all_items(s, kinds)]):
        return s.const(NotImplemented)
    given = rest[0] if rest else kwargs.get("args", s.const(()))
    named = rest[1] if len(rest) > 1 else kwargs.get("kwargs")
    return default_function(s, cls.constant(s), function, given, named)


@handles(torch._C.DisableTorchFunctionSubclass)
def no_torch_function(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    made = s.part(EnteredModes).made
    made.append(here(s))
    return s.wrap(polyfills.NoTorchFunction, None).call(s, [s.const(len(made) - 1)], {})


@handles(polyfills.disable_overrides)
def disable_overrides(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """A break within it is one in front of the call that made it: `with` enters torch's own object there."""
    overrides, modes = s.part(Overrides), s.part(EnteredModes)
    before, overrides.disabled = overrides.disabled, True
    modes.calls.append(("DisableTorchFunctionSubclass", modes.made[args[0].constant(s)]))
    return s.const(before)


@handles(polyfills.restore_overrides)
def restore_overrides(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    s.part(Overrides).disabled = bool(args[0].constant(s))
    s.part(EnteredModes).calls.pop()
    return s.const(None)


@handles(return_and_correct_aliasing)
def correct_aliasing(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """What an operator returns: of one that changes its first argument in place, that argument."""
    function, given, _, out = args
    schema = function.constant(s)._schema
    if schema.is_mutable:
        first = given.get_item(s, s.const(0))
        alias = schema.arguments[0].alias_info
        if alias is None or not alias.is_write:
            raise UnsupportedCall(function=str(schema.name), why="it writes to another argument than its first")
        return first
    return out
