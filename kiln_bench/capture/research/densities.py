"""Densities and generators: flows, variational autoencoders, energies, adversarial layers."""

from __future__ import annotations

import itertools
import math
from abc import abstractmethod
from typing import NamedTuple

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import spectral_norm

from kiln_bench.capture.research.sample import features, images, sample, tokens


@sample(8, 16, inputs=features(8))
class CouplingFlow(nn.Module):
    """RealNVP: masks in turn, a clamped scale, the density, and the way back."""

    def __init__(self, dim, hidden, n=3):
        super().__init__()
        self.dim = dim
        self.nets = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 2 * dim)) for _ in range(n)
        )
        self.register_buffer("mask", torch.arange(dim) % 2 == 0)
        self.register_buffer("base_mean", torch.zeros(dim))

    def transform(self, x, i, reverse=False):
        m = (self.mask if i % 2 == 0 else ~self.mask).float()
        s, t = self.nets[i](x * m).chunk(2, dim=1)
        s = torch.tanh(s) * (1 - m)
        t = t * (1 - m)
        return ((x - t) * torch.exp(-s), -s.sum(1)) if reverse else (x * torch.exp(s) + t, s.sum(1))

    def forward(self, x):
        z, log_det = x, 0
        for i in range(len(self.nets)):
            z, ld = self.transform(z, i)
            log_det = log_det + ld
        prior = D.Independent(D.Normal(self.base_mean, torch.ones_like(self.base_mean)), 1)
        back = z
        for i in reversed(range(len(self.nets))):
            back, _ = self.transform(back, i, reverse=True)
        return -(prior.log_prob(z) + log_det).mean(), (back - x).abs().max() < 1e-3


class MaskedLinear(nn.Linear):
    def __init__(self, cin, cout, mask):
        super().__init__(cin, cout)
        self.register_buffer("mask", mask.float())

    def forward(self, x):
        return F.linear(x, self.mask * self.weight, self.bias)


@sample(5, 12, inputs=features(5))
class MaskedAutoregressiveFlow(nn.Module):
    """MADE's degrees as masks; a dimension at a time the other way."""

    def __init__(self, dim, hidden):
        super().__init__()
        degrees = [torch.arange(1, dim + 1), torch.arange(hidden) % (dim - 1) + 1]
        self.first = MaskedLinear(dim, hidden, degrees[1][:, None] >= degrees[0][None])
        self.second = MaskedLinear(hidden, 2 * dim, (degrees[0][:, None] > degrees[1][None]).repeat(2, 1))

    def params(self, x):
        mu, alpha = self.second(F.relu(self.first(x))).chunk(2, dim=-1)
        return mu, alpha.tanh()

    @torch.no_grad()
    def invert(self, u):
        x = torch.zeros_like(u)
        for i in range(u.shape[1]):
            mu, alpha = self.params(x)
            x[:, i] = u[:, i] * torch.exp(alpha[:, i]) + mu[:, i]
        return x

    def forward(self, x):
        mu, alpha = self.params(x)
        u = (x - mu) * torch.exp(-alpha)
        log_p = -0.5 * (u**2 + math.log(2 * math.pi)).sum(-1) - alpha.sum(-1)
        return log_p, self.invert(u.detach())


