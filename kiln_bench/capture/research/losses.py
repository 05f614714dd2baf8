"""Losses: contrast, metric, regions, alignments, robust and balanced forms, with what they log."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import asdict, dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import features, images, sample, vectors


def pairs(width):
    return lambda rows, length: {"a": torch.randn(rows * length, width), "b": torch.randn(rows * length, width)}


def labelled(width, classes):
    return lambda rows, length: {
        "x": torch.randn(rows * length, width), "labels": torch.randint(classes, (rows * length,)),
    }  # fmt: skip


def masks(classes):
    return lambda rows, length: {
        "logits": torch.randn(rows, classes, length, length), "target": torch.randint(classes, (rows, length, length)),
    }  # fmt: skip


class Reported(nn.Module):
    """A head in front of a loss, and a dictionary of numbers to log."""

    def __init__(self, dim, out=None):
        super().__init__()
        self.head = nn.Linear(dim, out or dim)
        self.logs = OrderedDict()

    def log(self, **values):
        self.logs.update({k: v.detach() if torch.is_tensor(v) else v for k, v in values.items()})


@sample(8, inputs=pairs(8))
class InfoNce(Reported):
    """CLIP's symmetric loss with a clamped scale and accuracies."""

    def __init__(self, dim, max_scale=100.0):
        super().__init__(dim)
        self.logit_scale = nn.Parameter(torch.ones([]) * math.log(1 / 0.07))
        self.max_scale = max_scale

    def forward(self, a, b):
        a, b = F.normalize(self.head(a), dim=-1), F.normalize(self.head(b), dim=-1)
        scale = self.logit_scale.exp().clamp(max=self.max_scale)
        logits = scale * a @ b.t()
        labels = torch.arange(logits.shape[0], device=logits.device, dtype=torch.long)
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2
        self.log(scale=scale, acc=(logits.argmax(dim=1) == labels).float().mean(), n=len(labels))
        return loss, dict(self.logs)


@sample(8, inputs=pairs(8))
class NtXent(Reported):
    """SimCLR with a mask that removes the diagonal."""

    def forward(self, a, b, temperature=0.5):
        z = F.normalize(self.head(torch.cat([a, b], dim=0)), dim=1)
        n = a.shape[0]
        labels = torch.cat([torch.arange(n) for _ in range(2)], dim=0)
        labels = (labels.unsqueeze(0) == labels.unsqueeze(1)).float()
        sim = torch.matmul(z, z.T)
        mask = torch.eye(labels.shape[0], dtype=torch.bool)
        labels, sim = labels[~mask].view(2 * n, -1), sim[~mask].view(2 * n, -1)
        positives = sim[labels.bool()].view(2 * n, -1)
        negatives = sim[~labels.bool()].view(2 * n, -1)
        logits = torch.cat([positives, negatives], dim=1) / temperature
        return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))


@sample(8, inputs=labelled(8, 3))
class SupervisedContrast(Reported):
    def forward(self, x, labels, temperature=0.2):
        z = F.normalize(self.head(x), dim=-1)
        labels = labels.contiguous().view(-1, 1)
        mask = torch.eq(labels, labels.T).float()
        logits = torch.div(z @ z.T, temperature)
        logits_max, _ = torch.max(logits, dim=1, keepdim=True)
        logits = logits - logits_max.detach()
        logits_mask = torch.scatter(torch.ones_like(mask), 1, torch.arange(z.shape[0]).view(-1, 1), 0)
        mask = mask * logits_mask
        log_prob = logits - torch.log((torch.exp(logits) * logits_mask).sum(1, keepdim=True))
        count = mask.sum(1)
        count = torch.where(count < 1e-6, 1, count)
        return -((mask * log_prob).sum(1) / count).mean()


