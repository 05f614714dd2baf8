"""Random programs of tensor operations: views, writes through views, promotion, reductions, indexing, gradients.

    def f(x0, x1, x2, n0, m0, h0, z0):
        v1 = x0.transpose(0, 2)
        v1[..., 0].mul_(2)           =>     results, written arguments, layouts, aliases: as in eager
        v2 = v1.sum(1) + z0
        return x0, v1, v2

`GraphSweep` records the program and runs the simplified graph by the reference interpreter (milliseconds a case);
`KernelSweep` compiles it with all stages, with gradients and a second call on other values, on any `--device`. With
`shared`, arguments are views of each other (`SHARED`). Differences that rounding explains do not count (`rounding.py`).
"""

from __future__ import annotations

import functools
import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import kiln
from kiln.graph.ir.errors import InvalidGraph, WrongPrediction
from kiln.graph.ir.interpret import interpret
from kiln.graph.passes import run_passes
from kiln.graph.trace import Recorder
from kiln.pipeline.session import KilnWarning
from kiln.runtime.guards.source import LocalSource
from kiln.support.events import EventSink
from kiln.symbolic import ShapeEnv
from tests.sweeps.compare import strides_of
from tests.sweeps.rounding import within_rounding
from tests.sweeps.runner import Finding, Note
from tests.sweeps.samples import copy_of, seed_torch
from tests.sweeps.shrink import Block, Statement, shrunk, text_of

NAMES = ("x0", "x1", "x2", "n0", "m0", "h0", "z0", "u0")
ASSIGNED = re.compile(r"(v\d+)")
SIGNATURE = f"def f({', '.join(NAMES)}):"
MOST_ELEMENTS = 400
SEEDS = (1, 2)
"""Of the arguments of the two calls."""
OPTIONS = {"cache": False, "compile_workers": 1, "progress": False}


def inputs(
    seed: int, shared: int | None = None, leaves: Callable[[Tensor], Tensor] = lambda leaf: leaf, device: str = "cpu"
) -> list[Tensor]:
    """Numbers that sums and products of a few keep exact; `shared`: which of them are in one memory.

    `leaves` makes the tensors that the arguments, or the memory of which they are views, are to be.
    """
    made = [leaves(tensor) for tensor in separate_inputs(seed, device)]
    return made if shared is None else SHARED[shared](made)


SHARED: tuple[Callable[[list[Tensor]], list[Tensor]], ...] = (
    lambda t: [t[0], t[0], *t[2:]],
    lambda t: [t[0], t[0][:], *t[2:]],
    lambda t: [t[0], t[0][1], t[2], *t[3:]],
    lambda t: [t[0][0], t[0], t[2], *t[3:]],
    lambda t: [t[0], t[0][:, 1:, ::2], *t[2:]],
    lambda t: [t[0], t[0].view(-1), *t[2:]],
    lambda t: [t[0], t[0].transpose(0, 2), *t[2:]],
    lambda t: [t[0][:, :2], t[0][:, 1:], *t[2:]],
    lambda t: [t[0][..., ::2], t[0][..., 1::2], *t[2:]],
    lambda t: [t[0], t[1], t[0][:, 0], *t[3:6], t[0][0, 0, 0], t[7]],
    lambda t: [t[0], t[1], t[1].t(), t[3], t[4], t[5], t[1][0, 0], t[7]],
    lambda t: [*t[:4], t[4], t[5], t[2][1, 1], t[7]],
    lambda t: [t[0].expand(2, 3, 4), t[0][0].expand(2, 3, 4), *t[2:]],
    lambda t: [t[0], t[0].detach()[1], *t[2:]],
)
"""What makes arguments views of others."""


def separate_inputs(seed: int, device: str) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def integers(low: int, high: int, *sizes: int) -> Tensor:
        return torch.randint(low, high, sizes, generator=generator).to(device)

    def numbers(*sizes: int) -> Tensor:
        return integers(-8, 9, *sizes) / 4

    return [
        numbers(2, 3, 4),
        numbers(4, 6)[:, ::2],
        numbers(3, 4).t(),
        integers(0, 3, 4),
        integers(0, 2, 3, 4).bool(),
        numbers(3, 4).to(torch.bfloat16),
        numbers(1).reshape(()),
        integers(0, 9, 3).to(torch.uint8),
    ]