@sample(4, bins=4, inputs=features(4))
class SplineFlow(nn.Module):
    """Rational quadratic splines: knots by softmax, a search for the bin, and the identity outside."""

    def __init__(self, dim, bins, bound=3.0):
        super().__init__()
        self.bins, self.bound = bins, bound
        self.net = nn.Sequential(nn.Linear(dim // 2, 8), nn.Tanh(), nn.Linear(8, dim // 2 * (3 * bins - 1)))

    def knots(self, raw, least=1e-2):
        size = least + (1 - least * self.bins) * F.softmax(raw, dim=-1)
        cum = F.pad(torch.cumsum(size, dim=-1), pad=(1, 0), mode="constant", value=0.0)
        cum = 2 * self.bound * cum - self.bound
        cum[..., 0], cum[..., -1] = -self.bound, self.bound
        return cum, cum[..., 1:] - cum[..., :-1]

    def spline(self, x, w, h, d):
        inside = (x >= -self.bound) & (x <= self.bound)
        d = F.pad(d, (1, 1), value=math.log(math.exp(1 - 1e-3) - 1))
        (cw, w), (ch, h), d = self.knots(w), self.knots(h), 1e-3 + F.softplus(d)
        safe = x.clamp(-self.bound + 1e-4, self.bound - 1e-4)
        idx = (torch.sum(safe[..., None] >= cw, dim=-1) - 1)[..., None]
        take = lambda t: t.gather(-1, idx)[..., 0]  # noqa: E731
        delta = h / w
        theta = (safe - take(cw)) / take(w)
        t1 = theta * (1 - theta)
        num = take(h) * (take(delta) * theta.pow(2) + take(d) * t1)
        den = take(delta) + (take(d) + take(d[..., 1:]) - 2 * take(delta)) * t1
        out = take(ch) + num / den
        dnum = take(delta).pow(2) * (
            take(d[..., 1:]) * theta.pow(2) + 2 * take(delta) * t1 + take(d) * (1 - theta).pow(2)
        )
        logdet = torch.log(dnum) - 2 * torch.log(den)
        return torch.where(inside, out, x), torch.where(inside, logdet, torch.zeros_like(x))

    def forward(self, x):
        keep, change = x.chunk(2, -1)
        raw = self.net(keep).view(*change.shape, -1)
        w, h, d = raw.split([self.bins, self.bins, self.bins - 1], dim=-1)
        y, logdet = self.spline(change, w, h, d)
        return torch.cat([keep, y], -1), logdet.sum(-1)


@sample(4, inputs=images(4), lengths=(4, 6))
class GlowStep(nn.Module):
    """Activation norm set by the first batch, an invertible 1x1 convolution by LU parts, squeezing."""

    def __init__(self, channels):
        super().__init__()
        c = channels * 4
        q = torch.linalg.qr(torch.randn(c, c))[0]
        p, l, u = torch.linalg.lu(q)
        s = torch.diagonal(u)
        self.register_buffer("p", p)
        self.register_buffer("sign_s", torch.sign(s))
        self.register_buffer("initialized", torch.tensor(0, dtype=torch.uint8))
        self.l, self.log_s, self.u = (
            nn.Parameter(l),
            nn.Parameter(torch.log(torch.abs(s))),
            nn.Parameter(torch.triu(u, 1)),
        )
        self.loc, self.log_scale = nn.Parameter(torch.zeros(1, c, 1, 1)), nn.Parameter(torch.zeros(1, c, 1, 1))

    @torch.no_grad()
    def initialize(self, x):
        flat = x.permute(1, 0, 2, 3).reshape(x.shape[1], -1)
        first = self.initialized == 0
        self.loc.data.copy_(torch.where(first, -flat.mean(1).view(1, -1, 1, 1), self.loc))
        self.log_scale.data.copy_(torch.where(first, -torch.log(flat.std(1) + 1e-6).view(1, -1, 1, 1), self.log_scale))
        self.initialized.fill_(1)

    def weight(self):
        c = self.l.shape[0]
        lower = torch.tril(self.l, -1) + torch.eye(c)
        return self.p @ lower @ (torch.triu(self.u, 1) + torch.diag(self.sign_s * torch.exp(self.log_s)))

    def forward(self, x):
        b, c, h, w = x.shape
        x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4).contiguous().view(b, c * 4, h // 2, w // 2)
        self.initialize(x)
        x = torch.exp(self.log_scale) * (x + self.loc)
        z = F.conv2d(x, self.weight().unsqueeze(2).unsqueeze(3))
        logdet = (h // 2) * (w // 2) * (self.log_s.sum() + self.log_scale.sum())
        return z, logdet


class VaeOutput(NamedTuple):
    recon: torch.Tensor
    elbo: torch.Tensor
    mu: torch.Tensor


class BaseVae(nn.Module):
    @abstractmethod
    def encode(self, x):
        raise NotImplementedError

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std if self.training else mu

    def kl(self, mu, logvar):
        return -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp(), dim=1)


@sample(8, latent=3, inputs=features(8))
class BetaTcVae(BaseVae):
    """Total correlation by a matrix of densities with stratified weights."""

    def __init__(self, dim, latent, beta=4.0):
        super().__init__()
        self.enc, self.dec, self.beta = nn.Linear(dim, 2 * latent), nn.Linear(latent, dim), beta

    def encode(self, x):
        return self.enc(x).chunk(2, -1)

    @staticmethod
    def log_density(z, mu, logvar):
        return -0.5 * (math.log(2 * math.pi) + logvar) - 0.5 * ((z - mu) ** 2 * torch.exp(-logvar))

    def forward(self, x):
        mu, logvar = self.encode(x)
        z = self.reparameterize(mu, logvar)
        recon = self.dec(z)
        n = x.shape[0]
        mat = self.log_density(z.view(n, 1, -1), mu.view(1, n, -1), logvar.view(1, n, -1))
        log_iw = torch.full((n, n), 1 / (n - 1)).fill_diagonal_(1 / n).log()
        log_qz = torch.logsumexp(log_iw + mat.sum(2), dim=1)
        log_prod = torch.logsumexp(log_iw.view(n, n, -1) + mat, dim=1).sum(1)
        log_qzx = self.log_density(z, mu, logvar).sum(1)
        log_pz = self.log_density(z, torch.zeros_like(z), torch.zeros_like(z)).sum(1)
        elbo = (log_qzx - log_qz) + self.beta * (log_qz - log_prod) + (log_prod - log_pz)
        return VaeOutput(recon, (elbo + F.mse_loss(recon, x, reduction="none").sum(1)).mean(), mu)


@sample(8, inputs=features(8))
class LadderVae(BaseVae):
    """Precision-weighted posteriors from above and below, with free bits."""

    def __init__(self, dim, widths=(6, 3), free_bits=0.1):
        super().__init__()
        dims = [dim, *widths]
        self.ups = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.LeakyReLU()) for a, b in itertools.pairwise(dims))
        self.stats = nn.ModuleList(nn.Linear(w, 2 * w) for w in widths)
        self.downs = nn.ModuleList(nn.Linear(b, 2 * a) for a, b in itertools.pairwise(dims))
        self.free_bits = free_bits

    def forward(self, x):
        found, h = [], x
        for up, stats in zip(self.ups, self.stats, strict=True):
            h = up(h)
            found.append(stats(h).chunk(2, dim=-1))
        kls, z = [], None
        for i in range(len(found) - 1, -1, -1):
            mu_d, logvar_d = found[i]
            if z is None:
                mu_p = logvar_p = torch.zeros_like(mu_d)
                q_mu, q_logvar = mu_d, logvar_d
            else:
                mu_p, logvar_p = self.downs[i + 1](z).chunk(2, dim=-1)
                prec_d, prec_p = torch.exp(-logvar_d), torch.exp(-logvar_p)
                q_mu = (mu_d * prec_d + mu_p * prec_p) / (prec_d + prec_p)
                q_logvar = -torch.log(prec_d + prec_p)
            z = self.reparameterize(q_mu, q_logvar)
            kl = 0.5 * (logvar_p - q_logvar + (q_logvar.exp() + (q_mu - mu_p) ** 2) / logvar_p.exp() - 1)
            kls.append(torch.clamp(kl.mean(0), min=self.free_bits).sum())
        out, _ = self.downs[0](z).chunk(2, -1)
        return VaeOutput(out, F.mse_loss(out, x) + sum(kls), q_mu)


