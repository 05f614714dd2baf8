"""Networks on graphs: messages over edges by gather and scatter, attention, pooling, dense and heterogeneous forms."""

from __future__ import annotations

import math
from inspect import signature

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import sample


def graph(width):
    """Random edges between nodes: about three for each node."""

    def make(rows, length):
        nodes = rows * length
        return {"x": torch.randn(nodes, width), "edge_index": torch.randint(nodes, (2, 3 * nodes))}

    return make


def batched(width, edge_width=0):
    def make(rows, length):
        nodes = rows * length
        made = {"x": torch.randn(nodes, width), "edge_index": torch.randint(nodes, (2, 3 * nodes))}
        if edge_width:
            made["edge_attr"] = torch.randn(3 * nodes, edge_width)
        return {**made, "batch": torch.arange(rows).repeat_interleave(length)}

    return make


def dense(width):
    return lambda rows, length: {
        "x": torch.randn(rows, length, width), "adj": (torch.rand(rows, length, length) > 0.6).float(),
    }  # fmt: skip


def scatter(src, index, dim_size, reduce="sum"):
    shape = (dim_size, *src.shape[1:])
    expanded = index.view(-1, *[1] * (src.dim() - 1)).expand_as(src)
    if reduce == "sum":
        return src.new_zeros(shape).scatter_add_(0, expanded, src)
    name = {"mean": "mean", "max": "amax", "min": "amin"}[reduce]
    return src.new_zeros(shape).scatter_reduce_(0, expanded, src, reduce=name, include_self=False)


def segment_softmax(src, index, num_nodes):
    peak = scatter(src.detach(), index, num_nodes, "max")
    out = (src - peak.index_select(0, index)).exp()
    return out / (scatter(out, index, num_nodes).index_select(0, index) + 1e-16)


class MessagePassingBase(nn.Module):
    """Arguments of `message` with `_i` and `_j` are gathered by its signature."""

    def __init__(self, aggr="sum"):
        super().__init__()
        self.aggr = aggr
        self.params = [name for name in signature(self.message).parameters if name != "self"]

    def propagate(self, edge_index, size, **kwargs):
        source, target = edge_index
        given = {}
        for name in self.params:
            if name.endswith(("_i", "_j")):
                given[name] = kwargs[name[:-2]][target if name.endswith("_i") else source]
            else:
                given[name] = {"index": target, "size": size}.get(name, kwargs.get(name))
        return scatter(self.message(**given), target, size, self.aggr)

    def message(self, x_j):
        return x_j


@sample(6, 8, inputs=graph(6))
class SymmetricGcn(MessagePassingBase):
    """Loops are added and degrees normalise both ends."""

    def __init__(self, cin, cout):
        super().__init__("sum")
        self.lin = nn.Linear(cin, cout, bias=False)
        self.bias = nn.Parameter(torch.zeros(cout))

    def message(self, x_j, norm):
        return norm.view(-1, 1) * x_j

    def forward(self, x, edge_index):
        n = x.size(0)
        loops = torch.arange(n).unsqueeze(0).repeat(2, 1)
        edge_index = torch.cat([edge_index, loops], dim=1)
        row, col = edge_index
        deg = torch.zeros(n, dtype=x.dtype).scatter_add(0, col, torch.ones_like(col, dtype=x.dtype))
        deg_inv_sqrt = deg.pow(-0.5)
        deg_inv_sqrt[deg_inv_sqrt == float("inf")] = 0
        norm = deg_inv_sqrt[row] * deg_inv_sqrt[col]
        return self.propagate(edge_index, n, x=self.lin(x), norm=norm) + self.bias


@sample(6, 4, heads=2, inputs=graph(6))
class GraphAttention(MessagePassingBase):
    def __init__(self, cin, cout, heads, v2=True):
        super().__init__()
        self.heads, self.cout, self.v2 = heads, cout, v2
        self.lin = nn.Linear(cin, heads * cout, bias=False)
        self.att = nn.Parameter(torch.empty(1, heads, cout))
        nn.init.xavier_uniform_(self.att)

    def message(self, x_i, x_j, index, size):
        alpha = (F.leaky_relu(x_i + x_j, 0.2) * self.att).sum(-1)
        alpha = segment_softmax(alpha, index, size)
        alpha = F.dropout(alpha, 0.2, training=self.training)
        return x_j * alpha.unsqueeze(-1)

    def forward(self, x, edge_index):
        h = self.lin(x).view(-1, self.heads, self.cout)
        return F.elu(self.propagate(edge_index, x.size(0), x=h).flatten(1))


