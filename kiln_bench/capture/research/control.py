"""Reinforcement learning: heads, distributions over actions and returns, targets, advantages, models of worlds."""

from __future__ import annotations

import copy
import math
from collections import deque
from typing import NamedTuple

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn
from torch.distributions.utils import probs_to_logits

from kiln_bench.capture.research.sample import features, images, sample, vectors


def transitions(width, actions):
    def make(rows, length):
        n = rows * length
        return {
            "obs": torch.randn(n, width), "next_obs": torch.randn(n, width), "action": torch.randint(actions, (n,)),
            "reward": torch.randn(n), "done": (torch.rand(n) > 0.8).float(),
        }  # fmt: skip

    return make


def rollout(width):
    def make(rows, length):
        return {
            "obs": torch.randn(length + 1, rows, width), "rewards": torch.randn(length, rows),
            "dones": torch.rand(length, rows) > 0.8,
        }  # fmt: skip

    return make


def layer_init(layer, std=1.414, bias_const=0.0):
    torch.nn.init.orthogonal_(layer.weight, std)
    torch.nn.init.constant_(layer.bias, bias_const)
    return layer


@sample(6, actions=4, inputs=transitions(6, 4))
class DuelingQ(nn.Module):
    """Double Q with a dueling head and a target network made by a deep copy, moved by Polyak averages."""

    def __init__(self, dim, actions, gamma=0.99, tau=0.05):
        super().__init__()
        self.gamma, self.tau = gamma, tau
        self.online = nn.ModuleDict({"body": nn.Linear(dim, 12), "v": nn.Linear(12, 1), "a": nn.Linear(12, actions)})
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    @staticmethod
    def q(net, obs):
        h = F.relu(net["body"](obs))
        a = net["a"](h)
        return net["v"](h) + a - a.mean(dim=-1, keepdim=True)

    def soft_update(self):
        for target_param, local_param in zip(self.target.parameters(), self.online.parameters(), strict=True):
            target_param.data.copy_(self.tau * local_param.data + (1.0 - self.tau) * target_param.data)

    def forward(self, obs, next_obs, action, reward, done):
        with torch.no_grad():
            best = self.q(self.online, next_obs).argmax(dim=1, keepdim=True)
            target = reward + self.gamma * self.q(self.target, next_obs).gather(1, best).squeeze(1) * (1 - done)
        chosen = self.q(self.online, obs)[range(len(action)), action]
        td = target - chosen
        if self.training:
            self.soft_update()
        return F.huber_loss(chosen, target), td.abs().detach() + 1e-6