@sample(10, inputs=tokens(10))
class CategoricalAutoencoder(nn.Module):
    """Relaxed one-hot latents, and REINFORCE with a running baseline beside them."""

    def __init__(self, vocab, latents=2, k=4):
        super().__init__()
        self.embed, self.latents, self.k = nn.EmbeddingBag(vocab, 8, mode="mean"), latents, k
        self.to_logits, self.dec = nn.Linear(8, latents * k), nn.Linear(latents * k, vocab)
        self.register_buffer("baseline", torch.tensor(0.0))

    def forward(self, ids):
        logits = self.to_logits(self.embed(ids)).view(-1, self.latents, self.k)
        q = D.Categorical(logits=logits)
        z = F.gumbel_softmax(logits, tau=0.7, hard=False) if self.training else F.softmax(logits, -1)
        target = F.one_hot(ids, self.dec.out_features).float().mean(1)
        relaxed = F.cross_entropy(self.dec(z.flatten(1)), target)
        hard = q.sample() if self.training else logits.argmax(-1)
        reward = -F.cross_entropy(self.dec(F.one_hot(hard, self.k).float().flatten(1)), target, reduction="none")
        advantage = (reward - self.baseline).detach()
        if self.training:
            self.baseline.lerp_(reward.detach().mean(), 0.1)
        return relaxed - (q.log_prob(hard).sum(-1) * advantage).mean() - 0.01 * q.entropy().mean()