@sample(6, 8, inputs=batched(6, 3))
class EdgeGin(MessagePassingBase):
    """GINE with jumping knowledge, and sums over graphs."""

    def __init__(self, cin, dim, layers=3):
        super().__init__()
        self.embed, self.edge = nn.Linear(cin, dim), nn.Linear(3, dim)
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.BatchNorm1d(dim), nn.ReLU(), nn.Linear(dim, dim))
            for _ in range(layers)
        )
        self.eps = nn.Parameter(torch.zeros(layers))
        self.out = nn.Linear(dim * (layers + 1), 1)

    def message(self, x_j, e):
        return (x_j + e).relu()

    def forward(self, x, edge_index, edge_attr, batch):
        h, e = self.embed(x), self.edge(edge_attr)
        xs = [h]
        for i, mlp in enumerate(self.mlps):
            h = mlp((1 + self.eps[i]) * h + self.propagate(edge_index, h.size(0), x=h, e=e))
            xs += [h]
        graphs = int(batch[-1]) + 1
        return self.out(scatter(torch.cat(xs, dim=-1), batch, graphs))


@sample(6, 8, inputs=batched(6))
class PrincipalAggregation(nn.Module):
    """PNA: several aggregators times several scalers of degrees."""

    def __init__(
        self, cin, cout, aggregators=("mean", "min", "max", "std"), scalers=("identity", "amplification", "attenuation")
    ):
        super().__init__()
        self.aggregators, self.scalers = aggregators, scalers
        self.pre, self.post = nn.Linear(2 * cin, cin), nn.Linear(cin * (len(aggregators) * len(scalers) + 1), cout)
        self.avg_log = 1.2

    def aggregate(self, h, index, n):
        outs = []
        for name in self.aggregators:
            if name == "std":
                mean = scatter(h, index, n, "mean")
                out = torch.sqrt(torch.relu(scatter(h * h, index, n, "mean") - mean * mean) + 1e-5)
            else:
                out = scatter(h, index, n, reduce=name)
            outs.append(out)
        return torch.cat(outs, dim=-1)

    def forward(self, x, edge_index, batch):
        src, dst = edge_index.unbind()
        n = x.shape[0]
        out = self.aggregate(self.pre(torch.cat([x[dst], x[src]], -1)), dst, n)
        degree = torch.bincount(dst, minlength=n).clamp(min=1).unsqueeze(-1)
        log = torch.log(degree + 1)
        table = {
            "identity": lambda t: t,
            "amplification": lambda t: t * (log / self.avg_log),
            "attenuation": lambda t: t * (self.avg_log / log),
        }
        out = torch.cat([table[name](out) for name in self.scalers], dim=-1)
        return scatter(self.post(torch.cat([x, out], dim=-1)), batch, 5, "mean")


@sample(4, 6, k=3, inputs=lambda rows, length: {"x": torch.randn(rows, 4, length)})
class DynamicEdgeConv(nn.Module):
    """DGCNN: neighbours in the space of features, found anew in each layer."""

    def __init__(self, cin, cout, k):
        super().__init__()
        self.k = k
        self.conv1 = nn.Sequential(nn.Conv2d(2 * cin, cout, 1, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.2))
        self.conv2 = nn.Sequential(nn.Conv2d(2 * cout, cout, 1, bias=False), nn.BatchNorm2d(cout), nn.LeakyReLU(0.2))

    @staticmethod
    def knn(x, k):
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        xx = torch.sum(x**2, dim=1, keepdim=True)
        return (-xx - inner - xx.transpose(2, 1)).topk(k=k, dim=-1)[1]

    def get_graph_feature(self, x):
        batch_size, num_dims, num_points = x.size()
        idx = self.knn(x, self.k)
        idx_base = torch.arange(0, batch_size, device=x.device).view(-1, 1, 1) * num_points
        idx = (idx + idx_base).view(-1)
        x = x.transpose(2, 1).contiguous()
        feature = x.view(batch_size * num_points, -1)[idx, :].view(batch_size, num_points, self.k, num_dims)
        x = x.view(batch_size, num_points, 1, num_dims).repeat(1, 1, self.k, 1)
        return torch.cat((feature - x, x), dim=3).permute(0, 3, 1, 2).contiguous()

    def forward(self, x):
        x1 = self.conv1(self.get_graph_feature(x)).max(dim=-1, keepdim=False)[0]
        x2 = self.conv2(self.get_graph_feature(x1)).max(dim=-1)[0]
        return torch.cat((x1, x2), dim=1)


