"""`python tools/second_derivatives.py --json FILE`: steps with gradients of gradients, compiled against eager.

    step                             eager, ms   model    step   error
    PINN, 64 points                       2.31    1.28    5.10    0.48

The figures above only show the form. Model: the model alone is compiled, and the program around it asks for gradients
with `create_graph=True`. Step: the whole step is compiled. Both are speeds over eager, medians of CPU times that
alternate with eager's. Error: of the gradients of both against float64, over twice eager's; 1 is the limit of the
numerics contract.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import kiln
from kiln_bench.results import write_data

ALTERNATIONS = 15
Model = Callable[[Tensor], Tensor]
Step = Callable[[], list[Tensor]]
Steps = tuple[nn.Module, Callable[[Model], Step]]
"""A model, and the step of a program that calls it, or its compiled form."""
Case = Callable[[torch.dtype], Steps]


def layers(*widths: int, between: type[nn.Module]) -> nn.Sequential:
    parts: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        parts += [nn.Linear(fan_in, fan_out), between()]
    return nn.Sequential(*parts[:-1])


def numbers(*sizes: int) -> Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(1))


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True))


def pinn(points: int) -> Case:
    """Residual of Burgers' equation at `points` points."""

    def case(dtype: torch.dtype) -> Steps:
        net, places = layers(2, 64, 64, 64, 1, between=nn.Tanh).to(dtype), numbers(points, 2).to(dtype)

        def steps(model: Model) -> Step:
            def step() -> list[Tensor]:
                x = places.clone().requires_grad_()
                u = model(x)
                first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
                second = torch.autograd.grad(first[:, 0].sum(), x, create_graph=True)[0][:, 0]
                return gradients((first[:, 1] + u[:, 0] * first[:, 0] - 0.1 * second).square().mean(), net)

            return step

        return net, steps

    return case


def penalty(dtype: torch.dtype) -> Steps:
    """Gradient penalty of a critic of convolutions (WGAN-GP)."""
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(32, 64, 4, 2, 1), nn.LeakyReLU(0.2)),
        *(nn.Flatten(), nn.Linear(64 * 64, 1)),
    ).to(dtype)
    images = numbers(16, 3, 32, 32).to(dtype)

    def steps(model: Model) -> Step:
        def step() -> list[Tensor]:
            x = images.clone().requires_grad_()
            slope = torch.autograd.grad(model(x).sum(), x, create_graph=True)[0]
            return gradients((slope.flatten(1).norm(dim=1) - 1).square().mean() + model(images).mean(), net)

        return step

    return net, steps


class Potential(nn.Module):
    """The energy of atoms, by their distances."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(16, 64, 64, 1, between=nn.SiLU)
        self.register_buffer("centres", torch.linspace(0, 4, 16))

    def forward(self, positions: Tensor) -> Tensor:
        distances = (positions[:, None] - positions[None]).square().sum(-1).add(1e-3).sqrt()
        energies: Tensor = self.layers(torch.exp(-((distances[..., None] - self.centres) ** 2)).sum(1))
        return energies.sum()


def forces(dtype: torch.dtype) -> Steps:
    """Forces of 64 atoms in the loss."""
    net, atoms = Potential().to(dtype), numbers(64, 3).to(dtype)
    wanted = numbers(64, 3).flip(0).to(dtype)

    def steps(model: Model) -> Step:
        def step() -> list[Tensor]:
            x = atoms.clone().requires_grad_()
            energy = model(x)
            found = -torch.autograd.grad(energy, x, create_graph=True)[0]
            return gradients((found - wanted).square().mean() + 0.01 * energy, net)

        return step

    return net, steps


def hessian_vector(dtype: torch.dtype) -> Steps:
    """Product of a vector and the Hessian of a classifier."""
    net, x = layers(64, 128, 128, 10, between=nn.GELU).to(dtype), numbers(128, 64).to(dtype)
    labels = torch.arange(128) % 10
    vector = [numbers(*weight.shape).to(dtype) for weight in net.parameters()]

    def steps(model: Model) -> Step:
        def step() -> list[Tensor]:
            loss = F.cross_entropy(model(x), labels)
            first = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
            return gradients(sum((a * b).sum() for a, b in zip(first, vector, strict=True)), net)  # type: ignore[arg-type]

        return step

    return net, steps


CASES = {
    "PINN, 64 points": pinn(64),
    "PINN, 2,000 points": pinn(2000),
    "gradient penalty, convolutions": penalty,
    "forces in the loss": forces,
    "Hessian-vector product": hessian_vector,
}


def cpu_seconds(step: Step, times: int) -> float:
    before = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - before) / times


def measured(name: str) -> dict[str, Any]:
    steps: dict[str, Step] = {}
    for who in ("eager", "float64", "model", "step"):
        torch.manual_seed(0)
        net, make = CASES[name](torch.float64 if who == "float64" else torch.float32)
        made = make(kiln.compile(net) if who == "model" else net)
        steps[who] = kiln.compile(made) if who == "step" else made
    for step in steps.values():
        for _ in range(4):
            step()
    exact = torch.cat([part.flatten() for part in steps["float64"]()])
    error = {who: float((torch.cat([part.flatten() for part in steps[who]()]) - exact).norm()) for who in steps}
    times = max(1, round(0.03 / cpu_seconds(steps["eager"], 3)))
    spent: dict[str, list[float]] = {who: [] for who in ("eager", "model", "step")}
    for _ in range(ALTERNATIONS):
        for who, seconds in spent.items():
            seconds.append(cpu_seconds(steps[who], times))
    return {
        "seconds": {who: median(seconds) for who, seconds in spent.items()},
        "error": max(error["model"], error["step"]) / (2 * error["eager"]),
    }


def run(threads: int, path: Path | None) -> int:
    torch.set_num_threads(threads)
    rows: dict[str, dict[str, Any]] = {}
    print(f"{'step':<32}{'eager, ms':>10}{'model':>8}{'step':>8}{'error':>8}")
    for name in CASES:
        row = rows[name] = measured(name)
        eager, *compiled = row["seconds"].values()
        speeds = "".join(f"{eager / seconds:>8.2f}" for seconds in compiled)
        print(f"{name:<32}{eager * 1e3:>10.2f}{speeds}{row['error']:>8.2f}", flush=True)
    if path is not None:
        command = " ".join(["python tools/second_derivatives.py", *sys.argv[1:]])
        write_data(path, {"command": command, "cases": rows})
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sys.exit(run(given.threads, given.json))
