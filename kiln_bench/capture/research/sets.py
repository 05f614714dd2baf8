"""Sets, latents and slots: modules whose inputs have no order, or that read them into a few vectors."""

from __future__ import annotations

import math
from functools import wraps

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import sample, vectors


class SetBlock(nn.Module):
    """The attention block of set transformers."""

    def __init__(self, dim_q, dim_k, dim_v, heads, ln=False):
        super().__init__()
        self.dim_v, self.heads = dim_v, heads
        self.fc_q, self.fc_k, self.fc_v = nn.Linear(dim_q, dim_v), nn.Linear(dim_k, dim_v), nn.Linear(dim_k, dim_v)
        if ln:
            self.ln0, self.ln1 = nn.LayerNorm(dim_v), nn.LayerNorm(dim_v)
        self.fc_o = nn.Linear(dim_v, dim_v)

    def forward(self, Q, K):
        Q, K, V = self.fc_q(Q), self.fc_k(K), self.fc_v(K)
        split = self.dim_v // self.heads
        Q_, K_, V_ = (torch.cat(t.split(split, 2), 0) for t in (Q, K, V))
        A = torch.softmax(Q_.bmm(K_.transpose(1, 2)) / math.sqrt(self.dim_v), 2)
        O = torch.cat((Q_ + A.bmm(V_)).split(Q.size(0), 0), 2)
        O = O if getattr(self, "ln0", None) is None else self.ln0(O)
        O = O + F.relu(self.fc_o(O))
        return O if getattr(self, "ln1", None) is None else self.ln1(O)


@sample(3, 16, inputs=vectors(3))
class SetTransformer(nn.Module):
    """Induced points, then pooling by seeds."""

    def __init__(self, dim_in, dim, inducing=4, seeds=2, heads=4):
        super().__init__()
        self.I = nn.Parameter(torch.Tensor(1, inducing, dim))
        nn.init.xavier_uniform_(self.I)
        self.mab0, self.mab1 = SetBlock(dim, dim_in, dim, heads, ln=True), SetBlock(dim_in, dim, dim, heads, ln=True)
        self.S = nn.Parameter(torch.rand(1, seeds, dim))
        self.pool = SetBlock(dim, dim, dim, heads)

    def forward(self, x):
        h = self.mab1(x, self.mab0(self.I.repeat(x.size(0), 1, 1), x))
        return self.pool(self.S.repeat(x.size(0), 1, 1), h).squeeze()


@sample(5, 16, pool="logsumexp", inputs=lambda rows, length: {
    "x": torch.randn(rows, length, 5), "lengths": torch.randint(1, length, (rows,)),
})  # fmt: skip
class MaskedDeepSet(nn.Module):
    """Padded sets with their lengths, pooled by one of a table of functions."""

    POOLS = {
        "mean": lambda h, m: (h * m).sum(1) / m.sum(1),
        "max": lambda h, m: h.masked_fill(m == 0, -1e4).max(dim=1)[0],
        "logsumexp": lambda h, m: torch.logsumexp(h + (m + 1e-20).log(), dim=1),
    }

    def __init__(self, dim, hidden, pool):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, hidden))
        self.rho = nn.Sequential(nn.Linear(3 * hidden, hidden), nn.ELU(inplace=True), nn.Linear(hidden, 1))
        self.pool = pool

    def forward(self, x, lengths):
        mask = (torch.arange(x.size(1), device=x.device)[None] < lengths[:, None]).float().unsqueeze(-1)
        h = self.phi(x)
        pooled = [self.POOLS[name](h, mask) for name in sorted({self.pool, "mean", "max"})]
        return self.rho(torch.cat(pooled, dim=-1)).squeeze(-1)