@sample(6, steps=4, inputs=features(6))
class EnergyModel(nn.Module):
    """Langevin steps with gradients of an energy, written out for one hidden layer, and a replay buffer."""

    def __init__(self, dim, steps, width=12):
        super().__init__()
        self.w, self.v, self.steps = nn.Linear(dim, width), nn.Linear(width, 1), steps
        self.register_buffer("replay", torch.randn(32, dim))

    def energy(self, x):
        return self.v(F.softplus(self.w(x))).squeeze(-1)

    def score(self, x):
        return (torch.sigmoid(self.w(x)) * self.v.weight) @ self.w.weight

    def forward(self, x):
        n = min(x.shape[0], self.replay.shape[0])
        fake = self.replay[:n].clone()
        for k in range(self.steps):
            fake = fake - 0.05 * self.score(fake).detach().clamp(-0.5, 0.5)
            if self.training:
                fake = fake + 0.005 * torch.randn_like(fake) * (1 - k / self.steps)
        with torch.no_grad():
            self.replay[:n] = fake
        pos, neg = self.energy(x), self.energy(fake)
        return pos.mean() - neg.mean() + 0.1 * (pos.pow(2).mean() + neg.pow(2).mean())


@sample(3, inputs=images(3), lengths=(8, 12))
class SpectralDiscriminator(nn.Module):
    """Spectral norms in the old form, projected labels, and a deviation of the batch as a feature."""

    def __init__(self, cin, width=6):
        super().__init__()
        self.body = nn.Sequential(
            spectral_norm(nn.Conv2d(cin, width, 4, 2, 1)),
            nn.LeakyReLU(0.1),
            spectral_norm(nn.Conv2d(width, width, 3, 1, 1)),
        )
        self.embed = nn.utils.parametrizations.spectral_norm(nn.Embedding(4, width + 1))
        self.out = nn.Linear(width + 1, 1)

    @staticmethod
    def batch_stddev(x):
        n, c, h, w = x.shape
        std = torch.sqrt(x.var(0, unbiased=False) + 1e-8).mean().view(1, 1, 1, 1).expand(n, 1, h, w)
        return torch.cat([x, std], 1)

    def forward(self, x):
        h = torch.sum(F.relu(self.batch_stddev(self.body(x))), dim=(2, 3))
        y = torch.arange(x.size(0)) % 4
        return self.out(h).squeeze(1) + torch.sum(self.embed(y) * h, dim=1)


