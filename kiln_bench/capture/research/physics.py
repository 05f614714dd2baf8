"""Operators and symmetries: spectral layers, equivariant features, residuals of equations, simulators in steps."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import jacfwd, jvp, vmap

from kiln_bench.capture.research.sample import features, images, sample, vectors, waves


class SpectralConv2d(nn.Module):
    def __init__(self, cin, cout, modes1, modes2):
        super().__init__()
        self.cout, self.modes1, self.modes2 = cout, modes1, modes2
        scale = 1 / (cin * cout)
        self.weights1 = nn.Parameter(scale * torch.rand(cin, cout, modes1, modes2, dtype=torch.cfloat))
        self.weights2 = nn.Parameter(scale * torch.rand(cin, cout, modes1, modes2, dtype=torch.cfloat))

    def forward(self, x):
        x_ft = torch.fft.rfft2(x)
        out_ft = torch.zeros(
            x.shape[0], self.cout, x.size(-2), x.size(-1) // 2 + 1, dtype=torch.cfloat, device=x.device
        )
        mul = partial(torch.einsum, "bixy,ioxy->boxy")
        out_ft[:, :, : self.modes1, : self.modes2] = mul(x_ft[:, :, : self.modes1, : self.modes2], self.weights1)
        out_ft[:, :, -self.modes1 :, : self.modes2] = mul(x_ft[:, :, -self.modes1 :, : self.modes2], self.weights2)
        return torch.fft.irfft2(out_ft, s=(x.size(-2), x.size(-1)))


@sample(2, width=4, inputs=images(2), lengths=(8, 12))
class FourierOperator(nn.Module):
    """FNO: coordinates from NumPy beside the field, spectral and pointwise paths, padding."""

    def __init__(self, channels, width, modes=3, padding=2):
        super().__init__()
        self.fc0, self.padding = nn.Linear(channels + 2, width), padding
        self.convs = nn.ModuleList(SpectralConv2d(width, width, modes, modes) for _ in range(2))
        self.ws = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))
        self.fc1 = nn.Linear(width, 1)

    def get_grid(self, shape):
        b, size_x, size_y = shape[0], shape[1], shape[2]
        gridx = (
            torch.tensor(np.linspace(0, 1, size_x), dtype=torch.float)
            .reshape(1, size_x, 1, 1)
            .repeat([b, 1, size_y, 1])
        )
        gridy = (
            torch.tensor(np.linspace(0, 1, size_y), dtype=torch.float)
            .reshape(1, 1, size_y, 1)
            .repeat([b, size_x, 1, 1])
        )
        return torch.cat((gridx, gridy), dim=-1)

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        x = self.fc0(torch.cat((x, self.get_grid(x.shape)), dim=-1)).permute(0, 3, 1, 2)
        x = F.pad(x, [0, self.padding, 0, self.padding])
        for i, (conv, w) in enumerate(zip(self.convs, self.ws, strict=True)):
            x = conv(x) + w(x)
            if i < len(self.convs) - 1:
                x = F.gelu(x)
        x = x[..., : -self.padding, : -self.padding]
        return self.fc1(x.permute(0, 2, 3, 1))


@sample(6, inputs=lambda rows, length: {"u": torch.randn(rows, 6), "y": torch.rand(length, 2)})
class DeepOperator(nn.Module):
    """Branch and trunk networks, and the derivatives of the trunk by `jacfwd`."""

    def __init__(self, sensors, p=5):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(sensors, 8), nn.Tanh(), nn.Linear(8, p))
        self.trunk = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, p))
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, u, y):
        coeff = self.branch(u)
        values = torch.einsum("bp,np->bn", coeff, self.trunk(y)) + self.b
        slopes = torch.einsum("bp,npd->bnd", coeff, vmap(jacfwd(self.trunk))(y))
        return values, slopes


@sample(12, inputs=features(2))
class BurgersResidual(nn.Module):
    """A physics-informed network: derivatives by nested forward mode."""

    def __init__(self, width, nu=0.05):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 1))
        self.log_nu = nn.Parameter(torch.tensor(math.log(nu)))

    def forward(self, x):
        u = lambda z: self.net(z)  # noqa: E731
        e_x, e_t = torch.zeros_like(x), torch.zeros_like(x)
        e_x[:, 0], e_t[:, 1] = 1, 1
        d_x = lambda z: jvp(u, (z,), (e_x,))[1]  # noqa: E731
        value, u_t = jvp(u, (x,), (e_t,))
        u_x, u_xx = jvp(d_x, (x,), (e_x,))
        residual = u_t + value * u_x - self.log_nu.exp() * u_xx
        return residual.pow(2).mean(), value


@sample(5, inputs=lambda rows, length: {"s": torch.randn(rows, length, 5), "v": torch.randn(rows, length, 4, 3)})
class VectorPerceptron(nn.Module):
    """GVP: scalars and vectors, gates from norms, dropout of whole vectors."""

    def __init__(self, s_dim, v_dim=4, h_dim=6):
        super().__init__()
        self.wh, self.wv = nn.Linear(v_dim, h_dim, bias=False), nn.Linear(h_dim, v_dim, bias=False)
        self.ws, self.gate = nn.Linear(s_dim + h_dim, s_dim), nn.Linear(s_dim, v_dim)
        self.scalar_norm, self.drop_rate = nn.LayerNorm(s_dim), 0.1
        self.dummy_param = nn.Parameter(torch.empty(0))

    @staticmethod
    def norm_no_nan(x, dim=-1, keepdim=False, eps=1e-8, sqrt=True):
        out = torch.clamp(torch.sum(torch.square(x), dim, keepdim), min=eps)
        return torch.sqrt(out) if sqrt else out

    def drop_vectors(self, v):
        if not self.training:
            return v
        device = self.dummy_param.device
        mask = torch.bernoulli((1 - self.drop_rate) * torch.ones(v.shape[:-1], device=device)).unsqueeze(-1)
        return mask * v / (1 - self.drop_rate)

    def forward(self, s, v):
        vh = self.wh(v.transpose(-1, -2))
        s = self.ws(torch.cat([s, self.norm_no_nan(vh, dim=-2)], -1))
        v = self.wv(vh).transpose(-1, -2) * torch.sigmoid(self.gate(s)).unsqueeze(-1)
        vn = torch.sqrt(torch.mean(self.norm_no_nan(v, dim=-1, keepdim=True, sqrt=False), dim=-2, keepdim=True))
        return self.scalar_norm(F.relu(s)), self.drop_vectors(v / vn)


@sample(3, inputs=lambda rows, length: {"pos": torch.randn(rows * length, 3)})
class SphericalHarmonicsConv(nn.Module):
    """Harmonics to degree two, radial weights by path, products of degrees with a table."""

    PATHS = ((0, 1, 1), (1, 1, 0), (1, 0, 1), (2, 0, 2), (0, 2, 2))

    def __init__(self, basis):
        super().__init__()
        self.radial = nn.Sequential(nn.Linear(basis, 6), nn.SiLU(), nn.Linear(6, len(self.PATHS)))
        self.register_buffer("centres", torch.linspace(0, 3, basis))

    @staticmethod
    def harmonics(r):
        x, y, z = r.unbind(-1)
        y0 = torch.full_like(x, 0.5 / math.sqrt(math.pi)).unsqueeze(-1)
        y1 = math.sqrt(3 / (4 * math.pi)) * torch.stack([y, z, x], dim=-1)
        c = math.sqrt(15 / (4 * math.pi))
        y2 = torch.stack(
            [c * x * y, c * y * z, c / (2 * math.sqrt(3)) * (3 * z**2 - 1), c * x * z, c / 2 * (x**2 - y**2)], -1
        )
        return {0: y0, 1: y1, 2: y2}

    def forward(self, pos):
        d = pos.norm(dim=-1, keepdim=True)
        sh = self.harmonics(pos / d)
        w = self.radial(torch.exp(-((d - self.centres) ** 2)))
        out = {}
        for i, (l1, l2, l3) in enumerate(self.PATHS):
            a, b = sh[l1], sh[l2].roll(1, 0)
            term = (
                (a * b).sum(-1, keepdim=True) if l3 == 0 else (a * b if min(l1, l2) == 0 else torch.linalg.cross(a, b))
            )
            out[l3] = out.get(l3, 0) + w[:, i : i + 1] * term
        return {f"l{k}": v for k, v in sorted(out.items())}


@sample(2, inputs=images(2), lengths=(6, 8))
class RotatedGroupConv(nn.Module):
    """Filters turned by four angles; the group axis is pooled at the end."""

    def __init__(self, cin, cout=3):
        super().__init__()
        self.lift = nn.Parameter(torch.randn(cout, cin, 3, 3) * 0.3)
        self.group = nn.Parameter(torch.randn(cout, cout, 4, 3, 3) * 0.2)

    def forward(self, x):
        lifted = torch.stack([torch.rot90(self.lift, k, (-2, -1)) for k in range(4)], dim=1).flatten(0, 1)
        h = F.relu(F.conv2d(x, lifted, padding=1))
        turned = [torch.rot90(torch.roll(self.group, k, dims=2), k, [3, 4]) for k in range(4)]
        kernel = torch.stack(turned, dim=1)
        o, g, i, s, *_ = kernel.shape
        y = F.conv2d(h, kernel.reshape(o * g, i * s, 3, 3), padding=1)
        return y.view(x.shape[0], o, g, *x.shape[2:]).amax(2)


@sample(4, inputs=images(1), lengths=(8, 10))
class DiffusionSolver(nn.Module):
    """A heat equation in steps by slices that are written in place, with learned conductivity and borders."""

    def __init__(self, steps, dt=0.1):
        super().__init__()
        self.steps, self.dt = steps, dt
        self.net = nn.Conv2d(1, 1, 3, padding=1, padding_mode="replicate")

    def forward(self, x):
        k = torch.sigmoid(self.net(x))
        u = x.clone()
        for _ in range(self.steps):
            lap = torch.zeros_like(u)
            c = u[..., 1:-1, 1:-1]
            lap[..., 1:-1, 1:-1] = u[..., 2:, 1:-1] + u[..., :-2, 1:-1] + u[..., 1:-1, 2:] + u[..., 1:-1, :-2] - 4 * c
            u = u + self.dt * k * lap
            u[..., 0, :], u[..., -1, :] = u[..., 1, :].clone(), u[..., -2, :].clone()
        return u, (u.sum() - x.sum()).abs()


@sample(3, inputs=lambda rows, length: {"pos": torch.rand(rows, length, 2), "vel": torch.randn(rows, length, 2) * 0.1})
class ParticleSimulator(nn.Module):
    """Neighbours by a radius as a mask, learned forces that are equal and opposite, reflecting walls."""

    def __init__(self, steps, radius=0.4):
        super().__init__()
        self.steps, self.radius = steps, radius
        self.force = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1))
        self.register_buffer("bounds", torch.tensor([[0.0, 0.0], [1.0, 1.0]]))

    def forward(self, pos, vel, dt=0.05):
        history, n = [pos], pos.shape[1]
        for _ in range(self.steps):
            diff = pos.unsqueeze(2) - pos.unsqueeze(1)
            dist = (diff.pow(2).sum(-1) + 1e-6).sqrt()
            near = (dist < self.radius) & ~torch.eye(n, dtype=torch.bool)
            mag = self.force(torch.cat([diff.abs(), dist.unsqueeze(-1)], -1)).squeeze(-1).masked_fill(~near, 0)
            vel = vel + dt * (diff / dist.unsqueeze(-1) * mag.unsqueeze(-1)).sum(2)
            pos = pos + dt * vel
            outside = torch.logical_or(pos < self.bounds[0], pos > self.bounds[1])
            vel = torch.where(outside, -vel, vel)
            pos = torch.min(torch.max(pos, self.bounds[0]), self.bounds[1])
            history.append(pos)
        return torch.stack(history, 1), vel


@sample(6, inputs=vectors(6))
class KoopmanOperator(nn.Module):
    """Blocks of rotations and decays as a linear step of encoded states; several steps ahead by a power."""

    def __init__(self, dim, pairs=2):
        super().__init__()
        self.enc, self.dec = nn.Linear(dim, 2 * pairs), nn.Linear(2 * pairs, dim)
        self.omega, self.mu = nn.Parameter(torch.rand(pairs)), nn.Parameter(-torch.rand(pairs))

    def matrix(self, dt=0.1):
        c, s, e = torch.cos(self.omega * dt), torch.sin(self.omega * dt), torch.exp(self.mu * dt)
        blocks = [e[i] * torch.stack([torch.stack([c[i], -s[i]]), torch.stack([s[i], c[i]])]) for i in range(len(e))]
        return torch.block_diag(*blocks)

    def forward(self, x):
        K, z = self.matrix(), self.enc(x)
        losses = {"recon": F.mse_loss(self.dec(z), x)}
        for k in (1, 2, 3):
            future = z[:, :-k] @ torch.linalg.matrix_power(K, k).T
            losses[f"step{k}"] = F.mse_loss(future, z[:, k:].detach())
        eig = torch.linalg.eigvals(K.detach()).abs().max()
        return losses, eig


@sample(3, inputs=waves(3), lengths=(16, 24))
class MultiwaveletBlock(nn.Module):
    """Even and odd parts, mixed at each level by spectra, put together on the way back."""

    def __init__(self, channels, levels=2, modes=3):
        super().__init__()
        self.levels, self.modes = levels, modes
        self.low, self.high = nn.Linear(2 * channels, channels), nn.Linear(2 * channels, channels)
        self.A = nn.Parameter(torch.randn(levels, channels, channels, modes, 2) * 0.2)
        self.up = nn.Linear(2 * channels, 2 * channels)

    def mix(self, x, level):
        spec = torch.fft.rfft(x, dim=1)
        l = min(self.modes, x.shape[1] // 2 + 1)
        out = torch.zeros_like(spec)
        out[:, :l] = torch.einsum(
            "blc,cdl->bld", spec[:, :l], torch.view_as_complex(self.A[level].contiguous())[..., :l]
        )
        return torch.fft.irfft(out, n=x.shape[1], dim=1)

    def forward(self, x):
        x, kept = x.mT, []
        for level in range(self.levels):
            pair = torch.cat([x[:, ::2], x[:, 1::2]], -1)
            kept.append(self.mix(self.high(pair), level))
            x = self.low(pair)
        for detail in reversed(kept):
            pair = self.up(torch.cat([x, detail], -1))
            b, n, c = pair.shape
            x = torch.stack(pair.chunk(2, -1), dim=2).reshape(b, 2 * n, c // 2)
        return x.mT


@sample(4, inputs=lambda rows, length: {"charges": torch.randn(rows, length), "pos": torch.rand(rows, length, 3)})
class EwaldSummation(nn.Module):
    """A sum over a lattice in real space and one over waves, from a `cartesian_prod`."""

    def __init__(self, kmax, alpha=2.0):
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))
        k = torch.arange(-1, 2).float()
        waves = torch.cartesian_prod(k, k, k)
        self.register_buffer("k", 2 * math.pi * waves[waves.norm(dim=1) > 0][:: max(1, 5 - kmax)])

    def forward(self, charges, pos):
        d = pos[:, :, None] - pos[:, None]
        d = d - torch.round(d)
        eye = torch.eye(pos.shape[1], dtype=torch.bool)
        r = torch.where(eye[None, :, :, None], torch.ones_like(d), d).norm(dim=-1)
        qq = charges[:, :, None] * charges[:, None]
        real = 0.5 * torch.where(eye, 0.0, qq * torch.erfc(self.alpha * r) / r).sum((1, 2))
        phase = torch.einsum("bnd,kd->bnk", pos, self.k)
        s = (charges.unsqueeze(-1) * torch.exp(1j * phase)).sum(1)
        k2 = self.k.pow(2).sum(-1)
        recip = (2 * math.pi / k2 * torch.exp(-k2 / (4 * self.alpha**2)) * s.abs() ** 2).sum(-1)
        return real + recip - self.alpha / math.sqrt(math.pi) * charges.pow(2).sum(-1)
