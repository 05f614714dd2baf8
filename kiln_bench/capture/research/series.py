"""Time series: decompositions, patches, frequencies, stacks with backcasts, probabilistic forecasts, missing values."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import sample, vectors

HORIZON = 4


class MovingAverage(nn.Module):
    def __init__(self, kernel_size, stride=1):
        super().__init__()
        self.kernel_size, self.avg = kernel_size, nn.AvgPool1d(kernel_size=kernel_size, stride=stride, padding=0)

    def forward(self, x):
        front = x[:, 0:1, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        end = x[:, -1:, :].repeat(1, (self.kernel_size - 1) // 2, 1)
        return self.avg(torch.cat([front, x, end], dim=1).permute(0, 2, 1)).permute(0, 2, 1)


@sample(SimpleNamespace(seq_len=24, pred_len=HORIZON, individual=True, channels=3), inputs=vectors(3), lengths=(12, 16))
class DecomposedLinear(nn.Module):
    """DLinear: trend and season, each with a linear layer for each channel; the longest input decides the weights."""

    def __init__(self, configs):
        super().__init__()
        self.pred_len, self.channels, self.individual = configs.pred_len, configs.channels, configs.individual
        self.moving_avg = MovingAverage(5)
        n = configs.channels if configs.individual else 1
        self.seasonal = nn.ModuleList(nn.Linear(configs.seq_len, self.pred_len) for _ in range(n))
        self.trend = nn.ModuleList(nn.Linear(configs.seq_len, self.pred_len) for _ in range(n))

    def forward(self, x):
        mean = self.moving_avg(x)
        seasonal, trend = (x - mean).permute(0, 2, 1), mean.permute(0, 2, 1)
        n = x.shape[1]
        outs = torch.zeros([x.size(0), self.channels, self.pred_len], dtype=x.dtype)
        for i in range(self.channels):
            s, t = (self.seasonal[i], self.trend[i]) if self.individual else (self.seasonal[0], self.trend[0])
            outs[:, i, :] = F.linear(seasonal[:, i], s.weight[:, -n:], s.bias) + F.linear(
                trend[:, i], t.weight[:, -n:], t.bias
            )
        return outs.permute(0, 2, 1)


class ReversibleNorm(nn.Module):
    """Statistics are kept between the two ways."""

    def __init__(self, features, eps=1e-5):
        super().__init__()
        self.eps, self.weight, self.bias = eps, nn.Parameter(torch.ones(features)), nn.Parameter(torch.zeros(features))

    def forward(self, x, mode):
        if mode == "norm":
            dims = tuple(range(1, x.ndim - 1))
            self.mean = torch.mean(x, dim=dims, keepdim=True).detach()
            self.stdev = torch.sqrt(torch.var(x, dim=dims, keepdim=True, unbiased=False) + self.eps).detach()
            return (x - self.mean) / self.stdev * self.weight + self.bias
        if mode == "denorm":
            return (x - self.bias) / (self.weight + self.eps * self.eps) * self.stdev + self.mean
        raise NotImplementedError(mode)


@sample(3, inputs=vectors(3), lengths=(12, 16))
class PatchedSeries(nn.Module):
    """PatchTST: channels apart, patches by `unfold` after replication, reversible normalisation."""

    def __init__(self, channels, patch=4, stride=2, dim=8, most=16):
        super().__init__()
        self.patch, self.stride = patch, stride
        self.revin, self.pad = ReversibleNorm(channels), nn.ReplicationPad1d((0, stride))
        self.W_P, self.W_pos = nn.Linear(patch, dim), nn.Parameter(torch.empty(most, dim).uniform_(-0.02, 0.02))
        self.layer = nn.TransformerEncoderLayer(dim, 2, 16, batch_first=True, activation=F.gelu)
        self.head = nn.Linear(dim, HORIZON)

    def forward(self, x):
        z = self.pad(self.revin(x, "norm").permute(0, 2, 1))
        z = z.unfold(dimension=-1, size=self.patch, step=self.stride)
        b, c, n, p = z.shape
        u = torch.reshape(self.W_P(z), (b * c, n, -1))
        u = self.layer(u + self.W_pos[:n])
        out = self.head(u.mean(1)).view(b, c, HORIZON).permute(0, 2, 1)
        return self.revin(out, "denorm")


@sample(3, inputs=vectors(3), lengths=(12, 16))
class InvertedSeries(nn.Module):
    """iTransformer: each channel is a token; months and hours are embedded beside it."""

    def __init__(self, channels, dim=8, longest=20):
        super().__init__()
        self.embed = nn.Linear(longest, dim)
        self.layer = nn.TransformerEncoderLayer(dim, 2, 16, batch_first=True, dropout=0.0)
        self.projector = nn.Linear(dim, HORIZON, bias=True)

    def forward(self, x):
        means = x.mean(1, keepdim=True).detach()
        x = x - means
        stdev = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5)
        x /= stdev
        n = x.shape[1]
        marks = torch.stack([torch.sin(torch.arange(n) * 2 * math.pi / 12), torch.arange(n) / n], 1)
        tokens = torch.cat([x.permute(0, 2, 1), marks.T[None].expand(x.shape[0], -1, -1)], 1)
        tokens = F.pad(tokens, (self.embed.in_features - n, 0))
        out = self.projector(self.layer(self.embed(tokens))).permute(0, 2, 1)[:, :, : x.shape[-1]]
        return out * (stdev[:, 0, :].unsqueeze(1).repeat(1, HORIZON, 1)) + means[:, 0, :].unsqueeze(1).repeat(
            1, HORIZON, 1
        )


@sample(16, inputs=lambda rows, length: {"x": torch.randn(rows, length)}, lengths=(10, 12))
class ResidualBasisStack(nn.Module):
    """N-BEATS: trend, season and generic blocks; what they explain is taken away."""

    def __init__(self, longest, width=8, degree=2, harmonics=2):
        super().__init__()
        self.longest = longest
        t = np.arange(longest + HORIZON) / (longest + HORIZON)
        trend = torch.tensor(np.stack([t**i for i in range(degree + 1)]), dtype=torch.float32)
        waves = [f(2 * math.pi * i * t) for i in range(1, harmonics + 1) for f in (np.cos, np.sin)]
        self.register_buffer("trend", trend)
        self.register_buffer("season", torch.from_numpy(np.stack(waves)).float())
        sizes = {"trend": degree + 1, "season": 2 * harmonics}
        self.blocks = nn.ModuleList()
        for kind in ("trend", "season", "generic"):
            body = nn.Sequential(nn.Linear(longest, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
            theta = nn.Linear(width, sizes.get(kind, longest + HORIZON), bias=False)
            self.blocks.append(nn.ModuleDict({"body": body, "theta": theta}))
        self.kinds = ("trend", "season", "generic")

    def forward(self, x):
        mask = F.pad(torch.ones_like(x), (self.longest - x.shape[1], 0))
        residuals, forecast = F.pad(x, (self.longest - x.shape[1], 0)).flip(dims=(1,)), x[:, -1:].expand(-1, HORIZON)
        parts = []
        for kind, block in zip(self.kinds, self.blocks, strict=True):
            theta = block["theta"](block["body"](residuals))
            out = theta @ getattr(self, kind) if hasattr(self, kind) else theta
            backcast, fore = out[:, : self.longest], out[:, self.longest :]
            residuals = (residuals - backcast) * mask.flip(1)
            forecast = forecast + fore
            parts.append(fore)
        return forecast, torch.stack(parts, 1)


@sample(3, inputs=vectors(3), lengths=(12, 16))
class ProbabilisticSparse(nn.Module):
    """Informer: queries that stand out from sampled keys attend, the others take a mean."""

    def __init__(self, channels, dim=8, factor=2):
        super().__init__()
        self.embed = nn.Conv1d(channels, dim, 3, padding=1, padding_mode="circular", bias=False)
        self.qkv, self.factor = nn.Linear(dim, 3 * dim), factor
        self.distil = nn.Sequential(
            nn.Conv1d(dim, dim, 3, padding=1, padding_mode="circular"),
            nn.BatchNorm1d(dim),
            nn.ELU(),
            nn.MaxPool1d(3, 2, 1),
        )

    def prob_qk(self, Q, K, sample_k, n_top):
        B, L_K, E = K.shape
        _, L_Q, _ = Q.shape
        K_expand = K.unsqueeze(-3).expand(B, L_Q, L_K, E)
        index_sample = torch.randint(L_K, (L_Q, sample_k)) if self.training else torch.arange(sample_k).expand(L_Q, -1)
        K_sample = K_expand[:, torch.arange(L_Q).unsqueeze(1), index_sample, :]
        QK = torch.matmul(Q.unsqueeze(-2), K_sample.transpose(-2, -1)).squeeze(-2)
        M = QK.max(-1)[0] - torch.div(QK.sum(-1), L_K)
        top = M.topk(n_top, sorted=False)[1]
        return torch.matmul(Q[torch.arange(B)[:, None], top, :], K.transpose(-2, -1)), top

    def forward(self, x):
        h = self.embed(x.permute(0, 2, 1)).transpose(1, 2)
        q, k, v = self.qkv(h).chunk(3, -1)
        n = q.shape[1]
        u = min(self.factor * math.ceil(math.log(n)), n)
        scores, index = self.prob_qk(q, k, u, u)
        context = v.mean(dim=-2).unsqueeze(-2).expand(v.shape).clone()
        attn = torch.softmax(scores / math.sqrt(q.shape[-1]), dim=-1)
        context[torch.arange(x.shape[0])[:, None], index, :] = torch.matmul(attn, v).type_as(context)
        return self.distil((h + context).permute(0, 2, 1)).transpose(1, 2)


@sample(3, inputs=vectors(3), lengths=(12, 16))
class PeriodFolding(nn.Module):
    """TimesNet: a series is folded into planes by periods of a list, which its spectrum weighs."""

    def __init__(self, channels, dim=6, periods=(2, 4)):
        super().__init__()
        self.embed, self.periods = nn.Linear(channels, dim), periods
        self.convs = nn.ModuleList(nn.Conv2d(dim, dim, k, padding=k // 2) for k in (1, 3))
        self.out = nn.Linear(dim, channels)

    def forward(self, x):
        h = self.embed(x)
        B, T, N = h.size()
        amplitude = torch.fft.rfft(h, dim=1).abs().mean(-1)
        res, weights = [], []
        for period in self.periods:
            if T % period != 0:
                length = ((T // period) + 1) * period
                out = torch.cat([h, torch.zeros([B, length - T, N])], dim=1)
            else:
                length, out = T, h
            out = out.reshape(B, length // period, period, N).permute(0, 3, 1, 2).contiguous()
            out = torch.stack([conv(F.gelu(out)) for conv in self.convs], dim=-1).mean(-1)
            res.append(out.permute(0, 2, 3, 1).reshape(B, -1, N)[:, :T, :])
            weights.append(amplitude[:, T // period])
        w = F.softmax(torch.stack(weights, dim=1), dim=1).unsqueeze(1).unsqueeze(1).repeat(1, T, N, 1)
        return self.out(torch.sum(torch.stack(res, dim=-1) * w, -1) + h)


@sample(3, inputs=vectors(3), lengths=(12, 16))
class AutoCorrelation(nn.Module):
    """Delays from spectra; the best ones roll the values."""

    def __init__(self, dim, k=2):
        super().__init__()
        self.q, self.k_proj, self.v, self.top = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim), k

    def forward(self, x):
        q, k, v = (f(x).permute(0, 2, 1) for f in (self.q, self.k_proj, self.v))
        length = q.shape[-1]
        res = torch.fft.rfft(q, dim=-1) * torch.conj(torch.fft.rfft(k, dim=-1))
        corr = torch.fft.irfft(res, n=length, dim=-1)
        mean_value = torch.mean(corr, dim=1)
        weights, delay = torch.topk(mean_value, self.top, dim=-1)
        tmp_corr = torch.softmax(weights, dim=-1)
        init_index = torch.arange(length).unsqueeze(0).unsqueeze(0).repeat(*v.shape[:2], 1)
        tmp_values, agg = v.repeat(1, 1, 2), torch.zeros_like(v).float()
        for i in range(self.top):
            tmp_delay = init_index + delay[:, i].unsqueeze(1).unsqueeze(1)
            pattern = torch.gather(tmp_values, dim=-1, index=tmp_delay)
            agg = agg + pattern * tmp_corr[:, i].unsqueeze(1).unsqueeze(1)
        return agg.permute(0, 2, 1)


@sample(4, inputs=vectors(1), lengths=(6, 8))
class AutoregressiveDistribution(nn.Module):
    """DeepAR: scaled by means, likelihoods over the past, then samples that are fed back."""

    def __init__(self, samples, dim=8):
        super().__init__()
        self.rnn, self.samples = nn.LSTM(2, dim, batch_first=True), samples
        self.mu, self.sigma, self.df = nn.Linear(dim, 1), nn.Linear(dim, 1), nn.Linear(dim, 1)

    def dist(self, h, scale):
        return torch.distributions.StudentT(
            2 + F.softplus(self.df(h)), self.mu(h) * scale, (F.softplus(self.sigma(h)) + 1e-3) * scale
        )

    def forward(self, x):
        scale = x.abs().mean(1, keepdim=True).clamp(min=1e-3)
        age = torch.log1p(torch.arange(x.shape[1], dtype=x.dtype)).view(1, -1, 1).expand(x.shape[0], -1, -1)
        out, state = self.rnn(torch.cat([x / scale, age], -1))
        nll = -self.dist(out[:, :-1], scale).log_prob(x[:, 1:]).mean()
        state = tuple(s.repeat_interleave(self.samples, dim=1) for s in state)
        scale = scale.repeat_interleave(self.samples, 0)
        y, paths = x[:, -1:].repeat_interleave(self.samples, 0), []
        for k in range(HORIZON):
            step = torch.full_like(y, math.log1p(x.shape[1] + k))
            out, state = self.rnn(torch.cat([y / scale, step], -1), state)
            d = self.dist(out, scale)
            y = d.loc + d.scale * (torch.randn_like(d.loc) if self.training else 0.0)
            paths.append(y)
        paths = torch.cat(paths, 1).view(-1, self.samples, HORIZON)
        return nll, paths.mean(1), paths.std(1)


@sample(
    3,
    inputs=lambda rows, length: {"x": torch.randn(rows, length, 3), "observed": torch.rand(rows, length, 3) > 0.3},
    lengths=(6, 8),
)
class ImputingRecurrence(nn.Module):
    """BRITS: gaps decay the state, features estimate each other, both directions must agree."""

    def __init__(self, dim, hidden=6):
        super().__init__()
        self.cell, self.decay_h = nn.LSTMCell(2 * dim, hidden), nn.Linear(dim, hidden)
        self.hist, self.hidden = nn.Linear(hidden, dim), hidden
        self.feat = nn.Linear(dim, dim)
        self.register_buffer("off_diagonal", torch.ones(dim, dim) - torch.eye(dim))

    def deltas(self, masks):
        out = [torch.zeros_like(masks[:, 0])]
        for t in range(1, masks.shape[1]):
            out.append(1 + (1 - masks[:, t - 1]) * out[-1])
        return torch.stack(out, 1)

    def one_way(self, values, masks):
        h, c = (torch.zeros(values.shape[0], self.hidden) for _ in range(2))
        deltas, loss, imputed = self.deltas(masks), 0.0, []
        for t in range(values.shape[1]):
            x, m = values[:, t], masks[:, t]
            h = h * torch.exp(-F.relu(self.decay_h(deltas[:, t])))
            x_h = self.hist(h)
            x_c = m * x + (1 - m) * x_h
            z_h = F.linear(x_c, self.feat.weight * self.off_diagonal, self.feat.bias)
            loss += torch.sum(torch.abs(x - (x_h + z_h) / 2) * m) / (torch.sum(m) + 1e-5)
            x_c = m * x + (1 - m) * (x_h + z_h) / 2
            h, c = self.cell(torch.cat([x_c, m], dim=1), (h, c))
            imputed.append(x_c)
        return torch.stack(imputed, 1), loss

    def forward(self, x, observed):
        m = observed.float()
        x = torch.where(observed, x, torch.zeros_like(x))
        there, loss_f = self.one_way(x, m)
        back, loss_b = self.one_way(x.flip([1]), m.flip([1]))
        back = torch.flip(back, dims=[1])
        return (there + back) / 2, loss_f + loss_b + torch.abs(there - back).mean()


@sample(3, inputs=vectors(3), lengths=(8, 10))
class GatedFusionForecaster(nn.Module):
    """TFT: gated residuals, selection of variables, static contexts, quantiles."""

    class Grn(nn.Module):
        def __init__(self, cin, hidden, cout=None, context=None):
            super().__init__()
            cout = cout or cin
            self.skip = nn.Linear(cin, cout) if cin != cout else None
            self.fc1, self.fc2 = nn.Linear(cin, hidden), nn.Linear(hidden, hidden)
            self.context = nn.Linear(context, hidden, bias=False) if context else None
            self.gate, self.norm = nn.Linear(hidden, 2 * cout), nn.LayerNorm(cout)

        def forward(self, x, c=None):
            h = self.fc1(x)
            if self.context is not None and c is not None:
                h = h + self.context(c).unsqueeze(1)
            h = self.fc2(F.elu(h))
            return self.norm(F.glu(self.gate(h), -1) + (x if self.skip is None else self.skip(x)))

    def __init__(self, channels, dim=6, quantiles=(0.1, 0.5, 0.9)):
        super().__init__()
        self.embed = nn.ModuleList(nn.Linear(1, dim) for _ in range(channels))
        self.weights = self.Grn(channels * dim, dim, channels, context=dim)
        self.each = nn.ModuleList([self.Grn(dim, dim) for _ in range(channels)])
        self.static, self.lstm = nn.Linear(channels, dim), nn.LSTM(dim, dim, batch_first=True)
        self.attn, self.out = nn.MultiheadAttention(dim, 2, batch_first=True), nn.Linear(dim, len(quantiles))

    def forward(self, x):
        context = self.static(x.mean(1))
        embedded = [e(x[..., i : i + 1]) for i, e in enumerate(self.embed)]
        w = self.weights(torch.cat(embedded, -1), context).softmax(-1).unsqueeze(2)
        h = torch.stack([grn(e) for grn, e in zip(self.each, embedded, strict=True)], -1)
        h = (h * w).sum(-1)
        h = h + self.lstm(h, (context[None], torch.zeros_like(context)[None]))[0]
        n = h.shape[1]
        a, scores = self.attn(h, h, h, attn_mask=torch.ones(n, n).triu(1).bool(), average_attn_weights=True)
        return self.out(h + a), w.squeeze(2), scores


@sample(3, inputs=vectors(3), lengths=(12, 16))
class FrequencyMixer(nn.Module):
    """FreTS and FITS: complex layers on spectra, a low pass, and upsampling by more frequencies."""

    def __init__(self, channels, width=4, cut=4):
        super().__init__()
        self.cut = cut
        self.r, self.i = (nn.Parameter(0.3 * torch.randn(channels, channels)) for _ in range(2))
        self.rb, self.ib = (nn.Parameter(0.1 * torch.randn(channels)) for _ in range(2))
        self.up = nn.Linear(cut, cut + 2, dtype=torch.cfloat)

    def complex_mlp(self, z):
        real = F.relu(z.real @ self.r - z.imag @ self.i + self.rb)
        imag = F.relu(z.imag @ self.r + z.real @ self.i + self.ib)
        return torch.view_as_complex(F.softshrink(torch.stack([real, imag], dim=-1), lambd=0.01))

    def forward(self, x):
        n = x.shape[1]
        mean, var = torch.mean(x, dim=1, keepdim=True), torch.var(x, dim=1, keepdim=True) + 1e-5
        z = torch.fft.rfft((x - mean) / torch.sqrt(var), dim=1)
        mixed = torch.fft.irfft(self.complex_mlp(z), n=n, dim=1)
        low = self.up(z[:, : self.cut].permute(0, 2, 1)).permute(0, 2, 1)
        spec = torch.zeros([x.shape[0], (n + HORIZON) // 2 + 1, x.shape[2]], dtype=low.dtype)
        spec[:, : low.shape[1]] = low
        out = torch.fft.irfft(spec, dim=1, n=n + HORIZON) * ((n + HORIZON) / n)
        return mixed, out * torch.sqrt(var) + mean
