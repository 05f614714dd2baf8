"""One program run in eager and compiled, and how they compare: the outcome, in one word.

native       compiled without a graph break, and equal to eager
fallback     equal to eager; parts of it ran in eager, and the report says why (`detail`: the codes)
metadata     shapes, dtypes and strides are equal; eager leaves the values undefined
values, nonfinite, shape, dtype, strides, requires_grad, structure      the results differ
error        compiled code raises, eager does not; "refused": by a documented code
lost error, other error, unnamed error      eager raises; compiled code does not, or another class, or another text
internal     KILN9000: a stage of the compiler failed, and the region ran eager
skipped      eager cannot run it, or eager's own error test does not raise: nothing was compared
"""

from __future__ import annotations

import functools
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import kiln
from kiln.pipeline.session import KilnWarning
from kiln.support.errors import ERRORS, KilnError
from tests.sweeps.compare import differences, leaves
from tests.sweeps.rounding import moved_runs, within_rounding
from tests.sweeps.runner import Finding, Note, Unusable
from tests.sweeps.samples import SEED, drew_numbers

OPTIONS: dict[str, Any] = {"cache": False, "compile_workers": 1, "progress": False}
FALSE_CLAIMS = {"KILN1102", "KILN2201", "KILN2202", "KILN2203", "KILN2302", "KILN2303"}
"""Breaks that claim an error of eager or an invalid graph: wrong if eager raised nothing."""
DOCUMENTED = {"KILN4008"}
"""Errors that compiled code may raise where eager does not."""
SICK_DEVICE = ("CUDA error", "CUBLAS_STATUS_EXECUTION_FAILED")

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Compiles a function, or leaves it as it is."""


@dataclass(frozen=True)
class Trial:
    """A program that makes its own inputs, so that it can be run again."""

    subject: str
    mode: str
    program: str
    device: str
    run: Callable[[Compile, int], Any]
    """Runs it with fresh inputs and a seed; returns all that is to be compared."""
    exact: Callable[[], Any] = lambda: None
    """The results in double precision, or None."""
    scale: float = 0.0
    """Magnitude of the inputs."""
    undefined: bool = False
    """Whether the values of results are undefined."""
    dynamic: bool | None = None
    repeat: int = 2
    rounding: bool = False
    """Whether later steps make the rounding of earlier ones larger: see `rounding.py`."""

    def finding(self, kind: str, detail: str = "") -> Finding:
        return Finding(self.subject, kind, detail, self.program, self.mode)


def leave(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class Compiler:
    """Compiles each function once; remembers what it compiled."""

    def __init__(self, dynamic: bool | None = None, eager_numbers: bool = False) -> None:
        self.options = OPTIONS | ({"random": "eager"} if eager_numbers else {})
        self.dynamic = dynamic
        self.compiled: list[Any] = []
        self.of = functools.cache(self._compile)

    def _compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        found: Callable[..., Any] = kiln.compile(function, options=self.options, dynamic=self.dynamic)
        self.compiled.append(found)
        return found

    def reasons(self) -> list[str]:
        """Why parts ran in eager: code and reason."""
        found: dict[str, None] = {}
        for compiled in self.compiled:
            report = kiln.report_of(compiled)
            for entry in (*report.breaks, *report.eager_reasons):
                found[f"{entry.code} {entry.reason}"[:300]] = None
        return list(found)


def outcome(trial: Trial, note: Note) -> list[Finding]:
    """How compiled code compares with eager: one word if it is right, else each difference."""
    note("eager", trial.program)
    drew = False
    try:
        eager = quietly(lambda: trial.run(leave, SEED))
        drew = drew_numbers(trial.device)
        again = quietly(lambda: trial.run(leave, SEED if drew else SEED + 1))
    except Exception as problem:
        usable(problem, trial, ours=False)
        return [trial.finding("skipped", text_of(problem))]
    exact = exact_of(trial)
    undefined = trial.undefined or bool(differences(again, eager, None, trial.scale))
    compiler = Compiler(trial.dynamic, eager_numbers=drew)
    note(f"{trial.subject} {trial.mode}", trial.program)
    said: list[str] = []
    for _ in range(trial.repeat):
        try:
            ours = recording(said, lambda: trial.run(compiler.of, SEED))
            synchronize(trial.device)
        except Exception as problem:
            usable(problem, trial, ours=True)
            return [trial.finding(kind_of_error(problem), text_of(problem))]
        found = differences(ours, eager, exact, trial.scale, values=not undefined)
        if found and not (trial.rounding and rounding_explains(trial, ours, eager)):
            return [trial.finding(kind, f"result {which}: {text}") for kind, which, text in found[:3]]
    return [verdict(trial, compiler.reasons(), said, undefined)]


def rounding_explains(trial: Trial, ours: Any, eager: Any) -> bool:
    """Whether eager with each operation rounded otherwise differs from itself as much."""

    def run() -> list[Tensor | None]:
        return [*tensors_in(leaves(quietly(lambda: trial.run(leave, SEED))))]

    mine, theirs = tensors_in(leaves(ours)), tensors_in(leaves(eager))
    if len(mine) != len(theirs):
        return any(len(moved) != len(theirs) for moved in moved_runs(run))
    same = all((left.dtype, left.shape) == (right.dtype, right.shape) for left, right in zip(mine, theirs, strict=True))
    return same and within_rounding([*mine], [*theirs], run)


def verdict(trial: Trial, reasons: list[str], said: list[str], undefined: bool) -> Finding:
    """The outcome of a trial whose results are right."""
    everything = reasons + said
    for kind, codes in (("internal", {"KILN9000"}), ("refused", FALSE_CLAIMS)):
        if faults := [text for text in everything if any(code in text for code in codes)]:
            return trial.finding(kind, faults[0][:1500])
    if undefined:
        return trial.finding("metadata", "; ".join(reasons))
    return trial.finding("fallback" if reasons else "native", "; ".join(reasons))


def error_outcome(trial: Trial, expected: type[BaseException], note: Note) -> list[Finding]:
    """How compiled code compares where eager is known to raise."""
    note("eager", trial.program)
    try:
        quietly(lambda: trial.run(leave, SEED))
        return [trial.finding("skipped", f"eager raises no {expected.__name__}")]
    except Exception as problem:
        usable(problem, trial, ours=False)
        refusal = problem
    note(f"{trial.subject} {trial.mode}", trial.program)
    said: list[str] = []
    compiler = Compiler(trial.dynamic)
    try:
        recording(said, lambda: trial.run(compiler.of, SEED))
        synchronize(trial.device)
    except Exception as problem:
        usable(problem, trial, ours=True)
        if not isinstance(problem, type(refusal)):
            return [trial.finding("other error", f"{text_of(problem)}, and in eager {text_of(refusal)}")]
        if not names(problem, refusal, trial.subject):
            return [trial.finding("unnamed error", f"{text_of(problem)}, and in eager {text_of(refusal)}")]
        return [verdict(trial, [], said, False)]
    return [trial.finding("lost error", text_of(refusal))]


def names(problem: Exception, refusal: Exception, subject: str) -> bool:
    """Whether a message says what eager's says, or names the operator."""
    first = (str(refusal).splitlines() or [""])[0]
    words = [part for part in subject.split(" ")[0].replace(".", " ").split() if part not in ("nn", "functional")]
    return first in str(problem) or any(word.strip("_").lower() in str(problem).lower() for word in words)


