"""One model, captured: whether results and gradients equal eager's, what breaks the graph, and how long it takes.

    for finding in trials(subject, "kiln"):  {"mode": "eval", "outcome": "equal", "regions": 1, "breaks": [], ...}

The captured graph itself runs (`backend="eager"`), so that a difference is one of the capture and is exact. Mode
"export" is the saved program in another process, "free" one that is called with other sizes, too, "strict" that with
`numerics="strict"`; of torch.export only the time is taken.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import random
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypedDict, cast

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import kiln.api as api
from kiln.report.report import Report
from kiln.support.errors import KilnError
from kiln.support.optional import load
from kiln_bench.candidates import peer_graphs
from kiln_bench.capture.exported import ExportedModel
from kiln_bench.capture.subject import CaptureEntry, Inputs, NotBuilt, Subject

Mode = Literal["eval", "train", "generate", "export", "free", "strict"]
EXPORTS = ("export", "free", "strict")
FREE = ("free", "strict")
NEW_TOKENS = 6


class CaptureFinding(TypedDict, total=False):
    """What was found of a model in one mode. `breaks`: code, reason and the user's line of each."""

    name: str
    candidate: str
    mode: str
    outcome: str
    detail: str
    calls: int
    regions: int
    compiles: int
    breaks: list[list[str]]
    first_seconds: float
    eager_seconds: float
    export_seconds: float
    sizes: list[int]
    """In modes "free" and "strict": calls with other sizes, and how many of them the program refused."""


def calls_of(subject: Subject, mode: Mode) -> list[Inputs]:
    """The calls to compare: that with the inputs, and with free sizes with more rows, and with longer sequences."""
    if mode in FREE and subject.more:
        return [subject.inputs, *subject.more]
    tokens = subject.inputs.get("input_ids")
    shape = (
        tokens.shape
        if isinstance(tokens, Tensor)
        else next((value.shape for value in subject.inputs.values() if isinstance(value, Tensor)), torch.Size())
    )
    made = [subject.inputs]
    for axis in range(min(len(shape), 2)) if mode in FREE else ():
        longer = {name: repeated(value, shape, axis) for name, value in subject.inputs.items()}
        try:
            with torch.no_grad():
                subject.model(**copy.deepcopy(longer))
        except Exception:  # eager refuses these sizes
            continue
        made.append(longer)
    return made


def repeated(value: object, shape: torch.Size, axis: int) -> object:
    """Twice a tensor, one after the other, where its sizes begin like `shape` up to `axis`."""
    is_alike = isinstance(value, Tensor) and value.shape[: axis + 1] == shape[: axis + 1]
    return torch.cat([value, value], axis) if is_alike else value  # type: ignore[list-item]


# ------------------------------------------------------------------------------------------------ results


def leaves(value: object, seen: set[int]) -> Iterator[object]:
    """The tensors and numbers in a result: containers, and the attributes of other objects such as caches."""
    if isinstance(value, Tensor | int | float | str) or value is None:
        yield value
    elif id(value) in seen:
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from leaves(item, seen)
    elif isinstance(value, Sequence):
        for item in value:
            yield from leaves(item, seen)
    elif hasattr(value, "__dict__") and not isinstance(value, type | nn.Module) and not callable(value):
        seen.add(id(value))
        for name, item in vars(value).items():
            yield name
            yield from leaves(item, seen)


def seed() -> None:
    """All generators: models draw masks from NumPy's and skip layers by Python's."""
    torch.manual_seed(3)
    random.seed(3)
    if (numpy := load("numpy")) is not None:
        numpy.random.seed(3)


def results(model: Callable[..., object], module: nn.Module, inputs: Inputs, mode: Mode) -> list[object]:
    """Of a call: the leaves of its result; in training, the gradients of their sum too; then all buffers."""
    seed()
    arguments = copy.deepcopy(inputs)
    with contextlib.nullcontext() if mode == "train" else torch.no_grad():
        found = list(leaves(model(**arguments), set()))
    if mode == "train":
        sums = [leaf.float().sum() for leaf in found if isinstance(leaf, Tensor) and leaf.requires_grad]
        module.zero_grad(set_to_none=True)
        torch.autograd.backward(torch.stack(sums).sum())
        found = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in found]
        found += [parameter.grad for parameter in module.parameters()]
    return found + [buffer.clone() for buffer in module.buffers()]


