"""Points and rays: sampling and grouping of clouds, encodings of fields, volume rendering, splats, poses."""

from __future__ import annotations

import math
from collections import namedtuple

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import features, sample, vectors


def square_distance(src, dst):
    dist = -2 * torch.matmul(src, dst.permute(0, 2, 1))
    dist += torch.sum(src**2, -1).view(src.shape[0], -1, 1)
    dist += torch.sum(dst**2, -1).view(dst.shape[0], 1, -1)
    return dist


def index_points(points, idx):
    view_shape = list(idx.shape)
    view_shape[1:] = [1] * (len(view_shape) - 1)
    repeat_shape = list(idx.shape)
    repeat_shape[0] = 1
    batch = torch.arange(points.shape[0], dtype=torch.long).view(view_shape).repeat(repeat_shape)
    return points[batch, idx, :]


def farthest_point_sample(xyz, npoint):
    b, n, _ = xyz.shape
    centroids = torch.zeros(b, npoint, dtype=torch.long)
    distance = torch.ones(b, n) * 1e10
    farthest = torch.zeros(b, dtype=torch.long)
    batch = torch.arange(b)
    for i in range(npoint):
        centroids[:, i] = farthest
        centroid = xyz[batch, farthest, :].view(b, 1, 3)
        dist = torch.sum((xyz - centroid) ** 2, -1)
        mask = dist < distance
        distance[mask] = dist[mask]
        farthest = torch.max(distance, -1)[1]
    return centroids


@sample(4, 0.8, 3, inputs=vectors(3))
class SetAbstraction(nn.Module):
    """PointNet++: farthest points, balls around them, a shared network, a maximum."""

    def __init__(self, npoint, radius, nsample):
        super().__init__()
        self.npoint, self.radius, self.nsample = npoint, radius, nsample
        self.mlp_convs = nn.ModuleList([nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 1)])
        self.mlp_bns = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8)])

    def query_ball(self, xyz, new_xyz):
        b, n, _ = xyz.shape
        s = new_xyz.shape[1]
        group_idx = torch.arange(n, dtype=torch.long).view(1, 1, n).repeat([b, s, 1])
        group_idx[square_distance(new_xyz, xyz) > self.radius**2] = n
        group_idx = group_idx.sort(dim=-1)[0][:, :, : self.nsample]
        group_first = group_idx[:, :, 0].view(b, s, 1).repeat([1, 1, self.nsample])
        mask = group_idx == n
        group_idx[mask] = group_first[mask]
        return group_idx.clamp(max=n - 1)

    def forward(self, x):
        new_xyz = index_points(x, farthest_point_sample(x, self.npoint))
        grouped = index_points(x, self.query_ball(x, new_xyz)) - new_xyz.unsqueeze(2)
        grouped = grouped.permute(0, 3, 2, 1)
        for i, conv in enumerate(self.mlp_convs):
            bn = self.mlp_bns[i]
            grouped = F.relu(bn(conv(grouped)))
        return new_xyz, torch.max(grouped, 2)[0]


@sample(6, inputs=lambda rows, length: {
    "xyz1": torch.randn(rows, length, 3), "xyz2": torch.randn(rows, 4, 3), "points2": torch.randn(rows, 4, 6),
})  # fmt: skip
class FeaturePropagation(nn.Module):
    """Features of the three nearest points, weighted by inverse distances."""

    def __init__(self, dim):
        super().__init__()
        self.mlp = nn.Sequential(nn.Conv1d(dim, 8, 1), nn.BatchNorm1d(8), nn.ReLU())

    def forward(self, xyz1, xyz2, points2):
        dists, idx = square_distance(xyz1, xyz2).sort(dim=-1)
        dists, idx = dists[:, :, :3], idx[:, :, :3]
        dist_recip = 1.0 / (dists + 1e-8)
        weight = dist_recip / torch.sum(dist_recip, dim=2, keepdim=True)
        interpolated = torch.sum(index_points(points2, idx) * weight.unsqueeze(-1), dim=2)
        return self.mlp(interpolated.permute(0, 2, 1))


