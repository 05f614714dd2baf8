"""`torch.func` and `torch.vmap`: torch's Python is interpreted, its C functions run on the fakes.

    vmap(f)(x)      level = _vmap_increment_nesting(4, "error");  b = _add_batch_dim(x, 0, level)
                    y = f(b)        operators dispatch to torch's batching rules, which call plain operators on fakes
                    _remove_batch_dim(y, level, 4, 0);  _vmap_decrement_nesting()

All of these are torch calls of the log; the graph has the plain operators only. Levels that a capture leaves open
(it ended within) are closed at its end. A break within a transform, or within a level of `torch.autograd.forward_ad`,
becomes a break in front of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field
from types import FunctionType, SimpleNamespace
from typing import cast, final

import torch
from torch._C import _functorch as levels

import kiln.capture.interpreter.transform_polyfills as polyfills
from kiln.capture.interpreter.breaks import GraphBreak, PastStep, UnsupportedCall
from kiln.capture.interpreter.builtins.polyfilled import interpreted
from kiln.capture.interpreter.core import Args, CaptureState, Handler, Kwargs, Value, handles
from kiln.capture.interpreter.data_values import past_step
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.tensor import record, recorded
from kiln.support.records import dataclass

NONE = Constant(None)


def space_of(function: object) -> SimpleNamespace:
    """The globals of the function that `function` decorates."""
    unwrapped = inspect.unwrap(cast(FunctionType, function))
    return SimpleNamespace(**unwrapped.__globals__)


eager_transforms = space_of(torch.func.jvp)
predispatch = space_of(space_of(space_of(torch.func.vmap).vmap_impl)._add_batch_dim)
"""Namespaces of torch's own modules, whose functions are recognised here. Which C functions the second one wraps
differs by version of torch."""


@final
@dataclass
class OpenLevels:
    """What closes the levels that are open, innermost last, and where they were opened."""

    closing: list[Callable[[], object]] = field(default_factory=list)
    opened: list[PastStep] = field(default_factory=list)

    def open(self, close: Callable[[], object], frame: SymbolicFrame) -> None:
        self.closing.append(close)
        while frame.parent is not None and frame.decoded.in_library:
            frame = frame.parent
        self.opened.append(past_step(frame))

    def close(self) -> None:
        self.closing.pop()
        self.opened.pop()


def opens(function: Callable[..., object], close: Callable[[], object]) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        s.counters.unguarded += 1  # a repeated layer would repeat levels
        level = record(s, function, args, kwargs)
        s.part(OpenLevels).open(close, running_frame(s))
        return level

    return handler


def closes(function: Callable[..., object]) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        s.part(OpenLevels).close()
        return record(s, function, args, kwargs)

    return handler


def close_levels(s: CaptureState) -> None:
    """Close what a capture that ended early has left open."""
    closing = s.part(OpenLevels).closing
    while closing:
        closing.pop()()
        levels.set_inplace_requires_grad_allowed(False)
        torch._C._set_fwd_grad_enabled(True)


def break_before_levels(s: CaptureState) -> GraphBreak | None:
    """For a capture that ends within a level: a break in front of it."""
    opened = s.part(OpenLevels).opened
    if not opened:
        return None
    why = "the frame ends or breaks within the level"
    return UnsupportedCall(function="enter_dual_level", why=why).before(opened[0])


for _kind in ("vmap", "grad", "jvp"):
    _open, _close = (getattr(levels, f"_{_kind}_{way}_nesting") for way in ("increment", "decrement"))
    for _module in (levels, predispatch):
        for _way, _handler in (("increment", opens(_open, _close)), ("decrement", closes(_close))):
            if (_function := getattr(_module, f"_{_kind}_{_way}_nesting", None)) is not None:
                handles(_function)(_handler)

for _name in ("_add_batch_dim", "_remove_batch_dim", "_wrap_for_grad", "_unwrap_for_grad", "_unwrap_batched"):
    for _module in (levels, predispatch):
        if (_function := getattr(_module, _name, None)) is not None:
            handles(_function)(recorded(getattr(levels, _name)))


def wrapped(name: str, function: Callable[..., object]) -> list[Callable[..., object]]:
    """`function`, and what wraps it in this torch."""
    return [function, *([getattr(predispatch, name)] if hasattr(predispatch, name) else [])]


@handles(*wrapped("_enter_dual_level", torch._C._enter_dual_level))
def enter_dual_level(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    s.counters.unguarded += 1
    level = record(s, torch._C._enter_dual_level, args, kwargs)
    number = level.constant(s)
    s.part(OpenLevels).open(lambda: torch._C._exit_dual_level(level=number), running_frame(s))
    return level


handles(*wrapped("_exit_dual_level", torch._C._exit_dual_level))(closes(torch._C._exit_dual_level))
handles(*wrapped("_make_dual", torch._VF._make_dual))(recorded(torch._VF._make_dual))
handles(*wrapped("_unpack_dual", torch._VF._unpack_dual))(recorded(torch._VF._unpack_dual))
handles(torch._C._set_fwd_grad_enabled)(recorded(torch._C._set_fwd_grad_enabled))


def immediate(function: Callable[..., object]) -> Handler:
    """A question about levels or tensors, or a setting that only matters inside of a level: answered now."""

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        return s.wrap(function(*[arg.torch_arg(s) for arg in args]), None)

    return handler


for _name in (
    "get_inplace_requires_grad_allowed", "is_batchedtensor", "is_gradtrackingtensor", "is_functorch_wrapped_tensor",
    "is_functionaltensor", "maybe_get_level", "maybe_get_bdim", "current_level", "maybe_current_level",
):  # fmt: skip
    if hasattr(levels, _name):
        handles(getattr(levels, _name))(immediate(getattr(levels, _name)))
handles(levels.set_inplace_requires_grad_allowed)(recorded(levels.set_inplace_requires_grad_allowed))
for _function in (torch._C._is_fwd_grad_enabled, torch._C._are_functorch_transforms_active):
    handles(_function)(immediate(_function))
handles(levels.get_unwrapped)(recorded(levels.get_unwrapped))


@handles(
    torch._C._autograd._saved_tensors_hooks_get_disabled_error_message,
    torch._C._autograd._saved_tensors_hooks_disable,
    torch._C._autograd._saved_tensors_hooks_enable,
)
def saved_tensors_hooks_state(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Transforms forbid hooks on saved tensors; a capture has none."""
    return NONE


@handles(predispatch.lazy_load_decompositions)
def lazy_load_decompositions(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Registers torch's rules for some operators, once per process, as eager does."""
    predispatch.lazy_load_decompositions()
    return NONE


@handles(torch.autograd.forward_ad._maybe_load_decompositions)
def load_jvp_decompositions(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Likewise, for forward mode."""
    torch.autograd.forward_ad._maybe_load_decompositions()
    return NONE


handles(eager_transforms._autograd_grad)(interpreted(polyfills.autograd_grad))
handles(eager_transforms.linearize)(interpreted(polyfills.linearize))
handles(eager_transforms.functionalize)(interpreted(polyfills.functionalize))
