"""Attention in full: positions, masks, heads, normalisations of scores, caches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import sample, tokens, vectors


def exists(value):
    return value is not None


def default(value, other):
    return value if exists(value) else other() if callable(other) else other


def split_heads(x, heads):
    b, n, d = x.shape
    return x.view(b, n, heads, d // heads).transpose(1, 2)


def merge_heads(x):
    b, h, n, d = x.shape
    return x.transpose(1, 2).reshape(b, n, h * d)


@sample(32, 4, inputs=vectors(32))
class RotaryAttention(nn.Module):
    def __init__(self, dim, heads, base=10000.0):
        super().__init__()
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Linear(dim, dim)
        half = dim // heads // 2
        self.register_buffer("inv_freq", base ** (-torch.arange(half).float() / half), persistent=False)

    @staticmethod
    def rotate_half(x):
        a, b = x.chunk(2, dim=-1)
        return torch.cat((-b, a), dim=-1)

    def angles(self, n, device):
        t = torch.arange(n, device=device, dtype=self.inv_freq.dtype)
        freqs = torch.outer(t, self.inv_freq)
        return torch.cat((freqs, freqs), dim=-1)

    def forward(self, x):
        q, k, v = (split_heads(t, self.heads) for t in self.to_qkv(x).chunk(3, dim=-1))
        pos = self.angles(x.shape[1], x.device)
        q, k = map(lambda t: t * pos.cos() + self.rotate_half(t) * pos.sin(), (q, k))
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        sim = sim.masked_fill(mask, -torch.finfo(sim.dtype).max)
        return self.out(merge_heads(sim.softmax(dim=-1) @ v))


@sample(32, 6, inputs=vectors(36), lengths=(5, 9))
class AlibiAttention(nn.Module):
    """Slopes for a number of heads that is no power of two."""

    def __init__(self, dim, heads):
        super().__init__()
        dim = 6 * heads
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.register_buffer("slopes", torch.tensor(self.get_slopes(heads)).view(heads, 1, 1))
        self.register_buffer("bias", None, persistent=False)

    @staticmethod
    def get_slopes(heads):
        def power_of_two(n):
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]

        if math.log2(heads).is_integer():
            return power_of_two(heads)
        closest = 2 ** math.floor(math.log2(heads))
        return power_of_two(closest) + power_of_two(2 * closest)[0::2][: heads - closest]

    def get_bias(self, n, device):
        if exists(self.bias) and self.bias.shape[-1] >= n:
            return self.bias[..., :n, :n]
        at = torch.arange(n, device=device)
        bias = -(at[None, :] - at[:, None]).abs()[None] * self.slopes
        self.register_buffer("bias", bias, persistent=False)
        return bias

    def forward(self, x):
        q, k, v = [split_heads(t, self.heads) for t in self.qkv(x).split(x.shape[-1], dim=2)]
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        return merge_heads((scores + self.get_bias(x.shape[1], x.device)).softmax(-1) @ v)


@sample(32, 4, max_distance=4, inputs=vectors(32))
class ShawRelativeAttention(nn.Module):
    """Embeddings of clipped distances in keys and values."""

    def __init__(self, dim, heads, max_distance):
        super().__init__()
        self.heads, self.max_distance = heads, max_distance
        self.q, self.k, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.key_table = nn.Embedding(2 * max_distance + 1, dim // heads)
        self.value_table = nn.Embedding(2 * max_distance + 1, dim // heads)

    def distances(self, n):
        r = torch.arange(n)
        return (r[None] - r[:, None]).clamp(-self.max_distance, self.max_distance) + self.max_distance

    def forward(self, x):
        q, k, v = [split_heads(f(x), self.heads) for f in (self.q, self.k, self.v)]
        d = self.distances(x.size(1)).to(x.device)
        logits = torch.matmul(q, k.mT) + torch.einsum("bhid,ijd->bhij", q, self.key_table(d))
        attn = F.softmax(logits / math.sqrt(q.shape[-1]), dim=-1)
        return merge_heads(attn @ v + torch.einsum("bhij,ijd->bhid", attn, self.value_table(d)))


@sample(24, 3, buckets=8, inputs=vectors(24))
class BucketedBiasAttention(nn.Module):
    """T5's logarithmic buckets."""

    def __init__(self, dim, heads, buckets):
        super().__init__()
        self.heads, self.buckets = heads, buckets
        self.proj = nn.Linear(dim, 3 * dim, bias=False)
        self.bias = nn.Embedding(buckets, heads)

    def bucket(self, relative, max_distance=16):
        half = self.buckets // 2
        sign = (relative > 0).long() * half
        n = relative.abs()
        exact = half // 2
        large = exact + (torch.log(n.float() / exact) / math.log(max_distance / exact) * (half - exact)).long()
        large = torch.min(large, torch.full_like(large, half - 1))
        return sign + torch.where(n < exact, n, large)

    def forward(self, x):
        n = x.shape[1]
        ctx, mem = torch.arange(n)[:, None], torch.arange(n)[None, :]
        bias = self.bias(self.bucket(mem - ctx)).permute(2, 0, 1).unsqueeze(0)
        q, k, v = torch.stack([split_heads(t, self.heads) for t in torch.chunk(self.proj(x), 3, -1)]).unbind(0)
        return merge_heads(torch.softmax(q @ k.transpose(2, 3) + bias, -1) @ v)