@sample(6, ratio=0.5, inputs=batched(6))
class TopKPooling(nn.Module):
    """The best nodes of each graph by a dense padding, and edges between kept nodes."""

    def __init__(self, dim, ratio):
        super().__init__()
        self.weight, self.ratio = nn.Parameter(torch.randn(1, dim)), ratio

    def forward(self, x, edge_index, batch):
        score = torch.tanh((x * self.weight).sum(dim=-1) / self.weight.norm(p=2, dim=-1))
        graphs = int(batch.max()) + 1
        counts = torch.zeros(graphs, dtype=torch.long).scatter_add_(0, batch, torch.ones_like(batch))
        order = torch.argsort(score, descending=True)
        order = order[torch.argsort(batch[order], stable=True)]
        start = counts.cumsum(0) - counts
        rank = torch.arange(x.size(0)) - start[batch[order]]
        keep = rank < (self.ratio * counts.float()).ceil().long()[batch[order]]
        mask = torch.zeros(x.size(0), dtype=torch.bool).scatter(0, order, keep)
        edge_mask = mask[edge_index[0]] & mask[edge_index[1]]
        pooled = scatter(x * (score * mask).unsqueeze(-1), batch, graphs)
        return pooled, edge_mask.sum(), counts


@sample(6, clusters=3, inputs=dense(6))
class DenseDiffPool(nn.Module):
    def __init__(self, dim, clusters):
        super().__init__()
        self.embed, self.assign = nn.Linear(dim, dim), nn.Linear(dim, clusters)

    def forward(self, x, adj):
        adj = (adj + adj.transpose(1, 2)).clamp(max=1) + torch.eye(adj.shape[-1])
        norm = adj / adj.sum(-1, keepdim=True).clamp(min=1)
        z, s = F.relu(norm @ self.embed(x)), torch.softmax(norm @ self.assign(x), dim=-1)
        out, out_adj = torch.matmul(s.transpose(1, 2), z), s.mT @ adj @ s
        link = torch.norm(adj - torch.matmul(s, s.transpose(1, 2)), p=2) / adj.numel()
        ent = (-s * torch.log(s + 1e-15)).sum(dim=-1).mean()
        return out, out_adj, link, ent


@sample(6, 8, k=3, inputs=dense(6))
class ChebyshevGraphConv(nn.Module):
    """Polynomials of a scaled Laplacian, on dense adjacencies."""

    def __init__(self, cin, cout, k):
        super().__init__()
        self.lins = nn.ModuleList([nn.Linear(cin, cout, bias=i == 0) for i in range(k)])

    def forward(self, x, adj):
        adj = (adj + adj.mT) / 2
        d = adj.sum(-1).clamp(min=1e-6).rsqrt()
        laplacian = -d[:, :, None] * adj * d[:, None, :]
        tx_0, tx_1 = x, x
        out = self.lins[0](tx_0)
        if len(self.lins) > 1:
            tx_1 = laplacian @ x
            out = out + self.lins[1](tx_1)
        for lin in self.lins[2:]:
            tx_2 = 2.0 * laplacian @ tx_1 - tx_0
            out = out + lin.forward(tx_2)
            tx_0, tx_1 = tx_1, tx_2
        return out


def purchases(rows, length):
    users, items = rows * length, rows * 3
    edges = torch.stack([torch.randint(users, (20,)), torch.randint(items, (20,))])
    back = {("item", "rev_buys", "user"): edges.flip(0), ("user", "buys", "item"): edges}
    return {"x_dict": {"user": torch.randn(users, 6), "item": torch.randn(items, 6)}, "edge_index_dict": back}


