"""Cases on wrappers of modules: DDP, FSDP2 and tensor parallel training steps equal eager's.

The cache is on, so the ranks share compiles, too.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import kiln
from kiln_bench.distributed import parameter_groups
from tests.distributed.ranks import device_type

CASES: dict[str, Callable[[int, int], None]] = {}
Wrap = Callable[[nn.Module], nn.Module]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(x).relu())
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(8, 4)
        self.unused = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.head(x)
        return out


def trained(rank: int, wrap: Wrap, *, accumulate: bool = False, same_data: bool = False) -> list[torch.Tensor]:
    """Results and parameters of three steps."""
    torch.manual_seed(0)
    model = wrap(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)  # there may be DTensors among them
    found = []
    for step in range(3):
        torch.manual_seed(step if same_data else 10 * step + rank)
        x = torch.randn(3, 8)
        if accumulate:
            with model.no_sync() if hasattr(model, "no_sync") else contextlib.nullcontext():
                model(x).sum().backward()
        y = model(x)
        y.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(y.detach())
    return found + [whole(p).detach().clone() for p in model.parameters()]


def whole(parameter: Any) -> torch.Tensor:
    made: torch.Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return made


def equal(eager: Wrap, compiled: Wrap, **options: bool) -> Callable[[int, int], None]:
    """The case that both train alike."""

    def run(rank: int, size: int) -> None:
        expected = trained(rank, eager, **options)
        torch.testing.assert_close(trained(rank, compiled, **options), expected, rtol=1e-5, atol=1e-5)

    return run


def halving(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A communication hook."""
    work = dist.all_reduce(bucket.buffer().div_(2 * dist.get_world_size()), async_op=True)
    made: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
    return made


def data_parallel(model: nn.Module, *, hook: bool = False, **options: bool) -> nn.Module:
    made = DistributedDataParallel(model, **({"find_unused_parameters": True} | options))
    if hook:
        made.register_comm_hook(None, halving)
    return made


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh(), **options)
    return fully_shard(model, mesh=mesh(), **options)


