"""Weights and ways that depend on the input: experts, hypernetworks, conditional layers, routing by agreement."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from kiln_bench.capture.research.sample import features, images, sample, tokens, vectors


class ExpertMlp(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w1, self.w2, self.w3 = (
            nn.Linear(dim, hidden, bias=False), nn.Linear(hidden, dim, bias=False), nn.Linear(dim, hidden, bias=False),
        )  # fmt: skip

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


@sample(16, experts=4, top=2, inputs=vectors(16))
class LoopedExperts(nn.Module):
    """Mixtral's loop: each expert takes its tokens by `where` and adds its results by `index_add_`."""

    def __init__(self, dim, experts, top):
        super().__init__()
        self.gate = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList([ExpertMlp(dim, 2 * dim) for _ in range(experts)])
        self.top = top

    def forward(self, x):
        b, n, d = x.shape
        flat = x.view(-1, d)
        logits = self.gate(flat)
        weights, selected = torch.topk(F.softmax(logits, dim=1, dtype=torch.float), self.top, dim=-1)
        weights /= weights.sum(dim=-1, keepdim=True)
        out = torch.zeros_like(flat)
        mask = F.one_hot(selected, num_classes=len(self.experts)).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            idx, top_x = torch.where(mask[number])
            current = flat[None, top_x].reshape(-1, d)
            out.index_add_(0, top_x, (expert(current) * weights[top_x, idx, None]).to(x.dtype))
        return out.reshape(b, n, d), logits


@sample(16, experts=4, inputs=vectors(16))
class CapacityExperts(nn.Module):
    """GShard: one-hot dispatch with a capacity, positions by cumulative sums, and a balancing loss."""

    def __init__(self, dim, experts, capacity_factor=1.25):
        super().__init__()
        self.w_gating = nn.Parameter(torch.randn(dim, experts) * 0.2)
        self.w_up, self.w_down = (nn.Parameter(torch.randn(experts, *s) * 0.1) for s in ((dim, 32), (32, dim)))
        self.num_gates, self.capacity_factor = experts, capacity_factor

    @staticmethod
    def cumsum_exclusive(t, dim=-3):
        pre = (0, 0) * (-dim - 1)
        return F.pad(t, (*pre, 1, -1)).cumsum(dim=dim)

    @staticmethod
    def top1(t):
        values, index = t.topk(k=1, dim=-1)
        return values.squeeze(dim=-1), index.squeeze(dim=-1)

    def forward(self, x):
        b, n, d = x.shape
        raw = torch.einsum("bnd,de->bne", x, self.w_gating).softmax(dim=-1)
        gate, index = self.top1(raw)
        mask = F.one_hot(index, self.num_gates).float()
        loss = (raw.mean(-2) * mask.mean(-2)).mean() * float(self.num_gates**2)
        capacity = max(min(n, int((n * self.capacity_factor) / self.num_gates)), 2)
        position = self.cumsum_exclusive(mask, dim=-2) * mask
        mask = mask * (position < float(capacity)).float()
        where = F.one_hot(position.sum(-1).long().clamp(max=capacity - 1), capacity).float()
        combine = gate[..., None, None] * mask.sum(-1)[..., None, None] * mask[..., None] * where[..., None, :]
        dispatch = combine.bool().to(combine)
        inputs = torch.einsum("bnd,bnec->ebcd", x, dispatch)
        hidden = F.leaky_relu(torch.einsum("ebcd,edh->ebch", inputs, self.w_up))
        outputs = torch.einsum("ebch,ehd->ebcd", hidden, self.w_down)
        return torch.einsum("ebcd,bnec->bnd", outputs, combine), loss * 1e-2


@sample(16, experts=4, inputs=vectors(16))
class ExpertChoice(nn.Module):
    """Experts choose tokens, so that all have the same number."""

    def __init__(self, dim, experts, factor=2):
        super().__init__()
        self.gate, self.factor = nn.Linear(dim, experts), factor
        self.weight = nn.Parameter(torch.randn(experts, dim, dim) * dim**-0.5)

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        scores = self.gate(flat).softmax(dim=-1)
        k = flat.shape[0] * self.factor // self.weight.shape[0]
        g, i = torch.topk(scores.t(), k)
        picked = torch.bmm(flat[i], self.weight).relu()
        out = torch.zeros_like(flat).index_put((i.flatten(),), (picked * g[..., None]).flatten(0, 1), accumulate=True)
        return out.view_as(x)


