"""The child of `sweep.py`: checks the ops of a shard and reports findings as JSON lines.

{"event": "op", "op": "nn.functional.gelu"}
{"event": "failure", "op": "nn.functional.gelu", "kind": "values", "dtype": "bfloat16", ...}
{"event": "end", "samples": 6}
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import random
import signal
import sys
import time
import traceback
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

import kiln
from kiln.graph.ops.breaks import TraceBreak
from kiln.pipeline.session import KilnWarning
from kiln.support.errors import ERRORS
from tests.ops.sweep_compare import Difference, differences, leaves, scale_of

SEED = 20240229
MOST_ELEMENTS = 1_000_000
MOST_SAMPLES = 200
"""Samples to generate per op; the checked ones are spread over them."""
TAKEN = {torch.float32: 4, torch.bfloat16: 2}
UNINITIALISED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""Ops with undefined or random results."""
FALSE_CLAIMS = {"KILN1102", "KILN2201", "KILN2202", "KILN2203", "KILN2302", "KILN2303"}
"""Breaks that claim an error of eager or an invalid graph: failures if eager raised nothing."""
OPTIONS = {"cache": False, "compile_workers": 1, "progress": False}


class OutOfTime(BaseException):
    """An op exceeded its time; not an Exception, which the compiler would handle."""


class DeviceLost(BaseException):
    """The GPU is unusable in this process."""


def operators() -> list[Any]:
    """torch's database. Its module imports test libraries (expecttest) that are not needed: they are stubbed."""
    database = None
    while database is None:
        try:
            database = importlib.import_module("torch.testing._internal.common_methods_invocations")
        except ModuleNotFoundError as problem:
            if not problem.name or problem.name in sys.modules or problem.name.startswith("torch"):
                raise
            sys.modules[problem.name] = StandIn(problem.name)
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "wrapper_set_seed"):
            module.wrapper_set_seed = plainly  # type: ignore[attr-defined]
    return list(database.op_db)


class StandIn(types.ModuleType):
    """A module of empty classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(unittest, name, type(name, (), {}))


def plainly(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of `wrapper_set_seed`, whose changes of the random state break the graph around each random op."""
    return op(*args, **kwargs)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def shard_of(ops: list[Any], shard: str, only: str) -> list[Any]:
    """The ops of a shard in an order that is the same in each process."""
    if only:
        names = set(only.split(","))
        return [op for op in ops if op.name in names or name_of(op) in names]
    part, parts = map(int, shard.split("/"))
    ordered = sorted(ops, key=name_of)
    random.Random(SEED).shuffle(ordered)
    return ordered[part % parts :: parts]


@dataclass
class Channel:
    """Where lines go to."""

    descriptor: int

    def tell(self, event: str, **data: Any) -> None:
        os.write(self.descriptor, (json.dumps({"event": event, **data}, default=str) + "\n").encode())