@sample(8, inputs=pairs(8))
class RedundancyLosses(Reported):
    """Barlow twins' and VICReg's terms, with off-diagonals by a flattened view."""

    @staticmethod
    def off_diagonal(x):
        n, m = x.shape
        assert n == m
        return x.flatten()[:-1].view(n - 1, n + 1)[:, 1:].flatten()

    def forward(self, a, b):
        x, y = self.head(a), self.head(b)
        n, d = x.shape
        norm = partial(F.batch_norm, running_mean=None, running_var=None, training=True)
        c = (norm(x).T @ norm(y)).div_(n)
        barlow = torch.diagonal(c).add_(-1).pow_(2).sum() + 0.005 * self.off_diagonal(c).pow_(2).sum()
        x, y = x - x.mean(dim=0), y - y.mean(dim=0)
        std = sum(F.relu(1 - torch.sqrt(t.var(dim=0) + 1e-4)).mean() / 2 for t in (x, y))
        cov = sum(self.off_diagonal((t.T @ t) / (n - 1)).pow(2).sum().div(d) for t in (x, y))
        return {"barlow": barlow, "sim": 25.0 * F.mse_loss(x, y), "std": 25.0 * std, "cov": cov}


@sample(8, inputs=pairs(8))
class BootstrapTarget(nn.Module):
    """BYOL: a target network that follows by a moving average, with a schedule kept as a number."""

    def __init__(self, dim, tau=0.9, steps=100):
        super().__init__()
        self.online = nn.Sequential(nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim))
        self.target = nn.Sequential(nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim))
        self.target.load_state_dict(self.online.state_dict())
        for p in self.target.parameters():
            p.requires_grad = False
        self.predictor, self.base_tau, self.steps, self.k = nn.Linear(dim, dim), tau, steps, 0

    @torch.no_grad()
    def update_target(self):
        tau = 1 - (1 - self.base_tau) * (math.cos(math.pi * self.k / self.steps) + 1) / 2
        for o, t in zip(self.online.parameters(), self.target.parameters(), strict=True):
            t.data = t.data * tau + o.data * (1 - tau)
        self.k += 1

    def forward(self, a, b):
        if self.training:
            self.update_target()
        loss = 0
        for x, y in ((a, b), (b, a)):
            p = F.normalize(self.predictor(self.online(x)), dim=-1, p=2)
            with torch.no_grad():
                z = F.normalize(self.target(y), dim=-1, p=2)
            loss = loss + (2 - 2 * (p * z).sum(dim=-1)).mean()
        return loss