@sample(6, 8, inputs=lambda rows, length: {"x": torch.randn(rows, 6, length, length), "w": torch.randn(rows, 5)})
class ModulatedConv(nn.Module):
    """StyleGAN2: weights scaled by styles and normalised for each row, one grouped convolution, noise."""

    def __init__(self, cin, cout, k=3, style=5, demodulate=True):
        super().__init__()
        self.scale, self.demodulate, self.k = 1 / math.sqrt(cin * k**2), demodulate, k
        self.weight = nn.Parameter(torch.randn(1, cout, cin, k, k))
        self.modulation = nn.Linear(style, cin)
        self.modulation.bias.data.fill_(1)
        self.noise_weight, self.bias = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1, cout, 1, 1))
        kernel = torch.tensor([1.0, 3.0, 3.0, 1.0])
        kernel = kernel[None, :] * kernel[:, None]
        self.register_buffer("blur", (kernel / kernel.sum() * 4)[None, None])

    def upsample(self, x):
        b, c, h, w = x.shape
        x = F.pad(x.view(b, c, h, 1, w, 1), [0, 1, 0, 0, 0, 1]).view(b, c, h * 2, w * 2)
        return F.conv2d(F.pad(x, [2, 1, 2, 1]), self.blur.repeat(c, 1, 1, 1), groups=c)

    def forward(self, x, w):
        batch, cin, height, width = x.shape
        style = self.modulation(w).view(batch, 1, cin, 1, 1)
        weight = self.scale * self.weight * style
        if self.demodulate:
            demod = torch.rsqrt(weight.pow(2).sum([2, 3, 4]) + 1e-8)
            weight = weight * demod.view(batch, -1, 1, 1, 1)
        weight = weight.view(-1, cin, self.k, self.k)
        out = F.conv2d(x.reshape(1, batch * cin, height, width), weight, padding=self.k // 2, groups=batch)
        out = out.view(batch, -1, height, width)
        out = self.upsample(out)
        noise = torch.randn(batch, 1, *out.shape[2:]) if self.training else torch.zeros_like(out[:, :1])
        return F.leaky_relu(out + self.noise_weight * noise + self.bias, 0.2) * math.sqrt(2)


@sample(
    6,
    inputs=lambda rows, length: {
        "x": torch.randn(rows, 6, length, length),
        "style": torch.randn(rows, 6, length + 1, length + 1),
    },
)
class AdaptiveInstanceBlock(nn.Module):
    """Statistics of a style on content, SPADE from a map, and self attention with an opening gate."""

    def __init__(self, dim):
        super().__init__()
        self.norm = nn.InstanceNorm2d(dim, affine=False, track_running_stats=True)
        self.shared, self.gamma, self.beta = nn.Conv2d(dim, 8, 3, padding=1), nn.Conv2d(8, dim, 1), nn.Conv2d(8, dim, 1)
        self.f, self.g, self.h = nn.Conv2d(dim, 2, 1), nn.Conv2d(dim, 2, 1), nn.Conv2d(dim, dim, 1)
        self.gate = nn.Parameter(torch.tensor(0.1))

    @staticmethod
    def stats(feat, eps=1e-5):
        size = feat.size()
        assert len(size) == 4
        n, c = size[:2]
        std = (feat.view(n, c, -1).var(dim=2) + eps).sqrt().view(n, c, 1, 1)
        return feat.view(n, c, -1).mean(dim=2).view(n, c, 1, 1), std

    def forward(self, x, style):
        (sm, ss), (cm, cs) = self.stats(style), self.stats(x)
        y = (x - cm.expand(x.size())) / cs.expand(x.size()) * ss + sm
        seg = F.relu(self.shared(F.interpolate(style, size=x.size()[2:], mode="nearest")))
        y = self.norm(y) * (1 + self.gamma(seg)) + self.beta(seg)
        b, c, h, w = y.shape
        beta = torch.bmm(self.f(y).view(b, -1, h * w).transpose(1, 2), self.g(y).view(b, -1, h * w)).softmax(-1)
        return self.gate * torch.bmm(self.h(y).view(b, c, -1), beta.transpose(1, 2)).view(b, c, h, w) + y


@sample(6, inputs=features(6))
class MinibatchDiscrimination(nn.Module):
    """Differences between all rows of a batch, and losses of both players."""

    def __init__(self, dim, kernels=3, width=4):
        super().__init__()
        self.T = nn.Parameter(torch.randn(dim, kernels, width))
        self.d, self.g = nn.Linear(dim + kernels, 1), nn.Linear(dim, dim)

    def critic(self, x):
        m = x.mm(self.T.view(x.size(1), -1)).view(-1, *self.T.shape[1:])
        norm = torch.abs(m.unsqueeze(0) - m.unsqueeze(1)).sum(3)
        return self.d(torch.cat([x, torch.exp(-norm).sum(0) - 1], dim=1))

    def forward(self, x):
        fake = self.g(torch.randn_like(x) if self.training else x.flip(0))
        real_score, fake_score = self.critic(x), self.critic(fake.detach())
        hinge = F.relu(1.0 - real_score).mean() + F.relu(1.0 + fake_score).mean()
        alpha = torch.rand(x.size(0), 1) if self.training else 0.5
        mixed = self.critic(alpha * x + (1 - alpha) * fake.detach())
        return {"d": hinge, "g": -self.critic(fake).mean(), "gap": (mixed - real_score).pow(2).mean()}
