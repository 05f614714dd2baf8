"""`fully_shard` as collectives of the graph, interpreted in place of its hooks.

    block(x)      =>      w, b = unshard(shards of w and b); y = block's forward with w and b; y

In a backward the gradients of `w` and `b` are reduced and scattered, and on a mesh with replicas reduced over these.
What `unshard` makes is gathered again there instead of saved, unless the group keeps its parameters after the forward.
torch's own state does not change: its groups stay sharded. What is not checked here runs in eager, hooks and all
(`refuse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor._api import _ToTorchTensor
from torch.distributed.utils import _apply_to_tensors, _to_kwargs

from kiln.capture.interpreter.collective_polyfills import functional, own, refuse

if TYPE_CHECKING:
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState


def entered(state: FSDPState) -> tuple[str, Sequence[FSDPParamGroup]]:
    """Why its hooks run in eager, or "", and its groups; answered by a handler, as is the next."""
    raise NotImplementedError


def left(state: FSDPState) -> tuple[str, Sequence[FSDPParamGroup]]:
    raise NotImplementedError


def pre_forward(
    self: FSDPState, module: torch.nn.Module, args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[object, object]:
    why, groups = entered(self)
    if why:
        refuse("FSDPState._pre_forward", why)
    for group in groups:
        install(group)
    if self._is_root and self._device.type == "cuda" and (args or kwargs):
        moved, named = _to_kwargs(args, kwargs, self._device, False)
        args, kwargs = moved[0], named[0]
    policy = self._mp_policy
    if policy.cast_forward_inputs and policy.param_dtype:
        return cast(args, policy.param_dtype), cast(kwargs, policy.param_dtype)
    return args, kwargs


def post_forward(self: FSDPState, module: torch.nn.Module, input: object, output: object) -> object:
    why, groups = left(self)
    if why:
        refuse("FSDPState._post_forward", why)
    for group in groups:
        for parameter in group.fsdp_params:
            set_parameter(parameter, parameter.sharded_param)
    dtype = self._mp_policy.output_dtype
    return output if dtype is None else cast(output, dtype)


def cast(values: object, dtype: torch.dtype) -> object:
    """With the floating-point tensors among them in `dtype`."""
    return _apply_to_tensors(lambda x: x.to(dtype) if x.is_floating_point() else x, values)


def set_parameter(parameter: FSDPParam, value: Tensor) -> None:
    """In the modules that have it. It is read back: the capture then sees that the last store changes nothing."""
    info = parameter._module_info
    modules = [(info.module, info.param_name), *zip(info.shared_modules, info.shared_param_names, strict=True)]
    for module, name in modules:
        module._parameters[name] = value  # type: ignore[assignment]
        assert module._parameters[name] is value


def install(group: FSDPParamGroup) -> None:
    """Put whole parameters into the modules of a group."""
    kept = group.post_forward_mesh_info is None
    process_group = group.mesh_info.shard_process_group  # type: ignore[attr-defined]
    replicas = getattr(group.mesh_info, "replicate_process_group", None)
    trained = tuple([parameter for parameter in group.fsdp_params if parameter.sharded_param.requires_grad])
    fixed = tuple([parameter for parameter in group.fsdp_params if not parameter.sharded_param.requires_grad])
    if trained:
        shards = [flattened(parameter) for parameter in trained]
        set_whole(trained, Unshard.apply(trained, process_group, replicas, kept, *shards))
    if fixed:
        set_whole(fixed, gathered(fixed, process_group, kept, [flattened(parameter) for parameter in fixed]))


def flattened(parameter: FSDPParam) -> Tensor:
    """The shard of this rank as all send it, filled up with zeros where it is shorter than others."""
    shard: Tensor = _ToTorchTensor.apply(parameter.sharded_param, None)
    rows, wanted = shard.size(0), parameter.padded_sharded_param_size[0]
    if rows < wanted:
        shard = torch.cat([shard, shard.new_zeros(wanted - rows, *parameter.padded_sharded_param_size[1:])])
    return shard.reshape(-1)


def set_whole(parameters: Sequence[FSDPParam], whole: Sequence[Tensor]) -> None:
    for parameter, x in zip(parameters, whole, strict=True):
        set_parameter(parameter, x[: parameter._orig_size.numel()].view(parameter._orig_size))


def gathered(
    parameters: Sequence[FSDPParam], group: dist.ProcessGroup, kept: bool, shards: Sequence[Tensor]
) -> list[Tensor]:
    """The shards of all ranks behind each other, in the dtype of the forward."""
    sent = [
        x.to(parameter.param_dtype or parameter.orig_dtype) for parameter, x in zip(parameters, shards, strict=True)
    ]
    gather = functional.all_gather_into_tensor_coalesced if kept else own.unshard
    made = gather.default(sent, dist.get_world_size(group), group.group_name)
    return [functional.wait_tensor.default(x) for x in made]


class Kept(Protocol):
    """What the backward gets of the forward: dtypes to reduce in and of each parameter; size and name of the group,
    name of that of the replicas, how many ranks there are, and whether they average."""

    dtypes: Sequence[tuple[torch.dtype | None, torch.dtype]]
    group: tuple[int, str, str | None, int, bool]

    def set_materialize_grads(self, value: bool) -> None: ...


class Unshard(torch.autograd.Function):
    """Whole parameters from shards; the average of the gradients of all ranks, a shard of it to each."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Kept,
        parameters: Sequence[FSDPParam],
        group: dist.ProcessGroup,
        replicas: dist.ProcessGroup | None,
        kept: bool,
        *shards: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.dtypes = tuple([(parameter.reduce_dtype, parameter.orig_dtype) for parameter in parameters])
        size = dist.get_world_size(group)
        ranks = size if replicas is None else size * dist.get_world_size(replicas)
        other = None if replicas is None else replicas.group_name
        ctx.group = size, group.group_name, other, ranks, ranks > 1 and dist.get_backend(group) == "nccl"
        return tuple(gathered(parameters, group, kept, shards))

    @staticmethod
    def backward(ctx: Kept, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        size, name, replicas, ranks, averages = ctx.group
        sent = []
        for grad, (dtype, _) in zip(grads, ctx.dtypes, strict=True):
            if grad is not None:
                grad = grad if dtype is None else grad.to(dtype)
                sent.append(grad if averages else grad / ranks)
        if not sent:
            return (None, None, None, None, *grads)
        operation = "avg" if averages else "sum"
        made = functional.reduce_scatter_tensor_coalesced.default(sent, operation, size, name)
        if replicas is not None:
            made = [functional.wait_tensor.default(x) for x in made]
            made = functional.all_reduce_coalesced.default(made, operation, replicas)
        found, number = [], 0
        for grad, (_, dtype) in zip(grads, ctx.dtypes, strict=True):
            found.append(None if grad is None else functional.wait_tensor.default(made[number]).to(dtype))
            number += grad is not None
        return (None, None, None, None, *found)
