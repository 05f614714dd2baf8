"""Settings of torch.compile that would change what a program does, and that Kiln does not follow: said once.

    torch._dynamo.config.recompile_limit = 64     KILN5014 ...: Kiln has options={'variants': 64}

Torch's configuration is looked at where the program has loaded it; it is never imported here.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator

from kiln.support.errors import KilnError
from kiln.support.location import user_stacklevel

CONFIG = "torch._dynamo.config"


class TorchSettingIgnored(KilnError):
    code = "KILN5014"
    what = "Kiln does not follow the setting `{setting}` of torch.compile"
    why = "{instead}"
    try_ = ("remove it where only Kiln compiles",)


# fmt: off
INSTEAD = {
    "recompile_limit":               "it has options={'variants': ...}",
    "cache_size_limit":              "it has options={'variants': ...}",
    "accumulated_recompile_limit":   "it counts the variants of each function: options={'variants': ...}",
    "automatic_dynamic_shapes":      "it has options={'dynamic': 'never'}",
    "assume_static_by_default":      "it has dynamic=True",
    "dynamic_shapes":                "it has dynamic=False",
    "specialize_int":                "integers become symbols when they change, unless options={'dynamic': 'never'}",
    "specialize_float":              "floats become symbols when they change, unless options={'dynamic': 'never'}",
    "force_parameter_static_shapes": "sizes of parameters are always static",
    "error_on_recompile":            "it follows torch.compiler.set_stance('fail_on_recompile')",
    "disable":                       "it follows torch.compiler.set_stance('force_eager')",
    "compiled_autograd":             "each region has its own backward",
}
# fmt: on
"""Settings of `torch._dynamo.config` that change what is compiled -> what Kiln has."""


def changed_settings() -> Iterator[tuple[str, object]]:
    """Name and value of the settings above that the program has changed."""
    config = sys.modules.get(CONFIG)
    is_default, entries = getattr(config, "_is_default", None), getattr(config, "_config", {})
    for name in INSTEAD:
        if is_default is not None and hasattr(config, name) and not is_default(name):
            value = getattr(config, name)
            # `torch.cond` sets some of them and sets them back, which torch counts as a change.
            if value != getattr(entries.get(name), "default", None):
                yield name, value


def is_torch_compiler_loaded() -> bool:
    """Whether the program has loaded torch's compiler."""
    return "torch._dynamo" in sys.modules


def warn_of_settings() -> None:
    """One warning for each changed setting, once per process."""
    for name, value in changed_settings():
        warn_once(name, repr(value))


@functools.lru_cache(maxsize=len(INSTEAD))
def warn_once(name: str, value: str) -> None:
    problem = TorchSettingIgnored(setting=f"torch._dynamo.config.{name} = {value}", instead=INSTEAD[name])
    warnings.warn(problem.render(), UserWarning, stacklevel=user_stacklevel())
