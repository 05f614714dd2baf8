"""Regions that check what their capture assumed of the values of tensors.

    outputs = run_checked(region, x, n)     None where a check fails, or any step after it that relied on it
    if outputs is None: return f(x, n)      f is the original function, which runs eager and raises what eager raises

The region changes no input and calls no operator with unknown effects, so that nothing has happened when it fails
but draws from torch's generators, whose states are put back.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kiln.plan.errors import CheckFailed, IndexOutOfRange, IntegerDivisionByZero
from kiln.support.errors import KilnError

Region = Callable[..., "tuple[object, ...]"]

OF_VALUES = (CheckFailed, IndexOutOfRange, IntegerDivisionByZero)
"""Errors that the values of tensors cause. All others of ours are faults of the compiler."""


def run_checked(region: Region, *inputs: object) -> tuple[object, ...] | None:
    try:
        return region(*inputs)
    except KilnError as error:
        if not isinstance(error, OF_VALUES):
            raise
        return None
    except Exception:  # of an operator behind a check: eager finds the right one
        return None


def random_states(devices: tuple[str, ...]) -> list[tuple[torch.Generator, torch.Tensor]]:
    """torch's default generators, of the CPU and of the GPUs among `devices`, with their states."""
    found = [torch.device(name) for name in devices]
    gpus = [torch.cuda.default_generators[device.index or 0] for device in found if device.type == "cuda"]
    return [(generator, generator.get_state()) for generator in (torch.default_generator, *gpus)]


def restore_random_states(states: list[tuple[torch.Generator, torch.Tensor]]) -> None:
    """As if the region had drawn nothing."""
    for generator, state in states:
        generator.set_state(state)
