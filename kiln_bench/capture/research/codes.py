"""Discrete codes: vector quantisers, relaxed choices, quantisation-aware layers, pruning masks."""

from __future__ import annotations

import math
from collections import namedtuple
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune

from kiln_bench.capture.research.sample import images, sample, vectors, waves


def ste(hard, soft):
    """The value of `hard` with the gradient of `soft`."""
    return soft + (hard - soft).detach()


@sample(12, 8, inputs=images(8), lengths=(4, 6))
class VectorQuantizer(nn.Module):
    """Nearest codes, commitment, a straight-through gradient, and the perplexity of what was used."""

    def __init__(self, n_codes, dim, beta=0.25):
        super().__init__()
        self.n_e, self.e_dim, self.beta = n_codes, dim, beta
        self.embedding = nn.Embedding(n_codes, dim)
        self.embedding.weight.data.uniform_(-1.0 / n_codes, 1.0 / n_codes)

    def forward(self, x):
        z = x.permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, self.e_dim)
        w = self.embedding.weight
        d = torch.sum(flat**2, dim=1, keepdim=True) + torch.sum(w**2, dim=1) - 2 * torch.matmul(flat, w.t())
        nearest = torch.argmin(d, dim=1).unsqueeze(1)
        hot = torch.zeros(nearest.shape[0], self.n_e, device=x.device)
        hot.scatter_(1, nearest, 1)
        z_q = torch.matmul(hot, w).view(z.shape)
        loss = torch.mean((z_q.detach() - z) ** 2) + self.beta * torch.mean((z_q - z.detach()) ** 2)
        z_q = z + (z_q - z).detach()
        e_mean = torch.mean(hot, dim=0)
        perplexity = torch.exp(-torch.sum(e_mean * torch.log(e_mean + 1e-10)))
        return loss, z_q.permute(0, 3, 1, 2).contiguous(), (perplexity, hot, nearest)


@sample(10, 8, inputs=vectors(8))
class MovingAverageQuantizer(nn.Module):
    """Codes follow the mean of what chose them; dead ones are replaced by inputs."""

    def __init__(self, n_codes, dim, decay=0.8, eps=1e-5, threshold=0.3):
        super().__init__()
        self.decay, self.eps, self.threshold = decay, eps, threshold
        self.pre = nn.Linear(dim, dim)
        embed = torch.randn(n_codes, dim)
        self.register_buffer("initted", torch.Tensor([False]))
        self.register_buffer("cluster_size", torch.ones(n_codes))
        self.register_buffer("embed", embed)
        self.register_buffer("embed_avg", embed.clone())

    @staticmethod
    def ema_inplace(moving_avg, new, decay):
        moving_avg.data.mul_(decay).add_(new, alpha=1 - decay)

    def replace(self, samples, mask):
        picked = samples[torch.randint(0, samples.shape[0], (self.embed.shape[0],))]
        self.embed.data.copy_(torch.where(mask[..., None], picked, self.embed))

    def forward(self, x):
        h = self.pre(x)
        flat = h.reshape(-1, h.shape[-1])
        dist = -torch.cdist(flat.detach(), self.embed.clone())
        ind = dist.max(dim=-1).indices
        hot = F.one_hot(ind, self.embed.shape[0]).type(x.dtype)
        quantize = F.embedding(ind.view(x.shape[:-1]), self.embed.clone())
        if self.training:
            self.ema_inplace(self.cluster_size, hot.sum(0), self.decay)
            self.ema_inplace(self.embed_avg, flat.detach().t().matmul(hot).t(), self.decay)
            n = self.cluster_size.sum()
            smoothed = (self.cluster_size + self.eps) / (n + self.embed.shape[0] * self.eps) * n
            self.embed.data.copy_(self.embed_avg / smoothed.unsqueeze(1))
            self.replace(flat.detach(), self.cluster_size < self.threshold)
            self.initted.data.copy_(torch.Tensor([True]))
        loss = F.mse_loss(quantize.detach(), h) * (1.0 if self.training else 0.0)
        return ste(quantize, h), ind.view(x.shape[:-1]), loss


