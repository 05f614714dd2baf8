"""`torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=...)`.

The function is inlined; its torch calls are tagged as a checkpoint, whose intermediate values the partition does not
save. Random numbers are saved, so that both runs use the same ones; so is what the policy of
`create_selective_checkpoint_contexts` saves, which is asked while tracing. With `use_reentrant=True` the results have
gradients if and only if one of `args` has: what differs from that breaks the graph. So do side effects, such as those
of a batch norm on its statistics, which eager repeats when it runs the function again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import cast, final

import torch
import torch.utils.checkpoint
from torch._ops import OpOverload

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import MISSING, Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.effects import changes
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, here
from kiln.graph.trace.mode import SavePolicy
from kiln.graph.trace.recorder import checkpointed
from kiln.runtime.guards.guard import GuardKind
from kiln.support.records import dataclass

CHECKPOINT = torch.utils.checkpoint.checkpoint
NAME = "torch.utils.checkpoint.checkpoint"
OWN = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")
"""Its own keyword arguments; all others are the function's."""


@handles(CHECKPOINT, getattr(CHECKPOINT, "__wrapped__", CHECKPOINT))
def checkpoint(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    own = {name: kwargs[name] for name in OWN if name in kwargs}
    rest = {name: value for name, value in kwargs.items() if name not in OWN}
    reentrant = own.get("use_reentrant")
    if reentrant is None or not reentrant.is_constant or reentrant.constant(s) not in (False, True):
        raise UnsupportedCall(function=NAME, why="`use_reentrant` is neither True nor False")
    if "debug" in own and own["debug"].truth(s):
        raise UnsupportedCall(function=NAME, why="`debug` acts during recomputation")
    saves = policy_of(s, own["context_fn"]) if "context_fn" in own else None
    if reentrant.constant(s) and torch.is_grad_enabled():
        if saves is not None:
            raise UnsupportedCall(function=NAME, why="`context_fn` is for `use_reentrant=False`")
        return reentrant_checkpoint(s, args[0], args[1:], rest)
    return tagged(s, args[0], args[1:], rest, saves)


SELECTIVE = torch.utils.checkpoint.create_selective_checkpoint_contexts
SAVING = tuple(
    policy for policy in torch.utils.checkpoint.CheckpointPolicy if policy.name.endswith(("_SAVE", "_CPU_OFFLOAD"))
)
"""Policies of what is not computed again. What torch would offload is saved where it is."""
UNASKED = tuple(torch.utils.checkpoint.SAC_IGNORED_OPS)
"""Operators for which torch asks no policy."""


@final
@dataclass(frozen=True, slots=True, eq=False)
class SelectiveContext(Value):
    """One of the contexts of `create_selective_checkpoint_contexts`: it stands for the policy."""

    saves: SavePolicy
    cls = contextlib.AbstractContextManager


@handles(SELECTIVE)
def selective_contexts(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    policy = args[0] if args else kwargs["policy_fn_or_list"]
    if issubclass(policy.python_type(), list | tuple):
        saved = frozenset(cast(Sequence[OpOverload], policy.constant(s)))
        saves: SavePolicy = lambda func, args, kwargs: func in saved  # noqa: E731
    else:
        saves = asking(s, policy)
    context = SelectiveContext(saves)
    return Tuple([context, context])


def asking(s: CaptureState, policy: Value) -> SavePolicy:
    """Asks a policy of the program, called natively: torch wants it to depend on the operator and its arguments."""
    function = policy.real()
    if function is MISSING or policy.source is None:
        raise UnsupportedCall(function=NAME, why="its policy is made in the compiled function")
    s.guard(policy.source, GuardKind.IS, s.reference(function))
    context = torch.utils.checkpoint.SelectiveCheckpointContext(is_recompute=False)

    def saves(func: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> bool:
        if func in UNASKED:
            return False
        answer = function(context, func, *args, **kwargs)
        return answer is True or answer in SAVING

    return saves


def policy_of(s: CaptureState, context_fn: Value) -> SavePolicy | None:
    """What `context_fn` saves; None for contexts that do nothing."""
    made = context_fn.call(s, [], {})
    first, second = made.items(s) if isinstance(made, Tuple) else (made, made)
    if isinstance(first, SelectiveContext):
        return first.saves
    if first.python_type() is not contextlib.nullcontext or second.python_type() is not contextlib.nullcontext:
        raise UnsupportedCall(function=NAME, why="contexts of `context_fn` act during recomputation")
    return None


def reentrant_checkpoint(s: CaptureState, function: Value, args: Args, kwargs: Kwargs) -> Value:
    """Breaks where eager would give other results gradients than those that are computed from what has one."""
    call = here(s)
    if kwargs or not any(isinstance(arg, Tensor) and arg.fake.requires_grad for arg in args):
        raise UnsupportedCall(function=NAME, why="with `use_reentrant=True` no argument has a gradient")
    result = tagged(s, function, args, kwargs)
    results = result.items(s) if isinstance(result, Tuple) else [result]
    for made in results:
        known = isinstance(made, Tensor) or made.is_constant
        if not known or (isinstance(made, Tensor) and made.fake.is_floating_point() and not made.fake.requires_grad):
            stop = UnsupportedCall(function=NAME, why="with `use_reentrant=True` all results get gradients")
            raise stop.before(call)
    return result


@handles(torch.ops.higher_order.tag_activation_checkpoint)
def tag_activation_checkpoint(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The same, as torch.compile writes it into the graphs that it hands over."""
    return tagged(s, args[0], args[1:], {name: value for name, value in kwargs.items() if name not in OWN})


def tagged(s: CaptureState, function: Value, args: Args, kwargs: Kwargs, saves: SavePolicy | None = None) -> Value:
    """A call whose torch calls are one checkpoint; a nested one belongs to the outer one."""
    recorder = s.recorder
    if recorder.saved_hooks:
        raise UnsupportedCall(function=NAME, why="it has hooks of its own, within `saved_tensors_hooks`")
    if recorder.region or not torch.is_grad_enabled():
        return function.call(s, args, kwargs)
    call, before = here(s), changes(s)
    s.counters.checkpoints += 1
    with checkpointed(recorder, s.counters.checkpoints, saves):
        result = function.call(s, args, kwargs)
    if changes(s) != before:
        raise UnsupportedCall(function=NAME, why="its side effects are repeated when it runs again").before(call)
    return result
