"""Cases on models that are spread by a plan, cut into stages, or saved in parts; attention over sequences in parts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.nn import functional as F

import kiln
from tests.distributed.ranks import device_type
from tests.distributed.wrapper_cases import Net, sharded, whole

CASES: dict[str, Callable[[int, int], None]] = {}


def case(function: Callable[[int, int], None]) -> Callable[[int, int], None]:
    CASES[function.__name__] = function
    return function


class Layers(nn.Module):
    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x).tanh()
        return x


def same_gradients(model: Layers, schedule: Callable[..., Any], mine: list[int], count: int) -> None:
    """A rank that runs the stages `mine` of `count` gets the gradients that the whole model has of four parts."""
    x, target = torch.randn(8, 8), torch.randn(8, 8)
    loss = sum(F.mse_loss(model(part), wanted) for part, wanted in zip(x.chunk(4), target.chunk(4), strict=True)) / 4
    expected = dict(
        zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True)
    )
    parts = kiln.distributed.stages(model, (x[:2],), count)
    device = torch.device(device_type())
    stages = [
        PipelineStage(
            kiln.compile(parts[number]),
            number,
            count,
            device,
            input_args=parts[number].inputs,
            output_args=parts[number].outputs,
        )
        for number in mine
    ]
    run = schedule(stages[0] if len(stages) == 1 else stages, 4, loss_fn=F.mse_loss)
    run.step(*([x] if 0 in mine else []), **({"target": target} if count - 1 in mine else {}))
    for number in mine:
        for name, parameter in parts[number].named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name])


@case
def pipeline(rank: int, size: int) -> None:
    for schedule in (ScheduleGPipe, Schedule1F1B):
        torch.manual_seed(0)
        same_gradients(Layers(), schedule, [rank], size)


@case
def two_stages_on_each_rank(rank: int, size: int) -> None:
    torch.manual_seed(0)
    same_gradients(Layers(8), ScheduleInterleaved1F1B, [rank, rank + size], 2 * size)


@case
def planned(rank: int, size: int) -> None:
    """A plan is applied: the model trains as it did alone on all data."""
    torch.manual_seed(0)
    alone, model = Layers(), Layers()
    model.load_state_dict(alone.state_dict())
    machine = kiln.distributed.Machine("a device", flops=1e9, link=1e9, latency=1e-6, memory=2**30)
    choice = kiln.distributed.plan(model, (size,), (torch.randn(64, 8),), machine=machine, verbose=False)
    assert choice.degrees.data * choice.degrees.shard == size, str(choice)
    spread = kiln.compile(choice.apply(model))
    batches = [torch.randn(4, 8, generator=torch.Generator(device_type()).manual_seed(n)) for n in range(size)]
    spread(batches[rank]).square().mean().backward()
    (sum(alone(batch).square().mean() for batch in batches) / size).backward()
    for one, other in zip(spread.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(whole(one.grad), other.grad)


@case
def checkpoints(rank: int, size: int) -> None:
    """What a compiled model saves, one of eager loads, and the other way round."""
    found = [tempfile.mkdtemp()] if rank == 0 else [""]
    dist.broadcast_object_list(found)
    for number, (writes, reads) in enumerate([(kiln.compile, lambda m: m), (lambda m: m, kiln.compile)]):
        torch.manual_seed(number)
        writer, path = writes(sharded(Net())), f"{found[0]}/{number}"
        writer(torch.randn(3, 8)).sum().backward()
        torch.optim.SGD(writer.parameters(), lr=0.1, foreach=False).step()
        checkpoint.save(get_model_state_dict(writer), checkpoint_id=path)
        reader = reads(sharded(Net()))
        state = get_model_state_dict(reader)
        checkpoint.load(state, checkpoint_id=path)
        set_model_state_dict(reader, state)
        x = torch.randn(3, 8)
        torch.testing.assert_close(reader(x), writer(x))


def ring_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Each rank has a part of the sequence; keys and values go round, and parts of the softmax are joined."""
    rank, size = dist.get_rank(), dist.get_world_size()
    total, most, weights = torch.zeros_like(q), q.new_full(q.shape[:-1], -1e9), q.new_zeros(q.shape[:-1])
    for step in range(size):
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        highest = torch.maximum(most, scores.amax(-1))
        shares, scale = (scores - highest[..., None]).exp(), (most - highest).exp()
        total, weights, most = total * scale[..., None] + shares @ v, weights * scale + shares.sum(-1), highest
        if step < size - 1:
            sent = torch.stack((k, v))
            received = torch.empty_like(sent)
            works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, sent, (rank + 1) % size),
                dist.P2POp(dist.irecv, received, (rank - 1) % size),
            ])  # fmt: skip
            for work in works:
                work.wait()
            k, v = received[0], received[1]
    return total / weights[..., None]


@case
def attention_in_a_ring(rank: int, size: int) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 4 * size, 8) for _ in range(3))
    expected = F.scaled_dot_product_attention(q, k, v).chunk(size, dim=2)[rank]
    parts = [x.chunk(size, dim=2)[rank].contiguous() for x in (q, k, v)]
    compiled = kiln.compile(ring_attention, fullgraph=True)
    torch.testing.assert_close(compiled(*parts), expected, rtol=1e-4, atol=1e-5)
    assert compiled.report().regions == 1
