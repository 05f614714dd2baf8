"""A program with a randomly damaged cache gives eager's result: a miss, never a crash."""

from __future__ import annotations

import os
import random
from pathlib import Path

import torch

import kiln

ROUNDS, MUTATIONS = 25, 12


def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x) * w).sum(-1)


def gradients(folder: Path) -> list[torch.Tensor]:
    """Loss and gradients in a session with the cache folder as it is."""
    x, w = torch.arange(12.0).reshape(3, 4), torch.linspace(0, 1, 4, requires_grad=True)
    compiled = kiln.compile(program, options={"cache": True, "cache_dir": str(folder)})
    loss = compiled(x, w)
    loss.sum().backward()
    assert w.grad is not None and kiln.report_of(compiled).eager == 0
    return [loss.detach(), w.grad]


def mutate(folder: Path, pick: random.Random) -> None:
    """Replace a file of the cache; not in place, since libraries are mapped into this process."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    victim, other = pick.choice(files), pick.choice(files)
    data = bytearray(victim.read_bytes())
    match pick.randrange(8):
        case 0 if data:
            data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
        case 1:
            del data[pick.randrange(len(data) + 1) :]
        case 2:
            data = bytearray(other.read_bytes())
        case 3:
            data = bytearray(pick.randbytes(pick.randrange(200)))
        case 4:
            victim.chmod(0o666)
            return
        case 5:
            victim.unlink()
            victim.symlink_to("/dev/zero")
            return
        case 6:
            victim.unlink()
            os.mkfifo(victim)
            return
        case _:
            data += other.read_bytes()
    aside = folder / "aside"
    aside.write_bytes(data)
    aside.chmod(0o600)
    os.replace(aside, victim)


def test_mutated_caches(tmp_path: Path) -> None:
    pick, expected = random.Random(0), gradients(tmp_path)
    for _ in range(ROUNDS):
        for _ in range(MUTATIONS):
            mutate(tmp_path, pick)
        for got, want in zip(gradients(tmp_path), expected, strict=True):
            assert torch.equal(got, want)