@sample(16, experts=3, slots=2, inputs=vectors(16))
class SoftExperts(nn.Module):
    def __init__(self, dim, experts, slots):
        super().__init__()
        self.phi = nn.Parameter(torch.randn(dim, experts, slots) * dim**-0.5)
        self.scale = nn.Parameter(torch.ones(1))
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.GELU()) for _ in range(experts))

    def forward(self, x):
        logits = torch.einsum("bnd,dep->bnep", F.normalize(x, dim=-1), self.scale * F.normalize(self.phi, dim=0))
        dispatch = logits.softmax(dim=1)
        combine = logits.flatten(2).softmax(dim=-1).view_as(logits)
        slots = torch.einsum("bnd,bnep->ebpd", x, dispatch)
        outs = torch.stack([expert(part) for expert, part in zip(self.experts, slots, strict=True)])
        return torch.einsum("ebpd,bnep->bnd", outs, combine)


@sample(16, experts=4, inputs=vectors(16))
class NoisyTopGate(nn.Module):
    """Noise in training, a smooth load, and the squared variation as a loss."""

    def __init__(self, dim, experts, k=2):
        super().__init__()
        self.w_gate, self.w_noise = (nn.Parameter(0.1 * torch.randn(dim, experts)) for _ in range(2))
        self.k, self.num_experts = k, experts
        self.experts = nn.ModuleList([nn.Linear(dim, dim) for _ in range(experts)])
        self.register_buffer("mean", torch.tensor([0.0]))
        self.register_buffer("std", torch.tensor([1.0]))

    def cv_squared(self, x, eps=1e-10):
        if x.shape[0] == 1:
            return torch.tensor([0], device=x.device, dtype=x.dtype)
        return x.float().var() / (x.float().mean() ** 2 + eps)

    def prob_in_top_k(self, clean, noisy, stddev, top_values):
        normal = torch.distributions.normal.Normal(self.mean, self.std)
        m = top_values.size(1)
        positions = torch.arange(clean.size(0)) * m + self.k
        if_in = torch.gather(top_values.flatten(), 0, positions).unsqueeze(1)
        if_out = torch.gather(top_values.flatten(), 0, positions - 1).unsqueeze(1)
        return torch.where(noisy > if_in, normal.cdf((clean - if_in) / stddev), normal.cdf((clean - if_out) / stddev))

    def forward(self, x):
        flat = x.flatten(0, 1)
        clean = flat @ self.w_gate
        if self.training:
            stddev = F.softplus(flat @ self.w_noise) + 1e-2
            logits = noisy = clean + torch.randn_like(clean) * stddev
        else:
            logits = clean
        top, index = logits.topk(min(self.k + 1, self.num_experts), dim=1)
        gates = torch.zeros_like(logits, requires_grad=True)
        gates = gates.scatter(1, index[:, : self.k], top[:, : self.k].softmax(1))
        if self.training:
            load = self.prob_in_top_k(clean, noisy, stddev, top).sum(0)
        else:
            load = (gates > 0).sum(0)
        loss = self.cv_squared(gates.sum(0)) + self.cv_squared(load)
        y = sum(gates[:, i : i + 1] * expert(flat) for i, expert in enumerate(self.experts))
        return y.view_as(x), loss


@sample(8, experts=4, inputs=features(8))
class SortedSegments(nn.Module):
    """Tokens sorted by expert, split by counts that are read as a list, and put back."""

    def __init__(self, dim, experts):
        super().__init__()
        self.router = nn.Linear(dim, experts)
        self.register_buffer("bias", torch.zeros(experts))
        self.experts = nn.ModuleList(nn.Linear(dim, dim) for _ in range(experts))

    def forward(self, x):
        scores = self.router(x).sigmoid()
        chosen = (scores + self.bias).argmax(dim=-1)
        order = chosen.argsort()
        counts = torch.bincount(chosen, minlength=len(self.experts))
        parts = x[order].split(counts.tolist())
        outs = torch.cat([expert(part) for expert, part in zip(self.experts, parts, strict=True)])
        y = torch.empty_like(outs)
        y[order] = outs
        return y * scores.gather(1, chosen[:, None])


@sample(8, models=3, inputs=vectors(8))
class StackedEnsemble(nn.Module):
    """Equal members as one, by `vmap` over stacked parameters."""

    def __init__(self, dim, models):
        super().__init__()
        members = [nn.Sequential(nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, 2)) for _ in range(models)]
        params, _ = stack_module_state(members)
        self.stacked = nn.ParameterDict(
            {name.replace(".", "_"): nn.Parameter(p.detach()) for name, p in params.items()}
        )
        self.names = list(params)
        self.base = [members[0].to("meta")]

    def forward(self, x):
        params = {name: self.stacked[name.replace(".", "_")] for name in self.names}
        outs = vmap(lambda p, x: functional_call(self.base[0], p, (x,)), in_dims=(0, None))(params, x)
        return outs.mean(0), outs.var(0, unbiased=False)


