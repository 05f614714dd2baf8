"""Operators for what `torch.distributed` does and torch has no functional operator for.

kiln_c10d.changed("reduce", x, 0, "sum", "0")            a copy of x, which the function changes in place
kiln_c10d.messages([x, y], [1, 0], [1, 1], [0, 0], 0, "0")     x is sent to rank 1; what it sends, like y
kiln_c10d.unshard([x, y], 2, "0")                        the parts of all ranks, one behind the other, of each
kiln_c10d.exchange("gather", [], [x], 0, "0")            tensors like the first list, which receive; the second is sent

Ranks are ranks of the group. Each calls the function of `torch.distributed` with `async_op=True` on fresh memory, and
`wait_tensor` ends it. What is only sent has an empty tensor to wait for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

if dist.is_available():
    import torch.distributed.distributed_c10d as c10d

NAMESPACE = "kiln_c10d"
MESSAGES = f"{NAMESPACE}.messages.default"
UNSHARD = f"{NAMESPACE}.unshard.default"
LIBRARY = torch.library.Library(NAMESPACE, "DEF")
LIBRARY.define("changed(str function, Tensor x, int rank, str op, str group) -> Tensor")
LIBRARY.define("messages(Tensor[] tensors, int[] sends, int[] ranks, int[] tags, int batched, str group) -> Tensor[]")
LIBRARY.define("unshard(Tensor[] shards, int size, str group) -> Tensor[]")
LIBRARY.define("exchange(str function, Tensor[] like, Tensor[] sent, int rank, str group) -> Tensor[]")


def group_of(name: str) -> dist.ProcessGroup:
    return c10d._resolve_process_group(name)  # type: ignore[arg-type,attr-defined]


def started(tensor: torch.Tensor, work: dist.Work | None) -> torch.Tensor:
    """The tensor, which the work fills."""
    torch._C._distributed_c10d._register_work(tensor, work)  # type: ignore[arg-type]
    return tensor


def token(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_empty(0, dtype=torch.uint8)


def received(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def changed(function: str, x: torch.Tensor, rank: int, op: str, group: str) -> torch.Tensor:
    made, where = x.clone(), group_of(group)
    if function == "broadcast":
        return started(made, dist.broadcast(made, group=where, async_op=True, group_src=rank))
    reduction = getattr(dist.ReduceOp, op.upper())
    if function == "all_reduce":
        return started(made, dist.all_reduce(made, reduction, where, async_op=True))
    return started(made, dist.reduce(made, op=reduction, group=where, async_op=True, group_dst=rank))


def messages(
    tensors: Sequence[torch.Tensor],
    sends: Sequence[int],
    ranks: Sequence[int],
    tags: Sequence[int],
    batched: int,
    group: str,
) -> list[torch.Tensor]:
    where = group_of(group)
    buffers = [tensor if send else received(tensor) for tensor, send in zip(tensors, sends, strict=True)]
    results = [token(buffer) if send else buffer for buffer, send in zip(buffers, sends, strict=True)]
    rows = zip(buffers, sends, ranks, tags, strict=True)
    if batched:
        made = [
            dist.P2POp(dist.isend if send else dist.irecv, buffer, None, where, tag, rank)
            for buffer, send, rank, tag in rows
        ]
        works: list[dist.Work | None] = [*dist.batch_isend_irecv(made)]
    else:
        works = [
            dist.isend(buffer, group=where, tag=tag, group_dst=rank)
            if send
            else dist.irecv(buffer, group=where, tag=tag, group_src=rank)
            for buffer, send, rank, tag in rows
        ]
    if len(works) != len(results):  # coalesced
        works = [works[-1]] * len(results)
    return [started(result, work) for result, work in zip(results, works, strict=True)]


def unshard(shards: Sequence[torch.Tensor], size: int, group: str) -> list[torch.Tensor]:
    """An all-gather that a backward repeats instead of keeping what it made."""
    gather = torch.ops._c10d_functional.all_gather_into_tensor_coalesced.default
    made: list[torch.Tensor] = gather(shards, size, group)
    return made


def exchange(
    function: str, like: Sequence[torch.Tensor], sent: Sequence[torch.Tensor], rank: int, group: str
) -> list[torch.Tensor]:
    results, where = [received(tensor) for tensor in like], group_of(group)
    if function == "gather":
        work = dist.gather(sent[0], results or None, group=where, async_op=True, group_dst=rank)
    elif function == "scatter":
        work = dist.scatter(results[0], list(sent) or None, group=where, async_op=True, group_src=rank)
    else:
        work = dist.all_to_all(results, list(sent), group=where, async_op=True)
    return [started(result, work) for result in results or [token(sent[0])]]


for _function in (changed, messages, unshard, exchange):
    LIBRARY.impl(_function.__name__, _function, "CompositeExplicitAutograd")