@sample(6, actions=3, inputs=transitions(6, 3))
class CategoricalReturns(nn.Module):
    """C51: a projection of shifted atoms by `index_add_` with offsets, over noisy layers."""

    class Noisy(nn.Module):
        def __init__(self, cin, cout, sigma=0.5):
            super().__init__()
            self.mu, self.sigma = (
                nn.Parameter(torch.randn(cout, cin) * 0.2),
                nn.Parameter(torch.full((cout, cin), sigma / cin**0.5)),
            )
            self.register_buffer("eps_in", torch.zeros(cin))
            self.register_buffer("eps_out", torch.zeros(cout))

        @staticmethod
        def scale(size):
            x = torch.randn(size)
            return x.sign().mul_(x.abs().sqrt_())

        def reset_noise(self):
            self.eps_in.copy_(self.scale(self.eps_in.numel()))
            self.eps_out.copy_(self.scale(self.eps_out.numel()))

        def forward(self, x):
            if self.training:
                return F.linear(x, self.mu + self.sigma * self.eps_out.ger(self.eps_in))
            return F.linear(x, self.mu)

    def __init__(self, dim, actions, atoms=7, v=(-2.0, 2.0)):
        super().__init__()
        self.actions, self.atoms = actions, atoms
        self.v_min, self.v_max = v
        self.net = nn.Sequential(self.Noisy(dim, 12), nn.ReLU(), self.Noisy(12, actions * atoms))
        self.register_buffer("support", torch.linspace(*v, atoms))

    def dist(self, obs):
        return F.softmax(self.net(obs).view(-1, self.actions, self.atoms), dim=-1).clamp(min=1e-3)

    def forward(self, obs, next_obs, action, reward, done):
        if self.training:
            for module in self.net:
                if hasattr(module, "reset_noise"):
                    module.reset_noise()
        n, delta_z = obs.shape[0], float(self.v_max - self.v_min) / (self.atoms - 1)
        with torch.no_grad():
            next_dist = self.dist(next_obs)
            next_action = (next_dist * self.support).sum(2).argmax(1)
            next_dist = next_dist[range(n), next_action]
            t_z = (reward[:, None] + (1 - done[:, None]) * 0.99 * self.support).clamp(min=self.v_min, max=self.v_max)
            b = (t_z - self.v_min) / delta_z
            l, u = b.floor().long(), b.ceil().long()
            l[(u > 0) * (l == u)] -= 1
            u[(l < (self.atoms - 1)) * (l == u)] += 1
            offset = torch.linspace(0, (n - 1) * self.atoms, n).long().unsqueeze(1).expand(n, self.atoms)
            proj = torch.zeros(next_dist.size())
            proj.view(-1).index_add_(0, (l + offset).view(-1), (next_dist * (u.float() - b)).view(-1))
            proj.view(-1).index_add_(0, (u + offset).view(-1), (next_dist * (b - l.float())).view(-1))
        log_p = torch.log(self.dist(obs)[range(n), action])
        return -(proj * log_p).sum(1).mean()


@sample(6, actions=3, inputs=transitions(6, 3))
class ImplicitQuantiles(nn.Module):
    """IQN: cosine features of sampled quantiles and a quantile Huber loss between all pairs."""

    def __init__(self, dim, actions, n=4, cos=6):
        super().__init__()
        self.n, self.actions = n, actions
        self.head, self.cos_embedding, self.out = nn.Linear(dim, 12), nn.Linear(cos, 12), nn.Linear(12, actions)
        self.register_buffer("pis", torch.pi * torch.arange(1, cos + 1).view(1, 1, cos))

    def quantiles(self, obs):
        b = obs.shape[0]
        taus = (
            torch.rand(b, self.n).unsqueeze(-1)
            if self.training
            else torch.linspace(0.1, 0.9, self.n).expand(b, -1).unsqueeze(-1)
        )
        phi = F.relu(self.cos_embedding(torch.cos(taus * self.pis)))
        h = (F.relu(self.head(obs)).unsqueeze(1) * phi).view(b * self.n, -1)
        return self.out(h).view(b, self.n, self.actions), taus

    def forward(self, obs, next_obs, action, reward, done, kappa=1.0):
        nxt, _ = self.quantiles(next_obs)
        best = nxt.mean(1).argmax(1).view(-1, 1, 1).expand(-1, self.n, 1)
        target = reward.view(-1, 1, 1) + 0.99 * nxt.detach().gather(2, best).transpose(1, 2) * (1 - done.view(-1, 1, 1))
        theta, taus = self.quantiles(obs)
        theta = theta.gather(2, action.view(-1, 1, 1).expand(-1, self.n, 1))
        td = target - theta
        huber = torch.where(td.abs() <= kappa, 0.5 * td.pow(2), kappa * (td.abs() - 0.5 * kappa))
        return (torch.abs(taus - (td.detach() < 0).float()) * huber / kappa).sum(1).mean(1).mean()


class TanhNormal(D.TransformedDistribution):
    def __init__(self, mean, std):
        self.normal = D.Normal(mean, std)
        super().__init__(self.normal, [D.TanhTransform(cache_size=1)])

    @property
    def mode(self):
        return torch.tanh(self.normal.mean)