@sample(32, 4, inputs=vectors(32))
class TransformerXLRelative(nn.Module):
    """Content and position terms with the shift of the second."""

    def __init__(self, dim, heads):
        super().__init__()
        self.h, self.d = heads, dim // heads
        self.qkv, self.r = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.u = nn.Parameter(torch.zeros(heads, self.d).normal_(0, 0.02))
        self.w = nn.Parameter(torch.zeros(heads, self.d).normal_(0, 0.02))

    @staticmethod
    def rel_shift(x):
        b, h, n, m = x.shape
        padded = torch.cat([torch.zeros(b, h, n, 1, device=x.device, dtype=x.dtype), x], dim=-1)
        return padded.view(b, h, m + 1, n)[:, :, 1:].view_as(x)

    def forward(self, x):
        b, n, dim = x.shape
        positions = torch.arange(n - 1, -1, -1.0)
        inv = 1 / (10000 ** (torch.arange(0.0, dim, 2.0) / dim))
        angle = torch.ger(positions, inv)
        r = self.r(torch.cat([angle.sin(), angle.cos()], dim=-1)).view(n, self.h, self.d)
        q, k, v = [t.reshape(b, n, self.h, self.d) for t in self.qkv(x).chunk(3, -1)]
        ac = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        bd = self.rel_shift(torch.einsum("bihd,jhd->bhij", q + self.w, r))
        scores = (ac + bd).mul_(self.d**-0.5)
        future = torch.triu(x.new_ones(n, n), diagonal=1).bool()
        prob = scores.masked_fill_(future[None, None], float("-inf")).softmax(dim=3)
        return torch.einsum("bhij,bjhd->bihd", prob, v).flatten(2)


@sample(32, 4, kv_heads=2, inputs=vectors(32))
class GroupedQueryAttention(nn.Module):
    def __init__(self, dim, heads, kv_heads, qk_norm=True):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.q_proj = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.kv_proj = nn.Linear(dim, 2 * kv_heads * self.head_dim, bias=False)
        self.q_norm = nn.RMSNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.RMSNorm(self.head_dim) if qk_norm else nn.Identity()
        self.o_proj = nn.Linear(dim, dim, bias=False)

    @property
    def groups(self):
        return self.heads // self.kv_heads

    def repeat_kv(self, x):
        b, h, n, d = x.shape
        if self.groups == 1:
            return x
        return x[:, :, None].expand(b, h, self.groups, n, d).reshape(b, h * self.groups, n, d)

    def forward(self, x):
        *lead, n, _ = x.shape
        q = self.q_norm(self.q_proj(x).unflatten(-1, (self.heads, -1))).transpose(-3, -2)
        k, v = self.kv_proj(x).unflatten(-1, (2, self.kv_heads, self.head_dim)).unbind(dim=-3)
        k, v = self.repeat_kv(self.k_norm(k).transpose(1, 2)), self.repeat_kv(v.transpose(1, 2))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(*lead, n, -1))


