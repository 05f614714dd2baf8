"""Numbers and conversions, as in both target languages.

float_text(0.1)                                   "0.1": the shortest text that gives this float32
conversion_steps(float32, uint8)                  [int32, uint8]
"""

from __future__ import annotations

import torch

_SMALL = (torch.int8, torch.int16, torch.uint8, torch.uint16)


def conversion_steps(source: torch.dtype, target: torch.dtype) -> list[torch.dtype]:
    """The dtypes a value passes through: floats become small or unsigned integers through signed ones, as in eager."""
    if not source.is_floating_point or target.is_floating_point:
        return [target]
    if target in _SMALL:
        return [torch.int32, target]
    return [torch.int64, target] if target in (torch.uint32, torch.uint64) else [target]


def float_text(number: float) -> str:
    for digits in range(1, 10):
        text = f"{number:.{digits}g}"
        if torch.tensor(float(text), dtype=torch.float32, device="cpu").item() == number:
            break
    return text if any(sign in text for sign in ".e") else text + ".0"
