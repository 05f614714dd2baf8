"""Diffusion: schedules, samplers, blocks of denoisers, conditioning, consistency and flow matching."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from functools import partial
from random import random
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import images, sample, vectors


def extract(a, t, x_shape):
    b, *_ = t.shape
    return a.gather(-1, t).reshape(b, *((1,) * (len(x_shape) - 1)))


def sinusoidal(t, dim, max_period=100.0):
    half = dim // 2
    freqs = torch.exp(-math.log(max_period) * torch.arange(half, dtype=torch.float32) / half).to(t.device)
    args = t[:, None].float() * freqs[None]
    emb = torch.cat([torch.cos(args), torch.sin(args)], dim=-1)
    if dim % 2:
        emb = torch.cat([emb, torch.zeros_like(emb[:, :1])], dim=-1)
    return emb


def timed(channels, steps=10):
    return lambda rows, length: {"x": torch.randn(rows, channels, length, length), "t": torch.randint(steps, (rows,))}


class TinyDenoiser(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.conv, self.time = nn.Conv2d(dim, dim, 3, padding=1), nn.Linear(8, dim)

    def forward(self, x, t):
        return self.conv(F.silu(x + self.time(sinusoidal(t, 8))[..., None, None]))


@sample(3, steps=10, inputs=images(3))
class DenoisingProcess(nn.Module):
    """DDPM: schedules in float64 made float32 by a partial, objectives by name, weights of loss, self-conditioning."""

    def __init__(self, channels, steps, objective="pred_v", schedule="cosine"):
        super().__init__()
        self.model, self.objective, self.num_timesteps = TinyDenoiser(channels), objective, steps
        betas = {"cosine": self.cosine, "linear": lambda n: torch.linspace(1e-2, 0.2, n, dtype=torch.float64)}[
            schedule
        ](steps)
        alphas_cumprod = torch.cumprod(1.0 - betas, dim=0)
        register_buffer = lambda name, val: self.register_buffer(name, val.to(torch.float32))  # noqa: E731
        register_buffer("sqrt_ac", torch.sqrt(alphas_cumprod))
        register_buffer("sqrt_om", torch.sqrt(1.0 - alphas_cumprod))
        snr = alphas_cumprod / (1 - alphas_cumprod)
        register_buffer("loss_weight", snr.clamp(max=5) / (snr + 1))

    @staticmethod
    def cosine(timesteps, s=0.008):
        x = torch.linspace(0, timesteps, timesteps + 1, dtype=torch.float64)
        ac = torch.cos(((x / timesteps) + s) / (1 + s) * math.pi * 0.5) ** 2
        ac = ac / ac[0]
        return torch.clip(1 - (ac[1:] / ac[:-1]), 0, 0.999)

    def forward(self, x):
        b, device = x.shape[0], x.device
        t = torch.randint(0, self.num_timesteps, (b,), device=device).long()
        noise = torch.randn_like(x)
        x_t = extract(self.sqrt_ac, t, x.shape) * x + extract(self.sqrt_om, t, x.shape) * noise
        out = self.model(x_t, t)
        if self.objective == "pred_noise":
            target = noise
        elif self.objective == "pred_v":
            target = extract(self.sqrt_ac, t, x.shape) * noise - extract(self.sqrt_om, t, x.shape) * x
        else:
            raise ValueError(f"unknown objective {self.objective}")
        loss = F.mse_loss(out, target, reduction="none").flatten(1).mean(1)
        return (loss * extract(self.loss_weight, t, loss.shape)).mean()


@sample(3, inputs=images(3))
class ImplicitSampler(nn.Module):
    """DDIM: pairs of times from a list, clipped predictions, a fraction of noise."""

    def __init__(self, channels, steps=10, sampling=3, eta=0.5):
        super().__init__()
        self.model, self.eta = TinyDenoiser(channels), eta
        self.register_buffer("ac", torch.cumprod(1 - torch.linspace(1e-2, 0.3, steps), 0))
        times = list(reversed(torch.linspace(-1, steps - 1, steps=sampling + 1).int().tolist()))
        self.time_pairs = list(itertools.pairwise(times))

    def forward(self, x):
        img, trajectory = x, [x]
        for time, time_next in self.time_pairs:
            cond = torch.full((x.shape[0],), time, device=x.device, dtype=torch.long)
            alpha = self.ac[time]
            pred = self.model(img, cond)
            x_start = ((img - (1 - alpha).sqrt() * pred) / alpha.sqrt()).clamp_(-1.0, 1.0)
            if time_next < 0:
                img = x_start
                trajectory.append(img)
                continue
            alpha_next = self.ac[time_next]
            sigma = self.eta * ((1 - alpha / alpha_next) * (1 - alpha_next) / (1 - alpha)).sqrt()
            c = (1 - alpha_next - sigma**2).sqrt()
            img = x_start * alpha_next.sqrt() + c * pred + sigma * torch.randn_like(img)
            trajectory.append(img)
        return img, torch.stack(trajectory, dim=1)


@sample(3, inputs=images(3))
class KarrasHeun(nn.Module):
    """EDM: preconditioning by sigma and second-order steps over a schedule of powers."""

    def __init__(self, channels, steps=3, sigma_data=0.5, rho=7.0):
        super().__init__()
        self.net, self.steps, self.sigma_data, self.rho = TinyDenoiser(channels), steps, sigma_data, rho

    def denoise(self, x, sigma):
        sigma = sigma.reshape(-1, 1, 1, 1)
        c_skip = self.sigma_data**2 / (sigma**2 + self.sigma_data**2)
        c_out = sigma * self.sigma_data / (sigma**2 + self.sigma_data**2).sqrt()
        c_in = 1 / (self.sigma_data**2 + sigma**2).sqrt()
        c_noise = sigma.log().flatten() / 4
        return c_skip * x + c_out * self.net(c_in * x, c_noise.expand(x.shape[0]))

    def forward(self, x, sigma_min=0.02, sigma_max=2.0):
        step = torch.arange(self.steps, dtype=torch.float64)
        t = (
            sigma_max ** (1 / self.rho)
            + step / (self.steps - 1) * (sigma_min ** (1 / self.rho) - sigma_max ** (1 / self.rho))
        ) ** self.rho
        t = torch.cat([t, torch.zeros_like(t[:1])]).to(x.dtype)
        x_next = x * t[0]
        for i, (t_cur, t_next) in enumerate(itertools.pairwise(t)):
            x_cur = x_next
            d_cur = (x_cur - self.denoise(x_cur, t_cur)) / t_cur
            x_next = x_cur + (t_next - t_cur) * d_cur
            if i < self.steps - 1:
                d_prime = (x_next - self.denoise(x_next, t_next)) / t_next
                x_next = x_cur + (t_next - t_cur) * (0.5 * d_cur + 0.5 * d_prime)
        return x_next


class TimestepBlock(nn.Module):
    """A block that takes an embedding of the time."""


class TimestepSequential(nn.Sequential, TimestepBlock):
    def forward(self, x, emb, context=None):
        for layer in self:
            if isinstance(layer, TimestepBlock):
                x = layer(x, emb)
            elif isinstance(layer, CrossBlock):
                x = layer(x, context)
            else:
                x = layer(x)
        return x


class TimedResidual(TimestepBlock):
    def __init__(self, cin, cout, emb, scale_shift=True):
        super().__init__()
        self.in_layers = nn.Sequential(nn.GroupNorm(2, cin), nn.SiLU(), nn.Conv2d(cin, cout, 3, padding=1))
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(emb, 2 * cout if scale_shift else cout))
        self.out_layers = nn.Sequential(
            nn.GroupNorm(2, cout), nn.SiLU(), nn.Dropout(p=0.0), nn.Conv2d(cout, cout, 3, padding=1)
        )
        self.skip = nn.Identity() if cin == cout else nn.Conv2d(cin, cout, 1)
        self.scale_shift = scale_shift

    def forward(self, x, emb):
        h = self.in_layers(x)
        emb_out = self.emb_layers(emb).type(h.dtype)
        while len(emb_out.shape) < len(h.shape):
            emb_out = emb_out[..., None]
        if self.scale_shift:
            out_norm, out_rest = self.out_layers[0], self.out_layers[1:]
            scale, shift = torch.chunk(emb_out, 2, dim=1)
            h = out_rest(out_norm(h) * (1 + scale) + shift)
        else:
            h = self.out_layers(h + emb_out)
        return self.skip(x) + h


class CrossBlock(nn.Module):
    def __init__(self, dim, context):
        super().__init__()
        self.norm, self.q, self.kv = nn.GroupNorm(1, dim), nn.Conv1d(dim, dim, 1), nn.Linear(context, 2 * dim)

    def forward(self, x, context):
        b, c, *spatial = x.shape
        flat = x.reshape(b, c, -1)
        k, v = self.kv(context).chunk(2, -1)
        attn = torch.softmax(self.q(self.norm(flat)).mT @ k.mT * c**-0.5, -1)
        return (flat + (attn @ v).mT).reshape(b, c, *spatial)


@sample(3, inputs=lambda rows, length: {**timed(3)(rows, length), "context": torch.randn(rows, 4, 6)}, lengths=(8, 12))
class ConditionedUNet(nn.Module):
    def __init__(self, channels, width=4, mults=(1, 2), context=6):
        super().__init__()
        emb = width * 4
        self.width = width
        self.time_embed = nn.Sequential(nn.Linear(width, emb), nn.SiLU(), nn.Linear(emb, emb))
        self.input_blocks = nn.ModuleList([TimestepSequential(nn.Conv2d(channels, width, 3, padding=1))])
        chans, ch = [width], width
        for level, mult in enumerate(mults):
            self.input_blocks.append(
                TimestepSequential(TimedResidual(ch, mult * width, emb), CrossBlock(mult * width, context))
            )
            ch = mult * width
            chans.append(ch)
            if level != len(mults) - 1:
                self.input_blocks.append(TimestepSequential(nn.AvgPool2d(2)))
                chans.append(ch)
        self.middle = TimestepSequential(TimedResidual(ch, ch, emb, scale_shift=False), CrossBlock(ch, context))
        self.output_blocks = nn.ModuleList()
        for level, mult in list(enumerate(mults))[::-1]:
            for i in range(2):
                layers = [TimedResidual(ch + chans.pop(), mult * width, emb)]
                ch = mult * width
                if level and i == 1:
                    layers.append(nn.Upsample(scale_factor=2))
                self.output_blocks.append(TimestepSequential(*layers))
        self.out = nn.Sequential(nn.GroupNorm(2, ch), nn.SiLU(), nn.Conv2d(ch, channels, 1))

    def forward(self, x, t, context):
        hs, emb = [], self.time_embed(sinusoidal(t, self.width))
        h = x.type(torch.float32)
        for module in self.input_blocks:
            h = module(h, emb, context)
            hs.append(h)
        h = self.middle(h, emb, context)
        for module in self.output_blocks:
            h = module(torch.cat([h, hs.pop()], dim=1), emb, context)
        return self.out(h)


@sample(
    8,
    inputs=lambda rows, length: {
        "x": torch.randn(rows, length, 8),
        "t": torch.rand(rows),
        "y": torch.randint(3, (rows,)),
    },
)
class TransformerDenoiser(nn.Module):
    """DiT: modulation that begins at zero, labels dropped by chance, and guidance of doubled batches in evaluation."""

    def __init__(self, dim, classes=3, depth=2, drop=0.3):
        super().__init__()
        self.t_embed, self.y_embed = nn.Linear(8, dim), nn.Embedding(classes + 1, dim)
        self.classes, self.drop = classes, drop
        self.ada = nn.ModuleList(nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim)) for _ in range(depth))
        self.attn = nn.ModuleList(nn.MultiheadAttention(dim, 2, batch_first=True) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(approximate="tanh"), nn.Linear(2 * dim, dim))
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)

    def token_drop(self, labels, force_drop_ids=None):
        drop_ids = torch.rand(labels.shape[0]) < self.drop if force_drop_ids is None else force_drop_ids == 1
        return torch.where(drop_ids, self.classes, labels)

    def run(self, x, t, y):
        c = self.t_embed(sinusoidal(t, 8)) + self.y_embed(y)
        modulate = lambda x, shift, scale: x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)  # noqa: E731
        for ada, attn, mlp in zip(self.ada, self.attn, self.mlp, strict=True):
            s1, c1, g1, s2, c2, g2 = ada(c).chunk(6, dim=1)
            h = modulate(self.norm(x), s1, c1)
            x = x + g1.unsqueeze(1) * attn(h, h, h)[0]
            x = x + g2.unsqueeze(1) * mlp(modulate(self.norm(x), s2, c2))
        return x

    def forward(self, x, t, y, cfg_scale=2.0):
        if self.training:
            return self.run(x, t, self.token_drop(y))
        both = torch.cat([x, x]), torch.cat([t, t]), torch.cat([y, torch.full_like(y, self.classes)])
        cond, uncond = self.run(*both).split(len(x), dim=0)
        return uncond + cfg_scale * (cond - uncond)


@sample(6, inputs=vectors(6))
class FlowMatching(nn.Module):
    """Straight paths, an optimal pairing of noise by sorting, logit-normal times, a Runge-Kutta sampler."""

    def __init__(self, dim):
        super().__init__()
        self.v = nn.Sequential(nn.Linear(dim + 1, 16), nn.SELU(), nn.Linear(16, dim))

    def velocity(self, x, t):
        return self.v(torch.cat([x, t.expand(*x.shape[:-1], 1)], -1))

    def rk4(self, x, steps=2):
        dt = 1.0 / steps
        for i in range(steps):
            t = torch.tensor(i * dt)
            k1 = self.velocity(x, t)
            k2 = self.velocity(x + dt / 2 * k1, t + dt / 2)
            k3 = self.velocity(x + dt / 2 * k2, t + dt / 2)
            k4 = self.velocity(x + dt * k3, t + dt)
            x = x + dt / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return x

    def forward(self, x):
        noise = torch.randn_like(x)
        if not self.training:
            return self.rk4(noise)
        order, rank = noise.mean(-1).argsort(1), x.mean(-1).argsort(1)
        paired = torch.empty_like(noise).scatter(
            1, rank[..., None].expand_as(x), noise.gather(1, order[..., None].expand_as(x))
        )
        t = torch.sigmoid(torch.randn(x.shape[0], 1, 1))
        x_t = (1 - t) * paired + t * x
        return F.mse_loss(self.velocity(x_t, t), x - paired)


@sample(4, inputs=images(4))
class ConsistencyStep(nn.Module):
    """Two neighbouring noises, a frozen moving average as teacher, a pseudo-Huber distance."""

    def __init__(self, dim, steps=8):
        super().__init__()
        self.online, self.ema = TinyDenoiser(dim), TinyDenoiser(dim).requires_grad_(False)
        self.ema.load_state_dict(self.online.state_dict())
        ramp = torch.linspace(0, 1, steps)
        self.register_buffer("sigmas", (0.1 ** (1 / 7) + ramp * (2.0 ** (1 / 7) - 0.1 ** (1 / 7))) ** 7)

    def f(self, net, x, sigma):
        s = sigma.view(-1, 1, 1, 1)
        skip, out = 0.25 / ((s - 0.1) ** 2 + 0.25), (s - 0.1) * 0.5 / (s**2 + 0.25).sqrt()
        return skip * x + out * net(x, sigma * 10)

    def forward(self, x):
        i = torch.randint(len(self.sigmas) - 1, (x.size(0),))
        low, high = self.sigmas[i], self.sigmas[i + 1]
        noise = torch.randn_like(x)
        online = self.f(self.online, x + high.view(-1, 1, 1, 1) * noise, high)
        with torch.no_grad():
            target = self.f(self.ema, x + low.view(-1, 1, 1, 1) * noise, low)
        c = 0.00054 * math.sqrt(x[0].numel())
        loss = ((online - target).flatten(1).pow(2).sum(1) + c**2).sqrt() - c
        if self.training:
            with torch.no_grad():
                torch._foreach_lerp_(list(self.ema.parameters()), list(self.online.parameters()), 0.05)
        return (loss / (high - low)).mean()


@dataclass
class SchedulerState:
    order: int = 2
    model_outputs: list[torch.Tensor | None] = field(default_factory=lambda: [None, None])
    lower_order_nums: int = 0


@sample(3, inputs=images(3))
class MultistepSolver(nn.Module):
    """DPM-Solver++: a state object with the last outputs, and rules for the first steps."""

    def __init__(self, channels, steps=4):
        super().__init__()
        self.model, self.steps = TinyDenoiser(channels), steps
        ac = torch.cumprod(1 - torch.linspace(1e-2, 0.3, 10), 0)
        self.register_buffer("alpha_t", ac.sqrt())
        self.register_buffer("sigma_t", (1 - ac).sqrt())
        self.register_buffer("lambda_t", torch.log(ac.sqrt()) - torch.log((1 - ac).sqrt()))

    def update(self, state, sample, t, t_next):
        out = (sample - self.sigma_t[t] * self.model(sample, torch.full((sample.shape[0],), t))) / self.alpha_t[t]
        for i in range(state.order - 1):
            state.model_outputs[i] = state.model_outputs[i + 1]
        state.model_outputs[-1] = out
        h = self.lambda_t[t_next] - self.lambda_t[t]
        d0 = out
        if state.lower_order_nums >= 1:
            r0 = (self.lambda_t[t] - self.lambda_t[t + 2]) / h
            d0 = d0 + 0.5 / r0 * (out - state.model_outputs[-2])
        state.lower_order_nums = min(state.lower_order_nums + 1, state.order)
        return self.sigma_t[t_next] / self.sigma_t[t] * sample - self.alpha_t[t_next] * (torch.exp(-h) - 1.0) * d0

    def forward(self, x):
        state, config = SchedulerState(), SimpleNamespace(stride=2, last=7)
        for t in range(config.last, config.last - config.stride * self.steps + 1, -config.stride):
            x = self.update(state, x, t, max(t - config.stride, 0))
        return x


@sample(5, inputs=lambda rows, length: {"ids": torch.randint(5, (rows, length))})
class DiscreteDiffusion(nn.Module):
    """Transitions between tokens by matrices, posteriors, and an absorbing mask."""

    def __init__(self, vocab, steps=6):
        super().__init__()
        k = vocab + 1
        self.k, self.steps = k, steps
        q = torch.stack(
            [
                (1 - b) * torch.eye(k) + b * F.one_hot(torch.tensor(vocab), k).float()
                for b in torch.linspace(0.1, 0.9, steps)
            ]
        )
        cum = [q[0]]
        for i in range(1, steps):
            cum.append(cum[-1] @ q[i])
        self.register_buffer("q_one", q.transpose(1, 2))
        self.register_buffer("q_mats", torch.stack(cum))
        self.embed, self.net = nn.Embedding(k, 12), nn.GRU(12, 12, batch_first=True, bidirectional=True)
        self.head = nn.Linear(24, k)

    def posterior(self, x_0_logits, x_t, t):
        fact1 = self.q_one[t][torch.arange(len(t))[:, None], x_t]
        fact2 = torch.einsum("bnk,bkj->bnj", torch.softmax(x_0_logits, dim=-1), self.q_mats[(t - 1).clamp(min=0)])
        out = torch.log(fact1 + 1e-6) + torch.log(fact2 + 1e-6)
        return torch.where((t == 0)[:, None, None], x_0_logits, out)

    def forward(self, ids):
        t = torch.randint(1, self.steps, (ids.shape[0],)) if self.training else torch.arange(ids.shape[0]) % self.steps
        logits = torch.log(self.q_mats[t].gather(1, ids[..., None].expand(-1, -1, self.k)) + 1e-6)
        noise = torch.rand(logits.shape) if self.training else torch.full(logits.shape, 0.5)
        x_t = torch.argmax(logits - torch.log(-torch.log(noise.clip(1e-6, 1 - 1e-6))), dim=-1)
        pred = self.head(self.net(self.embed(x_t))[0])
        true = self.posterior(F.one_hot(ids, self.k).float().clamp(1e-6).log(), x_t, t)
        guess = self.posterior(pred, x_t, t)
        vb = (torch.softmax(true, -1) * (torch.log_softmax(true, -1) - torch.log_softmax(guess, -1))).sum(-1).mean()
        return vb + 0.1 * F.cross_entropy(pred.flatten(0, -2), ids.flatten())


@sample(6, inputs=images(6))
class ControlledBlock(nn.Module):
    """A frozen block and a trainable copy joined by convolutions that begin at nothing, and LoRA on the frozen one."""

    def __init__(self, dim):
        super().__init__()
        block = partial(nn.Conv2d, dim, dim, 3, padding=1)
        self.frozen, self.copy = block().requires_grad_(False), block()
        self.copy.load_state_dict(self.frozen.state_dict())
        self.zero_in, self.zero_out = (self.zero_module(nn.Conv2d(dim, dim, 1)) for _ in range(2))
        self.down, self.up = nn.Conv2d(dim, 2, 3, padding=1, bias=False), nn.Conv2d(2, dim, 1, bias=False)

    @staticmethod
    def zero_module(module):
        for p in module.parameters():
            p.detach().zero_()
        return module

    def forward(self, x):
        hint = x.mean(1, keepdim=True).expand_as(x)
        skip = self.training and random() < 0.0
        control = 0 if skip else self.zero_out(F.silu(self.copy(x + self.zero_in(hint))))
        return self.frozen(x) + control + 0.5 * self.up(self.down(x))