def tokens(forward: Callable[..., object], module: nn.Module, inputs: Inputs) -> list[object]:
    """What the model generates greedily with `forward` in place of its own."""
    seed()
    own = module.forward
    module.forward = forward
    try:
        generate = cast(Callable[..., object], getattr(module, "generate"))  # noqa: B009
        settings = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "disable_compile": True}
        return list(leaves(generate(**copy.deepcopy(inputs), **settings), set()))
    finally:
        module.forward = own


def difference(ours: list[object], eager: list[object]) -> str:
    """The first difference in words, or nothing."""
    if len(ours) != len(eager):
        return f"{len(ours)} results instead of {len(eager)}"
    for place, (left, right) in enumerate(zip(ours, eager, strict=True)):
        if type(left) is not type(right):
            return f"result {place} is {type(left).__name__} instead of {type(right).__name__}"
        if not isinstance(left, Tensor) or not isinstance(right, Tensor):
            if left != right and not (left != left and right != right):
                return f"result {place} is {left!r} instead of {right!r}"[:200]
            continue
        if (left.shape, left.dtype, left.requires_grad) != (right.shape, right.dtype, right.requires_grad):
            return f"result {place}: {tuple(left.shape)} {left.dtype}, not {tuple(right.shape)} {right.dtype}"
        scale = float(right.abs().nan_to_num(0.0, 0.0, 0.0).max()) if right.numel() and right.is_floating_point() else 0
        if not torch.allclose(left, right, rtol=1e-4, atol=1e-5 * max(1, scale), equal_nan=True):
            worst = (left.double() - right.double()).abs().max()
            return f"result {place} {tuple(left.shape)} differs by {float(worst):.3g}"
    return ""


def in_float64(model: nn.Module) -> Callable[..., object]:
    model.double()

    def wide(value: object) -> object:
        return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value

    return lambda **inputs: model(**{name: wide(value) for name, value in inputs.items()})


def rounds_no_worse(ours: list[object], eager: list[object], wide: list[object]) -> bool:
    """Whether all that differs is numbers, with at most twice the error of eager."""
    if not len(ours) == len(eager) == len(wide):
        return False
    for left, right, exact in zip(ours, eager, wide, strict=True):
        if not difference([left], [right]):
            continue
        if not (isinstance(left, Tensor) and isinstance(right, Tensor) and isinstance(exact, Tensor)):
            return False
        if left.shape != right.shape or not (left - exact).abs().max() <= 2 * (right - exact).abs().max():
            return False
    return True


# ------------------------------------------------------------------------------------------------ candidates


def kiln_facts(report: Report) -> CaptureFinding:
    breaks = [[found.code, found.reason, found.where] for found in (*report.breaks, *report.eager_reasons)]
    return {"regions": report.regions, "compiles": report.compiles, "breaks": breaks}


def peer_facts() -> CaptureFinding:
    graphs, reasons = peer_graphs()
    return {"regions": graphs, "compiles": 0, "breaks": [["break", reason[:300], ""] for reason in reasons]}


def trial(subject: Subject, candidate: str, mode: Mode) -> CaptureFinding:
    """Compare a call with eager, and those with other sizes where there are some."""
    # The subject's own model stays as it was: one that keeps results of a training step cannot be copied.
    model, eager_model, again = [copy.deepcopy(subject.model).train(mode == "train") for _ in range(3)]

    def run(called: Callable[..., object], module: nn.Module) -> list[object]:
        if mode == "generate":
            return tokens(called, module, subject.inputs)
        calls = [subject.inputs, *subject.more]
        return [value for inputs in calls for value in results(called, module, inputs, mode)]

    found: CaptureFinding = {"name": subject.name, "candidate": candidate, "mode": mode, "calls": 1 + len(subject.more)}
    try:
        start = time.perf_counter()
        expected = run(eager_model.forward if mode == "generate" else eager_model, eager_model)
        found["eager_seconds"] = time.perf_counter() - start
    except Exception as problem:
        return {**found, "outcome": "skipped", "detail": f"{type(problem).__name__}: {problem}"[:300]}
    called = model.forward if mode == "generate" else model
    if candidate == "kiln":
        compiled = api.compile(called, backend="eager", options={"cache": False})
    else:
        compiled = torch.compile(called, backend="eager")

    def compare() -> str:
        different = difference(run(compiled, model), expected)
        if different and mode != "generate" and difference(run(again, again), expected):
            different = ""  # another call of eager differs too
        return different

    found |= compared(compare)
    return {**found, **(kiln_facts(api.report_of(compiled)) if candidate == "kiln" else peer_facts())}


