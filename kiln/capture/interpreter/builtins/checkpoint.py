"""`torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=...)`.

The function is inlined; its torch calls are tagged as a checkpoint, whose intermediate values the partition does not
save. Random numbers are saved, so that both runs use the same ones. With `use_reentrant=True` the results have
gradients if and only if one of `args` has: what differs from that breaks the graph.
"""

from __future__ import annotations

import torch
import torch.utils.checkpoint

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.sequence import Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, here

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
    if "context_fn" in own or ("debug" in own and own["debug"].truth(s)):
        raise UnsupportedCall(function=NAME, why="`context_fn` and `debug` act during recomputation")
    if reentrant.constant(s) and torch.is_grad_enabled():
        return reentrant_checkpoint(s, args[0], args[1:], rest)
    return tagged(s, args[0], args[1:], rest)


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


def tagged(s: CaptureState, function: Value, args: Args, kwargs: Kwargs) -> Value:
    """A call whose torch calls are one checkpoint; a nested one belongs to the outer one."""
    recorder = s.recorder
    if recorder.saved_hooks:
        raise UnsupportedCall(function=NAME, why="it has hooks of its own, within `saved_tensors_hooks`")
    outer = recorder.region
    if not outer and torch.is_grad_enabled():
        s.counters.checkpoints += 1
        recorder.region = s.counters.checkpoints
    try:
        return function.call(s, args, kwargs)
    finally:
        recorder.region = outer
