"""torch's database of operators: every op, dtype and sample, compiled and in eager.

    python -m tests.sweeps operators --device cuda --samples 1 --shard 3/14 --seconds 500 --out found.jsonl
    python -m tests.sweeps operators --only add,gather --modes forward,gradient,second,symbolic,inplace,errors

A case is one op in one dtype, in each mode; the errors of an op are a case of their own. The order is shuffled by a
fixed seed, so that a short run is a fair sample.
"""

from __future__ import annotations

import argparse
import functools
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tests.sweeps.compare import leaves, scale_of
from tests.sweeps.runner import Finding, Note
from tests.sweeps.samples import (
    SEED,
    calling,
    copy_of,
    doubled,
    dtype_name,
    name_of,
    operators,
    samples_of,
    seed,
    shuffled,
    spread,
    summary,
    tangent_of,
)
from tests.sweeps.trial import Compile, Trial, error_outcome, outcome, tensors_in

MODES = ("forward", "gradient", "second", "symbolic", "inplace", "autocast", "errors")
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""Ops with undefined results."""

Function = Callable[..., Any]


@dataclass(frozen=True)
class OperatorCase:
    """An op in one dtype, or, without a dtype, its errors."""

    op: Any
    dtype: torch.dtype | None


class OperatorSweep:
    """The cases of the database."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device = str(arguments.device)
        self.modes = tuple(arguments.modes.split(",")) if arguments.modes else ("forward", "gradient", "errors")
        if unknown := set(self.modes) - set(MODES):
            raise SystemExit(f"no mode {', '.join(unknown)}; the modes are {', '.join(MODES)}")
        self.samples = int(arguments.samples)
        self.only = frozenset(filter(None, arguments.only.split(",")))
        self.dtypes = frozenset(filter(None, arguments.dtypes.split(",")))
        self.reference = bool(arguments.reference)

    @functools.cached_property
    def cases(self) -> list[OperatorCase]:
        """Made where it is used: reading the database asks for the GPU, after which no process may be forked."""
        ops = [op for op in shuffled(operators()) if not self.only or self.only & {op.name, name_of(op)}]
        return [OperatorCase(op, dtype) for op in ops for dtype in self.dtypes_of(op)]

    def dtypes_of(self, op: Any) -> list[torch.dtype | None]:
        supported = sorted(op.supported_dtypes(self.device.partition(":")[0]), key=str)
        found: list[torch.dtype | None] = [d for d in supported if not self.dtypes or dtype_name(d) in self.dtypes]
        return found + [None] * ("errors" in self.modes and op.error_inputs_func is not None)

    def total(self) -> int:
        return len(self.cases) if self.device == "cpu" else int(in_a_child(lambda: len(self.cases)))

    def run(self, number: int, note: Note) -> list[Finding]:
        case = self.cases[number]
        note("eager", name_of(case.op))
        if case.dtype is None:
            return [finding for trial, kind in self.errors(case.op) for finding in error_outcome(trial, kind, note)]
        return [finding for trial in self.trials(case.op, case.dtype) for finding in outcome(trial, note)]

    def trials(self, op: Any, dtype: torch.dtype) -> Iterator[Trial]:
        differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
        chosen = spread(samples_of(op, self.device, dtype, self.reference), self.samples)
        for mode in self.modes:
            function = function_of(op, mode, self.device)
            if function is None or (mode in ("gradient", "second") and not differentiable):
                continue
            if mode == "second" and not op.supports_gradgrad:
                continue
            for number, sample in chosen:
                yield self.trial(op, dtype, mode, function, number, sample)

    def trial(self, op: Any, dtype: torch.dtype, mode: str, function: Function, number: int, sample: Any) -> Trial:
        run = {"gradient": run_gradient, "second": run_second}.get(mode, run_forward)
        inputs = (sample.input, *sample.args), dict(sample.kwargs)
        inexact = (dtype.is_floating_point or dtype.is_complex) and dtype not in (torch.float64, torch.complex128)
        return Trial(
            name_of(op), f"{mode} {dtype_name(dtype)}", f"{number}: {summary(sample)}", self.device,
            lambda wrap, start: run(wrap(function), tree_map(copy_of, inputs), sample, start),
            lambda: run(function, tree_map(doubled, inputs), sample, SEED) if inexact else None,
            scale=scale_of(tensors_in(leaves(inputs))), undefined=op.name in UNINITIALISED,
            dynamic=True if mode == "symbolic" else None,
        )  # fmt: skip

    def errors(self, op: Any) -> Iterator[tuple[Trial, type[BaseException]]]:
        try:
            found = list(op.error_inputs(self.device))
        except Exception:  # an input that this machine cannot make
            return
        for number, entry in enumerate(found):
            sample = entry.sample_input
            inputs = (sample.input, *sample.args), dict(sample.kwargs)
            function = calling(op.op)
            trial = Trial(
                name_of(op), "errors", f"{number}: {summary(sample)}", self.device,
                functools.partial(run_plainly, function, inputs),
            )  # fmt: skip
            yield trial, entry.error_type


