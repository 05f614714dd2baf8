"""Detection, segmentation, key points: anchors and boxes, decoders, heads, fields, matching."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import nn

from kiln_bench.capture.research.sample import images, sample


def conv_bn(cin, cout, k=3, **kwargs):
    return nn.Sequential(
        nn.Conv2d(cin, cout, k, padding=k // 2, bias=False, **kwargs), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)
    )


@sample((4, 8), inputs=images(3), lengths=(8, 11))
class TinyUNet(nn.Module):
    """Skips from a list, with padding where an odd side was halved."""

    def __init__(self, widths, classes=2):
        super().__init__()
        self.downs, self.ups = nn.ModuleList(), nn.ModuleList()
        cin = 3
        for width in widths:
            self.downs.append(conv_bn(cin, width))
            cin = width
        self.mid = conv_bn(cin, 2 * cin)
        for width in reversed(widths):
            self.ups.append(nn.ModuleList([nn.ConvTranspose2d(2 * width, width, 2, 2), conv_bn(2 * width, width)]))
        self.head = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x):
        skips = []
        for down in self.downs:
            x = down(x)
            skips.append(x)
            x = F.max_pool2d(x, 2)
        x = self.mid(x)
        for up, conv in self.ups:
            x, skip = up(x), skips.pop()
            dy, dx = skip.size()[2] - x.size()[2], skip.size()[3] - x.size()[3]
            x = F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
            x = conv(torch.cat([skip, x], dim=1))
        return self.head(x)


@sample(8, inputs=images(8), lengths=(8, 12))
class AtrousPyramid(nn.Module):
    def __init__(self, dim, rates=(1, 2, 3)):
        super().__init__()
        self.convs = nn.ModuleList([conv_bn(dim, 4, 1)])
        self.convs.extend(
            nn.Sequential(nn.Conv2d(dim, 4, 3, padding=r, dilation=r, bias=False), nn.BatchNorm2d(4), nn.ReLU())
            for r in rates
        )
        self.pool = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(dim, 4, 1, bias=False), nn.GroupNorm(2, 4), nn.ReLU()
        )
        self.project = nn.Conv2d(4 * (len(rates) + 2), 5, 1)

    def forward(self, x):
        res = [conv(x) for conv in self.convs]
        res.append(F.interpolate(self.pool(x), size=x.shape[-2:], mode="bilinear", align_corners=False))
        logits = F.interpolate(self.project(torch.cat(res, dim=1)), scale_factor=2, mode="bilinear", align_corners=True)
        return {"out": logits, "labels": logits.argmax(1)}


@sample((4, 6, 8), inputs=images(4), lengths=(8, 13))
class FeaturePyramid(nn.Module):
    """Top down with sizes taken from the larger map; weights of BiFPN are normalised by their sum."""

    def __init__(self, widths, dim=6):
        super().__init__()
        self.stem = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in zip((4, *widths), widths, strict=False))
        self.lateral = nn.ModuleDict({f"p{i}": nn.Conv2d(w, dim, 1) for i, w in enumerate(widths)})
        self.weights = nn.Parameter(torch.ones(len(widths), 2))
        self.smooth = nn.Conv2d(dim, dim, 3, padding=1)

    def forward(self, x):
        feats = {}
        for i, stem in enumerate(self.stem):
            x = stem(x)
            feats[f"p{i}"] = self.lateral[f"p{i}"](x)
        last = None
        for i, name in reversed(list(enumerate(feats))):
            if last is not None:
                w = F.relu(self.weights[i])
                w = w / (w.sum() + 1e-4)
                feats[name] = w[0] * feats[name] + w[1] * F.interpolate(
                    last, size=feats[name].shape[2:], mode="nearest"
                )
            last = self.smooth(feats[name])
            feats[name] = last
        return feats


BOX = torch.tensor([0.0, 0.0, 12.0, 9.0])


@dataclass
class AnchorConfig:
    sizes: tuple[float, ...] = (16.0, 32.0)
    ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    stride: int = 8


@sample(6, AnchorConfig(), inputs=lambda rows, length: {
    "x": torch.randn(rows, 6, length, length), "boxes": torch.rand(rows, 4, 2).repeat(1, 1, 2) * 40 + BOX,
    "labels": torch.randint(0, 3, (rows, 4)),
}, lengths=(4, 6))  # fmt: skip
class AnchorHead(nn.Module):
    """Anchors for a map, matched by overlaps, coded boxes, and losses over positives."""

    def __init__(self, dim, config, classes=3):
        super().__init__()
        self.config, self.classes = config, classes
        cell = []
        for size, ratio in product(config.sizes, config.ratios):
            w, h = size * math.sqrt(1 / ratio), size * math.sqrt(ratio)
            cell.append([-w / 2, -h / 2, w / 2, h / 2])
        self.register_buffer("cell_anchors", torch.tensor(cell).round(), persistent=False)
        a = len(cell)
        self.cls_logits, self.bbox_pred = nn.Conv2d(dim, a * classes, 3, padding=1), nn.Conv2d(dim, a * 4, 3, padding=1)

    def anchors(self, h, w):
        shift_y, shift_x = torch.meshgrid(
            torch.arange(h) * self.config.stride, torch.arange(w) * self.config.stride, indexing="ij"
        )
        shifts = torch.stack((shift_x, shift_y, shift_x, shift_y), dim=-1).reshape(-1, 1, 4)
        return (shifts + self.cell_anchors.view(1, -1, 4)).reshape(-1, 4)

    @staticmethod
    def iou(a, b):
        area_a, area_b = ((t[..., 2:] - t[..., :2]).clamp(min=0).prod(-1) for t in (a, b))
        lt = torch.maximum(a[..., :, None, :2], b[..., None, :, :2])
        rb = torch.minimum(a[..., :, None, 2:], b[..., None, :, 2:])
        inter = (rb - lt).clamp(min=0).prod(dim=-1)
        return inter / (area_a[..., :, None] + area_b[..., None, :] - inter)

    @staticmethod
    def encode(anchors, boxes):
        wh_a, wh_b = anchors[..., 2:] - anchors[..., :2], boxes[..., 2:] - boxes[..., :2]
        c_a, c_b = anchors[..., :2] + wh_a / 2, boxes[..., :2] + wh_b / 2
        return torch.cat([(c_b - c_a) / wh_a, (wh_b / wh_a).log()], -1)

    def forward(self, x, boxes, labels):
        n, _, h, w = x.shape
        cls = self.cls_logits(x).view(n, -1, self.classes, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, self.classes)
        reg = self.bbox_pred(x).view(n, -1, 4, h, w).permute(0, 3, 4, 1, 2).reshape(n, -1, 4)
        anchors = self.anchors(h, w)
        overlaps, matched = self.iou(anchors.expand(n, -1, -1), boxes).max(dim=-1)
        target = torch.gather(labels, 1, matched)
        target = torch.where(overlaps < 0.2, torch.full_like(target, -1), target)
        gt = F.one_hot(target.clamp(min=0), self.classes).float() * (target >= 0).unsqueeze(-1)
        positive = (overlaps >= 0.3).float()
        coded = self.encode(anchors, torch.gather(boxes, 1, matched[..., None].expand(-1, -1, 4)))
        num = positive.sum().clamp(min=1)
        p = cls.sigmoid()
        ce = F.binary_cross_entropy_with_logits(cls, gt, reduction="none")
        focal = (0.25 * gt + 0.75 * (1 - gt)) * ce * (1 - (p * gt + (1 - p) * (1 - gt))) ** 2
        box = F.smooth_l1_loss(reg, coded, beta=1 / 9, reduction="none").sum(-1) * positive
        losses = dict(classification=focal.sum() / num, bbox_regression=box.sum() / num)
        return losses if self.training else (losses, p.flatten(1).topk(3))


@sample(8, inputs=images(8), lengths=(4, 7))
class CenterHead(nn.Module):
    """Peaks of a heat map by a max pool, and what is gathered at the best of them."""

    def __init__(self, dim, classes=3, k=4):
        super().__init__()
        self.heads = nn.ModuleDict(
            {"hm": nn.Conv2d(dim, classes, 1), "wh": nn.Conv2d(dim, 2, 1), "reg": nn.Conv2d(dim, 2, 1)}
        )
        self.heads["hm"].bias.data.fill_(-2.19)
        self.k = k

    @staticmethod
    def gather_feat(feat, ind):
        dim = feat.size(2)
        ind = ind.unsqueeze(2).expand(ind.size(0), ind.size(1), dim)
        return feat.gather(1, ind)

    def forward(self, x):
        z = {head: module(x) for head, module in self.heads.items()}
        heat = torch.clamp(z["hm"].sigmoid(), min=1e-4, max=1 - 1e-4)
        keep = (F.max_pool2d(heat, (3, 3), stride=1, padding=1) == heat).float()
        batch, cat, height, width = heat.size()
        scores, inds = torch.topk((heat * keep).view(batch, cat, -1), self.k)
        inds = inds % (height * width)
        ys, xs = torch.div(inds, width, rounding_mode="floor").float(), (inds % width).int().float()
        score, ind = torch.topk(scores.view(batch, -1), self.k)
        classes = (ind / self.k).int()
        inds, ys, xs = (self.gather_feat(t.view(batch, -1, 1), ind).view(batch, self.k) for t in (inds, ys, xs))
        transpose = lambda t: t.permute(0, 2, 3, 1).contiguous().view(batch, -1, 2)  # noqa: E731
        reg, wh = self.gather_feat(transpose(z["reg"]), inds), self.gather_feat(transpose(z["wh"]), inds)
        xs, ys = xs.unsqueeze(2) + reg[:, :, 0:1], ys.unsqueeze(2) + reg[:, :, 1:2]
        boxes = torch.cat(
            [xs - wh[..., 0:1] / 2, ys - wh[..., 1:2] / 2, xs + wh[..., 0:1] / 2, ys + wh[..., 1:2] / 2], dim=2
        )
        return torch.cat([boxes, score.unsqueeze(-1), classes.unsqueeze(-1).float()], dim=2)


@sample(6, reg_max=4, inputs=images(6), lengths=(4, 7))
class DistributionBoxHead(nn.Module):
    """Sides of boxes as distributions over bins (generalised focal loss), at the centres of a grid."""

    def __init__(self, dim, reg_max, strides=(8, 16)):
        super().__init__()
        self.reg_max, self.strides = reg_max, strides
        self.convs = nn.ModuleList(nn.Conv2d(dim, 4 * (reg_max + 1), 3, padding=1) for _ in strides)
        self.register_buffer("project", torch.linspace(0, reg_max, reg_max + 1))
        self.scales = nn.ParameterList([nn.Parameter(torch.tensor(1.0)) for _ in strides])

    def forward(self, x):
        outs = []
        for conv, scale, stride in zip(self.convs, self.scales, self.strides, strict=True):
            feat = x if stride == self.strides[0] else F.avg_pool2d(x, stride // self.strides[0])
            y = conv(feat)
            h, w = y.shape[-2:]
            dist = F.softmax(y.permute(0, 2, 3, 1).reshape(-1, 4, self.reg_max + 1), dim=-1)
            sides = F.linear(dist, self.project.type_as(dist).view(1, -1)).view(x.shape[0], h * w, 4) * scale
            sx, sy = ((torch.arange(end) + 0.5) * stride for end in (w, h))
            centres = torch.stack(torch.meshgrid(sx, sy, indexing="xy"), -1).view(-1, 2)
            outs.append(torch.cat([centres - sides[..., :2] * stride, centres + sides[..., 2:] * stride], -1))
        return torch.cat(outs, dim=1)


@sample(
    8,
    queries=3,
    inputs=lambda rows, length: {
        "x": torch.randn(rows, 8, length, length),
        "mask": torch.rand(rows, length, length) > 0.8,
    },
)
class QueryDetector(nn.Module):
    """DETR: sine positions from a mask of padding, queries, and auxiliary outputs of each layer."""

    def __init__(self, dim, queries, classes=4):
        super().__init__()
        self.query_embed = nn.Embedding(queries, dim)
        self.layers = nn.ModuleList(nn.TransformerDecoderLayer(dim, 2, 16, batch_first=True) for _ in range(2))
        self.class_embed, self.bbox_embed = nn.Linear(dim, classes + 1), nn.Linear(dim, 4)

    def position(self, mask, dim, temperature=100):
        not_mask = ~mask
        y_embed, x_embed = not_mask.cumsum(1, dtype=torch.float32), not_mask.cumsum(2, dtype=torch.float32)
        y_embed = y_embed / (y_embed[:, -1:, :] + 1e-6) * 2 * math.pi
        x_embed = x_embed / (x_embed[:, :, -1:] + 1e-6) * 2 * math.pi
        dim_t = torch.arange(dim // 2, dtype=torch.float32)
        dim_t = temperature ** (2 * torch.div(dim_t, 2, rounding_mode="trunc") / (dim // 2))
        pos = [e[:, :, :, None] / dim_t for e in (y_embed, x_embed)]
        pos = [torch.stack((p[..., 0::2].sin(), p[..., 1::2].cos()), dim=4).flatten(3) for p in pos]
        return torch.cat(pos, dim=3)

    @torch.jit.unused
    def _set_aux_loss(self, outputs_class, outputs_coord):
        return [{"pred_logits": a, "pred_boxes": b} for a, b in zip(outputs_class[:-1], outputs_coord[:-1])]  # noqa: B905

    def forward(self, x, mask):
        memory = x.permute(0, 2, 3, 1).flatten(1, 2) + self.position(mask, x.shape[1]).flatten(1, 2)
        tgt, hs = self.query_embed.weight.unsqueeze(0).repeat(x.shape[0], 1, 1), []
        for layer in self.layers:
            tgt = layer(tgt, memory, memory_key_padding_mask=mask.flatten(1))
            hs.append(tgt)
        hs = torch.stack(hs)
        cls, box = self.class_embed(hs), self.bbox_embed(hs).sigmoid()
        out = {"pred_logits": cls[-1], "pred_boxes": box[-1]}
        out["aux_outputs"] = self._set_aux_loss(cls, box)
        return out


@sample(6, inputs=images(6), lengths=(4, 6))
class MultiScaleDeformable(nn.Module):
    """Deformable DETR's attention over levels, by `grid_sample` for each level."""

    def __init__(self, dim, heads=2, levels=2, points=2):
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.sampling_offsets = nn.Linear(dim, heads * levels * points * 2)
        self.attention_weights = nn.Linear(dim, heads * levels * points)
        self.value_proj = nn.Linear(dim, dim)

    def forward(self, x):
        maps = [x, F.avg_pool2d(x, 2)]
        shapes = [m.shape[-2:] for m in maps]
        value = self.value_proj(torch.cat([m.flatten(2).transpose(1, 2) for m in maps], 1))
        n, s, c = value.shape
        m, d = self.heads, c // self.heads
        value = value.view(n, s, m, d)
        query = maps[0].flatten(2).transpose(1, 2)
        q = query.shape[1]
        offsets = self.sampling_offsets(query).view(n, q, m, self.levels, self.points, 2)
        weights = self.attention_weights(query).view(n, q, m, -1).softmax(-1)
        h, w = shapes[0]
        ref = torch.stack(
            torch.meshgrid(torch.linspace(0.5, h - 0.5, h) / h, torch.linspace(0.5, w - 0.5, w) / w, indexing="ij"), -1
        )
        normalizer = torch.as_tensor([list(shape[::-1]) for shape in shapes], dtype=x.dtype)
        locations = ref.flip(-1).view(1, q, 1, 1, 1, 2) + offsets / normalizer[None, None, None, :, None, :]
        grids = 2 * locations - 1
        sampled = []
        for level, part in enumerate(value.split([a * b for a, b in shapes], dim=1)):
            a, b = shapes[level]
            v = part.flatten(2).transpose(1, 2).reshape(n * m, d, a, b)
            g = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(v, g, mode="bilinear", padding_mode="zeros", align_corners=False))
        weights = weights.transpose(1, 2).reshape(n * m, 1, q, self.levels * self.points)
        out = (torch.stack(sampled, dim=-2).flatten(-2) * weights).sum(-1).view(n, m * d, q)
        return out.transpose(1, 2)