@sample(6, actions=2, inputs=transitions(6, 2))
class SoftActorCritic(nn.Module):
    """Squashed Gaussians, twin critics, and a temperature that is learned."""

    def __init__(self, dim, actions, log_std=(-5, 2)):
        super().__init__()
        self.trunk, self.log_std_bounds = nn.Linear(dim, 2 * actions), log_std
        self.q1, self.q2 = (nn.Sequential(nn.Linear(dim + actions, 12), nn.ReLU(), nn.Linear(12, 1)) for _ in range(2))
        self.log_alpha, self.target_entropy = nn.Parameter(torch.zeros(1)), -float(actions)

    def act(self, obs):
        mu, log_std = self.trunk(obs).chunk(2, dim=-1)
        low, high = self.log_std_bounds
        std = (low + 0.5 * (high - low) * (torch.tanh(log_std) + 1)).exp()
        noise = torch.randn_like(mu) if self.training else torch.zeros_like(mu)
        u = mu + std * noise
        log_prob = D.Normal(mu, std).log_prob(u).sum(-1, keepdim=True)
        log_prob = log_prob - (2 * (math.log(2) - u - F.softplus(-2 * u))).sum(-1, keepdim=True)
        return torch.tanh(u), log_prob, TanhNormal(mu, std).mode

    def forward(self, obs, next_obs, action, reward, done):
        pi, log_prob, mode = self.act(obs)
        q = torch.min(*(net(torch.cat([obs, pi], 1)) for net in (self.q1, self.q2)))
        actor = (self.log_alpha.exp().detach() * log_prob - q).mean()
        with torch.no_grad():
            next_pi, next_log, _ = self.act(next_obs)
            v = torch.min(self.q1(torch.cat([next_obs, next_pi], 1)), self.q2(torch.cat([next_obs, next_pi], 1)))
            target = reward[:, None] + 0.99 * (1 - done[:, None]) * (v - self.log_alpha.exp() * next_log)
        given = F.one_hot(action, mode.shape[1]).float()
        critic = sum(F.mse_loss(net(torch.cat([obs, given], 1)), target) for net in (self.q1, self.q2))
        alpha = (self.log_alpha.exp() * (-log_prob - self.target_entropy).detach()).mean()
        return {"actor": actor, "critic": critic, "alpha": alpha, "mode": mode}


@sample(5, actions=3, inputs=rollout(5))
class ProximalPolicy(nn.Module):
    """Generalised advantages backwards in a loop, clipped ratios and values, an entropy, a divergence to watch."""

    def __init__(self, dim, actions, gamma=0.99, lam=0.95, clip=0.2):
        super().__init__()
        self.gamma, self.lam, self.clip = gamma, lam, clip
        self.actor, self.critic = layer_init(nn.Linear(dim, actions), 0.01), layer_init(nn.Linear(dim, 1), 1.0)

    @torch.no_grad()
    def advantages(self, values, rewards, dones):
        adv, last = torch.zeros_like(rewards), 0
        nonterminal = 1.0 - dones.float()
        for t in reversed(range(rewards.shape[0])):
            delta = rewards[t] + self.gamma * values[t + 1] * nonterminal[t] - values[t]
            adv[t] = last = delta + self.gamma * self.lam * nonterminal[t] * last
        return adv

    def forward(self, obs, rewards, dones):
        values = self.critic(obs).squeeze(-1)
        adv = self.advantages(values.detach(), rewards, dones)
        returns = adv + values[:-1].detach()
        probs = D.Categorical(logits=self.actor(obs[:-1]))
        action = probs.probs.argmax(-1)
        logratio = probs.log_prob(action) - probs.log_prob(action).detach() * 1.1
        ratio = logratio.exp()
        with torch.no_grad():
            approx_kl = ((ratio - 1) - logratio).mean()
            clipfrac = ((ratio - 1.0).abs() > self.clip).float().mean()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        pg = torch.max(-adv * ratio, -adv * torch.clamp(ratio, 1 - self.clip, 1 + self.clip)).mean()
        clipped = values[:-1].detach() + torch.clamp(values[:-1] - values[:-1].detach(), -self.clip, self.clip)
        v = 0.5 * torch.max((values[:-1] - returns) ** 2, (clipped - returns) ** 2).mean()
        return pg - 0.01 * probs.entropy().mean() + 0.5 * v, {"kl": approx_kl, "clipfrac": clipfrac}