@sample(32, 4, rank=8, rope_dim=4, inputs=vectors(32))
class LatentKeyValueAttention(nn.Module):
    """Keys and values from a low-rank latent, with one rotated key that all heads share."""

    def __init__(self, dim, heads, rank, rope_dim):
        super().__init__()
        self.heads, self.d, self.rope_dim = heads, dim // heads, rope_dim
        self.q = nn.Linear(dim, heads * (self.d + rope_dim))
        self.down = nn.Linear(dim, rank + rope_dim)
        self.norm = nn.LayerNorm(rank)
        self.up = nn.Linear(rank, heads * 2 * self.d)
        self.o = nn.Linear(heads * self.d, dim)

    def rope(self, x):
        n, d = x.shape[-2:]
        theta = torch.arange(n)[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
        turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * torch.polar(
            torch.ones_like(theta), theta
        )
        return torch.view_as_real(turned).flatten(-2).type_as(x)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, self.heads, -1).transpose(1, 2)
        q_plain, q_rope = q.split([self.d, self.rope_dim], dim=-1)
        latent, k_rope = self.down(x).split([self.down.out_features - self.rope_dim, self.rope_dim], dim=-1)
        k, v = self.up(self.norm(latent)).view(b, n, self.heads, 2 * self.d).transpose(1, 2).chunk(2, -1)
        k_rope = self.rope(k_rope[:, None]).expand(-1, self.heads, -1, -1)
        q, k = torch.cat([q_plain, self.rope(q_rope)], -1), torch.cat([k, k_rope], -1)
        attn = (q @ k.mT * (self.d + self.rope_dim) ** -0.5 + torch.full((n, n), -torch.inf).triu(1)).softmax(-1)
        return self.o(merge_heads(attn @ v)), latent


