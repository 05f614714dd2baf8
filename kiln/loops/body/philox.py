"""Counter-based random numbers: Philox 4x32 with 10 rounds, and how its bits become uniform and normal numbers.

    key     = the 64 bits of the seed, as two 32-bit words (low, high)
    counter = (low word of c, high word of c, 0, 0)  for the counter c
    bits    = the first word of the result
    uniform = (bits >> 8) * 2**-24                       in [0, 1); for float64 (word1:word0 >> 11) * 2**-53
    normal  = sqrt(-2 log(1 - u0)) * cos(2 pi u1)        u0, u1 uniform from words 0 and 1 (float64 from 01 and 23)

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. Forward and backward,
C++ and Triton compute the same bits; this file is the reference on tensors.
"""

from __future__ import annotations

import math

import torch

Tensor = torch.Tensor

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
_WORD = 0xFFFFFFFF


def philox_words(seed: Tensor, counter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four 32-bit words (as int64 tensors) of each counter."""
    seed, counter = torch.broadcast_tensors(seed.to(torch.int64), counter.to(torch.int64))
    key = [seed & _WORD, (seed >> 32) & _WORD]
    words = [counter & _WORD, (counter >> 32) & _WORD, torch.zeros_like(counter), torch.zeros_like(counter)]
    for _ in range(ROUNDS):
        high0, low0 = _multiply(words[0], MULTIPLIERS[0])
        high1, low1 = _multiply(words[2], MULTIPLIERS[1])
        words = [high1 ^ words[1] ^ key[0], low1, high0 ^ words[3] ^ key[1], low0]
        key = [(word + step) & _WORD for word, step in zip(key, KEY_STEPS, strict=True)]
    return words[0], words[1], words[2], words[3]


def _multiply(word: Tensor, by: int) -> tuple[Tensor, Tensor]:
    """High and low word of the product, in halves so that nothing exceeds 63 bits."""
    low = word * (by & 0xFFFF)
    high = word * (by >> 16)
    middle = high + (low >> 16)
    return middle >> 16, ((middle & 0xFFFF) << 16) | (low & 0xFFFF)


def random_numbers(distribution: str, seed: Tensor, counter: Tensor, dtype: torch.dtype) -> Tensor:
    w0, w1, w2, w3 = philox_words(seed, counter)
    if distribution == "bits":
        return w0.to(dtype)
    if dtype == torch.float64:
        u0, u1 = (((high << 21) | (low >> 11)).double() * 2.0**-53 for low, high in ((w0, w1), (w2, w3)))
    else:
        u0, u1 = ((word >> 8).float() * 2.0**-24 for word in (w0, w1))
    if distribution == "uniform":
        return u0.to(dtype)
    if distribution == "normal":
        return (torch.sqrt(-2.0 * torch.log(1.0 - u0)) * torch.cos(2.0 * math.pi * u1)).to(dtype)
    raise ValueError(f"no distribution {distribution}")
