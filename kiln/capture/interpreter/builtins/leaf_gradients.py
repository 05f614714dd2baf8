"""`.grad` of leaves, and `loss.backward()`, which writes it.

    loss.backward()        recorded on the fakes; w.grad is a result of the region      effect: w.grad = <result>
    w.grad = None          effect; where nothing reads the old gradient, it is dropped before the region runs

What a leaf from outside had is guarded: None, or a tensor, which a backward then adds to in place. Autograd runs on
fakes as it does in eager, so that order, layouts and shared memory of gradients are eager's. Hooks on leaves from
outside: `leaf_hooks.py`. A wrapper from outside, such as a DTensor, gets a wrapper. Breaks: gradients that leave the
region through the history of an input, or for tensors of subclasses that are made in it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from typing import final

import torch

from kiln.capture.interpreter.breaks import UnsupportedAttribute, UnsupportedCall
from kiln.capture.interpreter.builtins.data_parallel import Replicas
from kiln.capture.interpreter.builtins.leaf_hooks import HOOKS, HookedBackward, LeafHooks, is_hookable
from kiln.capture.interpreter.builtins.outer_tensors import note_wrappers, outer_tensors
from kiln.capture.interpreter.builtins.torch_bodies import unless_replaced
from kiln.capture.interpreter.builtins.torch_functions import NONE
from kiln.capture.interpreter.core import Args, CaptureState, Codegen, Handler, Kwargs, Value, handles, will_change
from kiln.capture.interpreter.effects import SideEffect
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.transform_polyfills import batched_grad
from kiln.capture.interpreter.variables.hooked_nodes import CALLS_HOOKS, HookedNodes
from kiln.capture.interpreter.variables.mapping import Dict
from kiln.capture.interpreter.variables.object import Object
from kiln.capture.interpreter.variables.sequence import List, Tuple, all_items
from kiln.capture.interpreter.variables.subclass import Subclassed, as_leaf, part_of
from kiln.capture.interpreter.variables.tensor import (
    READABLE,
    FinalCheck,
    RegionInputs,
    Tensor,
    from_torch,
    here,
    record,
)
from kiln.graph.trace.fake import FakeTensor, is_wrapped
from kiln.graph.trace.gradients import accumulated_gradients
from kiln.graph.trace.history import leaves_behind, reaches_behind_inputs
from kiln.graph.trace.inputs import InputRecord
from kiln.native._executor import leaf_observers
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AttrSource, GradSource
from kiln.support.records import dataclass

BACKWARD = "Tensor.backward"


@final
@dataclass
class KnownGradient:
    """`leaf.fake.grad` is what the program sees. `before`: what the leaf had, guarded; None where it was not read."""

    leaf: Tensor
    before: Value | None
    cleared: bool = False
    """Whether it was first set to None."""


@final
@dataclass
class LeafGradients:
    """The leaves from outside (by `id` of the fake) whose gradients the capture knows."""

    known: dict[int, KnownGradient] = field(default_factory=dict)
    hooks: dict[int, LeafHooks] = field(default_factory=dict)
    """Those of leaves that got a gradient here, which are guarded."""
    pending: set[int] = field(default_factory=set)
    """The leaves that have no gradient yet where a hook of another leaf runs."""


def read_gradient(s: CaptureState, leaf: Tensor) -> Value:
    """The present `.grad` of a leaf, or of a tensor from outside that may retain it."""
    if leaf.source is not None and leaf.original is not None:
        if not leaf.original.is_leaf:
            return s.wrap(leaf.original.grad, GradSource(leaf.source))
        refuse_pending(s, leaf)
        gradients = s.part(LeafGradients).known
        known = gradients.get(id(leaf.fake))
        if known is None:
            s.part(RegionInputs).asked_is_leaf.add(id(leaf.fake))
            before = s.wrap(leaf.original.grad, GradSource(leaf.source))
            first = fake_of(before)
            if first is None and not before.is_constant:
                return before
            if first is not None and first.dtype != leaf.fake.dtype:
                raise refused("it has another dtype than the tensor, whose `.data` was set")
            leaf.fake.grad = first
            known = gradients[id(leaf.fake)] = KnownGradient(leaf, before)
        if known.before is not None and known.before.is_constant and leaf.fake.grad is None:
            return known.before
    grad = leaf.fake.grad
    return s.const(None) if grad is None else value_of(s, grad)


def fake_of(value: Value) -> FakeTensor | None:
    """Of a tensor, or the outer fake of a wrapper."""
    if isinstance(value, Tensor):
        return value.fake
    part = part_of(value)
    return part.outer if part is not None and part.inner is None else None


def value_of(s: CaptureState, fake: torch.Tensor) -> Value:
    """The wrapper, or the plain tensor, also where `grad.add_(w)` gave the same memory the class of `w`."""
    is_outer = isinstance(fake, FakeTensor) and fake.is_outer
    return s.part(Subclassed).objects[id(fake)] if is_outer else from_torch(s, fake)


def write_gradient(s: CaptureState, leaf: Tensor, value: Value | None) -> None:
    if leaf.source is None or not leaf.fake.is_leaf or is_wrapped(leaf.fake) or value is None:
        raise refused("it is set on a tensor that is made in the frame")
    old, new = leaf.fake, fake_of(value)
    if new is not None:
        if is_wrapped(new) or (old.dtype, old.device, old.shape) != (new.dtype, new.device, new.shape) or old is new:
            raise refused("it is set to a tensor of another dtype, device or size")
    elif value.constant(s) is not None:
        raise refused("it is set to something else than a tensor")
    refuse_pending(s, leaf)
    will_change(s, leaf, "grad")
    s.counters.unguarded += 1
    known = s.part(LeafGradients).known.setdefault(id(leaf.fake), KnownGradient(leaf, None))
    leaf.fake.grad = new
    note_written(s, known)


def refuse_pending(s: CaptureState, leaf: Tensor) -> None:
    if id(leaf.fake) in s.part(LeafGradients).pending:
        raise refused("a hook asks for it before the backward has come to that tensor")


def refused(why: str) -> UnsupportedAttribute:
    return UnsupportedAttribute(name="grad", type="Tensor", why=why)


READABLE["grad"] = read_gradient


def note_written(s: CaptureState, known: KnownGradient) -> None:
    effect = GradientEffect(known.leaf)
    if s.effects.find(effect.key) is None:
        known.cleared = known.leaf.fake.grad is None
    s.effects.note(effect)


@final
@dataclass(frozen=True)
class GradientEffect(SideEffect):
    """A leaf from outside has another gradient."""

    leaf: Tensor
    writes = True

    @property
    def key(self) -> Hashable:
        return "gradient", id(self.leaf)

    def emit(self, g: Codegen) -> None:
        grad = self.leaf.fake.grad
        g.emit(NONE if grad is None else value_of(g.state, grad))
        g.emit(self.leaf)
        g.body.op("STORE_ATTR", "grad")


def dropped_early(s: CaptureState, records: Sequence[InputRecord], loaded: Collection[str]) -> list[int]:
    """The inputs of the region whose old gradients nobody needs once it runs: the program has dropped them by then.

    `records` are the inputs, `loaded` the texts of the paths that are loaded behind the region.
    """
    positions = {id(record.fake): number for number, record in enumerate(records)}
    found: list[int] = []
    for known in s.part(LeafGradients).known.values():
        leaf, before = known.leaf, known.before
        position = positions.get(id(leaf.fake))
        if not known.cleared or position is None or leaf.source is None or not isinstance(before, Tensor):
            continue
        path = GradSource(leaf.source).text()
        if id(before.fake) not in positions and not any(text.startswith(path) for text in loaded):
            found.append(position)
    return found


# The backward.


@handles(torch.Tensor.backward)
@unless_replaced(torch.Tensor.backward)
def tensor_backward(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    given = bound(("self", "gradient", "retain_graph", "create_graph", "inputs"), args, kwargs)
    return run_backward(s, [given["self"]], given.get("gradient"), given)


def of_iterables(handler: Handler) -> Handler:
    """`handler` of a function that makes tuples of iterables, such as `module.parameters()`."""

    def listing(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
        return handler(s, [in_tuple(s, arg) for arg in args], {name: in_tuple(s, arg) for name, arg in kwargs.items()})

    return listing


def in_tuple(s: CaptureState, value: Value) -> Value:
    kind = value.python_type()
    if issubclass(kind, torch.Tensor | list | tuple | dict) or s.classes.lookup(kind, "__iter__") is None:
        return value
    return Tuple(all_items(s, value))


GRAD = (
    *("outputs", "inputs", "grad_outputs", "retain_graph", "create_graph", "only_inputs", "allow_unused"),
    *("is_grads_batched", "materialize_grads"),
)
"""The parameters of `torch.autograd.grad`."""


@handles(torch.autograd.grad)
@of_iterables
def autograd_grad(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    given = bound(GRAD, args, kwargs)
    inputs = given.get("inputs")
    batched = given.get("is_grads_batched")
    if batched is not None and batched.is_constant and batched.constant(s) is True and not isinstance(inputs, Dict):
        own = {name: value for name, value in given.items() if name not in ("is_grads_batched", "only_inputs")}
        return s.wrap(batched_grad, None).call(s, [], own)
    named = [value for _, value in inputs.items(s).values()] if isinstance(inputs, Dict) else None
    roots, wanted = one_or_several(s, given.get("outputs")), named or one_or_several(s, inputs)
    if all(isinstance(value, Tensor) and not is_wrapped(value.fake) for value in (*roots, *wanted)):
        refuse_outer_history(s, roots, wanted, "torch.autograd.grad")  # type: ignore[arg-type]
    for node in s.part(HookedNodes).waiting():
        raise UnsupportedCall(function="BackwardHook", why=CALLS_HOOKS).before(node.made_at)
    return record(s, torch.autograd.grad, list(args), kwargs)


@handles(torch.autograd.backward)
@of_iterables
def autograd_backward(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    names = ("tensors", "grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
    given = bound(names, args, kwargs)
    if not s.is_none(given.get("grad_variables")):
        raise unsupported("it is given `grad_variables`")
    return run_backward(s, one_or_several(s, given["tensors"]), given.get("grad_tensors"), given)


def bound(names: Sequence[str], args: Args, kwargs: Kwargs) -> dict[str, Value]:
    return {**dict(zip(names, args, strict=False)), **kwargs}


def one_or_several(s: CaptureState, value: Value | None) -> list[Value]:
    """A tensor, or the items of a list or tuple."""
    if isinstance(value, List | Tuple):
        return list(value.items(s))
    return [] if value is None or s.is_none(value) else [value]


def refuse_outer_history(s: CaptureState, roots: Sequence[Tensor], wanted: Sequence[Tensor], function: str) -> None:
    """Break where gradients for `wanted` may leave the region and come back."""
    fakes = [[value.fake for value in values] for values in (roots, wanted)]
    if wanted and reaches_behind_inputs(s.recorder, *fakes):
        raise UnsupportedCall(function=function, why="gradients flow into the history of an input of the region")


def unsupported(why: str) -> UnsupportedCall:
    return UnsupportedCall(function=BACKWARD, why=why)


def run_backward(s: CaptureState, roots: list[Value], tangents: Value | None, given: dict[str, Value]) -> Value:
    """Differentiate the recording so far; the gradients of leaves from outside are effects."""
    given_tangents = one_or_several(s, tangents) or [NONE] * len(roots)
    wanted = None if s.is_none(given.get("inputs")) else one_or_several(s, given.get("inputs"))
    if wanted == [] or len(given_tangents) != len(roots):
        raise unsupported("eager raises an error")
    plain = [tensor_of(s, value) for value in (*roots, *(wanted or ()))]
    tensors = plain[: len(roots)]
    refuse_outer_history(s, tensors, plain[len(roots) :], BACKWARD)
    leaves = [as_leaf(s, fake) for fake in reached(s, tensors)] if wanted is None else plain[len(roots) :]
    flags = [given.get(name) for name in ("retain_graph", "create_graph")]
    create = flags[1] is not None and bool(flags[1].constant(s))
    retain = create if flags[0] is None or s.is_none(flags[0]) else bool(flags[0].constant(s))
    targets = [accept(s, tensor_of(s, leaf)) for leaf in leaves]
    before = [leaf.get_attr(s, "grad") for leaf in targets]
    s.counters.unguarded += 1  # a repeated layer would write other gradients
    gradients = s.part(LeafGradients)
    hooks = [gradients.hooks.get(id(leaf.fake), LeafHooks(leaf, None, None)) for leaf in targets]
    nodes = s.part(HookedNodes).waiting()
    called = nodes != [] or any(hooks_.gradient is not None or hooks_.accumulated is not None for hooks_ in hooks)
    reductions = s.part(Replicas).reductions(targets)
    for replica in reductions:
        if why := "its gradients have hooks or a graph" if create or called else replica.why_not(s, targets):
            raise unsupported(f"{why}, and they are reduced over ranks")
    hooked = HookedBackward(s, running_frame(s), here(s), hooks if called else (), nodes)
    if called and not all(is_hookable(leaf.fake) for leaf in targets):
        raise unsupported("a tensor that gets a gradient has a hook, and another is of a subclass")
    for leaf in targets:
        will_change(s, leaf, "grad")
    wrappers = [value_of(s, fake) for fake in map(fake_of, (*targets, *before)) if fake is not None and fake.is_outer]
    for wrapper in wrappers:
        assert isinstance(wrapper, Object)
        outer_tensors(s).define(wrapper)
    with hooked.running() as order:
        found = record(
            s,
            accumulated_gradients,
            [
                *(Tuple(list(tensors)), Tuple(given_tangents), Tuple(list(targets))),
                Tuple([value if (fake := fake_of(value)) is None else from_torch(s, fake) for value in before]),
                *(s.const(retain), s.const(create), s.const(wanted is not None)),
                *([Tuple([Tuple([*node.tensors]) for node in nodes])] if nodes else []),
                *([Tuple([s.const(node.of_results) for node in nodes])] if nodes else []),
            ],
            {},
        )
    if wrappers:
        note_wrappers(s, [leaf.fake.grad for leaf in targets])
    note_accumulated(s, targets, before)
    for replica in reductions:
        replica.reduce(hooked, targets)
    seen = list(found.items(s))[len(targets) :] if isinstance(found, List) else []
    hooked.call_behind(order, gradients.pending, seen, create)
    for node in nodes:
        node.freed = node.freed or (id(node) in order and not retain)
    return NONE


def note_accumulated(s: CaptureState, targets: Sequence[Tensor], before: Sequence[Value]) -> None:
    gradients = s.part(LeafGradients).known
    for leaf, old in zip(targets, before, strict=True):
        known = gradients.get(id(leaf.fake))
        if known is not None and leaf.fake.grad is not fake_of(old):
            note_written(s, known)


def tensor_of(s: CaptureState, value: Value) -> Tensor:
    part = part_of(value)
    if part is not None and part.inner is not None:  # of a class that is no wrapper
        value = as_leaf(s, part.outer)
    if not isinstance(value, Tensor) or is_wrapped(value.fake):
        raise unsupported(f"it is given a {value.type_name()}")
    return value


def reached(s: CaptureState, roots: Sequence[Tensor]) -> list[FakeTensor]:
    """The leaves behind `roots`. Raises where gradients go on outside of the region."""
    leaves = leaves_behind(s.recorder, [root.fake for root in roots])
    if leaves is None:
        raise unsupported("gradients flow into the history of an input of the region")
    return leaves


def accept(s: CaptureState, leaf: Tensor) -> Tensor:
    """A tensor that gets a gradient here; guards its hooks."""
    inputs, gradients = s.part(RegionInputs), s.part(LeafGradients)
    if leaf.original is None:
        if leaf.fake.is_outer or not leaf.fake.is_leaf:
            raise unsupported("it stores gradients on a tensor of a subclass, or on one that is no leaf")
        check = partial(is_used_outside, leaf.fake)
        inputs.final_checks.append(FinalCheck(check, BACKWARD, here(s)))
        return leaf
    if leaf.source is None or not leaf.fake.is_leaf or not leaf.original.is_leaf or not leaf.fake.requires_grad:
        raise unsupported("it stores gradients on tensors outside of the region")
    if id(leaf.fake) not in gradients.hooks:
        if leaf_observers(leaf.original) > s.part(Replicas).observers(leaf.original):
            raise unsupported("the node that accumulates the gradient of a tensor has a hook")
        gradients.hooks[id(leaf.fake)] = LeafHooks(leaf, *[hooks_of(s, leaf, name) for name in HOOKS])
    return leaf


def hooks_of(s: CaptureState, leaf: Tensor, name: str) -> Value | None:
    """A dict of hooks; None, which is guarded, if it is empty."""
    assert leaf.source is not None
    found, source = getattr(leaf.original, name), AttrSource(leaf.source, name)
    if found:
        return s.wrap(found, source)
    s.guard(source, GuardKind.EMPTY_DICT)
    return None


def is_used_outside(fake: FakeTensor, outputs: list[FakeTensor]) -> str:
    used = fake.grad is not None and any(output is fake for output in outputs)
    return "a tensor made in the region gets a gradient and leaves it" if used else ""


@contextmanager
def gradients_kept(s: CaptureState) -> Iterator[None]:
    """Put back the gradients that leaves had, behind a part of the program that may run or not."""
    known = s.part(LeafGradients).known
    before = {key: found.leaf.fake.grad for key, found in known.items()}
    try:
        yield
    finally:
        for key, found in list(known.items()):
            first = None if found.before is None else fake_of(found.before)
            found.leaf.fake.grad = before.get(key, first)
            if key not in before and found.before is None:  # written, and never read
                del known[key]


def forget_gradients(s: CaptureState) -> None:
    """Gradients with a history form cycles of fakes."""
    for known in s.part(LeafGradients).known.values():
        known.leaf.fake.grad = None