@sample(3, 6, 8, inputs=waves(8))
class ResidualQuantizer(nn.Module):
    """A stack of codebooks, each for what is left; later ones are dropped by chance in training."""

    def __init__(self, layers, n_codes, dim, code_dim=4):
        super().__init__()
        self.in_proj = nn.ModuleList(nn.Conv1d(dim, code_dim, 1) for _ in range(layers))
        self.out_proj = nn.ModuleList(nn.Conv1d(code_dim, dim, 1) for _ in range(layers))
        self.codebooks = nn.ModuleList(nn.Embedding(n_codes, code_dim) for _ in range(layers))
        self.dropout = 0.5

    def decode_latents(self, latents, codebook):
        encodings = latents.transpose(1, 2).reshape(-1, latents.shape[1])
        normed, codes = F.normalize(encodings), F.normalize(codebook.weight)
        dist = normed.pow(2).sum(1, keepdim=True) - 2 * normed @ codes.t() + codes.pow(2).sum(1, keepdim=True).t()
        indices = (-dist).max(1)[1].view(latents.size(0), -1)
        return codebook(indices).transpose(1, 2), indices

    def forward(self, x):
        z_q, residual = 0, x
        losses, codes = [], []
        count = torch.full((x.shape[0],), len(self.codebooks) + 1.0)
        if self.training:
            dropout = torch.randint(1, len(self.codebooks) + 1, (x.shape[0],)).float()
            n_dropout = int(x.shape[0] * self.dropout)
            count[:n_dropout] = dropout[:n_dropout]
        for i, codebook in enumerate(self.codebooks):
            z_e = self.in_proj[i](residual)
            z, indices = self.decode_latents(z_e, codebook)
            commit = F.mse_loss(z_e, z.detach(), reduction="none").mean([1, 2])
            z = self.out_proj[i](z_e + (z - z_e).detach())
            mask = torch.full((x.shape[0],), fill_value=i) < count
            z_q = z_q + z * mask[:, None, None]
            residual = residual - z
            losses.append((commit * mask).mean())
            codes.append(indices)
        return z_q, torch.stack(codes, dim=1), sum(losses)


