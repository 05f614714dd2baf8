"""Layers defined by what they solve or learn while running: splines, fixed points, equations, memories, inner loops."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap

from kiln_bench.capture.research.sample import features, images, sample, vectors


@sample(4, 6, inputs=features(4))
class SplineEdges(nn.Module):
    """KAN: B-splines on a grid that is extended, by the recurrence of Cox and de Boor."""

    def __init__(self, cin, cout, grid_size=4, order=3):
        super().__init__()
        self.cin, self.cout, self.order = cin, cout, order
        h = 2 / grid_size
        grid = (torch.arange(-order, grid_size + order + 1) * h - 1).expand(cin, -1).contiguous()
        self.register_buffer("grid", grid)
        self.base_weight = nn.Parameter(torch.randn(cout, cin) * 0.3)
        self.spline_weight = nn.Parameter(torch.randn(cout, cin, grid_size + order) * 0.1)
        self.spline_scaler = nn.Parameter(torch.ones(cout, cin))
        self.base_activation = nn.SiLU()

    def b_splines(self, x):
        assert x.dim() == 2 and x.size(1) == self.cin
        grid, x = self.grid, x.unsqueeze(-1)
        bases = ((x >= grid[:, :-1]) & (x < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            bases = ((x - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)]) * bases[:, :, :-1]) + (
                (grid[:, k + 1 :] - x) / (grid[:, k + 1 :] - grid[:, 1:(-k)]) * bases[:, :, 1:]
            )
        return bases.contiguous()

    def regularization(self):
        l1 = self.spline_weight.abs().mean(-1)
        p = l1 / l1.sum()
        return l1.sum() - torch.sum(p * p.log())

    def forward(self, x):
        base = F.linear(self.base_activation(x), self.base_weight)
        weight = self.spline_weight * self.spline_scaler.unsqueeze(-1)
        return base + F.linear(self.b_splines(x).view(x.size(0), -1), weight.view(self.cout, -1)), self.regularization()


@sample(4, 5, degree=4, inputs=features(4))
class PolynomialEdges(nn.Module):
    """Chebyshev polynomials by a stacked recurrence, and radial bases beside them."""

    def __init__(self, cin, cout, degree):
        super().__init__()
        self.coeffs = nn.Parameter(torch.randn(cin, cout, degree + 1) / (cin * (degree + 1)))
        self.centres = nn.Parameter(torch.linspace(-2, 2, 5), requires_grad=False)
        self.rbf, self.norm = nn.Linear(5 * cin, cout), nn.LayerNorm(cin)
        self.degree = degree

    def forward(self, x):
        t = torch.tanh(x)
        cheb = [torch.ones_like(t), t]
        for _ in range(2, self.degree + 1):
            cheb.append(2 * t * cheb[-1] - cheb[-2])
        y = torch.einsum("bid,iod->bo", torch.stack(cheb[: self.degree + 1], -1), self.coeffs)
        basis = torch.exp(-((self.norm(x)[..., None] - self.centres) ** 2))
        return y + self.rbf(basis.view(*basis.shape[:-2], -1))


class AndersonSolver:
    """Fixed points by mixing the last few residuals."""

    def __init__(self, m=3, beta=1.0, lam=1e-3, max_iter=6):
        self.m, self.beta, self.lam, self.max_iter = m, beta, lam, max_iter

    def __call__(self, f, x0):
        bsz, d = x0.shape
        X, G = (torch.zeros(bsz, self.m, d, dtype=x0.dtype) for _ in range(2))
        X[:, 0], G[:, 0] = x0, f(x0)
        X[:, 1], G[:, 1] = G[:, 0], f(G[:, 0])
        H = torch.zeros(bsz, self.m + 1, self.m + 1, dtype=x0.dtype)
        H[:, 0, 1:] = H[:, 1:, 0] = 1
        y = torch.zeros(bsz, self.m + 1, 1, dtype=x0.dtype)
        y[:, 0] = 1
        for k in range(2, self.max_iter):
            n = min(k, self.m)
            R = G[:, :n] - X[:, :n]
            H[:, 1 : n + 1, 1 : n + 1] = torch.bmm(R, R.transpose(1, 2)) + self.lam * torch.eye(n)[None]
            alpha = torch.linalg.solve(H[:, : n + 1, : n + 1], y[:, : n + 1])[:, 1 : n + 1, 0]
            X[:, k % self.m] = (
                self.beta * (alpha[:, None] @ G[:, :n])[:, 0] + (1 - self.beta) * (alpha[:, None] @ X[:, :n])[:, 0]
            )
            G[:, k % self.m] = f(X[:, k % self.m].clone())
        return X[:, (self.max_iter - 1) % self.m]


@sample(6, inputs=features(6))
class EquilibriumLayer(nn.Module):
    """A fixed point found without gradients, then one step with them; the residual is kept."""

    def __init__(self, dim):
        super().__init__()
        self.W, self.U, self.solver = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim), AndersonSolver()
        with torch.no_grad():
            self.W.weight.mul_(0.3)

    def f(self, z, x):
        return torch.tanh(self.W(z) + self.U(x))

    def forward(self, x):
        with torch.no_grad():
            z = self.solver(lambda z: self.f(z, x), torch.zeros_like(x))
        out = self.f(z, x)
        return out, (out - z).norm(dim=-1).detach()


class OdeField(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net, self.nfe = nn.Sequential(nn.Linear(dim + 1, 12), nn.Tanh(), nn.Linear(12, dim)), 0

    def forward(self, t, y):
        self.nfe += 1
        return self.net(torch.cat([y, torch.ones_like(y[..., :1]) * t], -1))


@sample(4, inputs=features(4))
class OdeBlock(nn.Module):
    """Solvers from a table of Butcher tableaus; evaluations are counted in an attribute."""

    TABLEAUS = {
        "euler": ([[]], [1.0], [0.0]),
        "midpoint": ([[], [0.5]], [0.0, 1.0], [0.0, 0.5]),
        "rk38": (
            [[], [1 / 3], [-1 / 3, 1.0], [1.0, -1.0, 1.0]],
            [1 / 8, 3 / 8, 3 / 8, 1 / 8],
            [0.0, 1 / 3, 2 / 3, 1.0],
        ),
    }

    def __init__(self, dim, steps=2):
        super().__init__()
        self.func, self.steps = OdeField(dim), steps

    def integrate(self, y, method):
        a, b, c = self.TABLEAUS[method]
        h = 1.0 / self.steps
        for n in range(self.steps):
            ks = []
            for row, ci in zip(a, c, strict=True):
                yi = y + h * sum((aij * k for aij, k in zip(row, ks, strict=True)), torch.zeros_like(y))
                ks.append(self.func((n + ci) * h, yi))
            y = y + h * sum(bi * k for bi, k in zip(b, ks, strict=True))
        return y

    def forward(self, x):
        self.func.nfe = 0
        outs = {method: self.integrate(x, method) for method in self.TABLEAUS}
        return outs, self.func.nfe


@sample(4, inputs=features(4))
class HamiltonianStep(nn.Module):
    """Gradients of a learned energy by `torch.func`, in leapfrog steps."""

    def __init__(self, dim):
        super().__init__()
        self.potential = nn.Sequential(nn.Linear(dim // 2, 8), nn.Softplus(), nn.Linear(8, 1))
        self.log_mass = nn.Parameter(torch.zeros(dim // 2))

    def forward(self, x, dt=0.1):
        q, p = x.chunk(2, -1)
        force = vmap(grad(lambda q: -self.potential(q).squeeze()))
        for _ in range(2):
            p = p + 0.5 * dt * force(q)
            q = q + dt * p / self.log_mass.exp()
            p = p + 0.5 * dt * force(q)
        energy = self.potential(q).squeeze(-1) + 0.5 * (p**2 / self.log_mass.exp()).sum(-1)
        return torch.cat([q, p], -1), energy


@sample(3, inputs=features(3))
class LagrangianDynamics(nn.Module):
    """Accelerations from a mass matrix with a Cholesky factor, and Christoffel terms by `jacrev`."""

    def __init__(self, n):
        super().__init__()
        self.n = n
        self.net = nn.Sequential(nn.Linear(n, 8), nn.Tanh(), nn.Linear(8, n * (n + 1) // 2))
        rows, cols = torch.tril_indices(n, n)
        self.register_buffer("rows", rows)
        self.register_buffer("cols", cols)

    def mass(self, q):
        flat = self.net(q)
        L = torch.zeros(self.n, self.n, dtype=q.dtype).index_put((self.rows, self.cols), flat)
        return L @ L.T + torch.eye(self.n)

    def accelerate(self, q):
        v = q.roll(1)
        M, dM = self.mass(q), jacrev(self.mass)(q)
        coriolis = torch.einsum("ijk,j,k->i", dM, v, v) - 0.5 * torch.einsum("jki,j,k->i", dM, v, v)
        return torch.linalg.solve(M, -coriolis)

    def forward(self, x):
        return vmap(self.accelerate)(x)


@sample(5, inputs=lambda rows, length: {"xs": torch.randn(rows, length, 5), "ys": torch.randn(rows, length, 1)})
class InnerLoopLearner(nn.Module):
    """MAML: steps of gradient descent on fast weights by `functional_call`, for each task."""

    def __init__(self, dim, steps=2):
        super().__init__()
        self.net, self.steps = nn.Sequential(nn.Linear(dim, 8), nn.Tanh(), nn.Linear(8, 1)), steps
        self.lrs = nn.ParameterDict(
            {k.replace(".", "_"): nn.Parameter(torch.tensor(0.1)) for k, _ in self.net.named_parameters()}
        )

    def forward(self, xs, ys):
        half = xs.shape[1] // 2

        def loss(params, x, y):
            return F.mse_loss(functional_call(self.net, params, (x,)), y)

        def task(x, y):
            fast = dict(self.net.named_parameters())
            for _ in range(self.steps):
                g = grad(loss)(fast, x[:half], y[:half])
                fast = {k: v - self.lrs[k.replace(".", "_")] * g[k] for k, v in fast.items()}
            return loss(fast, x[half:], y[half:])

        return vmap(task)(xs, ys)


@sample(6, inputs=lambda rows, length: {"x": torch.randn(3, rows, 6), "query": torch.randn(rows * length, 6)})
class PrototypeClassifier(nn.Module):
    """Means of a support set, relation scores, and a ridge regression in closed form."""

    def __init__(self, dim):
        super().__init__()
        self.f, self.relation = (
            nn.Linear(dim, dim),
            nn.Sequential(nn.Linear(2 * dim, 8), nn.ReLU(), nn.Linear(8, 1), nn.Sigmoid()),
        )
        self.l2 = nn.Parameter(torch.tensor(0.5))

    def forward(self, x, query):
        ways, shots, _ = x.shape
        s, q = self.f(x), self.f(query)
        protos = s.mean(1)
        proto_logits = -((q[:, None] - protos[None]) ** 2).sum(-1)
        pairs = torch.cat([protos.unsqueeze(0).expand(len(q), -1, -1), q.unsqueeze(1).expand(-1, ways, -1)], -1)
        flat, y = s.reshape(ways * shots, -1), torch.eye(ways).repeat_interleave(shots, dim=0)
        gram = flat.T @ flat + F.softplus(self.l2) * torch.eye(flat.shape[1])
        w = torch.cholesky_solve(flat.T @ y, torch.linalg.cholesky(gram))
        return proto_logits, self.relation(pairs).squeeze(-1), q @ w


@sample(6, inputs=vectors(6), lengths=(4, 6))
class ContentMemory(nn.Module):
    """A neural Turing machine: addresses by content and by circular shifts, sharpened; erase and add."""

    def __init__(self, dim, slots=5, width=4):
        super().__init__()
        self.n, self.m = slots, width
        self.controller = nn.LSTMCell(dim + width, 8)
        self.heads = nn.ModuleList(nn.Linear(8, width + 1 + 1 + 3 + 1) for _ in range(2))
        self.erase_add = nn.Linear(8, 2 * width)
        self.register_buffer("mem_bias", torch.randn(slots, width) * 0.2)
        self.out = nn.Linear(8 + width, dim)

    def address(self, o, w_prev, memory):
        k, beta, g, s, gamma = torch.split(o, [self.m, 1, 1, 3, 1], dim=1)
        similarity = F.cosine_similarity(memory + 1e-16, k.tanh().unsqueeze(1) + 1e-16, dim=-1)
        wc = F.softmax(F.softplus(beta) * similarity, dim=1)
        wg = g.sigmoid() * wc + (1 - g.sigmoid()) * w_prev
        s = F.softmax(s, dim=1)
        padded = torch.cat([wg[:, -1:], wg, wg[:, :1]], 1)
        shifted = sum(padded[:, i : i + self.n] * s[:, i : i + 1] for i in range(3))
        w = shifted ** (1 + F.softplus(gamma))
        return w / (w.sum(1, keepdim=True) + 1e-16)

    def forward(self, x):
        b = x.shape[0]
        memory = self.mem_bias.repeat(b, 1, 1)
        h, c, r = x.new_zeros(b, 8), x.new_zeros(b, 8), x.new_zeros(b, self.m)
        ws, outs = [x.new_zeros(b, self.n) for _ in self.heads], []
        for x_t in torch.unbind(x, 1):
            h, c = self.controller(torch.cat([x_t, r], 1), (h, c))
            ws = [self.address(head(h), w, memory) for head, w in zip(self.heads, ws, strict=True)]
            r = torch.bmm(ws[0].unsqueeze(1), memory).squeeze(1)
            erase, add = self.erase_add(h).chunk(2, 1)
            memory = memory * (1 - ws[1].unsqueeze(2) * erase.sigmoid().unsqueeze(1)) + ws[1].unsqueeze(
                2
            ) * add.unsqueeze(1)
            outs.append(self.out(torch.cat([h, r], 1)))
        return torch.stack(outs, 1), memory


@sample(8, inputs=features(8))
class ModernHopfield(nn.Module):
    """Retrieval by repeated softmax until nothing changes, with a mask of rows that are done."""

    def __init__(self, dim, patterns=6, steps=4):
        super().__init__()
        self.stored, self.beta, self.steps = (
            nn.Parameter(torch.randn(patterns, dim)),
            nn.Parameter(torch.tensor(1.5)),
            steps,
        )

    def forward(self, x):
        xi, active = x, torch.ones(x.shape[0], 1, dtype=torch.bool)
        for _ in range(self.steps):
            new = F.softmax(self.beta * xi @ self.stored.t(), dim=-1) @ self.stored
            moved = (new - xi).norm(dim=-1, keepdim=True) > 1e-2
            xi = torch.where(active, new, xi)
            active = active & moved
        energy = -torch.logsumexp(self.beta * xi @ self.stored.t(), -1) / self.beta + 0.5 * xi.pow(2).sum(-1)
        return xi, energy, active.sum()


@sample(5, inputs=features(5))
class GaussianProcessHead(nn.Module):
    """Inducing points, a Cholesky factor with jitter, predictive mean and variance, and a bound."""

    def __init__(self, dim, inducing=4):
        super().__init__()
        self.z, self.log_ls, self.log_noise = (
            nn.Parameter(torch.randn(inducing, dim)),
            nn.Parameter(torch.zeros(dim)),
            nn.Parameter(torch.tensor(-1.0)),
        )
        self.m, self.s = nn.Parameter(torch.zeros(inducing)), nn.Parameter(torch.eye(inducing))

    def kernel(self, a, b):
        return torch.exp(-0.5 * torch.cdist(a / self.log_ls.exp(), b / self.log_ls.exp()).square())

    def forward(self, x):
        y = x.sin().sum(-1)
        n = self.z.shape[0]
        L = torch.linalg.cholesky(self.kernel(self.z, self.z) + 1e-3 * torch.eye(n))
        A = torch.linalg.solve_triangular(L, self.kernel(self.z, x), upper=False)
        s = torch.tril(self.s)
        mean = A.T @ self.m
        var = 1 - (A**2).sum(0) + ((s.T @ A) ** 2).sum(0)
        kl = 0.5 * (s.pow(2).sum() + self.m.pow(2).sum() - n - 2 * s.diagonal().abs().log().sum())
        noise = self.log_noise.exp()
        fit = -0.5 * (math.log(2 * math.pi) + self.log_noise + ((y - mean) ** 2 + var.clamp(min=0)) / noise).sum()
        return mean, var, kl - fit


@sample(3, inputs=images(3), lengths=(6, 8))
class NeuralAutomaton(nn.Module):
    """A cell that perceives by fixed filters, updated by chance where it is alive."""

    def __init__(self, channels, steps=3, fire_rate=0.5):
        super().__init__()
        n = channels + 3
        sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]) / 8
        identity = torch.zeros(3, 3)
        identity[1, 1] = 1
        kernels = torch.stack([identity, sobel, sobel.t()]).repeat(n, 1, 1).unsqueeze(1)
        self.register_buffer("kernels", kernels)
        self.fc0, self.fc1 = nn.Conv2d(3 * n, 8, 1), nn.Conv2d(8, n, 1, bias=False)
        self.n, self.steps, self.fire_rate = n, steps, fire_rate

    def alive(self, x):
        return F.max_pool2d(x[:, 3:4], kernel_size=3, stride=1, padding=1) > 0.1

    def step(self, x):
        pre = self.alive(x)
        y = F.conv2d(F.pad(x, [1] * 4, mode="circular"), self.kernels, groups=self.n)
        dx = self.fc1(F.relu(self.fc0(y)))
        fire = (
            torch.rand(x[:, :1].shape) <= self.fire_rate
            if self.training
            else torch.ones_like(x[:, :1], dtype=torch.bool)
        )
        x = x + dx * fire.float()
        return x * (pre & self.alive(x)).float()

    def forward(self, x):
        x = torch.cat([x, torch.ones_like(x)], 1)
        frames = [x := self.step(x) for _ in range(self.steps)]
        return frames[-1], torch.stack([f.mean() for f in frames])