@dataclass
class OpCheck:
    """What is done with one op."""

    op: Any
    arguments: argparse.Namespace
    channel: Channel
    finish_by: float
    samples: int = 0
    breaks: dict[str, int] = field(default_factory=dict)
    context: dict[str, Any] = field(default_factory=dict)
    stage: str = ""
    reported: set[tuple[str, str, str, str]] = field(default_factory=set)

    @property
    def device(self) -> str:
        return str(self.arguments.device)

    def run(self) -> None:
        for dtype, number, sample in self.chosen():
            if time.time() > self.finish_by:
                return
            self.context = {"dtype": str(dtype).removeprefix("torch."), "sample": number, "args": summary(sample)}
            self.check(sample, dtype, gradient=False)
            is_chosen = dtype == torch.float32 or (
                self.arguments.dtypes and (dtype.is_floating_point or dtype.is_complex)
            )
            wanted = is_chosen and not self.arguments.no_gradients
            if wanted and self.op.supports_autograd:
                self.check(sample, dtype, gradient=True)
            self.samples += 1

    def dtypes(self) -> list[torch.dtype]:
        supported = self.op.supported_dtypes(self.device)
        if self.arguments.dtypes:
            chosen = [getattr(torch, name) for name in self.arguments.dtypes.split(",")]
            return [dtype for dtype in chosen if dtype in supported]
        floats = [dtype for dtype in (torch.float32, torch.bfloat16) if dtype in supported]
        return floats or [dtype for dtype in (torch.int64, torch.int32, torch.bool) if dtype in supported][:1]

    def chosen(self) -> Iterator[tuple[torch.dtype, int, Any]]:
        """The samples with dtypes alternating, so that a time limit does not skip a dtype."""
        self.stage = "samples"
        columns = [
            [(dtype, n, item) for n, item in spread(self.made(dtype), self.arguments.samples or TAKEN.get(dtype, 2))]
            for dtype in self.dtypes()
        ]
        for row in itertools.zip_longest(*columns):
            yield from filter(None, row)

    def made(self, dtype: torch.dtype) -> list[Any]:
        seed()
        wants = bool(self.op.supports_autograd and (dtype.is_floating_point or dtype.is_complex))
        try:
            source = self.op.reference_inputs if self.arguments.reference else self.op.sample_inputs
            found = list(itertools.islice(source(self.device, dtype, requires_grad=wants), MOST_SAMPLES))
        except Exception as problem:  # a sample that this machine cannot make (a missing library)
            lost(problem)
            return []
        return [value for value in found if elements(value) <= MOST_ELEMENTS]

    def check(self, sample: Any, dtype: torch.dtype, gradient: bool) -> None:
        """Eager twice, float64, ours twice. An op that draws random numbers has no values to compare."""
        mode = "gradient" if gradient else "forward"
        self.context["mode"], self.stage = mode, "eager"
        run = run_gradient if gradient else run_forward
        inputs = (sample.input, *sample.args), dict(sample.kwargs)
        plain = self.plain(gradient)
        tensors = [leaf for leaf in leaves(inputs) if isinstance(leaf, Tensor)]
        try:
            eager = run(plain, inputs, sample)
            drew = random_state(self.device) != state_after(seed, self.device)
            again = run(plain, inputs, sample, SEED + 1)
        except Exception as problem:
            lost(problem)
            return
        fixed = not (drew or self.op.name in UNINITIALISED or differences(again, eager, None, scale_of(tensors)))
        exact = (
            reference(run, plain, inputs, sample) if fixed and (dtype.is_floating_point or dtype.is_complex) else None
        )
        compiled = kiln.compile(self.plain(gradient), options=OPTIONS, dynamic=self.arguments.dynamic or None)
        for call in ("", ", second call"):
            self.stage = "ours"
            self.context["mode"] = mode + call
            ours = self.ours(run, compiled, inputs, sample)
            if ours is None:
                break
            self.note(differences(ours, eager, exact, scale_of(tensors), values=fixed))
        self.count_breaks(compiled)

    def plain(self, gradient: bool) -> Callable[..., Any]:
        """The function that is compiled, a new one each time."""
        if self.arguments.autocast:
            return under_autocast(self.op.op, self.device.partition(":")[0])
        if not self.arguments.inplace:
            return calling(self.op.op)
        return writing_to_a_view(self.op.inplace_variant) if gradient else calling(self.op.inplace_variant)

    def ours(self, run: Any, compiled: Any, inputs: Any, sample: Any) -> Any:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", KilnWarning)
            try:
                result = run(compiled, inputs, sample)
                synchronize(self.device)
            except Exception as problem:
                self.fail("error", type(problem).__name__, str(problem)[:600], trace=where(problem))
                lost(problem)
                return None
            finally:
                for warning in said:
                    self.note_warning(str(warning.message))
        return result

    def note_warning(self, text: str) -> None:
        code = next((error for error in ERRORS if error in text), "")
        if not code or not issubclass(ERRORS[code], TraceBreak):
            self.fail("warning", code, text[:1200])

    def note(self, found: list[Difference]) -> None:
        for kind, which, text in found:
            self.fail(kind, f"result {which}", text)

    def fail(self, kind: str, which: str, detail: str, **more: Any) -> None:
        """Report a failure, once per sample for call, second call and gradient."""
        key = (kind, which, detail, f"{self.context['dtype']} {self.context['sample']}")
        if key not in self.reported:
            self.reported.add(key)
            self.channel.tell(
                "failure", op=name_of(self.op), kind=kind, which=which, detail=detail, **self.context, **more
            )

    def count_breaks(self, compiled: Any) -> None:
        for graph_break in kiln.report_of(compiled).breaks:
            text = f"{graph_break.code} {graph_break.reason}"[:300]
            self.breaks[text] = self.breaks.get(text, 0) + 1
            if graph_break.code in FALSE_CLAIMS:
                self.fail("refused", graph_break.code, graph_break.reason[:600])