@sample(8, queue=16, inputs=pairs(8))
class MomentumQueue(Reported):
    """MoCo: a queue in a buffer, written at a position that is a tensor."""

    def __init__(self, dim, queue, temperature=0.1):
        super().__init__(dim)
        self.T, self.K = temperature, queue
        self.register_buffer("queue", F.normalize(torch.randn(dim, queue), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        n = min(keys.shape[0], self.K)
        where = (self.queue_ptr + torch.arange(n)) % self.K
        self.queue[:, where] = keys[:n].T
        self.queue_ptr.copy_((self.queue_ptr + n) % self.K)

    def forward(self, a, b):
        q = F.normalize(self.head(a), dim=1)
        with torch.no_grad():
            k = F.normalize(self.head(b), dim=1)
        l_pos = torch.einsum("nc,nc->n", [q, k]).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", [q, self.queue.clone().detach()])
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        self._dequeue_and_enqueue(k)
        return F.cross_entropy(logits, torch.zeros(logits.shape[0], dtype=torch.long))


@sample(8, inputs=labelled(8, 4))
class HardTriplets(Reported):
    """Hardest positives and negatives of a batch, by masks."""

    def forward(self, x, labels, margin=0.3):
        z = self.head(x)
        n = z.size(0)
        dist = torch.pow(z, 2).sum(dim=1, keepdim=True).expand(n, n)
        dist = dist + dist.t()
        dist = dist.addmm(z, z.t(), beta=1, alpha=-2).clamp(min=1e-12).sqrt()
        same = labels.expand(n, n).eq(labels.expand(n, n).t())
        ap = dist.masked_fill(~same, float("-inf")).max(1).values
        an = dist.masked_fill(same, 1e3).min(1).values
        loss = F.margin_ranking_loss(an, ap, torch.ones_like(an), margin=margin)
        self.log(prec=(an > ap).sum() * 1.0 / n)
        return loss, self.logs["prec"]


@sample(8, 5, inputs=labelled(8, 5))
class AngularMargin(nn.Module):
    """ArcFace, CosFace and a sub-centre maximum, chosen by a string."""

    def __init__(self, dim, classes, s=16.0, m=0.3, kind="arc", centres=2):
        super().__init__()
        self.weight = nn.Parameter(torch.FloatTensor(classes * centres, dim))
        nn.init.xavier_uniform_(self.weight)
        self.s, self.m, self.kind, self.k = s, m, kind, centres
        self.cos_m, self.sin_m = math.cos(m), math.sin(m)
        self.th, self.mm = math.cos(math.pi - m), math.sin(math.pi - m) * m

    def forward(self, x, labels):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight))
        cosine = cosine.view(x.size(0), -1, self.k).max(dim=2)[0]
        if self.kind == "arc":
            sine = torch.sqrt((1.0 - torch.pow(cosine, 2)).clamp(1e-6, 1))
            phi = torch.where(cosine > self.th, cosine * self.cos_m - sine * self.sin_m, cosine - self.mm)
        else:
            phi = cosine - self.m
        one_hot = torch.zeros(cosine.size())
        one_hot.scatter_(1, labels.view(-1, 1).long(), 1)
        output = ((one_hot * phi) + ((1.0 - one_hot) * cosine)) * self.s
        return F.cross_entropy(output, labels), output


@sample(3, inputs=masks(3))
class RegionLosses(nn.Module):
    """Dice, Tversky, boundary and focal terms with learned weights of uncertainty."""

    def __init__(self, classes, smooth=1.0):
        super().__init__()
        self.classes, self.smooth = classes, smooth
        self.log_vars = nn.ParameterDict(
            {k: nn.Parameter(torch.zeros(())) for k in ("dice", "tversky", "focal", "edge")}
        )
        self.scale = nn.Parameter(torch.ones(1, classes, 1, 1))

    def terms(self, logits, target):
        hot = F.one_hot(target, self.classes).permute(0, 3, 1, 2).float()
        p = logits.softmax(1)
        dims = (0, 2, 3)
        tp, fp, fn = (p * hot).sum(dims), (p * (1 - hot)).sum(dims), ((1 - p) * hot).sum(dims)
        yield "dice", 1 - ((2 * tp + self.smooth) / (2 * tp + fp + fn + self.smooth)).mean()
        yield "tversky", (1 - (tp + self.smooth) / (tp + 0.3 * fp + 0.7 * fn + self.smooth)).pow(0.75).mean()
        ce = F.cross_entropy(logits, target, reduction="none", label_smoothing=0.1)
        yield "focal", ((1 - torch.exp(-ce)) ** 2 * ce).mean()
        inner, outer = -F.max_pool2d(-hot, 3, 1, 1), F.max_pool2d(hot, 3, 1, 1)
        yield "edge", ((outer - inner) * ce.unsqueeze(1)).sum() / (outer - inner).sum().clamp_min(1)

    def forward(self, logits, target):
        losses = dict(self.terms(logits * self.scale, target))
        total = sum(torch.exp(-self.log_vars[k]) * v + self.log_vars[k] for k, v in losses.items())
        return total, {f"loss/{k}": v.detach() for k, v in losses.items()}


