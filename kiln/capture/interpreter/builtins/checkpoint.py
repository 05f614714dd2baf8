"""`torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False)`.

The function is inlined; its torch calls are tagged as a checkpoint, whose intermediate values the partition does not
save. Random numbers are saved, so that both runs use the same ones.
"""

from __future__ import annotations

import torch
import torch.utils.checkpoint

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles

CHECKPOINT = torch.utils.checkpoint.checkpoint
NAME = "torch.utils.checkpoint.checkpoint"
OWN = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop", "preserve_rng_state")
"""Its own keyword arguments; all others are the function's."""


@handles(CHECKPOINT, getattr(CHECKPOINT, "__wrapped__", CHECKPOINT))
def checkpoint(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    own = {name: kwargs[name] for name in OWN if name in kwargs}
    rest = {name: value for name, value in kwargs.items() if name not in OWN}
    reentrant = own.get("use_reentrant")
    if reentrant is None or not reentrant.is_constant or reentrant.constant(s) is not False:
        raise UnsupportedCall(function=NAME, why="only `use_reentrant=False` is supported")
    if "context_fn" in own or ("debug" in own and own["debug"].truth(s)):
        raise UnsupportedCall(function=NAME, why="`context_fn` and `debug` act during recomputation")
    return tagged(s, args[0], args[1:], rest)


@handles(torch.ops.higher_order.tag_activation_checkpoint)
def tag_activation_checkpoint(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """The same, as torch.compile writes it into the graphs that it hands over."""
    return tagged(s, args[0], args[1:], {name: value for name, value in kwargs.items() if name not in OWN})


def tagged(s: CaptureState, function: Value, args: Args, kwargs: Kwargs) -> Value:
    """A call whose torch calls are one checkpoint; a nested one belongs to the outer one."""
    recorder = s.recorder
    outer = recorder.region
    if not outer and torch.is_grad_enabled():
        s.counters.checkpoints += 1
        recorder.region = s.counters.checkpoints
    try:
        return function.call(s, args, kwargs)
    finally:
        recorder.region = outer
