"""`torch.gru` and its kin where no library has the layer: a nested graph that runs for each step.

nn.GRU(64, 128)(x)      on a CPU: `recurrent_polyfills.py` is interpreted
nn.LSTM(64, 128)(x)     the same, but for float32, which oneDNN has
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

import kiln.capture.interpreter.recurrent_polyfills as polyfills
from kiln.capture.interpreter.builtins.control_flow_operators import interpret, nested_or_plain, nested_scan
from kiln.capture.interpreter.core import (
    NOT_RESUMABLE,
    Args,
    CallSite,
    CaptureState,
    Kwargs,
    SiteHandler,
    Value,
    handles_at_site,
)
from kiln.capture.interpreter.nested_calls import flat
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.capture.interpreter.variables.tensor import Tensor, record
from kiln.graph.trace.fake import FakeTensor
from kiln.graph.trace.recurrent_layers import RecurrentOptions, is_on_cudnn, is_on_onednn

FEWEST_STEPS = 8
"""Fewer are unrolled: they are compiled soon, and fused with what is around them."""
LOOPS: Mapping[Callable[..., object], Callable[..., object]] = {
    torch.gru: polyfills.gru,
    torch.lstm: polyfills.lstm,
    torch.rnn_tanh: polyfills.rnn_tanh,
    torch.rnn_relu: polyfills.rnn_relu,
}


def is_looped(s: CaptureState, original: Callable[..., object], args: Args) -> bool:
    """Whether the layer is a nested graph. Packed sequences, projections and autocast, which may change the dtype of
    the state from step to step, are left to `original`."""
    if len(args) != 3 + len(RecurrentOptions._fields) or not isinstance(args[2], List | Tuple):
        return False
    x, states, batch_first = args[0], flat(s, args[1]).leaves, args[-1]
    if not isinstance(x, Tensor) or type(x.fake) is not FakeTensor or x.fake.dim() != 3:
        return False
    if not all([isinstance(state, Tensor) and type(state.fake) is FakeTensor for state in states]):
        return False
    if is_on_cudnn(x.fake) or (original is torch.lstm and is_on_onednn(x.fake)):
        return False
    if torch.is_autocast_enabled(x.fake.device.type) or not isinstance(batch_first, Constant):
        return False
    widths = {state.fake.shape[-1] for state in states}  # type: ignore[attr-defined]
    steps = x.fake.shape[1 if batch_first.value else 0]
    # Without a step, eager raises.
    is_long = bool(steps != 0) if isinstance(steps, torch.SymInt) else steps >= FEWEST_STEPS and not s.policy.whole
    return is_long and len(widths) == 1 and s.policy.own_regions


def handler_of(original: Callable[..., object]) -> SiteHandler:
    def layers(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
        plain = partial(record, s, original, args, kwargs)
        if kwargs or not is_looped(s, original, args):
            return plain()
        return nested_or_plain(s, partial(interpret, s, LOOPS[original], args, kwargs, site), plain)

    return layers


for _original in LOOPS:
    handles_at_site(_original)(handler_of(_original))


@handles_at_site(polyfills.turns)
def turns(s: CaptureState, args: Args, kwargs: Kwargs, site: CallSite = NOT_RESUMABLE) -> Value:
    return nested_scan(s, args[0], flat(s, args[1]), flat(s, args[2]))
