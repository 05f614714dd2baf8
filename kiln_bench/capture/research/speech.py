"""Sound: spectra, conformers, synthesis of mels and waves, separation, speakers, alignments."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import sample, tokens, vectors, waves


def sequence_mask(length, max_length=None):
    if max_length is None:
        max_length = length.max()
    x = torch.arange(max_length, dtype=length.dtype, device=length.device)
    return x.unsqueeze(0) < length.unsqueeze(1)


@sample(16, 6, inputs=lambda rows, length: {"wav": torch.randn(rows, length)}, lengths=(64, 96))
class LogMelFrontend(nn.Module):
    """Pre-emphasis, a short-time spectrum, a bank of triangles made in the constructor, means over time."""

    def __init__(self, n_fft, n_mels, sample_rate=1600, hop=8):
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("mel", self.filters(n_fft, n_mels, sample_rate))
        self.register_buffer("flipped_filter", torch.FloatTensor([-0.97, 1.0]).unsqueeze(0).unsqueeze(0))
        self.scale = nn.Parameter(torch.ones(n_mels, 1))

    @staticmethod
    def filters(n_fft, n_mels, sr):
        hz = torch.linspace(0, sr / 2, n_fft // 2 + 1)
        top = 2595 * math.log10(1 + sr / 2 / 700)
        points = 700 * (10 ** (torch.linspace(0, top, n_mels + 2) / 2595) - 1)
        slopes = points[None] - hz[:, None]
        diff = points[1:] - points[:-1]
        down, up = -slopes[:, :-2] / diff[:-1], slopes[:, 2:] / diff[1:]
        return torch.clamp(torch.minimum(down, up), min=0).T.contiguous()

    def forward(self, wav):
        x = F.conv1d(F.pad(wav.unsqueeze(1), (1, 0), "reflect"), self.flipped_filter).squeeze(1)
        spec = torch.stft(x, self.n_fft, self.hop, window=self.window, center=True, return_complex=True)
        power = spec.real.pow(2) + spec.imag.pow(2)
        mel = torch.log(torch.clamp(self.mel @ power, min=1e-5)) * self.scale
        return mel - mel.mean(dim=-1, keepdim=True)


class MacaronFeedForward(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Dropout(0.1), nn.Linear(4 * dim, dim)
        )

    def forward(self, x):
        return self.net(x)


@sample(
    8,
    inputs=lambda rows, length: {"x": torch.randn(rows, length, 8), "lengths": torch.arange(length, length - rows, -1)},
)
class ConformerBlock(nn.Module):
    """Half steps of feed-forward, attention by relative positions, a gated convolution, masks of padding."""

    def __init__(self, dim, kernel=3):
        super().__init__()
        self.ff1, self.ff2, self.norm, self.ln = (
            MacaronFeedForward(dim),
            MacaronFeedForward(dim),
            nn.LayerNorm(dim),
            nn.LayerNorm(dim),
        )
        self.attn, self.rel = nn.MultiheadAttention(dim, 2, batch_first=True), nn.Embedding(63, 2)
        self.pointwise1, self.pointwise2 = nn.Conv1d(dim, 2 * dim, 1), nn.Conv1d(dim, dim, 1)
        self.depthwise, self.bn = (
            nn.Conv1d(dim, dim, kernel, padding=(kernel - 1) // 2, groups=dim),
            nn.BatchNorm1d(dim),
        )

    def conv(self, x, mask):
        y = self.ln(x).transpose(1, 2)
        y = F.glu(self.pointwise1(y), dim=1).masked_fill(~mask.unsqueeze(1), 0.0)
        return self.pointwise2(F.silu(self.bn(self.depthwise(y)))).transpose(1, 2)

    def forward(self, x, lengths):
        mask = sequence_mask(lengths, x.shape[1])
        x = x + 0.5 * self.ff1(x)
        n = x.shape[1]
        rel = (torch.arange(n)[:, None] - torch.arange(n)[None]).clamp(-31, 31) + 31
        bias = self.rel(rel).permute(2, 0, 1).repeat(x.shape[0], 1, 1)
        pad = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, -1e4)
        x = x + self.attn(x, x, x, attn_mask=bias, key_padding_mask=pad, need_weights=False)[0]
        x = x + self.conv(x, mask)
        return self.norm(x + 0.5 * self.ff2(x)), mask


@sample(
    12,
    8,
    inputs=lambda rows, length: {
        "ids": torch.randint(1, 12, (rows, length)),
        "durations": torch.randint(1, 4, (rows, length)),
    },
)
class VarianceAdaptor(nn.Module):
    """FastSpeech 2: phonemes are repeated by durations through a matrix of alignment, pitch in bins."""

    def __init__(self, vocab, dim, longest=24):
        super().__init__()
        self.embed, self.longest = nn.Embedding(vocab, dim), longest
        self.duration = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))
        self.pitch, self.pitch_embedding = nn.Linear(dim, 1), nn.Embedding(6, dim)
        self.pitch_bins = nn.Parameter(torch.exp(torch.linspace(math.log(0.5), math.log(4), 5)), requires_grad=False)
        self.decoder = nn.GRU(dim, dim, batch_first=True)

    def regulate(self, x, durations):
        ends = torch.cumsum(durations, dim=1)
        frames = torch.arange(self.longest)[None, :, None]
        path = ((frames < ends[:, None]) & (frames >= (ends - durations)[:, None])).to(x.dtype)
        return path @ x, ends[:, -1].clamp(max=self.longest)

    def forward(self, ids, durations):
        x = self.embed(ids)
        log_d = self.duration(x).squeeze(-1)
        used = durations if self.training else torch.clamp(torch.round(torch.exp(log_d) - 1), min=1, max=4).long()
        pitch = self.pitch(x).squeeze(-1)
        x = x + self.pitch_embedding(torch.bucketize(pitch.detach().exp(), self.pitch_bins))
        frames, lengths = self.regulate(x, used)
        mask = sequence_mask(lengths, self.longest)
        out, _ = self.decoder(frames)
        return out * mask.unsqueeze(-1), F.mse_loss(log_d, torch.log(durations.float() + 1)), lengths


@sample(
    3,
    inputs=lambda rows, length: {"mu": torch.randn(rows, 3, length // 2), "mel": torch.randn(rows, 3, length)},
    lengths=(8, 10),
)
class MonotonicAligner(nn.Module):
    """Glow-TTS: log-likelihoods of frames, the best monotonic path by a loop and back pointers."""

    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Conv1d(dim, dim, 1)

    @torch.no_grad()
    def maximum_path(self, value):
        b, tx, ty = value.shape
        neg = torch.tensor(-1e9)
        v, direction = torch.zeros(b, tx), []
        x_range = torch.arange(tx)[None]
        for j in range(ty):
            v0 = F.pad(v, (1, 0), value=-1e9)[:, :-1]
            stay = v >= v0
            direction.append(stay)
            v = torch.where(x_range <= j, torch.where(stay, v, v0) + value[:, :, j], neg)
        index, path = torch.full((b,), tx - 1), torch.zeros(b, tx, ty)
        for j in reversed(range(ty)):
            path[torch.arange(b), index, j] = 1
            index = (index + direction[j].gather(1, index[:, None]).squeeze(1).long() - 1).clamp(min=0)
        return path

    def forward(self, mu, mel):
        mu = self.proj(mu)
        logp = -0.5 * (
            mu.pow(2).sum(1).unsqueeze(2) - 2 * torch.matmul(mu.transpose(1, 2), mel) + mel.pow(2).sum(1).unsqueeze(1)
        )
        path = self.maximum_path(logp)
        expanded = torch.matmul(mu, path)
        return F.mse_loss(expanded, mel), torch.log(1e-8 + path.sum(2))


class PeriodicSnake(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x):
        return x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2)


@sample(4, inputs=waves(4))
class WaveGenerator(nn.Module):
    """HiFi-GAN: transposed convolutions, fused residuals of several kernels, weight norms that can be removed."""

    def __init__(self, mels, width=8, rates=(2, 2), kernels=(3, 5)):
        super().__init__()
        wn = torch.nn.utils.parametrizations.weight_norm
        self.num_kernels, self.num_upsamples = len(kernels), len(rates)
        self.conv_pre = wn(nn.Conv1d(mels, width, 7, 1, padding=3))
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for i, u in enumerate(rates):
            ch = width // 2 ** (i + 1)
            self.ups.append(wn(nn.ConvTranspose1d(ch * 2, ch, 2 * u, u, padding=u // 2)))
            self.resblocks.extend(
                nn.Sequential(PeriodicSnake(ch), wn(nn.Conv1d(ch, ch, k, padding=(k * 2 - 2) // 2, dilation=2)))
                for k in kernels
            )
        self.conv_post = wn(nn.Conv1d(width // 2 ** len(rates), 1, 7, padding=3))

    def forward(self, x):
        x = self.conv_pre(x)
        for i in range(self.num_upsamples):
            x = self.ups[i](F.leaky_relu(x, 0.1))
            xs = None
            for j in range(self.num_kernels):
                y = self.resblocks[i * self.num_kernels + j](x) + x
                xs = y if xs is None else xs + y
            x = xs / self.num_kernels
        return torch.tanh(self.conv_post(F.leaky_relu(x)))


@sample((2, 3), inputs=waves(1), lengths=(24, 31))
class PeriodDiscriminators(nn.Module):
    """Waves folded by periods; lists of features for a loss of matching; a mean pool between scales."""

    def __init__(self, periods):
        super().__init__()
        self.periods = periods
        self.convs = nn.ModuleList(
            nn.ModuleList([nn.Conv2d(1, 4, (5, 1), (3, 1), padding=(2, 0)), nn.Conv2d(4, 1, (3, 1), padding=(1, 0))])
            for _ in periods
        )
        self.scale = nn.Conv1d(1, 4, 5, 2, groups=1)

    def forward(self, x):
        scores, fmap = [], []
        for period, convs in zip(self.periods, self.convs, strict=True):
            b, c, t = x.shape
            y = x
            if t % period != 0:
                n_pad = period - (t % period)
                y = F.pad(y, (0, n_pad), "reflect")
                t = t + n_pad
            y = y.view(b, c, t // period, period)
            for conv in convs:
                y = F.leaky_relu(conv(y), 0.1)
                fmap.append(y)
            scores.append(torch.flatten(y, 1, -1))
        fmap.append(self.scale(F.avg_pool1d(x, 4, 2, padding=2)))
        return scores, sum(torch.mean(torch.abs(f)) for f in fmap)


@sample(8, inputs=lambda rows, length: {"mixture": torch.randn(rows, length)}, lengths=(48, 64))
class MaskedSeparator(nn.Module):
    """Conv-TasNet: an encoder of frames, masks for each speaker, overlap-add by `fold`, a loss over permutations."""

    def __init__(self, filters, kernel=8, speakers=2):
        super().__init__()
        self.kernel, self.stride, self.speakers = kernel, kernel // 2, speakers
        self.encoder, self.decoder = (
            nn.Conv1d(1, filters, kernel, self.stride, bias=False),
            nn.Linear(filters, kernel, bias=False),
        )
        self.gain, self.shift = nn.Parameter(torch.ones(1, filters, 1)), nn.Parameter(torch.zeros(1, filters, 1))
        self.separator = nn.Sequential(
            nn.Conv1d(filters, 8, 1), nn.PReLU(), nn.Conv1d(8, speakers * filters, 3, padding=1)
        )

    def cumulative_norm(self, y, eps=1e-8):
        n = torch.arange(1, y.shape[-1] + 1) * y.shape[1]
        mean = y.sum(1, keepdim=True).cumsum(-1) / n
        var = (y.pow(2).sum(1, keepdim=True).cumsum(-1) / n) - mean**2
        return (y - mean) / (var.clamp(min=0) + eps).sqrt() * self.gain + self.shift

    def overlap_add(self, frames, length):
        b, s, k, l = frames.shape
        out = F.fold(
            frames.flatten(0, 1),
            output_size=(1, (l - 1) * self.stride + k),
            kernel_size=(1, k),
            stride=(1, self.stride),
        )
        out = out.view(b, s, -1)
        return F.pad(out, (0, length - out.shape[-1]))

    def si_snr(self, est, ref):
        est, ref = est - est.mean(-1, keepdim=True), ref - ref.mean(-1, keepdim=True)
        proj = (est * ref).sum(-1, keepdim=True) * ref / (ref.pow(2).sum(-1, keepdim=True) + 1e-8)
        return 10 * torch.log10(proj.pow(2).sum(-1) / ((est - proj).pow(2).sum(-1) + 1e-8) + 1e-8)

    def forward(self, mixture):
        w = F.relu(self.encoder(mixture.unsqueeze(1)))
        masks = self.separator(self.cumulative_norm(w)).view(w.shape[0], self.speakers, *w.shape[1:]).softmax(1)
        est = self.overlap_add(self.decoder((w.unsqueeze(1) * masks).mT).mT, mixture.shape[-1])
        refs = torch.stack([mixture.roll(1, -1), -mixture.flip(-1)], 1)
        pair = self.si_snr(est.unsqueeze(2), refs.unsqueeze(1))
        return est, -torch.maximum(pair[:, 0, 0] + pair[:, 1, 1], pair[:, 0, 1] + pair[:, 1, 0]).mean() / 2


@sample(8, inputs=vectors(8))
class StatisticsPooling(nn.Module):
    """ECAPA: channel-wise attention with context of the whole, standard deviations, a Res2 split before."""

    def __init__(self, dim, scale=4):
        super().__init__()
        self.scale, self.width = scale, dim // scale
        self.convs = nn.ModuleList(
            [nn.Conv1d(self.width, self.width, 3, dilation=2, padding=2) for _ in range(scale - 1)]
        )
        self.attention = nn.Sequential(
            nn.Conv1d(3 * dim, 4, 1), nn.ReLU(), nn.BatchNorm1d(4), nn.Tanh(), nn.Conv1d(4, dim, 1), nn.Softmax(dim=2)
        )

    def forward(self, x):
        x = x.mT
        spx, out = torch.split(x, self.width, 1), []
        for i in range(self.scale):
            sp = spx[i] if i == 0 or i == self.scale - 1 else spx[i] + sp  # noqa: F821
            if i < self.scale - 1:
                sp = F.relu(self.convs[i](sp))
            out.append(sp)
        x = torch.cat(out, 1)
        t = x.size()[-1]
        g = torch.cat(
            (
                x,
                torch.mean(x, dim=2, keepdim=True).repeat(1, 1, t),
                torch.sqrt(torch.var(x, dim=2, keepdim=True).clamp(min=1e-4)).repeat(1, 1, t),
            ),
            dim=1,
        )
        w = self.attention(g)
        mu = torch.sum(x * w, dim=2)
        return torch.cat((mu, torch.sqrt((torch.sum((x**2) * w, dim=2) - mu**2).clamp(min=1e-4))), 1)


@sample(8, inputs=waves(1), lengths=(40, 56))
class SincFilters(nn.Module):
    """Band-pass filters with learned edges, made anew in each call."""

    def __init__(self, channels, kernel_size=9, sample_rate=16.0):
        super().__init__()
        self.kernel_size, self.sample_rate = kernel_size, sample_rate
        hz = torch.linspace(0.2, 5.0, channels + 1)
        self.low_hz_, self.band_hz_ = nn.Parameter(hz[:-1].view(-1, 1)), nn.Parameter((hz[1:] - hz[:-1]).view(-1, 1))
        n = (kernel_size - 1) / 2.0
        self.register_buffer("window_", torch.hamming_window(kernel_size)[: int(n)])
        self.register_buffer("n_", 2 * math.pi * torch.arange(-n, 0).view(1, -1) / sample_rate)

    def forward(self, x):
        low = 0.1 + torch.abs(self.low_hz_)
        high = torch.clamp(low + torch.abs(self.band_hz_), 0.1, self.sample_rate / 2)
        band = (high - low)[:, 0]
        left = ((torch.sin(high @ self.n_) - torch.sin(low @ self.n_)) / (self.n_ / 2)) * self.window_
        filters = torch.cat([left, 2 * band.view(-1, 1), torch.flip(left, dims=[1])], dim=1) / (2 * band[:, None])
        y = F.conv1d(x, filters.view(-1, 1, self.kernel_size), padding=self.kernel_size // 2)
        return F.layer_norm(torch.abs(y), y.shape[-1:])


@sample(12, inputs=tokens(12))
class LocationAttention(nn.Module):
    """Tacotron: a decoder whose attention sees where it was, with a pre-net that drops out always."""

    def __init__(self, vocab, dim=8, steps=4):
        super().__init__()
        self.embed, self.steps = nn.Embedding(vocab, dim), steps
        self.prenet, self.rnn = nn.Linear(3, dim), nn.LSTMCell(2 * dim, dim)
        self.query, self.memory, self.v = (
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, dim, bias=False),
            nn.Linear(dim, 1),
        )
        self.location_conv, self.location_dense = (
            nn.Conv1d(2, 3, 5, padding=2, bias=False),
            nn.Linear(3, dim, bias=False),
        )
        self.mel, self.gate = nn.Linear(2 * dim, 3), nn.Linear(2 * dim, 1)

    def forward(self, ids):
        memory = self.embed(ids)
        processed = self.memory(memory)
        b, t = ids.shape
        h, c = (memory.new_zeros(b, memory.shape[-1]) for _ in range(2))
        weights, cum, context = memory.new_zeros(b, t), memory.new_zeros(b, t), memory.new_zeros(b, memory.shape[-1])
        frame, mels, gates = memory.new_zeros(b, 3), [], []
        for _ in range(self.steps):
            x = F.dropout(F.relu(self.prenet(frame)), p=0.5, training=self.training)
            h, c = self.rnn(torch.cat((x, context), -1), (h, c))
            location = self.location_dense(self.location_conv(torch.stack([weights, cum], 1)).transpose(1, 2))
            energies = self.v(torch.tanh(self.query(h.unsqueeze(1)) + location + processed)).squeeze(-1)
            weights = F.softmax(energies.masked_fill(ids == 0, -float("inf")), dim=1)
            weights = torch.nan_to_num(weights)
            cum += weights
            context = torch.bmm(weights.unsqueeze(1), memory).squeeze(1)
            both = torch.cat((h, context), dim=1)
            frame = self.mel(both)
            mels += [frame]
            gates += [self.gate(both).squeeze(1)] if b > 1 else [self.gate(both)]
        return torch.stack(mels, 1), torch.stack(gates, 1), cum
