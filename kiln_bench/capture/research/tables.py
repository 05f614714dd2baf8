"""Tables and recommenders: columns of numbers and categories, crosses, trees that are soft, histories of users."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from itertools import combinations

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import features, sample


def columns(numeric, cardinalities):
    def make(rows, length):
        n = rows * length
        categories = torch.stack([torch.randint(c, (n,)) for c in cardinalities], dim=1)
        return {"dense": torch.randn(n, numeric), "sparse": categories}

    return make


CARDINALITIES = (5, 7, 3)


@sample(4, CARDINALITIES, inputs=columns(4, CARDINALITIES))
class InteractionRecommender(nn.Module):
    """DLRM: bags with offsets, dots of all pairs by indices of a lower triangle."""

    def __init__(self, numeric, cardinalities, dim=4):
        super().__init__()
        self.emb_l = nn.ModuleList([nn.EmbeddingBag(n, dim, mode="sum") for n in cardinalities])
        self.bot_l = self.create_mlp([numeric, 8, dim], -1)
        n = len(cardinalities) + 1
        self.top_l = self.create_mlp([dim + n * (n - 1) // 2, 8, 1], sigmoid_layer=1)

    def create_mlp(self, ln, sigmoid_layer):
        layers = nn.ModuleList()
        for i in range(len(ln) - 1):
            layers.append(nn.Linear(int(ln[i]), int(ln[i + 1]), bias=True))
            layers.append(nn.Sigmoid() if i == sigmoid_layer else nn.ReLU())
        return torch.nn.Sequential(*layers)

    def interact_features(self, x, ly, itself=False):
        (batch_size, d) = x.shape
        T = torch.cat([x, *ly], dim=1).view((batch_size, -1, d))
        Z = torch.bmm(T, torch.transpose(T, 1, 2))
        _, ni, nj = Z.shape
        offset = 1 if itself else 0
        li = torch.tensor([i for i in range(ni) for j in range(i + offset)])
        lj = torch.tensor([j for i in range(nj) for j in range(i + offset)])
        return torch.cat([x, Z[:, li, lj]], dim=1)

    def forward(self, dense, sparse):
        x = self.bot_l(dense)
        offsets = torch.arange(len(dense))
        ly = [emb(column, offsets) for emb, column in zip(self.emb_l, sparse.unbind(1), strict=True)]
        p = self.top_l(self.interact_features(x, ly))
        return torch.clamp(p, min=1e-3, max=1 - 1e-3)


@sample(4, CARDINALITIES, inputs=columns(4, CARDINALITIES))
class FactorisedDeep(nn.Module):
    """DeepFM: one table with offsets, squares of sums against sums of squares, a deep part."""

    def __init__(self, numeric, cardinalities, dim=4):
        super().__init__()
        self.register_buffer("offsets", torch.tensor((0, *cardinalities[:-1])).cumsum(0), persistent=False)
        total = sum(cardinalities)
        self.fc, self.embedding, self.bias = (
            nn.Embedding(total, 1),
            nn.Embedding(total, dim),
            nn.Parameter(torch.zeros((1,))),
        )
        nn.init.xavier_uniform_(self.embedding.weight.data)
        layers, width = [], dim * len(cardinalities) + numeric
        for hidden in (8, 8):
            layers += [nn.Linear(width, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(p=0.1)]
            width = hidden
        self.mlp = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, dense, sparse):
        index = sparse + self.offsets.unsqueeze(0)
        embed = self.embedding(index)
        fm = 0.5 * (torch.sum(embed, dim=1) ** 2 - torch.sum(embed**2, dim=1)).sum(dim=1, keepdim=True)
        linear = torch.sum(self.fc(index), dim=1) + self.bias
        return torch.sigmoid((linear + fm + self.mlp(torch.cat([embed.flatten(1), dense], 1))).squeeze(1))


@sample(6, inputs=features(6))
class CrossNetworks(nn.Module):
    """DCN in vectors, in matrices, and in a mixture of low-rank experts."""

    def __init__(self, dim, layers=2, rank=3, experts=2):
        super().__init__()
        self.kernels = nn.ParameterList([nn.Parameter(torch.randn(dim, 1) * 0.3) for _ in range(layers)])
        self.biases = nn.ParameterList([nn.Parameter(torch.zeros(dim, 1)) for _ in range(layers)])
        self.W = nn.ParameterList([nn.Parameter(torch.randn(dim, dim) * 0.3) for _ in range(layers)])
        self.U, self.V = (nn.Parameter(torch.randn(experts, dim, rank) * 0.3) for _ in range(2))
        self.gate = nn.Linear(dim, experts)

    def vector(self, x0):
        xl = x0
        for w, b in zip(self.kernels, self.biases, strict=True):
            xl = torch.matmul(x0, torch.tensordot(xl, w, dims=([1], [0]))) + b + xl
        return xl.squeeze(2)

    def matrix(self, x0):
        xl = x0
        for w, b in zip(self.W, self.biases, strict=True):
            xl = x0 * (torch.matmul(w, xl) + b) + xl
        return xl.squeeze(2)

    def mixture(self, x):
        low = torch.tanh(torch.einsum("edr,bd->ber", self.V, x))
        outs = x.unsqueeze(1) * torch.einsum("edr,ber->bed", self.U, low)
        return (outs * self.gate(x).softmax(-1).unsqueeze(-1)).sum(1) + x

    def forward(self, x):
        x_0 = x.unsqueeze(2)
        return torch.hstack([self.vector(x_0), self.matrix(x_0), self.mixture(x)])


@sample(CARDINALITIES, inputs=lambda rows, length: {"sparse": columns(1, CARDINALITIES)(rows, length)["sparse"]})
class CompressedInteraction(nn.Module):
    """xDeepFM: outer products of fields, compressed; halves go out and on."""

    def __init__(self, cardinalities, dim=4, sizes=(6, 4)):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(n, dim) for n in cardinalities)
        self.convs, fields, prev = nn.ModuleList(), len(cardinalities), len(cardinalities)
        for size in sizes:
            self.convs.append(nn.Conv1d(prev * fields, size, 1))
            prev = size // 2
        self.out = nn.Linear(sizes[0] // 2 + sizes[1], 1)
        self.pairs = list(combinations(range(fields), 2))
        self.bilinear = nn.ParameterDict({f"{i}_{j}": nn.Parameter(torch.eye(dim)) for i, j in self.pairs})

    def forward(self, sparse):
        x0 = torch.stack([table(column) for table, column in zip(self.tables, sparse.T, strict=True)], 1)
        h, outs = x0, []
        for i, conv in enumerate(self.convs):
            x = (h.unsqueeze(2) * x0.unsqueeze(1)).flatten(1, 2)
            x = F.relu(conv(x))
            if i != len(self.convs) - 1:
                x, h = torch.split(x, x.shape[1] // 2, dim=1)
            outs.append(x)
        crossed = [(x0[:, i] @ self.bilinear[f"{i}_{j}"] * x0[:, j]).sum(-1) for i, j in self.pairs]
        return self.out(torch.cat(outs, dim=1).sum(-1)).squeeze(-1) + torch.stack(crossed).sum(0)


def sparsemax(z):
    z_sorted, _ = torch.sort(z, dim=-1, descending=True)
    k = torch.arange(1, z.size(-1) + 1, dtype=z.dtype)
    cum = z_sorted.cumsum(-1)
    support = (1 + k * z_sorted) > cum
    k_z = support.sum(-1, keepdim=True)
    tau = (cum.gather(-1, k_z - 1) - 1) / k_z
    return torch.clamp(z - tau, min=0)


class GhostNorm(nn.Module):
    """A batch norm over chunks of the batch."""

    def __init__(self, dim, virtual=8):
        super().__init__()
        self.bn, self.virtual = nn.BatchNorm1d(dim, momentum=0.01), virtual

    def forward(self, x):
        chunks = x.chunk(math.ceil(x.shape[0] / self.virtual), 0)
        return torch.cat([self.bn(chunk) for chunk in chunks], dim=0)


class GluBlock(nn.Module):
    def __init__(self, cin, cout, shared=None):
        super().__init__()
        self.fcs = nn.ModuleList(
            [shared if shared is not None else nn.Linear(cin, 2 * cout), nn.Linear(cout, 2 * cout)]
        )
        self.bns = nn.ModuleList(GhostNorm(2 * cout) for _ in self.fcs)
        self.scale = torch.sqrt(torch.FloatTensor([0.5]))

    def forward(self, x):
        scale = self.scale.to(x.device)
        for i, (fc, bn) in enumerate(zip(self.fcs, self.bns, strict=True)):
            out = F.glu(bn(fc(x)), dim=-1)
            x = out if i == 0 else torch.add(x, out) * scale
        return x


@sample(8, inputs=features(8))
class AttentiveTable(nn.Module):
    """TabNet: sparse masks whose priors shrink, ghost batch norms, shared layers."""

    def __init__(self, dim, n_d=4, n_a=4, steps=3, gamma=1.3, eps=1e-10):
        super().__init__()
        self.n_d, self.n_a, self.gamma, self.eps = n_d, n_a, gamma, eps
        self.initial_bn = nn.BatchNorm1d(dim, momentum=0.01)
        shared = nn.Linear(dim, 2 * (n_d + n_a))
        self.initial = GluBlock(dim, n_d + n_a, shared)
        self.blocks = nn.ModuleList(GluBlock(dim, n_d + n_a, shared) for _ in range(steps))
        self.attentive = nn.ModuleList(
            nn.Sequential(nn.Linear(n_a, dim, bias=False), GhostNorm(dim)) for _ in range(steps)
        )

    def forward(self, x):
        x = self.initial_bn(x)
        prior, m_loss = torch.ones(x.shape).to(x.device), 0
        att, outs, explain = self.initial(x)[:, self.n_d :], [], torch.zeros_like(x)
        for block, attentive in zip(self.blocks, self.attentive, strict=True):
            m = sparsemax(attentive(att) * prior)
            m_loss += torch.mean(torch.sum(torch.mul(m, torch.log(m + self.eps)), dim=1))
            prior = torch.mul(self.gamma - m, prior)
            out = block(torch.mul(m, x))
            d = F.relu(out[:, : self.n_d])
            outs.append(d)
            explain += torch.mul(m, d.sum(dim=1, keepdim=True))
            att = out[:, self.n_d :]
        return torch.sum(torch.stack(outs, dim=0), dim=0), m_loss / len(self.blocks), explain


@sample(4, CARDINALITIES, inputs=columns(4, CARDINALITIES))
class FeatureTokenizer(nn.Module):
    """FT-Transformer: a token for each column, a class token, ReGLU, heads on the first token only at the end."""

    def __init__(self, numeric, cardinalities, dim=8):
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.randn(numeric + 1, dim) * 0.3),
            nn.Parameter(torch.zeros(numeric + len(cardinalities), dim)),
        )
        offsets = torch.tensor([0, *cardinalities[:-1]]).cumsum(0)
        self.register_buffer("category_offsets", offsets)
        self.category_embeddings = nn.Embedding(sum(cardinalities), dim)
        self.layers = nn.ModuleList([
            nn.ModuleDict({
                "attention": nn.MultiheadAttention(dim, 2, batch_first=True), "linear0": nn.Linear(dim, 4 * dim),
                "linear1": nn.Linear(2 * dim, dim), "norm1": nn.LayerNorm(dim),
                **({"norm0": nn.LayerNorm(dim)} if i else {}),
            })
            for i in range(2)
        ])  # fmt: skip
        self.head = nn.Linear(dim, 1)

    @staticmethod
    def reglu(x):
        a, b = x.chunk(2, dim=-1)
        return a * F.relu(b)

    def forward(self, dense, sparse):
        x_num = torch.cat([torch.ones(len(dense), 1), dense], dim=1)
        x = torch.cat(
            [self.weight[None] * x_num[:, :, None], self.category_embeddings(sparse + self.category_offsets[None])],
            dim=1,
        )
        x = x + torch.cat([torch.zeros(1, self.bias.shape[1]), self.bias])[None]
        for i, layer in enumerate(self.layers):
            is_last = i + 1 == len(self.layers)
            res = layer["norm0"](x) if "norm0" in layer else x
            query = res[:, :1] if is_last else res
            x = (x[:, :1] if is_last else x) + layer["attention"](query, res, res)[0]
            x = x + layer["linear1"](self.reglu(layer["linear0"](layer["norm1"](x))))
        return self.head(F.relu(x[:, 0])).squeeze(-1)


@sample(6, inputs=features(6))
class ObliviousTrees(nn.Module):
    """NODE: choices of features, soft thresholds, responses of leaves by products of all decisions."""

    def __init__(self, dim, trees=3, depth=3, out=2):
        super().__init__()
        self.depth, self.trees = depth, trees
        self.selection = nn.Parameter(torch.rand(dim, trees, depth))
        self.thresholds, self.log_temp = (
            nn.Parameter(torch.randn(trees, depth)),
            nn.Parameter(torch.zeros(trees, depth)),
        )
        self.response = nn.Parameter(torch.randn(trees, out, 2**depth))
        with torch.no_grad():
            indices = torch.arange(2**depth)
            offsets = 2 ** torch.arange(depth)
            codes = (indices.view(1, -1) // offsets.view(-1, 1) % 2).to(torch.float32)
            self.bin_codes_1hot = nn.Parameter(torch.stack([codes, 1.0 - codes], dim=-1), requires_grad=False)

    def forward(self, x):
        choices = sparsemax(self.selection.movedim(0, -1)).movedim(-1, 0)
        values = torch.einsum("bi,itd->btd", x, choices)
        logits = (values - self.thresholds) * torch.exp(-self.log_temp)
        bins = torch.clamp(0.5 * torch.stack([-logits, logits], dim=-1) + 0.5, 0, 1)
        matches = torch.einsum("btds,dcs->btdc", bins, self.bin_codes_1hot)
        weights = torch.prod(matches, dim=-2)
        return torch.einsum("btc,tkc->btk", weights, self.response).mean(1)


@sample(6, inputs=features(6))
class PiecewiseNumbers(nn.Module):
    """Numbers by piecewise linear bins and by periodic features, each column with its own layer."""

    def __init__(self, dim, bins=4, k=3):
        super().__init__()
        edges = torch.linspace(-2, 2, bins + 1)
        self.register_buffer("left", edges[:-1])
        self.register_buffer("width", edges[1:] - edges[:-1])
        self.coefficients = nn.Parameter(torch.randn(dim, k))
        self.weight = nn.Parameter(torch.randn(dim, bins + 2 * k, 5) * 0.3)
        self.out = nn.Linear(5 * dim, 1)

    def forward(self, x):
        ple = (x[..., None] - self.left) / self.width
        ple = torch.cat(
            [ple[..., :1].clamp_max(1.0), ple[..., 1:-1].clamp(0.0, 1.0), ple[..., -1:].clamp_min(0.0)], dim=-1
        )
        v = 2 * math.pi * self.coefficients[None] * x[..., None]
        z = torch.cat([ple, torch.cos(v), torch.sin(v)], -1)
        z = (z[..., None, :] @ self.weight).squeeze(-2)
        return self.out(F.relu(z).flatten(1))


@sample(20, inputs=lambda rows, length: {
    "history": torch.randint(1, 20, (rows, length)) * (torch.rand(rows, length) > 0.2),
    "target": torch.randint(1, 20, (rows,)),
})  # fmt: skip
class InterestNetwork(nn.Module):
    """DIN: a unit of local activation over a masked history, with Dice as an activation."""

    class Dice(nn.Module):
        def __init__(self, dim, eps=1e-8):
            super().__init__()
            self.bn, self.alpha = nn.BatchNorm1d(dim, eps=eps, affine=False), nn.Parameter(torch.zeros(dim))

        def forward(self, x):
            shape = x.shape
            x = x.reshape(-1, shape[-1])
            p = torch.sigmoid(self.bn(x))
            return (self.alpha * (1 - p) * x + p * x).view(shape)

    def __init__(self, items, dim=6):
        super().__init__()
        self.embed = nn.Embedding(items, dim, padding_idx=0)
        self.unit = nn.Sequential(nn.Linear(4 * dim, 8), self.Dice(8), nn.Linear(8, 1))
        self.out = nn.Sequential(nn.Linear(3 * dim, 8), self.Dice(8), nn.Linear(8, 1))

    def forward(self, history, target):
        keys, query = self.embed(history), self.embed(target)
        queries = query.unsqueeze(1).expand_as(keys)
        att = self.unit(torch.cat([queries, keys, queries - keys, queries * keys], dim=-1)).squeeze(-1)
        att = att * (history > 0)
        interest = torch.bmm(att.unsqueeze(1), keys).squeeze(1)
        return self.out(torch.cat([interest, query, interest * query], -1)).squeeze(-1)


@sample(
    20,
    inputs=lambda rows, length: {
        "items": torch.randint(0, 20, (rows, length)),
        "times": torch.randint(0, 50, (rows, length)).cumsum(1),
    },
)
class TimedHistory(nn.Module):
    """TiSASRec: intervals as relative embeddings, personalised by their least one; sampled negatives."""

    def __init__(self, items, dim=8, max_span=8):
        super().__init__()
        self.embed, self.max_span = nn.Embedding(items, dim, padding_idx=0), max_span
        self.time_k, self.time_v = nn.Embedding(max_span + 1, dim), nn.Embedding(max_span + 1, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))

    def forward(self, items, times):
        span = (times[:, :, None] - times[:, None]).abs()
        positive = span.masked_fill(span == 0, 10**6)
        scale = positive.flatten(1).min(1).values.clamp(max=10**5)
        span = torch.clamp(span // scale[:, None, None], max=self.max_span)
        x = self.embed(items)
        tk, tv = self.time_k(span), self.time_v(span)
        q, k, v = self.q(x), self.k(x), self.v(x)
        w = (q @ k.mT + torch.einsum("bnd,bnmd->bnm", q, tk)) / x.shape[-1] ** 0.5
        n = items.shape[1]
        w = w.masked_fill(~torch.tril(torch.ones((n, n), dtype=torch.bool)), -(2**20)).softmax(-1)
        h = w @ v + torch.einsum("bnm,bnmd->bnd", w, tv)
        negatives = self.embed((items + 7) % 20)
        pos, neg = (h[:, :-1] * x[:, 1:]).sum(-1), (h[:, :-1] * negatives[:, 1:]).sum(-1)
        keep = (items[:, 1:] != 0).float()
        return -((F.logsigmoid(pos) + F.logsigmoid(-neg)) * keep).sum() / keep.sum().clamp(min=1), h[:, -1]


@dataclass
class TaskOutput:
    click: torch.Tensor
    buy: torch.Tensor
    losses: dict[str, torch.Tensor]


@sample(6, inputs=features(6))
class ProgressiveTasks(nn.Module):
    """PLE: experts of tasks and shared ones in two layers; clicks gate purchases."""

    def __init__(self, dim, tasks=("click", "buy"), levels=2):
        super().__init__()
        self.tasks = tasks
        self.levels = nn.ModuleList()
        for _ in range(levels):
            self.levels.append(nn.ModuleDict(OrderedDict(
                [(name, nn.ModuleList(nn.Linear(dim, dim) for _ in range(2))) for name in (*tasks, "shared")]
                + [(f"gate_{name}", nn.Linear(dim, 6 if name == "shared" else 4)) for name in (*tasks, "shared")]
            )))  # fmt: skip
        self.towers = nn.ModuleDict({t: nn.Linear(dim, 1) for t in tasks})

    def forward(self, x):
        state = dict.fromkeys((*self.tasks, "shared"), x)
        for level in self.levels:
            outs = {name: [F.relu(e(state[name])) for e in level[name]] for name in state}
            new = {}
            for name in state:
                pool = [e for part in outs.values() for e in part] if name == "shared" else outs[name] + outs["shared"]
                gate = level[f"gate_{name}"](state[name]).softmax(-1)
                new[name] = torch.einsum("be,bed->bd", gate, torch.stack(pool, dim=1))
            state = new
        p = {t: tower(state[t]).squeeze(-1).sigmoid() for t, tower in self.towers.items()}
        labels = (x[:, 0] > 0).float()
        joint = p["click"] * p["buy"]
        return TaskOutput(
            **p,
            losses={
                "ctr": F.binary_cross_entropy(p["click"], labels),
                "ctcvr": F.binary_cross_entropy(joint, labels * 0.5),
            },
        )