# fmt: off
TEMPLATES: tuple[str, ...] = (
    # Views.
    "{v} = {t}.transpose({a}, {a})", "{v} = {t}[{s}:]", "{v} = {t}[..., {s}:]", "{v} = {t}[::{k}]",
    "{v} = {t}.unsqueeze({a})",
    "{v} = {t}.select({a}, {s})", "{v} = {t}.narrow({a}, {s}, 1)", "{v} = {t}.view(-1)", "{v} = {t}.flip({a})",
    "{v} = {t}.squeeze()",
    "{v} = {t}.expand(2, *{T}.shape)", "{v} = {t}.diagonal()", "{v} = {t}.unfold(-1, 2, 1)",
    "{v} = {t}.permute(*range({T}.dim()))",
    "{v} = {t}.movedim(0, -1)", "{v}, *_ = {t}.split(2, {a})", "{v} = {t}.chunk(2, -1)[-1]",
    "{v} = {t}.unbind({a})[0]", "{v} = {t}.detach()",
    "{v} = {t}.reshape(-1)", "{v} = {t}.flatten()", "{v} = {t}.as_strided((2, 2), (1, 2), {s})", "{v} = {t}.t()",
    "{v} = {t}.T.contiguous()",
    "{v} = {t}.view_as({t})", "{v} = {t}.real", "{v} = {t}[None]", "{v} = {t}[-1]", "{v} = {t}.swapaxes(0, -1)",
    "{v} = {t}.roll(1, {a})",
    # Writes.
    "{t}.add_({k})", "{t}.mul_({t})", "{t}[{s}] = {k}", "{t}[..., {s}] = {t}[..., 0]", "{t}.zero_()",
    "{t}.fill_({k})", "{t}.copy_({t})",
    "{t}.neg_()", "{t}.clamp_(-1, 1)", "{t}[{m}] = {k}", "{t}.masked_fill_({t} > 0, {k})", "{t}[n0[:2]] = {k}",
    "{t}.index_add_(0, n0[:1], {t}[:1])",
    "{t}.sub_({t}.sum())", "{t}.transpose(0, -1).mul_({k})", "{t}.diagonal().add_(1)", "{t}.view(-1)[0] = {k}",
    "{t}.scatter_(0, n0[:1], {k}.0)",
    "torch.add({t}, {t}, out={t})", "{t}.requires_grad_(False)", "{t} += {t}", "{t} *= {k}", "{t}.squeeze_()",
    "{t}.unsqueeze_(0)",
    "{t}.index_put_((n0[:1],), {t}[:1], accumulate=True)", "{t}.index_fill_(0, n0[:1], {k})", "{t}.swap = 1",
    "{t}.t_()", "{t}.cumsum_(0)",
    # Values.
    "{v} = {t} + {t}", "{v} = {t} * {t}", "{v} = {t} - {k}", "{v} = {t} * 0.5", "{v} = {k} - {t}", "{v} = -{t}",
    "{v} = {t}.abs()", "{v} = {t}.clone()",
    "{v} = {t} / 4", "{v} = {t} // 2", "{v} = {t} % 3", "{v} = {t}.floor()", "{v} = {t}.to(torch.float64)",
    "{v} = {t}.to(torch.int64)", "{v} = {t}.half()",
    "{v} = {t}.to(torch.uint8).float()", "{v} = {t} > 0", "{v} = {t} == {t}", "{v} = torch.where({t} > 0, {t}, {t})",
    "{v} = {t}.relu()", "{v} = {t}.sign()",
    "{v} = torch.maximum({t}, {t})", "{v} = {t}.clamp(min={k})", "{v} = {t} ** 2", "{v} = {t}.contiguous()",
    "{v} = {t}.exp()", "{v} = {t}.sigmoid()",
    "{v} = torch.addcmul({t}, {t}, {t}, value={k})", "{v} = {t}.lerp({t}, 0.25)", "{v} = {t}.bool()",
    "{v} = {t}.logical_not()", "{v} = {t}.nan_to_num()",
    "{v} = torch.zeros_like({t})", "{v} = {t}.new_ones(2)", "{v} = torch.full((3,), {k}, device=x0.device) + {t}",
    "{v} = torch.arange({T}.shape[-1], device=x0.device) * {t}", "{v} = {t}.bfloat16()",
    "{v} = torch.ones(3, 4, device=x0.device).tril() * {t}", "{v} = {t} & 3", "{v} = {t} << 1",
    "{v} = {t}.type_as({t})", "{v} = {t}.round()", "{v} = {t}.tanh()", "{v} = 2 ** {t}",
    # Reductions, scans.
    "{v} = {t}.sum()", "{v} = {t}.sum({a})", "{v} = {t}.sum({a}, keepdim=True)", "{v} = {t}.mean({a})",
    "{v} = {t}.amax({a})", "{v} = {t}.min({a}).values",
    "{v} = {t}.argmax({a})", "{v} = {t}.prod({a})", "{v} = {t}.any({a})", "{v} = {t}.all()", "{v} = {t}.cumsum({a})",
    "{v} = {t}.var({a})", "{v} = {t}.max()",
    "{v} = {t}.softmax({a})", "{v} = {t}.norm()", "{v} = {t}.logsumexp({a})", "{v} = {t}.std()",
    "{v} = {t}.count_nonzero()", "{v} = {t}.cummax({a}).values",
    "{v} = {t}.sum((0, -1))", "{v} = {t}.sort({a}).values", "{v} = {t}.topk(2, {a}).values", "{v} = {t}.median()",
    "{v} = {t}.cumprod({a})",
    # Joining, indexing, products.
    "{v} = torch.cat([{t}, {T}, {T}], {a})", "{v} = torch.stack([{T}, {T}], {a})", "{v} = {t}[n0[:2]]",
    "{v} = {t}.index_select({a}, n0[:1])", "{v} = {t}[m0]",
    "{v} = {t}.gather({a}, torch.zeros_like({T}, dtype=torch.int64))", "{v} = {t} @ {t}",
    "{v} = torch.nn.functional.pad({T}, (1, 0))", "{v} = {t}.repeat(2, 1)",
    "{v} = torch.nn.functional.linear({T}, {T})", "{v} = {t}.take(n0[:2])", "{v} = {t}.masked_fill({t} > 0, {k})",
    "{v} = {t}[n0[:2], n0[2:]]", "{v} = {t}.outer({t})",
    "{v} = {t}.tile(2)", "{v} = {t}.repeat_interleave(2, {a})", "{v} = torch.cat([{t}.view(-1), {t}.reshape(-1)])",
    "{v} = torch.einsum('...i,...i->...', {T}, {T})",
    "{v} = torch.nn.functional.layer_norm({T}, {T}.shape[-1:])", "{v} = torch.nn.functional.gelu({t})",
    "{v} = torch.bmm({T}[None], {T}[None])", "{v} = {t}.scatter(0, n0[:1], {k}.0)",
    "{v} = {t}.index_add(0, n0[:1], {t}[:1])", "{v} = torch.nn.functional.embedding(n0, {T})",
    "{v} = torch.bucketize({T}, x1[0].sort().values)",
)
# fmt: on