@sample(6, 10, inputs=lambda rows, length: {"x": torch.randn(rows, length, 6), "z": torch.randn(rows, 4)})
class HyperMlp(nn.Module):
    """A network that writes the weights of another, for each row."""

    def __init__(self, dim, hidden, code=4):
        super().__init__()
        self.shapes = OrderedDict(w1=(hidden, dim), b1=(hidden,), w2=(dim, hidden), b2=(dim,))
        total = sum(torch.Size(s).numel() for s in self.shapes.values())
        self.hyper = nn.Sequential(nn.Linear(code, 16), nn.ReLU(), nn.Linear(16, total))

    def weights(self, z):
        flat, out, start = self.hyper(z), {}, 0
        for name, shape in self.shapes.items():
            size = torch.Size(shape).numel()
            out[name] = flat[:, start : start + size].reshape(-1, *shape)
            start += size
        return out

    def forward(self, x, z):
        w = self.weights(z)
        h = torch.tanh(torch.baddbmm(w["b1"].unsqueeze(1), x, w["w1"].mT))
        return torch.baddbmm(w["b2"].unsqueeze(1), h, w["w2"].mT)


@sample(4, 6, inputs=lambda rows, length: {"x": torch.randn(rows, 4, length, length), "label": torch.arange(rows) % 3})
class FilmResidual(nn.Module):
    def __init__(self, channels, cond, classes=3):
        super().__init__()
        self.embed = nn.Embedding(classes, cond, max_norm=2.0)
        self.generator = nn.Linear(cond, 4 * channels)
        self.convs = nn.ModuleList([nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(channels, affine=False) for _ in range(2)])

    def forward(self, x, label):
        film = self.generator(self.embed(label)).view(x.size(0), 2, 2, -1)
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            gamma, beta = film[:, i].unsqueeze(-1).unsqueeze(-1).unbind(1)
            y = norm(conv(y)) * (1 + gamma) + beta
            y = F.relu_(y) if i == 0 else y
        return F.relu(x + y)


@sample(4, 6, kernels=3, inputs=images(4))
class DynamicConv(nn.Module):
    """Attention over kernels; all rows in one grouped convolution."""

    def __init__(self, cin, cout, kernels, temperature=4.0):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(kernels, cout, cin, 3, 3) * 0.1)
        self.bias = nn.Parameter(torch.zeros(kernels, cout))
        self.attention = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(cin, 4), nn.ReLU(True), nn.Linear(4, kernels)
        )
        self.temperature = temperature

    def update_temperature(self):
        if self.temperature != 1:
            self.temperature -= 1

    def forward(self, x):
        b, c, h, w = x.size()
        att = F.softmax(self.attention(x) / self.temperature, 1)
        weight = torch.mm(att, self.weight.view(att.shape[1], -1)).view(-1, c, 3, 3)
        bias = torch.mm(att, self.bias).view(-1)
        y = F.conv2d(x.contiguous().view(1, -1, h, w), weight, bias, padding=1, groups=b)
        return y.view(b, -1, y.size(-2), y.size(-1))


@sample(6, 4, inputs=vectors(6))
class CapsuleRouting(nn.Module):
    """Routing by agreement between capsules of two layers."""

    def __init__(self, dim_in, capsules, dim_out=5, routings=3):
        super().__init__()
        self.W = nn.Parameter(0.2 * torch.randn(capsules, dim_out, dim_in))
        self.routings = routings

    @staticmethod
    def squash(s, dim=-1):
        sq = s.pow(2).sum(dim, keepdim=True)
        return (sq / (1 + sq)) * s / (sq.sqrt() + 1e-8)

    def forward(self, x):
        u_hat = torch.einsum("bnd,ced->bcne", x, self.W)
        temp = u_hat.detach()
        b = x.new_zeros(x.size(0), self.W.size(0), x.size(1), 1)
        for _ in range(self.routings - 1):
            c = b.softmax(dim=1)
            v = self.squash((c * temp).sum(dim=2))
            b += torch.matmul(temp, v.unsqueeze(-1))
        v = self.squash((b.softmax(dim=1) * u_hat).sum(dim=2))
        return v, torch.linalg.vector_norm(v, dim=-1)


@dataclasses.dataclass
class ExitOutput:
    logits: torch.Tensor
    depth: int
    confidences: list[torch.Tensor] = dataclasses.field(default_factory=list)