def replicated(model: nn.Module, *, shards: int) -> nn.Module:
    """Shards within each of several groups of ranks."""
    sizes = dist.get_world_size() // shards, shards
    both = init_device_mesh(device_type(), sizes, mesh_dim_names=("replica", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=both)
    return fully_shard(model, mesh=both)


def mesh() -> Any:
    return init_device_mesh(device_type(), (dist.get_world_size(),))


def tensor_parallel(model: nn.Module) -> nn.Module:
    for block in model.blocks:
        parallelize_module(block, mesh(), {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def blocks_compiled(model: nn.Module) -> nn.Module:
    for place, block in enumerate(model.blocks):
        model.blocks[place] = kiln.compile(block)
    return model


CASES["ddp_compiled"] = equal(data_parallel, lambda model: kiln.compile(data_parallel(model)))
CASES["ddp_accumulates"] = equal(data_parallel, lambda model: kiln.compile(data_parallel(model)), accumulate=True)
CASES["fsdp"] = equal(sharded, lambda model: kiln.compile(sharded(model)))
CASES["fsdp_blocks"] = equal(sharded, lambda model: sharded(blocks_compiled(model)))
_half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
CASES["tensor_parallel"] = equal(tensor_parallel, lambda model: kiln.compile(tensor_parallel(model)), same_data=True)


def mixed_precision(rank: int, size: int) -> None:
    expected, found = [
        trained(rank, wrap)
        for wrap in (partial(sharded, mp_policy=_half), lambda m: kiln.compile(sharded(m, mp_policy=_half)))
    ]
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


CASES["fsdp_mixed_precision"] = mixed_precision


def one_region(wrap: Wrap) -> Callable[[int, int], None]:
    """The case that a wrapped model, hooks and all, is one region."""

    def run(rank: int, size: int) -> None:
        torch.manual_seed(0)
        model = kiln.compile(wrap(Net()), fullgraph=True)
        for _ in range(2):
            model(torch.randn(3, 8)).sum().backward()
        report = model.report()
        assert report.regions == 1 and report.compiles + report.loaded == 1 and not report.breaks, str(report)

    return run


def fsdp_accumulates(rank: int, size: int) -> None:
    """Gradients that wait for their reduction count, also for a region that was compiled before there were any."""

    def results(wrap: Wrap) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model: Any = wrap(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
        for number, last in enumerate((True, True, False, True, False, False, True)):
            torch.manual_seed(10 * number + rank)
            model.set_requires_gradient_sync(last)
            model(torch.randn(3, 8)).square().sum().backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
        return [whole(p).detach().clone() for p in model.parameters()]

    for options in ({}, {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.float64)}):
        wrap: Wrap = partial(sharded, **options)
        found, expected = results(lambda model, wrap=wrap: kiln.compile(wrap(model))), results(wrap)  # type: ignore[misc]
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


CASES["fsdp_accumulates"] = fsdp_accumulates


def checkpoints(rank: int, size: int, *, wrap: Wrap) -> None:
    """A distributed checkpoint that an eager or a compiled model saved is loaded into either, and training goes on."""

    def made(compiled: bool) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        net = Net()
        del net.unused
        model = kiln.compile(wrap(net)) if compiled else wrap(net)
        return model, torch.optim.AdamW(model.parameters(), lr=0.05, foreach=False)

    def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        for step in range(2):
            torch.manual_seed(10 * step + rank)
            model(torch.randn(3, 8)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [whole(p).detach().clone() for p in model.parameters()]

    def state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))

    box = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(box)
    expected: list[torch.Tensor] = []
    for saver in (False, True):
        pair = made(saver)
        train(*pair)
        checkpoint.save(state(*pair), checkpoint_id=f"{box[0]}/{saver}")
        expected = expected or train(*pair)
        for loader in (False, True):
            pair = made(loader)
            train(*pair)
            found = state(*pair)
            checkpoint.load(found, checkpoint_id=f"{box[0]}/{saver}")
            set_state_dict(*pair, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
            torch.testing.assert_close(train(*pair), expected, rtol=1e-4, atol=1e-5)


CASES["fsdp_checkpoints"] = partial(checkpoints, wrap=sharded)
CASES["ddp_checkpoints"] = partial(checkpoints, wrap=lambda model: data_parallel(model, find_unused_parameters=False))


CASES["fsdp_in_one_region"] = one_region(sharded)
for _shards in (1, 2):
    _wrap = partial(replicated, shards=_shards)
    CASES[f"fsdp_replicated_{_shards}"] = equal(_wrap, lambda model, wrap=_wrap: kiln.compile(wrap(model)))
    CASES[f"fsdp_replicated_{_shards}_in_one_region"] = one_region(_wrap)


def uneven_shards(rank: int, size: int) -> None:
    """Shards of different lengths, one parameter without a gradient, and a forward without gradients."""

    def made() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 7), nn.Linear(7, 5))
        model[0].bias.requires_grad_(False)
        return fully_shard(model, mesh=mesh())

    model, compiled = made(), kiln.compile(made(), fullgraph=True)
    x = torch.randn(3, 8) + rank
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    for each in (model, compiled):
        each(x).square().sum().backward()
    assert [p.grad is None for p in compiled.parameters()] == [p.grad is None for p in model.parameters()]
    found, expected = [[whole(p.grad) for p in each.parameters() if p.grad is not None] for each in (compiled, model)]
    torch.testing.assert_close(found, expected)


CASES["fsdp_uneven_shards"] = uneven_shards


def ddp_in_few_parts(rank: int, size: int) -> None:
    """The wrapper and its module's forward are one region."""
    torch.manual_seed(0)
    model = kiln.compile(data_parallel(Net(), find_unused_parameters=False, gradient_as_bucket_view=True))
    with torch.no_grad():
        model(torch.randn(3, 8))
    report = model.report()
    assert report.regions == 1 and not report.breaks and not report.eager, str(report)


CASES["ddp_in_few_parts"] = ddp_in_few_parts


class Normed(nn.Module):
    """A kernel in memory order, buffers that are broadcast, and all parameters used."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False).to(memory_format=torch.channels_last)
        self.norm, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.norm(self.conv(x)).relu().mean((2, 3)))
        return out


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(x).square().sum()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach() + norm


def accumulating_step(model: Any, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    with model.no_sync():
        model(x[:3]).square().sum().backward()
    loss: torch.Tensor = model(x[3:]).square().sum() + model(2 * x[3:]).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return loss.detach()


def two_backwards(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    model(x[:3]).square().sum().backward()
    loss: torch.Tensor = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def logging_step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    """One rank has a break between forward and backward."""
    loss: torch.Tensor = model(x).square().sum()
    if dist.get_rank() == 0:
        time.sleep(0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


class TwoWays(nn.Module):
    """Gradients come in another order on one rank."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (self.a, self.b) if dist.get_rank() == 0 else (self.b, self.a)
        out: torch.Tensor = self.last(second(first(x)))
        return out


def normed(**options: bool) -> nn.Module:
    return data_parallel(Normed().double(), find_unused_parameters=False, **options)


def whole_step(
    step: Callable[..., torch.Tensor],
    make: Callable[[], nn.Module] = normed,
    sizes: tuple[int, ...] = (6, 3, 5, 4),
    breaks: bool = False,
    later: bool = False,
    alike: bool = True,
) -> Callable[[int, int], None]:
    """The case that a step with its backward and reductions is one region, and eager goes on with its states. `later`:
    torch's own hook, which rounds to halves, is registered when the step has been compiled. Where the step is not
    `alike` on all ranks, it may break, and the first rank runs eager in later calls."""

    def results(rank: int, *, compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model: Any = make()
        run = partial(step, model, torch.optim.AdamW(parameter_groups(model), lr=0.1))
        eager, run = run, kiln.compile(run) if compiled else run
        batches = [torch.randn(sizes, dtype=torch.float64) + rank for _ in range(4 if alike else 8)]
        found = []
        for number, batch in enumerate(batches):
            if later and number == 2:
                model._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
            found.append((eager if not alike and number > 4 and rank == 0 else run)(batch))
        if compiled:
            report = run.report()  # type: ignore[attr-defined]
            others = [found for found in report.breaks if found.code != "KILN1105"]
            assert not alike or bool(others) == breaks, report
            assert report.eager <= 2 and report.compiles + report.loaded <= 6, report
        model(batches[0]).sum().backward()
        made = [*found, *model.state_dict().values(), *[p.grad for p in model.parameters() if p.grad is not None]]
        return list(map(whole, made))

    def run(rank: int, size: int) -> None:
        torch.testing.assert_close(results(rank, compiled=True), results(rank, compiled=False))

    return run


CASES["ddp_whole_step"] = whole_step(plain_step)
CASES["ddp_whole_step_accumulates"] = whole_step(  # torch 2.11 refuses a second forward that broadcasts buffers
    accumulating_step, lambda: normed(gradient_as_bucket_view=True, broadcast_buffers=False)
)
CASES["ddp_whole_step_finds_unused"] = whole_step(
    plain_step, lambda: data_parallel(Normed().double(), find_unused_parameters=True)
)
CASES["ddp_ranks_log"] = whole_step(logging_step, alike=False)
CASES["ddp_ranks_differ"] = whole_step(plain_step, lambda: data_parallel(TwoWays().double()), (6, 8), alike=False)
CASES["ddp_whole_step_hooked_later"] = whole_step(plain_step, breaks=True, later=True)
CASES["ddp_whole_step_hooked"] = whole_step(plain_step, lambda: normed(hook=True), breaks=True)
CASES["fsdp_whole_step"] = whole_step(plain_step, lambda: sharded(Net().double()), (6, 8))
CASES["fsdp_whole_step_twice"] = whole_step(two_backwards, lambda: sharded(Net().double()), (6, 8))
CASES["tensor_parallel_whole_step"] = whole_step(two_backwards, lambda: tensor_parallel(Net().double()), (6, 8))


def uneven_inputs(rank: int, size: int) -> None:
    """Ranks that ran out of data join the messages of the others; the step was compiled outside of `join`."""

    def results(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = normed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = kiln.compile(plain_step) if compiled else plain_step
        torch.manual_seed(10 + rank)
        batches = [torch.randn(4, 3, 8, 8).double() for _ in range(3 + 2 * rank)]
        found = [step(model, optimizer, x) for x in batches[:3]]
        with model.join():  # type: ignore[operator]
            found += [step(model, optimizer, x) for x in batches]
        return [*found, *[tensor.clone() for tensor in model.state_dict().values()]]

    torch.testing.assert_close(results(compiled=True), results(compiled=False))


CASES["ddp_uneven_inputs"] = uneven_inputs