@dataclass
class Writer:
    """Writes a program while it runs on sample inputs, so that most statements are valid."""

    rng: random.Random
    values: dict[str, Any] = field(default_factory=dict)
    fresh: int = 0
    last: str = ""
    shared: int | None = None

    def program(self, size: int) -> Block:
        self.values = {"torch": torch, **dict(zip(NAMES, inputs(0, self.shared), strict=True))}
        lines: list[str] = []
        for _ in range(size * 4):
            if len(lines) >= size:
                break
            line = self.statement()
            before = dict(self.values)
            with torch.no_grad():
                try:
                    exec(line, self.values)
                except Exception:
                    self.values = before
                    if self.rng.random() < 0.995:
                        continue
            if any(isinstance(v, Tensor) and v.numel() > MOST_ELEMENTS for v in self.values.values()):
                self.values = before
                continue
            lines.append(line)
        return tuple(map(Statement, lines))

    def statement(self) -> str:
        template = self.rng.choice(TEMPLATES)
        self.last = ""
        while "{" in template:
            before, _, rest = template.partition("{")
            what, _, after = rest.partition("}")
            template = before + self.hole(what) + after
        return template

    def hole(self, what: str) -> str:
        if what == "v":
            self.fresh += 1
            return f"v{self.fresh}"
        if what == "t":
            names = [name for name, value in self.values.items() if isinstance(value, Tensor) and name != "_"]
            recent = [name for name in names if name.startswith("v")][-4:]
            name = self.rng.choice(recent if recent and self.rng.random() < 0.6 else names)
            self.last = self.last or name
            return name
        if what == "T":  # the same tensor as before, or one to begin with
            self.last = self.last or self.rng.choice([*NAMES[:3], *[n for n in self.values if n.startswith("v")]])
            return self.last
        if what == "a":
            value = self.values.get(self.last)
            return str(self.rng.randrange(max(value.dim(), 1)) if isinstance(value, Tensor) else 0)
        if what == "m":
            return f"{self.last} > 0"
        return str(self.rng.choice((0, 1)) if what == "s" else self.rng.choice((1, 2, 3)))