@sample(5, actions=3, inputs=rollout(5))
class ImportanceCorrected(nn.Module):
    """V-trace, and returns over n steps kept in a deque."""

    def __init__(self, dim, actions, gamma=0.97, n=3):
        super().__init__()
        self.policy, self.value, self.gamma, self.n = nn.Linear(dim, actions), nn.Linear(dim, 1), gamma, n

    def n_step(self, rewards):
        window, out = deque(maxlen=self.n), []
        for r in rewards.flip(0).unbind(0):
            window.appendleft(r)
            out.append(sum(self.gamma**i * w for i, w in enumerate(window)))
        return torch.stack(out[::-1])

    def forward(self, obs, rewards, dones):
        logits = probs_to_logits(self.policy(obs[:-1]).softmax(-1))
        log_pi = logits.amax(-1)
        rho = torch.clamp((log_pi.detach() - log_pi.detach().mean()).exp(), max=1.0)
        values = self.value(obs).squeeze(-1)
        discounts = (~dones).float() * self.gamma
        deltas = rho * (rewards + discounts * values[1:] - values[:-1])
        acc, result = torch.zeros_like(values[-1]), []
        for t in range(discounts.shape[0] - 1, -1, -1):
            acc = deltas[t] + discounts[t] * rho[t].clamp(max=0.9) * acc
            result.append(acc)
        result.reverse()
        vs = torch.add(torch.stack(result), values[:-1]).detach()
        return F.mse_loss(values[:-1], vs) - (log_pi * (vs - values[:-1].detach())).mean(), self.n_step(rewards)


class WorldState(NamedTuple):
    deter: torch.Tensor
    stoch: torch.Tensor
    logits: torch.Tensor


@sample(6, inputs=vectors(6), lengths=(4, 6))
class LatentWorldModel(nn.Module):
    """Dreamer: a recurrent state with categorical latents, mixed with uniform ones, balanced divergences, symlog."""

    def __init__(self, dim, deter=8, groups=2, classes=3):
        super().__init__()
        self.groups, self.classes, self.deter = groups, classes, deter
        self.cell, self.inp = nn.GRUCell(8, deter), nn.Linear(groups * classes + 2, 8)
        self.prior, self.post = nn.Linear(deter, groups * classes), nn.Linear(deter + dim, groups * classes)
        self.decoder = nn.Linear(deter + groups * classes, dim)

    @staticmethod
    def symlog(x):
        return torch.sign(x) * torch.log1p(torch.abs(x))

    def latent(self, logits):
        probs = logits.view(-1, self.groups, self.classes).softmax(-1)
        probs = 0.99 * probs + 0.01 / self.classes
        logits = probs_to_logits(probs)
        dist = D.Independent(D.OneHotCategoricalStraightThrough(logits=logits), 1)
        stoch = (
            dist.rsample()
            if self.training
            else F.one_hot(probs.argmax(-1), self.classes).float() + probs - probs.detach()
        )
        return stoch.flatten(1), dist

    def forward(self, x):
        b, t, _ = x.shape
        state = WorldState(x.new_zeros(b, self.deter), x.new_zeros(b, self.groups * self.classes), None)
        kls, recons = [], []
        for i in range(t):
            action = x[:, i, :2].tanh()
            deter = self.cell(F.elu(self.inp(torch.cat([state.stoch, action], -1))), state.deter)
            _, prior = self.latent(self.prior(deter))
            logits = self.post(torch.cat([deter, self.symlog(x[:, i])], -1))
            stoch, post = self.latent(logits)
            state = state._replace(deter=deter, stoch=stoch, logits=logits)
            detached = D.Independent(D.OneHotCategoricalStraightThrough(logits=post.base_dist.logits.detach()), 1)
            kls.append(torch.maximum(D.kl_divergence(detached, prior), torch.tensor(0.3)))
            recons.append(F.mse_loss(self.decoder(torch.cat([deter, stoch], -1)), self.symlog(x[:, i])))
        return torch.stack(kls).mean() + torch.stack(recons).sum(), state