def compared(compare: Callable[[], str]) -> CaptureFinding:
    """What came of a comparison, which says in words what differs."""
    found: CaptureFinding = {}
    start = time.perf_counter()
    try:
        different = compare()
    except KilnError as problem:
        found |= {"outcome": "refused", "breaks": [[problem.code, str(problem), ""]]}
    except Exception as problem:
        text = "".join(traceback.format_exception(problem)[-4:])
        found |= {"outcome": "error", "detail": f"{type(problem).__name__}: {problem}"[:300] + "\n" + text[-900:]}
    else:
        found |= {"outcome": "wrong" if different else "equal", "detail": different}
    found["first_seconds"] = time.perf_counter() - start
    return found


def export_trial(subject: Subject, candidate: str, mode: Mode) -> CaptureFinding:
    """Export a call, and compare what the program returns for all calls of the mode with eager."""
    calls = calls_of(subject, mode)
    exported = ExportedModel(copy.deepcopy(subject.model), candidate, mode in FREE, mode == "strict")
    refused = 0

    def run(module: Callable[..., object], inputs: Inputs) -> list[object]:
        seed()
        with torch.no_grad():
            found, structure = pytree.tree_flatten(module(**copy.deepcopy(inputs)))
        # A program returns what containers tell pytree of themselves, which is not all that a cache has.
        return list(leaves(pytree.tree_unflatten(found, structure), set()))

    def compare() -> str:
        nonlocal refused
        seed()
        with torch.no_grad():
            found = exported.results(copy.deepcopy(calls))
        for inputs, result in zip(calls, found, strict=False):
            if result is None:
                refused += 1
                continue
            ours, expected = list(leaves(result, set())), run(copy.deepcopy(subject.model), inputs)
            different = difference(ours, expected)
            if different and rounds_no_worse(ours, expected, run(in_float64(copy.deepcopy(subject.model)), inputs)):
                different = ""
            if different and not difference(run(copy.deepcopy(subject.model), inputs), expected):
                return different  # and another call of eager does not differ
        return ""

    found: CaptureFinding = {"name": subject.name, "candidate": candidate, "mode": mode, **compared(compare)}
    return {**found, "export_seconds": exported.seconds, "sizes": [len(calls) - 1, refused]}


def can_generate(subject: Subject) -> bool:
    ask = getattr(subject.model, "can_generate", None)
    return ask is not None and bool(ask()) and "input_ids" in subject.inputs


def takes_cache(subject: Subject) -> bool:
    """Whether a call can go without a cache, which may be of a class that no file holds."""
    parameters = inspect.signature(subject.model.forward).parameters
    return "use_cache" in parameters or any([each.kind is each.VAR_KEYWORD for each in parameters.values()])


def trials(entry: CaptureEntry, candidate: str, modes: Sequence[Mode]) -> Iterator[CaptureFinding]:
    """All modes of one model."""
    try:
        subject = entry.build()
    except NotBuilt as problem:
        yield {"name": entry.title, "candidate": candidate, "outcome": "not built", "detail": str(problem)}
        return
    for mode in modes:
        if mode != "generate" or can_generate(subject):
            ask = export_trial if mode in EXPORTS else trial
            found = ask(subject, candidate, mode)
            if mode in EXPORTS and found["outcome"] in ("refused", "error") and takes_cache(subject):
                found = ask(replace(subject, inputs={**subject.inputs, "use_cache": False}), candidate, mode)
            yield found
