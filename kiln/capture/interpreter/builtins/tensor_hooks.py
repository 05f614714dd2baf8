"""`Tensor.register_hook` and `Tensor.retain_grad` on tensors that the region makes.

    y.register_hook(lambda g: g * scale)     a nested frame when the joint graph is made: %9 = mul(%8, scale)

In the log of torch calls, `target(y, scale)` registers the program's function, made of what it captures. A break or a
side effect in the hook restarts the capture and breaks at the call of `register_hook`. A gradient kept for a tensor
is seen only through that tensor: it matters if the tensor leaves the region, and breaks then. So does a hook: what asks
for the gradient of that tensor outside gets what the hook makes of all of it.

A hook that reads a variable from outside of the region breaks as well: see `backward_reads.py`.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from functools import partial
from typing import final

import torch
from torch.utils.hooks import RemovableHandle

from kiln.capture.interpreter.breaks import GraphBreak, PastStep, Raised, UnsupportedCall
from kiln.capture.interpreter.builtins.backward_reads import LATER, backward_frame
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Codegen, Kwargs, Value, handles
from kiln.capture.interpreter.effects import changes
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.builtin import PythonModule
from kiln.capture.interpreter.variables.function import Function
from kiln.capture.interpreter.variables.made_namespace import MadeNamespace
from kiln.capture.interpreter.variables.tensor import FinalCheck, RegionInputs, Tensor, from_torch, here, record
from kiln.graph.autograd.linear import note_nonlinear
from kiln.graph.trace.fake import FakeTensor, is_wrapped
from kiln.graph.trace.log import RegisterHook
from kiln.support.location import Location
from kiln.support.records import dataclass

HOOK = "Tensor.register_hook"
FROM_OUTSIDE = "it would stay on a tensor from outside of the region"


@handles(torch.Tensor.register_hook)
def register_hook(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    tensor, hook = args
    if not isinstance(tensor, Tensor):
        raise UnsupportedCall(function=HOOK, why=f"it gets a {tensor.type_name()}")
    refuse_outside(tensor, "register_hook")
    if not tensor.fake.requires_grad:
        return record(s, "register_hook", [tensor, hook], {})
    s.counters.unguarded += 1  # the hook of a repeated layer may behave differently
    call = here(s)
    captured, make = captured_by(s, hook)
    on_fake = InterpretedHook(s, running_frame(s), call, hook)
    s.recorder.held.append(on_fake)
    target = RegisterHook(weakref.ref(on_fake), make)
    record(s, target, [tensor, *captured], {})
    s.part(RegionInputs).final_checks.append(FinalCheck(partial(is_used_outside, tensor.fake), HOOK, call))
    if isinstance(hook, Function):
        contents = [cell.content for cell in hook.cells]
        s.part(RegionInputs).final_checks.append(FinalCheck(partial(is_changed, hook, contents), HOOK, call))
    return HookHandle(call)


@handles(torch.Tensor.retain_grad)
def retain_grad(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    tensor = args[0]
    if not isinstance(tensor, Tensor):
        raise UnsupportedCall(function="Tensor.retain_grad", why=f"it gets a {tensor.type_name()}")
    if not tensor.fake.is_leaf:
        refuse_outside(tensor, "retain_grad")
        s.counters.unguarded += 1
        check = FinalCheck(partial(is_used_outside, tensor.fake), "Tensor.retain_grad", here(s))
        s.part(RegionInputs).final_checks.append(check)
    return record(s, "retain_grad", [tensor], {})


def is_changed(hook: Function, contents: list[Value | None], outputs: list[FakeTensor]) -> str:
    same = [cell.content for cell in hook.cells] == contents
    return "" if same else "the variables of the hook change later"


def is_used_outside(fake: FakeTensor, outputs: list[FakeTensor]) -> str:
    return "the tensor is used outside of the region" if any(output is fake for output in outputs) else ""


def refuse_outside(tensor: Tensor, name: str) -> None:
    if tensor.source is not None or tensor.original is not None or is_wrapped(tensor.fake):
        raise UnsupportedCall(function=f"Tensor.{name}", why=FROM_OUTSIDE)


def captured_by(s: CaptureState, hook: Value) -> tuple[list[Value], Callable[..., Callable[..., object]]]:
    """The variables of a function that the frame makes, and what makes it of their values; others are constants."""
    if not isinstance(hook, Function) or hook.original is not None:
        function: Callable[..., object] = hook.constant(s)
        return [], lambda: function
    if isinstance(hook.namespace, MadeNamespace):
        raise UnsupportedCall(function=HOOK, why="its globals are made here")
    code, space, count = hook.code, hook.namespace.dictionary, len(hook.cells)
    if any(cell.original is not None for cell in hook.cells):
        raise UnsupportedCall(function=HOOK, why=LATER)
    contents = [cell.load(s) for cell in hook.cells]
    everything = (*contents, *hook.defaults)
    modules = [content.real() if isinstance(content, PythonModule) else None for content in everything]
    captured = [plain(content) for content in everything if not isinstance(content, PythonModule)]
    if hook.kwdefaults:
        raise UnsupportedCall(function=HOOK, why="the hook has keyword-only defaults")

    def make(*values: object) -> Callable[..., object]:
        given = iter(values)
        filled = tuple([next(given) if module is None else module for module in modules])
        cells = tuple(map(types.CellType, filled[:count]))
        return types.FunctionType(code, space, code.co_name, filled[count:] or None, cells)

    return captured, make


def plain(content: Value | None) -> Value:
    """A tensor or a constant. Other objects could be changed by the hook, or in the frame."""
    if content is None or not (isinstance(content, Tensor) or content.is_constant):
        raise UnsupportedCall(function=HOOK, why="the hook reads a variable that is neither a tensor nor a constant")
    return content


@final
@dataclass(frozen=True, slots=True, eq=False)
class HookHandle(Value):
    """What `register_hook` returns. Any use of it breaks the graph in front of that call."""

    registered: PastStep
    cls = RemovableHandle

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        raise self._used()

    def emit(self, g: Codegen) -> None:
        raise self._used()

    def _used(self) -> GraphBreak:
        return UnsupportedCall(function=HOOK, why="its handle is used").before(self.registered)


@final
@dataclass(frozen=True, eq=False)
class InterpretedHook:
    """Called by the autograd engine with the fake of a gradient; returns what replaces it."""

    state: CaptureState
    frame: SymbolicFrame
    call: PastStep
    hook: Value

    def __call__(self, grad: FakeTensor) -> FakeTensor | None:
        s = self.state
        given = [grad] if s.recorder.is_differentiating else None
        before, first = changes(s, given), len(s.recorder.nodes)
        try:
            with backward_frame(s, self.frame, self._captured()):
                result = self.hook.call(s, [from_torch(s, grad)], {})
            if changes(s, given) != before:
                raise self._stop("it has side effects")
        except (GraphBreak, Raised) as problem:
            raise self._stop(problem.reason, problem.at) from problem
        if isinstance(result, Tensor):
            note_nonlinear(s.recorder, self, first, [grad], [result.fake])
            return s.recorder.materialised([result.fake], [grad])[0]
        if s.is_none(result):
            return None
        raise self._stop(f"it returns a {result.type_name()}")

    def _captured(self) -> list[Value]:
        """What the hook has since it was registered."""
        hook = self.hook
        if not isinstance(hook, Function) or hook.original is not None:
            return []
        contents = [cell.content for cell in hook.cells]
        return [value for value in (*contents, *hook.defaults) if value is not None]

    def _stop(self, why: str, at: Location | None = None) -> GraphBreak:
        return UnsupportedCall(function=HOOK, why=why).before(self.call, at)
