"""How research code trains: checkpoints, hooks, logs, mixed precision, running state, schedules inside of forward."""

from __future__ import annotations

import functools
import logging
import math
import warnings
import weakref
from collections import Counter, OrderedDict
from enum import Enum, auto

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from kiln_bench.capture.research.sample import features, images, sample, tokens, vectors

logger = logging.getLogger(__name__)


@sample(8, inputs=vectors(8))
class CheckpointedBlocks(nn.Module):
    """Checkpoints without reentrance, in segments, and with a partial."""

    def __init__(self, dim, depth=4):
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Dropout(0.1)) for _ in range(depth))
        )
        self.norm, self.use_checkpoint = nn.LayerNorm(dim), True

    def inner(self, x, scale, *, bias):
        return torch.tanh(self.norm(x) * scale) + bias

    def forward(self, x):
        if self.use_checkpoint and self.training:
            x = checkpoint_sequential(self.blocks, 2, x, use_reentrant=False)
            return checkpoint(functools.partial(self.inner, bias=0.5), x, 2.0, use_reentrant=False)
        return self.inner(self.blocks(x), 2.0, bias=0.5)


@sample(6, inputs=features(6))
class HookedFeatures(nn.Module):
    """Forward hooks keep what layers give, one changes an output, and a pre-hook changes an input."""

    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(OrderedDict(a=nn.Linear(dim, 8), act=nn.ReLU(), b=nn.Linear(8, 4)))
        self.kept = {}
        for name in ("a", "b"):
            self.net.get_submodule(name).register_forward_hook(self.keep(name))
        self.net.b.register_forward_pre_hook(lambda module, args: (F.dropout(args[0], 0.0),))
        self.net.act.register_forward_hook(lambda module, args, out: out.clamp(max=2.0))

    def keep(self, name):
        ref = weakref.ref(self)

        def hook(module, args, output):
            owner = ref()
            if owner is not None:
                owner.kept[name] = output

        return hook

    def __deepcopy__(self, memo):
        other = HookedFeatures(self.net.a.in_features)
        other.load_state_dict(self.state_dict())
        return other.train(self.training)

    def forward(self, x):
        self.kept.clear()
        out = self.net(x)
        return out, {name: value.pow(2).mean() for name, value in self.kept.items()}


