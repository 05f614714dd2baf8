"""`python -m kiln bench --suite operators`: single operators and small compositions, to find those slower than eager.

    1.29  x.index_add(0, i, y)                    eager    910.1 us   kiln   1175.8 us
    mean 0.56 of eager, above 1.1: 6 of 260

On a GPU if there is one, else on one thread of a CPU, in CPU time. Each line is the median over rounds of kiln's time
over eager's, of calls in alternating batches; those above 1.05 are printed, all are in the JSON. Lines with `gradient`
are the forward and the gradients of all its floating inputs.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import geometric_mean, median

import torch
import torch.nn.functional as F
from torch import Tensor

import kiln.api as api
from kiln_bench.results import write_data

CASES = """
x + y                                        x=1024,1024 y=1024,1024
x + y                                        x=64 y=64
x * 2 + 1                                    x=4096,4096
x + y                                        x=1024,1024 y=1024
x + y                                        x=1024,1024 y=1024,1
x.t() + y                                    x=1024,1024 y=1024,1024
x / y                                        x=1024,1024 y=1024,1024
x ** 2                                       x=1024,1024
x.abs().pow(1.7)                             x=1024,1024
x.exp()                                      x=1024,1024
x.exp()                                      x=4096,4096
x.abs().log()                                x=1024,1024
x.sin()                                      x=1024,1024
x.tan()                                      x=1024,1024
x.tanh()                                     x=1024,1024
x.asinh()                                    x=1024,1024
x.sigmoid()                                  x=1024,1024
x.erf()                                      x=1024,1024
x.rsqrt()                                    x=1024,1024
torch.atan2(x, y)                            x=1024,1024 y=1024,1024
torch.fmod(x, 0.3)                           x=1024,1024
x.round()                                    x=1024,1024
x.clamp(-1, 1)                               x=1024,1024
x.lgamma()                                   x=512,512
x.digamma()                                  x=512,512
torch.where(x > 0, x, y)                     x=1024,1024 y=1024,1024
x.masked_fill(m, 0.0)                        x=1024,1024 m=1024,1024
x.lerp(y, 0.3)                               x=1024,1024 y=1024,1024
x.addcmul(x, y, value=0.5)                   x=1024,1024 y=1024,1024
x.half()                                     x=1024,1024
h.float()                                    h=1024,1024
h * h + h                                    h=1024,1024
i // 7                                       i=1024,1024<1000
i % 7                                        i=1024,1024<1000
(i >> 1) & 3                                 i=1024,1024<1000
x > y                                        x=1024,1024 y=1024,1024
x.isnan().any()                              x=1024,1024
F.relu(x)                                    x=1024,1024
F.gelu(x)                                    x=1024,1024
F.gelu(x)                                    x=2048,2048
F.gelu(x, approximate='tanh')                x=1024,1024
F.silu(x)                                    x=1024,1024
F.mish(x)                                    x=1024,1024
F.mish(x)                                    x=2048,2048
F.elu(x)                                     x=1024,1024
F.softplus(x)                                x=1024,1024
F.leaky_relu(x)                              x=1024,1024
F.hardswish(x)                               x=1024,1024
F.glu(x)                                     x=1024,1024
F.prelu(x, y)                                x=64,32,32,32 y=32
F.dropout(x, 0.1)                            x=4096,4096
torch.rand_like(x)                           x=1024,1024
torch.rand_like(x)                           x=64,64
torch.randn_like(x)                          x=1024,1024
torch.randn_like(x)                          x=64,64
torch.bernoulli(x.sigmoid())                 x=1024,1024
torch.arange(65536, device=x.device) * 2     x=1
torch.full_like(x, 3.0)                      x=1024,1024
torch.zeros_like(x)                          x=4096,4096
torch.eye(1024, device=x.device)             x=1
x.sum()                                      x=1024,1024
x.sum()                                      x=4096,4096
x.sum(0)                                     x=1024,1024
x.sum(1)                                     x=1024,1024
x.sum(1)                                     x=64,4096,64
x.sum((0, 2))                                x=64,256,256
x.mean(-1)                                   x=4096,768
x.var(-1)                                    x=4096,768
x.var((0, 1))                                x=64,64,256
x.std()                                      x=1024,1024
x.amax(0)                                    x=1024,1024
x.argmax(1)                                  x=1024,1024
x.argmax(0)                                  x=1024,1024
x.max(1)                                     x=1024,1024
x.median(1)                                  x=256,256
x.prod(1)                                    x=1024,1024
x.norm()                                     x=1024,1024
x.norm(dim=1)                                x=1024,1024
x.logsumexp(1)                               x=1024,1024
(x > 0).any(1)                               x=1024,1024
x.count_nonzero()                            x=1024,1024
x.softmax(-1)                                x=1024,1024
x.softmax(-1)                                x=64,32000
x.softmax(0)                                 x=1024,1024
x.double().softmax(-1)                       x=512,512
x.log_softmax(-1)                            x=1024,1024
x.cumsum(1)                                  x=1024,1024
x.cumsum(0)                                  x=1024,1024
x.cumprod(1)                                 x=128,1024
x.cummax(1)                                  x=256,1024
x.logcumsumexp(1)                            x=256,1024
x.diff(dim=1)                                x=1024,1024
F.layer_norm(x, (768,))                      x=4096,768
F.layer_norm(x, (768,), y, y)                x=4096,768 y=768
F.rms_norm(x, (768,))                        x=4096,768
F.group_norm(x, 8, y, y)                     x=16,64,32,32 y=64
F.group_norm(c, 8)                           c=16,64,32,32
F.batch_norm(x, None, None, training=True)   x=16,64,32,32
F.instance_norm(x)                           x=16,64,32,32
F.normalize(x, dim=-1)                       x=4096,256
F.cosine_similarity(x, y)                    x=4096,256 y=4096,256
torch.cdist(x, y)                            x=256,64 y=256,64
F.mse_loss(x, y)                             x=1024,1024 y=1024,1024
F.l1_loss(x, y)                              x=1024,1024 y=1024,1024
F.smooth_l1_loss(x, y)                       x=1024,1024 y=1024,1024
F.cross_entropy(x, i)                        x=4096,1000 i=4096<1000
F.nll_loss(x, i)                             x=4096,1000 i=4096<1000
F.binary_cross_entropy_with_logits(x, y)     x=1024,1024 y=1024,1024
F.kl_div(x, y.softmax(-1))                   x=1024,1024 y=1024,1024
x @ y                                        x=512,512 y=512,512
x @ y                                        x=64,64 y=64,64
x @ y                                        x=4096,1024 y=1024
x @ y                                        x=1,1024 y=1024,1024
h @ h                                        h=512,512
torch.bmm(x, y)                              x=64,64,64 y=64,64,64
torch.bmm(x, y)                              x=64,1,256 y=64,256,256
torch.outer(x, y)                            x=2048 y=2048
torch.dot(x, y)                              x=65536 y=65536
F.linear(x, y, z)                            x=256,768 y=768,768 z=768
torch.addmm(z, x, y)                         x=256,256 y=256,256 z=256
torch.einsum('bij,bjk->bik', x, y)           x=16,64,64 y=16,64,64
torch.einsum('bhid,bhjd->bhij', x, y)        x=4,8,64,32 y=4,8,64,32
F.scaled_dot_product_attention(x, y, z)      x=4,8,128,64 y=4,8,128,64 z=4,8,128,64
F.conv2d(x, y, padding=1)                    x=4,64,32,32 y=64,64,3,3
F.conv2d(x, y, padding=1, groups=64)         x=4,64,32,32 y=64,1,3,3
F.conv2d(x, y)                               x=4,64,32,32 y=128,64,1,1
F.conv1d(x, y, padding=1)                    x=8,64,256 y=64,64,3
F.conv_transpose2d(x, y, stride=2)           x=4,32,16,16 y=32,32,2,2
F.max_pool2d(x, 3, 2, 1)                     x=4,64,112,112
F.max_pool2d(x, 2)                           x=8,64,56,56
F.avg_pool2d(x, 3, 2, 1)                     x=4,64,112,112
F.adaptive_avg_pool2d(x, 7)                  x=8,64,32,32
F.max_pool1d(x, 3, 2, 1)                     x=16,64,512
F.interpolate(x, scale_factor=2)             x=4,32,64,64
F.interpolate(x, scale_factor=2, mode='bilinear')    x=4,32,64,64
F.grid_sample(x, y.tanh(), align_corners=False)      x=4,16,32,32 y=4,32,32,2
F.pixel_shuffle(x, 2)                        x=4,64,64,64
F.unfold(x, 3, padding=1)                    x=4,32,32,32
F.pad(x, (1, 1, 1, 1))                       x=8,64,56,56
F.pad(x, (1, 1, 1, 1), mode='reflect')       x=8,64,56,56
F.embedding(i, x)                            x=32000,256 i=8,512<32000
F.embedding_bag(i, x)                        x=32000,64 i=512,16<32000
F.one_hot(i, 128)                            i=4096<128
x[i]                                         x=4096,128 i=4096<4096
x[:, i]                                      x=1024,1024 i=512<1024
x[i, j]                                      x=1024,1024 i=65536<1024 j=65536<1024
x.gather(1, i)                               x=1024,1024 i=1024,1024<1024
x.index_select(0, i)                         x=4096,128 i=4096<4096
x.take(i)                                    x=1024,1024 i=65536<1048576
x.scatter(1, i, y)                           x=1024,1024 i=1024,128<1024 y=1024,128
x.scatter_add(1, i, y)                       x=1024,1024 i=1024,1024<1024 y=1024,1024
x.scatter_add(0, i, y)                       x=4096,64 i=4096,64<4096 y=4096,64
x.index_add(0, i, y)                         x=4096,128 i=4096<4096 y=4096,128
x.index_copy(0, i, y)                        x=4096,128 i=1024<4096 y=1024,128
x.index_put((i,), y)                         x=4096,128 i=1024<4096 y=1024,128
x.index_put((i,), y, accumulate=True)        x=4096,128 i=1024<4096 y=1024,128
x.index_fill(0, i, 1.0)                      x=4096,128 i=1024<4096
x.scatter_reduce(0, i, y, 'amax')            x=4096,64 i=4096,64<4096 y=4096,64
x.masked_select(m)                           x=512,512 m=512,512
x[m]                                         x=512,512 m=512,512
m.nonzero()                                  m=512,512
x.sort(-1)                                   x=256,1024
x.argsort(-1)                                x=256,1024
x.topk(8, -1)                                x=1024,1024
x.kthvalue(5, -1)                            x=256,256
torch.searchsorted(x.sort()[0], y)           x=4096 y=4096
torch.bucketize(x, y.sort()[0])              x=1024,1024 y=64
torch.bincount(i, minlength=1000)            i=65536<1000
torch.histc(x, 100)                          x=65536
i.unique()                                   i=65536<1000
torch.isin(i, j)                             i=65536<1000 j=64<1000
torch.cat([x, y], 1)                         x=1024,512 y=1024,512
torch.cat([x, y])                            x=1024,512 y=1024,512
torch.stack([x, y], -1)                      x=1024,512 y=1024,512
x.repeat(2, 3)                               x=512,512
x.repeat_interleave(3, 1)                    x=512,512
x.roll(5, 1)                                 x=1024,1024
x.flip(1)                                    x=1024,1024
x.transpose(1, 2).contiguous()               x=16,256,256
x.permute(2, 0, 1).contiguous()              x=64,64,256
x.rot90()                                    x=1024,1024
x.tril()                                     x=1024,1024
x.diagonal().clone()                         x=2048,2048
x.diag_embed()                               x=64,256
torch.kron(x, y)                             x=32,32 y=32,32
torch.meshgrid(x, y, indexing='ij')[0] + 1   x=512 y=512
x.unfold(1, 16, 8).mean(-1)                  x=256,4096
x.view(-1)                                   x=1024,1024
x.t()                                        x=1024,1024
x[0]                                         x=1024,1024
x.chunk(4, 1)[1] * 2                         x=1024,1024
torch.fft.rfft(x)                            x=64,1024
torch.fft.irfft(torch.fft.rfft(x))           x=64,1024
torch.linalg.inv(x)                          x=16,32,32
torch.linalg.solve(x, y)                     x=16,32,32 y=16,32,4
torch.linalg.cholesky(x @ x.mT + 64 * torch.eye(32, device=x.device))    x=16,32,32
torch.linalg.qr(x)[0]                        x=16,32,32
torch.linalg.svdvals(x)                      x=4,32,32
torch.trapezoid(x, dim=1)                    x=1024,1024
torch.quantile(x, 0.3, dim=1)                x=256,1024
torch.nan_to_num(x)                          x=1024,1024
torch.cross(x, y, dim=-1)                    x=65536,3 y=65536,3
x.softmax(-1) @ y                            x=8,128,128 y=8,128,64
F.layer_norm(F.gelu(x @ y) + z, (256,))      x=512,256 y=256,256 z=512,256
F.silu(x @ y) * (x @ z)                      x=256,256 y=256,512 z=256,512
(x - x.mean(0)) / (x.std(0) + 1e-5)          x=4096,64
((x[:, None] - y[None]) ** 2).sum(-1)        x=256,16 y=256,16
x.clone().add_(1).mul_(2)                    x=1024,1024
x.clone().index_add_(0, i, y)                x=65536,16 i=256<65536 y=256,16
x.clone()[i].sum()                           x=65536,16 i=256<65536
"""
"""An expression, and the sizes of its inputs: x, y, z are float32, c has its channels last, h is bfloat16, m boolean, i
and j are int64 below a bound."""

BATCH_SECONDS = 2e-3
"""What a batch of calls takes at least."""
SHOWN = 1.05
SPACE = {"torch": torch, "F": F}
Operator = Callable[..., object]


def parse(line: str) -> tuple[str, dict[str, str]]:
    """The expression of a case, and its inputs as text."""
    code, inputs = re.split(r"\s{2,}", line.strip())
    return code, dict(each.split("=") for each in inputs.split(" "))


def make(name: str, text: str, device: torch.device) -> Tensor:
    sizes, _, bound = text.partition("<")
    shape = tuple([int(size) for size in sizes.split(",")])
    if bound:
        return torch.randint(0, int(bound), shape, device=device)
    values = torch.randn(shape, device=device)
    if name == "c":
        return values.to(memory_format=torch.channels_last)
    return values > 0 if name == "m" else values.bfloat16() if name == "h" else values


def with_gradient(function: Operator) -> Operator:
    """The gradients of the inputs of `function` that require them."""

    def run(*inputs: Tensor) -> object:
        out = function(*inputs)
        first: Tensor = out[0] if isinstance(out, tuple) else out  # type: ignore[assignment]
        leaves = [x for x in inputs if x.requires_grad]
        return torch.autograd.grad(first, leaves, torch.ones_like(first), allow_unused=True)

    return run


def compare(eager: Operator, compiled: Operator, inputs: Sequence[Tensor], rounds: int) -> tuple[float, float, float]:
    """Median of the ratios of the rounds, and the medians of eager's and the compiled seconds."""
    calls = [partial(function, *inputs) for function in (eager, compiled)]
    theirs, ours = times_in_turn(calls, rounds, on_gpu=inputs[0].is_cuda)
    return median([k / e for e, k in zip(theirs, ours, strict=True)]), median(theirs), median(ours)


