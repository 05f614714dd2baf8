"""Adapting and fusing networks: low ranks, adapters, prompts, merges, gates between parts, several modalities."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from kiln_bench.capture.research.sample import features, images, sample, tokens, vectors


class LowRankLinear(nn.Module):
    """A wrapped layer that can be merged and set apart."""

    def __init__(self, base, r=2, alpha=4, dropout=0.1):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A, self.lora_B = (
            nn.Parameter(torch.randn(r, base.in_features) * 0.1),
            nn.Parameter(torch.randn(base.out_features, r) * 0.1),
        )
        self.scaling, self.dropout, self.merged, self.active = alpha / r, nn.Dropout(dropout), False, True

    @property
    def delta(self):
        return (self.lora_B @ self.lora_A) * self.scaling

    def forward(self, x):
        if not self.active or self.merged:
            return self.base(x)
        return self.base(x) + self.dropout(x) @ self.lora_A.T @ self.lora_B.T * self.scaling


def replace_linears(module, pattern, make):
    for name, child in list(module.named_modules()):
        if isinstance(child, nn.Linear) and re.search(pattern, name):
            *path, last = name.split(".")
            parent = module
            for part in path:
                parent = getattr(parent, part)
            setattr(parent, last, make(child))
    return module


@sample(8, inputs=vectors(8))
class LowRankAdapted(nn.Module):
    """LoRA on layers found by a pattern; a context manager turns all off for a reference."""

    def __init__(self, dim):
        super().__init__()
        net = nn.Sequential()
        for i in range(2):
            net.add_module(
                f"block{i}",
                nn.ModuleDict({"q_proj": nn.Linear(dim, dim), "v_proj": nn.Linear(dim, dim), "o": nn.Linear(dim, dim)}),
            )
        self.net = replace_linears(net, r"(q|v)_proj$", LowRankLinear)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        layers = [m for m in self.modules() if isinstance(m, LowRankLinear)]
        for layer in layers:
            layer.active = False
        try:
            yield
        finally:
            for layer in layers:
                layer.active = True

    def run(self, x):
        for block in self.net:
            q, v = block["q_proj"](x), block["v_proj"](x)
            x = x + block["o"]((q @ q.mT).softmax(-1) @ v)
        return x

    def forward(self, x):
        with self.disabled(), torch.no_grad():
            reference = self.run(x)
        out = self.run(x)
        return out, F.kl_div(out.log_softmax(-1), reference.softmax(-1), reduction="batchmean")


class WeightDecomposed(nn.Module):
    """DoRA as a parametrization: a direction and a magnitude."""

    def __init__(self, weight, r=2):
        super().__init__()
        out, cin = weight.shape
        self.A, self.B = nn.Parameter(torch.randn(r, cin) * 0.1), nn.Parameter(torch.zeros(out, r))
        self.m = nn.Parameter(weight.norm(p=2, dim=1, keepdim=True).detach())

    def forward(self, W):
        V = W + self.B @ self.A
        return self.m * V / V.norm(p=2, dim=1, keepdim=True).detach()


@sample(8, inputs=vectors(8))
class WeightDecomposedMlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.fc = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))
        for layer in self.fc:
            parametrize.register_parametrization(layer, "weight", WeightDecomposed(layer.weight))
            layer.parametrizations.weight.original.requires_grad_(False)

    def forward(self, x):
        return self.fc[1](F.gelu(self.fc[0](x)))


@sample(8, inputs=vectors(8))
class OrthogonalTuning(nn.Module):
    """Rotations of blocks by Cayley's transform, and butterflies by a permutation."""

    def __init__(self, dim, blocks=2):
        super().__init__()
        self.base, self.blocks = nn.Linear(dim, dim).requires_grad_(False), blocks
        self.R = nn.Parameter(torch.randn(blocks, dim // blocks, dim // blocks) * 0.1)
        self.register_buffer("perm", torch.arange(dim).view(blocks, -1).t().reshape(-1))

    def cayley(self, data):
        b, r, c = data.shape
        skew = 0.5 * (data - data.transpose(1, 2))
        I = torch.eye(r).unsqueeze(0).expand(b, r, c)
        return torch.linalg.solve(I + skew, I - skew, left=False)

    def forward(self, x):
        Q = torch.block_diag(*self.cayley(self.R))
        butterfly = Q[self.perm][:, self.perm]
        return F.linear(x, self.base.weight @ Q @ butterfly, self.base.bias)


@sample(8, inputs=vectors(8))
class BottleneckAdapters(nn.Module):
    """Adapters by task name, fused by attention over them, with a parallel scale."""

    def __init__(self, dim, tasks=("sentiment", "nli", "qa"), reduction=2):
        super().__init__()
        self.base = nn.TransformerEncoderLayer(dim, 2, 16, batch_first=True, dropout=0.0).requires_grad_(False)
        self.adapters = nn.ModuleDict(
            {
                t: nn.Sequential(nn.Linear(dim, dim // reduction), nn.ReLU6(), nn.Linear(dim // reduction, dim))
                for t in tasks
            }
        )
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.active = list(tasks)

    def set_active(self, *names):
        unknown = set(names) - set(self.adapters)
        if unknown:
            raise KeyError(f"no adapters {sorted(unknown)}")
        self.active = list(names)

    def forward(self, x):
        h = self.base(x)
        up = torch.stack([self.adapters[name](h) for name in self.active], dim=2)
        q, k, v = self.query(h), self.key(up), self.value(up)
        scores = torch.squeeze(torch.matmul(q.unsqueeze(2), k.transpose(-2, -1)), dim=2)
        return h + torch.squeeze(torch.matmul(scores.softmax(-1).unsqueeze(2), v), dim=2)


@sample(8, inputs=tokens(12))
class PrefixPrompts(nn.Module):
    """Learned keys and values in front, made by a small network in training and kept for evaluation."""

    def __init__(self, dim, prefix=3, vocab=12, heads=2):
        super().__init__()
        self.embed, self.heads, self.prefix = nn.Embedding(vocab, dim).requires_grad_(False), heads, prefix
        self.prompt = nn.Parameter(torch.randn(2, dim) * 0.5)
        self.past, self.trans = (
            nn.Embedding(prefix, dim),
            nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 2 * dim)),
        )
        self.qkv = nn.Linear(dim, 3 * dim).requires_grad_(False)
        self.kept = None

    def past_key_values(self, batch):
        if self.training or self.kept is None:
            kv = self.trans(self.past(torch.arange(self.prefix)))
            self.kept = kv.detach()
        else:
            kv = self.kept
        return kv.view(1, self.prefix, 2, self.heads, -1).expand(batch, -1, -1, -1, -1).permute(2, 0, 3, 1, 4)

    def forward(self, ids):
        b = ids.shape[0]
        x = torch.cat([self.prompt.expand(b, -1, -1), self.embed(ids)], 1)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        pk, pv = self.past_key_values(b)
        out = F.scaled_dot_product_attention(q, torch.cat([pk, k], 2), torch.cat([pv, v], 2))
        return out.transpose(1, 2).flatten(2)[:, self.prompt.shape[0] :]


@sample(6, inputs=features(6))
class MergedModels(nn.Module):
    """Task arithmetic with learned weights: signs are elected, small changes trimmed, and the result called."""

    def __init__(self, dim, models=3):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(dim, 8), nn.ReLU(), nn.Linear(8, 2)).requires_grad_(False)
        flat = torch.nn.utils.parameters_to_vector(self.base.parameters())
        self.register_buffer("vectors", torch.randn(models, flat.numel()) * 0.1)
        self.register_buffer("flat", flat.detach())
        self.weights = nn.Parameter(torch.full((models,), 0.5))

    def ties(self, density=0.5):
        k = int(density * self.vectors.shape[1])
        threshold = self.vectors.abs().kthvalue(self.vectors.shape[1] - k, dim=1, keepdim=True).values
        trimmed = torch.where(self.vectors.abs() >= threshold, self.vectors, 0.0)
        sign = torch.sign(trimmed.sum(0))
        agree = torch.sign(trimmed) == sign
        weighted = trimmed * agree * self.weights[:, None]
        return weighted.sum(0) / agree.sum(0).clamp(min=1)

    def forward(self, x):
        merged, at, params = self.flat + self.ties(), 0, {}
        for name, p in self.base.named_parameters():
            params[name] = merged[at : at + p.numel()].view_as(p)
            at += p.numel()
        return torch.func.functional_call(self.base, params, (x,))


@sample(8, inputs=lambda rows, length: {
    "text": torch.randn(rows, length, 8), "image": torch.randn(rows, 5, 8), "audio": torch.randn(rows, length + 2, 8),
})  # fmt: skip
class CrossModalFusion(nn.Module):
    """Each modality attends to the others, tensors are fused by outer products, one modality drops out by chance."""

    def __init__(self, dim, rank=3):
        super().__init__()
        self.names = ("text", "image", "audio")
        self.cross = nn.ModuleDict(
            {
                f"{a}2{b}": nn.MultiheadAttention(dim, 2, batch_first=True)
                for a in self.names
                for b in self.names
                if a != b
            }
        )
        self.factors = nn.ParameterDict({n: nn.Parameter(torch.randn(rank, dim + 1, 4) * 0.3) for n in self.names})
        self.rank_weights = nn.Parameter(torch.randn(1, rank))

    def forward(self, text, image, audio):
        given = dict(zip(self.names, (text, image, audio), strict=True))
        pooled = {}
        for a in self.names:
            others = [
                self.cross[f"{a}2{b}"](given[a], given[b], given[b], need_weights=False)[0]
                for b in self.names
                if b != a
            ]
            pooled[a] = (given[a] + sum(others)).mean(1)
        if self.training:
            keep = (torch.rand(text.shape[0], 3) > 0.2).float()
            pooled = {n: p * keep[:, i : i + 1] for i, (n, p) in enumerate(pooled.items())}
        fused = None
        for n in self.names:
            one = F.pad(pooled[n], (1, 0), value=1.0)
            part = torch.matmul(one, self.factors[n])
            fused = part if fused is None else fused * part
        return torch.matmul(self.rank_weights, fused.permute(1, 0, 2)).squeeze(1)


@sample(8, inputs=lambda rows, length: {"image": torch.randn(rows, length, 8), "question": torch.randn(rows, 6)})
class BilinearAttention(nn.Module):
    """MUTAN-like products, FiLMed reasoning steps of a memory (MAC), a co-attention matrix."""

    def __init__(self, dim, q=6, steps=2):
        super().__init__()
        self.steps = steps
        self.lin_q, self.lin_i = nn.Linear(q, dim), nn.Linear(dim, dim)
        self.core = nn.Bilinear(dim, dim, 5)
        self.control, self.read, self.write = nn.Linear(q + dim, dim), nn.Linear(2 * dim, 1), nn.Linear(2 * dim, dim)
        self.memory0 = nn.Parameter(torch.zeros(1, dim))

    def forward(self, image, question):
        memory, control = self.memory0.expand(image.size(0), -1), self.lin_q(question)
        for _ in range(self.steps):
            control = F.elu(self.control(torch.cat([question, control], -1)))
            inter = torch.cat([self.lin_i(image) * memory[:, None], image], -1)
            attn = F.softmax(self.read(inter * torch.cat([control, control], -1)[:, None]), 1)
            memory = self.write(torch.cat([(attn * image).sum(1), memory], -1))
        return self.core(memory, control.tanh()), attn


@sample(4, inputs=images(4))
class SearchableCell(nn.Module):
    """DARTS: a mixture of operations for each edge; names come from a table of constructors."""

    OPS = {
        "none": lambda c: Zero(),
        "skip": lambda c: nn.Identity(),
        "avg": lambda c: nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False),
        "sep": lambda c: nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(c, c, 3, padding=1, groups=c, bias=False),
            nn.Conv2d(c, c, 1),
            nn.BatchNorm2d(c, affine=False),
        ),
    }

    def __init__(self, c, nodes=2):
        super().__init__()
        self.nodes = nodes
        self.edges = nn.ModuleList(
            nn.ModuleList(make(c) for make in self.OPS.values()) for _ in range(sum(2 + i for i in range(nodes)))
        )
        self.alphas = nn.Parameter(1e-1 * torch.randn(len(self.edges), len(self.OPS)))

    def genotype(self):
        names = list(self.OPS)
        return [names[i] for i in self.alphas.detach()[:, 1:].argmax(-1).add(1).tolist()]

    def forward(self, x):
        states, offset, weights = [x, torch.tanh(x)], 0, F.softmax(self.alphas, dim=-1)
        for _ in range(self.nodes):
            s = sum(
                sum(w * op(h) for w, op in zip(weights[offset + j], self.edges[offset + j], strict=True))
                for j, h in enumerate(states)
            )
            offset += len(states)
            states.append(s)
        return torch.cat(states[-self.nodes :], dim=1)