@sample(3, inputs=lambda rows, length: {"x": torch.randn(rows, 3, length)})
class SpatialTransformPoints(nn.Module):
    """PointNet with a learned frame, and its distance from an orthogonal one as a loss."""

    def __init__(self, k):
        super().__init__()
        self.k = k
        self.conv1, self.conv2 = nn.Conv1d(k, 8, 1), nn.Conv1d(k, 16, 1)
        self.fc = nn.Linear(8, k * k)

    def forward(self, x):
        batchsize = x.size()[0]
        t = torch.max(F.relu(self.conv1(x)), 2, keepdim=True)[0].view(-1, 8)
        iden = torch.eye(self.k).flatten().view(1, -1).repeat(batchsize, 1)
        trans = (self.fc(t) + iden).view(-1, self.k, self.k)
        x = torch.bmm(x.transpose(2, 1), trans).transpose(2, 1)
        gram = torch.bmm(trans, trans.transpose(2, 1)) - torch.eye(self.k)[None, :, :]
        return self.conv2(x).amax(-1), torch.mean(torch.norm(gram, dim=(1, 2)))


@sample(8, k=3, inputs=lambda rows, length: {"xyz": torch.randn(rows, length, 3), "x": torch.randn(rows, length, 8)})
class PointTransformerLayer(nn.Module):
    """Vector attention over nearest neighbours, with encoded offsets."""

    def __init__(self, dim, k):
        super().__init__()
        self.k = k
        self.fc_delta = nn.Sequential(nn.Linear(3, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.fc_gamma = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim))
        self.w_qs, self.w_ks, self.w_vs = [nn.Linear(dim, dim, bias=False)] * 2 + [nn.Linear(dim, dim, bias=False)]

    def forward(self, xyz, x):
        knn_idx = square_distance(xyz, xyz).argsort()[:, :, : self.k]
        knn_xyz = index_points(xyz, knn_idx)
        q, k, v = self.w_qs(x), index_points(self.w_ks(x), knn_idx), index_points(self.w_vs(x), knn_idx)
        pos = self.fc_delta(xyz[:, :, None] - knn_xyz)
        attn = F.softmax(self.fc_gamma(q[:, :, None] - k + pos) / k.size(-1) ** 0.5, dim=-2)
        return torch.einsum("bmnf,bmnf->bmf", attn, v + pos) + x, attn


@sample(
    4,
    inputs=lambda rows, length: {"points": torch.rand(rows, length, 3) * 2 - 1, "feats": torch.randn(rows, length, 4)},
)
class VoxelPillars(nn.Module):
    """Points are scattered into a grid as means, a convolution runs, and points read from it."""

    def __init__(self, dim, resolution=4):
        super().__init__()
        self.r = resolution
        self.conv = nn.Conv3d(dim, dim, 3, padding=1)

    def forward(self, points, feats):
        b, n, _ = points.shape
        r = self.r
        norm = (points - points.mean(1, keepdim=True)) / (
            points.norm(dim=2, keepdim=True).max(dim=1, keepdim=True).values * 2.0 + 1e-6
        ) + 0.5
        norm = torch.clamp(norm * r, 0, r - 1)
        vox = torch.round(norm).to(torch.int64)
        flat = vox[..., 0] * r * r + vox[..., 1] * r + vox[..., 2]
        grid = torch.zeros(b, r**3, feats.shape[-1]).scatter_add_(1, flat.unsqueeze(-1).expand_as(feats), feats)
        count = torch.zeros(b, r**3, 1).scatter_add_(1, flat.unsqueeze(-1), torch.ones(b, n, 1))
        grid = (grid / count.clamp(min=1)).transpose(1, 2).view(b, -1, r, r, r)
        grid = self.conv(grid)
        at = (norm / (r - 1) * 2 - 1).flip(-1).view(b, n, 1, 1, 3)
        return F.grid_sample(grid, at, align_corners=True).flatten(2).transpose(1, 2)


@sample(2, inputs=lambda rows, length: {"a": torch.randn(rows, length, 3), "b": torch.randn(rows, length + 2, 3)})
class ChamferRegistration(nn.Module):
    """Chamfer distance and a rigid fit by a singular value decomposition, without gradients through it."""

    def __init__(self, iters):
        super().__init__()
        self.iters = iters
        self.offset, self.scale = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(1))

    def forward(self, a, b):
        a = a * self.scale + self.offset
        for _ in range(self.iters):
            d = torch.cdist(a, b)
            matched = torch.gather(b, 1, d.argmin(2, keepdim=True).expand(-1, -1, 3))
            with torch.no_grad():
                ca, cm = a.mean(1, keepdim=True), matched.mean(1, keepdim=True)
                u, _, vh = torch.linalg.svd((a - ca).mT @ (matched - cm))
                sign = torch.det(u @ vh).sign()
                fix = torch.diag_embed(torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1))
                rotation = u @ fix @ vh
            a = (a - ca) @ rotation + cm
        d = torch.cdist(a, b)
        return d.min(1).values.mean() + d.min(2).values.mean(), a


