"""Full backward hooks of modules: see `variables/hooked_nodes.py`."""

from __future__ import annotations

import torch
from torch.utils.hooks import BackwardHook

from kiln.capture.interpreter.breaks import UnsupportedCall
from kiln.capture.interpreter.core import Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.frame import running_frame
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.hooked_nodes import CALLS_HOOKS, HookedNodes, may_run_backward
from kiln.capture.interpreter.variables.sequence import Tuple, all_items
from kiln.capture.interpreter.variables.tensor import Tensor, here, record
from kiln.graph.trace.fake import is_wrapped
from kiln.graph.trace.gradients import hooked_values


@handles(BackwardHook._apply_on_tensors)
def hook_tensors(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    """Torch puts a node into autograd's graph, which calls the hooks of a module, unless no tensor needs a gradient."""
    _, register, given = args
    items = list(all_items(s, given))
    places = [place for place, value in enumerate(items) if isinstance(value, Tensor)]
    tensors = [value for value in items if isinstance(value, Tensor)]
    if not torch.is_grad_enabled() or not any(tensor.fake.requires_grad for tensor in tensors):
        return Tuple([given, Constant(None)])
    if type(given) is not Tuple or any(is_wrapped(tensor.fake) for tensor in tensors) or not may_run_backward(s):
        raise UnsupportedCall(function="BackwardHook", why=CALLS_HOOKS)
    s.counters.unguarded += 1  # the hook of a repeated layer may behave differently
    nodes = s.part(HookedNodes)
    made = record(s, hooked_values, list(tensors), {})
    assert isinstance(made, Tuple)
    hooked = [value for value in made.items(s) if isinstance(value, Tensor)]
    of_results = running_frame(s).code is BackwardHook.setup_output_hook.__code__
    node = nodes.add(s, hooked, of_results, nodes.whole or here(s))
    register.call(s, [node], {})
    for place, value in zip(places, hooked, strict=True):
        items[place] = value
    return Tuple([Tuple(items), Tuple([Constant(place) for place in places])])
