"""Torch's Python functions: recorded as one call, answered while tracing, or changing torch's modes.

F.layer_norm(x, ...)              recorded as one torch call; its Python body is not interpreted
torch.compiler.is_compiling()     the argument `is_compiling` of `capture_frame`
torch._C._set_grad_enabled(x)     set now, logged, and set again by the transformed code
"""

from __future__ import annotations

import types
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import field
from typing import final

import torch

from kiln.capture.interpreter.breaks import SideEffectCall, UnsupportedCall
from kiln.capture.interpreter.builtins.torch_bodies import native_unless_replaced
from kiln.capture.interpreter.core import (
    HANDLERS,
    Args,
    CaptureState,
    Codegen,
    Handler,
    Kwargs,
    Value,
    handles,
)
from kiln.capture.interpreter.effects import SideEffect
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import NAMED_HANDLERS
from kiln.capture.interpreter.variables.sequence import List, all_items
from kiln.capture.interpreter.variables.tensor import Overrides, Tensor, record, recorded
from kiln.capture.interpreter.variables.tensor_names import HANDLED_METHODS, PYTHON_METHODS
from kiln.runtime.autocast_nesting import nesting, set_nesting
from kiln.runtime.eager_replay import SETTERS as SETTERS_IN_EAGER
from kiln.runtime.guards.constant import is_constant
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.reference import path_of
from kiln.runtime.guards.source import (
    AnswerSource,
    CallSource,
    ImportSource,
    ModuleGlobalSource,
    Source,
)
from kiln.support import compiling
from kiln.support.records import dataclass

NONE = Constant(None)
INTERPRETED = frozenset(
    (
        *("handle_torch_function", "has_torch_function", "boolean_dispatch", "gaussian_nll_loss"),
        *("multi_head_attention_forward", "_mha_shape_check", "_canonical_mask", "_none_or_dtype"),
        *("_in_projection", "_in_projection_packed"),
    )
)
"""`gaussian_nll_loss` has an `if` on values, whose other side raises; attention has products of its own, which torch
2.11 folds by plain sizes (`trace/products.py`)."""


def register_recorded(module: types.ModuleType) -> None:
    """Every Python function of a torch module is one call in the graph, unless it is given a callable to call."""
    for name, function in vars(module).items():
        if isinstance(function, types.FunctionType) and not name.startswith("__") and name not in INTERPRETED:
            HANDLERS.setdefault(function, native_unless_replaced(function, function))


for _module in (torch.nn.functional, torch.functional):
    register_recorded(_module)
PYTHON_METHODS.update({
    name: native_unless_replaced(name, method)
    for name, method in vars(torch.Tensor).items()
    if isinstance(method, types.FunctionType) and not name.startswith("_") and name not in HANDLED_METHODS
})  # fmt: skip


def answer(value: object) -> Handler:
    return lambda s, args, kwargs: Constant(value)


