"""Every knob a user has, as one frozen dataclass, made once in `api/` and handed down in parts.

    kiln.compile(model, options={"recompute": "none", "variants": 3})
    KILN_OPTIONS="variants=3,cache_dir=/tmp/kiln" python train.py

`mode` is a named set of options. Environment: KILN_LOG (stages to print), KILN_DUMP (folder for the texts of all
stages, which are then verified; nothing is loaded from the cache), KILN_OPTIONS (defaults of the options).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from kiln.support.errors import KilnError


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


@dataclass(frozen=True, kw_only=True)
class Options:
    """The knobs, with their defaults."""

    dynamic: Literal["auto", "never", "always"] = "auto"
    """Which sizes become symbols: those that changed, none, or all."""
    cuda_graphs: bool = False
    """Record on a GPU what a compiled region launches, and replay it: less work for the CPU per call, more memory."""
    variants: int = 8
    """At most so many compiled variants of one function; then it runs eager and says so."""
    is_compiling: Literal["auto", "true", "false"] = "auto"
    """What `torch.compiler.is_compiling()` answers inside: eager's answer, unless that breaks the graph."""
    recompute: Literal["cheap", "none"] = "cheap"
    """What backward may compute again instead of keeping it from forward."""
    cache: bool = True
    """Look compiled variants up on disk and leave them there. Kernels are kept by their contents either way."""
    cache_dir: str = ""
    """Folder of the on-disk cache; empty: `kiln` in the user's cache folder."""
    compile_workers: int = 0
    """Processes that compile kernels; 0: one per core."""
    progress: bool = True
    """A progress bar on a terminal when a compile takes over two seconds."""


LEAST: Mapping[str, int] = {"variants": 1, "compile_workers": 0}
"""The smallest value of an option."""
MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"cuda_graphs": True},
    "max-autotune": {"cuda_graphs": True},
    "max-autotune-no-cudagraphs": {},
}
"""torch.compile's; nothing is tuned yet, so the last two are the first two by other names."""


def options_from(given: Mapping[str, Any], base: Options | None = None) -> Options:
    """`base` with `given` applied.

    Raises:
        UnknownOption, BadOption: for a name or a value that does not exist.
    """
    hints = get_type_hints(Options)
    names = [field.name for field in fields(Options)]
    for name, value in given.items():
        if name not in hints:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean `{near[0]}`?" if near else "remove it"
            raise UnknownOption(name=name, allowed=", ".join(names), hint=hint)
        _check(name, value, hints[name])
    return replace(base or Options(), **given)


def options_from_text(text: str, base: Options | None = None) -> Options:
    """Options written as `name=value,name=value` (the form of KILN_OPTIONS)."""
    hints = get_type_hints(Options)
    given: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, value = part.partition("=")
        given[name] = _read(value, hints.get(name, str))
    return options_from(given, base)


def _check(name: str, value: object, hint: Any) -> None:
    choices = get_args(hint)
    if choices:
        if value not in choices:
            raise BadOption(name=name, value=value, allowed="one of " + ", ".join(map(repr, choices)))
    elif type(value) is not hint:
        raise BadOption(name=name, value=value, allowed=f"a value of type {hint.__name__}")
    elif isinstance(value, int) and value < LEAST.get(name, value):
        raise BadOption(name=name, value=value, allowed=f"a number from {LEAST[name]} on")


def _read(text: str, hint: Any) -> Any:
    if hint is bool:
        return {"1": True, "true": True, "0": False, "false": False}.get(text.lower(), text)
    return int(text) if hint is int and text.lstrip("-").isdigit() else text
