"""Regions in which something fails: the original runs in their place.

    try: outputs = region(x, n)
    except (error for which `is_of_values(error)`): return f(x, n)      which raises what eager raises, at its line;
                                                                        if it does not, the fault is reported

What fails is a check of the values of tensors, or one of torch's operators, which checks its arguments when it runs.

The region calls no operator with unknown effects, and changes inputs only behind all its checks, so that nothing has
happened when one of them fails but draws from torch's generators; the states are put back where the capture has
assumed something of values. One that changes inputs is not replaced where anything else fails.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import final

import torch

from kiln.plan.errors import CheckFailed, IndexOutOfRange, IntegerDivisionByZero, NotCovered
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


def is_of_circumstances(error: BaseException) -> bool:
    """What may come or not when the same is computed again: memory, matrices that are nearly singular, and values that
    only eager takes."""
    kinds = (torch.OutOfMemoryError, MemoryError, torch.linalg.LinAlgError, NotCovered)  # type: ignore[attr-defined]
    return isinstance(error, kinds)


@final
class RegionFailure:
    """An error of a region in place of which the original runs: its text, and whether eager must raise it, too."""

    __slots__ = ("expected", "text")

    def __init__(self, text: str, expected: bool) -> None:
        self.text = text
        self.expected = expected


@final
class FallbackErrors:
    """The errors of a region that lead to the original, as transformed code asks for them; failed checks are counted.

    A check that often fails, such as that a mask selects something, costs each time what ran before it. In a region
    that `is_exact`, which assumes nothing of values and draws no random numbers, where nothing handles errors, eager
    must raise what the region raises: where it does not, the compiler is at fault.
    """

    __slots__ = ("failures", "includes", "is_exact", "on_failure", "on_fault")

    def __init__(self, includes: Callable[[BaseException], bool], is_exact: bool) -> None:
        self.includes = includes
        self.is_exact = is_exact
        self.failures = 0
        self.on_failure: Callable[[int], None] | None = None
        """Gets the number of failed checks so far."""
        self.on_fault: Callable[[str], None] | None = None
        """Gets the text of an error that eager does not raise."""

    def __call__(self, error: BaseException) -> RegionFailure | None:
        """What is to be told to `succeeded` when the original has returned; None: the error is raised."""
        if not self.includes(error):
            return None
        if is_failed_check(error):
            self.failures += 1
            if self.on_failure is not None:
                self.on_failure(self.failures)
        text = "".join(traceback.format_exception_only(error)).strip()
        return RegionFailure(text, self.is_exact and not is_of_circumstances(error))

    def succeeded(self, failure: RegionFailure) -> None:
        """The original has returned in place of the region."""
        if failure.expected and self.on_fault is not None:
            self.on_fault(failure.text)


def random_states(devices: tuple[str, ...]) -> list[tuple[object, object]]:
    """torch's default generators, of the CPU and of the GPUs among `devices`, with their states."""
    found = [torch.device(name) for name in devices]
    gpus = [torch.cuda.default_generators[device.index or 0] for device in found if device.type == "cuda"]
    return states_of((torch.default_generator, *gpus))
