"""Molecules, proteins, genomes, cells: pair representations, frames, counts, signals of the body."""

from __future__ import annotations

import math
import string

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import features, sample, waves


@sample(
    6,
    inputs=lambda rows, length: {"msa": torch.randn(rows, 4, length, 6), "pair": torch.randn(rows, length, length, 4)},
)
class AlignmentBlock(nn.Module):
    """Rows with a bias from pairs, columns, and an outer product of means."""

    def __init__(self, dim, pair=4, heads=2, hidden=3):
        super().__init__()
        self.heads = heads
        self.row, self.bias, self.gate = (
            nn.Linear(dim, 3 * dim, bias=False),
            nn.Linear(pair, heads),
            nn.Linear(dim, dim),
        )
        self.column = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.left, self.right, self.out = nn.Linear(dim, hidden), nn.Linear(dim, hidden), nn.Linear(hidden**2, pair)

    def forward(self, msa, pair):
        b, s, r, d = msa.shape
        q, k, v = self.row(msa).view(b, s, r, 3, self.heads, -1).permute(3, 0, 1, 4, 2, 5)
        logits = torch.einsum("bshid,bshjd->bshij", q, k) / math.sqrt(d // self.heads)
        logits = logits + self.bias(pair).permute(0, 3, 1, 2).unsqueeze(1)
        out = (logits.softmax(-1) @ v).transpose(2, 3).flatten(3)
        msa = msa + torch.sigmoid(self.gate(msa)) * out
        cols = msa.transpose(1, 2).flatten(0, 1)
        msa = msa + self.column(cols, cols, cols)[0].unflatten(0, (b, r)).transpose(1, 2)
        outer = torch.einsum("bsic,bsjd->bijcd", self.left(msa), self.right(msa)) / s
        return msa, pair + self.out(outer.flatten(3))


@sample(
    6,
    inputs=lambda rows, length: {
        "pair": torch.randn(rows, length, length, 6),
        "mask": (torch.rand(rows, length) > 0.1).float(),
    },
)
class TriangleUpdate(nn.Module):
    """Outgoing and incoming products, and attention around the starting node."""

    def __init__(self, dim, hidden=4):
        super().__init__()
        self.norm, self.norm_out = nn.LayerNorm(dim), nn.LayerNorm(hidden)
        self.proj, self.gates = nn.Linear(dim, 2 * hidden), nn.Linear(dim, 2 * hidden)
        self.out, self.out_gate = nn.Linear(hidden, dim), nn.Linear(dim, dim)
        self.qkv, self.bias = nn.Linear(dim, 3 * dim), nn.Linear(dim, 1)

    def multiply(self, z, mask, equation):
        x = self.norm(z)
        a, b = (self.proj(x) * self.gates(x).sigmoid() * mask.unsqueeze(-1)).chunk(2, -1)
        return torch.sigmoid(self.out_gate(x)) * self.out(self.norm_out(torch.einsum(equation, a, b)))

    def forward(self, pair, mask):
        square = mask[:, :, None] * mask[:, None]
        pair = pair + self.multiply(pair, square, "bikc,bjkc->bijc")
        pair = pair + self.multiply(pair, square, "bkic,bkjc->bijc")
        q, k, v = self.qkv(pair).chunk(3, -1)
        logits = torch.einsum("bijc,bikc->bijk", q, k) + self.bias(pair).squeeze(-1).unsqueeze(1)
        logits = logits + (1e9 * (mask - 1))[:, None, None, :]
        return pair + torch.einsum("bijk,bikc->bijc", logits.softmax(-1), v)


class Rigid:
    """Rotations with translations; composed and applied like a function."""

    def __init__(self, rots, trans):
        self.rots, self.trans = rots, trans

    @classmethod
    def identity(cls, shape):
        return cls(torch.eye(3).expand(*shape, 3, 3), torch.zeros(*shape, 3))

    @property
    def shape(self):
        return self.trans.shape[:-1]

    def __matmul__(self, other):
        return Rigid(self.rots @ other.rots, self.apply(other.trans))

    def apply(self, points):
        return torch.einsum("...ij,...j->...i", self.rots, points) + self.trans

    def invert_apply(self, points):
        return torch.einsum("...ji,...j->...i", self.rots, points - self.trans)

    def __getitem__(self, index):
        return Rigid(self.rots[index], self.trans[index])


@sample(
    8,
    inputs=lambda rows, length: {"single": torch.randn(rows, length, 8), "pair": torch.randn(rows, length, length, 4)},
)
class InvariantPointAttention(nn.Module):
    """Points in frames of residues; frames move by quaternions that are close to one, in a loop."""

    def __init__(self, dim, pair=4, heads=2, points=2, iters=2):
        super().__init__()
        self.heads, self.points, self.iters = heads, points, iters
        self.qkv, self.q_points = nn.Linear(dim, 3 * dim), nn.Linear(dim, heads * points * 3)
        self.k_points, self.v_points = nn.Linear(dim, heads * points * 3), nn.Linear(dim, heads * points * 3)
        self.pair_bias, self.head_weights = nn.Linear(pair, heads), nn.Parameter(torch.zeros(heads))
        self.out = nn.Linear(dim + heads * points * 4 + heads * pair, dim)
        self.update = nn.Linear(dim, 6)

    def to_points(self, layer, single, frames):
        local = layer(single).unflatten(-1, (self.heads * self.points, 3))
        return Rigid(frames.rots[:, :, None], frames.trans[:, :, None]).apply(local)

    def step(self, single, pair, frames):
        b, n, d = single.shape
        q, k, v = self.qkv(single).view(b, n, 3, self.heads, -1).unbind(2)
        qp, kp, vp = (
            self.to_points(f, single, frames).view(b, n, self.heads, self.points, 3)
            for f in (self.q_points, self.k_points, self.v_points)
        )
        logits = torch.einsum("bihd,bjhd->bhij", q, k) * (d // self.heads) ** -0.5 + self.pair_bias(pair).permute(
            0, 3, 1, 2
        )
        dist = (qp[:, :, None] - kp[:, None]).pow(2).sum((-1, -2)).permute(0, 3, 1, 2)
        w = F.softplus(self.head_weights).view(1, -1, 1, 1) * math.sqrt(2 / (9 * self.points))
        attn = (logits - 0.5 * w * dist).softmax(-1)
        o = torch.einsum("bhij,bjhd->bihd", attn, v).flatten(2)
        op = torch.einsum("bhij,bjhpc->bihpc", attn, vp).flatten(2, 3)
        op = Rigid(frames.rots[:, :, None], frames.trans[:, :, None]).invert_apply(op)
        norms = (op.pow(2).sum(-1) + 1e-8).sqrt()
        return self.out(
            torch.cat([o, op.flatten(2), norms, torch.einsum("bhij,bijc->bihc", attn, pair).flatten(2)], -1)
        )

    def forward(self, single, pair):
        frames = Rigid.identity(single.shape[:2])
        for _ in range(self.iters):
            single = single + self.step(single, pair, frames)
            bcd, shift = self.update(single).split([3, 3], -1)
            a = torch.ones_like(bcd[..., :1])
            w, x, y, z = (torch.cat([a, bcd], -1) / (1 + bcd.pow(2).sum(-1, keepdim=True)).sqrt()).unbind(-1)
            rows = [
                [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
            ]
            rot = torch.stack([torch.stack(row, -1) for row in rows], -2)
            frames = frames @ Rigid(rot, shift)
        return single, frames.trans


class CodonTable:
    """Letters to numbers by translation, as alphabets of such code are."""

    letters = "ACGT"

    def __init__(self):
        self.codons = [a + b + c for a in self.letters for b in self.letters for c in self.letters]
        amino = (string.ascii_uppercase[:20] + "*") * 4
        self.to_amino = {codon: ord(amino[i]) % 21 for i, codon in enumerate(self.codons)}


@sample(6, inputs=lambda rows, length: {"bases": torch.randint(4, (rows, 3 * length))})
class GenomeEncoder(nn.Module):
    """Bases in both directions, codons by a table, attention pooling along the sequence, counts by softplus."""

    def __init__(self, dim, tracks=2):
        super().__init__()
        table = CodonTable()
        self.register_buffer("amino", torch.tensor([table.to_amino[c] for c in table.codons]))
        self.register_buffer("complement", torch.tensor([3, 2, 1, 0]))
        self.stem, self.embed = nn.Conv1d(4, dim, 5, padding=2), nn.Embedding(21, dim)
        self.pool_logits = nn.Conv1d(dim, dim, 1, bias=False)
        self.head = nn.Linear(dim, tracks)

    def encode(self, bases):
        hot = F.one_hot(bases, 4).float().transpose(1, 2)
        h = F.gelu(self.stem(hot))
        b, c, n = h.shape
        groups = h.view(b, c, n // 3, 3)
        return (groups * self.pool_logits(h).view(b, c, n // 3, 3).softmax(-1)).sum(-1).transpose(1, 2)

    def forward(self, bases):
        codons = bases.unflatten(1, (-1, 3)) @ torch.tensor([16, 4, 1])
        there = self.encode(bases) + self.embed(self.amino[codons])
        back = self.encode(self.complement[bases].flip(1)).flip(1)
        rate = F.softplus((self.head(there) + self.head(back)) / 2) + 1e-6
        target = codons.unsqueeze(-1).float() % 3
        return (rate - target * rate.log()).mean(), rate


@sample(
    8,
    inputs=lambda rows, length: {
        "counts": torch.poisson(torch.full((rows * length, 8), 2.0)),
        "batch": torch.arange(rows * length) % 3,
    },
)
class CellCounts(nn.Module):
    """scVI: negative binomials with dropout of counts, sizes of libraries, batches as one-hot columns."""

    def __init__(self, genes, latent=3, batches=3):
        super().__init__()
        self.batches = batches
        self.enc = nn.Sequential(
            nn.Linear(genes + batches, 8),
            nn.BatchNorm1d(8, momentum=0.01, eps=0.001),
            nn.ReLU(),
            nn.Linear(8, 2 * latent),
        )
        self.dec, self.drop = nn.Linear(latent + batches, genes), nn.Linear(latent + batches, genes)
        self.px_r = nn.Parameter(torch.randn(genes))

    @staticmethod
    def log_zinb(x, mu, theta, pi, eps=1e-8):
        softplus_pi = F.softplus(-pi)
        log_theta_mu = torch.log(theta + mu + eps)
        pi_theta = -pi + theta * (torch.log(theta + eps) - log_theta_mu)
        case_zero = F.softplus(pi_theta) - softplus_pi
        case_non_zero = (-softplus_pi + pi_theta + x * (torch.log(mu + eps) - log_theta_mu)
                         + torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1))  # fmt: skip
        return torch.mul((x < eps).type(torch.float32), case_zero) + torch.mul(
            (x > eps).type(torch.float32), case_non_zero
        )

    def forward(self, counts, batch):
        hot = F.one_hot(batch, self.batches).float()
        mu, logvar = self.enc(torch.cat([torch.log1p(counts), hot], -1)).chunk(2, -1)
        q = torch.distributions.Normal(mu, torch.exp(0.5 * logvar) + 1e-4)
        z = q.rsample() if self.training else q.mean
        zb = torch.cat([z, hot], -1)
        library = counts.sum(1, keepdim=True)
        recon = self.log_zinb(counts, library * self.dec(zb).softmax(-1), self.px_r.exp(), self.drop(zb)).sum(-1)
        kl = torch.distributions.kl_divergence(
            q, torch.distributions.Normal(torch.zeros_like(mu), torch.ones_like(mu))
        ).sum(1)
        return (kl - recon).mean(), z


@sample(4, inputs=waves(4), lengths=(32, 40))
class BrainSignalNet(nn.Module):
    """EEGNet: filters over time, over electrodes with clamped norms, and separable ones."""

    def __init__(self, electrodes, f1=3, d=2):
        super().__init__()
        self.temporal, self.bn1 = nn.Conv2d(1, f1, (1, 9), padding="same", bias=False), nn.BatchNorm2d(f1)
        self.spatial, self.bn2 = nn.Conv2d(f1, f1 * d, (electrodes, 1), groups=f1, bias=False), nn.BatchNorm2d(f1 * d)
        self.separable = nn.Sequential(
            nn.Conv2d(f1 * d, f1 * d, (1, 5), groups=f1 * d, padding=(0, 2)), nn.Conv2d(f1 * d, 4, 1)
        )
        self.head = nn.Linear(4, 3)

    @torch.no_grad()
    def clamp_norms(self, limit=1.0):
        self.spatial.weight.data = torch.renorm(self.spatial.weight.data, p=2, dim=0, maxnorm=limit)

    def forward(self, x):
        self.clamp_norms()
        h = self.bn1(self.temporal(x.unsqueeze(1)))
        h = F.dropout(F.avg_pool2d(F.elu(self.bn2(self.spatial(h))), (1, 4)), 0.25, self.training)
        h = F.elu(self.separable(h)).squeeze(2)
        return self.head(torch.log(h.var(-1, unbiased=False).clamp(min=1e-6)))


@sample(
    6,
    inputs=lambda rows, length: {
        "x": torch.randn(rows * length, 6),
        "time": torch.rand(rows * length) * 10,
        "event": torch.randint(2, (rows * length,)),
    },
)
class SurvivalHead(nn.Module):
    """Cox's partial likelihood over sorted risks, a discrete hazard, and a concordance over pairs."""

    def __init__(self, dim, bins=4):
        super().__init__()
        self.risk, self.hazard, self.bins = nn.Linear(dim, 1), nn.Linear(dim, bins), bins

    def forward(self, x, time, event):
        order = torch.argsort(time, descending=True)
        risk, observed = self.risk(x).squeeze(-1)[order], event[order].float()
        cox = -((risk - torch.logcumsumexp(risk, 0)) * observed).sum() / observed.sum().clamp(min=1)
        edges = torch.linspace(0, 10, self.bins + 1)
        label = torch.bucketize(time, edges[1:-1])
        hazards = self.hazard(x).sigmoid()
        survival = torch.cumprod(1 - hazards, dim=1)
        padded = F.pad(survival, (1, 0), value=1.0)
        uncensored = -event * (
            torch.log(padded.gather(1, label[:, None]).squeeze(1).clamp(min=1e-7))
            + torch.log(hazards.gather(1, label[:, None]).squeeze(1).clamp(min=1e-7))
        )
        censored = -(1 - event) * torch.log(padded.gather(1, label[:, None] + 1).squeeze(1).clamp(min=1e-7))
        earlier = (time[:, None] < time[None]) & event[:, None].bool()
        full = self.risk(x).squeeze(-1)
        concordant = ((full[:, None] > full[None]) & earlier).sum() / earlier.sum().clamp(min=1)
        return cox, (uncensored + censored).mean(), concordant


@sample(8, inputs=lambda rows, length: {"x": torch.randn(length, 8), "bags": torch.randint(0, rows, (length,))})
class GatedBags(nn.Module):
    """Instances of bags, pooled by gated attention and a softmax within each bag."""

    def __init__(self, dim, hidden=6, most=8):
        super().__init__()
        self.V, self.U, self.w = nn.Linear(dim, hidden), nn.Linear(dim, hidden), nn.Linear(hidden, 1)
        self.out, self.most = nn.Linear(dim, 1), most

    def forward(self, x, bags):
        a = self.w(torch.tanh(self.V(x)) * torch.sigmoid(self.U(x))).squeeze(-1)
        peak = torch.full((self.most,), -torch.inf).scatter_reduce(0, bags, a.detach(), "amax")
        e = torch.exp(a - peak[bags])
        total = torch.zeros(self.most).index_add(0, bags, e)
        attn = e / total[bags]
        pooled = torch.zeros(self.most, x.shape[1]).index_add(0, bags, attn[:, None] * x)
        return self.out(pooled).squeeze(-1).masked_fill(total == 0, 0.0), attn


@sample(6, inputs=features(6))
class StructuralCausal(nn.Module):
    """NOTEARS: a weighted adjacency, its acyclicity by a matrix exponential, interventions by masks."""

    def __init__(self, dim):
        super().__init__()
        self.w = nn.Parameter(torch.randn(dim, dim) * 0.1)
        self.register_buffer("off", 1 - torch.eye(dim))

    def forward(self, x):
        w = self.w * self.off
        h = torch.trace(torch.matrix_exp(w * w)) - w.shape[0]
        fit = 0.5 / x.shape[0] * (x - x @ w).square().sum()
        do = torch.zeros_like(x[0]).index_fill(0, torch.tensor([0, 2]), 1.0).bool()
        effect = torch.where(do, torch.ones_like(x), x @ w)
        return fit + 0.1 * w.abs().sum() + 0.5 * h * h + h, effect


@sample(
    6,
    inputs=lambda rows, length: {
        "events": torch.rand(rows, length).cumsum(1),
        "kinds": torch.randint(3, (rows, length)),
    },
)
class PointProcess(nn.Module):
    """A neural Hawkes process: decaying cells between events and an integral by sampling."""

    def __init__(self, hidden, kinds=3, samples=4):
        super().__init__()
        self.embed, self.cell, self.samples = nn.Embedding(kinds, hidden), nn.Linear(2 * hidden, 6 * hidden), samples
        self.rate, self.log_scale = nn.Linear(hidden, kinds, bias=False), nn.Parameter(torch.zeros(kinds))

    def decay(self, c, c_bar, o, delta, dt):
        c_t = c_bar + (c - c_bar) * torch.exp(-delta * dt)
        return c_t, o * torch.tanh(c_t)

    def intensity(self, h):
        s = self.log_scale.exp()
        return s * F.softplus(self.rate(h) / s)

    def forward(self, events, kinds):
        b, n = events.shape
        gaps = torch.diff(events, dim=1, prepend=torch.zeros(b, 1))
        h = c = c_bar = torch.zeros(b, self.embed.embedding_dim)
        o, delta, log_like, integral = torch.ones_like(h), torch.ones_like(h), 0.0, 0.0
        fractions = torch.rand(self.samples) if self.training else torch.linspace(0.1, 0.9, self.samples)
        for t in range(n):
            gap = gaps[:, t, None]
            between = [self.intensity(self.decay(c, c_bar, o, delta, f * gap)[1]).sum(-1) for f in fractions]
            integral = integral + torch.stack(between).mean(0) * gap.squeeze(1)
            c_t, h = self.decay(c, c_bar, o, delta, gap)
            log_like = log_like + torch.log(self.intensity(h).gather(1, kinds[:, t, None]).squeeze(1))
            i, f, z, o, i_bar, delta = self.cell(torch.cat([self.embed(kinds[:, t]), h], -1)).chunk(6, -1)
            c, c_bar = f.sigmoid() * c_t + i.sigmoid() * z.tanh(), i_bar.sigmoid() * c_bar + i.sigmoid() * z.tanh()
            o, delta = o.sigmoid(), F.softplus(delta)
        return (integral - log_like).mean(), h
