"""Sequences by state: gates, state spaces, scans, decays, convolutions over time, memories."""

from __future__ import annotations

import math
from functools import reduce

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import sample, tokens, vectors, waves


@sample(8, 6, inputs=vectors(8), lengths=(5, 7))
class PeepholeLstm(nn.Module):
    """A loop over steps with gates that see the cell."""

    def __init__(self, input_sz, hidden_sz):
        super().__init__()
        self.hidden_size = hidden_sz
        self.W, self.U = (
            nn.Parameter(torch.Tensor(input_sz, hidden_sz * 4)),
            nn.Parameter(torch.Tensor(hidden_sz, hidden_sz * 4)),
        )
        self.bias, self.peep = nn.Parameter(torch.Tensor(hidden_sz * 4)), nn.Parameter(torch.Tensor(3, hidden_sz))
        stdv = 1.0 / math.sqrt(hidden_sz)
        for weight in self.parameters():
            weight.data.uniform_(-stdv, stdv)

    def forward(self, x, init_states=None):
        bs, seq_sz, _ = x.size()
        if init_states is None:
            h_t, c_t = torch.zeros(bs, self.hidden_size).to(x.device), torch.zeros(bs, self.hidden_size).to(x.device)
        else:
            h_t, c_t = init_states
        hidden_seq, HS = [], self.hidden_size
        for t in range(seq_sz):
            gates = x[:, t, :] @ self.W + h_t @ self.U + self.bias
            i_t = torch.sigmoid(gates[:, :HS] + self.peep[0] * c_t)
            f_t = torch.sigmoid(gates[:, HS : HS * 2] + self.peep[1] * c_t)
            c_t = f_t * c_t + i_t * torch.tanh(gates[:, HS * 2 : HS * 3])
            o_t = torch.sigmoid(gates[:, HS * 3 :] + self.peep[2] * c_t)
            h_t = o_t * torch.tanh(c_t)
            hidden_seq.append(h_t.unsqueeze(0))
        hidden_seq = torch.cat(hidden_seq, dim=0).transpose(0, 1).contiguous()
        return hidden_seq, (h_t, c_t)


@sample(8, inputs=vectors(8))
class MinimalGatedUnit(nn.Module):
    """minGRU: a scan in logarithms, in parallel."""

    def __init__(self, dim, expansion=1.5):
        super().__init__()
        inner = int(dim * expansion)
        self.to_hidden_and_gate, self.to_out = nn.Linear(dim, inner * 2, bias=False), nn.Linear(inner, dim, bias=False)

    @staticmethod
    def log_g(x):
        return torch.where(x >= 0, (F.relu(x) + 0.5).log(), -F.softplus(-x))

    def forward(self, x):
        hidden, gate = self.to_hidden_and_gate(x).chunk(2, dim=-1)
        log_coeffs, log_z = -F.softplus(gate), -F.softplus(-gate)
        log_values = log_z + self.log_g(hidden)
        a_star = log_coeffs.cumsum(dim=1)
        log_h = a_star + (log_values - a_star).logcumsumexp(dim=1)
        out = log_h.exp()
        return self.to_out(out), out[:, -1:]


@sample(8, state=4, inputs=vectors(8), lengths=(5, 7))
class SelectiveStateSpace(nn.Module):
    """Mamba's block with the scan as a loop."""

    def __init__(self, d_model, state, d_conv=3, expand=2):
        super().__init__()
        self.d_inner, self.state = d_model * expand, state
        self.dt_rank = math.ceil(d_model / 4)
        self.in_proj = nn.Linear(d_model, self.d_inner * 2, bias=False)
        self.conv1d = nn.Conv1d(self.d_inner, self.d_inner, d_conv, groups=self.d_inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(self.d_inner, self.dt_rank + state * 2, bias=False)
        self.dt_proj = nn.Linear(self.dt_rank, self.d_inner)
        A = torch.arange(1, state + 1, dtype=torch.float32).repeat(self.d_inner, 1)
        self.A_log, self.D = nn.Parameter(torch.log(A)), nn.Parameter(torch.ones(self.d_inner))
        self.A_log._no_weight_decay = True
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False)

    def selective_scan(self, u, delta, A, B, C, D):
        (b, l, d_in), n = u.shape, A.shape[1]
        deltaA = torch.exp(torch.einsum("bld,dn->bldn", delta, A))
        deltaB_u = torch.einsum("bld,bln,bld->bldn", delta, B, u)
        x, ys = torch.zeros((b, d_in, n), device=deltaA.device), []
        for i in range(l):
            x = deltaA[:, i] * x + deltaB_u[:, i]
            ys.append(torch.einsum("bdn,bn->bd", x, C[:, i, :]))
        return torch.stack(ys, dim=1) + u * D

    def forward(self, x):
        (b, l, d) = x.shape
        x, res = self.in_proj(x).split(split_size=[self.d_inner, self.d_inner], dim=-1)
        x = F.silu(self.conv1d(x.mT)[:, :, :l].mT)
        delta, B, C = self.x_proj(x).split([self.dt_rank, self.state, self.state], dim=-1)
        y = self.selective_scan(
            x, F.softplus(self.dt_proj(delta)), -torch.exp(self.A_log.float()), B, C, self.D.float()
        )
        return self.out_proj(y * F.silu(res))