@sample(6, inputs=features(6))
class LoggedTrainer(nn.Module):
    """A step of a trainer in small: metrics in dictionaries, running means, logs and warnings in rare cases."""

    class Meter:
        def __init__(self):
            self.reset()

        def reset(self):
            self.val = self.avg = self.sum = self.count = 0

        def update(self, val, n=1):
            self.val = val
            self.sum += val * n
            self.count += n
            self.avg = self.sum / self.count

    def __init__(self, dim):
        super().__init__()
        self.model = nn.Linear(dim, 3)
        self.log_dict = {}

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self.model(x)
        loss = F.cross_entropy(logits, y)
        acc = (logits.argmax(1) == y).float().mean()
        self.log_dict.update({"train/loss": loss.detach(), "train/acc": acc, "batch": batch_idx})
        if batch_idx > 10**6:
            logger.warning("batch %d of a long epoch", batch_idx)
        return {"loss": loss, "log": {k: v for k, v in self.log_dict.items() if k.startswith("train/")}}

    def forward(self, x):
        meter = self.Meter()
        y = (x.sum(1) > 0).long()
        outputs = [self.training_step(batch, i) for i, batch in enumerate(zip(x.chunk(2), y.chunk(2), strict=True))]
        for out in outputs:
            meter.update(out["loss"], n=len(x) // 2)
        return meter.avg, outputs[-1]["log"]


@sample(6, inputs=features(6))
class MixedPrecision(nn.Module):
    """Autocast inside, a part that must stay in float32, and a scaler's factor."""

    def __init__(self, dim):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(dim, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.register_buffer("scale", torch.tensor(4.0))

    @torch.autocast("cpu", dtype=torch.bfloat16)
    def trunk(self, x):
        h = F.silu(self.a(x))
        with torch.autocast("cpu", enabled=False):
            h = F.layer_norm(h.float(), h.shape[-1:])
        return self.b(h)

    def forward(self, x):
        h = self.trunk(x)
        return self.head(h.float()) * self.scale, h.dtype


class TrainingPhase(Enum):
    WARMUP = auto()
    MAIN = auto()

    @property
    def factor(self):
        return {TrainingPhase.WARMUP: 0.1, TrainingPhase.MAIN: 1.0}[self]


@sample(6, inputs=features(6))
class ScheduledNoise(nn.Module):
    """Phases of an enumeration, a temperature by a cosine, and a step that is a Python number."""

    def __init__(self, dim, warmup=2, total=10):
        super().__init__()
        self.fc, self.step, self.warmup, self.total = nn.Linear(dim, dim), 0, warmup, total

    @property
    def phase(self):
        return TrainingPhase.WARMUP if self.step < self.warmup else TrainingPhase.MAIN

    @property
    def temperature(self):
        return 0.5 * (1 + math.cos(math.pi * min(self.step, self.total) / self.total))

    def forward(self, x):
        if self.training:
            self.step += 1
        y = self.fc(x) * self.phase.factor
        if self.training:
            y = y + self.temperature * torch.randn_like(y)
        return y / max(self.temperature, 0.1), self.phase.name


@sample(6, inputs=features(6))
class ShadowWeights(nn.Module):
    """A moving average of parameters by name, kept in buffers and swapped in for evaluation."""

    def __init__(self, dim, decay=0.9):
        super().__init__()
        self.net, self.decay = nn.Sequential(nn.Linear(dim, 8), nn.Tanh(), nn.Linear(8, 2)), decay
        self.m_name2s_name = {}
        for name, p in self.net.named_parameters():
            s_name = name.replace(".", "")
            self.m_name2s_name[name] = s_name
            self.register_buffer(s_name, p.clone().detach().data)
        self.register_buffer("num_updates", torch.tensor(0, dtype=torch.int))

    @torch.no_grad()
    def update(self):
        self.num_updates += 1
        decay = min(self.decay, (1 + 3) / (10 + 3))
        shadow = dict(self.named_buffers())
        for key, p in self.net.named_parameters():
            s = shadow[self.m_name2s_name[key]]
            s.sub_((1.0 - decay) * (s - p))

    def forward(self, x):
        if self.training:
            self.update()
            return self.net(x)
        params = {name: getattr(self, s) for name, s in self.m_name2s_name.items()}
        return torch.func.functional_call(self.net, params, (x,))


@sample(6, inputs=features(6))
class GradientPenalty(nn.Module):
    """Norms of gradients of inputs by `torch.func.grad` and a clip of what each row may add."""

    def __init__(self, dim, clip=1.0):
        super().__init__()
        self.critic, self.clip = nn.Sequential(nn.Linear(dim, 8), nn.Softplus(), nn.Linear(8, 1)), clip

    def forward(self, x):
        slopes = torch.func.vmap(torch.func.grad(lambda row: self.critic(row).squeeze()))(x)
        norms = slopes.flatten(1).norm(2, dim=1)
        factor = (self.clip / (norms + 1e-6)).clamp(max=1.0)
        return ((norms - 1) ** 2).mean(), slopes * factor[:, None]


class Registry:
    """Classes by name, as frameworks for vision have them."""

    def __init__(self):
        self._module_dict = {}

    def register_module(self, name=None):
        def _register(cls):
            self._module_dict[name or cls.__name__] = cls
            return cls

        return _register

    def build(self, cfg):
        args = cfg.copy()
        return self._module_dict[args.pop("type")](**args)


HEADS = Registry()


@HEADS.register_module()
class MlpHead(nn.Module):
    def __init__(self, in_channels, num_classes):
        super().__init__()
        self.fc = nn.Linear(in_channels, num_classes)

    def loss(self, feats, labels, **kwargs):
        out = self.fc(feats)
        return {"loss_cls": F.cross_entropy(out, labels) * kwargs.get("weight", 1.0)}

    def predict(self, feats):
        return self.fc(feats).softmax(-1)


@sample({"type": "MlpHead", "in_channels": 6, "num_classes": 3}, inputs=features(6))
class ConfiguredModel(nn.Module):
    """Built from dictionaries; `forward` goes to a method by mode, and losses are parsed by their names."""

    def __init__(self, head, train_cfg=None):
        super().__init__()
        self.head = HEADS.build(head)
        self.train_cfg = {"weight": 0.5, **(train_cfg or {})}

    def parse_losses(self, losses):
        log_vars = OrderedDict()
        for name, value in losses.items():
            log_vars[name] = value.mean() if isinstance(value, torch.Tensor) else sum(v.mean() for v in value)
        loss = sum(value for key, value in log_vars.items() if "loss" in key)
        log_vars["loss"] = loss
        return loss, log_vars

    def forward(self, x, return_loss=True, **kwargs):
        kwargs.update(self.train_cfg)
        if return_loss and self.training:
            labels = (x[:, 0] > 0).long()
            losses = self.head.loss(x, labels, **kwargs)
            losses["aux"] = [x.abs().mean() * 0.1 + losses["loss_cls"] * 0.1]
            return self.parse_losses(losses)
        return self.head.predict(x)


@sample(6, inputs=features(6))
class MixedBatches(nn.Module):
    """Mixup and label smoothing on soft targets, mixed in the middle of the network."""

    def __init__(self, dim, classes=4, alpha=1.0):
        super().__init__()
        self.a, self.b, self.classes = nn.Linear(dim, 8), nn.Linear(8, classes), classes
        self.beta = torch.distributions.beta.Beta(alpha, alpha)

    def forward(self, x):
        y = F.one_hot(x.argmax(1) % self.classes, self.classes).float()
        h = F.relu(self.a(x))
        if self.training:
            lam = torch.max(self.beta.sample(), 1 - torch.tensor(0.3))
            index = torch.randperm(x.size(0))
            h, y = lam * h + (1 - lam) * h[index], lam * y + (1 - lam) * y[index]
        y = y * 0.9 + 0.1 / self.classes
        return torch.sum(-y * F.log_softmax(self.b(h), dim=-1), dim=-1).mean()


@sample(3, inputs=images(3), lengths=(8, 12))
class AugmentedInput(nn.Module):
    """Augmentations as tensor code: flips, colours, cutout and an affine grid, each by chance for each row."""

    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4, 3)
        self.policy = "color,translation,cutout"
        self.functions = {
            "color": [self.brightness, self.contrast],
            "translation": [self.translate],
            "cutout": [self.cutout],
        }

    def brightness(self, x):
        return x + (torch.rand(x.size(0), 1, 1, 1) - 0.5)

    def contrast(self, x):
        mean = x.mean(dim=[1, 2, 3], keepdim=True)
        return (x - mean) * (torch.rand(x.size(0), 1, 1, 1) + 0.5) + mean

    def translate(self, x):
        theta = torch.eye(2, 3).repeat(x.size(0), 1, 1)
        theta[:, :, 2] = torch.rand(x.size(0), 2) * 0.5 - 0.25
        return F.grid_sample(x, F.affine_grid(theta, x.size(), align_corners=False), align_corners=False)

    def cutout(self, x, ratio=0.5):
        size = int(x.size(2) * ratio + 0.5), int(x.size(3) * ratio + 0.5)
        off_x = torch.randint(0, x.size(2) + (1 - size[0] % 2), size=[x.size(0), 1, 1])
        off_y = torch.randint(0, x.size(3) + (1 - size[1] % 2), size=[x.size(0), 1, 1])
        b, gx, gy = torch.meshgrid(torch.arange(x.size(0)), torch.arange(size[0]), torch.arange(size[1]), indexing="ij")
        gx = torch.clamp(gx + off_x - size[0] // 2, min=0, max=x.size(2) - 1)
        gy = torch.clamp(gy + off_y - size[1] // 2, min=0, max=x.size(3) - 1)
        mask = torch.ones(x.size(0), x.size(2), x.size(3), dtype=x.dtype)
        mask[b, gx, gy] = 0
        return x * mask.unsqueeze(1)

    def forward(self, x):
        if self.training:
            for p in self.policy.split(","):
                for f in self.functions[p]:
                    x = f(x)
        return self.conv(x)

    def __deepcopy__(self, memo):
        other = AugmentedInput(3)
        other.load_state_dict(self.state_dict())
        return other.train(self.training)


@sample(10, inputs=tokens(10))
class CountedTokens(nn.Module):
    """A table of statistics by Python's own types beside the tensors, and a deprecated argument."""

    def __init__(self, vocab, dim=6):
        super().__init__()
        self.embed, self.calls = nn.Embedding(vocab, dim), Counter()
        self.register_buffer("seen", torch.zeros(vocab, dtype=torch.long))

    def forward(self, ids, reduce=None):
        if reduce is not None:
            warnings.warn("reduce is deprecated", DeprecationWarning, stacklevel=2)
        self.calls["train" if self.training else "eval"] += 1
        if self.training:
            self.seen += torch.bincount(ids.flatten(), minlength=self.seen.numel())
        freq = (self.seen + 1).float() / (self.seen.sum() + self.seen.numel())
        h = self.embed(ids) * (1e-1 / (1e-1 + freq[ids])).unsqueeze(-1)
        return h.mean(1), self.calls.most_common(1)


@sample(6, inputs=vectors(6))
class StochasticDepthStack(nn.Module):
    """Layers skipped by chance with rules from a linear schedule; Python decides with torch's generator on the host."""

    def __init__(self, dim, depth=4, last=0.3):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.GELU()) for _ in range(depth)
        )
        self.rates = [x.item() for x in torch.linspace(0, last, depth)]

    def forward(self, x):
        kept = []
        for layer, rate in zip(self.layers, self.rates, strict=True):
            if self.training and rate > 0:
                mask = torch.rand(x.shape[0], 1, 1) >= rate
                x = x + torch.where(mask, layer(x) / (1 - rate), 0.0)
                kept.append(mask.float().mean())
            else:
                x = x + layer(x)
        return x, kept
