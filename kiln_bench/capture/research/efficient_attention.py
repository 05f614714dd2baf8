"""Attention at less than a square: kernels, windows, hashes, landmarks, and mixers without scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, einsum, nn

from kiln_bench.capture.research.sample import images, sample, vectors


def heads_first(x, h):
    return x.reshape(*x.shape[:2], h, -1).permute(0, 2, 1, 3)


def heads_last(x):
    return x.permute(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


@sample(32, 4, inputs=vectors(32))
class LinearAttention(nn.Module):
    """A positive feature map in place of the softmax, causal by running sums."""

    def __init__(self, dim, heads, eps=1e-6):
        super().__init__()
        self.heads, self.eps = heads, eps
        self.to_q, self.to_k, self.to_v = [nn.Linear(dim, dim) for _ in range(3)]

    def forward(self, x):
        q, k, v = (heads_first(f(x), self.heads) for f in (self.to_q, self.to_k, self.to_v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = einsum("bhnd,bhne->bhnde", k, v).cumsum(dim=2)
        z = 1 / (einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + self.eps)
        return heads_last(einsum("bhnd,bhnde,bhn->bhne", q, kv, z))


@sample(32, 4, features=10, inputs=vectors(32))
class PerformerAttention(nn.Module):
    """Orthogonal random features, drawn by a QR decomposition when the module is made."""

    def __init__(self, dim, heads, features):
        super().__init__()
        self.heads, self.features, d = heads, features, dim // heads
        self.qkv, self.out = nn.Linear(dim, dim * 3, bias=False), nn.Linear(dim, dim)
        self.register_buffer("projection", self.draw(features, d))

    @staticmethod
    @torch.no_grad()
    def draw(rows, columns):
        blocks = []
        for _ in range(rows // columns):
            q, _r = torch.linalg.qr(torch.randn(columns, columns), mode="reduced")
            blocks.append(q.t())
        if (rest := rows - len(blocks) * columns) > 0:
            q, _r = torch.linalg.qr(torch.randn(columns, columns))
            blocks.append(q.t()[:rest])
        return torch.diag(torch.randn(rows, columns).norm(dim=1)) @ torch.cat(blocks)

    def kernel(self, x, is_query):
        x = x * x.shape[-1] ** -0.25
        dash = einsum("...id,jd->...ij", x, self.projection)
        diag = (x**2).sum(-1, keepdim=True) / 2
        top = torch.amax(dash, dim=-1, keepdim=True) if is_query else torch.amax(dash, dim=(-1, -2), keepdim=True)
        return self.features**-0.5 * (torch.exp(dash - diag - top.detach()) + 1e-4)

    def forward(self, x):
        q, k, v = [heads_first(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1)]
        q, k = self.kernel(q, True), self.kernel(k, is_query=False)
        d_inv = 1.0 / einsum("...nd,...d->...n", q, k.sum(dim=-2).type_as(q))
        context = einsum("...nd,...ne->...de", k, v)
        return self.out(heads_last(einsum("...de,...nd,...n->...ne", context, q, d_inv)))


@sample(32, window=4, inputs=vectors(32), lengths=(8, 14))
class LocalAttention(nn.Module):
    """Blocks that look one block back, padded to whole windows."""

    def __init__(self, dim, window, pad_value=-1.0):
        super().__init__()
        self.window, self.pad_value = window, pad_value
        self.qkv = nn.Linear(dim, dim * 3)

    def look_back(self, x, fill):
        padded = F.pad(x, (0, 0, 0, 0, 1, 0), value=fill)
        return torch.cat([padded[:, :-1], padded[:, 1:]], dim=2)

    def pad_to_multiple(self, tensor, dim=-2):
        seqlen = tensor.shape[dim]
        m = seqlen / self.window
        if m.is_integer():
            return False, tensor
        remainder = math.ceil(m) * self.window - seqlen
        return True, F.pad(tensor, (*((0,) * (-1 - dim) * 2), 0, remainder))

    def forward(self, x):
        n = x.shape[1]
        padded, x = self.pad_to_multiple(x)
        w, total = self.window, x.shape[1]
        q, k, v = [t.reshape(x.shape[0], total // w, w, -1) for t in self.qkv(x).chunk(3, -1)]
        k, v = self.look_back(k, self.pad_value), self.look_back(v, self.pad_value)
        at = torch.arange(total).reshape(1, total // w, w, 1)
        at_k = self.look_back(at, -1).transpose(-1, -2)
        sim = einsum("bwid,bwjd->bwij", q, k) * q.shape[-1] ** -0.5
        sim = sim.masked_fill((at < at_k) | (at_k == -1), -torch.finfo(sim.dtype).max)
        out = (sim.softmax(-1) @ v).flatten(1, 2)
        return out[:, :n] if padded else out


class WindowSizes(NamedTuple):
    height: int
    width: int


@sample(16, WindowSizes(4, 4), heads=2, shift=2, inputs=images(16), lengths=(8, 12))
class ShiftedWindowAttention(nn.Module):
    """Swin: a roll, windows, a table of biases, and a mask of regions that is computed for each size."""

    def __init__(self, dim, window, heads, shift):
        super().__init__()
        self.window, self.heads, self.shift = window, heads, shift
        self.table = nn.Parameter(torch.randn((2 * window.height - 1) * (2 * window.width - 1), heads))
        coords = torch.stack(torch.meshgrid(torch.arange(window.height), torch.arange(window.width), indexing="ij"))
        coords = torch.flatten(coords, 1)
        relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
        relative[:, :, 0] += window.height - 1
        relative[:, :, 1] += window.width - 1
        relative[:, :, 0] *= 2 * window.width - 1
        self.register_buffer("index", relative.sum(-1))
        self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

    def partition(self, x):
        b, h, w, c = x.shape
        wh, ww = self.window
        return x.view(b, h // wh, wh, w // ww, ww, c).permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, wh * ww, c)

    def region_mask(self, h, w):
        img, count = torch.zeros((1, h, w, 1)), 0
        for rows in (slice(0, -self.window[0]), slice(-self.window[0], -self.shift), slice(-self.shift, None)):
            for columns in (slice(0, -self.window[1]), slice(-self.window[1], -self.shift), slice(-self.shift, None)):
                img[:, rows, columns, :] = count
                count += 1
        ids = self.partition(img).squeeze(-1)
        mask = ids.unsqueeze(1) - ids.unsqueeze(2)
        return mask.masked_fill(mask != 0, -100.0).masked_fill(mask == 0, 0.0)

    def forward(self, x):
        b, c, h, w = x.shape
        y = torch.roll(x.permute(0, 2, 3, 1), shifts=(-self.shift, -self.shift), dims=(1, 2))
        y = self.partition(y)
        q, k, v = self.qkv(y).reshape(y.shape[0], y.shape[1], 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        n = q.shape[2]
        bias = self.table[self.index.view(-1)].view(n, n, -1).permute(2, 0, 1).contiguous()
        attn = q * q.shape[-1] ** -0.5 @ k.transpose(-2, -1) + bias.unsqueeze(0)
        mask = self.region_mask(h, w)
        attn = attn.view(b, mask.shape[0], self.heads, n, n) + mask.unsqueeze(1).unsqueeze(0)
        y = (attn.view(-1, self.heads, n, n).softmax(-1) @ v).transpose(1, 2).reshape(-1, *self.window, c)
        y = y.view(b, h // self.window[0], w // self.window[1], *self.window, c)
        y = self.proj(y.permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c))
        return x + torch.roll(y, (self.shift, self.shift), (1, 2)).permute(0, 3, 1, 2)


@sample(16, 2, inputs=images(16), lengths=(5, 7))
class AxialAttention(nn.Module):
    """Over rows and columns, by permutations that are computed from the number of axes."""

    def __init__(self, dim, heads, num_dimensions=2):
        super().__init__()
        self.axes = [self.permutation(num_dimensions + 2, axis) for axis in range(2, num_dimensions + 2)]
        self.heads = heads
        self.attend = nn.ModuleList([nn.MultiheadAttention(dim, heads, batch_first=True) for _ in self.axes])

    @staticmethod
    def permutation(total, axis):
        last = [axis, 1]
        return [d for d in range(total) if d not in last] + last

    @staticmethod
    def inverse(permutation):
        return [permutation.index(i) for i in range(len(permutation))]

    def one_axis(self, x, permutation, attend):
        y = x.permute(*permutation).contiguous()
        shape = y.shape
        flat = y.reshape(-1, *shape[-2:])
        return attend(flat, flat, flat, need_weights=False)[0].reshape(shape).permute(*self.inverse(permutation))

    def forward(self, x):
        return sum(self.one_axis(x, p, f) for p, f in zip(self.axes, self.attend, strict=True)) + x


@sample(16, kernel=3, inputs=images(16), lengths=(6, 9))
class NeighbourhoodAttention(nn.Module):
    """Each pixel attends to its unfolded neighbours; those outside are masked."""

    def __init__(self, dim, kernel):
        super().__init__()
        self.kernel = kernel
        self.q, self.kv = nn.Conv2d(dim, dim, 1), nn.Conv2d(dim, 2 * dim, 1, bias=False)
        self.rel = nn.Parameter(torch.randn(dim, kernel, kernel) * 0.1)

    def forward(self, x):
        b, c, h, w = x.shape
        k2 = self.kernel**2
        unfold = lambda t: F.unfold(t, self.kernel, padding=self.kernel // 2).view(b, -1, k2, h * w)  # noqa: E731
        k, v = (unfold(t) for t in self.kv(x).chunk(2, dim=1))
        inside = unfold(torch.ones_like(x[:, :1])).bool()
        k = k + self.rel.view(1, c, k2, 1)
        sim = (self.q(x).flatten(2).unsqueeze(2) * k).sum(1, keepdim=True) / c**0.5
        attn = sim.masked_fill(~inside, float("-inf")).softmax(dim=2)
        return (attn * v).sum(2).view(b, c, h, w)


@sample(32, 4, landmarks=4, inputs=vectors(32), lengths=(8, 14))
class NystromAttention(nn.Module):
    """Landmarks by means of segments, and an iterated pseudo-inverse."""

    def __init__(self, dim, heads, landmarks, iterations=3):
        super().__init__()
        self.heads, self.landmarks, self.iterations = heads, landmarks, iterations
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.res_conv = nn.Conv2d(heads, heads, (5, 1), padding=(2, 0), groups=heads, bias=False)

    def pinv(self, x):
        abs_x = torch.abs(x)
        z = x.transpose(-1, -2) / (torch.max(abs_x.sum(dim=-1)) * torch.max(abs_x.sum(dim=-2)))
        eye = torch.eye(x.shape[-1], device=x.device).unsqueeze(0)
        for _ in range(self.iterations):
            xz = x @ z
            z = 0.25 * z @ (13 * eye - (xz @ (15 * eye - (xz @ (7 * eye - xz)))))
        return z

    def forward(self, x):
        n, m = x.shape[1], self.landmarks
        remainder = n % m
        if remainder > 0:
            x = F.pad(x, (0, 0, m - remainder, 0), value=0)
        q, k, v = [heads_first(t, self.heads) for t in self.qkv(x).chunk(3, dim=-1)]
        size = math.ceil(n / m)
        q_l, k_l = (t.unflatten(2, (m, size)).sum(dim=3) / size for t in (q, k))
        one, two, three = (einsum("...id,...jd->...ij", a, b).softmax(-1) for a, b in ((q, k_l), (q_l, k_l), (q_l, k)))
        out = (one @ self.pinv(two)) @ (three @ v) + self.res_conv(v)
        return heads_last(out)[:, -n:]


@sample(32, 4, longest=20, k=5, inputs=vectors(32))
class LinformerAttention(nn.Module):
    """Keys and values are projected along the sequence, by a part of a matrix for shorter ones."""

    def __init__(self, dim, heads, longest, k, share=False):
        super().__init__()
        self.heads, self.longest = heads, longest
        self.to_q, self.to_k = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.proj_k = nn.Parameter(torch.empty(longest, k).uniform_(-0.3, 0.3))
        if not share:
            self.to_v = nn.Linear(dim, dim, bias=False)
            self.proj_v = nn.Parameter(torch.empty(longest, k).uniform_(-0.3, 0.3))

    def forward(self, x):
        b, n, d = x.shape
        assert n <= self.longest, f"the sequence has {n} of at most {self.longest}"
        keys = self.to_k(x)
        values = self.to_v(x) if hasattr(self, "to_v") else keys
        projections = (self.proj_k, getattr(self, "proj_v", self.proj_k))
        if n < self.longest:
            projections = tuple(t[:n] for t in projections)
        keys, values = map(lambda args: torch.einsum("bnd,nk->bkd", *args), zip((keys, values), projections))  # noqa: B905
        q, k, v = (heads_first(t, self.heads) for t in (self.to_q(x), keys, values))
        return heads_last((einsum("bhnd,bhkd->bhnk", q, k) * q.shape[-1] ** -0.5).softmax(dim=-1) @ v)


@sample(16, buckets=4, hashes=2, inputs=vectors(16), lengths=(8, 16))
class HashedAttention(nn.Module):
    """Reformer: rotations decide buckets, sequences are sorted by them, chunks attend, and the order is undone."""

    def __init__(self, dim, buckets, hashes):
        super().__init__()
        self.buckets, self.hashes = buckets, hashes
        self.to_qk, self.to_v = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.register_buffer("rotations", torch.randn(dim, hashes, buckets // 2))

    @torch.no_grad()
    def hash_vectors(self, vecs):
        rotated = torch.einsum("btf,fhi->bhti", vecs, self.rotations)
        rotated = torch.cat([rotated, -rotated], dim=-1)
        return torch.argmax(rotated, dim=-1)

    def forward(self, x):
        b, n, d = x.shape
        qk, v = self.to_qk(x), self.to_v(x)
        outs, logits = [], []
        for r in range(self.hashes):
            bucket = self.hash_vectors(qk)[:, r]
            order = (bucket * n + torch.arange(n)).sort(dim=-1).indices
            undo = order.argsort(dim=-1)
            take = lambda t: t.gather(1, order.unsqueeze(-1).expand(-1, -1, t.shape[-1]))  # noqa: B023, E731
            sqk, sv = take(qk).view(b, self.buckets, -1, d), take(v).view(b, self.buckets, -1, d)
            sk = F.normalize(sqk, p=2, dim=-1)
            back = lambda t: torch.cat([t, torch.cat([t[:, -1:], t[:, :-1]], dim=1)], dim=2)  # noqa: E731
            dots = einsum("bhie,bhje->bhij", sqk, back(sk)) * d**-0.5
            at = order.view(b, self.buckets, -1)
            dots.masked_fill_(at[:, :, :, None] == back(at.unsqueeze(-1)).squeeze(-1)[:, :, None, :], -5e4)
            lse = torch.logsumexp(dots, dim=-1, keepdim=True)
            out = torch.exp(dots - lse) @ back(sv)
            outs.append(out.reshape(b, n, d).gather(1, undo.unsqueeze(-1).expand(-1, -1, d)))
            logits.append(lse.reshape(b, n, 1).gather(1, undo.unsqueeze(-1)))
        weights = torch.stack(logits).softmax(0)
        return (torch.stack(outs) * weights).sum(dim=0)


@sample(16, clusters=2, inputs=vectors(16), lengths=(8, 12))
class RoutedAttention(nn.Module):
    """Clusters with running means; each takes the tokens that are nearest and adds its results back."""

    def __init__(self, dim, clusters, decay=0.9):
        super().__init__()
        self.clusters, self.decay = clusters, decay
        self.qk, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.register_buffer("means", F.normalize(torch.randn(clusters, dim), dim=-1))
        self.register_buffer("num_updates", torch.zeros(1, dtype=torch.long))

    def update(self, x, chosen):
        hot = F.one_hot(chosen, self.clusters).type_as(x)
        sums = torch.einsum("bnk,bnd->kd", hot, x)
        fresh = F.normalize(sums, dim=-1)
        empty = (hot.sum((0, 1)) == 0).unsqueeze(-1)
        self.means.data.copy_(torch.where(empty, self.means, self.decay * self.means + (1 - self.decay) * fresh))
        self.num_updates += 1

    def forward(self, x):
        b, n, d = x.shape
        qk, v = F.normalize(self.qk(x), dim=-1), self.v(x)
        dists = torch.einsum("bnd,kd->bkn", qk, self.means.clone())
        if self.training:
            with torch.no_grad():
                self.update(qk.detach(), dists.argmax(dim=1))
        _, idx = dists.topk(k=n // self.clusters, dim=-1)
        idx, _ = torch.sort(idx, dim=-1)
        flat = idx.reshape(b, -1)
        pick = flat.unsqueeze(-1).expand(-1, -1, d)
        q, vv = qk.gather(1, pick).reshape(b, self.clusters, -1, d), v.gather(1, pick).reshape(b, self.clusters, -1, d)
        out = ((q @ q.mT) * d**0.5).softmax(-1) @ vv
        total = torch.zeros_like(x).scatter_add(1, pick, out.reshape(b, -1, d))
        count = torch.zeros_like(x).scatter_add(1, pick, torch.ones_like(pick, dtype=x.dtype))
        return total / count.clamp(min=1e-5)


@sample(16, longest=20, inputs=vectors(16))
class AttentionFreeMixer(nn.Module):
    """Weights of pairs of positions, shared by all channels."""

    def __init__(self, dim, longest):
        super().__init__()
        self.to_q, self.to_k, self.to_v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.wbias = nn.Parameter(torch.Tensor(longest, longest))
        nn.init.xavier_uniform_(self.wbias)

    def forward(self, x):
        B, T, _ = x.shape
        Q, K, V = self.to_q(x), self.to_k(x), self.to_v(x)
        w = self.wbias[:T, :T].unsqueeze(0).exp() * torch.ones(T, T).tril()
        weighted = torch.exp(w) @ torch.mul(torch.exp(K), V)
        return torch.mul(torch.sigmoid(Q), weighted / (torch.exp(w) @ torch.exp(K)))


@sample(16, longest=20, rank=3, inputs=vectors(16))
class SynthesizedAttention(nn.Module):
    """Scores without products of queries and keys: dense from tokens, and random of low rank."""

    def __init__(self, dim, longest, rank):
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, longest))
        self.left, self.right = nn.Parameter(torch.randn(longest, rank)), nn.Parameter(torch.randn(rank, longest))
        self.mix = nn.Parameter(torch.tensor([0.3, 0.7]))
        self.value = nn.Linear(dim, dim)

    def forward(self, x):
        n = x.size(1)
        scores: Tensor = self.mix[0] * self.dense(x)[..., :n] + self.mix[1] * (self.left @ self.right)[:n, :n]
        return scores.softmax(-1).matmul(self.value(x))


@sample(16, 32, inputs=vectors(16))
class FourierMixerBlock(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2))
        self.ff = nn.Sequential(nn.Linear(dim, hidden), nn.GELU("tanh"), nn.Dropout(0.1), nn.Linear(hidden, dim))

    def forward(self, x):
        mixed = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        x = self.norms[0](x + mixed)
        return self.norms[1](x + self.ff(x))


@sample(16, 32, longest=20, inputs=vectors(16))
class SpatialGatingBlock(nn.Module):
    """gMLP: half of the channels, mixed along the sequence, gates the other half."""

    def __init__(self, dim, hidden, longest, causal=True):
        super().__init__()
        self.norm, self.inner, self.causal = nn.LayerNorm(dim), nn.LayerNorm(hidden // 2), causal
        self.proj_in, self.proj_out = nn.Linear(dim, hidden), nn.Linear(hidden // 2, dim)
        self.proj = nn.Conv1d(longest, longest, 1)
        nn.init.constant_(self.proj.bias, 1.0)
        self.prob_survival = 0.8

    def forward(self, x):
        if self.training and torch.rand(1).item() > 2 * self.prob_survival:
            return x
        n = x.shape[1]
        res, gate = F.gelu(self.proj_in(self.norm(x))).chunk(2, dim=-1)
        weight, bias = self.proj.weight[:n, :n], self.proj.bias[:n]
        if self.causal:
            mask = torch.ones(weight.shape[:2], device=x.device).triu_(1).bool()
            weight = weight.masked_fill(mask[..., None], 0)
        return x + self.proj_out(F.conv1d(self.inner(gate), weight, bias) * res)


@sample(32, 4, inputs=vectors(32))
class CosformerAttention(nn.Module):
    """ReLU features reweighted by cosines of positions."""

    def __init__(self, dim, heads):
        super().__init__()
        self.h = heads
        self.qkv = nn.ModuleDict({name: nn.Linear(dim, dim) for name in "qkv"})

    def forward(self, x):
        n = x.shape[1]
        q, k, v = (heads_first(layer(x), self.h) for layer in self.qkv.values())
        index = (torch.pi / 2) * torch.arange(1, n + 1).reshape(1, 1, -1, 1) / max(n, 1)
        q, k = F.relu(q), F.relu(k)
        q, k = (torch.cat([t * torch.sin(index), t * torch.cos(index)], dim=-1) for t in (q, k))
        z = 1 / torch.clamp_min(einsum("bhld,bhd->bhl", q, k.sum(2)), 1e-6)
        return heads_last(einsum("bhld,bhdm,bhl->bhlm", q, k.mT @ v, z))


@sample(16, 4, inputs=images(16), lengths=(8, 12))
class MultiAxisAttention(nn.Module):
    """MaxViT: blocks, then a grid, by one function with two shapes."""

    def __init__(self, dim, size):
        super().__init__()
        self.size = size
        self.block, self.grid = [nn.MultiheadAttention(dim, 2, batch_first=True) for _ in range(2)]
        self.norm = nn.GroupNorm(1, dim)

    def mix(self, x, attend, is_grid):
        b, c, h, w = x.shape
        s = self.size
        shape = (s, h // s, s, w // s) if is_grid else (h // s, s, w // s, s)
        order = (0, 3, 5, 2, 4, 1) if is_grid else (0, 2, 4, 3, 5, 1)
        y = x.reshape(b, c, *shape).permute(order)
        flat = y.flatten(0, 2).flatten(1, 2)
        out, weights = attend(flat, flat, flat)
        back = sorted(range(6), key=order.__getitem__)
        return out.view(y.shape).permute(back).reshape(b, c, h, w), weights.mean()

    def forward(self, x):
        y, first = self.mix(self.norm(x), self.block, is_grid=False)
        z, second = self.mix(self.norm(x + y), self.grid, is_grid=True)
        return {"out": x + y + z, "sharpness": (first, second)}