@sample(8, state=4, inputs=waves(8))
class DiagonalStateSpace(nn.Module):
    """S4D: complex poles, a kernel by a Vandermonde product, a convolution by spectra."""

    def __init__(self, h, state):
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(h) * 2 - 3)
        self.C = nn.Parameter(torch.view_as_real(torch.randn(h, state, dtype=torch.cfloat)))
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(h, state)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(state).float().repeat(h, 1))
        self.D = nn.Parameter(torch.randn(h))
        self.output_linear = nn.Sequential(nn.Conv1d(h, 2 * h, 1), nn.GLU(dim=-2))

    def kernel(self, L):
        dt, C = torch.exp(self.log_dt), torch.view_as_complex(self.C)
        A = -torch.exp(self.log_A_real) + 1j * self.A_imag
        dtA = A * dt.unsqueeze(-1)
        K = dtA.unsqueeze(-1) * torch.arange(L)
        C = C * (torch.exp(dtA) - 1.0) / A
        return 2 * torch.einsum("hn, hnl -> hl", C, torch.exp(K)).real

    def forward(self, x):
        L = x.size(-1)
        k_f = torch.fft.rfft(self.kernel(L), n=2 * L)
        y = torch.fft.irfft(torch.fft.rfft(x, n=2 * L) * k_f, n=2 * L)[..., :L] + x * self.D.unsqueeze(-1)
        return self.output_linear(F.gelu(y))


@sample(6, inputs=vectors(6), lengths=(5, 8))
class LinearRecurrentUnit(nn.Module):
    """Complex eigenvalues inside of the unit circle; the scan doubles its stride."""

    def __init__(self, dim, r_min=0.4, r_max=0.99):
        super().__init__()
        u = torch.rand(dim)
        self.nu_log = nn.Parameter(torch.log(-0.5 * torch.log(u * (r_max**2 - r_min**2) + r_min**2)))
        self.theta_log = nn.Parameter(torch.log(torch.rand(dim) * 2 * math.pi))
        self.B, self.C = (nn.Parameter(torch.randn(2, dim, dim) / math.sqrt(2 * dim)) for _ in range(2))

    def forward(self, x):
        lam = torch.exp(torch.complex(-torch.exp(self.nu_log), torch.exp(self.theta_log)))
        gamma = torch.sqrt(1 - lam.abs() ** 2)
        h = x.to(torch.complex64) @ torch.complex(*self.B) * gamma
        a, step = lam.expand_as(h), 1
        while step < x.shape[1]:
            shifted_h = F.pad(torch.view_as_real(h), (0, 0, 0, 0, step, 0))[:, : h.shape[1]]
            shifted_a = F.pad(torch.view_as_real(a), (0, 0, 0, 0, step, 0))[:, : h.shape[1]]
            h = h + a * torch.view_as_complex(shifted_h.contiguous())
            a = a * torch.view_as_complex(shifted_a.contiguous())
            step *= 2
        return (h @ torch.complex(*self.C)).real


@sample(8, inputs=vectors(8), lengths=(5, 8))
class ReceptanceKeyValue(nn.Module):
    """RWKV: shifted tokens, and a weighted mean that is kept stable by its largest exponent."""

    def __init__(self, dim):
        super().__init__()
        self.time_decay, self.time_first = nn.Parameter(torch.randn(dim)), nn.Parameter(torch.randn(dim))
        for name in ("k", "v", "r"):
            self.register_parameter(f"time_mix_{name}", nn.Parameter(torch.rand(1, 1, dim)))
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.key, self.value, self.receptance, self.output = (nn.Linear(dim, dim, bias=False) for _ in range(4))

    def wkv(self, k, v):
        w, u = -torch.exp(self.time_decay), self.time_first
        aa = bb = torch.zeros_like(k[:, 0])
        pp = torch.full_like(aa, -1e38)
        out = torch.empty_like(v)
        for t in range(k.shape[1]):
            kk, vv = k[:, t], v[:, t]
            p = torch.maximum(pp, u + kk)
            e1, e2 = torch.exp(pp - p), torch.exp(u + kk - p)
            out[:, t] = (e1 * aa + e2 * vv) / (e1 * bb + e2)
            p = torch.maximum(pp + w, kk)
            e1, e2 = torch.exp(pp + w - p), torch.exp(kk - p)
            aa, bb, pp = e1 * aa + e2 * vv, e1 * bb + e2, p
        return out

    def forward(self, x):
        xx = self.time_shift(x)
        mixed = {n: x * m + xx * (1 - m) for n in "kvr" for m in [getattr(self, f"time_mix_{n}")]}
        r = torch.sigmoid(self.receptance(mixed["r"]))
        return self.output(r * self.wkv(self.key(mixed["k"]), self.value(mixed["v"])))


