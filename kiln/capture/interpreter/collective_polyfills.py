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
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import DistributedDataParallel

from kiln.runtime.process_groups import EndedWork

functional = torch.ops._c10d_functional
own = torch.ops.kiln_c10d
Group = dist.ProcessGroup | None


def group_name(group: Group) -> str:
    """Answered by a handler, as are the next seven."""
    raise NotImplementedError


def group_size(group: Group) -> int:
    raise NotImplementedError


def rank_of(group: Group, rank: int | None, group_rank: int | None, return_global: bool = False) -> int:
    raise NotImplementedError


def canonical_rank(
    group: Group, global_rank: int | None = None, group_rank: int | None = None, return_global: bool = False
) -> int:
    return rank_of(group, global_rank, group_rank, return_global)


def reduction(op: object, function: str) -> str:
    """The name of a reduction in functional collectives."""
    raise NotImplementedError


def refuse(function: str, why: str) -> None:
    """Break the graph."""
    raise NotImplementedError


def started(work: MessageWork) -> None:
    """A message of the program is under way."""
    raise NotImplementedError


def ended(work: MessageWork) -> None:
    raise NotImplementedError


def is_coalesced(group: Group, tensor: torch.Tensor) -> bool:
    """Whether a batch of messages has one work object."""
    raise NotImplementedError