def run_plainly(function: Function, inputs: Any, wrap: Compile, start: int) -> Any:
    args, kwargs = tree_map(copy_of, inputs)
    seed(start)
    return wrap(function)(*args, **kwargs)


def function_of(op: Any, mode: str, device: str) -> Function | None:
    """What is compiled."""
    if mode == "errors":
        return None
    if mode == "inplace":
        return writing_to_a_view(op.inplace_variant) if op.inplace_variant else None
    return under_autocast(op.op, device.partition(":")[0]) if mode == "autocast" else calling(op.op)


def under_autocast(op: Function, device: str) -> Function:
    def function(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return op(*args, **kwargs)

    return function


def writing_to_a_view(op: Function) -> Function:
    """A function that changes a view of a copy: leaves that need gradients cannot be changed themselves."""

    def function(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        copy = x.clone()
        view = copy.unsqueeze(0)[0]
        return op(view, *args, **kwargs), copy * 2

    return function


def run_forward(function: Function, inputs: Any, sample: Any, start: int) -> Any:
    """The result, and the inputs afterwards."""
    args, kwargs = inputs
    with torch.no_grad():
        seed(start)
        result = function(*args, **kwargs)
    return result, tensors_in(leaves((args, kwargs)))


def run_gradient(function: Function, inputs: Any, sample: Any, start: int) -> Any:
    """The result and its gradients, by tangents that are the same in each run."""
    result, ends, sources = differentiated(function, inputs, sample, start)
    if not sources or not ends:
        return [result]
    gradients = torch.autograd.grad(ends, sources, [tangent_of(end) for end in ends], allow_unused=True)
    return [result, list(gradients)]


def run_second(function: Function, inputs: Any, sample: Any, start: int) -> Any:
    """The gradients, and the gradients of these."""
    result, ends, sources = differentiated(function, inputs, sample, start)
    if not sources or not ends:
        return [result]
    tangents = [tangent_of(end) for end in ends]
    first = torch.autograd.grad(ends, sources, tangents, allow_unused=True, create_graph=True)
    ends = [gradient for gradient in first if gradient is not None and gradient.requires_grad]
    if not ends:
        return [list(first)]
    second = torch.autograd.grad(ends, sources, [tangent_of(end) for end in ends], allow_unused=True)
    return [list(first), list(second)]


def differentiated(function: Function, inputs: Any, sample: Any, start: int) -> tuple[Any, list[Tensor], list[Tensor]]:
    args, kwargs = inputs
    sources = [leaf for leaf in tensors_in(leaves((args, kwargs))) if leaf.requires_grad]
    seed(start)
    result = function(*args, **kwargs)
    ends = tensors_in(leaves(sample.output_process_fn_grad(result)))
    return result, [end for end in ends if end.requires_grad], sources


def in_a_child(action: Callable[[], Any]) -> Any:
    """The result of a function in a forked process, which may use the GPU when this one must not yet."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            with os.fdopen(writing, "wb") as out:
                out.write(pickle.dumps(action()))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        answer = source.read()
    os.waitpid(child, 0)
    return pickle.loads(answer)
