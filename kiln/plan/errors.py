"""What can go wrong while a plan runs: codes KILN40xx.

Where eager raises a Python error of some class, ours is also an instance of that class, so that `except` clauses
of the program keep working.
"""

from __future__ import annotations

import torch

from kiln.support.errors import KilnError


class IndexOutOfRange(KilnError, IndexError, RuntimeError):
    code = "KILN4001"
    what = "an index is out of range in {where}"
    why = "a kernel met an index outside the dimension that it picks from"
    try_ = ("run the same inputs without kiln.compile: eager names the index and the dimension",)


class IntegerDivisionByZero(KilnError, ZeroDivisionError, RuntimeError):
    code = "KILN4002"
    what = "an integer was divided by zero in {where}"
    why = "integer division by zero has no result"
    try_ = ("guard the divisor: `torch.where(d == 0, 1, d)`",)


class InputMismatch(KilnError, TypeError):
    code = "KILN4003"
    what = "argument {name} of plan `{plan}` does not fit"
    why = "{problem}"
    try_ = ("give the plan what it was compiled for; a compiled function chooses by its guards",)


class CheckFailed(KilnError, RuntimeError, AssertionError):
    code = "KILN4004"
    what = "{where}"
    why = "a check of the program failed at run time"
    try_ = ("run the same inputs without kiln.compile: the same check fails there",)


class SingularMatrix(CheckFailed, torch.linalg.LinAlgError):  # type: ignore[name-defined]  # not in the stubs
    code = "KILN4016"
    what = "{where}"
    why = "the decomposition of a matrix failed"
    try_ = ("run the same inputs without kiln.compile: eager names the matrix of the batch",)


class NotCovered(CheckFailed):
    code = "KILN4018"
    what = "{where}"
    why = "compiled code has no form for these values, which eager may take"
    try_ = ("compiled inside of a program, eager runs in its place; a plan by itself has no other form",)


ASSUMED = "what was assumed of values does not hold"
"""How the message of a check begins that stands for an assumption of the capture."""
SINGULAR = " [LinAlgError]"
"""How the message of a check ends whose failure is a `SingularMatrix`; messages of programs never do."""


BEYOND = " [not covered]"
"""The same for `NotCovered`, which is a `CheckFailed` all the same if the message of a program ends so."""


def check_error(message: str) -> CheckFailed:
    """The error of a failed check, of the class that eager raises."""
    if message.endswith(SINGULAR):
        return SingularMatrix(where=message.removesuffix(SINGULAR))
    if message.endswith(BEYOND):
        return NotCovered(where=message.removesuffix(BEYOND))
    return CheckFailed(where=message)


class UnknownStatus(KilnError, RuntimeError):
    code = "KILN4005"
    what = "a kernel reported status {status} in {where}"
    why = "the code has no meaning in this version"
    try_ = ("compile the plan and its kernels with one version of Kiln",)


class UnknownOperator(KilnError, RuntimeError):
    code = "KILN4006"
    what = "the operator {target} does not exist or does not take the plan's arguments"
    why = "{problem}"
    try_ = ("import the library that registers the operator before the plan is loaded",)


class InvalidProgram(KilnError, ValueError):
    code = "KILN4007"
    what = "the compiled program of plan `{plan}` cannot be read"
    why = "{problem}"
    try_ = ("compile it again with this version",)


class NoDeviceRuntime(KilnError, RuntimeError):
    code = "KILN4010"
    what = "kernel {kernel} cannot be launched: there is no CUDA device to launch it on"
    why = "{reason}"
    try_ = (
        "check with `nvidia-smi` that the driver is installed and with `torch.cuda.is_available()` that torch uses it",
    )


class KernelDoesNotFit(KilnError, RuntimeError):
    code = "KILN4011"
    what = "the compiled code of kernel {kernel} does not fit this machine"
    why = "{reason}"
    try_ = ("install a driver as new as the CUDA version of this torch", "compile again on this machine")


class KernelTooLarge(KilnError, RuntimeError):
    code = "KILN4012"
    what = "kernel {kernel} needs more than the device has"
    why = "{reason}"
    try_ = ("report the kernel source, which KILN_DUMP=folder writes",)


class LaunchFailed(KilnError, RuntimeError):
    code = "KILN4013"
    what = "kernel {kernel} was not launched"
    why = "{reason}"
    try_ = ("CUDA_LAUNCH_BLOCKING=1 shows which kernel left an error that is reported late",)


class NoDeviceMemory(KilnError, torch.OutOfMemoryError):
    code = "KILN4014"
    what = "there is no memory on the device for {kernel}"
    why = "{reason}"
    try_ = ("use smaller batches", "free what another process holds: `nvidia-smi` lists them")


DEVICE_ERRORS: tuple[type[KilnError], ...] = (
    NoDeviceRuntime, NoDeviceRuntime, KernelDoesNotFit, KernelTooLarge, LaunchFailed, NoDeviceMemory,
)  # fmt: skip
"""By DeviceProblem of csrc/executor/device.h."""


STATUS_ERRORS: dict[int, type[KilnError]] = {1: IndexOutOfRange, 2: IntegerDivisionByZero}
"""Meaning of the number that a kernel leaves in its status slot."""


def status_error(status: int, where: str) -> KilnError:
    """The error for a nonzero status of the kernel at `where`."""
    if status in STATUS_ERRORS:
        return STATUS_ERRORS[status](where=where)
    return UnknownStatus(status=status, where=where)
