"""Random numbers against the published vectors of Philox (Random123's `kat_vectors`)."""

from __future__ import annotations

import pytest
import torch

from kiln.loops.body.philox import philox_words, random_numbers

KNOWN = (
    ((0x00000000, 0x00000000), 0x00000000, (0xFF1DAE59, 0x6CD10DF2)),
    ((0xFFFFFFFF, 0xFFFFFFFF), 0xFFFFFFFF, (0x2C3F628B, 0xAB4FD7AD)),
    ((0x243F6A88, 0x85A308D3), 0x13198A2E, (0xDD7CE038, 0xF62A4C12)),
)


def signed(value: int) -> torch.Tensor:
    return torch.tensor(value - (1 << 64) if value >= 1 << 63 else value)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter: tuple[int, int], key: int, words: tuple[int, int]) -> None:
    found = philox_words(signed(key), signed(counter[1] << 32 | counter[0]))
    assert tuple(int(word) for word in found) == words


def test_high_words_of_the_seed_make_other_numbers() -> None:
    counters = torch.arange(1 << 12)
    streams = [random_numbers("uniform", torch.tensor(seed), counters, torch.float32) for seed in (7, 7 + (1 << 32))]
    assert abs(float(torch.corrcoef(torch.stack(streams))[0, 1])) < 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_moments(dtype: torch.dtype) -> None:
    counters = torch.arange(1 << 16)
    uniform = random_numbers("uniform", torch.tensor(3), counters, dtype)
    normal = random_numbers("normal", torch.tensor(3), counters, dtype)
    assert (float(uniform.mean()), float(uniform.var())) == pytest.approx((1 / 2, 1 / 12), abs=0.005)
    assert (float(normal.mean()), float(normal.var())) == pytest.approx((0, 1), abs=0.02)
    assert float((normal**4).mean()) == pytest.approx(3, abs=0.1)