def times_in_turn(calls: Sequence[Callable[[], object]], rounds: int, on_gpu: bool) -> list[list[float]]:
    """The seconds of each call in each round; the order within a round is random, the first call sets its length."""
    for _ in range(3):
        for call in calls:
            call()
    times = max(1, int(BATCH_SECONDS / max(1e-7, seconds_of(calls[0], 3, on_gpu))))
    found: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for which in random.sample(range(len(calls)), len(calls)):
            found[which].append(seconds_of(calls[which], times, on_gpu))
    return found


def seconds_of(call: Callable[[], object], times: int, on_gpu: bool) -> float:
    """Of a call: the wall's on a GPU, CPU time otherwise, which other processes change less."""
    clock, wait = (time.perf_counter, torch.cuda.synchronize) if on_gpu else (time.process_time, lambda: None)
    wait()
    start = clock()
    for _ in range(times):
        call()
    wait()
    return (clock() - start) / times


def run(rounds: int, wanted: str, json: Path | None) -> int:
    """Print the cases that are slower than eager. `wanted`: only those whose text has it."""
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    found: dict[str, tuple[float, float, float]] = {}
    for line in [line for line in CASES.strip().splitlines() if wanted in line]:
        code, texts = parse(line)
        title = f"{code}   {' '.join(f'{name}={text}' for name, text in texts.items())}"
        function: Operator = eval(f"lambda {', '.join(texts)}: {code}", SPACE)
        torch.manual_seed(0)
        inputs = [make(name, text, device) for name, text in texts.items()]
        api.reset()
        with torch.no_grad():
            found[title] = compare(function, api.compile(function), inputs, rounds)
            show(title, found[title])
        leaves = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
        if not any([x.requires_grad for x in leaves]) or not differentiable(function, leaves):
            continue
        title = f"gradient of {title}"
        found[title] = compare(with_gradient(function), with_gradient(api.compile(function)), leaves, rounds)
        show(title, found[title])
    ratios = [ratio for ratio, _, _ in found.values()]
    print(f"mean {geometric_mean(ratios):.3f} of eager, above 1.1: {sum(r > 1.1 for r in ratios)} of {len(ratios)}")
    if json is not None:
        write_data(json, {"ratio and seconds of eager and kiln": found})
    return 0


def differentiable(function: Operator, inputs: Sequence[Tensor]) -> bool:
    out = function(*inputs)
    first = out[0] if isinstance(out, tuple) else out
    return isinstance(first, Tensor) and first.requires_grad


def show(title: str, found: tuple[float, float, float]) -> None:
    ratio, eager, kiln = found
    if ratio > SHOWN:
        print(f"{ratio:5.2f}  {title:70} eager {eager * 1e6:9.1f} us   kiln {kiln * 1e6:9.1f} us", flush=True)