@sample(6, inputs=images(6), lengths=(6, 9))
class SoftArgmaxPose(nn.Module):
    """Heat maps to coordinates, with limbs from an index table, and a loss over visible points."""

    LIMBS = ((0, 1), (1, 2), (2, 3))

    def __init__(self, dim, joints=4):
        super().__init__()
        self.heat, self.beta = nn.Conv2d(dim, joints, 1), nn.Parameter(torch.tensor(2.0))
        self.register_buffer("limbs", torch.tensor(self.LIMBS))

    def forward(self, x):
        heat = self.heat(x)
        n, j, h, w = heat.shape
        prob = F.softmax(heat.view(n, j, -1) * self.beta, dim=-1).view(n, j, h, w)
        xs = (prob.sum(2) * torch.linspace(-1, 1, w)).sum(-1)
        ys = (prob.sum(3) * torch.linspace(-1, 1, h)).sum(-1)
        coords = torch.stack([xs, ys], -1)
        bones = coords[:, self.limbs[:, 1]] - coords[:, self.limbs[:, 0]]
        lengths = torch.linalg.norm(bones, dim=-1)
        visible = (prob.flatten(2).max(-1).values > 1 / (h * w)).float()
        variance = ((prob.flatten(2) ** 2).sum(-1) * visible).sum() / visible.sum().clamp(min=1.0)
        return coords, lengths, torch.atan2(bones[..., 1], bones[..., 0] + 1e-3), variance