def check(function: str, *tensors: torch.Tensor) -> None:
    """Torch refuses what is not contiguous; complex numbers are reduced as pairs."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            refuse(function, "an argument is not a tensor")
        if tensor.is_complex() or not tensor.is_contiguous():
            refuse(function, "a tensor is complex or not contiguous")


def check_dense(function: str, tensor: torch.Tensor) -> None:
    """Torch sends the memory of a tensor as it lies: the dimensions may be permuted, without gaps."""
    if not isinstance(tensor, torch.Tensor):
        refuse(function, "an argument is not a tensor")
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    if not tensor.permute(order).is_contiguous() or tensor.is_conj() or tensor.is_neg():
        refuse(function, "a tensor has gaps or is a conjugate")


def landed(target: torch.Tensor, result: torch.Tensor) -> None:
    """Write the result, as c10d does: past autograd, and without raising the version."""
    target.data.copy_(functional.wait_tensor.default(result).view(target.shape))


def work(async_op: bool) -> EndedWork | None:
    return EndedWork() if async_op else None


def all_reduce(
    tensor: torch.Tensor, op: object = dist.ReduceOp.SUM, group: Group = None, async_op: bool = False
) -> EndedWork | None:
    check_dense("all_reduce", tensor)
    name = reduction(op, "all_reduce")
    if tensor.is_complex() or not tensor.is_contiguous():
        if tensor.is_complex() and name not in ("sum", "avg"):
            refuse("all_reduce", "it has no order of complex numbers")
        landed(tensor, own.changed.default("all_reduce", tensor.data, 0, name, group_name(group)))
    else:
        landed(tensor, functional.all_reduce.default(tensor.data, name, group_name(group)))
    return work(async_op)


def reduce(
    tensor: torch.Tensor,
    dst: int | None = None,
    op: object = dist.ReduceOp.SUM,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> EndedWork | None:
    """Other ranks than the destination get what the back end leaves there, as in eager."""
    check_dense("reduce", tensor)
    rank = rank_of(group, dst, group_dst)
    landed(tensor, own.changed.default("reduce", tensor.data, rank, reduction(op, "reduce"), group_name(group)))
    return work(async_op)


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> EndedWork | None:
    check_dense("broadcast", tensor)
    source = rank_of(group, src, group_src)
    if tensor.is_complex() or not tensor.is_contiguous():
        landed(tensor, own.changed.default("broadcast", tensor.data, source, "", group_name(group)))
    else:
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


def gather(
    tensor: torch.Tensor,
    gather_list: list[torch.Tensor] | None = None,
    dst: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> EndedWork | None:
    rank = rank_of(group, 0 if dst is None and group_dst is None else dst, group_dst)
    targets = listed("gather", tensor, gather_list, rank == dist.get_rank(group), group_size(group))
    exchanged("gather", targets, [tensor], rank, group)
    return work(async_op)


def scatter(
    tensor: torch.Tensor,
    scatter_list: list[torch.Tensor] | None = None,
    src: int | None = None,
    group: Group = None,
    async_op: bool = False,
    group_src: int | None = None,
) -> EndedWork | None:
    rank = rank_of(group, 0 if src is None and group_src is None else src, group_src)
    sent = listed("scatter", tensor, scatter_list, rank == dist.get_rank(group), group_size(group))
    exchanged("scatter", [tensor], sent, rank, group)
    return work(async_op)


def all_to_all(
    output_tensor_list: list[torch.Tensor],
    input_tensor_list: list[torch.Tensor],
    group: Group = None,
    async_op: bool = False,
) -> EndedWork | None:
    check("all_to_all", *output_tensor_list, *input_tensor_list)
    size, dtypes = group_size(group), {x.dtype for x in (*output_tensor_list, *input_tensor_list)}
    if len(output_tensor_list) != size or len(input_tensor_list) != size or len(dtypes) != 1:
        refuse("all_to_all", "the tensors do not fit each other")
    exchanged("all_to_all", output_tensor_list, input_tensor_list, 0, group)
    return work(async_op)


def listed(
    function: str, tensor: torch.Tensor, parts: list[torch.Tensor] | None, is_root: bool, size: int
) -> list[torch.Tensor]:
    """The tensors for each rank, which only the root has."""
    found = list(parts) if parts else []
    check(function, tensor, *found)
    if len(found) != (size if is_root else 0):
        refuse(function, "its list has not a tensor for each rank, on the root only")
    if any(x.shape != tensor.shape or x.dtype is not tensor.dtype for x in found):
        refuse(function, "the tensors do not fit each other")
    return found


def exchanged(function: str, targets: list[torch.Tensor], sent: list[torch.Tensor], rank: int, group: Group) -> None:
    made = own.exchange.default(function, [x.data for x in targets], [x.data for x in sent], rank, group_name(group))
    for result in made[len(targets) :]:
        functional.wait_tensor.default(result)
    for target, result in zip(targets, made, strict=False):
        landed(target, result)


class MessageWork:
    """The work of `isend` and `irecv`, until `wait` is called: (target or None, what to wait for)."""

    def __init__(self, parts: list[tuple[torch.Tensor | None, torch.Tensor]]) -> None:
        self.parts = parts
        started(self)

    def wait(self, timeout: object = None) -> bool:
        parts, self.parts = self.parts, []
        for target, result in parts:
            if target is None:
                functional.wait_tensor.default(result)
            else:
                landed(target, result)
        ended(self)
        return True

    def is_completed(self) -> bool:
        if self.parts:
            refuse("is_completed", "the answer depends on the other ranks")
        return True

    def is_success(self) -> bool:
        return self.is_completed()


def sent_to(
    tensors: list[torch.Tensor], sends: list[bool], ranks: list[int], tags: list[int], batched: bool, group: Group
) -> list[MessageWork]:
    """The works of messages, one for all or one each."""
    check("a message", *tensors)
    buffers = [tensor.data for tensor in tensors]
    codes = [int(send) for send in sends]
    made = own.messages.default(buffers, codes, ranks, tags, int(batched), group_name(group))
    parts = [(None if send else tensor, result) for tensor, send, result in zip(tensors, sends, made, strict=True)]
    if batched and is_coalesced(group, tensors[0]):
        return [MessageWork(parts)]
    return [MessageWork([part]) for part in parts]


def isend(
    tensor: torch.Tensor, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> MessageWork:
    return sent_to([tensor], [True], [rank_of(group, dst, group_dst)], [tag], False, group)[0]


def irecv(
    tensor: torch.Tensor, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> MessageWork:
    if src is None and group_src is None:
        refuse("irecv", "it receives from any rank")
    return sent_to([tensor], [False], [rank_of(group, src, group_src)], [tag], False, group)[0]


def send(
    tensor: torch.Tensor, dst: int | None = None, group: Group = None, tag: int = 0, group_dst: int | None = None
) -> None:
    rank = rank_of(group, dst, group_dst)
    if rank == dist.get_rank(group):
        refuse("send", "it sends to its own rank")
    sent_to([tensor], [True], [rank], [tag], False, group)[0].wait()


def recv(
    tensor: torch.Tensor, src: int | None = None, group: Group = None, tag: int = 0, group_src: int | None = None
) -> int:
    irecv(tensor, src, group, tag, group_src).wait()
    return rank_of(group, src, group_src, True)


def batch_isend_irecv(p2p_op_list: list[dist.P2POp]) -> list[MessageWork]:
    if not p2p_op_list or any(op.group is not p2p_op_list[0].group for op in p2p_op_list):
        refuse("batch_isend_irecv", "its operations are not of one group")
    return sent_to(
        [op.tensor for op in p2p_op_list],
        [op.op is dist.isend for op in p2p_op_list],
        [op.group_peer for op in p2p_op_list],
        [op.tag for op in p2p_op_list],
        True,
        p2p_op_list[0].group,
    )


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


def is_unusual(module: DistributedDataParallel) -> bool:
    """Whether its forward does more than to broadcast buffers and to tell the reducer that it ran."""
    return bool(
        module._use_python_reducer
        or module._delay_all_reduce_all_params
        or module._join_config.enable
        or module.mixed_precision is not None
        or hasattr(module, "buffer_hook")
        or (module.static_graph and not module._static_graph_delay_allreduce_enqueued)
    )


def pre_forward(self: DistributedDataParallel, *inputs: object, **kwargs: object) -> tuple[object, object]:
    """Buffers are broadcast in the graph; what the reducer is told comes behind it (`forwarded`)."""
    if is_unusual(self):
        refuse("_pre_forward", "its module does more than to reduce gradients")
    settles = self.static_graph or not self.find_unused_parameters
    if settles and torch.is_grad_enabled() and not self._has_rebuilt_buckets:
        buckets_pending()
    if len(self.modules_buffers) > 0 and self.will_sync_module_buffers():
        with torch.no_grad():
            broadcast_buffers(self.modules_buffers, self.broadcast_bucket_size, self.process_group)
    if not self.device_ids or not (inputs or kwargs):
        return inputs, kwargs
    device = torch.device(self.device_type, self.device_ids[0])
    moved, named = _to_kwargs(inputs, kwargs, device, self.use_side_stream_for_tensor_copies)
    return moved[0], named[0]


def post_forward(self: DistributedDataParallel, output: object) -> object:
    if is_unusual(self):
        refuse("_post_forward", "its module does more than to reduce gradients")
    self.require_forward_param_sync = torch.is_grad_enabled() and self.require_backward_grad_sync
    forwarded(self, output, self.require_forward_param_sync)
    return output


def forwarded(module: DistributedDataParallel, output: object, reduces: bool) -> None:
    """Answered by a handler. `reduces`: whether the next backward reduces gradients."""
    raise NotImplementedError


def buckets_pending() -> None:
    """Run this call in eager; answered by a handler."""
    raise NotImplementedError


def broadcast_buffers(buffers: Sequence[torch.Tensor], limit: int, group: Group) -> None:
    """From the first rank, in the messages of eager: one for all buffers of a dtype, up to a size."""
    messages: list[list[torch.Tensor]] = []
    open_messages: dict[object, tuple[list[torch.Tensor], int]] = {}
    for buffer in buffers:
        key = buffer.dtype, buffer.device
        message, size = open_messages.pop(key, ([], 0))
        if not message:
            messages.append(message)
        message.append(buffer)
        size += buffer.numel() * buffer.element_size()
        if size < limit:
            open_messages[key] = message, size
    for message in messages:
        flat = torch.cat([buffer.reshape(-1) for buffer in message])
        made = functional.wait_tensor.default(functional.broadcast.default(flat, 0, group_name(group)))
        for buffer, part in zip(message, made.split([buffer.numel() for buffer in message]), strict=True):
            buffer.copy_(part.view(buffer.shape))


def reduced(module: DistributedDataParallel, buckets: Sequence[Sequence[torch.Tensor]]) -> None:
    """What the reducer does to the gradients of a backward, in the messages of eager: other ranks may run it there."""
    if module._comm_hooks or module._delay_all_reduce_params:
        refuse("backward", "its module has a communication hook")
    group = module.process_group
    share = 1 / dist.get_world_size(group)
    for leaves in buckets:
        grads = [leaf.grad.data for leaf in leaves]  # type: ignore[union-attr]
        orders = [sorted(range(leaf.dim()), key=leaf.stride, reverse=True) for leaf in leaves]
        parts = [grad.permute(order) for grad, order in zip(grads, orders, strict=True)]
        flat = torch.cat([part.reshape(-1) for part in parts]) * share
        made = functional.wait_tensor.default(functional.all_reduce.default(flat, "sum", group_name(group)))
        for part, found in zip(parts, made.split([part.numel() for part in parts]), strict=True):
            part.copy_(found.view(part.shape))
    if module.find_unused_parameters and not module.static_graph:
        count = sum([len(leaves) for leaves in buckets])
        used = torch.ones(count, dtype=torch.int32, device=buckets[0][0].device)
        functional.wait_tensor.default(functional.all_reduce.default(used, "sum", group_name(group)))


def inside_ddp_forward(self: DistributedDataParallel) -> AbstractContextManager[None]:
    """It tells torch.compile which module is running."""
    return nullcontext()