def calling(op: Callable[..., Any]) -> Callable[..., Any]:
    """A function of its own for each compile."""
    return lambda *args, **kwargs: op(*args, **kwargs)


def under_autocast(op: Callable[..., Any], device: str) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device, torch.bfloat16):
            return op(*args, **kwargs)

    return function


def writing_to_a_view(op: Callable[..., Any]) -> Callable[..., Any]:
    """A function that changes a view of a copy: leaves that need gradients cannot be changed themselves."""

    def function(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        copy = x.clone()
        view = copy.unsqueeze(0)[0]
        return op(view, *args, **kwargs), copy * 2

    return function


def seed(number: int = SEED) -> None:
    torch.manual_seed(number)
    random.seed(number)


def random_state(device: str) -> bytes:
    state = torch.cuda.get_rng_state() if device.startswith("cuda") else torch.get_rng_state()
    return state.numpy().tobytes()


def state_after(action: Callable[[], None], device: str) -> bytes:
    action()
    return random_state(device)


def spread(found: list[Any], count: int) -> list[tuple[int, Any]]:
    """At most `count` items spread evenly over a list, with their indices."""
    if len(found) <= count:
        return list(enumerate(found))
    return [(n, found[n]) for n in sorted({round(i * (len(found) - 1) / max(count - 1, 1)) for i in range(count)})]


def elements(sample: Any) -> int:
    tensors = [leaf for leaf in leaves((sample.input, sample.args, sample.kwargs)) if isinstance(leaf, Tensor)]
    return max((tensor.numel() for tensor in tensors), default=0)


def summary(sample: Any) -> str:
    try:
        return str(sample.summary())[:800]
    except Exception:
        return "(no summary)"


def copy_of(value: Any) -> Any:
    """A tensor with the same strides in memory of its own; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        return value.detach().clone().requires_grad_(value.requires_grad)
    memory = value.detach().untyped_storage().clone()
    fresh = torch.empty(0, dtype=value.dtype, device=value.device)
    fresh.set_(memory, value.storage_offset(), value.size(), value.stride())
    fresh = torch._neg_view(fresh) if value.is_neg() else fresh
    fresh = fresh.conj() if value.is_conj() else fresh
    return fresh.detach().requires_grad_(value.requires_grad)


def doubled(value: Any) -> Any:
    """In double precision, tensors and dtypes."""
    wide = dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float64)
    wide |= dict.fromkeys((torch.complex64, torch.complex32), torch.complex128)
    if isinstance(value, Tensor):
        return value.detach().to(wide.get(value.dtype, value.dtype)).requires_grad_(value.requires_grad)
    return wide.get(value, value) if isinstance(value, torch.dtype) else value


def run_forward(function: Any, inputs: Any, sample: Any, number: int = SEED) -> Any:
    """The result, and the inputs afterwards."""
    args, kwargs = tree_map(copy_of, inputs)
    with torch.no_grad():
        seed(number)
        result = function(*args, **kwargs)
    return result, [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor)]


def run_gradient(function: Any, inputs: Any, sample: Any, number: int = SEED) -> Any:
    """The result and its gradients, by tangents that are the same in each run."""
    args, kwargs = tree_map(copy_of, inputs)
    sources = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.requires_grad]
    seed(number)
    result = function(*args, **kwargs)
    ends = leaves(sample.output_process_fn_grad(result))
    ends = [end for end in ends if isinstance(end, Tensor) and end.requires_grad]
    if not sources or not ends:
        return [result]
    gradients = torch.autograd.grad(ends, sources, [tangent_of(end) for end in ends], allow_unused=True)
    return [result, list(gradients)]


def tangent_of(result: Tensor) -> Tensor:
    """Random numbers in the layout of the result, as Kiln copies tangents into it."""
    generator = torch.Generator().manual_seed(SEED + result.dim())
    narrow = {torch.float64: torch.float32, torch.complex128: torch.complex64}.get(result.dtype, result.dtype)
    numbers = torch.randn(result.shape, generator=generator, dtype=narrow)
    return torch.empty_like(result, requires_grad=False).copy_(numbers)


def reference(run: Any, function: Any, inputs: Any, sample: Any) -> Any:
    """The result in double precision, or None."""
    try:
        return run(function, tree_map(doubled, inputs), sample)
    except Exception as problem:
        lost(problem)
        return None


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def lost(problem: Exception) -> None:
    """Raise `DeviceLost` when no further call to the GPU can succeed."""
    if "CUDA error" in str(problem) or "CUBLAS_STATUS_EXECUTION_FAILED" in str(problem):
        try:
            torch.cuda.synchronize()
            torch.zeros(1, device="cuda").item()
        except Exception:
            raise DeviceLost(str(problem)[:600]) from problem


def where(problem: BaseException) -> list[str]:
    """The innermost frames of an exception, those of torch's database left out."""
    frames = traceback.extract_tb(problem.__traceback__)[-6:]
    return [
        f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in frames
    ]


def ring(*_: Any) -> None:
    raise OutOfTime


def check_op(op: Any, arguments: argparse.Namespace, channel: Channel) -> bool:
    """Check one op within its time limit; False if this process must end."""
    finish_by = min(time.time() + arguments.op_seconds, arguments.deadline)
    one = OpCheck(op, arguments, channel, finish_by)
    channel.tell("op", op=name_of(op))
    usable = True
    signal.alarm(max(1, int(arguments.op_limit)))
    try:
        one.run()
        synchronize(arguments.device)
    except OutOfTime as problem:
        if one.stage == "ours":
            one.fail("timeout", "", f"took over {arguments.op_limit} s", trace=where(problem))
    except DeviceLost as problem:
        if one.stage == "ours":
            one.fail("crash", "the GPU", str(problem))
        usable = False
    except Exception as problem:
        one.context = one.context or {"dtype": "", "sample": 0}
        one.fail("sweep", type(problem).__name__, str(problem)[:600], trace=where(problem))
    finally:
        signal.alarm(0)
    if one.breaks:
        channel.tell("failure", op=name_of(op), kind="break", breaks=one.breaks)
    channel.tell("end", op=name_of(op), samples=one.samples)
    return usable


def main() -> int:
    reader = argparse.ArgumentParser()
    for name in ("device", "shard", "only", "dtypes"):
        reader.add_argument(f"--{name}", required=True)
    for name in ("start", "channel", "samples"):
        reader.add_argument(f"--{name}", required=True, type=int)
    for name in ("op-seconds", "op-limit", "deadline"):
        reader.add_argument(f"--{name}", required=True, type=float)
    for name in ("no-gradients", "dynamic", "reference", "inplace", "autocast"):
        reader.add_argument(f"--{name}", action="store_true")
    arguments = reader.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, ring)
    channel = Channel(arguments.channel)
    known = [op for op in operators() if op.inplace_variant or not arguments.inplace]
    ops = shard_of(known, arguments.shard, arguments.only)
    channel.tell("start", total=len(ops))
    for op in ops[arguments.start :]:
        if time.time() > arguments.deadline:
            break
        if not check_op(op, arguments, channel):
            return 3
    else:
        channel.tell("done")
    return 0


if __name__ == "__main__":
    sys.exit(main())