@sample(32, 4, inputs=vectors(32))
class CosineAttention(nn.Module):
    """Swin v2's normalised scores with a clamped learned temperature."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones((heads, 1, 1))))
        self.cpb = nn.Sequential(nn.Linear(1, 16), nn.ReLU(inplace=True), nn.Linear(16, heads, bias=False))

    def forward(self, x):
        n = x.shape[1]
        bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias, requires_grad=False), self.v_bias))
        qkv = F.linear(input=x, weight=self.qkv.weight, bias=bias)
        q, k, v = qkv.reshape(x.shape[0], n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attn = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        attn = attn * torch.clamp(self.logit_scale, max=math.log(1.0 / 0.01)).exp()
        offsets = (torch.arange(n)[:, None] - torch.arange(n)[None]).float() * 8 / n
        offsets = torch.sign(offsets) * torch.log2(offsets.abs() + 1.0) / math.log2(8)
        attn = attn + 16 * torch.sigmoid(self.cpb(offsets.unsqueeze(-1))).permute(2, 0, 1)
        return (attn.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)


@sample(32, 4, inputs=vectors(32))
class TalkingHeads(nn.Module):
    def __init__(self, dim, heads, dropout=0.1):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Conv1d(dim, 3 * dim, 1)
        self.before = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.after = nn.Parameter(torch.eye(heads) + 0.1 * torch.randn(heads, heads))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = self.qkv(x.transpose(1, 2)).unflatten(1, (3, self.heads, -1)).unbind(1)
        dots = torch.einsum("b h d i, b h d j -> b h i j", q, k) * q.shape[2] ** -0.5
        dots = torch.einsum("b h i j, h g -> b g i j", dots, self.before)
        attn = self.dropout(dots.softmax(dim=-1))
        attn = torch.einsum("b h i j, h g -> b g i j", attn, self.after)
        return torch.einsum("bhij,bhdj->bhdi", attn, v).flatten(1, 2).mT


@sample(32, 4, inputs=vectors(32))
class DifferentialAttention(nn.Module):
    """The difference of two softmaxes, normalised by head."""

    def __init__(self, dim, heads, depth=1):
        super().__init__()
        self.heads, self.d = heads, dim // heads // 2
        self.q, self.k, self.v = (nn.Linear(dim, dim, bias=False) for _ in range(3))
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        for name in ("q1", "k1", "q2", "k2"):
            setattr(self, f"lambda_{name}", nn.Parameter(torch.randn(self.d) * 0.1))
        self.norm = nn.RMSNorm(2 * self.d, eps=1e-5)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 2 * self.heads, self.d).transpose(1, 2) * self.d**-0.5
        k = self.k(x).view(b, n, 2 * self.heads, self.d).transpose(1, 2)
        v = self.v(x).view(b, n, self.heads, 2 * self.d).transpose(1, 2)
        mask = torch.triu(torch.zeros(n, n).float().fill_(float("-inf")).type_as(x), 1)
        attn = torch.nan_to_num(q @ k.transpose(-1, -2)) + mask
        attn = F.softmax(attn, dim=-1, dtype=torch.float32).type_as(attn)
        first = torch.exp(torch.sum(self.lambda_q1 * self.lambda_k1, dim=-1).float())
        second = torch.exp(torch.sum(self.lambda_q2 * self.lambda_k2, dim=-1).float())
        attn = attn.view(b, self.heads, 2, n, n)
        attn = attn[:, :, 0] - (first - second + self.lambda_init) * attn[:, :, 1]
        return merge_heads(self.norm(attn @ v) * (1 - self.lambda_init))


@sample(32, 4, memory=3, inputs=vectors(32))
class PersistentMemoryAttention(nn.Module):
    """Learned keys and values beside those of the sequence."""

    def __init__(self, dim, heads, memory):
        super().__init__()
        self.heads, self.memory = heads, memory
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.mem_kv = nn.Parameter(torch.randn(2, heads, memory, dim // heads))

    def forward(self, x, mask=None):
        q = split_heads(self.q(x), self.heads)
        k, v = map(partial(split_heads, heads=self.heads), self.kv(x).chunk(2, dim=-1))
        mk, mv = self.mem_kv[:, None].expand(-1, x.shape[0], -1, -1, -1)
        k, v = (torch.cat(pair, dim=2) for pair in ((mk, k), (mv, v)))
        mask = default(mask, lambda: torch.ones(x.shape[:2], dtype=torch.bool))
        mask = F.pad(mask, (self.memory, 0), value=True)
        sim = (q @ k.mT).masked_fill(~mask[:, None, None, :], torch.finfo(q.dtype).min)
        return merge_heads(F.dropout(sim.softmax(-1), 0.1, self.training) @ v)


@sample(
    24, context_dim=16, inputs=lambda rows, length: {
        "x": torch.randn(rows, length, 24), "context": torch.randn(rows, 7, 16),
        "context_mask": torch.arange(7)[None] < torch.randint(2, 7, (rows, 1)),
    },
)  # fmt: skip
class GatedCrossAttention(nn.Module):
    """Flamingo's gates, which open from nothing."""

    def __init__(self, dim, context_dim, heads=3):
        super().__init__()
        self.norm, self.heads = nn.LayerNorm(dim), heads
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(context_dim, 2 * dim, bias=False)
        self.attn_gate = nn.Parameter(torch.tensor([0.5]))
        self.ff_gate = nn.Parameter(torch.tensor([0.3]))
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def attend(self, x, context, context_mask):
        q, (k, v) = self.to_q(self.norm(x)), self.to_kv(context).chunk(2, dim=-1)
        q, k, v = [split_heads(t, self.heads) for t in (q, k, v)]
        sim = q @ k.mT * q.shape[-1] ** -0.5
        if exists(context_mask):
            sim = sim.masked_fill(context_mask.logical_not()[:, None, None], -1e9)
        sim = sim - sim.amax(dim=-1, keepdim=True).detach()
        return merge_heads(sim.softmax(dim=-1) @ v)

    def forward(self, x, context, context_mask=None):
        assert x.shape[0] == context.shape[0], f"batch {x.shape[0]} against {context.shape[0]}"
        x = x + self.attend(x, context, context_mask) * self.attn_gate.tanh()
        return x + self.ff(x) * self.ff_gate.tanh()


@sample(32, 4, inputs=vectors(32))
class SoftcapSinkAttention(nn.Module):
    """Capped scores, and a sink in the denominator."""

    def __init__(self, dim, heads, cap=5.0, window=4):
        super().__init__()
        self.heads, self.cap, self.window = heads, cap, window
        self.qkv = nn.Linear(dim, dim * 3)
        self.sinks = nn.Parameter(torch.randn(heads))

    def forward(self, x):
        b, n, _ = x.size()
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        sim = torch.tanh(q @ k.mT / self.cap) * self.cap
        i, j = torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij")
        allowed = (j <= i) & (i - j < self.window)
        sim = torch.where(allowed, sim, sim.new_tensor(float("-inf")))
        sink = self.sinks.view(1, -1, 1, 1).expand(b, -1, n, 1)
        prob = torch.cat([sim, sink], dim=-1).softmax(-1)[..., :-1]
        return merge_heads(prob @ v)


