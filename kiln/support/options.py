"""All user options in one frozen dataclass, made in `api/` and passed down.

    kiln.compile(model, options={"recompute": "none", "variants": 3})
    KILN_OPTIONS="variants=3,cache_dir=/tmp/kiln" python train.py

`mode` is a named set of options. Environment: KILN_LOG (stages to print), KILN_DUMP (folder for the texts of all
stages; verifies them and loads nothing from the cache), KILN_VERIFY (`first`: the option `verify`), KILN_OPTIONS
(defaults of the options).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from kiln.support.errors import KilnError
from kiln.support.records import dataclass


class UnknownOption(KilnError):
    code = "KILN5001"
    what = "there is no option `{name}`"
    why = "the options are {allowed}"
    try_ = ("{hint}",)


class BadOption(KilnError):
    code = "KILN5002"
    what = "option `{name}` cannot be {value!r}"
    why = "it takes {allowed}"
    try_ = ("see `kiln.Options` for what each value does",)


ControlFlowOption = Literal["auto", "graph", "python"]
Branches: TypeAlias = ControlFlowOption | Literal["cpu"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options and their defaults."""

    dynamic: Literal["auto", "never", "always"] = "auto"
    """Which sizes become symbols: those that changed, none, or all."""
    cuda_graphs: bool = False
    """Record a region's launches as a CUDA graph and replay it: less CPU time per call, more memory."""
    variants: int = 8
    """The most compiled variants of one function; beyond that it runs eager, with a warning."""
    is_compiling: Literal["auto", "true", "false"] = "auto"
    """The answer of `torch.compiler.is_compiling()` inside; auto: eager's, unless that breaks the graph."""
    control_flow: ControlFlowOption = "auto"
    """Which `if` on a tensor becomes a branch in the graph: auto: all that can, but on a GPU with `cuda_graphs` none;
    graph: also where the rest of the function is in both sides, and where floats are asked for being finite; python:
    none."""
    random: Literal["own", "eager"] = "own"
    """Random numbers: counter-based, drawn inside kernels; or the numbers that eager draws for the same seed."""
    numerics: Literal["fast", "rounded", "strict"] = "fast"
    """How close results are to eager's: see docs/numerics.md. strict: equal bits for the ops that it covers."""
    disable: str = ""
    """Passes and rules to switch off, as `cse+memory-reuse`: for `python -m kiln bisect`, which lists them."""
    verify: Literal["off", "first"] = "off"
    """first: the first run of each region is compared with eager; a region that differs runs eager, with a warning and
    a script that shows the difference. Random numbers are eager's; nothing is loaded from the cache."""
    recompute: Literal["cheap", "none"] = "cheap"
    """What the backward may recompute instead of saving it in the forward."""
    memory_budget: float = 1.0
    """How much of what is saved for the backward may be saved, from 0 to 1; what is cheap to compute and large is
    dropped first, but nothing without which the backward needs more memory, as it computes many layers at once."""
    activation_offload: bool = False
    """What is saved for the backward may wait for it in the host's memory: as much as the link carries while kernels
    run. It counts as not saved under `memory_budget`. On GPUs; such a region has no CUDA graph."""
    collectives: Literal["as_written", "joined"] = "as_written"
    """Messages between ranks: those that eager sends, so that another rank may run eager; or fewer: small all-reduces
    in one, and gradients added before they are reduced. Then all ranks must compile the same regions."""
    cache: bool = True
    """Load and store compiled variants on disk. Kernels are cached by their contents either way."""
    cache_dir: str = ""
    """Folder of the on-disk cache; empty: `kiln` in the user's cache folder."""
    compile_workers: int = 0
    """Processes that compile kernels; 0: one per core."""
    compile_budget: int = 60
    """Seconds of compiling that are free; beyond, a function is compiled only as long as the program runs in
    proportion, and else runs eager, with a warning. 0: no limit. With `fullgraph` there is none."""
    speed_check: bool = True
    """Compare compiled calls with eager now and then, and let eager run where it is faster; not with `fullgraph`."""
    compile_seconds: int = 300
    """The most seconds that one run of g++, or Triton for one kernel, may take; 0: no limit."""
    compile_megabytes: int = 4096
    """The most memory of a compiler's process; 0: no limit."""
    progress: bool = True
    """Show a progress bar on a terminal when a compile takes over two seconds."""


LEAST: Mapping[str, int] = {
    "variants": 1,
    "compile_workers": 0,
    "compile_seconds": 0,
    "compile_megabytes": 0,
    "compile_budget": 0,
}
"""The smallest value of an option."""
MODES: Mapping[str, Mapping[str, object]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True},
    "max-autotune-no-cudagraphs": {},
}
"""The modes of torch.compile. Nothing is tuned yet, so the last two equal the first two (a warning says so)."""


@lru_cache(maxsize=1)
def hints_of_options() -> Mapping[str, Any]:
    """The types of the options, read once: each `kiln.compile` asks four times."""
    return get_type_hints(Options)


def options_from(given: Mapping[str, object], base: Options | None = None) -> Options:
    """`base` with `given` applied.

    Raises:
        UnknownOption, BadOption: for an unknown name or value.
    """
    hints = hints_of_options()
    checked: dict[str, Any] = dict(given)
    names = [field.name for field in fields(Options)]
    for name, value in given.items():
        if name not in hints:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "remove it"
            raise UnknownOption(name=name, allowed=", ".join(names), hint=hint)
        _check(name, value, hints[name])
    return replace(base or Options(), **checked)


def options_from_text(text: str) -> Options:
    """Options written as `name=value,name=value` (the form of KILN_OPTIONS)."""
    hints = hints_of_options()
    given: dict[str, object] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        given[name] = _read(value, hints.get(name, str))
    return options_from(given)


def _check(name: str, value: object, hint: type) -> None:
    choices = get_args(hint)
    if choices:
        if value not in choices:
            raise BadOption(name=name, value=value, allowed="one of " + ", ".join(map(repr, choices)))
    elif hint is float:
        if type(value) not in (float, int) or not 0 <= value <= 1:  # type: ignore[operator]
            raise BadOption(name=name, value=value, allowed="a number from 0 to 1")
    elif type(value) is not hint:
        raise BadOption(name=name, value=value, allowed=f"a value of type {hint.__name__}")
    elif isinstance(value, int) and value < LEAST.get(name, value):
        raise BadOption(name=name, value=value, allowed=f"an integer of at least {LEAST[name]}")


def _read(text: str, hint: type) -> bool | int | float | str:
    if hint is float:
        with suppress(ValueError):
            return float(text)
    if hint is bool:
        return {"1": True, "true": True, "0": False, "false": False}.get(text.lower(), text)
    return int(text) if hint is int and text.lstrip("-").isdigit() else text
