"""Checks the arguments of `kiln.compile`; each error names the argument and what is allowed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypedDict

from kiln.api.modes import warn_of_mode
from kiln.backends import Backend, find_backend
from kiln.graph.offload.part import GraphBackend
from kiln.support.errors import KilnError
from kiln.support.options import MODES, Options, options_from, options_from_text
from kiln.support.target import KernelLanguage


class BadArgument(KilnError):
    code = "KILN5003"
    what = "argument `{name}` of kiln.compile cannot be {value!r}"
    why = "it takes {allowed}"
    try_ = ("help(kiln.compile) lists all arguments",)


DYNAMIC: Mapping[bool, Literal["always", "never"]] = {True: "always", False: "never"}
MODELS = "a function, a method or an nn.Module (of a class: an instance, or decorate its `forward`)"


def check_callable(model: object) -> None:
    if not callable(model) or isinstance(model, type):
        raise BadArgument(name="model", value=model, allowed=MODELS)


def check_flag(name: str, value: object) -> None:
    if type(value) is not bool:
        raise BadArgument(name=name, value=value, allowed="True or False")


class CompileArguments(TypedDict, total=False):
    """Those of `kiln.compile`, but for the model."""

    fullgraph: bool
    dynamic: bool | None
    backend: str | Backend
    mode: str | None
    options: Mapping[str, object] | None
    disable: bool


def check_arguments(
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Backend = "kiln",
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
) -> tuple[Options, Backend | None]:
    """The options, and the backend (None: Kiln's own compiler). Raises KilnError."""
    for name, flag in (("fullgraph", fullgraph), ("disable", disable)):
        check_flag(name, flag)
    if isinstance(backend, type) or not (isinstance(backend, str | GraphBackend | KernelLanguage) or callable(backend)):
        raise BadArgument(name="backend", value=backend, allowed="a name of kiln.list_backends(), or a callable")
    return read_options(mode, options, dynamic), find_backend(backend)


def read_options(mode: str | None, options: Mapping[str, object] | None, dynamic: bool | None) -> Options:
    """Defaults, then KILN_OPTIONS, then the mode, then `options`, then `dynamic`."""
    if mode is not None and (not isinstance(mode, str) or mode not in MODES):
        raise BadArgument(name="mode", value=mode, allowed="None or one of " + ", ".join(map(repr, MODES)))
    if mode is not None and options is not None:
        raise BadArgument(name="options", value=options, allowed="None together with `mode`")
    if dynamic is not None and type(dynamic) is not bool:
        raise BadArgument(name="dynamic", value=dynamic, allowed="None, True or False")
    result = options_from_text(os.environ.get("KILN_OPTIONS", ""))
    if mode is not None:
        warn_of_mode(mode)
    if verify := os.environ.get("KILN_VERIFY"):
        result = options_from({"verify": verify}, result)
    result = options_from(MODES[mode or "default"], result)
    if options is not None and not isinstance(options, Mapping):
        raise BadArgument(name="options", value=options, allowed="a dict of options")
    result = options_from(options or {}, result)
    return result if dynamic is None else replace(result, dynamic=DYNAMIC[dynamic])