@sample(6, inputs=features(6))
class TwoHotValue(nn.Module):
    """Values as distributions over symmetric exponential bins, with targets shared by two neighbours."""

    def __init__(self, dim, bins=9):
        super().__init__()
        self.head = nn.Linear(dim, bins)
        self.register_buffer("bins", torch.linspace(-3, 3, bins))

    def two_hot(self, x):
        x = torch.sign(x) * torch.log1p(x.abs())
        below = torch.sum((self.bins <= x[..., None]).to(torch.int32), dim=-1) - 1
        above = len(self.bins) - torch.sum((self.bins > x[..., None]).to(torch.int32), dim=-1)
        below, above = torch.clip(below, 0, len(self.bins) - 1), torch.clip(above, 0, len(self.bins) - 1)
        equal = below == above
        d_below = torch.where(equal, 1, torch.abs(self.bins[below.long()] - x))
        d_above = torch.where(equal, 1, torch.abs(self.bins[above.long()] - x))
        total = d_below + d_above
        hot = lambda i: F.one_hot(i.to(torch.int64), num_classes=len(self.bins))  # noqa: E731
        return hot(below) * (d_above / total)[..., None] + hot(above) * (d_below / total)[..., None]

    def forward(self, x):
        logits = self.head(x)
        target = self.two_hot(5 * x.sum(-1))
        mean = (logits.softmax(-1) * self.bins).sum(-1)
        return -(target * logits.log_softmax(-1)).sum(-1).mean(), torch.sign(mean) * torch.expm1(mean.abs())


@sample(
    4,
    inputs=lambda rows, length: {
        "obs": torch.randn(rows, 3, 4),
        "state": torch.randn(rows, 5),
        "available": torch.rand(rows, 3, 4) > 0.2,
    },
)
class MonotonicMixer(nn.Module):
    """QMIX: positive weights from the state mix the agents' values; unavailable actions are masked."""

    def __init__(self, actions, agents=3, embed=4):
        super().__init__()
        self.agents, self.embed = agents, embed
        self.agent = nn.Linear(4, actions)
        self.w1, self.w2 = nn.Linear(5, agents * embed), nn.Linear(5, embed)
        self.b1, self.v = nn.Linear(5, embed), nn.Sequential(nn.Linear(5, embed), nn.ReLU(), nn.Linear(embed, 1))

    def forward(self, obs, state, available):
        q = self.agent(obs)
        q[available == 0] = -1e2
        best = q.max(dim=2).values.view(-1, 1, self.agents)
        w1 = torch.abs(self.w1(state)).view(-1, self.agents, self.embed)
        hidden = F.elu(torch.bmm(best, w1) + self.b1(state).view(-1, 1, self.embed))
        return (
            torch.bmm(hidden, torch.abs(self.w2(state)).view(-1, self.embed, 1)) + self.v(state).view(-1, 1, 1)
        ).view(-1)