@sample(16, slots=3, inputs=vectors(16))
class SlotAttention(nn.Module):
    """Slots compete for inputs by a softmax over slots; a recurrent cell updates them."""

    def __init__(self, dim, slots, iters=3, eps=1e-8):
        super().__init__()
        self.num_slots, self.iters, self.eps, self.scale = slots, iters, eps, dim**-0.5
        self.slots_mu = nn.Parameter(torch.randn(1, 1, dim))
        self.slots_logsigma = nn.Parameter(torch.zeros(1, 1, dim))
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.gru = nn.GRUCell(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(inplace=True), nn.Linear(2 * dim, dim))
        self.norm_input, self.norm_slots, self.norm_pre_ff = (nn.LayerNorm(dim) for _ in range(3))

    def forward(self, x, num_slots=None):
        b, n, d = x.shape
        n_s = num_slots if num_slots is not None else self.num_slots
        mu = self.slots_mu.expand(b, n_s, -1)
        sigma = self.slots_logsigma.exp().expand(b, n_s, -1)
        slots = mu + sigma * torch.randn(mu.shape, device=x.device, dtype=x.dtype)
        x = self.norm_input(x)
        k, v = self.to_k(x), self.to_v(x)
        for i in range(self.iters):
            prev = slots if i < self.iters - 1 else slots.detach()
            q = self.to_q(self.norm_slots(slots))
            attn = (torch.einsum("bid,bjd->bij", q, k) * self.scale).softmax(dim=1) + self.eps
            attn = attn / attn.sum(dim=-1, keepdim=True)
            updates = torch.einsum("bjd,bij->bid", v, attn)
            slots = self.gru(updates.reshape(-1, d), prev.reshape(-1, d)).reshape(b, -1, d)
            slots = slots + self.mlp(self.norm_pre_ff(slots))
        return slots, attn


def cached(function):
    """Remembers the result unless it is told not to: blocks with shared weights are made once."""
    cache = None

    @wraps(function)
    def call(*args, _cache=True, **kwargs):
        nonlocal cache
        if not _cache:
            return function(*args, **kwargs)
        cache = cache if cache is not None else function(*args, **kwargs)
        return cache

    return call


class Residual(nn.Module):
    def __init__(self, dim, fn, context_dim=None):
        super().__init__()
        self.fn, self.norm = fn, nn.LayerNorm(dim)
        self.norm_context = nn.LayerNorm(context_dim) if context_dim is not None else None

    def forward(self, x, **kwargs):
        if self.norm_context is not None:
            kwargs.update(context=self.norm_context(kwargs["context"]))
        return self.fn(self.norm(x), **kwargs) + x


class LatentRead(nn.Module):
    def __init__(self, dim, context_dim):
        super().__init__()
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(context_dim, 2 * dim)

    def forward(self, x, context=None):
        k, v = self.kv(context).chunk(2, dim=-1)
        return (self.q(x) @ k.mT).div(x.shape[-1] ** 0.5).softmax(-1) @ v


@sample(
    3, 16, latents=4, depth=2, inputs=lambda rows, length: {"x": torch.rand(rows, length, length, 3)}, lengths=(4, 6)
)
class PerceiverReader(nn.Module):
    """Fourier features of any number of axes, and layers that share weights."""

    def __init__(self, channels, dim, latents, depth, bands=3):
        super().__init__()
        self.bands = bands
        input_dim = channels + 2 * (2 * bands + 1)
        self.latents = nn.Parameter(torch.randn(latents, dim))
        get_read = cached(lambda: Residual(dim, LatentRead(dim, input_dim), input_dim))
        get_ff = cached(
            lambda: Residual(dim, nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)))
        )
        self.layers = nn.ModuleList([])
        for i in range(depth):
            args = {"_cache": i > 0}
            self.layers.append(nn.ModuleList([get_read(**args), get_ff(**args)]))

    def fourier_encode(self, x, max_freq=4.0):
        x = x.unsqueeze(-1)
        scales = torch.linspace(1.0, max_freq / 2, self.bands, dtype=x.dtype)
        scales = scales[(*((None,) * (len(x.shape) - 1)), Ellipsis)]
        y = x * scales * math.pi
        return torch.cat((y.sin(), y.cos(), x), dim=-1)

    def forward(self, x):
        b, *axis, _ = x.shape
        positions = [torch.linspace(-1.0, 1.0, steps=size, dtype=x.dtype) for size in axis]
        pos = self.fourier_encode(torch.stack(torch.meshgrid(*positions, indexing="ij"), dim=-1))
        pos = pos.flatten(-2).expand(b, *pos.shape[:-2], -1)
        data = torch.cat((x, pos), dim=-1).flatten(1, -2)
        latents = self.latents[None].repeat(b, 1, 1)
        for read, ff in self.layers:
            latents = ff(read(latents, context=data))
        return latents.mean(dim=-2)