@sample(12, inputs=tokens(20))
class EarlyExit(nn.Module):
    """All exits in training; without it, the exits are blended by how sure they are."""

    def __init__(self, dim, layers=3, classes=4):
        super().__init__()
        self.embed = nn.EmbeddingBag(20, dim)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.Softsign()) for _ in range(layers))
        self.heads = nn.ModuleList(nn.Linear(dim, classes) for _ in range(layers))

    def forward(self, ids):
        h, logs = self.embed(ids), defaultdict(list)
        for block, head in zip(self.blocks, self.heads, strict=False):
            h = block(h) + h
            logits = head(h)
            logs["logits"].append(logits)
            logs["conf"].append(logits.softmax(-1).amax(-1))
        if self.training:
            return ExitOutput(torch.stack(logs["logits"]).mean(0), len(self.blocks), logs["conf"])
        sure = torch.stack(logs["conf"]).softmax(0)
        blended = torch.einsum("lb,lbc->bc", sure, torch.stack(logs["logits"]))
        return ExitOutput(logits=blended, depth=len(logs["logits"]), confidences=logs["conf"])


@sample(8, steps=5, inputs=vectors(8))
class PonderBlock(nn.Module):
    """Adaptive computation: halting probabilities are summed until one, by masks."""

    def __init__(self, dim, steps, threshold=0.99):
        super().__init__()
        self.cell, self.halt = nn.Linear(2 * dim, dim), nn.Linear(dim, 1)
        self.max_hop, self.threshold = steps, threshold

    def forward(self, x):
        shape = x.shape[:2]
        halting, remainders, n_updates = x.new_zeros(shape), x.new_zeros(shape), x.new_zeros(shape)
        state, previous = x, torch.zeros_like(x)
        for _ in range(self.max_hop):
            p = torch.sigmoid(self.halt(state)).squeeze(-1)
            running = (halting < 1.0).float()
            new_halted = (halting + p * running > self.threshold).float() * running
            running = (halting + p * running <= self.threshold).float() * running
            halting = halting + p * running
            remainders = remainders + new_halted * (1 - halting)
            halting = halting + new_halted * remainders
            n_updates = n_updates + running + new_halted
            weights = p * running + new_halted * remainders
            state = torch.tanh(self.cell(torch.cat([state, x], -1)))
            previous = (state * weights.unsqueeze(-1)) + (previous * (1 - weights.unsqueeze(-1)))
        return previous, (remainders, n_updates)


@sample(8, inputs=vectors(8))
class MixtureOfDepths(nn.Module):
    """The best half of the tokens goes through the block, the others stay."""

    def __init__(self, dim, capacity=0.5):
        super().__init__()
        self.router, self.capacity = nn.Linear(dim, 1, bias=False), capacity
        self.block = nn.TransformerEncoderLayer(dim, 2, 16, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, x):
        b, s, d = x.shape
        weights = self.router(x).squeeze(-1)
        k = max(1, int(self.capacity * s))
        top, index = torch.topk(weights, k, sorted=False)
        index, order = torch.sort(index, dim=1)
        where = index.unsqueeze(-1).expand(-1, -1, d)
        picked = torch.gather(x, dim=1, index=where)
        changed = self.block(picked) * top.gather(1, order).softmax(-1).unsqueeze(-1)
        return torch.scatter_add(x, dim=1, index=where, src=changed)


@sample(6, inputs=vectors(6))
class SwitchableNorm(nn.Module):
    """Statistics of instances, layers and batches, mixed by learned weights."""

    def __init__(self, dim, eps=1e-5, momentum=0.1):
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight, self.bias = nn.Parameter(torch.ones(1, 1, dim)), nn.Parameter(torch.zeros(1, 1, dim))
        self.mean_weight, self.var_weight = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
        self.register_buffer("running_mean", torch.zeros(1, 1, dim))
        self.register_buffer("running_var", torch.ones(1, 1, dim))

    def forward(self, x):
        mean_in, var_in = x.mean(1, keepdim=True), x.var(1, keepdim=True)
        mean_ln = mean_in.mean(-1, keepdim=True)
        temp = var_in + mean_in**2
        var_ln = temp.mean(-1, keepdim=True) - mean_ln**2
        if self.training:
            mean_bn = mean_in.mean(0, keepdim=True)
            var_bn = temp.mean(0, keepdim=True) - mean_bn**2
            self.running_mean.mul_(1 - self.momentum).add_(self.momentum * mean_bn.data)
            self.running_var.mul_(1 - self.momentum).add_(self.momentum * var_bn.data)
        else:
            mean_bn, var_bn = torch.autograd.Variable(self.running_mean), torch.autograd.Variable(self.running_var)
        mw, vw = self.mean_weight.softmax(0), self.var_weight.softmax(0)
        mean = mw[0] * mean_in + mw[1] * mean_ln + mw[2] * mean_bn
        var = vw[0] * var_in + vw[1] * var_ln + vw[2] * var_bn
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias
