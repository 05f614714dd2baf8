"""Every ATen call that torch's operator database makes, with arguments changed at random: the recorder against eager.

    aten.gather.default(f32[3, 4], 0, i64[3, 4])
    =>  aten.gather.default(f32[3, 4], 0, i64[3, 4] with -1 in it)       "lost error": eager raises, the graph computes
    =>  aten.gather.default(i16[3, 4], 0, i64[3, 4])                     "dtype", "values", ...: the results differ

The graph is run by the reference interpreter: no kernel is compiled, so a case takes milliseconds. Where the recorder
refuses the call, compiled code leaves it to eager, which is right. A case is one round over the calls of one operator.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from kiln.graph.ir.errors import WrongPrediction
from kiln.graph.ir.interpret import interpret
from kiln.graph.ops.breaks import TraceBreak
from kiln.graph.passes import run_passes
from kiln.graph.trace import Recorder
from kiln.runtime.guards.source import LocalSource
from kiln.support.errors import KilnError
from kiln.support.events import EventSink
from kiln.symbolic import DataDependentSize, NoHint, ShapeEnv
from kiln.symbolic.reference import prove
from tests.sweeps.compare import strides_of
from tests.sweeps.runner import Finding, Note
from tests.sweeps.samples import copy_of, elements, name_of, operators, seed_torch, spread

ROUNDS = 8
"""Rounds over the calls in one case."""
BLOCKS = 1000
MOST_CALLS = 60
"""Different calls of an operator that are kept."""
MOST_ELEMENTS = 4096
MOST_COMPARED = 100_000
"""Elements of a result: a broadcast may have any number of them."""
DTYPES = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
INTEGERS = (-1, 0, 1, 2, 3, -2, -5, 7, 100, 2**62, -(2**63))
FLOATS = (0.0, -1.0, 1.0, 0.5, 2.0, 1e30, float("inf"), float("nan"), -0.0)
INTERNAL = (
    "_backward", "_unsafe_view", "_linalg_check_errors", "aten._softmax.", "aten._log_softmax.", "_local_scalar_dense",
    "empty_strided", "_prelu_kernel", "grid_sampler",
    "native_batch_norm", "_batch_norm_with_update", "native_group_norm", "_fft_c2c", "_fft_c2r", "_fft_r2c",
    "_embedding_bag", "aten.lu_unpack.", "aten.linalg_lu_solve.", "aten.segment_reduce.",
)  # fmt: skip
"""Parts of names of ops that trust their arguments, which only torch itself passes: eager reads past the end."""
UNCHANGED = ("pin_memory", "device", "layout")
"""Arguments that ask for what this machine may not have."""
WELFORD = ("aten.var_mean.", "aten.std_mean.", "aten.native_layer_norm.")
LARGE = 1e18
"""Ops whose results for infinite numbers, and for numbers whose squares are infinite, depend on eager's order."""
NO_VALUES = ("aten.empty", "aten.new_empty", "aten.resize", "aten._cudnn", "aten.set_")


@dataclass(frozen=True)
class Call:
    """An ATen call with its arguments."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def copied(self) -> Call:
        args, kwargs = pytree.tree_map(copy_of, (self.args, self.kwargs))
        return Call(self.op, args, kwargs)

    def text(self) -> str:
        args = [text_of(arg) for arg in self.args] + [f"{name}={text_of(arg)}" for name, arg in self.kwargs.items()]
        return f"{self.op}({', '.join(args)})"

    def tensors(self) -> list[Tensor]:
        return [leaf for leaf in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(leaf, Tensor)]


def text_of(value: Any) -> str:
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        values = f" {value.tolist()}" if value.numel() <= 8 else ""
        strides = "" if value.is_contiguous() else f" strides {list(value.stride())}"
        return f"{dtype}{list(value.shape)}{strides}{values}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(text_of, value)) + "]"
    return repr(value)


class CallCollector(TorchDispatchMode):
    """Keeps the ATen calls made under it, copies of the arguments included."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, Call] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = Call(func, tuple(args), dict(kwargs or {}))
        if len(self.calls) < MOST_CALLS and func.namespace == "aten" and plain(call):
            self.calls.setdefault(call.text(), call.copied())
        return func(*args, **(kwargs or {}))


def plain(call: Call) -> bool:
    """Whether the tensors are small, dense and own their numbers."""
    return all(
        tensor.layout == torch.strided and tensor.numel() <= MOST_ELEMENTS and not tensor.is_conj()
        for tensor in call.tensors()
    ) and not any(isinstance(leaf, torch.Generator) for leaf in pytree.tree_leaves((call.args, call.kwargs)))


def calls_of(op: Any) -> list[Call]:
    """The ATen calls of an operator of the database, of its samples in two dtypes, and of their gradients."""
    collector = CallCollector()
    supported = op.supported_dtypes("cpu")
    for dtype in [dtype for dtype in (torch.float32, torch.int64) if dtype in supported]:
        seed_torch(0)
        try:
            differentiable = op.supports_autograd and dtype.is_floating_point
            samples = list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))
        except Exception:  # a sample that this machine cannot make
            continue
        for _, sample in spread([sample for sample in samples if elements(sample) <= MOST_ELEMENTS], 12):
            with contextlib.suppress(Exception), collector:
                result = op.op(sample.input, *sample.args, **sample.kwargs)
                ends = [end for end in pytree.tree_leaves(result) if isinstance(end, Tensor) and end.requires_grad]
                if ends:
                    torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
    return [call for call in collector.calls.values() if not call.op.name().startswith("aten::detach")]


# Changes of arguments.


def another_dtype(rng: random.Random, tensor: Tensor) -> Tensor:
    return tensor.to(rng.choice(DTYPES))


def another_size(rng: random.Random, tensor: Tensor) -> Tensor:
    if not tensor.dim():
        return tensor.reshape(1)
    axis = rng.randrange(tensor.dim())
    size = rng.choice((0, 1, tensor.shape[axis] + 1, max(tensor.shape[axis] - 1, 0)))
    index = torch.arange(size) % max(tensor.shape[axis], 1)
    return tensor.index_select(axis, index) if tensor.shape[axis] else torch.zeros_like(tensor)


def another_rank(rng: random.Random, tensor: Tensor) -> Tensor:
    if tensor.dim() and rng.random() < 0.5:
        return tensor.select(rng.randrange(tensor.dim()), 0).clone() if tensor.numel() else tensor.reshape(0)
    return tensor.unsqueeze(rng.randint(0, tensor.dim()))


def another_layout(rng: random.Random, tensor: Tensor) -> Tensor:
    way = rng.randrange(4)
    if way == 0 and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if way == 1 and tensor.dim():
        return torch.stack([tensor, tensor], -1)[..., 0]
    if way == 2 and tensor.dim() and tensor.shape[0]:
        return tensor[:1].expand(tensor.shape)
    return torch.cat([tensor.reshape(-1)[:1], tensor.reshape(-1)])[1:].reshape(tensor.shape)


def another_value(rng: random.Random, tensor: Tensor) -> Tensor:
    if not tensor.numel():
        return tensor
    changed = tensor.clone(memory_format=torch.contiguous_format)
    values = FLOATS if tensor.is_floating_point() else (-1, 0, 1, -3, 5, 100, -100)
    with contextlib.suppress(RuntimeError, TypeError, OverflowError):
        changed.view(-1)[rng.randrange(changed.numel())] = rng.choice(values)
    return changed


TENSOR_CHANGES = (another_dtype, another_size, another_rank, another_layout, another_value)


def another_number(rng: random.Random, value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((*INTEGERS, value + 1, value - 1, -value))
    if isinstance(value, float):
        return rng.choice((*FLOATS, -value))
    if isinstance(value, torch.dtype):
        return rng.choice(DTYPES)
    if isinstance(value, str):
        return rng.choice(("none", "mean", "sum", "tanh", "reflect", "floor", "x"))
    return value


def another_list(rng: random.Random, value: list[Any]) -> list[Any]:
    changed = list(value)
    if changed and rng.random() < 0.6:
        n = rng.randrange(len(changed))
        changed[n] = changed_argument(rng, changed[n])
    elif changed and rng.random() < 0.5:
        del changed[rng.randrange(len(changed))]
    elif changed:
        changed.append(rng.choice(changed))
    return changed


def changed_argument(rng: random.Random, value: Any) -> Any:
    if isinstance(value, Tensor):
        return rng.choice(TENSOR_CHANGES)(rng, value)
    if isinstance(value, list | tuple):
        return another_list(rng, list(value))
    return another_number(rng, value)


def changed(rng: random.Random, call: Call) -> Call:
    """The call with one or two arguments changed, or in place of another."""
    keys: list[int | str] = [*range(len(call.args)), *[key for key in call.kwargs if key not in UNCHANGED]]
    args, kwargs = list(call.args), dict(call.kwargs)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        if not keys:
            break
        key = rng.choice(keys)
        place: Any = args if isinstance(key, int) else kwargs
        place[key] = changed_argument(rng, place[key])
    op = in_place_of(call.op) if rng.random() < 0.15 else call.op
    return Call(op, tuple(args), kwargs)


def in_place_of(op: OpOverload) -> OpOverload:
    """The overload that writes into the first argument, where there is one."""
    packet = getattr(torch.ops.aten, op._schema.name.removeprefix("aten::") + "_", None)
    return getattr(packet, op._overloadname, op) if packet is not None else op


# Comparison.


@dataclass
class Recorded:
    """What the graph of a call gives."""

    results: list[Any]
    inputs: list[Tensor]
    """The contents of the tensor arguments afterwards."""
    alias: list[bool]


def eagerly(call: Call) -> tuple[list[Any], list[Tensor]]:
    call = call.copied()
    seed_torch(1)
    with torch.no_grad():
        result = call.op(*call.args, **call.kwargs)
    return pytree.tree_leaves(result), call.tensors()


def by_graph(call: Call) -> Recorded:
    """Recorded, simplified, interpreted."""
    call = call.copied()
    recorder = Recorder(env=ShapeEnv(prover=prove), events=EventSink())
    reals = call.tensors()
    leaves, structure = pytree.tree_flatten((call.args, call.kwargs))
    fakes = [
        recorder.add_tensor(leaf, f"x{n}", LocalSource(f"x{n}")) if isinstance(leaf, Tensor) else leaf
        for n, leaf in enumerate(leaves)
    ]
    args, kwargs = pytree.tree_unflatten(fakes, structure)
    with torch.no_grad():
        results = pytree.tree_leaves(recorder.call(call.op, args, kwargs))
    ends = [result for result in results if recorder.is_fake(result)]
    trace = recorder.finish(ends)
    graph = run_passes(trace.graph, EventSink(), checks="full")
    seed_torch(1)
    used = [record.real for record in trace.used_inputs]
    with torch.no_grad():
        run = interpret(graph, used, constants=trace.constants)
    after = {id(used[place]): value for place, value in run.written}
    values = iter(run.outputs)
    return Recorded(
        [next(values) if recorder.is_fake(result) else result for result in results],
        [after.get(id(real), real) for real in reals],
        [output.alias is not None for output in graph.outputs],
    )


def differences(eager: list[Any], ours: list[Any], values: bool, strides: bool) -> list[tuple[str, str]]:
    if len(eager) != len(ours):
        return [("structure", f"{len(ours)} results instead of {len(eager)}")]
    return [found for pair in zip(eager, ours, strict=True) if (found := difference(*pair, values, strides))]


def difference(eager: Any, ours: Any, values: bool, strides: bool) -> tuple[str, str] | None:
    if not isinstance(eager, Tensor) or not isinstance(ours, Tensor):
        same = type(eager) is type(ours) and (eager == ours or eager != eager)
        return None if same else ("structure", f"{ours!r} instead of {eager!r}")
    if eager.dtype != ours.dtype:
        return "dtype", f"{ours.dtype} instead of {eager.dtype}"
    if eager.shape != ours.shape:
        return "shape", f"{tuple(ours.shape)} instead of {tuple(eager.shape)}"
    if strides and strides_of(eager) != strides_of(ours):
        return "strides", f"{ours.stride()} instead of {eager.stride()} of {tuple(eager.shape)}"
    if eager.is_complex():  # of infinite parts, kernels for different lengths make different NaN
        known = eager.isfinite() | ours.isfinite()
        eager, ours = eager[known], ours[known]
    if values and 0 < eager.numel() <= MOST_COMPARED:
        try:
            torch.testing.assert_close(
                ours.contiguous(), eager.contiguous(), equal_nan=True, **tolerance(eager.dtype), check_stride=False
            )
        except AssertionError as wrong:
            return "values", str(wrong)[:400] + f"; {ours.flatten()[:6].tolist()} for {eager.flatten()[:6].tolist()}"
    return None


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    wide = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-6}
    if not dtype.is_floating_point and not dtype.is_complex:
        return {"rtol": 0.0, "atol": 0.0}
    return {"rtol": wide.get(dtype, 1e-4), "atol": wide.get(dtype, 1e-4)}


def attempt(action: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return action(), None
    except Exception as problem:
        return None, problem


def findings_of(call: Call, note: Note) -> list[Finding]:
    """What is wrong with the rule of a call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        note("eager", "")
        eager, refusal = attempt(lambda: eagerly(call))
        note(str(call.op), call.text())
        if refusal is not None and any(word in str(refusal) for word in ("memory", "alloc", "torage size")):
            return []
        ours, problem = attempt(lambda: by_graph(call))
    name = str(call.op)
    if problem is not None:
        kind = kind_of(problem, refusal)
        return [Finding(name, kind, f"{type(problem).__name__}: {str(problem)[:400]}", call.text())] if kind else []
    if refusal is not None:
        detail = f"{type(refusal).__name__}: {str(refusal).splitlines()[0][:300]}"
        return [Finding(name, "lost error", detail, call.text())]
    uncertain = name.startswith(NO_VALUES) or torch.Tag.nondeterministic_seeded in call.op.tags
    if name.startswith(WELFORD) and not all(bool((tensor.abs() < LARGE).all()) for tensor in call.tensors()):
        uncertain = True
    found = differences(eager[0], ours.results, not uncertain, strides=not any(ours.alias))
    found += differences(eager[1], ours.inputs, not uncertain, strides=False)
    return [Finding(name, kind, detail, call.text()) for kind, detail in found]


def kind_of(problem: Exception, refusal: Exception | None) -> str:
    """Of an exception of ours; empty where it is right."""
    if isinstance(problem, WrongPrediction):
        return "wrong prediction"
    if isinstance(problem, DataDependentSize | NoHint):
        return ""
    if isinstance(problem, TraceBreak) or refusal is not None:
        return "internal" if isinstance(problem, KilnError) and problem.code == "KILN9000" else ""
    return "refused"


def seed_of(*numbers: int) -> random.Random:
    return random.Random(hash(numbers))


class RuleSweep:
    """Case n: some rounds over the calls of operator n % (number of operators), others in each block of cases."""

    def __init__(self, names: Sequence[str] = ()) -> None:
        found = sorted(operators(), key=name_of)
        random.Random(0).shuffle(found)
        self.operators = [op for op in found if not names or op.name in names]

    def total(self) -> int:
        return len(self.operators) * BLOCKS

    def run(self, number: int, note: Note) -> list[Finding]:
        block, place = divmod(number, len(self.operators))
        found: dict[tuple[str, str], Finding] = {}
        calls = calls_of(self.operators[place])
        for turn in range(block * ROUNDS, (block + 1) * ROUNDS):
            for n, call in enumerate(calls):
                if turn and any(part in str(call.op) for part in INTERNAL):
                    continue
                variant = changed(seed_of(turn, place, n), call) if turn else call
                for finding in findings_of(variant, note):
                    found.setdefault((finding.subject, finding.kind), finding)
        return list(found.values())