@sample(8, inputs=lambda rows, length: {"x": torch.randn(rows, length, 8), "y": torch.randn(rows, length, 8)})
class SinkhornMatcher(nn.Module):
    """Optimal transport in logarithms, with a bin for what has no partner."""

    def __init__(self, dim, iters=5, reg=0.2):
        super().__init__()
        self.proj, self.iters, self.reg = nn.Linear(dim, dim), iters, reg
        self.bin_score = nn.Parameter(torch.tensor(1.0))

    @classmethod
    def log_sinkhorn(cls, Z, log_mu, log_nu, iters):
        u, v = torch.zeros_like(log_mu), torch.zeros_like(log_nu)
        for _ in range(iters):
            u = log_mu - torch.logsumexp(Z + v.unsqueeze(1), dim=2)
            v = log_nu - torch.logsumexp(Z + u.unsqueeze(2), dim=1)
        return Z + u.unsqueeze(2) + v.unsqueeze(1)

    def forward(self, x, y):
        scores = torch.einsum("bnd,bmd->bnm", self.proj(x), self.proj(y)) / self.reg
        b, m, n = scores.shape
        one = scores.new_tensor(1)
        ms, ns = (m * one).to(scores), (n * one).to(scores)
        bins0, bins1 = self.bin_score.expand(b, m, 1), self.bin_score.expand(b, 1, n)
        couplings = torch.cat(
            [torch.cat([scores, bins0], -1), torch.cat([bins1, self.bin_score.expand(b, 1, 1)], -1)], 1
        )
        norm = -(ms + ns).log()
        log_mu = torch.cat([norm.expand(m), ns.log()[None] + norm])[None].expand(b, -1)
        log_nu = torch.cat([norm.expand(n), ms.log()[None] + norm])[None].expand(b, -1)
        Z = self.log_sinkhorn(couplings, log_mu, log_nu, self.iters) - norm
        best0, best1 = Z[:, :-1, :-1].max(2), Z[:, :-1, :-1].max(1)
        mutual = torch.arange(m)[None] == best1.indices.gather(1, best0.indices)
        return Z.exp(), torch.where(mutual, best0.indices, best0.indices.new_tensor(-1))


@sample(8, inputs=vectors(8))
class SoftSorter(nn.Module):
    """NeuralSort's relaxed permutation."""

    def __init__(self, dim, tau=1.0):
        super().__init__()
        self.score, self.tau = nn.Linear(dim, 1), tau

    def forward(self, x):
        scores = self.score(x)
        n = scores.size(1)
        ones = torch.ones((n, 1))
        A = torch.abs(scores - scores.permute(0, 2, 1))
        B = torch.matmul(A, ones @ ones.T)
        scaling = (n + 1 - 2 * (torch.arange(n) + 1)).type(x.dtype)
        P = F.softmax(((scores @ scaling[None]) - B).permute(0, 2, 1) / self.tau, dim=-1)
        return P @ x, P.argmax(dim=-1)


