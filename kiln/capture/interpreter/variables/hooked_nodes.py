"""Nodes of autograd's graph that call the full backward hooks of modules, in a backward that the region runs.

    conv.register_full_backward_hook(save)      y = hooked_values(x); z = hooked_values(conv(y))
    loss.backward()                             the gradients of y and z are results of the recorded backward
                                                save(conv, (grad of y,), (grad of z,)) is interpreted behind it

Hooks see gradients as eager's do. Those that return others, or change them in place, break the graph in front of the
module's call; so does a node that a backward outside of the region may reach.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import partial
from types import CodeType, FunctionType
from typing import final

import torch

from kiln.capture.interpreter.breaks import PastStep
from kiln.capture.interpreter.core import NOT_RESUMABLE, Args, CallSite, CaptureState, Kwargs, Value
from kiln.capture.interpreter.frame import SymbolicFrame
from kiln.capture.interpreter.variables.bound_method import NamedMethod
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.tensor import FinalCheck, RegionInputs, Tensor
from kiln.graph.trace.autograd_edges import edge_of, edges_behind
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.gradients import node_of
from kiln.graph.trace.log import leaves
from kiln.graph.trace.recorder import recording
from kiln.graph.trace.storage_view import FakeStorage
from kiln.support.records import dataclass

CALLS_HOOKS = "the backward calls the hooks of a module"


@final
class HookedNode(Value):
    """The node behind which `tensors` lie, as the program sees it: it takes hooks."""

    __slots__ = ("freed", "function", "hooks", "made_at", "of_results", "tensors")
    cls = torch.autograd.graph.Node

    def __init__(self, tensors: Sequence[Tensor], of_results: bool, made_at: PastStep) -> None:
        self.tensors, self.of_results, self.made_at = tensors, of_results, made_at
        self.function = node_of([tensor.fake for tensor in tensors])
        self.hooks: list[Value] = []
        self.freed = False
        """Whether a backward has freed the graph that it belongs to."""

    def get_attr(self, s: CaptureState, name: str, site: CallSite = NOT_RESUMABLE) -> Value:
        return RegisterNodeHook(self, name) if name == "register_hook" else super().get_attr(s, name, site)


@final
class RegisterNodeHook(NamedMethod):
    """Torch's own code drops the handle."""

    __slots__ = ()

    def call(self, s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        assert isinstance(self.owner, HookedNode)
        self.owner.hooks.append(args[0])
        return Constant(None)


@final
@dataclass
class HookedNodes:
    """Those of one capture, in the order in which they were made."""

    nodes: list[HookedNode] = field(default_factory=list)
    whole: PastStep | None = None
    """The call of a module without parts that runs: a break is in front of it."""
    own: list[tuple[int, int]] = field(default_factory=list)
    """Where the torch calls of hooks are in the log."""

    def add(self, s: CaptureState, tensors: Sequence[Tensor], of_results: bool, call: PastStep) -> HookedNode:
        """`of_results`: behind the module, and not in front of it."""
        node = HookedNode(tensors, of_results, call)
        self.nodes.append(node)
        check = FinalCheck(partial(reached_later, s, node), "BackwardHook", call)
        s.part(RegionInputs).final_checks.append(check)
        return node

    def memory(self, s: CaptureState) -> list[FakeStorage]:
        """What calls have read or made, but for those of hooks: eager's backward may read it, or add to it, later."""
        calls, own = s.recorder.calls, {number for first, last in self.own for number in range(first, last)}
        parts = [(call.args, call.kwargs, call.result) for number, call in enumerate(calls) if number not in own]
        fakes = [leaf for leaf in leaves(parts) if type(leaf) is FakeTensor and not leaf.is_outer]
        return list({id(fake.storage_view.storage): fake.storage_view.storage for fake in fakes}.values())

    def waiting(self) -> list[HookedNode]:
        """Those that a backward may reach."""
        return [node for node in self.nodes if node.hooks and not node.freed]


def reached_later(s: CaptureState, node: HookedNode, outputs: list[FakeTensor]) -> str:
    """Whether a backward of what leaves the region goes through the node."""
    if node.freed or not node.hooks:
        return ""
    given = [record.fake for record in s.recorder.inputs if isinstance(record.fake, torch.Tensor)]
    with recording(s.recorder):
        edges = [edge_of(fake) for fake in (*outputs, *given)]
    return CALLS_HOOKS if any(function is node.function for function, _ in edges_behind(edges)) else ""


def may_run_backward(s: CaptureState) -> bool:
    """Whether code of the program that runs, or a function that it names, names a backward: else hooks of modules are
    called later, if at all."""
    frame: object = s.frame
    while isinstance(frame, SymbolicFrame):
        if not frame.decoded.in_library and any(map(names_backward, (frame.code, *functions_named(frame)))):
            return True
        frame = frame.parent
    return False


def names_backward(code: CodeType) -> bool:
    return any([name.endswith("backward") for name in code.co_names])


def functions_named(frame: SymbolicFrame) -> list[CodeType]:
    """Functions among the globals that the code of a frame names, and methods of its first argument."""
    first = frame.locals.get(frame.code.co_varnames[0]) if frame.code.co_argcount else None
    spaces = [vars(cls) for cls in first.cls.__mro__] if isinstance(first, Object) else []
    spaces.append(frame.globals.dictionary)
    found = [space.get(name) for name in frame.code.co_names for space in spaces]
    return [function.__code__ for function in found if type(function) is FunctionType]