@sample(6, 8, inputs=purchases)
class HeteroConv(nn.Module):
    """Dictionaries keyed by types of nodes and triples of edges."""

    def __init__(self, cin, cout):
        super().__init__()
        types = [("user", "buys", "item"), ("item", "rev_buys", "user")]
        self.convs = nn.ModuleDict({"__".join(t): nn.Linear(cin, cout) for t in types})
        self.self_lin = nn.ModuleDict({t: nn.Linear(cin, cout) for t in ("user", "item")})

    def forward(self, x_dict, edge_index_dict):
        out_dict = {key: [self.self_lin[key](x)] for key, x in x_dict.items()}
        for edge_type, edge_index in edge_index_dict.items():
            src, _rel, dst = edge_type
            h = self.convs["__".join(edge_type)](x_dict[src])
            out_dict.setdefault(dst, []).append(scatter(h[edge_index[0]], edge_index[1], x_dict[dst].size(0), "mean"))
        return {key: torch.stack(outs).sum(0).relu() for key, outs in out_dict.items()}


@sample(
    6,
    relations=4,
    bases=2,
    inputs=lambda rows, length: {**graph(6)(rows, length), "edge_type": torch.randint(4, (3 * rows * length,))},
)
class RelationalGcn(nn.Module):
    """A loop over relations with masks of edges, and weights from bases."""

    def __init__(self, dim, relations, bases):
        super().__init__()
        self.weight, self.comp = (
            nn.Parameter(torch.randn(bases, dim, dim) * 0.2),
            nn.Parameter(torch.randn(relations, bases)),
        )
        self.root = nn.Parameter(torch.randn(dim, dim) * 0.2)

    def forward(self, x, edge_index, edge_type):
        weight = (self.comp @ self.weight.view(self.comp.shape[1], -1)).view(-1, *self.weight.shape[1:])
        out = x @ self.root
        for i in range(weight.shape[0]):
            tmp = edge_index[:, edge_type == i]
            out = out + scatter(x[tmp[0]], tmp[1], x.size(0), "mean") @ weight[i]
        return out


@sample(8, inputs=dense(8))
class GraphTransformer(nn.Module):
    """Graphormer: biases from degrees and shortest paths, which are found by powers of the adjacency."""

    def __init__(self, dim, heads=2, max_dist=3):
        super().__init__()
        self.heads, self.max_dist = heads, max_dist
        self.degree, self.dist = nn.Embedding(32, dim, padding_idx=0), nn.Embedding(max_dist + 2, heads)
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)

    def shortest(self, adj):
        n = adj.shape[-1]
        reach = torch.eye(n).expand_as(adj).bool()
        dist = torch.full_like(adj, self.max_dist + 1, dtype=torch.long).masked_fill(reach, 0)
        for step in range(1, self.max_dist + 1):
            new = (reach.float() @ adj > 0) & ~reach
            dist[new] = step
            reach |= new
        return dist

    def forward(self, x, adj):
        adj = ((adj + adj.mT) > 0).float()
        x = x + self.degree(adj.sum(-1).long().clamp(0, 31))
        bias = self.dist(self.shortest(adj)).permute(0, 3, 1, 2).flatten(0, 1)
        out, weights = self.attn(x, x, x, attn_mask=bias, need_weights=True, average_attn_weights=False)
        return x + out, weights


@sample(6, inputs=graph(6))
class PersonalizedPropagation(nn.Module):
    """APPNP on a sparse matrix, with dropout of edges in training."""

    def __init__(self, dim, steps=4, alpha=0.1):
        super().__init__()
        self.lin, self.steps, self.alpha = nn.Linear(dim, dim), steps, alpha

    def forward(self, x, edge_index):
        h = z = self.lin(x)
        n = x.size(0)
        adj = torch.zeros(n, n).index_put_((edge_index[1], edge_index[0]), torch.tensor(1.0), accumulate=False)
        adj = adj / adj.sum(1, keepdim=True).clamp_(min=1)
        for _ in range(self.steps):
            a = F.dropout(adj, 0.2, self.training) if self.training else adj
            z = (1 - self.alpha) * torch.mm(a, z) + self.alpha * h
        return F.log_softmax(z, dim=-1)


