"""`python tools/curves.py --json FILE`: three small models trained for 1,000 steps, beside eager and in float64.

    model        loss at the end: eager      kiln    float64   state, of the bound   resumed
    gpt                          1.4021    1.4020     1.4021                  0.48   2.1e-06

The figures above only show the form. Each step (forward, loss, backward, clipped gradients, AdamW, a schedule) is
compiled as one region; batches and noise are drawn outside, the same for all. State: the error of parameters and
buffers at the end, root mean square against the run in float64, over twice eager's; 1 is the limit of the numerics
contract. Resumed: in the middle each of eager and Kiln goes on from a checkpoint of the other; the largest relative
difference of the next losses from those of the run that wrote it.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kiln
from kiln.support.records import dataclass
from kiln_bench.results import write_data

LAST, RESUMED, POINT = 50, 20, 20
"""Steps whose losses are averaged at the end, that are run from a checkpoint, and that a point of a curve averages."""
Batch = tuple[Tensor, ...]


class Gpt(nn.Module):
    """Next tokens of sequences in which each token follows from the two before it, with some noise."""

    TOKENS, WIDTH, LENGTH, BATCH = 64, 64, 32, 4

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(self.TOKENS, self.WIDTH), nn.Embedding(self.LENGTH, self.WIDTH)
        self.blocks = nn.ModuleList([
            nn.TransformerEncoderLayer(self.WIDTH, 4, 4 * self.WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(2)
        ])  # fmt: skip
        self.norm, self.head = nn.LayerNorm(self.WIDTH), nn.Linear(self.WIDTH, self.TOKENS, bias=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(self.LENGTH), False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens[:, :-1]) + self.position.weight
        for block in self.blocks:
            x = block(x, src_mask=self.mask)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens[:, 1:].flatten())

    @classmethod
    def batch(cls, generator: torch.Generator) -> Batch:
        tokens = torch.randint(0, cls.TOKENS, (cls.BATCH, cls.LENGTH + 1), generator=generator)
        kept = torch.rand(tokens.shape, generator=generator) < 0.9
        for n in range(2, cls.LENGTH + 1):
            follows = (3 * tokens[:, n - 1] + tokens[:, n - 2]) % cls.TOKENS
            tokens[:, n] = torch.where(kept[:, n], follows, tokens[:, n])
        return (tokens,)


class ResNet(nn.Module):
    """Images with a grating of one of eight directions."""

    BATCH, SIZE, CLASSES = 8, 16, 8

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        sizes = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        self.norms = nn.ModuleList([nn.BatchNorm2d(inner) for inner, _, _ in sizes])
        self.first = nn.ModuleList([nn.Conv2d(i, o, 3, stride, 1, bias=False) for i, o, stride in sizes])
        self.inner = nn.ModuleList([nn.BatchNorm2d(outer) for _, outer, _ in sizes])
        self.second = nn.ModuleList([nn.Conv2d(o, o, 3, padding=1, bias=False) for _, o, _ in sizes])
        self.skip = nn.ModuleList([nn.Conv2d(i, o, 1, stride, bias=False) for i, o, stride in sizes])
        self.head = nn.Linear(64, self.CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(images)
        for parts in zip(self.norms, self.first, self.inner, self.second, self.skip, strict=True):
            norm, first, inner, second, skip = parts
            x = skip(x) + second(F.relu(inner(first(F.relu(norm(x))))))
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)

    @classmethod
    def batch(cls, generator: torch.Generator) -> Batch:
        labels = torch.randint(0, cls.CLASSES, (cls.BATCH,), generator=generator)
        angle = (labels * torch.pi / cls.CLASSES)[:, None, None, None]
        across, down = torch.meshgrid(*[torch.arange(cls.SIZE, dtype=torch.float32)] * 2, indexing="xy")
        grating = torch.sin(across * angle.cos() + down * angle.sin())
        return grating + 1.5 * torch.randn(cls.BATCH, 3, cls.SIZE, cls.SIZE, generator=generator), labels


class Diffusion(nn.Module):
    """The noise in noisy images of discs, from the image and its noise level."""

    BATCH, SIZE, WIDTH = 8, 16, 16

    def __init__(self) -> None:
        super().__init__()
        width = self.WIDTH
        self.level = nn.Sequential(nn.Linear(16, width), nn.SiLU(), nn.Linear(width, width))
        self.enter, self.down = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.middle, self.norm = nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.GroupNorm(8, 2 * width)
        self.up, self.leave = nn.Conv2d(2 * width, width, 3, padding=1), nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, images: Tensor, noise: Tensor, level: Tensor) -> Tensor:
        frequencies = 2.0 ** torch.arange(8, dtype=images.dtype)
        waves = level[:, None] * frequencies
        embedded = self.level(torch.cat([waves.sin(), waves.cos()], dim=1))[:, :, None, None]
        kept = torch.cos(level * torch.pi / 2)[:, None, None, None]
        noisy = kept * images + (1 - kept * kept).sqrt() * noise
        wide = F.silu(self.enter(noisy) + embedded)
        deep = F.silu(self.norm(self.middle(F.silu(self.down(wide)))))
        back = F.silu(self.up(F.interpolate(deep, scale_factor=2.0, mode="nearest")))
        return F.mse_loss(self.leave(torch.cat([back, wide], dim=1)), noise)

    @classmethod
    def batch(cls, generator: torch.Generator) -> Batch:
        centre = 4 + 8 * torch.rand(cls.BATCH, 2, 1, 1, generator=generator)
        rows, columns = torch.meshgrid(*[torch.arange(cls.SIZE, dtype=torch.float32)] * 2, indexing="ij")
        inside = (rows - centre[:, 0]).square() + (columns - centre[:, 1]).square() < 9
        images = torch.where(inside, 1.0, -1.0)[:, None]
        return images, torch.randn(images.shape, generator=generator), torch.rand(cls.BATCH, generator=generator)


MODELS: dict[str, Any] = {"gpt": Gpt, "resnet": ResNet, "diffusion": Diffusion}


@final
@dataclass(eq=False)
class Training:
    """A model with its optimizer and schedule; `step` is one step of training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    step: Callable[..., Tensor]

    def save(self) -> bytes:
        file = io.BytesIO()
        torch.save([part.state_dict() for part in (self.model, self.optimizer, self.schedule)], file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        states = torch.load(io.BytesIO(saved), weights_only=True)
        for part, state in zip((self.model, self.optimizer, self.schedule), states, strict=True):
            part.load_state_dict(state)

    def state(self) -> Tensor:
        """All floats of the model, as one vector."""
        values = [value for value in self.model.state_dict().values() if value.is_floating_point()]
        return torch.cat([value.double().flatten() for value in values])


def training(name: str, steps: int, dtype: torch.dtype = torch.float32, compiled: bool = False) -> Training:
    torch.manual_seed(0)
    model = MODELS[name]().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)

    def step(*batch: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.detach()

    return Training(model, optimizer, schedule, kiln.compile(step) if compiled else step)


def batches(name: str, steps: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [cast(Batch, MODELS[name].batch(generator)) for _ in range(steps)]


def losses(run: Training, given: Sequence[Batch]) -> list[float]:
    floats = next(run.model.parameters()).dtype
    return [
        float(run.step(*[value.to(floats) if value.is_floating_point() else value for value in batch]))
        for batch in given
    ]


def resumed(name: str, steps: int, saved: bytes, given: Sequence[Batch], *, compiled: bool) -> list[float]:
    """The losses behind a checkpoint."""
    run = training(name, steps, compiled=compiled)
    run.load(saved)
    return losses(run, given)


def measured(name: str, steps: int) -> dict[str, object]:
    given, half = batches(name, steps), steps // 2
    runs = {
        "eager": training(name, steps),
        "kiln": training(name, steps, compiled=True),
        "float64": training(name, steps, torch.float64),
    }
    curves = {who: losses(run, given[:half]) for who, run in runs.items()}
    saved = {who: runs[who].save() for who in ("eager", "kiln")}
    for who, run in runs.items():
        curves[who] += losses(run, given[half:])
    differences = []
    for writer, reader in (("eager", "kiln"), ("kiln", "eager")):
        found = resumed(name, steps, saved[writer], given[half : half + RESUMED], compiled=reader == "kiln")
        differences += [abs(a / b - 1) for a, b in zip(found, curves[writer][half:], strict=False)]
    exact = runs["float64"].state()
    errors = {who: float((runs[who].state() - exact).square().mean().sqrt()) for who in ("eager", "kiln")}
    report = kiln.report_of(runs["kiln"].step)
    return {
        "losses": {who: [mean(found[n : n + POINT]) for n in range(0, steps, POINT)] for who, found in curves.items()},
        "ends": {who: mean(found[-LAST:]) for who, found in curves.items()},
        "errors": errors, "resumed": max(differences),
        "compiles": report.compiles, "breaks": len(report.breaks),
    }  # fmt: skip


def run(threads: int, steps: int, names: Sequence[str], path: Path | None) -> int:
    torch.set_num_threads(threads)
    print(
        f"{'model':<12}{'loss at the end: eager':>24}{'kiln':>10}{'float64':>10}"
        f"{'state':>8}{'resumed':>10}{'compiles':>10}"
    )
    rows: dict[str, dict[str, Any]] = {}
    for name in names or MODELS:
        row = rows[name] = measured(name, steps)  # type: ignore[assignment]
        ends = list(row["ends"].values())
        ratio = row["errors"]["kiln"] / (2 * row["errors"]["eager"])
        print(f"{name:<12}{ends[0]:>24.4f}{ends[1]:>10.4f}{ends[2]:>10.4f}{ratio:>8.2f}{row['resumed']:>10.1e}"
              f"{row['compiles']:>10}", flush=True)  # fmt: skip
    if path is not None:
        command = " ".join(["python tools/curves.py", *sys.argv[1:]])
        write_data(path, {"command": command, "steps": steps, "point": POINT, "models": rows})
    return int(any(row["errors"]["kiln"] > 2 * row["errors"]["eager"] or row["breaks"] for row in rows.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--models", default="", help="comma list; default: all")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sys.exit(run(given.threads, given.steps, [*filter(None, given.models.split(","))], given.json))