def recording(said: list[str], action: Callable[[], Any]) -> Any:
    """Keeps Kiln's warnings; others are dropped."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", KilnWarning)
        try:
            return action()
        finally:
            said += [str(warning.message)[:1500] for warning in caught]


def quietly(action: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return action()


def exact_of(trial: Trial) -> Any:
    try:
        return quietly(trial.exact)
    except Exception as problem:
        usable(problem, trial, ours=False)
        return None


def kind_of_error(problem: Exception) -> str:
    code = (
        problem.code if isinstance(problem, KilnError) else next((code for code in ERRORS if code in str(problem)), "")
    )
    if code == "KILN9000":
        return "internal"
    return "refused" if code in DOCUMENTED else "error"


def text_of(problem: BaseException) -> str:
    """Class, text and innermost frames of an exception."""
    frames = traceback.extract_tb(problem.__traceback__)[-4:]
    places = [
        f"{Path(frame.filename).parent.name}/{Path(frame.filename).name}:{frame.lineno} {frame.name}"
        for frame in frames
    ]
    return f"{type(problem).__name__}: {str(problem)[:500]} ({' < '.join(reversed(places))})"


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def usable(problem: Exception, trial: Trial, ours: bool) -> None:
    """Raise `Unusable` when no further call to the GPU can succeed."""
    if not any(words in str(problem) for words in SICK_DEVICE):
        return
    try:
        torch.cuda.synchronize()
        torch.zeros(1, device="cuda").item()
    except Exception:
        kind = "crash" if ours else "skipped"
        raise Unusable(trial.finding(kind, f"the GPU is lost: {text_of(problem)}")) from problem


def tensors_in(values: list[Any]) -> list[Tensor]:
    return [value for value in values if isinstance(value, Tensor)]