def source_of(block: Block) -> str:
    """The program, which returns all its values: an error in one that is not used may be lost."""
    made = [found[1] for statement in block if (found := ASSIGNED.match(statement.text))]
    return text_of((Statement(SIGNATURE, (*block, Statement(f"return {', '.join([*made, *NAMES])}"))),))


def function_of(source: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(source, "<program>", "exec"), namespace)
    return namespace["f"]  # type: ignore[no-any-return]


@dataclass
class Outcome:
    """What a run gave: tensors in order, or the error."""

    tensors: list[Tensor]
    arguments: list[Tensor]
    error: Exception | None = None
    gradients: list[Tensor | None] = field(default_factory=list)

    def values(self) -> list[Tensor | None]:
        return [*self.tensors, *self.arguments, *self.gradients]

    def aliases(self) -> list[tuple[int, int]]:
        """Of each result: the first tensor in the same memory, and its place in that memory."""
        known: dict[int, int] = {}
        made = [(known.setdefault(storage(t), len(known)), t.storage_offset()) for t in self.arguments]
        return made + [(known.setdefault(storage(t), len(known)), 0) for t in self.tensors]


def storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.numel() else id(tensor)


def run(function: Callable[..., Any], arguments: list[Tensor]) -> Outcome:
    seed_torch(0)
    try:
        results = function(*arguments)
    except Exception as error:
        return Outcome([], arguments, error)
    return Outcome([leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)], arguments)


def close(ours: Tensor, eager: Tensor) -> str:
    exact = not (eager.dtype.is_floating_point or eager.dtype.is_complex)
    bound = 0.0 if exact else max(1e-4, torch.finfo(eager.dtype).eps)
    try:
        torch.testing.assert_close(ours.detach(), eager.detach(), rtol=bound, atol=min(bound, 1e-4), equal_nan=True)
    except AssertionError as wrong:
        text = " ".join(str(wrong).split())[:200]
        return f"{text}: {ours.flatten()[:6].tolist()} for {eager.flatten()[:6].tolist()}"
    return ""


