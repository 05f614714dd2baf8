"""`torch.distributed` as functional collectives, interpreted in place of its functions.

    dist.all_reduce(x)        =>      y = all_reduce(x, "sum", "0"); x.data.copy_(wait_tensor(y))

The wait is recorded at once and runs late, so that `async_op=True` makes no difference: the work object has ended.
What is not checked here leaves the graph (`refuse`), and eager runs it or raises its error.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from kiln.runtime.process_groups import EndedWork

functional = torch.ops._c10d_functional
Group = dist.ProcessGroup | None


def group_name(group: Group) -> str:
    """Answered by a handler, as are the next four."""
    raise NotImplementedError


def group_size(group: Group) -> int:
    raise NotImplementedError


def rank_of_source(group: Group, src: int | None, group_src: int | None) -> int:
    raise NotImplementedError


def reduction(op: object, function: str) -> str:
    """The name of a reduction in functional collectives."""
    raise NotImplementedError


def refuse(function: str, why: str) -> None:
    """Break the graph."""
    raise NotImplementedError


def check(function: str, *tensors: torch.Tensor) -> None:
    """Torch refuses what is not contiguous; complex numbers are reduced as pairs."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            refuse(function, "an argument is not a tensor")
        if tensor.is_complex() or not tensor.is_contiguous():
            refuse(function, "a tensor is complex or not contiguous")


def landed(target: torch.Tensor, result: torch.Tensor) -> None:
    """Write the result, as c10d does: past autograd, and without raising the version."""
    target.data.copy_(functional.wait_tensor.default(result).view(target.shape))


def work(async_op: bool) -> EndedWork | None:
    return EndedWork() if async_op else None


def all_reduce(
    tensor: torch.Tensor, op: object = dist.ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> EndedWork | None:
    check("all_reduce", tensor)
    landed(tensor, functional.all_reduce.default(tensor.data, reduction(op, "all_reduce"), group_name(group)))
    return work(async_op)


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> EndedWork | None:
    check("broadcast", tensor)
    source = rank_of_source(group, src, group_src)
    landed(tensor, functional.broadcast.default(tensor.data, source, group_name(group)))
    return work(async_op)


def all_gather_into_tensor(
    output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Group = None, async_op: bool = False
) -> EndedWork | None:
    check("all_gather_into_tensor", output_tensor, input_tensor)
    size = group_size(group)
    if output_tensor.numel() != size * input_tensor.numel() or output_tensor.dtype is not input_tensor.dtype:
        refuse("all_gather_into_tensor", "the tensors do not fit each other")
    made = functional.all_gather_into_tensor.default(input_tensor.data.view(-1), size, group_name(group))
    landed(output_tensor, made)
    return work(async_op)


def all_gather(
    tensor_list: Sequence[torch.Tensor], tensor: torch.Tensor, group: Group = None, async_op: bool = False
) -> EndedWork | None:
    check("all_gather", tensor, *tensor_list)
    size = group_size(group)
    if len(tensor_list) != size or any(x.shape != tensor.shape or x.dtype is not tensor.dtype for x in tensor_list):
        refuse("all_gather", "the tensors do not fit each other")
    made = functional.all_gather_into_tensor.default(tensor.data.view(-1), size, group_name(group))
    whole = functional.wait_tensor.default(made).view(size, -1)
    for rank in range(size):
        tensor_list[rank].data.copy_(whole[rank].view(tensor.shape))
    return work(async_op)


def reduce_scatter_tensor(
    output: torch.Tensor,
    input: torch.Tensor,
    op: object = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> EndedWork | None:
    check("reduce_scatter_tensor", output, input)
    size = group_size(group)
    if input.numel() != size * output.numel() or input.dtype is not output.dtype:
        refuse("reduce_scatter_tensor", "the tensors do not fit each other")
    name = reduction(op, "reduce_scatter_tensor")
    landed(output, functional.reduce_scatter_tensor.default(input.data.view(-1), name, size, group_name(group)))
    return work(async_op)


def reduce_scatter(
    output: torch.Tensor,
    input_list: Sequence[torch.Tensor],
    op: object = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
) -> EndedWork | None:
    check("reduce_scatter", output, *input_list)
    size = group_size(group)
    if len(input_list) != size or any(x.shape != output.shape or x.dtype is not output.dtype for x in input_list):
        refuse("reduce_scatter", "the tensors do not fit each other")
    whole = torch.cat([x.data.view(-1) for x in input_list])
    name = reduction(op, "reduce_scatter")
    landed(output, functional.reduce_scatter_tensor.default(whole, name, size, group_name(group)))
    return work(async_op)


def all_to_all_single(
    output: torch.Tensor,
    input: torch.Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Group = None,
    async_op: bool = False,
) -> EndedWork | None:
    check("all_to_all_single", output, input)
    size = group_size(group)
    received = split_sizes(output, output_split_sizes, size)
    sent = split_sizes(input, input_split_sizes, size)
    if input.dtype is not output.dtype or input.shape[1:] != output.shape[1:]:
        refuse("all_to_all_single", "the tensors do not fit each other")
    landed(output, functional.all_to_all_single.default(input.data, received, sent, group_name(group)))
    return work(async_op)


def split_sizes(tensor: torch.Tensor, given: Sequence[int] | None, size: int) -> list[int]:
    """Rows for each rank, by default equally many."""
    if tensor.dim() == 0 or (not given and tensor.shape[0] % size != 0):
        refuse("all_to_all_single", "the rows cannot be divided")
    rows = list(given) if given else [tensor.shape[0] // size] * size
    if len(rows) != size or sum(rows) != tensor.shape[0]:
        refuse("all_to_all_single", "the sizes of its parts do not fit the tensor")
    return rows


def resolve_group(group: str | dist.ProcessGroup | DeviceMesh | tuple[DeviceMesh, int], tag: str = "") -> str:
    """What a functional collective takes as a group, as its name."""
    if isinstance(group, str):
        return group
    if isinstance(group, dist.ProcessGroup):
        return group.group_name
    if isinstance(group, DeviceMesh) and group.ndim == 1:
        return group._dim_group_names[0]
    if isinstance(group, tuple) and len(group) == 2 and isinstance(group[0], DeviceMesh):
        return group[0]._dim_group_names[group[1]]
    refuse("a functional collective", "its group is neither a process group nor a dimension of a mesh")
    return ""


def name_of_group(group: str) -> str:
    return group


def are_we_tracing() -> bool:
    """So functional collectives wait for their results at once and return plain tensors."""
    return True


def joined_chunks(res: torch.Tensor, group_size: int, gather_dim: int) -> torch.Tensor:
    """The parts of all ranks, stacked along the first dimension, side by side."""
    return res if gather_dim == 0 else torch.cat(torch.chunk(res, group_size, dim=0), dim=gather_dim)


def inside_ddp_forward(self: DistributedDataParallel) -> AbstractContextManager[None]:
    """It tells torch.compile which module is running."""
    return nullcontext()