class Zero(nn.Module):
    def forward(self, x):
        return x.mul(0.0)


@sample(6, inputs=features(6))
class SlimmableNetwork(nn.Module):
    """Widths by slices of one set of weights, norms of their own for each, and sandwiched losses in training."""

    def __init__(self, dim, hidden=8, widths=(0.25, 0.5, 1.0)):
        super().__init__()
        self.widths, self.hidden = widths, hidden
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, 3)
        self.bns = nn.ModuleDict({str(int(w * 100)): nn.BatchNorm1d(int(hidden * w)) for w in widths})

    def run(self, x, width):
        n = int(self.hidden * width)
        h = F.linear(x, self.fc1.weight[:n], self.fc1.bias[:n])
        return F.linear(F.relu(self.bns[str(int(width * 100))](h)), self.fc2.weight[:, :n], self.fc2.bias)

    def forward(self, x):
        full = self.run(x, max(self.widths))
        if not self.training:
            return {w: self.run(x, w) for w in self.widths}
        soft = full.detach().softmax(-1)
        losses = [-(soft * self.run(x, w).log_softmax(-1)).sum(-1).mean() for w in sorted(self.widths)[:-1]]
        return full, torch.stack(losses).mean()


@sample(6, inputs=features(6))
class GradientReversal(nn.Module):
    """Domain adversaries with a coefficient that grows, entropy conditioning, and a moving average of class centres."""

    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, coeff):
            ctx.coeff = coeff
            return x.view_as(x)

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output.neg() * ctx.coeff, None

    def __init__(self, dim, classes=3, max_iters=20):
        super().__init__()
        self.f, self.c, self.d = nn.Linear(dim, 8), nn.Linear(8, classes), nn.Linear(8 * classes, 1)
        self.iter_num, self.max_iters = 0, max_iters
        self.register_buffer("centres", torch.zeros(classes, 8))

    def forward(self, x):
        coeff = float(2.0 / (1.0 + math.exp(-10 * self.iter_num / self.max_iters)) - 1.0)
        if self.training:
            self.iter_num += 1
        h = torch.relu(self.f(x))
        logits = self.c(h)
        p = logits.softmax(-1)
        op = torch.bmm(p.detach().unsqueeze(2), h.unsqueeze(1)).flatten(1)
        entropy = -(p * (p + 1e-6).log()).sum(-1)
        weight = 1.0 + torch.exp(-entropy.detach())
        domain = self.d(self.Reverse.apply(op, coeff)).squeeze(-1)
        target = (torch.arange(len(x)) % 2).float()
        loss = (weight / weight.sum() * F.binary_cross_entropy_with_logits(domain, target, reduction="none")).sum()
        if self.training:
            self.centres.mul_(0.7).add_(0.3 * (p.detach().T @ h.detach()) / p.detach().sum(0)[:, None])
        return loss, logits, (h.unsqueeze(1) - self.centres.clone()).pow(2).sum(-1).min(1).values