@sample(6, 12, inputs=lambda rows, length: {
    "x_c": torch.randn(rows, length, 2), "y_c": torch.randn(rows, length, 4), "x_t": torch.randn(rows, 5, 2),
})  # fmt: skip
class NeuralProcess(nn.Module):
    """Context to a distribution over a latent, and a decoder for targets; a distribution object is the result."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 2 * hidden))
        self.decode = nn.Sequential(nn.Linear(hidden + 2, hidden), nn.ReLU(), nn.Linear(hidden, 8))

    def latent(self, x, y):
        mu, log_sigma = self.encode(torch.cat([x, y], dim=-1)).mean(dim=1).chunk(2, dim=-1)
        return torch.distributions.Normal(mu, 0.1 + 0.9 * torch.sigmoid(log_sigma))

    def forward(self, x_c, y_c, x_t):
        q = self.latent(x_c, y_c)
        z = q.rsample()
        h = torch.cat([z.unsqueeze(1).expand(-1, x_t.size(1), -1), x_t], dim=-1)
        mu, raw = self.decode(h).chunk(2, -1)
        p = torch.distributions.Independent(torch.distributions.Normal(mu, 0.1 + F.softplus(raw)), 1)
        prior = torch.distributions.Normal(torch.zeros_like(z), torch.ones_like(z))
        return p.log_prob(torch.zeros_like(mu)), torch.distributions.kl_divergence(q, prior).sum(-1), p.mean


@sample(8, inputs=vectors(8))
class AdaptivePooling(nn.Module):
    """Learned power means, attention pooling and statistics, side by side."""

    def __init__(self, dim):
        super().__init__()
        self.p = nn.Parameter(torch.full((1,), 3.0))
        self.attn = nn.Linear(dim, 1)

    def forward(self, x):
        gem = x.clamp(min=1e-6).pow(self.p).mean(1).pow(1.0 / self.p)
        w = torch.softmax(self.attn(torch.tanh(x)), dim=1)
        mean = (w * x).sum(1)
        std = torch.sqrt(((w * x**2).sum(1) - mean**2).clamp(min=1e-9))
        quantiles = torch.quantile(x, torch.tensor([0.25, 0.5, 0.75]), dim=1).permute(1, 2, 0).flatten(1)
        return torch.hstack([gem, mean, std, quantiles, x.median(dim=1).values])


@sample(16, keep=0.5, inputs=vectors(16))
class TokenMerging(nn.Module):
    """ToMe: similar tokens of two halves are merged by a scattered mean."""

    def __init__(self, dim, keep):
        super().__init__()
        self.key, self.value, self.keep = nn.Linear(dim, dim // 2), nn.Linear(dim, dim), keep

    def bipartite(self, metric, r):
        with torch.no_grad():
            metric = metric / metric.norm(dim=-1, keepdim=True)
            a, b = metric[..., ::2, :], metric[..., 1::2, :]
            scores = a @ b.transpose(-1, -2)
            node_max, node_idx = scores.max(dim=-1)
            edge_idx = node_max.argsort(dim=-1, descending=True)[..., None]
            unm, src = edge_idx[..., r:, :], edge_idx[..., :r, :]
            dst = node_idx[..., None].gather(dim=-2, index=src)

        def merge(x, mode="mean"):
            s, d = x[..., ::2, :], x[..., 1::2, :]
            n, t1, c = s.shape
            kept = s.gather(dim=-2, index=unm.expand(n, t1 - r, c))
            moved = s.gather(dim=-2, index=src.expand(n, r, c))
            d = d.scatter_reduce(-2, dst.expand(n, r, c), moved, reduce=mode)
            return torch.cat([kept, d], dim=1)

        return merge

    def forward(self, x):
        r = min(int(x.shape[1] * self.keep) // 2, x.shape[1] // 2)
        merge = self.bipartite(self.key(x), r)
        size = merge(torch.ones_like(x[..., :1]), mode="sum")
        return merge(self.value(x), mode="sum") / size, size


@sample(16, rate=0.5, inputs=vectors(16))
class TokenDropper(nn.Module):
    """A random half of the tokens goes through a block in training; the rest goes around."""

    def __init__(self, dim, rate):
        super().__init__()
        self.rate = rate
        self.block = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.SiLU())

    def forward(self, x):
        if not self.training or self.rate == 0.0:
            return x + self.block(x)
        b, n, d = x.shape
        keep = max(1, int(n * (1 - self.rate)))
        ids = torch.rand(b, n).argsort(dim=1)[:, :keep]
        index = ids[..., None].repeat(1, 1, d)
        part = torch.gather(x, 1, index)
        return torch.scatter(x, 1, index, part + self.block(part))
