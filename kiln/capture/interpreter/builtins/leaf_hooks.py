"""Hooks of leaves from outside, which `loss.backward()` inside of a region calls.

    w.register_hook(lambda g: g.clamp(-1, 1))          called by the engine on the fake of the gradient
    w.register_post_accumulate_grad_hook(step)         called behind the backward, in the order of the engine

The first are interpreted in the middle of the backward, as in eager, where they only compute. The second may do
anything that the frame may. Eager calls them as soon as a leaf has its gradient: a hook that asks for the gradient of
a leaf whose turn is later breaks the graph. So does whatever breaks or raises in a hook, in front of the backward.

In the log of torch calls the hooks that the engine calls are not seen: a backward of real leaves calls real hooks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import final

import torch

import kiln.capture.interpreter.polyfills as polyfills
from kiln.capture.interpreter.breaks import GraphBreak, PastStep, Raised, UnsupportedCall
from kiln.capture.interpreter.builtins.backward_reads import backward_frame
from kiln.capture.interpreter.core import Args, CaptureState, Value
from kiln.capture.interpreter.effects import changes
from kiln.capture.interpreter.frame import SymbolicFrame
from kiln.capture.interpreter.variables.tensor import Tensor, from_torch
from kiln.graph.trace.fake import FakeTensor
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

    @contextmanager
    def running(self) -> Iterator[list[int]]:
        """Set the hooks on the fakes. Gives the leaves (by `id` of the fake), in the order in which they get one."""
        order: list[int] = []
        with ExitStack() as stack:
            for hooks in self.hooks:
                fake = hooks.leaf.fake
                handle = fake.register_post_accumulate_grad_hook(lambda leaf: order.append(id(leaf)))
                stack.callback(handle.remove)
                if hooks.gradient is not None:
                    seen = GradientHooks(self, hooks.gradient)
                    stack.callback(fake.register_hook(seen).remove)  # type: ignore[no-untyped-call]
            yield order

    def call_accumulated(self, order: Sequence[int], pending: set[int], create_graph: bool) -> None:
        """Call the hooks that see the leaves. `pending`: the leaves that have no gradient yet in eager."""
        s = self.state
        pending.update(order)
        hooks = {id(hooks.leaf.fake): hooks for hooks in self.hooks}
        try:
            for leaf in order:
                pending.discard(leaf)
                found = hooks[leaf]
                if found.accumulated is not None:
                    call = [found.leaf, found.accumulated, s.const(create_graph)]
                    self.interpret(polyfills.hooks_of_leaf, call)
        finally:
            pending.clear()

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


HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def is_hookable(fake: torch.Tensor) -> bool:
    """Whether autograd runs on the fake itself; of a tensor of a subclass it runs on what is outside."""
    return type(fake) is FakeTensor and not fake.is_outer