@sample(
    4,
    include_input=True,
    inputs=lambda rows, length: {"rays_o": torch.randn(rows * length, 3), "rays_d": torch.randn(rows * length, 3)},
)
class RadianceField(nn.Module):
    """NeRF: lambdas as an encoding, a skip in the network, compositing, and a second pass by inverse sampling."""

    def __init__(self, freqs, include_input, width=16):
        super().__init__()
        embed_fns = [lambda x: x] if include_input else []
        for freq in 2.0 ** torch.linspace(0.0, freqs - 1, freqs):
            for fn in (torch.sin, torch.cos):
                embed_fns.append(lambda x, fn=fn, freq=freq: fn(x * freq))
        self.embed_fns = embed_fns
        dim = 3 * len(embed_fns)
        self.pts = nn.ModuleList([nn.Linear(dim, width), nn.Linear(width, width), nn.Linear(width + dim, width)])
        self.skips = [1]
        self.alpha, self.rgb = nn.Linear(width, 1), nn.Linear(width + dim, 3)

    def embed(self, x):
        return torch.cat([fn(x) for fn in self.embed_fns], -1)

    def query(self, pts, viewdirs):
        flat = self.embed(pts.reshape(-1, 3))
        h = flat
        for i, layer in enumerate(self.pts):
            h = F.relu(layer(h))
            if i in self.skips:
                h = torch.cat([flat, h], -1)
        dirs = self.embed(viewdirs[:, None].expand(pts.shape).reshape(-1, 3))
        out = torch.cat([self.rgb(torch.cat([h, dirs], -1)), self.alpha(h)], -1)
        return out.reshape(*pts.shape[:-1], 4)

    @staticmethod
    def raw2outputs(raw, z_vals, rays_d):
        dists = z_vals[..., 1:] - z_vals[..., :-1]
        dists = torch.cat([dists, torch.Tensor([1e10]).expand(dists[..., :1].shape)], -1)
        dists = dists * torch.norm(rays_d[..., None, :], dim=-1)
        alpha = 1.0 - torch.exp(-F.relu(raw[..., 3]) * dists)
        trans = torch.cumprod(torch.cat([torch.ones((alpha.shape[0], 1)), 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
        weights = alpha * trans
        rgb_map = torch.sum(weights[..., None] * torch.sigmoid(raw[..., :3]), -2)
        return rgb_map, weights, torch.sum(weights * z_vals, -1)

    @staticmethod
    def sample_pdf(bins, weights, n_samples, det):
        weights = weights + 1e-5
        pdf = weights / torch.sum(weights, -1, keepdim=True)
        cdf = torch.cumsum(pdf, -1)
        cdf = torch.cat([torch.zeros_like(cdf[..., :1]), cdf], -1)
        shape = [*cdf.shape[:-1], n_samples]
        u = torch.linspace(0.0, 1.0, steps=n_samples).expand(shape) if det else torch.rand(shape)
        inds = torch.searchsorted(cdf, u.contiguous(), right=True)
        below, above = (
            torch.max(torch.zeros_like(inds - 1), inds - 1),
            torch.min((cdf.shape[-1] - 1) * torch.ones_like(inds), inds),
        )
        inds_g = torch.stack([below, above], -1)
        matched = [inds_g.shape[0], inds_g.shape[1], cdf.shape[-1]]
        cdf_g = torch.gather(cdf.unsqueeze(1).expand(matched), 2, inds_g)
        bins_g = torch.gather(
            bins.unsqueeze(1).expand([*matched[:2], bins.shape[-1]]), 2, inds_g.clamp(max=bins.shape[-1] - 1)
        )
        denom = cdf_g[..., 1] - cdf_g[..., 0]
        denom = torch.where(denom < 1e-5, torch.ones_like(denom), denom)
        return bins_g[..., 0] + (u - cdf_g[..., 0]) / denom * (bins_g[..., 1] - bins_g[..., 0])

    def forward(self, rays_o, rays_d):
        viewdirs = rays_d / torch.norm(rays_d, dim=-1, keepdim=True)
        t_vals = torch.linspace(0.0, 1.0, steps=5)
        z_vals = (2.0 * (1.0 - t_vals) + 6.0 * t_vals).expand([rays_o.shape[0], 5])
        if self.training:
            mids = 0.5 * (z_vals[..., 1:] + z_vals[..., :-1])
            upper, lower = torch.cat([mids, z_vals[..., -1:]], -1), torch.cat([z_vals[..., :1], mids], -1)
            z_vals = lower + (upper - lower) * torch.rand(z_vals.shape)
        pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
        rgb0, weights, _ = self.raw2outputs(self.query(pts, viewdirs), z_vals, rays_d)
        z_mid = 0.5 * (z_vals[..., 1:] + z_vals[..., :-1])
        fine = self.sample_pdf(z_mid, weights[..., 1:-1], 4, det=not self.training).detach()
        z_vals, _ = torch.sort(torch.cat([z_vals, fine], -1), -1)
        pts = rays_o[..., None, :] + rays_d[..., None, :] * z_vals[..., :, None]
        rgb, _, depth = self.raw2outputs(self.query(pts, viewdirs), z_vals, rays_d)
        return {"rgb_map": rgb, "rgb0": rgb0, "depth": depth}


@sample(3, inputs=lambda rows, length: {"x": torch.rand(rows * length, 3)})
class HashGridEncoding(nn.Module):
    """Instant NGP: hashed corners of cells at growing resolutions, with trilinear weights."""

    def __init__(self, levels, log2_size=6, dim=2, base=4, growth=1.6):
        super().__init__()
        self.table = nn.Parameter((torch.rand(levels, 2**log2_size, dim) * 2 - 1) * 1e-1)
        self.resolutions = [math.floor(base * growth**i) for i in range(levels)]
        self.register_buffer("primes", torch.tensor([1, 2654435761, 805459861]))
        self.register_buffer("corners", torch.tensor([[i, j, k] for i in (0, 1) for j in (0, 1) for k in (0, 1)]))

    def hash(self, coords):
        out = torch.zeros_like(coords)[..., 0]
        for i in range(coords.shape[-1]):
            out ^= coords[..., i] * self.primes[i]
        return out & (self.table.shape[1] - 1)

    def forward(self, x):
        outs = []
        for level, resolution in enumerate(self.resolutions):
            scaled = x * resolution
            lower = torch.floor(scaled).int()
            frac = (scaled - lower).unsqueeze(1)
            corners = self.corners.unsqueeze(0)
            feats = self.table[level][self.hash((lower.unsqueeze(1) + corners).long())]
            w = torch.where(corners == 1, frac, 1 - frac).prod(-1, keepdim=True)
            outs.append((feats * w).sum(1))
        return torch.cat(outs, dim=-1)


@sample(4, inputs=features(3))
class TriPlaneField(nn.Module):
    """Three planes, sampled, multiplied and decoded; a line for each as in TensoRF."""

    def __init__(self, dim, size=6):
        super().__init__()
        self.planes = nn.ParameterList(nn.Parameter(0.3 * torch.randn(1, dim, size, size)) for _ in range(3))
        self.lines = nn.ParameterList(nn.Parameter(0.3 * torch.randn(1, dim, size, 1)) for _ in range(3))
        self.mat_mode, self.vec_mode = [[0, 1], [0, 2], [1, 2]], [2, 1, 0]
        self.basis = nn.Linear(3 * dim, 4, bias=False)

    def forward(self, x):
        xyz = x.tanh()
        plane = torch.stack([xyz[..., m] for m in self.mat_mode]).detach().view(3, -1, 1, 2)
        line = torch.stack([xyz[..., v] for v in self.vec_mode])
        line = torch.stack((torch.zeros_like(line), line), dim=-1).detach().view(3, -1, 1, 2)
        parts = []
        for i in range(len(self.planes)):
            p = F.grid_sample(self.planes[i], plane[[i]], align_corners=True).view(-1, *xyz.shape[:1])
            q = F.grid_sample(self.lines[i], line[[i]], align_corners=True).view(-1, *xyz.shape[:1])
            parts.append(p * q)
        return self.basis(torch.cat(parts).T)


@sample(5, inputs=lambda rows, length: {"size": torch.tensor(length), "background": torch.rand(rows, 3)})
class GaussianSplats2D(nn.Module):
    """Covariances from rotations and scales, sorted by depth, and composited over pixels."""

    def __init__(self, n):
        super().__init__()
        self.xy, self.log_scale = nn.Parameter(torch.rand(n, 2)), nn.Parameter(torch.randn(n, 2) * 0.3 - 2)
        self.angle, self.depth = nn.Parameter(torch.rand(n) * 6), nn.Parameter(torch.rand(n))
        self.rgb, self.opacity = nn.Parameter(torch.randn(n, 3)), nn.Parameter(torch.randn(n))

    def covariance(self):
        c, s = self.angle.cos(), self.angle.sin()
        r = torch.stack([torch.stack([c, -s], -1), torch.stack([s, c], -1)], -2)
        scaled = r @ torch.diag_embed(self.log_scale.exp())
        return scaled @ scaled.mT

    def forward(self, size, background):
        axis = torch.linspace(0, 1, 8)
        pixels = torch.cartesian_prod(axis, axis)
        delta = pixels[:, None] - self.xy[None]
        power = -0.5 * torch.einsum("pni,nij,pnj->pn", delta, torch.linalg.inv(self.covariance()), delta)
        order = self.depth.argsort()
        alpha = (self.opacity.sigmoid() * power.exp()).clamp(max=0.99)[:, order]
        trans = torch.cumprod(1 - alpha, dim=1)
        weight = alpha * torch.cat([torch.ones_like(trans[:, :1]), trans[:, :-1]], dim=1)
        image = weight @ self.rgb.sigmoid()[order]
        return image[None] + trans[:, -1:] * background[:, None], size * 2


@sample(8, inputs=lambda rows, length: {"x": torch.randn(rows * length, 2)})
class SirenField(nn.Module):
    """Sines as activations; the gradient of the field by autograd is part of the result."""

    def __init__(self, width, w0=5.0):
        super().__init__()
        self.w0 = w0
        self.first, self.mid, self.last = nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, 1)
        with torch.no_grad():
            self.first.weight.uniform_(-0.5, 0.5)
            bound = math.sqrt(6 / width) / w0
            self.mid.weight.uniform_(-bound, bound)

    def field(self, x):
        h = torch.sin(self.w0 * self.first(x))
        return self.last(torch.sin(self.w0 * self.mid(h)))

    def forward(self, x):
        y = self.field(x)
        h1 = self.w0 * self.first(x)
        jac = torch.cos(h1).unsqueeze(1) * self.w0 * self.first.weight.t()[None]
        h2 = self.w0 * self.mid(torch.sin(h1))
        inner = (jac @ self.mid.weight.t()) * self.w0 * torch.cos(h2).unsqueeze(1)
        return y, (inner @ self.last.weight.t()).squeeze(-1)


Gaussian = namedtuple("Gaussian", "mean var")


@sample(
    3,
    6,
    inputs=lambda rows, length: {"origins": torch.randn(rows * length, 3), "directions": torch.randn(rows * length, 3)},
)
class IntegratedEncoding(nn.Module):
    """mip-NeRF: cones as Gaussians, whose encodings are attenuated by variance."""

    def __init__(self, min_deg, max_deg, radius=0.05):
        super().__init__()
        self.min_deg, self.max_deg, self.radius = 0, max_deg - min_deg, radius
        self.out = nn.Linear(6 * self.max_deg, 4)

    def conical_frustum(self, d, t0, t1):
        mu, hw = (t0 + t1) / 2, (t1 - t0) / 2
        t_mean = mu + (2 * mu * hw**2) / (3 * mu**2 + hw**2)
        t_var = (hw**2) / 3 - (4 / 15) * ((hw**4 * (12 * mu**2 - hw**2)) / (3 * mu**2 + hw**2) ** 2)
        r_var = self.radius**2 * ((mu**2) / 4 + (5 / 12) * hw**2 - 4 / 15 * (hw**4) / (3 * mu**2 + hw**2))
        mean = d[..., None, :] * t_mean[..., None]
        d_mag_sq = torch.sum(d**2, dim=-1, keepdim=True).clamp(min=1e-10)
        d_outer, null = d**2, 1 - d**2 / d_mag_sq
        return Gaussian(mean, t_var[..., None] * d_outer[..., None, :] + r_var[..., None] * null[..., None, :])

    def forward(self, origins, directions):
        t = torch.linspace(1.0, 3.0, 5).expand(origins.shape[0], 5)
        g = self.conical_frustum(directions, t[..., :-1], t[..., 1:])
        g = g._replace(mean=g.mean + origins[..., None, :])
        scales = 2.0 ** torch.arange(self.min_deg, self.max_deg)
        y = (g.mean[..., None, :] * scales[:, None]).flatten(-2)
        y_var = (g.var[..., None, :] * scales[:, None] ** 2).flatten(-2)
        enc = torch.exp(-0.5 * torch.cat([y_var] * 2, -1)) * torch.sin(torch.cat([y, y + 0.5 * math.pi], -1))
        return self.out(enc).sigmoid()


@sample(6, inputs=vectors(6))
class RotationHeads(nn.Module):
    """Six numbers to a rotation, to a quaternion and to an axis with an angle."""

    def __init__(self, dim):
        super().__init__()
        self.head = nn.Linear(dim, 6)

    def to_matrix(self, d6):
        a1, a2 = d6[..., :3], d6[..., 3:]
        b1 = F.normalize(a1, dim=-1)
        b2 = F.normalize(a2 - (b1 * a2).sum(-1, keepdim=True) * b1, dim=-1)
        return torch.stack((b1, b2, torch.cross(b1, b2, dim=-1)), dim=-2)

    def to_quaternion(self, m):
        m00, m11, m22 = m[..., 0, 0], m[..., 1, 1], m[..., 2, 2]
        q_abs = torch.sqrt(
            torch.clamp(
                torch.stack([1 + m00 + m11 + m22, 1 + m00 - m11 - m22, 1 - m00 + m11 - m22, 1 - m00 - m11 + m22], -1),
                min=1e-4,
            )
        )
        skew = torch.stack(
            [m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]], dim=-1
        )
        best = q_abs.argmax(dim=-1, keepdim=True)
        w = q_abs.gather(-1, best)
        return torch.cat([0.5 * w, 0.5 * skew / w], dim=-1), best

    def forward(self, x):
        r = self.to_matrix(self.head(x))
        q, which = self.to_quaternion(r)
        angle = torch.acos(((r.diagonal(dim1=-2, dim2=-1).sum(-1) - 1) / 2).clamp(-1 + 1e-4, 1 - 1e-4))
        return r, q, angle, which


@sample(
    4,
    inputs=lambda rows, length: {"pose": 0.3 * torch.randn(rows, length, 3), "betas": torch.randn(rows, 4)},
    lengths=(5, 6),
)
class LinearBlendSkinning(nn.Module):
    """SMPL's chain of joints: Rodrigues' formula, transforms in a loop over parents, weighted vertices."""

    def __init__(self, n_betas, vertices=7, joints=7):
        super().__init__()
        self.register_buffer("template", torch.randn(vertices, 3))
        self.shapedirs = nn.Parameter(torch.randn(vertices, 3, n_betas) * 0.1)
        self.register_buffer("regressor", torch.rand(joints, vertices).softmax(-1))
        self.weights = nn.Parameter(torch.randn(vertices, joints))
        self.parents = [-1, 0, 0, 1, 2, 3, 4]

    @staticmethod
    def rodrigues(rot_vecs):
        angle = torch.norm(rot_vecs + 1e-8, dim=1, keepdim=True)
        rx, ry, rz = torch.split(rot_vecs / angle, 1, dim=1)
        zeros = torch.zeros_like(rx)
        k = torch.cat([zeros, -rz, ry, rz, zeros, -rx, -ry, rx, zeros], dim=1).view(-1, 3, 3)
        return torch.eye(3)[None] + angle.sin()[..., None] * k + (1 - angle.cos())[..., None] * torch.bmm(k, k)

    def forward(self, pose, betas):
        b, j = pose.shape[:2]
        v = self.template + torch.einsum("bl,mkl->bmk", [betas, self.shapedirs])
        joints = torch.einsum("bik,ji->bjk", [v, self.regressor])[:, :j]
        rot = self.rodrigues(pose.reshape(-1, 3)).view(b, j, 3, 3)
        rel = joints.clone()
        rel[:, 1:] -= joints[:, self.parents[1:j]]
        mats = torch.cat(
            [F.pad(rot.reshape(-1, 3, 3), [0, 0, 0, 1]), F.pad(rel.reshape(-1, 3, 1), [0, 0, 0, 1], value=1)], dim=2
        ).view(b, j, 4, 4)
        chain = [mats[:, 0]]
        for i in range(1, j):
            chain.append(torch.matmul(chain[self.parents[i]], mats[:, i]))
        transforms = torch.stack(chain, dim=1)
        homogen = F.pad(joints.unsqueeze(-1), [0, 0, 0, 1])
        rel_t = transforms - F.pad(torch.matmul(transforms, homogen), [3, 0, 0, 0, 0, 0, 0, 0])
        w = self.weights[:, :j].softmax(-1)
        t = torch.matmul(w, rel_t.view(b, j, 16)).view(b, -1, 4, 4)
        return torch.matmul(t, F.pad(v, [0, 1], value=1.0).unsqueeze(-1))[:, :, :3, 0]