@sample(8, inputs=images(8), lengths=(5, 8))
class ObjectContext(nn.Module):
    """Soft regions of classes, and pixels that attend to them."""

    def __init__(self, dim, classes=3):
        super().__init__()
        self.aux, self.cls = nn.Conv2d(dim, classes, 1), nn.Conv2d(2 * dim, classes, 1)
        self.f_pixel, self.f_object, self.f_down = (nn.Conv2d(dim, dim // 2, 1) for _ in range(3))
        self.f_up = nn.Conv2d(dim // 2, dim, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        aux = self.aux(x)
        probs = F.softmax(aux.view(b, aux.size(1), -1), dim=2)
        context = torch.matmul(probs, x.view(b, c, -1).permute(0, 2, 1)).permute(0, 2, 1).unsqueeze(3)
        query = self.f_pixel(x).view(b, c // 2, -1).permute(0, 2, 1)
        key = self.f_object(context).view(b, c // 2, -1)
        value = self.f_down(context).view(b, c // 2, -1).permute(0, 2, 1)
        sim = F.softmax((c // 2) ** -0.5 * torch.matmul(query, key), dim=-1)
        context = torch.matmul(sim, value).permute(0, 2, 1).contiguous().view(b, c // 2, *x.size()[2:])
        return self.cls(torch.cat([self.f_up(context), x], 1)), aux


@sample(4, inputs=images(4), lengths=(6, 9))
class PointRefiner(nn.Module):
    """PointRend: uncertain points are sampled, refined by features, and scattered back."""

    def __init__(self, dim, classes=3, points=5):
        super().__init__()
        self.coarse = nn.Conv2d(dim, classes, 3, padding=1)
        self.mlp = nn.Conv1d(dim + classes, classes, 1)
        self.points = points

    @staticmethod
    def point_sample(feature, coords, **kwargs):
        return F.grid_sample(feature, 2.0 * coords.unsqueeze(2) - 1.0, align_corners=False, **kwargs).squeeze(3)

    def forward(self, x):
        coarse = self.coarse(x)
        fine = F.interpolate(coarse, scale_factor=2, mode="bilinear", align_corners=False)
        n, c, h, w = fine.shape
        top2 = fine.topk(2, dim=1).values
        uncertainty = -(top2[:, 0] - top2[:, 1]).reshape(n, h * w)
        idx = uncertainty.topk(min(h * w, self.points), dim=1).indices
        step_y, step_x = 1.0 / h, 1.0 / w
        coords = torch.zeros(n, idx.shape[1], 2, dtype=torch.float)
        coords[:, :, 0] = step_x / 2.0 + (idx % w).to(torch.float) * step_x
        coords[:, :, 1] = step_y / 2.0 + torch.div(idx, w, rounding_mode="floor").to(torch.float) * step_y
        feats = torch.cat([self.point_sample(x, coords), self.point_sample(coarse, coords)], dim=1)
        refined = self.mlp(feats)
        index = idx.unsqueeze(1).expand(-1, c, -1)
        return fine.reshape(n, c, h * w).scatter(2, index, refined).view(n, c, h, w)


@sample(
    8,
    inputs=lambda rows, length: {
        "masks": torch.randn(rows, 3, length, length),
        "target": (torch.rand(rows, 3, length, length) > 0.5).float(),
    },
)
class MaskMatcher(nn.Module):
    """All permutations of three instances are tried; the cheapest decides the loss."""

    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 3, 1, 1))
        orders = [(i, j, k) for i in range(3) for j in range(3) for k in range(3) if len({i, j, k}) == 3]
        self.register_buffer("orders", torch.tensor(orders))

    def forward(self, masks, target):
        p = (masks * self.scale).sigmoid().flatten(2)
        t = target.flatten(2)
        dice = 1 - (2 * torch.einsum("nqc,nkc->nqk", p, t) + 1) / (p.sum(-1)[:, :, None] + t.sum(-1)[:, None] + 1)
        costs = dice[:, torch.arange(3)[None], self.orders].sum(-1)
        best = costs.argmin(dim=1)
        return costs.gather(1, best[:, None]).mean(), self.orders[best]


@sample(
    4,
    inputs=lambda rows, length: {
        "left": torch.randn(rows, 4, length, length),
        "right": torch.randn(rows, 4, length, length),
    },
)
class StereoCostVolume(nn.Module):
    """A volume by shifted products, regressed by a soft arg-min."""

    def __init__(self, dim, max_disparity=4):
        super().__init__()
        self.max_disparity = max_disparity
        self.regularize = nn.Conv3d(dim, 1, 3, padding=1)

    def forward(self, left, right):
        b, c, h, w = left.shape
        volume = left.new_zeros(b, c, self.max_disparity, h, w)
        for i in range(self.max_disparity):
            if i > 0:
                volume[:, :, i, :, i:] = left[:, :, :, i:] * right[:, :, :, :-i]
            else:
                volume[:, :, i] = left * right
        cost = self.regularize(volume.contiguous()).squeeze(1)
        disparity = torch.arange(0, self.max_disparity, dtype=cost.dtype).view(1, -1, 1, 1)
        return torch.sum(F.softmax(-cost, dim=1) * disparity, 1, keepdim=False)


@sample(
    4,
    inputs=lambda rows, length: {
        "first": torch.randn(rows, 4, length, length),
        "second": torch.randn(rows, 4, length, length),
    },
    lengths=(8, 12),
)
class CorrelationFlow(nn.Module):
    """RAFT: a pyramid of correlations, looked up around a flow that a recurrent cell refines."""

    def __init__(self, dim, levels=2, radius=1, iters=2):
        super().__init__()
        self.levels, self.radius, self.iters = levels, radius, iters
        channels = levels * (2 * radius + 1) ** 2 + 2
        self.update = nn.Conv2d(channels + dim, dim, 3, padding=1)
        self.flow_head = nn.Conv2d(dim, 2, 3, padding=1)

    @staticmethod
    def coords_grid(batch, ht, wd):
        coords = torch.meshgrid(torch.arange(ht), torch.arange(wd), indexing="ij")
        return torch.stack(coords[::-1], dim=0).float()[None].repeat(batch, 1, 1, 1)

    def lookup(self, pyramid, coords):
        r = self.radius
        coords = coords.permute(0, 2, 3, 1)
        b, h, w, _ = coords.shape
        out = []
        for i, corr in enumerate(pyramid):
            d = torch.linspace(-r, r, 2 * r + 1)
            delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), dim=-1).view(1, 2 * r + 1, 2 * r + 1, 2)
            at = coords.reshape(b * h * w, 1, 1, 2) / 2**i + delta
            size = corr.shape[-2:]
            xg, yg = at.split([1, 1], dim=-1)
            grid = torch.cat([2 * xg / (size[1] - 1) - 1, 2 * yg / (size[0] - 1) - 1], dim=-1)
            out.append(F.grid_sample(corr, grid, align_corners=True).view(b, h, w, -1))
        return torch.cat(out, dim=-1).permute(0, 3, 1, 2).contiguous()

    def forward(self, first, second):
        b, c, h, w = first.shape
        corr = torch.matmul(first.view(b, c, -1).transpose(1, 2), second.view(b, c, -1)) / math.sqrt(c)
        pyramid = [corr.reshape(b * h * w, 1, h, w)]
        for _ in range(self.levels - 1):
            pyramid.append(F.avg_pool2d(pyramid[-1], 2, stride=2))
        coords0, coords1 = self.coords_grid(b, h, w), self.coords_grid(b, h, w)
        net, predictions = torch.tanh(first), []
        for _ in range(self.iters):
            coords1 = coords1.detach()
            flow = coords1 - coords0
            net = torch.tanh(self.update(torch.cat([net, self.lookup(pyramid, coords1), flow], dim=1)))
            coords1 = coords1 + self.flow_head(net)
            predictions.append(coords1 - coords0)
        return predictions
