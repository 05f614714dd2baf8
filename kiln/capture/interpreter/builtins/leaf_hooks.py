"""Hooks of leaves from outside, and of modules, which `loss.backward()` inside of a region calls.

    w.register_hook(lambda g: g.clamp(-1, 1))          called by the engine on the fake of the gradient
    w.register_post_accumulate_grad_hook(step)         called behind the backward, in the order of the engine
    layer.register_full_backward_hook(save)            likewise

The first are interpreted in the middle of the backward, as in eager, where they only compute. The others may do
anything that the frame may. Eager calls them as soon as a leaf has its gradient: a hook that asks for the gradient of
a leaf whose turn is later breaks the graph. So does whatever breaks or raises in a hook, in front of the backward.

In the log of torch calls the hooks that the engine calls are not seen: a backward of real leaves calls real hooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import final

import torch

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import GraphBreak, PastStep, Raised, UnsupportedCall
from kiln.capture.interpreter.builtins.backward_reads import backward_frame
from kiln.capture.interpreter.core import Args, CaptureState, Value
from kiln.capture.interpreter.effects import changes
from kiln.capture.interpreter.frame import SymbolicFrame
from kiln.capture.interpreter.variables.hooked_nodes import HookedNode, HookedNodes
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.storage_view import FakeStorage
from kiln.support.location import Location
from kiln.support.records import dataclass


@final
@dataclass(frozen=True, eq=False)
class LeafHooks:
    """The hooks of one leaf: dicts from outside, None without hooks."""

    leaf: Tensor
    gradient: Value | None
    accumulated: Value | None


@final
@dataclass(frozen=True, eq=False)
class HookedBackward:
    """A backward that reaches leaves with hooks; breaks are in front of `call`, the step in `frame` that runs it."""

    state: CaptureState
    frame: SymbolicFrame
    call: PastStep
    hooks: Sequence[LeafHooks]
    nodes: Sequence[HookedNode] = ()

    @contextmanager
    def running(self) -> Iterator[list[int]]:
        """Set the hooks on the fakes. Gives the leaves (by `id` of the fake) in the order in which they get one,
        with the nodes in between."""
        order: list[int] = []
        with ExitStack() as stack:
            for hooks in self.hooks:
                fake = hooks.leaf.fake
                handle = fake.register_post_accumulate_grad_hook(lambda leaf: order.append(id(leaf)))
                stack.callback(handle.remove)
                if hooks.gradient is not None:
                    seen = GradientHooks(self, hooks.gradient)
                    stack.callback(fake.register_hook(seen).remove)  # type: ignore[no-untyped-call]
            for node in self.nodes:
                note = partial(note_reached, order, node)
                stack.callback(node.function.register_hook(note).remove)
            yield order

    def call_behind(self, order: Sequence[int], pending: set[int], seen: Sequence[Value], create_graph: bool) -> None:
        """Call the hooks that see the leaves, and those of the nodes, which have `seen` these gradients. `pending`: the
        leaves that have no gradient yet in eager."""
        s, nodes = self.state, {id(node): (node, found) for node, found in zip(self.nodes, seen, strict=True)}
        first, memory = len(s.recorder.calls), s.part(HookedNodes).memory(s) if nodes else []
        pending.update(order)
        hooks = {id(hooks.leaf.fake): hooks for hooks in self.hooks}
        try:
            for reached in order:
                pending.discard(reached)
                if reached in nodes:
                    self.call_node(*nodes[reached], memory, create_graph)
                elif (accumulated := hooks[reached].accumulated) is not None:
                    call = [hooks[reached].leaf, accumulated, s.const(create_graph)]
                    self.interpret(polyfills.hooks_of_leaf, call)
        finally:
            pending.clear()
        s.part(HookedNodes).own.append((first, len(s.recorder.calls)))

    def call_node(self, node: HookedNode, seen: Value, memory: Sequence[FakeStorage], create_graph: bool) -> None:
        """Call the hooks of a node that the backward has reached. Eager lets them change gradients, and `memory`."""
        assert isinstance(seen, Tuple)
        s, gradients, count = self.state, list(seen.items(self.state)), len(node.tensors)
        given, back = Tuple(gradients[:-count]), Tuple(gradients[-count:])
        before = [storage.version for storage in memory]
        for hook in node.hooks:
            result = self.interpret(polyfills.hook_of_node, [hook, given, back, s.const(create_graph)])
            unchanged = s.is_none(result) or are_same(s, result, back if node.of_results else given)
            if not unchanged or [storage.version for storage in memory] != before:
                raise UnsupportedCall(function="BackwardHook", why="a hook changes gradients").before(node.made_at)

    def interpret(self, function: object, args: Args) -> Value:
        """Break in front of the backward if a hook breaks or raises."""
        try:
            return self.state.wrap(function, None).call(self.state, args, {})
        except (GraphBreak, Raised) as problem:
            raise self.stop(problem.reason, problem.at) from problem

    def stop(self, why: str, at: Location | None = None) -> GraphBreak:
        return UnsupportedCall(function="Tensor.backward", why=f"a hook of a tensor: {why}").before(self.call, at)


@final
@dataclass(frozen=True, eq=False)
class GradientHooks:
    """Called by the engine with the fake of the whole gradient of a leaf; returns what replaces it."""

    backward: HookedBackward
    hooks: Value

    def __call__(self, grad: FakeTensor) -> FakeTensor:
        s = self.backward.state
        before = changes(s, None)
        with backward_frame(s, self.backward.frame, None):
            result = self.backward.interpret(polyfills.hooked_gradient, [from_torch(s, grad), self.hooks])
        if changes(s, None) != before:
            raise self.backward.stop("it has side effects")
        if not isinstance(result, Tensor):
            raise self.backward.stop(f"it returns a {result.type_name()}")
        return result.fake


def note_reached(order: list[int], node: HookedNode, *gradients: object) -> None:
    order.append(id(node))


def are_same(s: CaptureState, result: Value, given: Tuple) -> bool:
    """Whether a hook has returned the gradients that it was given."""
    returned = list(result.items(s)) if isinstance(result, Tuple) else []
    pairs = zip(returned, given.items(s), strict=False)
    return len(returned) == given.length(s) and all([a is b or (s.is_none(a) and s.is_none(b)) for a, b in pairs])


HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def is_hookable(fake: torch.Tensor) -> bool:
    """Whether autograd runs on the fake itself; of a tensor of a subclass it runs on what is outside."""
    return type(fake) is FakeTensor and not fake.is_outer
