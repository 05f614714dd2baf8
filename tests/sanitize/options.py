"""Kernels of the tests under AddressSanitizer and UndefinedBehaviorSanitizer: `tools/sanitize tests/codegen`.

The sanitizers' libraries must be in the process from its start (`LD_PRELOAD`, by tools/sanitize). They then guard each
allocation of torch too, so a kernel that reads or writes outside of a tensor ends the process with a report.

Left out are checks of what kernels do on purpose, as eager does: integers wrap and are shifted by any number, floats
out of range become some integer.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from kiln.build import toolchain

UNDEFINED = (
    "alignment", "bool", "bounds", "builtin", "enum", "integer-divide-by-zero", "null", "object-size",
    "pointer-overflow", "returns-nonnull-attribute", "unreachable", "vla-bound",
)  # fmt: skip
SANITIZED = ("-fsanitize=address", f"-fsanitize={','.join(UNDEFINED)}", "-fno-sanitize-recover=all", "-g1")
SLOWER = "-O3", "-O1"
"""The third level takes minutes with checks around each load."""


def is_preloaded() -> bool:
    maps = Path("/proc/self/maps").read_text()
    return "libasan" in maps and "libubsan" in maps


def enable() -> None:
    """Every kernel that this process compiles from now on is sanitized."""
    if not is_preloaded():
        raise pytest.UsageError("--sanitize needs the sanitizers' libraries: run tools/sanitize")
    if "kiln.native._executor" in sys.modules and toolchain.asked_toolchain.cache_info().currsize:
        raise pytest.UsageError("--sanitize came after the first compile")
    os.environ.pop("LD_PRELOAD", None)  # the compiler runs without them
    options = [option for option in toolchain.CXX_OPTIONS if option != SLOWER[0]]
    toolchain.CXX_OPTIONS = (*options, SLOWER[1], *SANITIZED)
