"""Blocks of image networks: residuals, bottlenecks, gates over channels, patches, folded and sampled convolutions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import repeat

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import images, sample


def to_2tuple(x):
    return tuple(x) if isinstance(x, Iterable) and not isinstance(x, str) else tuple(repeat(x, 2))


def make_divisible(v, divisor=8, min_value=None, round_limit=0.9):
    min_value = min_value or divisor
    new_v = max(min_value, int(v + divisor / 2) // divisor * divisor)
    return new_v + divisor if new_v < round_limit * v else new_v


def drop_path(x, drop_prob=0.0, training=False, scale_by_keep=True):
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    random_tensor = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep_prob)
    if keep_prob > 0.0 and scale_by_keep:
        random_tensor.div_(keep_prob)
    return x * random_tensor


class PreActBlock(nn.Module):
    expansion = 1

    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(in_planes), nn.Conv2d(in_planes, planes, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(planes), nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        if stride != 1 or in_planes != self.expansion * planes:
            self.shortcut = nn.Sequential(nn.Conv2d(in_planes, self.expansion * planes, 1, stride, bias=False))

    def forward(self, x):
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        out += shortcut
        return out


@sample((4, 8), inputs=images(3), lengths=(8, 12))
class PreActResNet(nn.Module):
    def __init__(self, widths, classes=5):
        super().__init__()
        self.in_planes = widths[0]
        self.conv1 = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        for i, width in enumerate(widths):
            setattr(self, f"layer{i + 1}", self._make_layer(PreActBlock, width, 2, stride=1 + (i > 0)))
        self.n_layers = len(widths)
        self.linear = nn.Linear(widths[-1], classes)

    def _make_layer(self, block, planes, num_blocks, stride):
        layers = []
        for s in [stride] + [1] * (num_blocks - 1):
            layers.append(block(self.in_planes, planes, s))
            self.in_planes = planes * block.expansion
        return nn.Sequential(*layers)

    def forward(self, x):
        out = self.conv1(x)
        for i in range(self.n_layers):
            out = getattr(self, f"layer{i + 1}")(out)
        out = F.adaptive_avg_pool2d(out, 1)
        return self.linear(out.view(out.size(0), -1))


@sample(8, 6, inputs=images(8))
class InvertedBottleneck(nn.Module):
    """MBConv with squeeze and excitation, and stochastic depth."""

    def __init__(self, dim, expand, survival=0.8):
        super().__init__()
        hidden, reduced = int(dim * expand), make_divisible(dim / 4, 4)
        self.survival = survival
        self.expand = nn.Sequential(
            nn.Conv2d(dim, hidden, 1, bias=False), nn.BatchNorm2d(hidden, 1e-3, 0.01), nn.SiLU()
        )
        self.depthwise = nn.Conv2d(hidden, hidden, 5, groups=hidden, padding="same", bias=False)
        self.bn = nn.BatchNorm2d(hidden)
        self.se_reduce, self.se_expand = nn.Conv2d(hidden, reduced, 1), nn.Conv2d(reduced, hidden, 1)
        self.project = nn.Sequential(nn.Conv2d(hidden, dim, 1, bias=False), nn.BatchNorm2d(dim))

    def forward(self, x):
        y = F.silu(self.bn(self.depthwise(self.expand(x))))
        s = F.adaptive_avg_pool2d(y, 1)
        y = torch.sigmoid(self.se_expand(F.silu(self.se_reduce(s)))) * y
        return x + drop_path(self.project(y), 1 - self.survival, self.training)


@sample(8, inputs=images(8))
class AttentionGates(nn.Module):
    """Gates over channels and places, one after another: SE, ECA, CBAM, coordinate, SimAM, GCT."""

    def __init__(self, dim, reduction=2):
        super().__init__()
        self.se = nn.Sequential(
            nn.Linear(dim, dim // reduction), nn.ReLU(), nn.Linear(dim // reduction, dim), nn.Hardsigmoid()
        )
        k = int(abs((math.log2(dim) + 1) / 2))
        self.eca = nn.Conv1d(1, 1, k if k % 2 else k + 1, padding="same", bias=False)
        self.spatial = nn.Conv2d(2, 1, 7, padding=3)
        self.pool_h, self.pool_w = nn.AdaptiveAvgPool2d((None, 1)), nn.AdaptiveAvgPool2d((1, None))
        self.coord = nn.Conv2d(dim, dim, 1)
        self.alpha, self.gamma, self.beta = (nn.Parameter(torch.full((1, dim, 1, 1), v)) for v in (1.0, 0.1, 0.0))

    def coordinate(self, x):
        n, c, h, w = x.size()
        y = torch.cat([self.pool_h(x), self.pool_w(x).permute(0, 1, 3, 2)], dim=2)
        a_h, a_w = torch.split(F.hardswish(self.coord(y)), [h, w], dim=2)
        return x * a_h.sigmoid() * a_w.permute(0, 1, 3, 2).sigmoid()

    def simam(self, x, e_lambda=1e-4):
        n = x.shape[2] * x.shape[3] - 1
        d = (x - x.mean(dim=[2, 3], keepdim=True)).pow(2)
        return x * torch.sigmoid(d / (4 * (d.sum(dim=[2, 3], keepdim=True) / n + e_lambda)) + 0.5)

    def gct(self, x, eps=1e-5):
        embedding = (x.pow(2).sum((2, 3), keepdim=True) + eps).pow(0.5) * self.alpha
        norm = self.gamma / (embedding.pow(2).mean(dim=1, keepdim=True) + eps).pow(0.5)
        return x * (1.0 + torch.tanh(embedding * norm + self.beta))

    def forward(self, x):
        b, c, *_ = x.shape
        x = x * self.se(x.mean((2, 3))).view(b, c, 1, 1).expand_as(x)
        y = self.eca(x.mean((2, 3), keepdim=True).squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        x = x * y.sigmoid()
        pooled = torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), dim=1)
        x = x * torch.sigmoid(self.spatial(pooled))
        for gate in (self.coordinate, self.simam, self.gct):
            x = gate(x)
        return x


@sample(8, inputs=images(8))
class SelectiveKernel(nn.Module):
    def __init__(self, dim, branches=3):
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(dim, dim, 3, padding=1 + i, dilation=1 + i, groups=4),
                nn.BatchNorm2d(dim),
                nn.ReLU(inplace=False),
            )
            for i in range(branches)
        )
        self.fc = nn.Conv2d(dim, 4, 1)
        self.fcs = nn.ModuleList([nn.Conv2d(4, dim, 1) for _ in range(branches)])

    def forward(self, x):
        feats = torch.stack([conv(x) for conv in self.convs], dim=1)
        z = self.fc(feats.sum(dim=1).mean((-2, -1), keepdim=True))
        weights = F.softmax(torch.stack([fc(z) for fc in self.fcs], 1), dim=1)
        return torch.sum(feats * weights, dim=1)


@sample(8, inputs=images(8), lengths=(7, 10))
class ModernConvBlock(nn.Module):
    """ConvNeXt v2: channels last, global response normalisation, layer scale."""

    def __init__(self, dim, kernel=7, drop=0.2):
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=to_2tuple(kernel), padding=kernel // 2, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.pwconv2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.grn_gamma, self.grn_beta = (nn.Parameter(torch.zeros(1, 1, 1, 4 * dim)) for _ in range(2))
        self.layer_scale = nn.Parameter(1e-2 * torch.ones(dim)) if kernel > 3 else None
        self.drop = drop

    def forward(self, x):
        shortcut = x
        x = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        x = F.gelu(self.pwconv1(x))
        gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        x = self.grn_gamma * (x * (gx / (gx.mean(dim=-1, keepdim=True) + 1e-6))) + self.grn_beta + x
        x = self.pwconv2(x)
        if self.layer_scale is not None:
            x = self.layer_scale * x
        return shortcut + drop_path(x.permute(0, 3, 1, 2), self.drop, self.training)


@sample(8, inputs=images(8))
class ReparameterizedConv(nn.Module):
    """RepVGG: three branches in training; in evaluation their sum as one kernel, folded with the norms."""

    def __init__(self, dim):
        super().__init__()
        self.dense, self.point = (nn.Conv2d(dim, dim, k, padding=k // 2, bias=False) for k in (3, 1))
        self.norms = nn.ModuleDict({k: nn.BatchNorm2d(dim) for k in ("dense", "point", "skip")})

    def fold(self, kernel, bn):
        std = (bn.running_var + bn.eps).sqrt()
        t = (bn.weight / std).reshape(-1, 1, 1, 1)
        return kernel * t, bn.bias - bn.running_mean * bn.weight / std

    def equivalent(self):
        dim = self.dense.in_channels
        identity = torch.zeros_like(self.dense.weight)
        identity[range(dim), range(dim), 1, 1] = 1
        kernels = {"dense": self.dense.weight, "point": F.pad(self.point.weight, [1, 1, 1, 1]), "skip": identity}
        folded = [self.fold(kernels[k], self.norms[k]) for k in kernels]
        return sum(k for k, _ in folded), sum(b for _, b in folded)

    def forward(self, x):
        if self.training:
            y = self.norms["dense"](self.dense(x)) + self.norms["point"](self.point(x)) + self.norms["skip"](x)
        else:
            y = F.conv2d(x, *self.equivalent(), padding=1)
        return y.relu()


@sample(4, 8, inputs=images(4), lengths=(6, 9))
class ModulatedDeformableConv(nn.Module):
    """Offsets and a mask, written with `grid_sample` for each tap of the kernel."""

    def __init__(self, cin, cout, k=3):
        super().__init__()
        self.k = k
        self.offset, self.mask = nn.Conv2d(cin, 2 * k * k, 3, padding=1), nn.Conv2d(cin, k * k, 3, padding=1)
        nn.init.normal_(self.offset.weight, std=0.05)
        self.weight = nn.Parameter(torch.randn(cout, cin, k * k) * 0.1)

    def forward(self, x):
        b, c, h, w = x.shape
        offset = self.offset(x).view(b, self.k**2, 2, h, w)
        mask = 2 * self.mask(x).sigmoid()
        ys, xs = torch.meshgrid(torch.arange(h, dtype=x.dtype), torch.arange(w, dtype=x.dtype), indexing="ij")
        taps = []
        for i in range(self.k):
            for j in range(self.k):
                n = i * self.k + j
                py = ys + i - self.k // 2 + offset[:, n, 0]
                px = xs + j - self.k // 2 + offset[:, n, 1]
                grid = torch.stack((2 * px / max(w - 1, 1) - 1, 2 * py / max(h - 1, 1) - 1), dim=-1)
                tap = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=True)
                taps.append(tap * mask[:, n : n + 1])
        return torch.einsum("nbchw,ocn->bohw", torch.stack(taps), self.weight)


@sample(4, inputs=images(4), lengths=(6, 9))
class InvolutionBlock(nn.Module):
    """Kernels made by each pixel, applied to unfolded neighbours."""

    def __init__(self, dim, k=3, groups=2):
        super().__init__()
        self.k, self.groups = k, groups
        self.reduce = nn.Sequential(nn.Conv2d(dim, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
        self.span = nn.Conv2d(2, k**2 * groups, 1)
        self.unfold = nn.Unfold(k, 1, (k - 1) // 2, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        weight = self.span(self.reduce(x)).view(b, self.groups, self.k**2, h, w).unsqueeze(2)
        out = self.unfold(x).view(b, self.groups, c // self.groups, self.k**2, h, w)
        return (weight * out).sum(dim=3).view(b, c, h, w)


@sample(3, 4, 12, inputs=images(3), lengths=(8, 12))
class OverlappingPatches(nn.Module):
    """Patches by `unfold` on tensors, positions resized to the grid, a class token, and the grid back."""

    def __init__(self, channels, patch, dim, grid=2):
        super().__init__()
        self.patch, self.grid = patch, grid
        self.proj = nn.Linear(channels * patch * patch, dim)
        self.pos_embed = nn.Parameter(torch.randn(1, grid * grid + 1, dim) * 0.02)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.block = nn.TransformerEncoderLayer(dim, 2, 2 * dim, activation="gelu", batch_first=True)

    def interpolate_pos_encoding(self, npatch, h, w):
        n = self.pos_embed.shape[1] - 1
        if npatch == n and w == h:
            return self.pos_embed
        cls_pos, patch_pos = self.pos_embed[:, 0], self.pos_embed[:, 1:]
        dim = self.pos_embed.shape[-1]
        patch_pos = patch_pos.reshape(1, int(math.sqrt(n)), int(math.sqrt(n)), dim).permute(0, 3, 1, 2)
        patch_pos = F.interpolate(patch_pos, size=(h, w), mode="bicubic", align_corners=False)
        return torch.cat((cls_pos.unsqueeze(0), patch_pos.permute(0, 2, 3, 1).view(1, -1, dim)), dim=1)

    def forward(self, x):
        b, p = x.shape[0], self.patch
        patches = x.unfold(2, p, p).unfold(3, p, p)
        h, w = patches.shape[2:4]
        tokens = self.proj(patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        tokens = torch.cat((self.cls_token.expand(b, -1, -1), tokens), dim=1)
        tokens = self.block(tokens + self.interpolate_pos_encoding(h * w, h, w))
        return tokens[:, 0], tokens[:, 1:].transpose(1, 2).reshape(b, -1, h, w)


@sample(8, inputs=images(8), lengths=(6, 10))
class OctaveBlock(nn.Module):
    """High and low frequencies, which exchange what they have."""

    def __init__(self, dim, alpha=0.5):
        super().__init__()
        low = int(dim * alpha)
        self.low = low
        self.hh, self.hl = nn.Conv2d(dim - low, dim - low, 3, 1, 1), nn.Conv2d(dim - low, low, 3, 1, 1)
        self.lh, self.ll = nn.Conv2d(low, dim - low, 3, 1, 1), nn.Conv2d(low, low, 3, 1, 1)

    def forward(self, x):
        high, low = x[:, self.low :], F.avg_pool2d(x[:, : self.low], 2)
        up = F.interpolate(self.lh(low), size=high.shape[-2:], mode="nearest")
        high, low = self.hh(high) + up, self.ll(low) + self.hl(F.max_pool2d(high, 2, stride=2))
        return high, low


@sample(8, inputs=images(8))
class GhostShuffle(nn.Module):
    """Cheap features beside real ones, then a shuffle of channels."""

    def __init__(self, dim, ratio=2):
        super().__init__()
        init = math.ceil(dim / ratio)
        self.primary = nn.Sequential(nn.Conv2d(dim, init, 1, bias=False), nn.BatchNorm2d(init), nn.ReLU6())
        self.cheap = nn.Sequential(nn.Conv2d(init, init, 3, 1, 1, groups=init), nn.BatchNorm2d(init), nn.ReLU6())
        self.oup = dim

    @staticmethod
    def channel_shuffle(x, groups):
        batchsize, num_channels, height, width = x.data.size()
        x = x.view(batchsize, groups, num_channels // groups, height, width)
        return torch.transpose(x, 1, 2).contiguous().view(batchsize, -1, height, width)

    def forward(self, x):
        x1 = self.primary(x)
        out = torch.cat([x1, self.cheap(x1)], dim=1)[:, : self.oup, :, :]
        return self.channel_shuffle(out, 2)


@sample(8, growth=4, inputs=lambda rows, length: {"init_features": torch.randn(rows, 8, length, length)})
class DenseConnections(nn.Module):
    def __init__(self, dim, growth, layers=3, memory_efficient=False):
        super().__init__()
        self.layers = nn.ModuleDict()
        for i in range(layers):
            width = dim + i * growth
            self.layers[f"denselayer{i + 1}"] = nn.Sequential(
                nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, growth, 3, padding=1, bias=False), nn.Dropout2d(0.1)
            )
        self.transition = nn.Sequential(nn.Conv2d(dim + layers * growth, dim, 1), nn.AvgPool2d(2, 2))

    def forward(self, init_features):
        if isinstance(init_features, torch.Tensor):
            init_features = [init_features]
        features = list(init_features)
        for _name, layer in self.layers.items():
            features.append(layer(torch.cat(features, 1)))
        return self.transition(torch.cat(features, 1))


@sample(8, inputs=images(8))
class SpatialPyramid(nn.Module):
    """Pools of several sizes, which are computed from the image as in the first papers."""

    def __init__(self, dim, levels=(1, 2, 4)):
        super().__init__()
        self.levels = levels
        self.fc = nn.Linear(dim * sum(level * level for level in levels), 10)

    def forward(self, x):
        n, c, h, w = x.size()
        for i, level in enumerate(self.levels):
            kh, kw = math.ceil(h / level), math.ceil(w / level)
            ph, pw = (kh * level - h + 1) // 2, (kw * level - w + 1) // 2
            pooled = F.max_pool2d(x, (kh, kw), stride=(kh, kw), padding=(ph, pw)).view(n, -1)
            spp = pooled if i == 0 else torch.cat((spp, pooled), 1)  # noqa: F821
        return self.fc(spp)


@sample(4, inputs=images(4), lengths=(8, 12))
class WaveletMixer(nn.Module):
    """A Haar transform by strided slices, a convolution on its bands, and the way back."""

    def __init__(self, dim):
        super().__init__()
        self.conv = nn.Conv2d(4 * dim, 4 * dim, 3, padding=1, groups=4)

    @staticmethod
    def dwt(x):
        x01, x02 = x[:, :, 0::2, :] / 2, x[:, :, 1::2, :] / 2
        a, b, c, d = x01[:, :, :, 0::2], x02[:, :, :, 0::2], x01[:, :, :, 1::2], x02[:, :, :, 1::2]
        return torch.cat((a + b + c + d, -a - b + c + d, -a + b - c + d, a - b - c + d), 1)

    @staticmethod
    def iwt(x):
        n, c, h, w = x.size()
        oc = c // 4
        x1, x2, x3, x4 = (x[:, i * oc : (i + 1) * oc] / 2 for i in range(4))
        out = torch.zeros([n, oc, h * 2, w * 2]).float().to(x.device)
        out[:, :, 0::2, 0::2] = x1 - x2 - x3 + x4
        out[:, :, 1::2, 0::2] = x1 - x2 + x3 - x4
        out[:, :, 0::2, 1::2] = x1 + x2 - x3 - x4
        out[:, :, 1::2, 1::2] = x1 + x2 + x3 + x4
        return out

    def forward(self, x):
        return x + self.iwt(F.hardtanh(self.conv(self.dwt(x))))


@sample(4, inputs=lambda rows, length: {"inp": torch.randn(rows, 4, length, length)}, lengths=(9, 13))
class BlurPoolPad(nn.Module):
    """Anti-aliased pooling with binomial filters, and reflected borders."""

    FILTERS = {3: [1.0, 2.0, 1.0], 5: [1.0, 4.0, 6.0, 4.0, 1.0]}

    def __init__(self, dim, filt_size=5, stride=2):
        super().__init__()
        self.stride, self.channels = stride, dim
        pads = [(filt_size - 1) // 2, math.ceil((filt_size - 1) / 2)]
        self.pad = nn.ReflectionPad2d(pads * 2)
        a = torch.tensor(self.FILTERS[filt_size])
        filt = a[:, None] * a[None, :]
        self.register_buffer("filt", (filt / filt.sum())[None, None].repeat((dim, 1, 1, 1)))
        self.scale = nn.Parameter(torch.ones(dim, 1, 1))

    def forward(self, inp):
        return F.conv2d(self.pad(inp), self.filt, stride=self.stride, groups=inp.shape[1]) * self.scale


@sample(6, inputs=images(6))
class CoordinatesAndShifts(nn.Module):
    """CoordConv, then a shift of groups of channels in four directions."""

    def __init__(self, dim, with_r=True):
        super().__init__()
        self.with_r = with_r
        self.conv = nn.Conv2d(dim + 2 + int(with_r), 8, 1)

    def forward(self, x):
        b, _, h, w = x.size()
        xx = torch.arange(h).repeat(1, w, 1)
        yy = torch.arange(w).repeat(1, h, 1).transpose(1, 2)
        xx, yy = xx.transpose(1, 2).float() / (h - 1) * 2 - 1, yy.transpose(1, 2).float() / (w - 1) * 2 - 1
        extra = [xx.repeat(b, 1, 1, 1), yy.repeat(b, 1, 1, 1)]
        if self.with_r:
            extra.append(torch.sqrt(torch.pow(extra[0] - 0.5, 2) + torch.pow(extra[1] - 0.5, 2)))
        y = self.conv(torch.cat([x, *extra], dim=1))
        out, g = torch.zeros_like(y), y.shape[1] // 4
        out[:, g * 0 : g * 1, :, :-1] = y[:, g * 0 : g * 1, :, 1:]
        out[:, g * 1 : g * 2, :, 1:] = y[:, g * 1 : g * 2, :, :-1]
        out[:, g * 2 : g * 3, :-1, :] = y[:, g * 2 : g * 3, 1:, :]
        out[:, g * 3 : g * 4, 1:, :] = y[:, g * 3 : g * 4, :-1, :]
        return out