@sample(3, inputs=images(3), lengths=(8, 12))
class CuriosityPixels(nn.Module):
    """Random distillation with running statistics, random shifts of images, an inverse model."""

    def __init__(self, channels, pad=1):
        super().__init__()
        enc = lambda: nn.Sequential(nn.Conv2d(channels, 4, 3, 2), nn.ELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())  # noqa: E731
        self.target, self.predictor, self.pad = enc().requires_grad_(False), enc(), pad
        self.inverse = nn.Linear(32, 4)
        for name, value in (("mean", 0.0), ("var", 1.0), ("count", 1e-4)):
            self.register_buffer(name, torch.tensor(value))

    def shift(self, x):
        n, _, h, w = x.size()
        x = F.pad(x, (self.pad,) * 4, "replicate")
        size = h + 2 * self.pad
        arange = torch.linspace(-1.0 + 1.0 / size, 1.0 - 1.0 / size, size)[:h].unsqueeze(0).repeat(h, 1).unsqueeze(2)
        base = torch.cat([arange, arange.transpose(1, 0)], dim=2).unsqueeze(0).repeat(n, 1, 1, 1)
        offset = torch.randint(0, 2 * self.pad + 1, size=(n, 1, 1, 2)).to(x.dtype) * 2.0 / size
        return F.grid_sample(x, base + offset, padding_mode="zeros", align_corners=False)

    @torch.no_grad()
    def track(self, x):
        delta, total = x.mean() - self.mean, self.count + x.numel()
        m2 = self.var * self.count + x.var(unbiased=False) * x.numel() + delta**2 * self.count * x.numel() / total
        self.mean += delta * x.numel() / total
        self.var.copy_(m2 / total)
        self.count.copy_(total)

    def forward(self, x):
        y = self.shift(x) if self.training else x
        error = (self.predictor(y) - self.target(y)).pow(2).mean(1)
        if self.training:
            self.track(error)
        features = self.predictor(x)
        actions = self.inverse(torch.cat([features, features.roll(1, 0)], 1))
        return error.mean(), (error.detach() / (self.var.sqrt() + 1e-8)).clamp(max=5), actions


@sample(6, inputs=lambda rows, length: {
    "states": torch.randn(rows, length, 6), "actions": torch.randn(rows, length, 2),
    "rtg": torch.randn(rows, length, 1), "timesteps": torch.arange(length).expand(rows, length),
})  # fmt: skip
class DecisionSequence(nn.Module):
    """Returns, states and actions interleaved for a causal transformer, and taken apart again."""

    def __init__(self, dim, hidden=8):
        super().__init__()
        self.hidden = hidden
        self.embed_timestep = nn.Embedding(64, hidden)
        self.embed_return, self.embed_state, self.embed_action = (
            nn.Linear(1, hidden),
            nn.Linear(dim, hidden),
            nn.Linear(2, hidden),
        )
        self.ln = nn.LayerNorm(hidden)
        self.layer = nn.TransformerEncoderLayer(hidden, 2, 16, batch_first=True, dropout=0.0)
        self.predict_action = nn.Sequential(*([nn.Linear(hidden, 2)] + ([nn.Tanh()] if hidden else [])))

    def forward(self, states, actions, rtg, timesteps, attention_mask=None):
        b, n = states.shape[:2]
        if attention_mask is None:
            attention_mask = torch.ones((b, n), dtype=torch.long)
        t = self.embed_timestep(timesteps)
        parts = [
            f(v) + t for f, v in ((self.embed_return, rtg), (self.embed_state, states), (self.embed_action, actions))
        ]
        stacked = torch.stack(parts, dim=1).permute(0, 2, 1, 3).reshape(b, 3 * n, self.hidden)
        mask = torch.stack((attention_mask,) * 3, dim=1).permute(0, 2, 1).reshape(b, 3 * n)
        causal = nn.Transformer.generate_square_subsequent_mask(3 * n)
        x = self.layer(self.ln(stacked), src_mask=causal, src_key_padding_mask=(mask == 0).float() * -1e4)
        x = x.reshape(b, n, 3, self.hidden).permute(0, 2, 1, 3)
        return self.predict_action(x[:, 1])