@sample(5, 8, inputs=lambda rows, length: {"h": torch.randn(rows, length, 5), "x": torch.randn(rows, length, 3)})
class EquivariantGraphLayer(nn.Module):
    """EGNN: messages from distances move coordinates along differences."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.edge_mlp = nn.Sequential(nn.Linear(2 * dim + 1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.coord_mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1, bias=False))
        self.node_mlp = nn.Sequential(nn.Linear(dim + hidden, hidden), nn.SiLU(), nn.Linear(hidden, dim))
        torch.nn.init.xavier_uniform_(self.coord_mlp[-1].weight, gain=0.001)

    def forward(self, h, x):
        n = h.shape[1]
        diff = x[:, :, None] - x[:, None, :]
        radial = diff.square().sum(-1, keepdim=True)
        pairs = torch.cat([h[:, :, None].expand(-1, -1, n, -1), h[:, None].expand(-1, n, -1, -1), radial], dim=-1)
        m = self.edge_mlp(pairs) * (1 - torch.eye(n))[None, :, :, None]
        x = x + (diff / (radial.sqrt() + 1) * self.coord_mlp(m)).sum(2) / max(n - 1, 1)
        return h + self.node_mlp(torch.cat([h, m.sum(2)], -1)), x


@sample(
    6, inputs=lambda rows, length: {"z": torch.randint(1, 6, (rows, length)), "pos": 2 * torch.randn(rows, length, 3)}
)
class ContinuousFilterConv(nn.Module):
    """SchNet: smeared distances, a cosine cut-off, energies and forces by a gradient inside of forward."""

    def __init__(self, dim, gaussians=5, cutoff=5.0):
        super().__init__()
        self.embedding = nn.Embedding(10, dim)
        offset = torch.linspace(0, cutoff, gaussians)
        self.coeff = -0.5 / (offset[1] - offset[0]).item() ** 2
        self.register_buffer("offset", offset)
        self.cutoff = cutoff
        self.filter = nn.Sequential(nn.Linear(gaussians, dim), nn.Softplus(), nn.Linear(dim, dim))
        self.out = nn.Sequential(nn.Linear(dim, dim), nn.Softplus(), nn.Linear(dim, 1))

    def forward(self, z, pos):
        n = pos.shape[1]
        dist = (pos[:, :, None] - pos[:, None] + 1e-3).norm(dim=-1)
        smeared = torch.exp(self.coeff * (dist.unsqueeze(-1) - self.offset).pow(2))
        c = 0.5 * (torch.cos(dist * math.pi / self.cutoff) + 1.0)
        c = c * (dist < self.cutoff) * (1 - torch.eye(n))
        h = self.embedding(z)
        h = h + torch.einsum("bijd,bjd->bid", self.filter(smeared) * c.unsqueeze(-1), h)
        return self.out(h).squeeze(-1).sum(-1)


@sample(4, inputs=lambda rows, length: {"x": torch.randn(rows, 4, length, 7)})
class SkeletonGraphConv(nn.Module):
    """ST-GCN: partitions of a skeleton's adjacency, learned importance, then a convolution over time."""

    def __init__(self, dim, joints=7, partitions=3):
        super().__init__()
        edges = [(i, i // 2) for i in range(1, joints)]
        a = torch.zeros(partitions, joints, joints)
        a[0] = torch.eye(joints)
        for i, j in edges:
            a[1, i, j] = a[2, j, i] = 1
        self.register_buffer("A", a / a.sum(1, keepdim=True).clamp(min=1))
        self.edge_importance = nn.Parameter(torch.ones(a.size()))
        self.gcn = nn.Conv2d(dim, dim * partitions, 1)
        self.tcn = nn.Sequential(
            nn.BatchNorm2d(dim), nn.ReLU(), nn.Conv2d(dim, dim, (3, 1), padding=(1, 0)), nn.Dropout(0.1, inplace=True)
        )

    def forward(self, x):
        y = self.gcn(x)
        n, kc, t, v = y.size()
        y = y.view(n, self.A.size(0), kc // self.A.size(0), t, v)
        y = torch.einsum("nkctv,kvw->nctw", (y, self.A * self.edge_importance))
        return F.relu(self.tcn(y.contiguous()) + x)
