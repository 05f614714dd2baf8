"""The native executor of a plan.

    run = make_executor(plan, libraries)
    outs = run(x, weight)                  # a tuple; no Python frame, the interpreter lock is released

It runs below autograd and autocast, whatever the caller's modes; `autograd.py` makes differentiable regions. It is
thread-safe and re-entrant. Any difference from the reference (`kiln/plan/reference.py`) is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, final

import torch

from kiln.native._executor import Executor
from kiln.plan import errors
from kiln.plan.encode import encode_program
from kiln.plan.plan import Plan
from kiln.runtime.kernels import Libraries
from kiln.support.errors import KilnError

# ErrorKind of csrc/executor/program.h
STATUS, INPUT, CHECK, OPERATOR, PROGRAM, DEVICE = range(6)

Executable = Callable[..., tuple[Any, ...]]
"""A compiled region: its inputs -> its outputs."""
Observer = Callable[[Plan, Libraries, Sequence[torch.Tensor], Collection[int], Any], Any]
"""Receives an executor and what it was made from; returns what is called instead."""

OBSERVERS: list[Observer] = []
"""Registered by tests and tools that watch plans run."""


def make_executor(
    plan: Plan,
    libraries: Libraries,
    constants: Sequence[torch.Tensor] = (),
    adapt: Collection[int] = (),
    program: bytes | None = None,
) -> Executor:
    """`adapt`: inputs that are copied into the planned layout if they have another one (tangents).
    `program`: the result of `encode_program(plan, adapt)`, if it has been called.

    Raises InvalidPlan, UnknownOperator, MissingKernel.
    """
    names = [declared.name for declared in plan.inputs]
    program = program or encode_program(plan, adapt)
    executor = load_executor(program, libraries, constants, Explain(plan.name, names, libraries))
    for observe in OBSERVERS:
        executor = observe(plan, libraries, constants, adapt, executor)
    return executor


def load_executor(
    program: bytes, libraries: Libraries, constants: Sequence[torch.Tensor], explain: Explain
) -> Executor:
    """An executor of encoded plans; needs no `Plan`."""
    try:
        return Executor(program, libraries.addresses(), list(constants), explain, libraries.images())
    except torch.OutOfMemoryError as error:
        if isinstance(error, KilnError):
            raise
        raise errors.NoDeviceMemory(kernel=f"plan {explain.plan}", reason=str(error)) from error


@final
class Explain:
    """Makes the coded error for a problem that the native executor reports.

    Each executor holds one, and thereby the `libraries` whose functions it calls.
    """

    def __init__(self, plan: str, inputs: Sequence[str], libraries: Libraries | None = None) -> None:
        self.plan = plan
        self.inputs = list(inputs)
        self.libraries = libraries

    def __call__(self, kind: int, value: int, origin: str, detail: str) -> BaseException:
        where = origin or detail or f"plan {self.plan}"
        if kind == STATUS:
            return errors.status_error(value, where)
        if kind == INPUT:
            name = self.inputs[value] if 0 <= value < len(self.inputs) else "list"
            return errors.InputMismatch(name=name, plan=self.plan, problem=detail)
        if kind == CHECK:
            return errors.check_error(detail)
        if kind == OPERATOR:
            target, _, problem = detail.partition(": ")
            return errors.UnknownOperator(target=target, problem=problem)
        if kind == DEVICE:
            kernel, _, reason = detail.partition(": ")
            return errors.DEVICE_ERRORS[value](kernel=kernel, reason=reason)
        return errors.InvalidProgram(plan=self.plan, problem=detail)