def different(
    ours: Outcome, eager: Outcome, again: Callable[[], Outcome], layouts: bool = True
) -> tuple[str, str] | None:
    """Kind and detail of the first difference; `again` runs eager again, to see how far rounding moves its results."""
    if eager.error is not None or ours.error is not None:
        if eager.error is None:
            return "error", f"{type(ours.error).__name__}: {str(ours.error)[:300]}"
        if ours.error is None:
            return "lost error", f"{type(eager.error).__name__}: {str(eager.error)[:300]}"
        same = isinstance(ours.error, type(eager.error))
        return None if same else ("error class", f"{type(ours.error).__name__} instead of {type(eager.error).__name__}")
    rounding = functools.cache(lambda: within_rounding(ours.values(), eager.values(), lambda: again().values()))
    pairs = [("result", *pair) for pair in zip(ours.tensors, eager.tensors, strict=True)]
    pairs += [("argument", *pair) for pair in zip(ours.arguments, eager.arguments, strict=True)]
    for what, mine, theirs in pairs:
        if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
            return "spec", f"{what}: {mine.dtype} {list(mine.shape)} instead of {theirs.dtype} {list(theirs.shape)}"
        if (text := close(mine, theirs)) and not rounding():
            return "values", f"{what}: {text}"
        if layouts and strides_of(mine) != strides_of(theirs):
            return "strides", f"{what}: {mine.stride()} instead of {theirs.stride()}"
    for number, (slope, expected) in enumerate(zip(ours.gradients, eager.gradients, strict=True)):
        if (slope is None) != (expected is None):
            return "gradient", f"of {NAMES[number]}: {slope} instead of {expected}"
        if slope is None or expected is None or is_spread_evenly(slope, expected):
            continue
        if (text := close(slope, expected)) and not rounding():
            return "gradient", f"of {NAMES[number]}: {text}"
    return None


def is_spread_evenly(ours: Tensor, eager: Tensor) -> bool:
    """Whether the gradient of `max()` or `median()` is not a number: everywhere, as in eager on a GPU."""
    return bool(eager.isnan().any()) and bool(ours.isnan().all())


def eager_outcome(source: str, shared: int | None) -> Outcome:
    with torch.no_grad():
        return run(function_of(source), inputs(1, shared))


# Graphs.


def by_graph(source: str, shared: int | None = None) -> Outcome:
    """Recorded, simplified and interpreted; the arguments are as the program leaves them."""
    reals = inputs(1, shared)
    recorder = Recorder(env=ShapeEnv(), events=EventSink())
    fakes = [recorder.add_tensor(real, name, LocalSource(name)) for name, real in zip(NAMES, reals, strict=True)]
    with torch.no_grad():
        results = recorder.call(function_of(source), tuple(fakes), {})
    leaves = [leaf for leaf in pytree.tree_leaves(results) if isinstance(leaf, Tensor)]
    trace = recorder.finish(leaves)  # type: ignore[arg-type]
    graph = run_passes(trace.graph, EventSink(), checks="full")
    used = [record.real for record in trace.used_inputs]
    ran = interpret(graph, used, constants=trace.constants)
    outputs = [copy_of(output) for output in ran.outputs]
    written = [(cast(Tensor, used[place]), value.clone()) for place, value in ran.written]
    for real, value in written:
        real.copy_(value)
    return Outcome(outputs, reals)


def check_graph(source: str, shared: int | None = None) -> tuple[str, str] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = eager_outcome(source, shared)
        try:
            ours = by_graph(source, shared)
        except (WrongPrediction, InvalidGraph) as problem:
            return "invalid", f"{type(problem).__name__}: {str(problem)[:400]}"
        except Exception:  # the call is left to eager
            return None
    # A result that is a view of an argument has the layout of the argument's new contents here.
    found = different(ours, eager, lambda: eager_outcome(source, shared), layouts=False)
    return None if found is not None and found[0] == "spec" and "argument" in found[1] else found


# Kernels.


