"""`torch.autograd.graph.saved_tensors_hooks`, and `save_on_cpu`, entered by a frame.

    with saved_tensors_hooks(pack, unpack):      autograd saves the input of sin: pack(x), interpreted, now
        y = x.sin()                              backward: unpack(packed), interpreted when the joint graph is made

`save_on_cpu` marks the calls within: what they compute and the backward needs goes to the host as the partition says
(`graph/autograd/host_copies.py`), not one by one. What other hooks do is a part of the graph, forward and backward;
what of it is kept in between, the partition decides. In the log of torch calls the program's functions are pushed and
popped, for user backends. A hook with side effects, hooks that change values (some formulas of gradients read other
values than eager's), or anything that breaks inside of the block, break in front of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from functools import partial
from typing import cast, final

import torch

from kiln.capture.interpreter.breaks import GraphBreak, PastStep, Raised, UnsupportedCall
from kiln.capture.interpreter.builtins.backward_reads import backward_frame
from kiln.capture.interpreter.builtins.function_modes import EnteredModes
from kiln.capture.interpreter.builtins.tensor_hooks import captured_by
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.frame import SymbolicFrame, running_frame
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.function import Function, Namespace
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch, here
from kiln.graph.ir.node import Node
from kiln.graph.prims.table import Kind
from kiln.graph.trace.custom_function import called_by_autograd
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.log import PopSavedHooks, PushSavedHooks
from kiln.graph.trace.recorder import nested_calls, record_effect
from kiln.support.location import Location
from kiln.support.records import dataclass
from kiln.tensor.spec import CPU

HOOKS = "saved_tensors_hooks"
MakeUnpack = Callable[..., Callable[..., torch.Tensor]]


@final
@dataclass
class EnteredHooks:
    """The hooks that are active, innermost last."""

    stack: list[InterpretedHooks] = field(default_factory=list)


@handles(torch._C._autograd._push_saved_tensors_default_hooks)
def push(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    pack, unpack = args
    if s.recorder.region:
        raise UnsupportedCall(function=HOOKS, why="they are entered within a checkpoint")
    makers = [captured_by(s, hook) for hook in args]
    s.counters.unguarded += 1  # a repeated layer would not enter it
    frame, call = running_frame(s), here(s)
    hooks = InterpretedHooks(s, frame, call, pack, unpack)
    s.part(EnteredHooks).stack.append(hooks)
    s.part(EnteredModes).calls.append((f"{HOOKS}.__enter__", call))
    captured = [[value.torch_arg(s) for value in values] for values, _ in makers]
    record_effect(s.recorder, PushSavedHooks(makers[0][1], cast(MakeUnpack, makers[1][1])), captured, frame.locations())
    hold = partial(called_by_autograd, s.recorder.held)
    s.recorder.saved_hooks.append((hold(hooks.pack_fake), hold(hooks.unpack_fake)))
    s.recorder.to_host = is_torchs(pack)
    return Constant(None)


@handles(torch._C._autograd._pop_saved_tensors_default_hooks)
def pop(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    stack = s.part(EnteredHooks).stack
    if not stack:
        raise UnsupportedCall(function=HOOKS, why="they were entered before the frame")
    stack.pop()
    s.part(EnteredModes).calls.pop()
    record_effect(s.recorder, PopSavedHooks(), (), running_frame(s).locations())
    s.recorder.saved_hooks.pop()
    s.recorder.to_host = bool(stack) and is_torchs(stack[-1].pack)
    return Constant(None)


@final
@dataclass(frozen=True, eq=False)
class Packed:
    """What `pack` returned; autograd keeps it until the backward."""

    value: Value
    node: Node


@final
@dataclass(frozen=True, eq=False)
class OnHost:
    """A value that `save_on_cpu` packs, which is saved as it is now."""

    fake: FakeTensor
    node: Node


@final
@dataclass(frozen=True, eq=False)
class InterpretedHooks:
    """Called by autograd with what it saves, and with what was made of that."""

    state: CaptureState
    frame: SymbolicFrame
    call: PastStep
    pack: Value
    unpack: Value

    def pack_fake(self, fake: FakeTensor) -> Packed | OnHost:
        s = self.state
        if is_torchs(self.pack) and fake.device != CPU:
            return OnHost(fake, s.recorder.node_of(fake))
        effects = s.effects.snapshot()
        try:
            with nested_calls(s.recorder):
                made = Packed(self.pack.call(s, [from_torch(s, fake)], {}), s.recorder.node_of(fake))
        except (GraphBreak, Raised) as problem:
            raise self._refused(problem.reason, problem.at) from problem
        if s.effects.snapshot() != effects:
            raise self._refused("it has side effects")
        return made

    def unpack_fake(self, packed: Packed | OnHost) -> FakeTensor:
        s = self.state
        if isinstance(packed, OnHost):
            if s.recorder.node_of(packed.fake) is not packed.node:
                raise self._refused("what is saved is changed later")
            return packed.fake
        effects = s.effects.snapshot()
        contents = [cell.content for cell in self.unpack.cells] if isinstance(self.unpack, Function) else []
        known = [packed.value, *[value for value in contents if value is not None]]
        try:
            with backward_frame(s, self.frame, known):
                result = self.unpack.call(s, [packed.value], {})
        except (GraphBreak, Raised) as problem:
            raise self._refused(problem.reason, problem.at) from problem
        if s.effects.snapshot() != effects:
            raise self._refused("it has side effects")
        if not isinstance(result, Tensor):
            raise self._refused(f"it returns a {result.type_name()}")
        if not is_torchs(self.pack) and not is_copy(s.recorder.node_of(result.fake), packed.node):
            raise self._refused("they change values")
        return result.fake

    def _refused(self, why: str, at: Location | None = None) -> GraphBreak:
        return UnsupportedCall(function=HOOKS, why=why).before(self.call, at)


def is_torchs(pack: Value) -> bool:
    """A hook of `save_on_cpu`."""
    space = pack.namespace if isinstance(pack, Function) else None
    return isinstance(space, Namespace) and space.module == torch.autograd.graph.__name__


def is_copy(copy: Node, value: Node) -> bool:
    """Whether they are known to have equal elements, in equal places."""
    while copy is not value and copies(copy):
        copy = copy.inputs[0]
    if copy is value:
        return True
    alike = copy.op is value.op and copy.attrs == value.attrs and len(copy.inputs) == len(value.inputs)
    return alike and copy.op.kind is Kind.VIEW and is_copy(copy.inputs[0], value.inputs[0])


def copies(node: Node) -> bool:
    """Whether it is a copy of its input, perhaps with other strides or on another device."""
    moved = node.op.name in ("clone", "view") or node.attrs.get("target") == "aten._to_copy.default"
    if not moved:
        return False
    spec, before = node.tensor, node.inputs[0].tensor
    return spec.sizes == before.sizes and spec.dtype == before.dtype
