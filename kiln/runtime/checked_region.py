"""Regions in which something fails: the original runs in their place.

    try: outputs = region(x, n)
    except (error for which `is_of_values(error)`): return f(x, n)      which raises what eager raises, at its line

What fails is a check of the values of tensors, or one of torch's operators, which checks its arguments when it runs.

The region calls no operator with unknown effects, and changes inputs only behind all its checks, so that nothing has
happened when one of them fails but draws from torch's generators; the states are put back where the capture has
assumed something of values. One that changes inputs is not replaced where anything else fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch

from kiln.plan.errors import CheckFailed, IndexOutOfRange, IntegerDivisionByZero
from kiln.runtime.host_draws import states_of
from kiln.support.errors import KilnError

OF_VALUES = (CheckFailed, IndexOutOfRange, IntegerDivisionByZero)
"""Errors that the values of tensors cause. All others of ours are faults of the compiler."""


def is_of_values(error: BaseException) -> bool:
    return isinstance(error, OF_VALUES)


def is_failed_check(error: BaseException) -> bool:
    """A check of values, in front of which a region changes nothing. Other errors may come when it has."""
    return isinstance(error, CheckFailed)


def is_of_operator(error: BaseException) -> bool:
    """An operator of torch fails in any way. On a GPU what kernels find may be of an earlier call, this is not."""
    return isinstance(error, Exception) and not isinstance(error, KilnError) and not is_of_hook(error)


def is_of_hook(error: BaseException) -> bool:
    """A saved-tensor hook around the call raises it, which is Python code: a checkpoint stops a recomputation so."""
    frames = error.__traceback__
    has_hooks = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
    return has_hooks and frames is not None and frames.tb_next is not None


def is_behind_checks(error: BaseException) -> bool:
    """Either, on a CPU; also of a region with assumptions, where an operator behind a check may fail first."""
    return is_of_values(error) or is_of_operator(error)


@final
class FallbackErrors:
    """The errors of a region that lead to the original, as transformed code asks for them; failed checks are counted.

    A check that often fails, such as that a mask selects something, costs each time what ran before it.
    """

    __slots__ = ("failures", "includes", "on_failure")

    def __init__(self, includes: Callable[[BaseException], bool]) -> None:
        self.includes = includes
        self.failures = 0
        self.on_failure: Callable[[int], None] | None = None
        """Gets the number of failed checks so far."""

    def __call__(self, error: BaseException) -> bool:
        included = self.includes(error)
        if included and is_failed_check(error):
            self.failures += 1
            if self.on_failure is not None:
                self.on_failure(self.failures)
        return included


def random_states(devices: tuple[str, ...]) -> list[tuple[object, object]]:
    """torch's default generators, of the CPU and of the GPUs among `devices`, with their states."""
    found = [torch.device(name) for name in devices]
    gpus = [torch.cuda.default_generators[device.index or 0] for device in found if device.type == "cuda"]
    return states_of((torch.default_generator, *gpus))
