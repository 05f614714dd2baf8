"""`python -m kiln bench --suite distributed`: training a Llama on several ranks, in tokens per second of all of them.

    wrapper   ranks          eager  torch.compile           kiln  kiln/best efficiency
    one           1          21700          27000          32000       1.19       1.00
    ddp           2          41200          52100          60800       1.17       0.95

Wrappers: `one` (none, on one rank), `ddp` of the compiled model, `fsdp` of compiled blocks, `fsdp_whole` within the
compiled model, `tp` (columns and rows of the layers of each block). `--models ddp,tp` measures these only. With
`--train-step` Kiln compiles the whole step, torch.compile the model; the optimizer is torch's fused AdamW. One process
per GPU with NCCL, bf16, started by `torchrun`; without GPUs two gloo processes and a tiny model, which shows that it
runs. The loss after the last step is compared with eager's. Efficiency: Kiln's rate over that of `one` times the ranks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from kiln.support.records import dataclass
from kiln_bench.candidates import candidate
from kiln_bench.results import write_data

Compile = Callable[[nn.Module], nn.Module]
WARM, MEASURED = 4, 10
"""Steps."""


@final
@dataclass(frozen=True, slots=True)
class Sizes:
    """Of a Llama and its batch on each rank."""

    width: int
    inner: int
    heads: int
    layers: int
    vocabulary: int
    batch: int
    length: int


LARGE = Sizes(3072, 8192, 24, 9, 32000, 4, 2048)
"""1.2 billion parameters, in few layers, so that torch.compile is done within the time limit."""
TINY = Sizes(64, 128, 4, 2, 256, 2, 32)


@final
class LlamaBlock(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head = sizes.width // sizes.heads
        self.norm1, self.norm2 = nn.RMSNorm(sizes.width), nn.RMSNorm(sizes.width)
        self.q, self.k, self.v, self.o = [nn.Linear(sizes.width, sizes.width, bias=False) for _ in range(4)]
        self.gate, self.up = [nn.Linear(sizes.width, sizes.inner, bias=False) for _ in range(2)]
        self.down = nn.Linear(sizes.inner, sizes.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = [part(y).unflatten(-1, (-1, self.head)).transpose(1, 2) for part in (self.q, self.k, self.v)]
        y = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        made: Tensor = x + self.down(F.silu(self.gate(y)) * self.up(y))
        return made


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


@final
class BenchLlama(nn.Module):
    """Returns the loss of the next tokens."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width)
        self.blocks = nn.ModuleList(LlamaBlock(sizes) for _ in range(sizes.layers))
        self.norm, self.output = nn.RMSNorm(sizes.width), nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        head = sizes.width // sizes.heads
        angles = torch.outer(torch.arange(sizes.length).float(), 1e4 ** (-torch.arange(0, head, 2) / head)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        scores = self.output(self.norm(x))[:, :-1].flatten(0, 1).float()
        return F.cross_entropy(scores, tokens[:, 1:].flatten())


def one(model: BenchLlama, mesh: DeviceMesh, compile: Compile) -> nn.Module:
    return compile(model)


def ddp(model: BenchLlama, mesh: DeviceMesh, compile: Compile) -> nn.Module:
    return DistributedDataParallel(compile(model), gradient_as_bucket_view=True)


def compiled_blocks(model: BenchLlama, compile: Compile) -> None:
    for place, block in enumerate(model.blocks):
        model.blocks[place] = compile(block)


def fsdp(model: BenchLlama, mesh: DeviceMesh, compile: Compile) -> nn.Module:
    compiled_blocks(model, compile)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def fsdp_whole(model: BenchLlama, mesh: DeviceMesh, compile: Compile) -> nn.Module:
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return compile(model)


def tp(model: BenchLlama, mesh: DeviceMesh, compile: Compile) -> nn.Module:
    columns, rows = ("q", "k", "v", "gate", "up"), ("o", "down")
    plan: dict[str, ParallelStyle] = {name: ColwiseParallel() for name in columns}
    plan |= {name: RowwiseParallel() for name in rows}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    compiled_blocks(model, compile)
    return model


BUILD: Mapping[str, Callable[[BenchLlama, DeviceMesh, Compile], nn.Module]] = {
    "one": one, "ddp": ddp, "fsdp": fsdp, "fsdp_whole": fsdp_whole, "tp": tp,
}  # fmt: skip
Found = dict[str, float]
"""`rate`, `loss`, `first` (seconds of the first step) and `peak` (bytes of GPU memory)."""


def run(
    candidates: Sequence[str], wrappers: Sequence[str], limit: float, json_path: Path | None, *, whole_step: bool
) -> int:
    """The table; fails if a candidate fails, or a loss differs from eager's. `limit`: seconds of one candidate."""
    ranks = torch.cuda.device_count() or 2
    names, found, right = ["eager", *candidates], dict[str, dict[str, Found]](), True
    print(f"{'wrapper':9} {'ranks':>5} " + " ".join(f"{name:>14}" for name in names) + f" {'kiln/best':>10} efficiency")
    for wrapper in wrappers or BUILD:
        count = 1 if wrapper == "one" else ranks
        rows: dict[str, Found] = {}
        for name in names:
            try:
                rows[name] = on_ranks([wrapper, name, "step" if whole_step else "model"], count, limit)
            except RankFailure as failure:
                print(f"{name}, {wrapper}: {failure}", file=sys.stderr, flush=True)
            found[wrapper] = rows
            if json_path is not None:
                write_data(json_path, {"runs": found})
        right &= len(rows) == len(names) and losses_agree(rows)
        print(row_text(wrapper, count, names, rows, found.get("one", {})), flush=True)
    print("losses agree" if right else "A LOSS DIFFERS, OR A CANDIDATE FAILED")
    return 0 if right else 1


def losses_agree(rows: Mapping[str, Found]) -> bool:
    wanted = rows["eager"]["loss"]
    return all(abs(row["loss"] - wanted) <= 0.02 * wanted for row in rows.values())


def row_text(
    wrapper: str, ranks: int, names: Sequence[str], rows: Mapping[str, Found], alone: Mapping[str, Found]
) -> str:
    rates = {name: row["rate"] for name, row in rows.items()}
    line = " ".join(f"{rates[name]:14.0f}" if name in rates else f"{'failed':>14}" for name in names)
    kiln, others = rates.get("kiln"), [rate for name, rate in rates.items() if name != "kiln"]
    share = f"{kiln / max(others):10.2f}" if kiln and others else f"{'':10}"
    efficiency = f"{kiln / alone['kiln']['rate'] / ranks:10.2f}" if kiln and "kiln" in alone else ""
    return f"{wrapper:9} {ranks:5} {line} {share} {efficiency}"


class RankFailure(RuntimeError):
    """A rank failed, or the time limit was reached."""


def on_ranks(arguments: Sequence[str], ranks: int, limit: float) -> Found:
    """What rank 0 found, in fresh processes that `measure` with these arguments."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m", __spec__.name]
        with (Path(folder) / "errors").open("w+") as errors:
            process = subprocess.Popen(
                [sys.executable, *torchrun, *arguments, folder],
                env={"OMP_NUM_THREADS": "1", **os.environ},
                stderr=errors,
                start_new_session=True,
            )
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise RankFailure(f"not done within {limit:.0f} s") from None
            if code:
                errors.seek(0)
                raise RankFailure(f"status {code}\n{errors.read()[-4000:]}")
        made: Found = json.loads((Path(folder) / "found").read_text())
        return made


def measure(wrapper: str, name: str, compiled: str, folder: str) -> None:
    """The median time of a step, as tokens of all ranks per second, and the last loss.

    `compiled`: the "model", or the "step" by a compiler that takes it whole.
    """
    gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    sizes, dtype = (LARGE, torch.bfloat16) if gpu else (TINY, torch.float32)
    torch.manual_seed(0)
    with device:
        model = BenchLlama(sizes).to(dtype)
    compiler = candidate(name, None)
    whole = compiled == "step" and not compiler.in_parts
    compile = (lambda module: module) if whole else compiler.compile
    wrapped = BUILD[wrapper](model, init_device_mesh(device.type, (ranks,)), compile)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(parameter_groups(wrapped), lr=1e-4, fused=True)

    def step(tokens: Tensor) -> Tensor:
        loss: Tensor = wrapped(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    run_step = compiler.compile(step) if whole else step
    torch.manual_seed(1 if wrapper == "tp" else 1 + rank)
    tokens = torch.randint(0, sizes.vocabulary, (sizes.batch, sizes.length), device=device)
    seconds, loss = list[float](), torch.zeros(())
    for _ in range(WARM + MEASURED):
        start = time.perf_counter()
        loss = run_step(tokens)  # type: ignore[assignment]
        if gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    if rank == 0:
        batches = 1 if wrapper == "tp" else ranks
        rate = tokens.numel() * batches / median(seconds[WARM:])
        peak = torch.cuda.max_memory_allocated() if gpu else 0
        found: Found = {"rate": rate, "loss": float(loss), "first": seconds[0], "peak": peak}
        (Path(folder) / "found").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def parameter_groups(model: nn.Module) -> list[dict[str, object]]:
    """DTensors and plain tensors apart: no multi-tensor operator takes both."""
    kinds: dict[type, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        kinds.setdefault(type(parameter.data), []).append(parameter)
    return [{"params": parameters} for parameters in kinds.values()]


if __name__ == "__main__":
    measure(*sys.argv[1:])