@sample((5, 4, 3), 8, inputs=vectors(8))
class FiniteScalarQuantizer(nn.Module):
    """Rounded levels of a few bounded numbers, and their mixed-radix index."""

    def __init__(self, levels, dim):
        super().__init__()
        _levels = torch.tensor(levels, dtype=torch.int32)
        self.register_buffer("_levels", _levels, persistent=False)
        basis = torch.cumprod(torch.tensor([1, *levels[:-1]]), dim=0, dtype=torch.int32)
        self.register_buffer("_basis", basis, persistent=False)
        self.project_in, self.project_out = nn.Linear(dim, len(levels)), nn.Linear(len(levels), dim)
        self.codebook_size = math.prod(levels)

    def bound(self, z, eps=1e-3):
        half_l = (self._levels - 1) * (1 + eps) / 2
        offset = torch.where(self._levels % 2 == 0, 0.5, 0.0)
        shift = (offset / half_l).atanh()
        return (z + shift).tanh() * half_l - offset

    def quantize(self, z):
        bounded = self.bound(z)
        rounded = ste(bounded.round(), bounded)
        return rounded / (self._levels // 2)

    def codes_to_indices(self, codes):
        half = self._levels // 2
        return ((codes * half + half) * self._basis).sum(dim=-1).round().to(torch.int32)

    def indices_to_codes(self, indices):
        non_centered = (indices[..., None] // self._basis) % self._levels
        return (non_centered - self._levels // 2) / (self._levels // 2)

    def forward(self, x):
        codes = self.quantize(self.project_in(x))
        indices = self.codes_to_indices(codes)
        again = self.indices_to_codes(indices)
        return self.project_out(codes), indices, (again - codes.detach()).abs().max()


LookupReturn = namedtuple("LookupReturn", ["quantized", "indices", "entropy_aux_loss"])


@sample(8, bits=4, inputs=vectors(8))
class LookupFreeQuantizer(nn.Module):
    """Signs as codes, with an entropy of soft assignments to all codes."""

    def __init__(self, dim, bits, temperature=0.5):
        super().__init__()
        self.inner, self.outer, self.temperature = nn.Linear(dim, bits), nn.Linear(bits, dim), temperature
        self.register_buffer("mask", 2 ** torch.arange(bits - 1, -1, -1))
        all_codes = torch.arange(2**bits)
        bits_of = ((all_codes[..., None].int() & self.mask) != 0).float()
        self.register_buffer("codebook", bits_of * 2 - 1, persistent=False)

    def entropy(self, p):
        return (-p * p.clamp(min=1e-5).log()).sum(dim=-1)

    def forward(self, x):
        h = self.inner(x)
        hard = torch.where(h > 0, torch.ones_like(h), -torch.ones_like(h))
        indices = ((h > 0).int() * self.mask.int()).sum(-1)
        prob = (2 * torch.einsum("...d,cd->...c", h, self.codebook) / self.temperature).softmax(dim=-1)
        per_sample = self.entropy(prob).mean()
        avg = prob.flatten(0, -2).mean(0)
        return LookupReturn(self.outer(ste(hard, h)), indices, per_sample - self.entropy(avg))


@sample(8, groups=2, inputs=vectors(8))
class GumbelQuantizer(nn.Module):
    """wav2vec's groups of codes by a Gumbel softmax whose temperature falls."""

    def __init__(self, dim, groups, n_codes=6, temp=(2.0, 0.5, 0.9)):
        super().__init__()
        self.groups, self.num_vars = groups, n_codes
        self.vars = nn.Parameter(torch.FloatTensor(1, groups * n_codes, dim // groups))
        nn.init.uniform_(self.vars)
        self.weight_proj = nn.Linear(dim, groups * n_codes)
        self.max_temp, self.min_temp, self.temp_decay = temp
        self.curr_temp = self.max_temp

    def set_num_updates(self, num_updates):
        self.curr_temp = max(self.max_temp * self.temp_decay**num_updates, self.min_temp)

    def forward(self, x):
        result = {"num_vars": self.num_vars * self.groups}
        bsz, tsz, fsz = x.shape
        x = self.weight_proj(x.reshape(-1, fsz)).view(bsz * tsz * self.groups, -1)
        _, k = x.max(-1)
        hard_x = x.new_zeros(*x.shape).scatter_(-1, k.view(-1, 1), 1.0).view(bsz * tsz, self.groups, -1)
        hard_probs = torch.mean(hard_x.float(), dim=0)
        result["code_perplexity"] = torch.exp(-torch.sum(hard_probs * torch.log(hard_probs + 1e-7), dim=-1)).sum()
        avg_probs = torch.softmax(x.view(bsz * tsz, self.groups, -1).float(), dim=-1).mean(dim=0)
        result["prob_perplexity"] = torch.exp(-torch.sum(avg_probs * torch.log(avg_probs + 1e-7), dim=-1)).sum()
        result["temp"] = self.curr_temp
        if self.training:
            x = F.gumbel_softmax(x.float(), tau=self.curr_temp, hard=True).type_as(x)
        else:
            x = hard_x
        x = x.view(bsz * tsz, -1).unsqueeze(-1) * self.vars
        result["x"] = x.view(bsz * tsz, self.groups, self.num_vars, -1).sum(-2).view(bsz, tsz, -1)
        return result


class RoundClamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        ctx.save_for_backward(x)
        ctx.low, ctx.high = low, high
        return x.round().clamp(low, high)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ((x >= ctx.low) & (x <= ctx.high)).type_as(grad), None, None


class LearnedStep(nn.Module):
    """LSQ: a learned step whose gradient is scaled by the number of elements."""

    def __init__(self, bits, signed):
        super().__init__()
        self.low, self.high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        self.step = nn.Parameter(torch.tensor(0.1))

    @staticmethod
    def grad_scale(x, scale):
        y = x * scale
        return (x - y).detach() + y

    def forward(self, x):
        s = self.grad_scale(self.step, 1.0 / math.sqrt(x.numel() * self.high))
        return RoundClamp.apply(x / s, self.low, self.high) * s


@sample(8, 16, inputs=vectors(8))
class LearnedStepMlp(nn.Module):
    def __init__(self, dim, hidden, bits=4):
        super().__init__()
        self.first, self.second = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.quant = nn.ModuleDict({k: LearnedStep(bits, signed=k != "act") for k in ("w1", "w2", "act")})

    def forward(self, x):
        h = F.relu(F.linear(x, self.quant["w1"](self.first.weight), self.first.bias))
        return F.linear(self.quant["act"](h), self.quant["w2"](self.second.weight), self.second.bias)


@sample(8, inputs=vectors(8))
class ObservedFakeQuant(nn.Module):
    """Ranges by running extremes in training; `fake_quantize` with their scale and zero point."""

    def __init__(self, dim, momentum=0.1):
        super().__init__()
        self.linear, self.momentum = nn.Linear(dim, dim), momentum
        self.register_buffer("min_val", torch.tensor(float("inf")))
        self.register_buffer("max_val", torch.tensor(float("-inf")))
        self.register_buffer("enabled", torch.tensor([1], dtype=torch.uint8))

    def observe(self, x):
        low, high = torch.aminmax(x.detach())
        first = torch.isinf(self.min_val)
        low = torch.where(first, low, self.min_val + self.momentum * (low - self.min_val))
        high = torch.where(first, high, self.max_val + self.momentum * (high - self.max_val))
        self.min_val.copy_(low)
        self.max_val.copy_(high)

    def qparams(self):
        low, high = self.min_val.clamp(max=0.0), self.max_val.clamp(min=0.0)
        span = torch.where(torch.isfinite(high - low), high - low, torch.ones_like(low))
        scale = (span / 255).clamp(min=1e-8)
        zero = (-128 - torch.where(torch.isfinite(low), low, torch.zeros_like(low)) / scale).round()
        return scale, zero.clamp(-128, 127).to(torch.int32)

    def forward(self, x):
        h = self.linear(x)
        if self.training:
            self.observe(h)
        scale, zero = self.qparams()
        return torch.fake_quantize_per_tensor_affine(h, scale, zero, -128, 127)


class SignWithHardtanh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input):
        ctx.save_for_backward(input)
        return torch.sign(input)

    @staticmethod
    def backward(ctx, grad_output):
        (input,) = ctx.saved_tensors
        grad_input = grad_output.clone()
        grad_input[input.abs() > 1] = 0
        return grad_input


@sample(4, 8, inputs=images(4), lengths=(6, 8))
class BinaryConvBlock(nn.Module):
    """XNOR-Net: signs of weights with scales by channel, signs of activations, then batch norm."""

    def __init__(self, cin, cout):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout)
        self.shift = nn.Parameter(torch.zeros(1, cin, 1, 1))

    def forward(self, x):
        w = self.conv.weight
        w = w - w.mean(dim=(1, 2, 3), keepdim=True)
        alpha = w.abs().mean(dim=[1, 2, 3], keepdim=True)
        binary = SignWithHardtanh.apply(w) * alpha
        y = self.conv._conv_forward(SignWithHardtanh.apply(x + self.shift), binary, None)
        return F.prelu(self.bn(y), torch.tensor(0.25))


@sample(8, 8, inputs=vectors(8))
class TernaryLinear(nn.Module):
    """Weights of -1, 0 and 1 by a threshold; activations in eight bits by row, as in BitNet."""

    def __init__(self, cin, cout):
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.randn(cout, cin)), nn.RMSNorm(cin)

    @staticmethod
    def activation_quant(x):
        scale = 127.0 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
        return (x * scale).round().clamp_(-128, 127) / scale

    def weight_quant(self):
        scale = self.weight.abs().mean().clamp(min=1e-5)
        return (self.weight / scale).round().clamp(-1, 1) * scale

    def forward(self, x):
        x = self.norm(x)
        x = x + (self.activation_quant(x) - x).detach()
        return F.linear(x, ste(self.weight_quant(), self.weight))


@sample(8, inputs=vectors(8))
class BlockwiseInt4Linear(nn.Module):
    """Weights packed in bytes, two to each, unpacked by shifts; trained are only scales."""

    def __init__(self, dim, group=4):
        super().__init__()
        w = torch.randint(0, 16, (dim, dim), dtype=torch.uint8)
        self.group = group
        self.register_buffer("packed", w[:, ::2] | (w[:, 1::2] << 4))
        self.scale = nn.Parameter(torch.rand(dim, dim // group) * 0.1)
        self.register_buffer("zero", torch.full((dim, dim // group), 8, dtype=torch.uint8))

    def dequantize(self):
        low, high = self.packed & 0xF, self.packed >> 4
        w = torch.stack((low, high), dim=-1).view(self.packed.shape[0], -1, self.group)
        return ((w.to(torch.int8) - self.zero[..., None].to(torch.int8)).float() * self.scale[..., None]).flatten(1)

    def forward(self, x):
        return x @ self.dequantize().t()


class Magnitude(torch.autograd.Function):
    """A mask of the largest; the scores get the gradient of the mask."""

    @staticmethod
    def forward(ctx, scores, k):
        out = scores.clone()
        _, idx = scores.flatten().sort()
        j = int((1 - k) * scores.numel())
        flat_out = out.flatten()
        flat_out[idx[:j]] = 0
        flat_out[idx[j:]] = 1
        return flat_out.view_as(out)

    @staticmethod
    def backward(ctx, g):
        return g, None


@sample(8, 8, inputs=vectors(8))
class SupermaskLinear(nn.Linear):
    """Weights that never change and scores that choose among them."""

    def __init__(self, cin, cout, keep=0.4):
        super().__init__(cin, cout)
        self.keep = keep
        self.scores = nn.Parameter(torch.Tensor(self.weight.size()))
        nn.init.kaiming_uniform_(self.scores, a=math.sqrt(5))
        self.weight.requires_grad = False

    @property
    def clamped_scores(self):
        return self.scores.abs()

    def forward(self, x):
        return F.linear(x, self.weight * Magnitude.apply(self.clamped_scores, self.keep), self.bias)


@sample(8, inputs=vectors(8))
class PrunedMlp(nn.Module):
    """torch's pruning: masks as buffers and a hook that multiplies before each call."""

    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 2 * dim), nn.Hardswish(), nn.Linear(2 * dim, dim))
        with torch.no_grad():  # the masked weight can be copied
            prune.l1_unstructured(self.net[0], name="weight", amount=0.3)
            prune.ln_structured(self.net[2], name="weight", amount=0.25, n=2, dim=0)

    def sparsity(self):
        return {name: 1 - buffer.mean() for name, buffer in self.named_buffers() if name.endswith("mask")}

    def forward(self, x):
        return self.net(x), self.sparsity()


@sample(8, inputs=vectors(8))
class HardConcreteGates(nn.Module):
    """L0 regularisation by stretched, clamped gates, and the expected number of open ones."""

    def __init__(self, dim, beta=0.66, gamma=-0.1, zeta=1.1):
        super().__init__()
        self.log_alpha = nn.Parameter(torch.randn(dim))
        self.beta, self.gamma, self.zeta = beta, gamma, zeta
        self.fc = nn.Linear(dim, dim)

    def gates(self):
        if self.training:
            u = torch.empty_like(self.log_alpha).uniform_(1e-6, 1 - 1e-6)
            s = torch.sigmoid((u.log() - (1 - u).log() + self.log_alpha) / self.beta)
        else:
            s = torch.sigmoid(self.log_alpha)
        return (s * (self.zeta - self.gamma) + self.gamma).clamp(0, 1)

    def forward(self, x):
        penalty = torch.sigmoid(self.log_alpha - self.beta * math.log(-self.gamma / self.zeta)).sum()
        return self.fc(x * self.gates()), penalty


class TwoOfFour(nn.Module):
    def forward(self, w):
        groups = w.reshape(-1, 4)
        index = groups.abs().topk(2, dim=1, largest=False).indices
        mask = torch.ones_like(groups).scatter_(1, index, 0.0)
        return (groups * mask).view_as(w)


@sample(8, inputs=vectors(8))
class SemiStructuredMlp(nn.Module):
    """A parametrization keeps two of four weights."""

    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        for layer in (self.up, self.down):
            parametrize.register_parametrization(layer, "weight", TwoOfFour())

    def forward(self, x):
        with parametrize.cached():
            return self.down(F.mish(self.up(x))) + F.linear(F.linear(x, self.up.weight), self.down.weight)


@sample(8, inputs=vectors(8))
class ProductQuantizedKeys(nn.Module):
    """A memory of squared size: two halves of a query choose from two sets of keys."""

    def __init__(self, dim, n_keys=4, top=2):
        super().__init__()
        self.n_keys, self.top = n_keys, top
        self.keys = nn.Parameter(torch.randn(2, n_keys, dim // 2))
        self.values = nn.EmbeddingBag(n_keys**2, dim, mode="sum")
        self.query = nn.Sequential(nn.Linear(dim, dim), nn.LayerNorm(dim))

    def forward(self, x):
        bs = x.shape[:-1]
        q = self.query(x).flatten(0, -2)
        halves = [F.linear(part, key) for part, key in zip(q.chunk(2, -1), self.keys, strict=True)]
        (s1, i1), (s2, i2) = map(partial(torch.topk, k=self.top, dim=1), halves)
        scores = (s1[:, :, None] + s2[:, None, :]).flatten(1)
        indices = (i1[:, :, None] * self.n_keys + i2[:, None, :]).flatten(1)
        scores, best = scores.topk(self.top, dim=1)
        out = self.values(indices.gather(1, best), per_sample_weights=F.softmax(scores.float(), dim=-1))
        return out.view(*bs, -1)