@lru_cache(maxsize=8)
def causal_mask(n):
    return torch.tril(torch.ones(n, n, dtype=torch.bool))


@dataclass
class GptConfig:
    vocab_size: int = 50
    block_size: int = 20
    n_layer: int = 2
    n_head: int = 2
    n_embd: int = 16
    dropout: float = 0.1
    bias: bool = False


class CausalBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1, self.ln_2 = (nn.LayerNorm(config.n_embd, bias=config.bias) for _ in range(2))
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.mlp = nn.ModuleDict({
            "c_fc": nn.Linear(config.n_embd, 4 * config.n_embd), "act": nn.GELU(),
            "c_proj": nn.Linear(4 * config.n_embd, config.n_embd), "dropout": nn.Dropout(config.dropout),
        })  # fmt: skip
        self.config = config

    def attention(self, x):
        b, t, c = x.size()
        q, k, v = self.c_attn(x).split(self.config.n_embd, dim=2)
        q, k, v = [s.view(b, t, self.config.n_head, c // self.config.n_head).transpose(1, 2) for s in (q, k, v)]
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(causal_mask(t)[None, None] == 0, float("-inf"))
        y = F.dropout(F.softmax(att, dim=-1), self.config.dropout, self.training) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        m = self.mlp
        return x + m.dropout(m.c_proj(m.act(m.c_fc(self.ln_2(x)))))


@sample(GptConfig(), inputs=tokens(50))
class TinyGpt(nn.Module):
    """Tied weights, a loss when there are targets, a method to count parameters."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(config.vocab_size, config.n_embd), wpe=nn.Embedding(config.block_size, config.n_embd),
            h=nn.ModuleList([CausalBlock(config) for _ in range(config.n_layer)]), ln_f=nn.LayerNorm(config.n_embd),
        ))  # fmt: skip
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight

    def get_num_params(self, non_embedding=True):
        total = sum(p.numel() for p in self.parameters())
        return total - self.transformer.wpe.weight.numel() if non_embedding else total

    def forward(self, ids):
        b, t = ids.size()
        assert t <= self.config.block_size, f"sequence of {t} for a block of {self.config.block_size}"
        pos = torch.arange(0, t, dtype=torch.long, device=ids.device)
        x = self.transformer.wte(ids) + self.transformer.wpe(pos)
        for block in self.transformer.h:
            x = block(x)
        logits = self.lm_head(self.transformer.ln_f(x))
        loss = F.cross_entropy(logits[:, :-1].reshape(-1, logits.size(-1)), ids[:, 1:].reshape(-1), ignore_index=-1)
        return logits, loss / self.get_num_params()


@sample(32, 4, inputs=vectors(32))
class StepwiseCache(nn.Module):
    """Decoding in a loop over positions with lists of keys and values."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def step(self, x, cache):
        q, k, v = [split_heads(t, self.heads) for t in self.qkv(x).chunk(3, -1)]
        if "k" in cache:
            k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
        cache.update(k=k, v=v)
        return merge_heads(F.softmax(q @ k.mT, -1) @ v)

    def forward(self, x):
        cache, outs = {}, []
        for t in range(x.shape[1]):
            outs.append(self.step(x[:, t : t + 1], cache))
        return torch.cat(outs, 1), cache


@sample(32, 4, length=20, inputs=vectors(32))
class PreallocatedCache(nn.Module):
    """A cache in buffers into which slices are written, with the position kept as a Python number."""

    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.register_buffer("keys", torch.zeros(5, heads, length, dim // heads))
        self.register_buffer("values", torch.zeros(5, heads, length, dim // heads))
        self.position = 0

    def reset(self):
        self.position = 0
        self.keys.zero_()
        self.values.zero_()

    def forward(self, x):
        self.reset()
        b, n, _ = x.shape
        outs = []
        for part in torch.split(x, (n + 1) // 2, dim=1):
            q, k, v = [split_heads(t, self.heads) for t in self.qkv(part).chunk(3, -1)]
            end = self.position + part.shape[1]
            with torch.no_grad():
                self.keys[:b, :, self.position : end] = k
                self.values[:b, :, self.position : end] = v
            sim = q @ self.keys[:b, :, :end].mT.clone()
            outs.append(merge_heads(sim.softmax(-1) @ self.values[:b, :, :end].clone()))
            self.position = end
        return torch.cat(outs, dim=1)
