"""`torch.compile` means Kiln: for programs, and libraries, that call it and are not to be changed.

    restore = kiln.replace_torch_compile()
    torch.compile(model, mode="reduce-overhead")     kiln.compile(model, mode="reduce-overhead")
    model.compile()                                  the same
    torch.compile(model, backend="eager")            torch's own: the caller wants another backend
    restore()

Kiln captures by itself then; torch's capture is neither imported nor run. Options of torch's compiler that Kiln does
not have are ignored with a warning.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch

from kiln.api.entry import compile as kiln_compile
from kiln.api.modes import warn_of_mode
from kiln.support.location import user_stacklevel
from kiln.support.options import MODES, Options
from kiln.support.torch_settings import TorchSettingIgnored

REPLACED = (None, "inductor", "kiln", "cudagraphs")
"""The backends of torch.compile that Kiln stands in for."""
RENAMED = {"triton.cudagraphs": "cuda_graphs"}
"""Options of torch's compiler by the name that Kiln has for them."""
Rest = Mapping[str, object]


def replace_torch_compile() -> Callable[[], None]:
    """Make `torch.compile`, and so `torch.nn.Module.compile`, call `kiln.compile` in this process.

    Returns:
        A function that puts torch's own back.
    """
    original: Callable[..., object] = torch.compile

    @functools.wraps(original)
    def compile(
        model: Callable[..., object] | None = None,
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: str | Callable[..., object] | None = None,
        mode: str | None = None,
        options: Rest | None = None,
        disable: bool = False,
        **settings: object,
    ) -> object:
        known: dict[str, Any] = {"fullgraph": fullgraph, "dynamic": dynamic, "mode": mode, "disable": disable}
        if callable(backend) or backend not in REPLACED:
            return original(model, backend=backend, options=options, **known, **settings)
        chosen = kiln_options(options or {}, settings)
        if backend == "cudagraphs":
            chosen["cuda_graphs"] = True
        if chosen and mode is not None and mode in MODES:  # `kiln.compile` takes one of the two
            warn_of_mode(mode)
            chosen = {**MODES[mode], **chosen}
            known["mode"] = None
        return kiln_compile(model, options=chosen or None, **known)

    torch.compile = compile  # type: ignore[assignment]

    def restore() -> None:
        torch.compile = original  # type: ignore[assignment]

    return restore


def kiln_options(options: Rest, settings: Rest) -> dict[str, object]:
    """Options for Kiln; warns of all others, and of `settings` that are set."""
    names = {field.name for field in fields(Options)}
    given = {RENAMED.get(name, name): value for name, value in options.items()}
    chosen = {name: value for name, value in given.items() if name in names}
    rest = {name: value for name, value in given.items() if name not in names}
    limit = settings.get("recompile_limit")
    if isinstance(limit, int) and limit > 0:
        chosen.setdefault("variants", limit)
    unset = {name for name, value in settings.items() if not value or name in ("recompile_limit", "name")}
    ignore(rest | {name: value for name, value in settings.items() if name not in unset})
    return chosen


def ignore(settings: Rest) -> None:
    for name in sorted(settings):
        problem = TorchSettingIgnored(setting=f"{name}={settings[name]!r}", instead="see `kiln.Options`")
        warnings.warn(problem.render(), UserWarning, stacklevel=user_stacklevel())
