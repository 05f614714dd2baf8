"""Hooks of `fully_shard` (FSDP2): parameters are gathered and gradients scattered in the graph.

state._pre_forward(block, args, kwargs)      `fully_shard_polyfills.pre_forward`
state._post_forward(block, args, output)     `fully_shard_polyfills.post_forward`

A region may not end between the two: the module would be left with whole parameters. Then the graph breaks in front of
the first, and the module's hooks run in eager.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

from kiln.capture.interpreter.builtins.collectives import Unfinished, beginning
from kiln.capture.interpreter.builtins.polyfilled import interpreted
from kiln.capture.interpreter.core import HANDLERS, Args, CaptureState, Kwargs, Value, handles
from kiln.capture.interpreter.variables.constant import Constant
from kiln.capture.interpreter.variables.sequence import List, Tuple
from kiln.runtime.guards.guard import GuardKind
from kiln.runtime.guards.source import AttrSource, ItemSource, Source

POLYFILLS = "kiln.capture.interpreter.fully_shard_polyfills"
"""Imported late: it loads torch's DTensor."""
if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

STATE, GROUP = (
    "torch.distributed.fsdp._fully_shard._fsdp_state",
    "torch.distributed.fsdp._fully_shard._fsdp_param_group",
)
UNCHANGED = (
    "_training_state", "reduce_grads", "all_reduce_grads", "reshard_after_backward", "gradient_divide_factor",
    "_all_reduce_hook",
)  # fmt: skip
"""Attributes of a group that a program changes between calls; they are guarded."""


def groups_of(state: FSDPState) -> list[FSDPParamGroup]:
    found = getattr(state, "_fsdp_param_groups", None)
    if found is not None:
        return list(found)
    return [] if state._fsdp_param_group is None else [state._fsdp_param_group]


def group_sources(state: FSDPState, source: Source) -> Iterator[Source]:
    if getattr(state, "_fsdp_param_groups", None) is None:
        yield AttrSource(source, "_fsdp_param_group")
        return
    for number in range(len(state._fsdp_param_groups)):
        yield ItemSource(AttrSource(source, "_fsdp_param_groups"), number)


def guard_unreduced(s: CaptureState, group: FSDPParamGroup, source: Source) -> bool:
    """Whether gradients of earlier backwards wait in the group, which the next reduction adds; guarded."""
    places: list[tuple[Source, object]] = [(AttrSource(source, "_partial_reduce_output"), group._partial_reduce_output)]
    for number, parameter in enumerate(group.fsdp_params):
        at = ItemSource(AttrSource(source, "fsdp_params"), number)
        places.append((AttrSource(at, "unsharded_accumulated_grad"), parameter.unsharded_accumulated_grad))
        if hasattr(parameter, "_unsharded_param"):  # since an eager forward
            whole = AttrSource(at, "_unsharded_param")
            places.append((AttrSource(whole, "grad"), parameter._unsharded_param.grad))
        else:
            s.guard(at, GuardKind.NO_ATTR, "_unsharded_param")
    for place, found in places:
        if found is None:
            s.guard(place, GuardKind.IS_NONE, None)
        else:
            s.guard(place, GuardKind.TYPE_IS, s.reference(type(found)))
    return any(found is not None for _, found in places)


def why_eager(state: FSDPState) -> str:
    """Why its hooks run in eager: what the polyfills do not do."""
    modules = sys.modules[STATE], sys.modules[GROUP]
    if len(state._modules) != 1:
        return "several modules share a group"
    if state._training_state is not modules[0].TrainingState.IDLE:
        return "its hooks are running in eager"
    for group in groups_of(state):
        if type(group.mesh_info) not in (modules[1].FSDPMeshInfo, modules[1].HSDPMeshInfo):
            return "its parameters are replicated without shards"
        if group._training_state is not modules[1].TrainingState.IDLE or not group.is_sharded:
            return "its parameters are not sharded"
        if not group.reduce_grads or not group.all_reduce_grads or not group.reshard_after_backward:
            return "gradients are accumulated before they are reduced"
        if (
            group.gradient_divide_factor is not None
            or group._all_reduce_hook is not None
            or group._use_post_forward_mesh
        ):
            return "it has reductions or meshes of its own"
        for parameter in group.fsdp_params:
            if parameter.is_dtensor or parameter.offload_to_cpu or parameter.fsdp_placement.dim != 0:
                return "its parameters are DTensors, offloaded, or not sharded along the first dimension"
            if hasattr(parameter._sharded_local_tensor, "fsdp_pre_all_gather"):
                return "its tensors have an all-gather of their own"
    return ""


def checked(s: CaptureState, value: Value) -> tuple[str, Value]:
    """Why the hooks of a state run in eager, or "", and its groups; what may change is guarded."""
    state = cast("FSDPState", value.real())
    if state._is_root is None:
        state._lazy_init()  # as eager does at this call
    assert value.source is not None
    sources = list(group_sources(state, value.source))
    s.guard(AttrSource(value.source, "_training_state"), GuardKind.IS, s.reference(state._training_state))
    values, waiting = [], False
    for group, source in zip(groups_of(state), sources, strict=True):
        for name in UNCHANGED:
            found = getattr(group, name)
            s.guard(AttrSource(source, name), GuardKind.IS, s.reference(found))
        waiting = guard_unreduced(s, group, source) or waiting
        values.append(s.wrap(group, source))
    why = why_eager(state)
    return why or ("gradients are accumulated before they are reduced" if waiting else ""), List(values)


def entered(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    why, groups = checked(s, args[0])
    if not why:
        reason = "the graph ends before its module's forward does"
        s.part(Unfinished).begin(args[0], "FSDPState._pre_forward", reason)
    return Tuple([Constant(why), groups])


def left(s: CaptureState, args: Args, kwargs: Kwargs) -> Value:
    why, groups = checked(s, args[0])
    if not s.part(Unfinished).end(args[0]) and not why:
        why = "its parameters were gathered in eager"
    return Tuple([Constant(why), groups])


def register_fully_sharded() -> None:
    """Fill the table of handlers, once the program has imported `fully_shard`."""
    module = sys.modules.get(STATE)
    if module is None or getattr(module.__spec__, "_initializing", False) or module.FSDPState._pre_forward in HANDLERS:
        return
    polyfills = importlib.import_module(POLYFILLS)
    handles(polyfills.entered)(entered)
    handles(polyfills.left)(left)
    handles(module.FSDPState._pre_forward)(beginning(polyfills.pre_forward))
    handles(module.FSDPState._post_forward)(interpreted(polyfills.post_forward))