@dataclass(frozen=True)
class Call:
    """How a program is called: the arguments that require gradients (bits of `wanted`, by number), are leaves or not
    (its last bit), and share memory."""

    wanted: int = 0
    dynamic: bool | None = None
    shared: int | None = None
    device: str = "cpu"

    def run(self, function: Callable[..., Any], seed: int) -> Outcome:
        """The results, and the gradients of the arguments."""
        leaves: list[Tensor] = []

        def leaf(tensor: Tensor) -> Tensor:
            wants = tensor.is_floating_point() and bool(self.wanted >> len(leaves) & 1)
            leaves.append(tensor.requires_grad_(wants))
            return tensor * 1 if wants and not self.wanted % 2 else tensor

        made = run(function, inputs(seed, self.shared, leaf, self.device))
        ends = [end for end in made.tensors if end.requires_grad and end.is_floating_point()]
        if made.error is None and ends:
            try:
                sum(((n + 1) * end.float()).sum() for n, end in enumerate(ends)).backward()  # type: ignore[union-attr]
            except Exception as error:
                made = Outcome([], made.arguments, error)
        made.gradients = [leaf.grad for leaf in leaves]
        return made

    def eager(self, source: str, seed: int) -> Outcome:
        return self.run(function_of(source), seed)

    def expected(self, source: str, seed: int, compiled: Outcome) -> Outcome:
        """What eager gives. Where it refuses a gradient because a saved result was changed, and compiled code has not
        saved that result, the right gradient."""
        made = self.eager(source, seed)
        if compiled.error is None and "modified by an inplace operation" in str(made.error):
            with torch.autograd.graph.allow_mutation_on_saved_tensors():
                return self.eager(source, seed)
        return made


def check_kernels(source: str, call: Call) -> tuple[str, str] | None:
    if call.device != "cpu" and any(replace(call, device="cpu").eager(source, seed).error for seed in SEEDS):
        return None  # an error of a kernel would take the GPU from this process
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", KilnWarning)
        compiled = kiln.compile(function_of(source), options=OPTIONS, dynamic=call.dynamic)
        for seed in SEEDS:
            ours = call.run(compiled, seed)
            eager = call.expected(source, seed, ours)
            found = different(ours, eager, functools.partial(call.eager, source, seed))
            if found is None and eager.error is None:
                found = different_state(ours, eager)
            if found is not None:
                return found
    for warning in warned:
        if "KILN9" in str(warning.message):
            return "internal", str(warning.message)[:600]
    return None


def different_state(ours: Outcome, eager: Outcome) -> tuple[str, str] | None:
    mine, theirs = ours.aliases(), eager.aliases()
    if mine != theirs:
        return "aliases", f"{mine} instead of {theirs}"
    for n, (left, right) in enumerate(zip(ours.tensors, eager.tensors, strict=True)):
        if left.requires_grad != right.requires_grad or left.is_leaf != right.is_leaf:
            return "autograd", f"result {n}: requires_grad {left.requires_grad}, leaf {left.is_leaf}"
        if left._version != right._version and right._version < left._version:
            return "version", f"result {n}: {left._version} instead of {right._version}"
    return None


@dataclass
class TensorSweep:
    """Case n: the program of seed n. `shared`: its arguments share memory."""

    size: int = 8
    shared: bool = False

    def total(self) -> int:
        return 100_000_000

    def sharing(self, number: int) -> int | None:
        return number % len(SHARED) if self.shared else None

    def checker(self, number: int) -> Callable[[str], tuple[str, str] | None]:
        raise NotImplementedError

    def run(self, number: int, note: Note) -> list[Finding]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            block = Writer(random.Random(number), shared=self.sharing(number)).program(self.size)
        check = self.checker(number)
        note("tensors", source_of(block))
        found = check(source_of(block))
        if found is None:
            return []
        kind = found[0]

        def fails(smaller: Block) -> bool:
            again = check(source_of(smaller))
            return again is not None and again[0] == kind

        least = shrunk(block, fails, 100)
        _, detail = check(source_of(least)) or found
        return [Finding(f"{kind}: {detail[:50]}", kind, detail, source_of(least))]


class GraphSweep(TensorSweep):
    """By the recorder and the reference interpreter."""

    def checker(self, number: int) -> Callable[[str], tuple[str, str] | None]:
        return functools.partial(check_graph, shared=self.sharing(number))


@dataclass
class KernelSweep(TensorSweep):
    """By `kiln.compile`, one in four with symbolic sizes."""

    device: str = "cpu"

    def checker(self, number: int) -> Callable[[str], tuple[str, str] | None]:
        rng = random.Random(number)
        wanted, dynamic = rng.choice((0, 0, 1, 7, 6, 71)), rng.random() < 0.25 or None
        return functools.partial(check_kernels, call=Call(wanted, dynamic, self.sharing(number), self.device))
