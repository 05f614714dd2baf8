"""Attributes of tensors that torch defines and a program may set, and parameters made in the frame.

w.data = w.data * 2              logged as `set_data(w, %1)`; a `w` from outside gets its new memory behind the region
w.grad = None                    an effect
x.requires_grad = True           logged as `x.requires_grad_(True)`; an `x` from outside is marked behind the region
nn.Parameter(torch.ones(3))      logged; leaving the region, it becomes a parameter again
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedAttribute, UnsupportedCall
from kiln.capture.interpreter.builtins.leaf_gradients import fake_of, write_gradient
from kiln.capture.interpreter.core import Args, CaptureState, Codegen, Kwargs, Value, handles
from kiln.capture.interpreter.effects import SideEffect
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.tensor import SETTABLE, RegionInputs, Tensor, record
from kiln.graph.trace.fake import is_wrapped
from kiln.graph.trace.recorder import same_layout
from kiln.graph.trace.set_data import set_data
from kiln.support.records import dataclass
from kiln.symbolic import is_static


def refused(name: str, why: str) -> UnsupportedAttribute:
    return UnsupportedAttribute(name=name, type="Tensor", why=why)


@final
@dataclass(frozen=True)
class DataEffect(SideEffect):
    """A tensor from outside has other memory: that of `value`, which nothing else refers to."""

    tensor: Tensor
    value: Value
    writes = True

    @property
    def key(self) -> Hashable:
        return "data", id(self.tensor)

    def emit(self, g: Codegen) -> None:
        g.emit(self.value)
        g.emit(self.tensor)
        g.body.op("STORE_ATTR", "data")


def assign_data(s: CaptureState, tensor: Tensor, value: Value | None) -> None:
    if not isinstance(value, Tensor) or is_wrapped(value.fake) or is_wrapped(tensor.fake):
        raise refused("data", "it is set to something else than a tensor")
    old, new = tensor.fake.storage_view.spec, value.fake.storage_view.spec
    if (old.dtype, old.device) != (new.dtype, new.device):
        raise refused("data", "it is set to a tensor of another dtype or device")
    numbers = (*old.sizes, *old.strides, *new.sizes, *new.strides)
    placed = new.with_view(new.sizes, new.strides, old.offset)
    if not same_layout(old, placed, s.recorder.env) and not all(map(is_static, numbers)):
        raise refused("data", "it is set to a tensor of other sizes, which are symbols")
    if tensor.fake.requires_grad and tensor.source is not None and old.sizes != new.sizes:
        raise refused("data", "it is set to a tensor of other sizes, and the region may return a gradient for it")
    if not tensor.fake.is_leaf or tensor.fake._is_view():
        raise refused("data", "it is set on a tensor with a gradient function, or on a view")
    kept = record(s, getattr, [value, s.const("data")], {})
    record(s, set_data, [tensor, kept], {})
    s.counters.unguarded += 1  # a repeated layer would write to another tensor
    if tensor.source is not None:
        s.effects.replace(DataEffect(tensor, kept))
    elif tensor.original is not None:
        raise refused("data", "the tensor has no path from the arguments of the frame")


@final
@dataclass(frozen=True)
class RequiresGradEffect(SideEffect):
    """A leaf from outside begins or ceases to require gradients."""

    leaf: Tensor
    writes = True

    @property
    def key(self) -> Hashable:
        return "requires_grad", id(self.leaf)

    def emit(self, g: Codegen) -> None:
        g.emit(g.state.const(self.leaf.fake.requires_grad))
        g.emit(self.leaf)
        g.body.op("STORE_ATTR", "requires_grad")


@handles(torch.Tensor.requires_grad_)
def requires_grad_(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """A leaf that begins to require gradients gets none from results of the region: see `refuse_own_leaves`."""
    tensor = args[0]
    if not isinstance(tensor, Tensor):
        wanted = [*args[1:], *kwargs.values(), Constant(True)][0].constant(s)
        outer = fake_of(tensor)
        if outer is None or outer.requires_grad != wanted:
            raise UnsupportedCall(function="Tensor.requires_grad_", why=f"it changes a {tensor.type_name()}")
        return tensor
    s.part(RegionInputs).note_asked(tensor, "requires_grad_")
    real, before = tensor.original, tensor.fake.requires_grad
    result = record(s, "requires_grad_", args, kwargs)
    if before != tensor.fake.requires_grad and real is not None:
        if is_wrapped(tensor.fake) or tensor.source is None or not real.is_leaf:
            why = "it makes an input of the region require gradients, or ceases to"
            raise UnsupportedCall(function="Tensor.requires_grad_", why=why).of_recorded_call()
        s.part(RegionInputs).asked_is_leaf.add(id(tensor.fake))
        s.counters.unguarded += 1  # a repeated layer would mark another tensor
        s.effects.note(RequiresGradEffect(tensor))
    return result


def assign_requires_grad(s: CaptureState, tensor: Tensor, value: Value | None) -> None:
    if value is None or value.python_type() is not bool:
        raise refused("requires_grad", "it is set to something else than a truth value")
    requires_grad_(s, [tensor, value], {})


SETTABLE.update(data=assign_data, grad=write_gradient, requires_grad=assign_requires_grad)


@handles(torch.Tensor._make_subclass)
def make_subclass(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """`Tensor._make_subclass(cls, data, requires_grad)`, with which `nn.Parameter` and `nn.Buffer` are made."""
    cls, data, *rest = args
    kind = cls.constant(s)
    if kind is not torch.nn.Parameter or not isinstance(data, Tensor) or kwargs:
        raise UnsupportedCall(function="Tensor._make_subclass", why=f"it makes a {kind.__name__}")
    return record(s, torch.nn.Parameter, [data, *rest], {})


@handles(torch.Tensor._is_view)
def is_view(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Of a tensor from outside this is not guarded."""
    if isinstance(args[0], Tensor) and args[0].original is not None:
        raise UnsupportedCall(function="Tensor._is_view", why="it may be a view in one call and none in another")
    if isinstance(args[0], Tensor):
        s.part(RegionInputs).note_asked(args[0], "_is_view")
    return record(s, "_is_view", args, kwargs)