@handles(torch.compile)
def nested_compile(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    raise UnsupportedCall(function="torch.compile", why="it makes a function of another compiler")


@handles(torch.manual_seed, torch.seed)
def seed_generators(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    raise SideEffectCall(function="torch.manual_seed", why="the generators of all devices start anew")


ANSWERS: tuple[tuple[Hashable, object], ...] = (
    (torch._jit_internal.is_scripting, False),
    (torch.jit._trace.is_tracing, False),
    (torch._C._get_tracing_state, None),
    (torch.compiler.is_exporting, False),
    (torch._C._is_tracing, False),
    (torch._C._log_api_usage_once, None),
)
"""Queries with a fixed answer while tracing."""
if hasattr(torch._C, "_cuda_isCurrentStreamCapturing"):  # in builds with CUDA only
    ANSWERS += ((torch._C._cuda_isCurrentStreamCapturing, False),)
for _function, _value in ANSWERS:
    handles(_function)(answer(_value))
NAMED_HANDLERS["torch.onnx", "is_in_onnx_export"] = answer(False)
"""By name: torch loads that module when a program asks for it, which takes a tenth of loading the compiler."""


def overrides_torch(s: CaptureState, value: Value) -> bool:
    """Does its class have a `__torch_function__` of its own?"""
    if isinstance(value, Tensor) or value.is_constant:
        return False
    s.guard_type(value)
    if s.part(Overrides).disabled:
        return False
    own = getattr(value.python_type(), "__torch_function__", None)
    return own is not None and own is not torch._C._disabled_torch_function_impl


@handles(torch.overrides.has_torch_function)
def has_torch_function(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(bool(s.function_modes) or any(overrides_torch(s, arg) for arg in all_items(s, args[0])))


@handles(torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic)
def has_torch_function_variadic(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return Constant(bool(s.function_modes) or any(overrides_torch(s, arg) for arg in args))


@handles(torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling)
def is_compiling(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    s.asked_is_compiling = True
    s.says_is_compiling |= s.policy.is_compiling
    return Constant(s.policy.is_compiling)


@handles(compiling.is_compiling)
def is_compiling_by_kiln(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    s.says_is_compiling = True
    return Constant(True)


@handles(torch.is_tensor)
def is_tensor(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], Tensor):
        s.guard_type(args[0])
    return Constant(issubclass(args[0].python_type(), torch.Tensor))


QUERIES = (
    *(torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype, torch._C._get_cudnn_enabled),
    *(torch.is_autocast_enabled, torch.get_autocast_dtype, torch.is_autocast_cache_enabled, torch.get_num_threads),
    *(torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled, torch._C._get_math_sdp_enabled),
    *(torch._C._is_torch_function_enabled, torch.are_deterministic_algorithms_enabled, torch.cuda.is_available),
    *(torch.get_default_device, torch._C._len_torch_function_stack, torch._C._is_torch_function_mode_enabled),
    *(torch._C._is_any_autocast_enabled, torch._C._is_autocast_available, torch.cuda.is_bf16_supported),
    *(torch.cuda.device_count, torch.cuda.get_device_capability, torch.cuda.get_device_name),
    torch._C._get_privateuse1_backend_name,
    *[
        function
        for name, function in vars(torch.cpu).items()
        if name.startswith("_is_") and name.endswith("_supported")
    ],
)
"""Queries of the machine and of torch's global state."""
IN_THE_STATE = frozenset((
    torch.is_grad_enabled, torch.is_inference_mode_enabled, torch.get_default_dtype, torch.is_autocast_enabled,
    torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled, torch._C._get_math_sdp_enabled,
    torch._C._is_any_autocast_enabled, torch._C._is_torch_function_enabled, torch.are_deterministic_algorithms_enabled,
    torch._C._len_torch_function_stack, torch._C._is_torch_function_mode_enabled,
))  # fmt: skip
"""Those that the guard on the global state covers."""
SETTINGS = (torch.get_num_interop_threads, *[
    getattr(torch._C, f"_get_{name}")
    for name in (
        "blas_preferred_backend", "cpu_allow_fp16_reduced_precision_reduction",
        "cpu_capability",
        "cublas_allow_bf16_reduced_precision_reduction", "cublas_allow_fp16_accumulation",
        "cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_tf32", "cudnn_allow_tf32", "cudnn_benchmark",
        "cudnn_deterministic", "cudnn_sdp_enabled", "deterministic_algorithms", "deterministic_algorithms_warn_only",
        "deterministic_fill_uninitialized_memory", "float32_matmul_precision", "fp32_precision_getter",
        "linalg_preferred_backend", "math_sdp_allow_fp16_bf16_reduction", "mkldnn_deterministic", "mkldnn_enabled",
        "nnpack_enabled", "onednn_allow_tf32", "overrideable_sdp_enabled", "warnAlways",
    )
    if hasattr(torch._C, f"_get_{name}")
])  # fmt: skip
"""Settings of torch that Python code may ask for."""

Setter = Callable[..., object]
Scope = tuple[object, ...]


def query(function: Setter) -> Handler:
    """A query that the state does not cover is guarded by asking again, unless the frame changed the answer."""
    path = None if function in IN_THE_STATE else c_function(function)

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        scope = tuple([arg.constant(s) for arg in args])
        named = {name: arg.constant(s) for name, arg in kwargs.items()}
        value = function(*scope, **named)
        if named and path is not None:
            raise UnsupportedCall(function=str(path_of(function)), why="a guard cannot ask with keyword arguments")
        changed = any(SETTERS[setter][1] is function for setter, _ in s.part(TorchModes).at_entry)
        if path is None or changed or not (is_constant(value) and is_constant(scope)):
            return s.wrap(value, None)
        return Constant(value, CallSource(path, scope))

    return handler


def c_function(function: Setter) -> Source | None:
    """The path to a function of a module that is written in C."""
    module, _, name = path_of(function).partition(":")
    plain = isinstance(function, types.BuiltinFunctionType) and bool(name) and "." not in name
    return ModuleGlobalSource(module, name) if plain else None


for _query in QUERIES + SETTINGS:
    handles(_query)(query(_query))


@final
@dataclass
class TorchModes:
    """Modes that the program changed: setter and leading arguments -> the value at the entry of the frame."""

    at_entry: dict[tuple[Setter, Scope], object] = field(default_factory=dict)
    leave: list[AbstractContextManager[object]] = field(default_factory=list)
    """What was entered and not left."""
    asked_nesting: bool = False


def mode_key(function: Setter, scope: Scope) -> Hashable:
    return "mode", function, scope


@final
@dataclass(frozen=True)
class ModeEffect(SideEffect):
    """A mode of torch has a new value: `setter(*scope, value)`."""

    setter: Setter
    arguments: tuple[object, ...]

    @property
    def key(self) -> Hashable:
        return mode_key(self.setter, self.arguments[:-1])

    def emit(self, g: Codegen) -> None:
        g.run(self.setter, *self.arguments)


SETTERS: dict[Setter, tuple[str, Setter]] = {
    torch._C._set_grad_enabled: ("grad_enabled", torch.is_grad_enabled),
    torch.set_autocast_enabled: ("autocast", torch.is_autocast_enabled),
    torch.set_autocast_dtype: ("autocast_dtype", torch.get_autocast_dtype),
    torch.set_autocast_cache_enabled: ("autocast_cache", torch.is_autocast_cache_enabled),
    set_nesting: ("autocast_nesting", nesting),
    **{
        SETTERS_IN_EAGER[name]: (name, getattr(torch._C, f"_get_{name}_enabled"))
        for name in SETTERS_IN_EAGER
        if name.endswith("_sdp")
    },
}
"""Setters of modes -> (name in the log, getter with the same leading arguments)."""


def setter(function: Setter) -> Handler:
    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        set_mode(s, function, *[arg.constant(s) for arg in args])
        return NONE

    return handler


def set_mode(s: CaptureState, function: Setter, *arguments: object) -> None:
    name, getter = SETTERS[function]
    scope, value = arguments[:-1], arguments[-1]
    before = getter(*scope)
    # Restored at the end of the capture.
    s.part(TorchModes).at_entry.setdefault((function, scope), before)
    function(*arguments)
    if before != value:
        s.recorder.set_state(name, arguments if scope else value, stack=running_frame(s).locations())
        s.effects.replace(ModeEffect(function, arguments))


for _setter in SETTERS:
    handles(_setter)(setter(_setter))


def drop_unchanged_modes(s: CaptureState) -> None:
    """Drop the effects of modes that have the value they had at the entry."""
    for (function, scope), before in s.part(TorchModes).at_entry.items():
        getter = SETTERS[function][1]
        if getter(*scope) == before:
            s.effects.drop(mode_key(function, scope))


def restore_modes(s: CaptureState) -> None:
    """Set torch's modes to the values they had when the capture began."""
    entered = s.part(TorchModes).leave
    while entered:
        entered.pop().__exit__(None, None, None)
    for (function, scope), before in s.part(TorchModes).at_entry.items():
        function(*scope, before)


@handles(torch.autocast_increment_nesting)
def enter_autocast(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return nested_autocast(s, 1)


@handles(torch.autocast_decrement_nesting)
def leave_autocast(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    return nested_autocast(s, -1)


def nested_autocast(s: CaptureState, change: int) -> Value:
    depth = nesting()
    if not s.part(TorchModes).asked_nesting:
        s.part(TorchModes).asked_nesting = True
        s.guard(AnswerSource(ImportSource(torch.__name__), s.reference(nesting)), GuardKind.EQUALS, depth)
    set_mode(s, set_nesting, depth + change)
    return Constant(depth + change)


@handles(torch.clear_autocast_cache)
def clear_autocast_cache(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Where the outermost autocast ends, whose casts are forgotten already, or within one."""
    if nesting():
        raise UnsupportedCall(function="torch.clear_autocast_cache", why="it is called within an autocast")
    return NONE


def with_scalars(target: Callable[..., object]) -> Handler:
    """Of a call with a list of numbers, which are tensors where a step of an optimizer is recorded."""
    recorded_call = recorded(target)

    def handler(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        scalars = args[3] if len(args) == 4 else None
        if isinstance(scalars, List):
            items = scalars.items(s)
            numbers = [record(s, "item", [item], {}) if is_scalar(item) else item for item in items]
            args = [*args[:3], scalars.sibling(numbers)]
        return recorded_call(s, args, kwargs)

    return handler


def is_scalar(value: Value) -> bool:
    return isinstance(value, Tensor) and value.fake.dim() == 0


for _foreach in (torch._foreach_addcdiv_, torch._foreach_addcmul_):
    handles(_foreach)(with_scalars(_foreach))
