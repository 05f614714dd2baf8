"""Torch's modes around a compile: those under which nothing is compiled, and those hidden from the compiler.

with SomeTorchFunctionMode(): compiled(x)       the original runs, so that the mode sees each call
with torch.device("cuda"): compiled(x)          compiles, guarded by the device; so under `torch.set_default_device`
with saved_tensors_hooks(pack, unpack): ...     the original runs, so that `pack` sees what eager saves, unless
                                                `pack.preserves_values`, or the hooks are torch's own
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch._C import TensorBase
from torch.autograd import forward_ad
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from kiln.native._frames import watch_cuda_device
from kiln.runtime.guards.guard import Guard, GuardKind
from kiln.runtime.guards.reference import reference
from kiln.runtime.guards.source import AttrSource, CallSource, ModuleGlobalSource
from kiln.runtime.guards.state import current_state
from kiln.support.errors import KilnError


class UnknownMode(KilnError):
    code = "KILN1091"
    what = "`{function}` is called under {mode}"
    why = "the mode may see or change every torch call, so they are made one by one"
    try_ = ("call the compiled function outside of it", "compile the function that contains it")


class HooksOfSavedTensors(KilnError):
    code = "KILN1092"
    what = "`{function}` is called within `saved_tensors_hooks`"
    why = "the hooks may change what eager's formulas of gradients read, which compiled code does not save"
    try_ = (
        "set `pack.preserves_values = True` on the function that packs, if what is unpacked equals what was packed",
        "enter hooks that unpack what they packed, or copies of it, in the compiled function",
    )


READ_BY_COMPILER = ("size", "stride", "dim", "dtype", "device", "requires_grad", "is_leaf")
"""Of tensors. Where the program replaces one of them, the compiler would be told something else than torch."""


def unknown_mode() -> str:
    """The mode of this thread under which a compiled region may differ from its calls; "" for none."""
    state = current_state()
    if state.functorch:
        return "a transform of torch.func"
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    if state.dispatch_modes:
        return f"{state.dispatch_modes} TorchDispatchMode(s)"
    if state.function_modes and not only_devices():
        return f"{state.function_modes} TorchFunctionMode(s)"
    if state.other:
        return "a mode of torch's dispatcher that Kiln does not know"
    own = vars(torch.Tensor)
    replaced = [name for name in READ_BY_COMPILER if own.get(name, plain := getattr(TensorBase, name)) is not plain]
    return f"another `torch.Tensor.{replaced[0]}`" if replaced else ""


def watched_autograd() -> str:
    """A mode in which autograd looks at the nodes of a backward, which a compiled one has not."""
    return "anomaly detection" if torch.is_anomaly_enabled() or not torch.is_anomaly_check_nan_enabled() else ""


def mode_to_run_eager(function: str) -> KilnError | None:
    """Why `function`, called now, runs eager: the mode of this thread."""
    if mode := unknown_mode() or watched_autograd():
        return UnknownMode(function=function, mode=mode)
    return HooksOfSavedTensors(function=function) if current_state().saved_hooks else None


def only_devices() -> bool:
    """Whether the only function modes are those of `torch.set_default_device` and `with torch.device(...)`."""
    return all(type(mode) is DeviceContext for mode in _get_current_function_mode_stack())


def watch_current_device() -> None:
    """With several GPUs, guards check which one is current."""
    if torch.cuda.is_initialized() and torch.cuda.device_count() > 1:
        watch_cuda_device()


def mode_guards() -> list[Guard]:
    """Guards beside the word of global state: no forward-mode level, and the default device, in the number of modes."""
    guards = [Guard(ModuleGlobalSource(forward_ad.__name__, "_current_level"), GuardKind.EQUALS, -1)]
    asked = AttrSource(ModuleGlobalSource("torch", "_C"), "_get_function_stack_at")
    modes = _get_current_function_mode_stack()
    for place in range(len(modes)):
        guards.append(Guard(CallSource(asked, (place,)), GuardKind.TYPE_IS, reference(DeviceContext)))
    if modes:  # the innermost is asked first
        innermost = AttrSource(CallSource(asked, (len(modes) - 1,)), "device")
        guards.append(Guard(innermost, GuardKind.EQUALS, modes[-1].device))
    if torch.are_deterministic_algorithms_enabled():  # what `torch.empty` then does
        asked = AttrSource(ModuleGlobalSource("torch", "_C"), "_get_deterministic_fill_uninitialized_memory")
        fills = torch._C._get_deterministic_fill_uninitialized_memory()
        guards.append(Guard(CallSource(asked), GuardKind.EQUALS, fills))
    return guards


@contextmanager
def without_autograd_observers() -> Iterator[None]:
    """Hides what the compiler records from the user's saved-tensor hooks and anomaly detection."""
    anomaly, check_nan = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    hooks = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    torch.set_anomaly_enabled(False)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(hooks)
        torch.set_anomaly_enabled(anomaly, check_nan)


Found = TypeVar("Found")


def outside_engine(body: Callable[[], Found]) -> Found:
    """`body()` in a thread of its own: within a backward, a node asks the engine which gradients are needed."""

    def run() -> Found:
        with torch.no_grad():
            return body()

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(run).result()