@sample(2, inputs=masks(3))
class LovaszSoftmax(nn.Module):
    """Sorted errors and the gradient of the Jaccard index, for the classes that are present."""

    def __init__(self, classes):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, 3, 1, 1))

    @staticmethod
    def lovasz_grad(gt_sorted):
        gts = gt_sorted.sum()
        intersection = gts - gt_sorted.float().cumsum(0)
        union = gts + (1 - gt_sorted).float().cumsum(0)
        jaccard = 1.0 - intersection / union
        if len(gt_sorted) > 1:
            jaccard[1:] = jaccard[1:] - jaccard[0:-1].clone()
        return jaccard

    def forward(self, logits, target):
        probas = (logits + self.bias).softmax(1).permute(0, 2, 3, 1).reshape(-1, 3)
        labels, losses, present = target.reshape(-1), [], []
        for c in range(probas.shape[1]):
            fg = (labels == c).float()
            errors = (fg - probas[:, c]).abs()
            errors_sorted, perm = torch.sort(errors, 0, descending=True)
            losses.append(torch.dot(errors_sorted, self.lovasz_grad(fg[perm])))
            present.append(fg.sum() > 0)
        present = torch.stack(present).float()
        return (torch.stack(losses) * present).sum() / present.sum()


@sample(6, 5, inputs=lambda rows, length: {
    "x": torch.randn(rows, 2 * length, 6), "targets": torch.randint(1, 5, (rows, length // 2)),
    "target_lengths": torch.randint(1, length // 2 + 1, (rows,)),
})  # fmt: skip
class CtcHead(nn.Module):
    """CTC with smoothing by entropy, and greedy labels without repeats."""

    def __init__(self, dim, vocab, blank=0):
        super().__init__()
        self.proj, self.blank = nn.Linear(dim, vocab), blank

    def forward(self, x, targets, target_lengths):
        log_probs = self.proj(x).log_softmax(dim=-1)
        b, t, _ = log_probs.shape
        input_lengths = torch.full(size=(b,), fill_value=t, dtype=torch.long)
        ctc = F.ctc_loss(
            log_probs.transpose(0, 1), targets, input_lengths, target_lengths, blank=self.blank, zero_infinity=True
        )
        entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
        best = log_probs.argmax(-1)
        keep = F.pad(best[:, 1:] != best[:, :-1], (1, 0), value=True) & (best != self.blank)
        return ctc - 0.01 * entropy, keep.sum(1), best.masked_fill(~keep, -1)


@sample(
    6,
    5,
    inputs=lambda rows, length: {"enc": torch.randn(rows, length, 6), "targets": torch.randint(1, 5, (rows, 3))},
    lengths=(4, 6),
)
class TransducerLoss(nn.Module):
    """The lattice of a transducer, summed by a double loop in logarithms."""

    def __init__(self, dim, vocab):
        super().__init__()
        self.embed, self.joint = nn.Embedding(vocab, dim), nn.Linear(dim, vocab)

    def forward(self, enc, targets):
        pred = self.embed(F.pad(targets, (1, 0)))
        logp = self.joint(torch.tanh(enc[:, :, None] + pred[:, None])).log_softmax(-1)
        B, T, U, _ = logp.shape
        blank = logp[..., 0]
        emit = logp[:, :, :-1].gather(3, targets[:, None, :, None].expand(-1, T, -1, 1)).squeeze(3)
        alpha = [[None] * U for _ in range(T)]
        for t in range(T):
            for u in range(U):
                if t == 0 and u == 0:
                    alpha[t][u] = torch.zeros(B)
                    continue
                ways = []
                if t > 0:
                    ways.append(alpha[t - 1][u] + blank[:, t - 1, u])
                if u > 0:
                    ways.append(alpha[t][u - 1] + emit[:, t, u - 1])
                alpha[t][u] = ways[0] if len(ways) == 1 else torch.logaddexp(*ways)
        return -(alpha[-1][-1] + blank[:, -1, -1]).mean()


@sample(
    4,
    inputs=lambda rows, length: {"a": torch.randn(rows, length, 4), "b": torch.randn(rows, length - 1, 4)},
    lengths=(4, 6),
)
class SoftDtw(nn.Module):
    """A soft minimum along the diagonals of a table."""

    def __init__(self, dim, gamma=0.5):
        super().__init__()
        self.proj, self.gamma = nn.Linear(dim, dim), gamma

    def softmin(self, *args):
        return -self.gamma * torch.logsumexp(torch.stack(args, -1) / -self.gamma, dim=-1)

    def forward(self, a, b):
        D = torch.cdist(self.proj(a), self.proj(b)).pow(2)
        B, N, M = D.shape
        R = {(-1, -1): D.new_zeros(B)}
        big = D.new_full((B,), 1e6)
        for i in range(N):
            for j in range(M):
                R[i, j] = D[:, i, j] + self.softmin(
                    *(R.get(at, big) for at in ((i - 1, j - 1), (i - 1, j), (i, j - 1)))
                )
        return R[N - 1, M - 1].mean()


@sample(8, 5, inputs=labelled(8, 5))
class LongTailLoss(nn.Module):
    """Logits adjusted by counts, class-balanced weights and margins that grow for rare classes."""

    def __init__(self, dim, classes, counts=(100, 50, 20, 10, 3)):
        super().__init__()
        self.fc = nn.Linear(dim, classes)
        n = torch.tensor(counts, dtype=torch.float)
        effective = 1.0 - torch.pow(torch.tensor(0.99), n)
        weights = (1.0 - 0.99) / effective
        self.register_buffer("weight", weights / weights.sum() * classes)
        self.register_buffer("margin", 0.5 / n.sqrt().sqrt())
        self.register_buffer("prior", (n / n.sum()).log())

    def forward(self, x, labels):
        logits = self.fc(x)
        index = torch.zeros_like(logits, dtype=torch.uint8).scatter_(1, labels.data.view(-1, 1), 1).bool()
        shifted = torch.where(index, logits - self.margin[labels].unsqueeze(1), logits)
        return F.cross_entropy(shifted, labels, weight=self.weight), F.cross_entropy(
            logits + self.prior, labels, reduction="sum"
        )


@sample(8, inputs=labelled(8, 4))
class EvidentialLoss(nn.Module):
    """Dirichlet evidence with a divergence that is annealed by a counter in a buffer."""

    def __init__(self, dim, classes=4, annealing=10):
        super().__init__()
        self.fc, self.k, self.annealing = nn.Linear(dim, classes), classes, annealing
        self.register_buffer("epoch", torch.tensor(0))

    def kl(self, alpha):
        ones = torch.ones([1, self.k], dtype=torch.float32)
        sum_alpha = torch.sum(alpha, dim=1, keepdim=True)
        first = (
            torch.lgamma(sum_alpha)
            - torch.lgamma(alpha).sum(1, keepdim=True)
            + torch.lgamma(ones).sum(1, keepdim=True)
            - torch.lgamma(ones.sum(1, keepdim=True))
        )
        second = (alpha - ones).mul(torch.digamma(alpha) - torch.digamma(sum_alpha)).sum(dim=1, keepdim=True)
        return first + second

    def forward(self, x, labels):
        y = F.one_hot(labels, self.k)
        alpha = F.softplus(self.fc(x)) + 1
        s = alpha.sum(1, keepdim=True)
        loglik = ((y - alpha / s) ** 2).sum(1, keepdim=True) + (alpha * (s - alpha) / (s * s * (s + 1))).sum(
            1, keepdim=True
        )
        if self.training:
            self.epoch += 1
        coef = torch.min(torch.tensor(1.0), self.epoch / self.annealing)
        return (loglik + coef * self.kl((alpha - 1) * (1 - y) + 1)).mean(), self.k / s


@dataclass(frozen=True)
class DistillSettings:
    temperature: float = 4.0
    alpha: float = 0.7
    match: tuple[str, ...] = ("0", "2")


@sample(DistillSettings(), inputs=labelled(8, 3))
class FeatureDistillation(nn.Module):
    """Hooks keep what layers of teacher and student give; settings are unpacked as keywords."""

    def __init__(self, settings):
        super().__init__()
        self.settings = settings
        self.teacher = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).requires_grad_(False)
        self.student = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
        self.adapt = nn.ModuleDict({"0": nn.Linear(6, 16), "2": nn.Identity()})

    def run(self, net, x):
        kept = {}
        for name, layer in net.named_children():
            x = layer(x)
            kept[name] = x
        return x, kept

    def combine(self, soft, hard, feats, *, alpha, **_):
        return alpha * soft + (1 - alpha) * hard + 0.1 * feats

    def forward(self, x, labels):
        (s, fs), t_all = self.run(self.student, x), self.run(self.teacher, x)
        t, ft = t_all
        T = self.settings.temperature
        soft = F.kl_div(F.log_softmax(s / T, dim=1), F.softmax(t / T, dim=1), reduction="batchmean") * T**2
        feats = sum(F.mse_loss(self.adapt[k](fs[k]), ft[k]) for k in self.settings.match)
        return self.combine(soft, F.cross_entropy(s, labels), feats, **asdict(self.settings))


@sample(6, inputs=vectors(6))
class QuantileRegression(nn.Module):
    """Pinball losses, ordered quantiles, intervals and their coverage."""

    QUANTILES = (0.1, 0.5, 0.9)

    def __init__(self, dim):
        super().__init__()
        self.net = nn.Linear(dim, len(self.QUANTILES))

    def forward(self, x):
        target = x.sum(-1)
        raw = self.net(x)
        preds = torch.cat([raw[..., :1], raw[..., :1] + F.softplus(raw[..., 1:]).cumsum(-1)], dim=-1)
        losses = []
        for i, q in enumerate(self.QUANTILES):
            errors = target - preds[..., i]
            losses.append(torch.max((q - 1) * errors, q * errors).unsqueeze(-1))
        low, high = preds[..., 0], preds[..., -1]
        return torch.cat(losses, -1).sum(-1).mean(), ((target >= low) & (target <= high)).float().mean()


@sample(6, inputs=pairs(6))
class DistributionDistances(nn.Module):
    """Maximum mean discrepancy with a bandwidth from the data, CORAL, and a sliced Wasserstein distance."""

    def __init__(self, dim, kernels=3):
        super().__init__()
        self.f, self.kernels = nn.Linear(dim, dim), kernels
        self.register_buffer("directions", F.normalize(torch.randn(dim, 7), dim=0))

    def gaussian(self, source, target, mul=2.0):
        n = int(source.size(0)) + int(target.size(0))
        total = torch.cat([source, target], dim=0)
        t0 = total.unsqueeze(0).expand(n, total.size(0), total.size(1))
        t1 = total.unsqueeze(1).expand(n, total.size(0), total.size(1))
        l2 = ((t0 - t1) ** 2).sum(2)
        bandwidth = torch.sum(l2.data) / (n**2 - n) / mul ** (self.kernels // 2)
        return sum([torch.exp(-l2 / (bandwidth * mul**i)) for i in range(self.kernels)])

    def forward(self, a, b):
        a, b = self.f(a), self.f(b)
        n = a.size(0)
        k = self.gaussian(a, b)
        mmd = torch.mean(k[:n, :n] + k[n:, n:] - k[:n, n:] - k[n:, :n])
        coral = (torch.cov(a.T) - torch.cov(b.T)).pow(2).sum() / (4 * a.shape[1] ** 2)
        sliced = (
            (torch.sort(a @ self.directions, dim=0)[0] - torch.sort(b @ self.directions, dim=0)[0]).abs().pow(2).mean()
        )
        return mmd, coral, sliced


@sample(
    3,
    inputs=lambda rows, length: {"x": torch.rand(rows, 3, length, length), "y": torch.rand(rows, 3, length, length)},
    lengths=(12, 16),
)
class StructuralSimilarity(nn.Module):
    """SSIM with a Gaussian window that is made again for other numbers of channels; gradients and total variation."""

    def __init__(self, channel, window_size=5):
        super().__init__()
        self.window_size, self.channel = window_size, 1
        self.window = self.create_window(1)
        self.gain = nn.Parameter(torch.ones(1, channel, 1, 1))

    def create_window(self, channel):
        gauss = torch.Tensor(
            [math.exp(-((x - self.window_size // 2) ** 2) / (2 * 1.5**2)) for x in range(self.window_size)]
        )
        one_d = (gauss / gauss.sum()).unsqueeze(1)
        return one_d.mm(one_d.t()).float().unsqueeze(0).unsqueeze(0).expand(channel, 1, -1, -1).contiguous()

    def forward(self, x, y):
        x = x * self.gain
        (_, channel, _, _) = x.size()
        if channel == self.channel and self.window.dtype == x.dtype:
            window = self.window
        else:
            window = self.create_window(channel).to(x.device).type(x.dtype)
            self.window, self.channel = window, channel
        conv = partial(F.conv2d, weight=window, padding=self.window_size // 2, groups=channel)
        mu1, mu2 = conv(x), conv(y)
        s1, s2, s12 = conv(x * x) - mu1**2, conv(y * y) - mu2**2, conv(x * y) - mu1 * mu2
        ssim = ((2 * mu1 * mu2 + 0.01**2) * (2 * s12 + 0.03**2)) / ((mu1**2 + mu2**2 + 0.01**2) * (s1 + s2 + 0.03**2))
        tv = torch.diff(x, dim=2).abs().mean() + torch.diff(x, dim=3).abs().mean()
        return 1 - ssim.mean(), tv, ssim.mean(1).mean(1).mean(1)


@sample(8, inputs=features(8))
class SinkhornCentres(nn.Module):
    """SwAV: assignments by Sinkhorn's iterations without gradients, and a swapped prediction."""

    def __init__(self, dim, prototypes=5, eps=0.1):
        super().__init__()
        self.prototypes, self.eps = nn.Linear(dim, prototypes, bias=False), eps

    @torch.no_grad()
    def assign(self, out, iters=3):
        Q = torch.exp(out / self.eps).t()
        K, B = Q.shape
        Q /= torch.sum(Q)
        for _ in range(iters):
            Q /= torch.sum(Q, dim=1, keepdim=True)
            Q /= K
            Q /= torch.sum(Q, dim=0, keepdim=True)
            Q /= B
        return (Q * B).t()

    def forward(self, x):
        with torch.no_grad():
            w = self.prototypes.weight.data.clone()
            self.prototypes.weight.copy_(F.normalize(w, dim=1, p=2))
        a, b = (self.prototypes(F.normalize(t, dim=1)) for t in (x, x + 0.1 * x.roll(1, 1)))
        qa, qb = self.assign(a), self.assign(b)
        return -0.5 * ((qb * F.log_softmax(a / 0.1, 1)).sum(1).mean() + (qa * F.log_softmax(b / 0.1, 1)).sum(1).mean())


@sample(4, inputs=images(4))
class PerceptualGram(nn.Module):
    """Style by Gram matrices of several layers, weighted by a table of names."""

    WEIGHTS = {"relu1": 1.0, "relu2": 0.5}

    def __init__(self, dim):
        super().__init__()
        self.layers = nn.ModuleDict(
            {"conv1": nn.Conv2d(dim, 6, 3), "relu1": nn.ReLU(), "conv2": nn.Conv2d(6, 6, 3), "relu2": nn.ReLU()}
        )

    @staticmethod
    def gram(x):
        b, c, h, w = x.size()
        f = x.view(b * c, h * w)
        return torch.mm(f, f.t()).div(b * c * h * w)

    def forward(self, x):
        style, y = x.new_zeros(()), x.flip(3)
        for name, layer in self.layers.items():
            x, y = layer(x), layer(y)
            if (weight := self.WEIGHTS.get(name)) is not None:
                style = style + weight * F.mse_loss(self.gram(x), self.gram(y).detach())
        return style