@sample(8, heads=2, inputs=vectors(8), lengths=(8, 12))
class Retention(nn.Module):
    """RetNet in its parallel and its chunked form; both are returned, and are equal."""

    def __init__(self, dim, heads, chunk=4):
        super().__init__()
        self.heads, self.chunk = heads, chunk
        self.qkvg = nn.Linear(dim, 4 * dim, bias=False)
        self.register_buffer("decay", torch.log(1 - 2 ** (-5 - torch.arange(heads, dtype=torch.float))))
        self.group_norm = nn.GroupNorm(heads, dim)

    def decay_mask(self, n):
        index = torch.arange(n).float()
        mask = torch.tril(torch.ones(n, n))
        mask = torch.masked_fill(index[:, None] - index[None, :], ~mask.bool(), float("inf"))
        return torch.nan_to_num(torch.exp(mask * self.decay[:, None, None]))

    def forward(self, x):
        b, n, d = x.shape
        q, k, v, g = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkvg(x).chunk(4, -1))
        parallel = (q @ k.mT * self.decay_mask(n)) @ v
        c = self.chunk
        inner, state, outs = self.decay_mask(c), torch.zeros(b, self.heads, d // self.heads, d // self.heads), []
        steps = torch.arange(c)
        cross = torch.exp(self.decay[:, None] * (steps + 1))[..., None]
        tail = torch.exp(self.decay[:, None] * (c - 1 - steps))[..., None]
        for qc, kc, vc in zip(*(t.split(c, dim=2) for t in (q, k, v)), strict=True):
            outs.append((qc @ kc.mT * inner) @ vc + qc @ state * cross)
            state = state * torch.exp(self.decay * c)[:, None, None] + (kc * tail).mT @ vc
        chunked = torch.cat(outs, dim=2)
        out = self.group_norm(parallel.transpose(1, 2).reshape(b * n, d)).view(b, n, d)
        return out * F.silu(g.transpose(1, 2).flatten(2)), (parallel - chunked).abs().max() < 1e-3


@sample(8, inputs=vectors(8), lengths=(5, 7))
class DeltaRule(nn.Module):
    """Fast weights that are corrected by what they miss."""

    def __init__(self, dim):
        super().__init__()
        self.slow = nn.Linear(dim, 3 * dim + 1, bias=False)

    def forward(self, x):
        q, k, v, beta = torch.split(self.slow(x), [x.shape[-1]] * 3 + [1], dim=-1)
        q, k = (F.normalize(F.elu(t, 1.0, False) + 1, p=1, dim=-1) for t in (q, k))
        W = torch.zeros(x.shape[0], x.shape[-1], x.shape[-1])
        out = []
        for q_t, k_t, v_t, b_t in zip(*map(lambda t: t.unbind(1), (q, k, v, beta.sigmoid())), strict=True):
            old = torch.einsum("bij,bj->bi", W, k_t)
            W = W + torch.einsum("bi,bj->bij", b_t * (v_t - old), k_t)
            out.append(torch.bmm(W, q_t[..., None]).squeeze(2))
        return torch.stack(out, 1)


class CausalConv(nn.Conv1d):
    def __init__(self, *args, dilation=1, kernel_size=2, **kwargs):
        super().__init__(*args, kernel_size=kernel_size, dilation=dilation, **kwargs)
        self.left = (kernel_size - 1) * dilation

    def forward(self, x):
        return super().forward(F.pad(x, (self.left, 0)))


@sample(4, inputs=waves(4))
class WaveNetStack(nn.Module):
    """Gated dilated convolutions; skips are summed at the end."""

    def __init__(self, dim, layers=3):
        super().__init__()
        self.dilated = nn.ModuleList(CausalConv(dim, 2 * dim, dilation=2**i) for i in range(layers))
        self.res, self.skip = (nn.ModuleList(nn.Conv1d(dim, dim, 1) for _ in range(layers)) for _ in range(2))
        self.post = nn.Sequential(nn.ReLU(), nn.Conv1d(dim, dim, 1), nn.ReLU(), nn.Conv1d(dim, 16, 1))

    @property
    def receptive_field(self):
        return 1 + sum(layer.left for layer in self.dilated)

    def forward(self, x):
        skips = []
        for dilated, res, skip in zip(self.dilated, self.res, self.skip, strict=True):
            filtered, gate = dilated(x).chunk(2, dim=1)
            z = torch.tanh(filtered) * torch.sigmoid(gate)
            skips.append(skip(z))
            x = (x + res(z)) * math.sqrt(0.5)
        return self.post(reduce(torch.add, skips)), self.receptive_field


class Chomp1d(nn.Module):
    def __init__(self, chomp_size):
        super().__init__()
        self.chomp_size = chomp_size

    def forward(self, x):
        return x[:, :, : -self.chomp_size].contiguous()


@sample(4, (6, 6), inputs=waves(4))
class TemporalConvNet(nn.Module):
    """Weight norm, chomps, and a residual where the widths differ."""

    def __init__(self, cin, channels, k=3):
        super().__init__()
        self.blocks, self.down = nn.ModuleList(), nn.ModuleList()
        for i, cout in enumerate(channels):
            pad, prev = (k - 1) * 2**i, channels[i - 1] if i else cin
            conv = torch.nn.utils.parametrizations.weight_norm(nn.Conv1d(prev, cout, k, padding=pad, dilation=2**i))
            self.blocks.append(nn.Sequential(conv, Chomp1d(pad), nn.ReLU(), nn.Dropout(0.1)))
            self.down.append(nn.Conv1d(prev, cout, 1) if prev != cout else nn.Identity())

    def forward(self, x):
        for block, down in zip(self.blocks, self.down, strict=True):
            x = F.relu(block(x) + down(x))
        return x


@sample(8, inputs=vectors(8), lengths=(5, 7))
class QuasiRecurrent(nn.Module):
    """Gates by convolutions, pooling by a loop, in both directions."""

    def __init__(self, dim, zoneout=0.1):
        super().__init__()
        self.convs = nn.ModuleDict({d: nn.Conv1d(dim, 3 * dim, 2) for d in ("forward_", "backward_")})
        self.zoneout = zoneout

    def run(self, x, conv):
        z, f, o = conv(F.pad(x.mT, (1, 0))).mT.chunk(3, -1)
        z, f, o = z.tanh(), f.sigmoid(), o.sigmoid()
        if self.training and self.zoneout:
            f = f * torch.empty_like(f).bernoulli_(1 - self.zoneout)
        c, out = None, []
        for t in range(x.shape[1]):
            c = f[:, t] * z[:, t] if c is None else f[:, t] * z[:, t] + (1 - f[:, t]) * c
            out.append(o[:, t] * c)
        return torch.stack(out, dim=1)

    def forward(self, x):
        there = self.run(x, self.convs["forward_"])
        back = self.run(x.flip(1), self.convs["backward_"]).flip(1)
        return torch.cat([there, back], dim=-1)


@sample(8, inputs=vectors(8), lengths=(5, 8))
class LegendreMemory(nn.Module):
    """A fixed state matrix from a recurrence of polynomials, discretised when the module is made."""

    def __init__(self, dim, order=4, theta=8.0):
        super().__init__()
        q = torch.arange(order, dtype=torch.float64)
        r = (2 * q + 1)[:, None] / theta
        j, i = torch.meshgrid(q, q, indexing="xy")
        A = torch.where(i < j, torch.tensor(-1.0, dtype=torch.float64), (-1.0) ** (i - j + 1)) * r
        B = (-1.0) ** q[:, None] * r
        full = torch.matrix_exp(F.pad(torch.cat([A, B], 1), (0, 0, 0, 1)))
        self.register_buffer("A", full[:order, :order].float())
        self.register_buffer("B", full[:order, order:].float())
        self.encode, self.hidden = nn.Linear(dim, 1), nn.RNNCell(dim + order, dim)

    def forward(self, x):
        m, h = x.new_zeros(x.size(0), self.A.size(0)), torch.zeros_like(x[:, 0])
        for x_t in x.unbind(1):
            u = self.encode(x_t)
            m = m @ self.A.T + u @ self.B.T
            h = self.hidden(torch.cat((x_t, m), dim=-1), h)
        return h, m


@sample(12, inputs=tokens(20))
class StackedLanguageModel(nn.Module):
    """AWD-LSTM: dropout of weights, of whole words, and the same mask at each step."""

    def __init__(self, dim, layers=2):
        super().__init__()
        self.encoder = nn.Embedding(20, dim)
        self.rnns = nn.ModuleList(nn.LSTM(dim, dim, batch_first=True) for _ in range(layers))
        self.decoder = nn.Linear(dim, 20)
        self.decoder.weight = self.encoder.weight

    def locked(self, x, p=0.2):
        if not self.training or not p:
            return x
        m = x.new_empty(x.size(0), 1, x.size(2)).bernoulli_(1 - p)
        return m.div_(1 - p).expand_as(x) * x

    def embedded(self, ids, p=0.1):
        w = self.encoder.weight
        if p and self.training:
            mask = w.data.new().resize_((w.size(0), 1)).bernoulli_(1 - p).expand_as(w) / (1 - p)
            w = mask * w
        return F.embedding(ids, w)

    def forward(self, ids, hidden=None):
        x, new_hidden = self.locked(self.embedded(ids)), []
        for i, rnn in enumerate(self.rnns):
            x, h = rnn(x, None if hidden is None else hidden[i])
            new_hidden.append(tuple(t.detach() for t in h))
            if i != len(self.rnns) - 1:
                x = self.locked(x)
        return self.decoder(x), new_hidden


@sample(8, inputs=vectors(8), lengths=(6, 9))
class LongConvolution(nn.Module):
    """Hyena: filters from positions, two gates, convolutions by spectra."""

    def __init__(self, dim, emb=5, order=2):
        super().__init__()
        self.order, self.emb = order, emb
        self.proj, self.out = nn.Linear(dim, (order + 1) * dim), nn.Linear(dim, dim)
        self.short = nn.Conv1d((order + 1) * dim, (order + 1) * dim, 3, padding=2, groups=(order + 1) * dim)
        self.filter = nn.Sequential(nn.Linear(emb, 8), nn.SiLU(), nn.Linear(8, order * dim, bias=False))
        self.deltas = nn.Parameter(torch.linspace(0.5, 3, dim)[None, None], requires_grad=False)

    def filters(self, L):
        t = torch.linspace(0, 1, L)[None, :, None]
        bands = (self.emb - 1) // 2
        w = 2 * math.pi * torch.linspace(0, L - 1, L)[None, :, None] / L
        z = torch.exp(-1j * torch.linspace(1e-4, bands - 1, bands)[None, None] * w)
        z = torch.cat([t, z.real, z.imag], dim=-1)
        h = self.filter(z).view(L, self.order, -1) * torch.exp(-t * self.deltas.abs()).transpose(0, 1)
        return h.permute(1, 2, 0)

    def forward(self, x):
        L = x.shape[1]
        u = self.short(self.proj(x).mT)[..., :L]
        *gates, v = u.chunk(self.order + 1, dim=1)
        for gate, h in zip(reversed(gates), self.filters(L), strict=True):
            y = torch.fft.irfft(torch.fft.rfft(v, n=2 * L) * torch.fft.rfft(h, n=2 * L), n=2 * L, norm="backward")
            v = gate * y[..., :L]
        return self.out(v.mT)


@sample(6, inputs=vectors(6), lengths=(5, 7))
class SpikingLayer(nn.Module):
    """Leaky units that fire, with a surrogate gradient, and rates as a loss."""

    class Surrogate(torch.autograd.Function):
        @staticmethod
        def forward(ctx, input, scale=5.0):
            ctx.save_for_backward(input)
            ctx.scale = scale
            return (input > 0).float()

        @staticmethod
        def backward(ctx, grad_output):
            (input,) = ctx.saved_tensors
            return grad_output / (ctx.scale * torch.abs(input) + 1.0) ** 2, None

    def __init__(self, dim, tau=0.8):
        super().__init__()
        self.fc, self.beta = nn.Linear(dim, dim), nn.Parameter(torch.full((dim,), tau))

    def forward(self, x):
        mem, spk_rec, mem_rec = torch.zeros(x.shape[0], x.shape[2]), [], []
        fire = self.Surrogate.apply
        for step in range(x.size(1)):
            mem = self.beta.clamp(0, 1) * mem + self.fc(x[:, step])
            spk = fire(mem - 1.0)
            mem = mem - spk.detach() * 1.0
            spk_rec.append(spk)
            mem_rec.append(mem)
        spikes = torch.stack(spk_rec)
        return spikes.sum(0), torch.stack(mem_rec)[-1], (spikes.mean() - 0.2) ** 2
