"""Random state of counter-based random kernels: (seed, offset) drawn from torch's generators.

    draw_seed(torch.device("cpu"), 4096)   is   tensor([5577006791947779410, 0])

A kernel computes its numbers from seed, offset and element index; backward gets the same pair and computes the same
numbers. The generators advance: `torch.manual_seed` determines what is drawn, and two calls differ.
* CPU: the Mersenne twister has no offset; each draw takes a fresh 63-bit seed from it.
* CUDA: the generator's seed and offset; the offset advances by `increment` (rounded up to 4, as in torch). While the
  user captures a CUDA graph the state of the generator cannot be read: an operator draws a new seed in each replay.
"""

from __future__ import annotations

import torch


def draw_seed(device: torch.device, increment: int) -> torch.Tensor:
    """int64[2] on `device`; `increment` is the count of random numbers per stream that the kernels will use."""
    if device.type == "cpu" or torch.cuda.is_current_stream_capturing():
        drawn = torch.zeros(2, dtype=torch.int64, device=device)
        drawn[0].random_()
        return drawn
    generator = torch.cuda.default_generators[device.index or 0]
    offset = generator.get_offset()
    generator.set_offset(offset + rounded(increment))
    values = [signed_word(generator.initial_seed()), offset]
    return torch.tensor(values, dtype=torch.int64, device="cpu").pin_memory().to(device, non_blocking=True)


def rounded(increment: int) -> int:
    """What torch adds to the offset of a CUDA generator."""
    return (increment + 3) // 4 * 4


def signed_word(seed: int) -> int:
    """The 64 bits of a seed as an int64."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed
