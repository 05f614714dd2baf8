"""Counter-based random numbers: Philox 2x32 with 10 rounds, and how its bits become uniform and normal numbers.

    key     = the low word of the seed
    counter = (low word of c, high word of c ^ high word of the seed)            for the counter c < 2**63
    bits    = the first word of the result
    uniform = (word0 >> 8) * 2**-24                      in [0, 1); for float64 (word1:word0 >> 11) * 2**-53
    normal  = sqrt(-2 log(1 - u0)) * cos(2 pi u1)        u0, u1 uniform from words 0 and 1 (float64: of c and c + 2**63)

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011, which finds that it passes
BigCrush. A number needs one word or two, so the block of four words that others use costs twice as much. Forward and
backward, C++ and Triton compute the same bits; this file is the reference on tensors.
"""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor

MULTIPLIER, KEY_STEP, ROUNDS = 0xD256D193, 0x9E3779B9, 10  # those of the paper
SECOND = -(1 << 63)
"""Of a counter, for the second number of a pair."""
_WORD = 0xFFFFFFFF


def philox_words(seed: Tensor, counter: Tensor) -> tuple[Tensor, Tensor]:
    """The two 32-bit words (as int64 tensors) of each counter."""
    seed, counter = torch.broadcast_tensors(seed.to(torch.int64), counter.to(torch.int64))
    key, word0, word1 = seed & _WORD, counter & _WORD, ((counter ^ seed) >> 32) & _WORD
    for _ in range(ROUNDS):
        high, low = _multiplied(word0)
        word0, word1 = high ^ word1 ^ key, low
        key = (key + KEY_STEP) & _WORD
    return word0, word1


def _multiplied(word: Tensor) -> tuple[Tensor, Tensor]:
    """High and low word of the product with MULTIPLIER, in halves so that nothing exceeds 63 bits."""
    low = word * (MULTIPLIER & 0xFFFF)
    high = word * (MULTIPLIER >> 16)
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def random_numbers(distribution: str, seed: Tensor, counter: Tensor, dtype: torch.dtype) -> Tensor:
    word0, word1 = philox_words(seed, counter)
    if distribution == "bits":
        return word0.to(dtype)
    u0 = _uniform(word0, word1, dtype)
    if distribution == "uniform":
        return u0.to(dtype)
    if distribution == "normal":
        pair = philox_words(seed, counter ^ SECOND) if dtype == torch.float64 else (word1, word0)
        return (torch.sqrt(-2.0 * torch.log(1.0 - u0)) * torch.cos(2.0 * math.pi * _uniform(*pair, dtype))).to(dtype)
    raise ValueError(f"no distribution {distribution}")


def _uniform(word: Tensor, other: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype == torch.float64:
        return ((other << 21) | (word >> 11)).double() * 2.0**-53
    return (word >> 8).float() * 2.0**-24
